"""Images that an environment labels itself: states of its search spaces, the hard ones first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ModelCorruptError
from vinoreward.rewards.classifier import sigmoid
from vinoreward.rewards.interventions import SearchSpace
from vinoreward_training.audit.states import (
    FAILURE,
    LEFT_OUT,
    SUCCESS,
    Images,
    Looked,
    States,
    StateScores,
    Truth,
    climb,
)
from vinoreward_training.data.dataset_files import Indices

HARD = -4.0
"""Failures with higher log-odds of success are worth a training step."""
SPREAD = 256
"""States spread over each space."""
CLIMBED = 256
"""More of them, looked for by the cross-entropy method."""
MORE = 3500
"""States in all spaces together, the more in a space the more hard ones it has."""
STARTS = 16
"""Places where the method begins: a false claim of several images is rarely a single place."""
LEAST_SPREAD = 0.01
NEAR = 0.03
"""Standard deviation of a state near a hard one, in shares of the axes."""
MOST = 800
"""Hard ones of a space that are trained on, in each part."""
OTHERS = 150
"""Other states of each space, so that successes there are not forgotten."""
REMEMBERED = 1500
"""Hard states of a space near which more are drawn in the next part."""
AGAIN = 0.15
"""Share of the earlier images that are trained on again though they are no longer hard."""
_FEWEST, _REMINDERS = 64, 50
_SALT = 0xE8A3

PARTS = 3
"""Parts of a training, each with examples that are hard for what the part before has made. What a
network with a coarse fault claims hides what it goes on claiming once that is mended."""
FILE = "examples.pt"

LogOdds = Callable[[Images], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Examples:
    """Images with the truth of the environment."""

    images: Images
    """``(N, H, W, 3)``."""
    labels: Indices
    """``(N,)``, 1 for success."""
    hard: tuple[States, ...]
    """Hard states (K, axes) of each space."""

    def save(self, path: Path) -> None:
        """Write them; :meth:`load` reads them again."""
        import torch

        from vinoreward.files import save_state

        arrays = (self.images, self.labels, *self.hard)
        save_state(path, {"arrays": [torch.from_numpy(one) for one in arrays]})

    @classmethod
    def load(cls, path: Path, spaces: int) -> Examples:
        """Read those of so many spaces.

        Raises:
            ModelCorruptError: a damaged file, or one of other spaces.
        """
        from vinoreward_training.runs.run_folder import read_tensors

        try:
            images, labels, *hard = (one.numpy() for one in read_tensors(path)["arrays"])
            if (images.ndim, images.dtype, labels.dtype) != (4, np.uint8, np.int64):
                raise ValueError(f"{images.dtype} {images.shape}, {labels.dtype} labels")
            if labels.shape != images.shape[:1] or len(hard) != spaces:
                raise ValueError(f"{len(images)} images, {len(labels)} labels, {len(hard)} spaces")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelCorruptError(
                f"{path} has no examples of {spaces} spaces ({error}). Expected those that this "
                "mending drew; mend in a new folder with --out."
            ) from error
        return cls(images, labels, tuple(hard))


class ExampleSource:
    """Draws the examples of each part of a training; a resumed one reads what it drew before."""

    def __init__(
        self,
        spaces: Sequence[SearchSpace],
        image: Callable[[], Images],
        *,
        seed: int,
        resume: bool,
    ) -> None:
        self._spaces, self._image = tuple(spaces), image
        self._seed, self._resume = seed, resume
        self._last: Examples | None = None

    def examples(self, log_odds: LogOdds, folder: Path, part: int) -> Examples:
        """Return the examples of a part, drawn as :func:`draw` does, and keep them in a folder."""
        from tqdm import tqdm

        path = folder / FILE
        if self._resume and path.is_file():
            self._last = Examples.load(path, len(self._spaces))
            return self._last
        found: list[Examples] = []
        fooled: dict[str, int] = {}
        steps = draw(
            self._spaces,
            self._image,
            log_odds,
            self._last,
            found,
            fooled,
            seed=self._seed,
            part=part,
        )
        with tqdm(steps, desc=f"examples, part {part + 1} of {PARTS}", unit="test") as bar:
            for name in bar:
                bar.set_postfix_str(name)
        (self._last,) = found
        taken = ", ".join(f"{name} {count}" for name, count in fooled.items())
        print(
            f"{len(self._last.labels)} examples, labelled by the environment. Failures that look "
            f"like successes to the network: {taken}"
        )
        self._last.save(path)
        return self._last


def draw(
    spaces: Sequence[SearchSpace],
    take: Callable[[], Images],
    log_odds: LogOdds,
    before: Examples | None,
    found: list[Examples],
    fooled: dict[str, int],
    *,
    seed: int,
    part: int,
) -> Iterator[str]:
    """Draw examples that are hard for a network; yield what is done next.

    Beside false claims these are failures that are nearly claimed, some other states, and the
    successes that were met. Most states are drawn where the hard ones are: by the cross-entropy
    method, and around those of this part and the last.

    Args:
        spaces: of the environment, with its truth.
        take: takes its take.
        log_odds: of success (N,), by the network, of images (N, H, W, 3).
        before: those of the last part: what is still hard of them stays.
        found: takes the examples.
        fooled: takes how many failures of each space, of those looked at, are likely successes
            to the network.
        seed: of the mending.
        part: of its training.

    Raises:
        ConfigError: a ``set_state`` that fails.
    """

    def judge(images: Images, truth: Truth) -> StateScores:
        odds = log_odds(images)
        return StateScores(sigmoid(odds).astype(np.float32), odds, odds > 0)

    random = np.random.default_rng([_SALT, seed, part])
    looked = [Looked(space, take, judge) for space in spaces]
    remembered = [np.zeros((0, len(one.low))) for one in looked]
    if before is not None:
        remembered = list(before.hard)
    yield from _look(looked, remembered, random, seed + 1009 * (part + 1))
    images = [take()[np.newaxis][:0]]
    labels, hard = [np.zeros(0, np.int64)], []
    for one, old in zip(looked, remembered, strict=True):
        worst, others = _chosen(one, random)
        for index in np.concatenate([worst, others]):
            # Its truth is of the same look: a space may draw what a state leaves open.
            true, image = one.look_at(one.states[index])
            if true != LEFT_OUT:
                images.append(image[np.newaxis])
                labels.append(np.array([true], np.int64))
        hard.append(np.concatenate([old, one.states[worst]])[-REMEMBERED:])
        fooled[one.space.name] = int((one.paid & (one.truth == FAILURE)).sum())
    if before is not None:
        odds = log_odds(before.images)
        still = np.where(before.labels == SUCCESS, odds < -HARD, odds > HARD)
        again = still | (random.random(len(still)) < AGAIN)
        images.append(before.images[again])
        labels.append(before.labels[again])
    found.append(Examples(np.concatenate(images), np.concatenate(labels), tuple(hard)))


def _look(
    looked: Sequence[Looked], remembered: Sequence[States], random: np.random.Generator, seed: int
) -> Iterator[str]:
    """Look at states all over each space, then at more where failures are hard."""
    for number, one in enumerate(looked):
        yield from one.at(one.spread(SPREAD, seed + 31 * number), f"{one.space.name}: ")
        yield from climb(one, random, CLIMBED, starts=STARTS // 2, least_spread=LEAST_SPREAD)
    both = list(zip(looked, remembered, strict=True))
    hard = np.array([(one.score > HARD).sum() + min(_REMINDERS, len(old)) for one, old in both])
    more = (MORE * hard / max(1, hard.sum())).astype(int).tolist()
    for (one, old), count in zip(both, more, strict=True):
        if count < _FEWEST:
            continue
        yield from climb(one, random, count // 2, starts=STARTS, least_spread=LEAST_SPREAD)
        middles = np.concatenate([one.states[one.score > HARD], old])
        moved = random.normal(0.0, NEAR, (count // 2, len(one.low))) * one.span
        near = middles[random.integers(len(middles), size=len(moved))] + moved
        yield from one.at(near, f"{one.space.name}, near a hard one: ")


def _chosen(one: Looked, random: np.random.Generator) -> tuple[Indices, Indices]:
    """Return the indices of hard failures, and of others and successes."""
    hard = random.permutation(np.flatnonzero(one.score > HARD))[:MOST]
    known = np.flatnonzero(np.isin(one.truth[:SPREAD], (FAILURE, SUCCESS)))
    others = random.permutation(np.setdiff1d(known, hard))[:OTHERS]
    successes = random.permutation(np.flatnonzero(one.truth == SUCCESS))[:MOST]
    return hard, np.union1d(others, successes)
