"""Seconds of a training in one batch until the task is solved, and of its whole command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from harness import TRAININGS, Benchmark, Row, Value, gpu_name, worst
from trainings import PIXELS, train

HOVER = "PandaHover-v0"
TASKS = {HOVER: ("≤5 s", "≤9 s"), "PandaHoverRandom-v0": ("≤15 s", ""), PIXELS: ("≤15 s", "")}
"""Environment to the seconds that its training and its command may take."""
LEARNERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "sb3": ("--learner", "sb3"),
    "gpu": (
        "--learner", "skrl", "--algorithm", "PPO", "--backend", "torch", "--device", "cuda"
    ),
}  # fmt: skip
"""Name to options of the command."""


def _tasks(learner: str) -> list[str]:
    return [HOVER] if learner == "sb3" else list(TASKS)


def _rows(env: str, learner: str) -> dict[str, Row]:
    said = {"default": "", "sb3": ", --learner sb3", "gpu": ", skrl's PPO on a GPU"}[learner]
    training, command = TASKS[env] if learner != "gpu" else ("", "")
    return {
        f"seconds {env} {learner} training": Row(f"{env}{said}: training, worst seed", training),
        f"seconds {env} {learner} command": Row("… of the whole command", command),
    }


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Train each task with each seed."""
    words = ("--vec-env", "batched", *LEARNERS[options.learner])
    for env in _tasks(options.learner):
        runs = [
            train(env, seed, *words, episodes=options.episodes)
            for seed in range(options.first_seed, options.first_seed + options.seeds)
        ]
        details = [run.plain() for run in runs]
        solved = sum(run.solved_at is not None for run in runs)
        spent = [run.seconds for run in runs], [run.process for run in runs]
        for name, seconds in zip(_rows(env, options.learner), spent, strict=True):
            figure = f"{worst(seconds, ' s').figure}, {solved} of {len(runs)} solved"
            yield name, Value(figure, max(seconds) if solved == len(runs) else None, details)


BENCH = Benchmark(
    "Trainings in one batch",
    {
        name: row
        for learner in LEARNERS
        for env in _tasks(learner)
        for name, row in _rows(env, learner).items()
    },
    measure,
    device=lambda options: gpu_name() if options.learner == "gpu" else None,
    learner=tuple(LEARNERS),
    seeds=5,
    episodes=100,
    first_seed=TRAININGS,
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
