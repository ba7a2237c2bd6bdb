"""Pictures that an environment labels itself: states of its search spaces, the hard ones first."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.errors import RunFolderError
from vinoreward.files import write_bytes
from vinoreward.rewards.interventions import SearchSpace
from vinoreward_training.audit.states import (
    FAILURE,
    SUCCESS,
    Judged,
    Looked,
    Picture,
    States,
    Truth,
    climb,
)
from vinoreward_training.classifier.evaluation import sigmoid
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
"""Places where the method begins: a false claim of several pictures is rarely a single place."""
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
"""Share of the earlier pictures that are trained on again though they are no longer hard."""
_FEWEST, _REMINDERS = 64, 50
_SALT = 0xE8A3

PARTS = 3
"""Parts of a training, each with examples that are hard for what the part before has made. What a
network with a coarse fault claims hides what it goes on claiming once that is mended."""
FILE = "examples.npz"

LogOdds = Callable[[Picture], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Examples:
    """Pictures with the truth of the environment."""

    images: Picture
    """``(N, H, W, 3)``."""
    labels: Indices
    """``(N,)``, 1 for success."""
    hard: tuple[States, ...]
    """Hard states (K, axes) of each space."""
    sentence: str

    def save(self, path: Path) -> None:
        """Write them; :meth:`load` reads them again."""
        stream = io.BytesIO()
        hard = {f"hard{number}": states for number, states in enumerate(self.hard)}
        said = np.array(self.sentence)
        np.savez(stream, images=self.images, labels=self.labels, sentence=said, **hard)  # type: ignore[arg-type]
        write_bytes(path, stream.getvalue())

    @classmethod
    def load(cls, path: Path, spaces: int) -> Examples:
        """Read them.

        Raises:
            RunFolderError: a damaged file, or one of other spaces.
        """
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                hard = tuple(stored[f"hard{number}"] for number in range(spaces))
                images, labels = stored["images"], stored["labels"].astype(np.int64)
                if images.ndim != 4 or images.dtype != np.uint8 or labels.shape != images.shape[:1]:
                    raise ValueError(f"{images.dtype} {images.shape} with {labels.shape} labels")
                return cls(images, labels, hard, str(stored["sentence"]))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise RunFolderError(
                f"{path} cannot be read ({type(error).__name__}: {error}). Expected the examples "
                "that this mending drew from the same environment; mend in a new folder with --out."
            ) from error


class Source:
    """Draws the examples of each part of a training; a resumed one reads what it drew before."""

    def __init__(
        self,
        spaces: Sequence[SearchSpace],
        picture: Callable[[], Picture],
        *,
        seed: int,
        resume: bool,
    ) -> None:
        self._spaces, self._picture = tuple(spaces), picture
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
        steps = draw(
            self._spaces, self._picture, log_odds, self._last, found, seed=self._seed, part=part
        )
        with tqdm(steps, desc=f"examples, part {part + 1} of {PARTS}", unit="test") as bar:
            for name in bar:
                bar.set_postfix_str(name)
        (self._last,) = found
        print(
            f"{len(self._last.labels)} examples, labelled by the environment; {self._last.sentence}"
        )
        self._last.save(path)
        return self._last


def draw(
    spaces: Sequence[SearchSpace],
    picture: Callable[[], Picture],
    log_odds: LogOdds,
    before: Examples | None,
    found: list[Examples],
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
        picture: takes its picture.
        log_odds: of success (N,), by the network, of pictures (N, H, W, 3).
        before: those of the last part: what is still hard of them stays.
        found: takes the examples.
        seed: of the mending.
        part: of its training.

    Raises:
        ConfigError: a ``set_state`` that fails.
    """

    def judge(images: Picture, truth: Truth) -> Judged:
        odds = log_odds(images)
        return Judged(sigmoid(odds).astype(np.float32), odds, odds > 0)

    random = np.random.default_rng([_SALT, seed, part])
    looked = [Looked(space, picture, judge) for space in spaces]
    remembered = [np.zeros((0, len(one.low))) for one in looked]
    if before is not None:
        remembered = list(before.hard)
    yield from _look(looked, remembered, random, seed + 1009 * (part + 1))
    images = [picture()[np.newaxis][:0]]
    labels, hard, said = [np.zeros(0, np.int64)], [], []
    for one, old in zip(looked, remembered, strict=True):
        worst, others = _chosen(one, random)
        for index in np.concatenate([worst, others]):
            images.append(one.look_at(one.states[index])[1][np.newaxis])
            labels.append(one.truth[[index]].astype(np.int64))
        hard.append(np.concatenate([old, one.states[worst]])[-REMEMBERED:])
        said.append(f"{one.space.name} {int((one.paid & (one.truth == FAILURE)).sum())}")
    if before is not None:
        odds = log_odds(before.images)
        still = np.where(before.labels == SUCCESS, odds < -HARD, odds > HARD)
        again = still | (random.random(len(still)) < AGAIN)
        images.append(before.images[again])
        labels.append(before.labels[again])
    sentence = "failures claimed: " + ", ".join(said)
    found.append(Examples(np.concatenate(images), np.concatenate(labels), tuple(hard), sentence))


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
