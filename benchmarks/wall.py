"""Wall time to a solved PandaHover-v0: the article's setting, with PyTorch, over our default.

The article's run takes 10 to 60 minutes. It uses the same bundle, on resized images of 960x720.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from harness import TRAININGS, Benchmark, Row, Value
from trainings import train

ENV = "PandaHover-v0"
ROWS = {
    "wall": Row('wall time to solved: fidelity="article" with PyTorch over our default', "≥20×"),
}


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Train once in each setting, with the same seed."""
    common = ("--timesteps", options.steps)
    ours = train(ENV, options.first_seed, *common, episodes=options.episodes)
    changes = ("--backend", "torch", "--env-kwargs", "fidelity", "article")
    article = train(ENV, options.first_seed, *common, *changes, episodes=options.episodes)
    ratio = article.seconds / ours.seconds
    # Where the article's is not solved it would have gone on: the ratio is a lower bound.
    figure = f"{ratio:.3g}× ({ours.seconds:.0f} s against {article.seconds:.0f} s)"
    details = [ours.plain(), article.plain()]
    yield "wall", Value(figure, None if ours.solved_at is None else ratio, details)


BENCH = Benchmark("Trainings", ROWS, measure, steps=8000, episodes=100, first_seed=TRAININGS)

if __name__ == "__main__":
    sys.exit(BENCH.main())
