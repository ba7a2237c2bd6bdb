"""``vinoreward bench``: the paired comparisons behind the README's figures.

And its rows that need processes of their own: disk space of an installation, and memory.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward.files import read_json, write_json, write_text
from vinoreward.processes import python_command
from vinoreward_training.bench.rows import Row, markdown
from vinoreward_training.configs import BenchConfig
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.run_folder import RunFolder, plain, reading

_BY_MODULE = {
    "rewards": "backends reward-path step camera classifier guard int8",
    "batches": "batch",
    "encoders": "encoders joint",
    "command": "memory install",
    "gpu": "gpu",
    "labelling": "labelling",
    "searches": "search",
    "audits": "audit mend",
    "label_orders": "label-order",
    "seconds": "seconds",
    "learners": "overhead-batched learners",
    "trainings": "overhead overhead-pixels solve solve-random solve-pixels wall",
    "alarms": "alarms",
    "actor_steps": "actor-step actor-refresh actor-tasks actor-wire",
    "actor_bits": "actor-bits",
    "actor_trainings": "actor-cartpole actor-classic actor-samples actor-pong actor-curves",
}
ROWS = {name: module for module, names in _BY_MODULE.items() for name in names.split()}
"""Name of a row to the module that measures it: ``solve-random`` by its ``solve_random_rows``."""
QUICK = list(ROWS)[:11]
"""Those that take no training."""
_GROUPS = {
    "quick": QUICK,
    "actors": [name for name in ROWS if name.startswith("actor-")],
    "all": list(ROWS),
}
_FROM_NOUGHT = ("seed", "first_seed", "cnn_steps")
_NO_MEASURE = ("rows", "resume", "out")
"""Options that change no figure."""
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


def check(config: BenchConfig) -> None:
    """Refuse numbers that nothing can be measured with."""
    wrong = [
        f"{option(name)} {value}"
        for name, value in vars(config).items()
        if type(value) is int and value < (0 if name in _FROM_NOUGHT else 1)
    ]
    if wrong:
        raise ConfigError(
            f"found {', '.join(wrong)}. Expected at least 1, and at least 0 of "
            f"{', '.join(_FROM_NOUGHT)}."
        )


def option(field: str) -> str:
    """Return a setting's name on the command line."""
    return f"--{field.replace('_', '-')}"


def chosen(rows: Sequence[str]) -> list[str]:
    """Return the names of the rows meant, in the table's order."""
    expected = f"Expected quick, actors, all or some of {', '.join(ROWS)}."
    if not rows:
        raise ConfigError(f"no rows were asked for. {expected}")
    wanted: set[str] = set()
    for name in rows:
        if name not in {**_GROUPS, **ROWS}:
            raise ConfigError(f"there is no row {name!r}. {expected}")
        wanted.update(_GROUPS.get(name, [name]))
    return [name for name in ROWS if name in wanted]


def function_of(name: str) -> Callable[[BenchConfig], list[Row]]:
    """Return the function that measures a row."""
    module = importlib.import_module(f"vinoreward_training.bench.{ROWS[name]}")
    function: Callable[[BenchConfig], list[Row]] = getattr(module, f"{name.replace('-', '_')}_rows")
    return function


def measured(folder: Path, name: str) -> dict[str, Any] | None:
    """Return what a run has written of a row already; None if there is nothing."""
    path = folder / "rows" / f"{name}.json"
    if not path.is_file():
        return None
    with reading(path, "what vinoreward bench writes; remove the file to measure that row again"):
        stored = dict(read_json(path))
        return {**stored, "rows": [Row(**row) for row in stored["rows"]]}


def run(config: BenchConfig) -> int:
    """Measure, print and write the table and ``bench.json``; return 1 for a missed target."""
    names = chosen(config.rows)
    check(config)
    line = f"{command(config, config.rows)} --out {config.out} --resume"
    machine = describe_machine()
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        results: dict[str, dict[str, Any]] = {}
        for index, name in enumerate(names, 1):
            step = f"[{index}/{len(names)}] {name}"
            before = measured(folder, name) if config.resume else None
            if before is not None:
                print(f"{step}: measured before")
                results[name] = before
                continue
            print(f"{step} …", flush=True)
            began = time.perf_counter()
            results[name] = {
                "rows": function_of(name)(config),
                "command": command(config, [name]),
                "seconds": time.perf_counter() - began,
                "machine": describe_machine(),
            }
            write_json(folder / "rows" / f"{name}.json", plain(results[name]))
            print(f"{step}: {results[name]['seconds']:.0f} s")
        rows = [row for one in results.values() for row in one.pop("rows")]
        # What was measured before may come from another commit or with other options.
        commands = {
            name: one.get("command") or command(config, [name]) for name, one in results.items()
        }
        record = {"machine": machine, "config": config, "commands": commands, "measured": results}
        write_json(folder / "bench.json", plain({**record, "rows": rows}))
        table = markdown(rows)
        write_text(folder / "bench.md", _heading(machine, commands, results) + table)
    print(f"\n{table}\n{config.out / 'bench.md'}\n{config.out / 'bench.json'}")
    missed = sum(row.met is False for row in rows)
    if missed:
        print(f"{missed} figures fell short of their target: see met = no.")
    return 1 if missed else 0


def command(config: BenchConfig, rows: Sequence[str]) -> str:
    """Return the command that measures ``rows``, with all options that change a figure."""
    words = ["vinoreward bench --rows", *rows]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in _NO_MEASURE and value != field.default:
            words.append(f"{option(field.name)} {value}")
    return " ".join(words)


def _heading(
    machine: dict[str, Any], commands: dict[str, str], results: dict[str, dict[str, Any]]
) -> str:
    def where(machine: dict[str, Any]) -> str:
        return f"commit {machine.get('commit')}, {machine.get('cpu')}"

    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items() if value)
    features = ", ".join(name for name, there in machine["cpu_features"].items() if there)
    places = {name: where(result.get("machine", machine)) for name, result in results.items()}
    elsewhere = [
        f"Measured elsewhere: {name} ({place})."
        for name, place in places.items()
        if place != where(machine)
    ]
    lines = [
        "# Figures",
        "",
        f"Machine: {machine['cpu']}, {machine['cores']} cores ({features or 'features unknown'}), "
        f"{machine['system']}, Python {machine['python']}. Commit {machine['commit']}. {versions}.",
        "",
        *elsewhere,
        "A figure in x says how many times; it is of processor time where nothing else is said. "
        "The candidates took turns in one process: the figure is the median of the ratios of each "
        "round. Grey levels are of 255. Rows without a target explain others.",
        "",
        "Commands:",
        "",
        *(f"- {name}: `{command}`" for name, command in commands.items()),
        "",
    ]
    return "\n".join(lines) + "\n"


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

    ``python`` is another interpreter with its options; None is this one, with its modules.
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
        # pip itself does not count.
        empty = disk_bytes(place)
        for requirement, limit in (("", "<= 350 MB, without torch"), ("[panda]", "")):
            install = ["-m", "pip", "install", "--no-compile", f"{root}{requirement}"]
            run_command([*python, *install], PIP_DISABLE_PIP_VERSION_CHECK="1")
            heavy = run_script(CHECK_SCRIPT, [], python=python)
            rows.append(
                Row(
                    "install",
                    f"pip install vinoreward{requirement}: disk space of the package and all "
                    "it needs, Python itself not counted",
                    (disk_bytes(place) - empty) / 1e6,
                    "MB",
                    target=limit,
                    met=False if limit and "torch" in heavy else None,
                    note=f"installs {', '.join(heavy)}" if heavy else "without torch",
                    details={"importable": heavy},
                )
            )
    return rows


def memory_rows(config: BenchConfig) -> list[Row]:
    """Measure the resident memory of a process that only steps the environment."""
    sampled = run_script(MEMORY_SCRIPT, [config.bundle, str(config.memory_steps)])
    samples = [sample / 1e6 for sample in sampled["samples"]]
    return [
        Row(
            "memory",
            f"greatest resident memory of a process that takes {config.memory_steps} steps of "
            "PandaHoverRandom-v0 with OpenVINO",
            max(samples),
            "MB",
            target="<= 350 MB",
            note="; ".join(
                f"{name} was {'' if sampled[name] else 'not '}imported"
                for name in ("torch", "pybullet")
            ),
            details={"samples_mb": samples, "imported": sampled},
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
