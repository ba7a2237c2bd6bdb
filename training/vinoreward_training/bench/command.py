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
from vinoreward_training.bench.statistics import Row, markdown
from vinoreward_training.configs.bench import BenchConfig
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.run_folder import RunFolder, plain

__all__ = ["ROWS", "BenchConfig", "Row", "run"]

ROWS: dict[str, tuple[str, str]] = {
    "backends": ("network", "backends_rows"),
    "reward-path": ("network", "reward_path_rows"),
    "step": ("env", "step_rows"),
    "camera": ("camera", "camera_rows"),
    "classifier": ("classifier", "classifier_rows"),
    "int8": ("int8", "int8_rows"),
    "encoders": ("encoders", "encoders_rows"),
    "joint": ("joint", "joint_rows"),
    "memory": ("env", "memory_rows"),
    "install": ("install", "install_rows"),
    "overhead": ("train", "overhead_rows"),
    "overhead-pixels": ("pixels", "overhead_pixels_rows"),
    "solve": ("train", "solve_rows"),
    "solve-random": ("train", "solve_random_rows"),
    "solve-pixels": ("pixels", "solve_pixels_rows"),
    "wall": ("wall", "wall_rows"),
    "actor-step": ("actors", "actor_step_rows"),
    "actor-refresh": ("actors", "actor_refresh_rows"),
    "actor-tasks": ("actors", "actor_task_rows"),
    "actor-wire": ("actors", "wire_rows"),
    "actor-bits": ("actor_bits", "bits_rows"),
    "actor-cartpole": ("actor_training", "cartpole_rows"),
    "actor-classic": ("actor_training", "classic_rows"),
    "actor-samples": ("actor_training", "samples_rows"),
    "actor-pong": ("actor_training", "pong_rows"),
    "actor-curves": ("actor_curves", "curve_rows"),
}
"""Name of a row to the module and the function ``(BenchConfig) -> list[Row]`` that measure it."""

QUICK = (
    "backends",
    "reward-path",
    "step",
    "camera",
    "classifier",
    "int8",
    "encoders",
    "joint",
    "memory",
)


_FROM_NOUGHT = ("seed", "first_seed", "cnn_steps")


def check(config: BenchConfig) -> None:
    """Refuse numbers that nothing can be measured with.

    Raises:
        ConfigError: names them.
    """
    wrong = {
        field.name: value
        for field in dataclasses.fields(config)
        if isinstance(value := getattr(config, field.name), int)
        and not isinstance(value, bool)
        and value < (0 if field.name in _FROM_NOUGHT else 1)
    }
    if wrong:
        options = ", ".join(f"--{name.replace('_', '-')} {wrong[name]}" for name in wrong)
        raise ConfigError(
            f"found {options}. Expected at least 1, and at least 0 of {', '.join(_FROM_NOUGHT)}."
        )


def chosen(rows: Sequence[str]) -> list[str]:
    """Return the names of the rows meant, in the table's order.

    Raises:
        ConfigError: a name that is no row, or no names.
    """
    wanted: set[str] = set()
    for name in rows:
        if name == "all":
            wanted |= set(ROWS)
        elif name == "actors":
            wanted |= {row for row in ROWS if row.startswith("actor-")}
        elif name == "quick":
            wanted |= set(QUICK)
        elif name in ROWS:
            wanted.add(name)
        else:
            raise ConfigError(
                f"there is no row {name!r}. Expected quick, actors, all or some of "
                f"{', '.join(ROWS)}."
            )
    if not wanted:
        raise ConfigError(
            f"no rows were asked for. Expected quick, actors, all or {', '.join(ROWS)}."
        )
    return [name for name in ROWS if name in wanted]


def measured(folder: Path, name: str) -> list[Row] | None:
    """Return the rows that a run has written already, None if there are none.

    Raises:
        RunFolderError: the file is not what this command writes.
    """
    path = folder / "rows" / f"{name}.json"
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return [Row(**row) for row in stored["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}). Expected what vinoreward bench writes; remove the "
            "file to measure that row again."
        ) from error


def measure(config: BenchConfig, name: str) -> list[Row]:
    """Measure one row of the table now."""
    module, function = ROWS[name]
    measuring = importlib.import_module(f"vinoreward_training.bench.{module}")
    found: list[Row] = getattr(measuring, function)(config)
    return found


def run(config: BenchConfig) -> int:
    """Measure, print the table, write ``bench.json`` and ``bench.md``; return 0 or 1.

    1 means that a figure with a target was not reached.
    """
    try:
        return _run(config)
    except KeyboardInterrupt:
        print(
            f"\nStopped. Continue with: {command(config, config.rows)} --out {config.out} --resume"
        )
        raise


def _run(config: BenchConfig) -> int:
    names = chosen(config.rows)
    check(config)
    with RunFolder(config.out, config, resume=config.resume) as folder:
        rows: list[Row] = []
        commands: dict[str, str] = {}
        for index, name in enumerate(names, 1):
            commands[name] = command(config, [name])
            found = measured(folder, name) if config.resume else None
            if found is not None:
                print(f"[{index}/{len(names)}] {name}: measured before")
            else:
                print(f"[{index}/{len(names)}] {name} …", flush=True)
                began = time.perf_counter()
                found = measure(config, name)
                seconds = time.perf_counter() - began
                write_json(
                    folder / "rows" / f"{name}.json",
                    {
                        "rows": _as_json(found),
                        "command": commands[name],
                        "seconds": seconds,
                        "machine": describe_machine(),
                    },
                )
                print(f"[{index}/{len(names)}] {name}: {seconds:.0f} s")
            rows += found
        # What was measured before may come from another commit or with other options.
        about = {name: _about(folder, name) for name in names}
        commands |= {name: found["command"] for name, found in about.items() if "command" in found}
        machine = describe_machine()
        write_json(
            folder / "bench.json",
            {
                "machine": machine,
                "config": plain(config),
                "commands": commands,
                "measured": about,
                "rows": _as_json(rows),
            },
        )
        table = markdown(rows)
        write_text(folder / "bench.md", _heading(machine, commands, about) + table)
    print(f"\n{table}\n{config.out / 'bench.md'}\n{config.out / 'bench.json'}")
    missed = [row for row in rows if row.met is False]
    if missed:
        print(f"{len(missed)} figures fell short of their target: see met = no.")
    return 1 if missed else 0


def _as_json(rows: Sequence[Row]) -> list[Any]:
    return [plain(dataclasses.asdict(row)) for row in rows]


def command(config: BenchConfig, rows: Sequence[str]) -> str:
    """Return the command that measures ``rows``, with all options that change a figure."""
    words = ["vinoreward bench --rows", *rows]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in {"rows", "resume", "out"} and value != field.default:
            words.append(f"--{field.name.replace('_', '-')} {value}")
    return " ".join(words)


def _about(folder: Path, name: str) -> dict[str, Any]:
    stored = json.loads((folder / "rows" / f"{name}.json").read_text(encoding="utf-8"))
    return {key: stored[key] for key in ("command", "seconds", "machine") if key in stored}


def _heading(
    machine: dict[str, Any], commands: dict[str, str], about: dict[str, dict[str, Any]]
) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items() if value)
    features = ", ".join(name for name, there in machine["cpu_features"].items() if there)
    others = {
        name: where
        for name, found in about.items()
        if (where := _where(found.get("machine", machine))) != _where(machine)
    }
    elsewhere = [f"Measured elsewhere: {name} ({where})." for name, where in others.items()]
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
