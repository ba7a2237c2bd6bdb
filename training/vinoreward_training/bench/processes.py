"""Bench rows measured in processes of their own: disk space of an installation, and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward.processes import python_command
from vinoreward_training.bench.rows import Row
from vinoreward_training.configs import BenchConfig

CHECK_SCRIPT = """
import importlib.util, json, vinoreward
print(json.dumps([name for name in ("torch", "pybullet", "warp", "nncf")
                  if importlib.util.find_spec(name) is not None]))
"""
MEMORY_SCRIPT = """
import gc, json, sys
import gymnasium as gym
import vinoreward
from vinoreward_training.runs.machine import resident_bytes
bundle, steps = sys.argv[1], int(sys.argv[2])
env = gym.make("PandaHoverRandom-v0", backend="openvino", bundle=bundle)
env.action_space.seed(0)
env.reset(seed=0)
warm_up = max(1, steps // 10)
samples = []
for step in range(warm_up + steps):
    if step >= warm_up and (step - warm_up) % max(1, steps // 20) == 0:
        gc.collect()
        samples.append(resident_bytes())
    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
    if terminated or truncated:
        env.reset()
gc.collect()
samples.append(resident_bytes())
env.close()
print(json.dumps({"samples": samples, "torch": "torch" in sys.modules,
                  "pybullet": "pybullet" in sys.modules}))
"""


def run_command(command: list[str], **environment: str) -> str:
    """Run a command quietly and return what it printed."""
    env = {**os.environ, **environment}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode != 0:
        raise RunFolderError(
            f"{' '.join(command[:4])[:80]} … ended with {done.returncode}. Expected 0. It wrote:\n"
            f"{(done.stdout + done.stderr)[-2000:]}"
        )
    return done.stdout


def run_script(script: str, arguments: list[str], *, python: list[str] | None = None) -> Any:
    """Run a Python script in a process of its own; return the JSON of its last output line.

    ``python`` is another interpreter with its options; None is this one, with this one's modules.
    """
    command = [*python, "-c", script, *arguments] if python else python_command(script, *arguments)
    return json.loads(run_command(command, OMP_NUM_THREADS="1").strip().splitlines()[-1])


def disk_bytes(folder: Path) -> int:
    """Return the space that a folder's files take on disk, in bytes; hard links count once."""
    states = {
        (state.st_dev, state.st_ino): state.st_blocks * 512
        for path in folder.rglob("*")
        if not path.is_symlink() and path.is_file() and (state := path.stat())
    }
    return sum(states.values())


def install_rows(config: BenchConfig) -> list[Row]:
    """Install the core, then the core with ``[panda]``, into a new environment; measure both."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file():
        raise ConfigError(
            f"there is no pyproject.toml at {root}. Expected to run from the repository; clone it "
            "and install it with pip install -e '.[dev]'."
        )
    rows = []
    with tempfile.TemporaryDirectory(prefix="vinoreward-install-") as temporary:
        place = Path(temporary) / "venv"
        # Isolated: -m would look for modules in the current folder first.
        run_command([sys.executable, "-I", "-m", "venv", str(place)])
        python = [str(place / "bin" / "python"), "-I"]
        # pip itself is there before and is no part of what we install.
        empty = disk_bytes(place)
        for requirement, limit in (("", "<= 350 MB, without torch"), ("[panda]", "")):
            install = ["-m", "pip", "install", "--no-compile", f"{root}{requirement}"]
            run_command([*python, *install], PIP_DISABLE_PIP_VERSION_CHECK="1")
            found = run_script(CHECK_SCRIPT, [], python=python)
            rows.append(
                Row(
                    "install",
                    f"pip install vinoreward{requirement}: disk space of the package and all "
                    "it needs, Python itself not counted",
                    (disk_bytes(place) - empty) / 1e6,
                    "MB",
                    target=limit,
                    met=False if limit and "torch" in found else None,
                    note=f"installs {', '.join(found)}" if found else "without torch",
                    details={"importable": found},
                )
            )
    return rows


def memory_rows(config: BenchConfig) -> list[Row]:
    """Measure the resident memory of a process that only steps the environment."""
    found = run_script(MEMORY_SCRIPT, [config.bundle, str(config.memory_steps)])
    samples = [sample / 1e6 for sample in found["samples"]]
    return [
        Row(
            "memory",
            f"greatest resident memory of a process that takes {config.memory_steps} steps of "
            "PandaHoverRandom-v0 with OpenVINO",
            max(samples),
            "MB",
            target="<= 350 MB",
            note="; ".join(
                f"{name} was {'' if found[name] else 'not '}imported"
                for name in ("torch", "pybullet")
            ),
            details={"samples_mb": samples, "imported": found},
        ),
        Row(
            "memory",
            f"its growth from the first to the last of {len(samples)} samples, after "
            f"{max(1, config.memory_steps // 10)} steps to warm up",
            samples[-1] - samples[0],
            "MB",
            low=min(samples) - samples[0],
            high=max(samples) - samples[0],
            spread="least and greatest sample less the first",
            target="<= 2 MB",
        ),
    ]
