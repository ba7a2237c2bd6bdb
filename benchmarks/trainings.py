"""Parts of several benchmarks: commands in processes of their own, such as ``vinoreward train``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scenes import BUNDLE, ENCODER
from vinoreward.errors import RunFolderError

RUNS = Path("runs/benchmarks")
"""Folder of the trainings."""
GOAL = 0.95
"""True success rate from which a task counts as solved."""
PIXELS = "PandaHoverPixels-v0"


def vinoreward(*words: object) -> float:
    """Run a command in a process of its own; return its seconds.

    Raises:
        RunFolderError: it failed.
    """
    began = time.perf_counter()
    command = [sys.executable, "-m", "vinoreward_training.cli", *map(str, words)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise RunFolderError(
            f"vinoreward {words[0]} ended with {ended.returncode}. Expected 0. It wrote:\n"
            f"{ended.stderr[-2000:]}"
        )
    return time.perf_counter() - began


def fresh(name: str) -> Path:
    """Return the path of an empty place for a training: what an earlier one left is removed."""
    path = RUNS / name
    shutil.rmtree(path, ignore_errors=True)
    return path


@dataclass(frozen=True)
class Training:
    """One training, up to the evaluation that found the task solved or to its last step."""

    seed: int
    folder: Path
    solved_at: int | None
    """Steps; None if it was not solved."""
    steps: int
    true: float
    """Share of true successes in the final evaluation."""
    seconds: float
    """Of training, without evaluations."""
    process: float
    """Seconds of the whole command."""

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "folder": str(self.folder)}


def train(env: str, seed: int, *options: object, episodes: int = 100) -> Training:
    """Train on an environment's learned reward until the task is solved."""
    words = "-".join(str(option).strip("-") for option in options if str(option)[-1].isalnum())
    folder = fresh(f"{env}-{words}-{seed}".replace("/", "-"))
    if env == PIXELS:
        options = ("--encoder", ENCODER, *options)
    process = vinoreward(
        "train", "--env", env, "--bundle", BUNDLE, "--seed", seed, "--stop-when-solved", GOAL,
        "--final-episodes", episodes, "--out", folder, *options,
    )  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    true = summary["final"]["true"]
    run = Training(
        seed,
        folder,
        summary["solved_at"],
        summary["steps"],
        true["successes"] / true["trials"],
        summary["seconds"] - summary["evaluation_seconds"],
        process,
    )
    end = "not solved" if run.solved_at is None else f"solved at {run.solved_at}"
    print(f"  {folder.name}: {end}, {run.seconds:.1f} s of training, {process:.1f} s in all")
    return run
