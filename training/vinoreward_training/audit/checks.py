"""Checks of an audit, the classifier that they examine, and the images that it got wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image

from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.judge import Judge

Images = npt.NDArray[np.uint8]
Claims = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

KEPT_IMAGES = 64
"""False positives that a report keeps."""
PARTS = 8
"""Rows and columns of the parts by whose means images are compared."""
ALIKE = 12.0
"""Two images look alike if no part of them differs by more grey levels."""
_BATCH = 64


@dataclass(frozen=True)
class Check:
    """One value that should be low."""

    sentence: str
    """What was found, for the report of a check that failed."""
    failed: bool
    """Whether the whole 95 % interval is above the bar."""
    miss: bool = False
    """Whether it costs reward only, such as a success that is not claimed."""
    measure: str = ""
    """Name under which two audits are compared; empty for what is not compared."""
    value: float = 0.0
    bar: float = 0.0
    """The largest value that is no fault."""
    of: int = 0
    """Images or claims that a share is of; 0 where the value is no share."""

    @property
    def limit(self) -> float:
        """The largest value that does not exceed the bar with 95 % confidence."""
        if not self.of:
            return self.bar
        low = (n for n in range(self.of, -1, -1) if not exceeds(n, self.of, self.bar))
        return next(low) / self.of


def exceeds(count: int, of: int, bar: float) -> bool:
    """Return whether a share is above a bar, with 95 % confidence."""
    return clopper_pearson(count, of, 0.95, "lower")[0] > bar


def share_check(
    sentence: str, count: int, of: int, bar: float, *, measure: str = "", miss: bool = False
) -> Check:
    """Return the check that the share ``count`` of ``of`` is not above a bar."""
    failed = exceeds(count, of, bar)
    return Check(sentence, failed, miss, measure, count / max(1, of), bar, of)


@dataclass(frozen=True)
class FalsePositive:
    """An image of a failure that is claimed as a success."""

    image: Images
    """``(H, W, 3)``."""
    probability: float
    cause: str
    """What was done to it."""
    parts: Floats
    """Means of its ``PARTS`` x ``PARTS`` parts, in a row."""


@dataclass
class FalsePositives:
    """Images of wrong claims that look different from each other, the most certain first.

    A classifier is mended with them, and a network learns little from the same image twice.
    """

    images: list[FalsePositive] = field(default_factory=list)

    def add(self, images: Images, probabilities: npt.NDArray[np.float32], cause: str) -> None:
        """Keep those of images (N, H, W, 3) that look unlike all more certain ones."""
        for index in np.argsort(-probabilities, kind="stable"):
            image, probability = images[index], float(probabilities[index])
            small = Image.fromarray(image).resize((PARTS, PARTS), Image.Resampling.BOX)
            parts = np.asarray(small, np.float64).ravel()
            others = np.array([one.parts for one in self.images]).reshape(-1, len(parts))
            alike = np.abs(others - parts).max(axis=1) <= ALIKE
            if any(self.images[n].probability >= probability for n in np.flatnonzero(alike)):
                continue
            kept = [one for one, near in zip(self.images, alike, strict=True) if not near]
            one = FalsePositive(image.copy(), probability, cause, parts)
            self.images = sorted([*kept, one], key=lambda each: -each.probability)[:KEPT_IMAGES]


@dataclass(frozen=True)
class ClaimScores:
    """What a classifier says of N images, as a wrapper would get it."""

    probability: npt.NDArray[np.float32]
    """(N,)"""
    log_odds: npt.NDArray[np.floating]
    """(N,)"""
    claimed: Claims
    """(N,) Claims of the network, whatever the OOD detector says."""
    ood_score: npt.NDArray[np.floating] | None
    """(N,) Above 1 nothing is claimed; None without an OOD detector."""
    progress: npt.NDArray[np.floating]
    """(N,) As it is paid: 0 where the OOD detector withholds, and of a network without progress."""

    @property
    def withheld(self) -> Claims | None:
        """(N,) Where the OOD detector withholds a claim; None without one."""
        return None if self.ood_score is None else self.ood_score > 1.0

    @property
    def rewarded(self) -> Claims:
        """(N,) Claims that the OOD detector lets pass."""
        return self.claimed if self.withheld is None else self.claimed & ~self.withheld


def score_images(classifier: Classifier | Judge, images: Images) -> ClaimScores:
    """Score images (N, H, W, 3)."""
    parts = [
        classifier.predict(images[start : start + _BATCH])
        for start in range(0, max(1, len(images)), _BATCH)
    ]
    probability = np.concatenate([part.probability for part in parts])
    ood = [part.ood_score for part in parts if part.ood_score is not None]
    ood_score = np.concatenate(ood) if ood else None
    progress = [0 * part.probability if part.progress is None else part.progress for part in parts]
    return ClaimScores(
        probability,
        np.concatenate([part.log_odds for part in parts]),
        probability >= np.float32(classifier.threshold),
        ood_score,
        np.concatenate(progress) * (ood_score is None or ood_score <= 1.0),
    )


@dataclass(frozen=True)
class Subject:
    """A classifier or a judge under audit."""

    classifier: Classifier | Judge
    seed: int = 0
    false_positives: FalsePositives = field(default_factory=FalsePositives)

    def score(self, images: Images) -> ClaimScores:
        """Score images (N, H, W, 3)."""
        return score_images(self.classifier, images)
