"""``vinoreward bench``: the paired comparisons behind the README's figures."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vinoreward.errors import ConfigError, RunFolderError
from vinoreward.files import read_json, write_json, write_text
from vinoreward_training.bench.rows import Row, markdown
from vinoreward_training.configs import BenchConfig
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.run_folder import RunFolder, plain

_BY_MODULE = {
    "rewards": "backends reward-path step camera classifier int8",
    "encoders": "encoders joint",
    "processes": "memory install",
    "trainings": "overhead overhead-pixels solve solve-random solve-pixels wall",
    "actor_steps": "actor-step actor-refresh actor-tasks actor-wire",
    "actor_bits": "actor-bits",
    "actor_trainings": "actor-cartpole actor-classic actor-samples actor-pong actor-curves",
}
ROWS = {name: module for module, names in _BY_MODULE.items() for name in names.split()}
"""Name of a row to the module that measures it: ``solve-random`` by its ``solve_random_rows``."""
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
    try:
        stored = dict(read_json(path))
        return {**stored, "rows": [Row(**row) for row in stored["rows"]]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}). Expected what vinoreward bench writes; remove the "
            "file to measure that row again."
        ) from error


def run(config: BenchConfig) -> int:
    """Measure, print the table, write ``bench.json`` and ``bench.md``; return 0 or 1.

    1 means that a figure with a target was not reached.
    """
    names = chosen(config.rows)
    check(config)
    line = f"{command(config, config.rows)} --out {config.out} --resume"
    machine = describe_machine()
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        found: dict[str, dict[str, Any]] = {}
        for index, name in enumerate(names, 1):
            step = f"[{index}/{len(names)}] {name}"
            before = measured(folder, name) if config.resume else None
            if before is not None:
                print(f"{step}: measured before")
                found[name] = before
                continue
            print(f"{step} …", flush=True)
            began = time.perf_counter()
            found[name] = {
                "rows": function_of(name)(config),
                "command": command(config, [name]),
                "seconds": time.perf_counter() - began,
                "machine": describe_machine(),
            }
            write_json(folder / "rows" / f"{name}.json", plain(found[name]))
            print(f"{step}: {found[name]['seconds']:.0f} s")
        rows = [row for one in found.values() for row in one.pop("rows")]
        # What was measured before may come from another commit or with other options.
        commands = {
            name: one.get("command") or command(config, [name]) for name, one in found.items()
        }
        record = {"machine": machine, "config": config, "commands": commands, "measured": found}
        write_json(folder / "bench.json", plain({**record, "rows": rows}))
        table = markdown(rows)
        write_text(folder / "bench.md", _heading(machine, commands, found) + table)
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
    machine: dict[str, Any], commands: dict[str, str], about: dict[str, dict[str, Any]]
) -> str:
    def where(machine: dict[str, Any]) -> str:
        return f"commit {machine.get('commit')}, {machine.get('cpu')}"

    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items() if value)
    features = ", ".join(name for name, there in machine["cpu_features"].items() if there)
    places = {name: where(found.get("machine", machine)) for name, found in about.items()}
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
