"""Training images from an environment's search spaces, labelled by it, mostly hard ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vinoreward.rewards.classifier import sigmoid
from vinoreward.rewards.interventions import SearchSpace
from vinoreward_training.audit.checks import Floats, Images
from vinoreward_training.audit.states import (
    FAILURE,
    LEFT_OUT,
    SUCCESS,
    StateScores,
    StateTable,
    Truth,
    climb,
)
from vinoreward_training.data.dataset_files import Indices

HARD = -4.0
"""Failures with higher log-odds of success are hard: they are trained on."""
SAMPLED = 256
"""States in a low-discrepancy sample of each space."""
CLIMBED = 256
"""Further states of each space, found by the cross-entropy method."""
MORE = 3500
"""Further states in all spaces together, distributed by the number of hard states of each."""
STARTS = 16
"""States from which the method starts. False claims rarely come from a single state."""
LEAST_DEVIATION = 0.01
NEAR = 0.03
"""Standard deviation of new states around a hard one, as a fraction of each axis."""
MOST = 800
"""Maximum number of hard states of a space, and of its successes, in each part."""
OTHERS = 150
"""Other states of each space, so that the network keeps its answers there."""
REMEMBERED = 1500
"""Maximum number of hard states of a space around which the next part draws new ones."""
REPEATED = 0.15
"""Fraction of the previous part's images that are kept although they are no longer hard."""
_FEWEST, _REMINDERS = 64, 50
_SALT = 0xE8A3

PARTS = 3
"""Parts of a training. Each draws examples that are hard for the network after the previous part,
because finer errors show only once the coarse ones are corrected."""
FILE = "examples.pt"

LogOdds = Callable[[Images], Floats]


@dataclass(frozen=True)
class Examples:
    """Images with the truth of the environment."""

    images: Images
    """``(N, H, W, 3)``."""
    labels: Indices
    """``(N,)``, 1 for success."""
    hard: tuple[Floats, ...]
    """Hard states (K, axes) of each space."""

    def save(self, path: Path) -> None:
        """Write the examples for :meth:`load`."""
        import torch

        from vinoreward.files import save_state

        arrays = (self.images, self.labels, *self.hard)
        save_state(path, {"arrays": [torch.from_numpy(one) for one in arrays]})

    @classmethod
    def load(cls, path: Path) -> Examples:
        """Read the examples of an interrupted run; ModelCorruptError if the file is damaged."""
        from vinoreward_training.runs.run_folder import read_tensors

        images, labels, *hard = (one.numpy() for one in read_tensors(path)["arrays"])
        return cls(images, labels, tuple(hard))


@dataclass
class ExampleSource:
    """Draws the examples of each part of a training; a resumed training reads them."""

    spaces: tuple[SearchSpace, ...]
    """Search spaces of the environment, which returns the truth for each state."""
    take: Callable[[], Images]
    """Returns the environment's image in the network's size."""
    seed: int = 0
    resume: bool = False
    last: Examples | None = None
    """Examples of the previous part."""
    claimed: dict[str, int] = field(default_factory=dict)
    """Space to the number of its failures in the last part that the network claims."""

    def draw(self, log_odds: LogOdds, folder: Path, part: int) -> Examples:
        """Return the examples of a part, and save them in a folder.

        ``log_odds`` returns the network's log-odds of success (N,) for images (N, H, W, 3).
        """
        from tqdm import tqdm

        path = folder / FILE
        if self.resume and path.is_file():
            self.last = Examples.load(path)
            return self.last
        random = np.random.default_rng([_SALT, self.seed, part])

        def score(images: Images, truth: Truth) -> StateScores:
            odds = log_odds(images)
            return StateScores(sigmoid(odds).astype(np.float32), odds, odds > 0)

        tables = [StateTable(space, self.take, score) for space in self.spaces]
        remembered = [np.zeros((0, len(one.low))) for one in tables]
        if self.last is not None:
            remembered = list(self.last.hard)
        steps = _score_states(tables, remembered, random, self.seed + 1009 * (part + 1))
        with tqdm(steps, desc=f"examples, part {part + 1} of {PARTS}", unit="test") as bar:
            for name in bar:
                bar.set_postfix_str(name)
        self.last = self._examples(tables, remembered, random, log_odds)
        self.claimed = {one.space.name: int(one.false.sum()) for one in tables}
        counts = ", ".join(f"{name} {count}" for name, count in self.claimed.items())
        print(
            f"{len(self.last.labels)} examples, labelled by the environment. Failures that look "
            f"like successes to the network: {counts}"
        )
        self.last.save(path)
        return self.last

    def _examples(
        self, tables: Sequence[StateTable], remembered: Sequence[Floats],
        random: np.random.Generator, log_odds: LogOdds,
    ) -> Examples:  # fmt: skip
        """Return hard failures, other states, successes, and earlier images that are still hard."""
        images, labels, hard = [self.take()[np.newaxis][:0]], [np.zeros(0, np.int64)], []
        for table, old in zip(tables, remembered, strict=True):
            worst, others = _choose(table, random)
            for index in np.concatenate([worst, others]):
                # Truth and image of one visit: a space may choose the rest of the state at random.
                true, image = table.visit(table.states[index])
                if true != LEFT_OUT:
                    images.append(image[np.newaxis])
                    labels.append(np.array([true], np.int64))
            hard.append(np.concatenate([old, table.states[worst]])[-REMEMBERED:])
        if self.last is not None:
            odds = log_odds(self.last.images)
            still = np.where(self.last.labels == SUCCESS, odds < -HARD, odds > HARD)
            kept = still | (random.random(len(still)) < REPEATED)
            images.append(self.last.images[kept])
            labels.append(self.last.labels[kept])
        return Examples(np.concatenate(images), np.concatenate(labels), tuple(hard))


def _score_states(
    tables: Sequence[StateTable],
    remembered: Sequence[Floats],
    random: np.random.Generator,
    seed: int,
) -> Iterator[str]:
    """Score samples of each space, then more states where there are hard failures."""
    for number, table in enumerate(tables):
        yield from table.add(table.sample(SAMPLED, seed + 31 * number), "")
        yield from climb(
            table, random, CLIMBED, starts=STARTS // 2, least_deviation=LEAST_DEVIATION
        )
    both = list(zip(tables, remembered, strict=True))
    hard = np.array([(one.score > HARD).sum() + min(_REMINDERS, len(old)) for one, old in both])
    more = (MORE * hard / max(1, hard.sum())).astype(int).tolist()
    for (table, old), count in zip(both, more, strict=True):
        if count < _FEWEST:
            continue
        yield from climb(table, random, count // 2, starts=STARTS, least_deviation=LEAST_DEVIATION)
        middles = np.concatenate([table.states[table.score > HARD], old])
        moved = random.normal(0.0, NEAR, (count // 2, len(table.low))) * table.span
        near = middles[random.integers(len(middles), size=len(moved))] + moved
        yield from table.add(near, ", near a hard one")


def _choose(table: StateTable, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Return the indices of hard failures, and those of other states and successes."""
    hard = random.permutation(np.flatnonzero(table.score > HARD))[:MOST]
    known = np.flatnonzero(np.isin(table.truth[:SAMPLED], (FAILURE, SUCCESS)))
    others = random.permutation(np.setdiff1d(known, hard))[:OTHERS]
    successes = random.permutation(np.flatnonzero(table.truth == SUCCESS))[:MOST]
    return hard, np.union1d(others, successes)
