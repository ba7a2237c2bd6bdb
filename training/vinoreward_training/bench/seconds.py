"""Bench rows about trainings in a batch of environments: seconds until the task is solved."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vinoreward.errors import RunFolderError
from vinoreward.processes import python_command
from vinoreward_training.bench.encoders import encoder_bundle, not_there
from vinoreward_training.bench.rows import Row, range_row
from vinoreward_training.bench.trainings import GOAL, seeds_note, training_seeds
from vinoreward_training.configs import BenchConfig

SCRIPT = "import sys; from vinoreward_training.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Task:
    """A task and how soon it is to be solved."""

    env: str
    training: float | None
    """Seconds of training, without evaluations; None: no target."""
    process: float | None = None
    """Seconds of the whole command; None: no target."""
    pixels: bool = False
    """Whether the policy sees images, through the encoder."""


TASKS = (
    Task("PandaHover-v0", 5.0, 9.0),
    Task("PandaHoverRandom-v0", 15.0),
    Task("PandaHoverPixels-v0", 15.0, pixels=True),
)


@dataclass(frozen=True)
class Run:
    """One run of the command."""

    seed: int
    solved: bool
    steps: int
    true: float
    """Share of true successes in the final evaluation."""
    training: float
    """Seconds of training, without evaluations."""
    process: float
    """Seconds of the whole command, from its start to its end."""
    processor: float
    """Processor seconds of the whole command, which other work on the machine changes less."""


def seconds_rows(config: BenchConfig) -> list[Row]:
    """Run ``vinoreward train --vec-env batched`` for each task and seed."""
    return [row for task in TASKS for row in task_rows(config, "seconds", task)]


def task_rows(config: BenchConfig, name: str, task: Task, *options: str) -> list[Row]:
    """Run the command with these options for each seed; return the rows."""
    if task.pixels and encoder_bundle(config) is None:
        return [not_there(config, name, f"vinoreward train --env {task.env}", "")]
    runs = [run_once(config, task, seed, *options) for seed in training_seeds(config)]
    return rows_of(config, name, task, runs, *options)


def rows_of(
    config: BenchConfig, name: str, task: Task, runs: list[Run], *options: str
) -> list[Row]:
    """Return the rows of some runs with options: seconds of training, and of the whole command."""
    solved = sum(run.solved for run in runs)
    words = " ".join(("vinoreward train --vec-env batched", *options, "--env", task.env))
    what = (
        f"{words}, learned reward, until "
        f">= {GOAL:.0%} true success over {config.evaluation_episodes} episodes"
    )
    about: dict[str, Any] = {
        "spread": f"best and worst of {len(runs)} seeds; {solved} of {len(runs)} solved",
        "note": f"steps {sorted(run.steps for run in runs)}; processor seconds of the whole "
        f"command {', '.join(f'{run.processor:.1f}' for run in runs)}; "
        + seeds_note([run.seed for run in runs]),
        "details": {"runs": [vars(run) for run in runs]},
    }
    rows = []
    for part, limit, extra in (
        ("training", task.training, ": seconds of training, without evaluations, worst seed"),
        ("process", task.process, ": seconds of the whole command, worst seed"),
    ):
        values = [float(getattr(run, part)) for run in runs]
        met = None if limit is None else solved == len(runs) and max(values) <= limit
        target = "" if limit is None else f"<= {limit:g} s, {len(runs)} of {len(runs)} solved"
        more = {**about, "values": values, "target": target, "met": met}
        rows.append(range_row(name, what + extra, max(values), "s", **more))
    return rows


def run_once(config: BenchConfig, task: Task, seed: int, *options: str) -> Run:
    """Run the command with these options in a process of its own, in a fresh folder.

    Raises:
        RunFolderError: the command failed.
    """
    env, words = task.env, [word for word in options if not word.startswith("--")]
    out = config.out / "train" / "-".join(("seconds", *words, env, str(seed)))
    encoded = ("--encoder", config.encoder) if task.pixels else ()
    shutil.rmtree(out, ignore_errors=True)
    began, before = time.perf_counter(), _processor()
    command = python_command(
        SCRIPT, "train", "--vec-env", "batched", *options, "--env", env, "--seed", str(seed),
        "--bundle", config.bundle, *encoded, "--final-episodes", str(config.evaluation_episodes),
        "--stop-when-solved", str(GOAL), "--no-progress", "--out", str(out),
    )  # fmt: skip
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    process, processor = time.perf_counter() - began, _processor() - before
    if ended.returncode:
        raise RunFolderError(
            f"vinoreward train ended with {ended.returncode}. Expected a trained policy in {out}. "
            f"It wrote:\n{ended.stderr[-2000:]}"
        )
    run = _read(out, seed, process, processor)
    solved = "solved" if run.solved else "not solved"
    print(
        f"  {' '.join((*words, env))} seed {seed}: {solved} after {run.steps} steps, seconds: "
        f"{run.training:.1f} of training, {run.process:.1f} in all, {run.processor:.1f} of "
        "processors",
        flush=True,
    )
    return run


def _processor() -> float:
    """Return processor seconds of ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read(out: Path, seed: int, process: float, processor: float) -> Run:
    summary = json.loads((out / "summary.json").read_text())
    true = summary["final"]["true"]
    return Run(
        seed,
        summary["solved_at"] is not None,
        summary["steps"],
        true["successes"] / true["trials"],
        summary["seconds"] - summary["evaluation_seconds"],
        process,
        processor,
    )
