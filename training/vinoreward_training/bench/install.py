"""Bench row about the installation: what a core install takes on disk, without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward_training.bench.env import run_script
from vinoreward_training.bench.statistics import Row
from vinoreward_training.configs.bench import BenchConfig

LIMIT_MB = 350
CHECK_SCRIPT = """
import importlib.util, json, vinoreward
print(json.dumps({name: importlib.util.find_spec(name) is not None
                  for name in ("torch", "pybullet", "warp", "nncf")}))
"""


def project_root() -> Path:
    """Return the folder of ``pyproject.toml``.

    Raises:
        ConfigError: the package is not run from its repository.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file():
        raise ConfigError(
            f"there is no pyproject.toml at {root}. Expected to run from the repository; clone it "
            "and install it with pip install -e '.[dev]'."
        )
    return root


def disk_bytes(folder: Path) -> int:
    """Return the space that a folder's files take on disk, in bytes; hard links count once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        state = path.stat()
        if (state.st_dev, state.st_ino) not in seen:
            seen.add((state.st_dev, state.st_ino))
            total += state.st_blocks * 512
    return total


def call(command: list[str]) -> None:
    """Run a command quietly.

    Raises:
        RunFolderError: it failed; the message ends with what it wrote.
    """
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RunFolderError(
            f"{' '.join(command[:4])} … ended with {done.returncode}. Expected 0. It wrote:\n"
            f"{(done.stdout + done.stderr)[-2000:]}"
        )


def _present(found: dict[str, bool]) -> str:
    return ", ".join(name for name, there in found.items() if there)


def install_rows(config: BenchConfig) -> list[Row]:
    """Install the core, then the core with ``[panda]``, into a new environment; measure both."""
    root = project_root()
    rows = []
    with tempfile.TemporaryDirectory(prefix="vinoreward-install-") as temporary:
        place = Path(temporary)
        # Isolated: -m would look for modules in the current folder first.
        call([sys.executable, "-I", "-m", "venv", str(place / "venv")])
        python = str(place / "venv" / "bin" / "python")
        # pip itself is there before and is no part of what we install.
        empty = disk_bytes(place / "venv")
        for requirement, limit in (("", LIMIT_MB), ("[panda]", None)):
            call([python, "-I", "-m", "pip", "install", "--no-compile", f"{root}{requirement}"])
            found = run_script(CHECK_SCRIPT, [], python=python, cwd=place)
            size = (disk_bytes(place / "venv") - empty) / 1e6
            rows.append(
                Row(
                    "install",
                    f"pip install vinoreward{requirement}: disk space of the package and all "
                    "it needs, Python itself not counted",
                    size,
                    "MB",
                    target="" if limit is None else f"<= {limit} MB, without torch",
                    met=None if limit is None else size <= limit and not found["torch"],
                    note=f"installs {present}" if (present := _present(found)) else "without torch",
                    details={"importable": found},
                )
            )
    return rows
