"""``vinoreward bench``: the paired comparisons behind the README's figures."""

from __future__ import annotations

import dataclasses
import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward.files import write_json, write_text
from vinoreward_training.bench.rows import Row, markdown
from vinoreward_training.configs import BenchConfig
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.run_folder import RunFolder, plain

__all__ = ["ROWS", "BenchConfig", "Row", "run"]

ROWS = {
    "backends": "speed.backends_rows",
    "reward-path": "speed.reward_path_rows",
    "step": "speed.step_rows",
    "camera": "speed.camera_rows",
    "classifier": "decisions.classifier_rows",
    "int8": "decisions.int8_rows",
    "encoders": "encoders.encoders_rows",
    "joint": "encoders.joint_rows",
    "memory": "processes.memory_rows",
    "install": "processes.install_rows",
    "overhead": "trainings.overhead_rows",
    "overhead-pixels": "trainings.overhead_pixels_rows",
    "solve": "trainings.solve_rows",
    "solve-random": "trainings.solve_random_rows",
    "solve-pixels": "trainings.solve_pixels_rows",
    "wall": "trainings.wall_rows",
    "actor-step": "actor_steps.actor_step_rows",
    "actor-refresh": "actor_steps.actor_refresh_rows",
    "actor-tasks": "actor_steps.actor_task_rows",
    "actor-wire": "actor_steps.wire_rows",
    "actor-bits": "actor_bits.bits_rows",
    "actor-cartpole": "actor_trainings.cartpole_rows",
    "actor-classic": "actor_trainings.classic_rows",
    "actor-samples": "actor_trainings.samples_rows",
    "actor-pong": "actor_trainings.pong_rows",
    "actor-curves": "actor_trainings.curve_rows",
}
"""Name of a row to the function ``(BenchConfig) -> list[Row]`` that measures it, by its module."""
QUICK = list(ROWS)[:9]
"""Those that take no training."""
_GROUPS = {
    "quick": QUICK,
    "actors": [name for name in ROWS if name.startswith("actor-")],
    "all": list(ROWS),
}
_FROM_NOUGHT = ("seed", "first_seed", "cnn_steps")
_NO_MEASURE = ("rows", "resume", "out")
"""Options that change no figure."""


def check(config: BenchConfig) -> None:
    """Refuse numbers that nothing can be measured with.

    Raises:
        ConfigError: names them.
    """
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
    """Return the names of the rows meant, in the table's order.

    Raises:
        ConfigError: a name that is no row, or no names.
    """
    expected = f"Expected quick, actors, all or some of {', '.join(ROWS)}."
    if not rows:
        raise ConfigError(f"no rows were asked for. {expected}")
    wanted: set[str] = set()
    for name in rows:
        if name not in {**_GROUPS, **ROWS}:
            raise ConfigError(f"there is no row {name!r}. {expected}")
        wanted.update(_GROUPS.get(name, [name]))
    return [name for name in ROWS if name in wanted]


def measured(folder: Path, name: str) -> dict[str, Any] | None:
    """Return what a run has written of a row already, its rows as such; None if there is nothing.

    Raises:
        RunFolderError: the file is not what this command writes.
    """
    path = folder / "rows" / f"{name}.json"
    if not path.is_file():
        return None
    try:
        stored = dict(json.loads(path.read_text(encoding="utf-8")))
        return {**stored, "rows": [Row(**row) for row in stored["rows"]]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}). Expected what vinoreward bench writes; remove the "
            "file to measure that row again."
        ) from error


def measure(config: BenchConfig, name: str) -> dict[str, Any]:
    """Measure one row of the table now; return it with what it was measured by."""
    module, function = ROWS[name].split(".")
    began = time.perf_counter()
    measuring = importlib.import_module(f"vinoreward_training.bench.{module}")
    return {
        "rows": getattr(measuring, function)(config),
        "command": command(config, [name]),
        "seconds": time.perf_counter() - began,
        "machine": describe_machine(),
    }


def run(config: BenchConfig) -> int:
    """Measure, print the table, write ``bench.json`` and ``bench.md``; return 0 or 1.

    1 means that a figure with a target was not reached.
    """
    names = chosen(config.rows)
    check(config)
    line = f"{command(config, config.rows)} --out {config.out} --resume"
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        found: dict[str, dict[str, Any]] = {}
        for index, name in enumerate(names, 1):
            step = f"[{index}/{len(names)}] {name}"
            before = measured(folder, name) if config.resume else None
            if before is None:
                print(f"{step} …", flush=True)
                found[name] = measure(config, name)
                write_json(folder / "rows" / f"{name}.json", plain(found[name]))
                print(f"{step}: {found[name]['seconds']:.0f} s")
            else:
                print(f"{step}: measured before")
                found[name] = before
        rows = [row for one in found.values() for row in one["rows"]]
        machine = describe_machine()
        # What was measured before may come from another commit or with other options.
        commands = {
            name: one.get("command") or command(config, [name]) for name, one in found.items()
        }
        about = {
            name: {key: value for key, value in one.items() if key != "rows"}
            for name, one in found.items()
        }
        record = {"machine": machine, "config": config, "commands": commands, "measured": about}
        write_json(folder / "bench.json", plain({**record, "rows": rows}))
        table = markdown(rows)
        write_text(folder / "bench.md", _heading(machine, commands, about) + table)
    print(f"\n{table}\n{config.out / 'bench.md'}\n{config.out / 'bench.json'}")
    missed = [row for row in rows if row.met is False]
    if missed:
        print(f"{len(missed)} figures fell short of their target: see met = no.")
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
    machine: dict[str, Any], commands: dict[str, str], about: dict[str, dict[str, Any]]
) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items() if value)
    features = ", ".join(name for name, there in machine["cpu_features"].items() if there)
    elsewhere = [
        f"Measured elsewhere: {name} ({where})."
        for name, found in about.items()
        if (where := _where(found.get("machine", machine))) != _where(machine)
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


def _where(machine: dict[str, Any]) -> str:
    return f"commit {machine.get('commit')}, {machine.get('cpu')}"
