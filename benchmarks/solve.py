"""Steps of SAC with the learned reward until the task is solved."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from typing import Any

from harness import TRAININGS, Benchmark, Row, Value
from trainings import PIXELS, train

HOVER = "PandaHover-v0"
ROWS = {
    f"solve {HOVER}": Row(
        f"SAC, {HOVER}: steps to ≥95 % true success over 100 episodes", "<8,000, all seeds"
    ),
    f"solve {PIXELS}": Row(f"SAC, {PIXELS} through the shipped encoder: the same"),
}


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Train with each seed."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    budget = ("--timesteps", options.steps)
    runs = [train(options.env, seed, *budget, episodes=options.episodes) for seed in seeds]
    solved = [run.solved_at for run in runs if run.solved_at is not None]
    figure = f"{len(solved)} of {len(runs)} seeds"
    if solved:
        figure += f", median {statistics.median(solved):,.0f}, worst {max(solved):,}"
    worst = max(solved) if len(solved) == len(runs) else None
    yield f"solve {options.env}", Value(figure, worst, [run.plain() for run in runs])


BENCH = Benchmark(
    "Trainings",
    ROWS,
    measure,
    env=(HOVER, PIXELS),
    seeds=3,
    steps=8000,
    episodes=100,
    first_seed=TRAININGS,
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
