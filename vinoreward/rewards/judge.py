"""Any function that scores images, in the place of a bundle's classifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import is_tensor, to_numpy
from vinoreward.errors import ConfigError, InputError, OutputError, VinorewardError
from vinoreward.files import reason_of
from vinoreward.rewards.classifier import Prediction, sigmoid
from vinoreward.rewards.decision import WITHHELD, check_thresholds
from vinoreward.rewards.ood import OodDetector

JudgeFunction = Callable[[NDArray[np.uint8]], Any]
"""Takes ``(N, H, W, 3)`` uint8 RGB images; returns ``(N,)`` scores from 0 to 1, NaN to abstain."""
ABSTAINED = 100.0
"""OOD score of an image that a judge abstained from."""
_LEAST = 1e-6  # scores of 0 and 1 have finite log-odds


@dataclass
class Judge:
    """A function that scores images, with a threshold: used where a classifier is.

    An image from which it abstains earns nothing, as one that is out of distribution. ConfigError
    for values that cannot work. Example::

        def reached(images):  # (N, H, W, 3) uint8 RGB
            return (images[..., 0].mean((1, 2)) > 120).astype(float)

        env = LearnedReward(env, judge=Judge(reached, threshold=0.5))
    """

    function: JudgeFunction
    threshold: float
    """Probability from which success is claimed."""
    exit_threshold: float = None  # type: ignore[assignment]  # a number once it is made
    """Probability below which a claim ends; None: the threshold."""
    temperature: float = 1.0
    """Log-odds of scores are divided by this."""
    guard: OodDetector | None = None
    """An OOD detector of images of the same size."""
    name: str = ""
    """For messages; the function's by default."""
    prepared: NDArray[np.uint8] | None = None
    """Images of the last :meth:`predict`; None if there were none."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(field="judge", value=self.function, expected="a function of images")
        if not 0 < self.temperature < np.inf:
            expected = "a number above 0"
            raise ConfigError(field="temperature", value=self.temperature, expected=expected)
        self.threshold, self.exit_threshold = check_thresholds(self.threshold, self.exit_threshold)
        self.name = self.name or getattr(self.function, "__qualname__", "judge")

    def predict(self, images: Any) -> Prediction:
        """Return probability, log-odds and OOD score of ``(N, H, W, 3)`` uint8 images.

        InputError for no such images, or of another size than the OOD detector's; OutputError as
        :func:`scores_of_judge`.
        """
        images = to_numpy(images) if is_tensor(images) else np.asarray(images)
        size = images.shape[1:3] if self.guard is None else tuple(self.guard.size.tolist())
        if images.ndim != 4 or images.shape[1:] != (*size, 3) or images.dtype != np.uint8:
            raise InputError(
                f"the judge {self.name} was given {images.dtype} {images.shape}. Expected uint8 "
                f"(N, height, width, 3) RGB{f' of {size}' if self.guard is not None else ''} "
                "images, as its OOD detector, if it has one; convert them."
            )
        self.prepared = images if len(images) else None
        scores = scores_of_judge(self.function, images, self.name)
        abstained, odds = np.isnan(scores), log_odds_of_scores(scores) / self.temperature
        ood = np.zeros(len(images), np.float32)
        if self.guard is not None and len(images):
            ood = self.guard.ood_score(images)
        return Prediction(
            np.where(abstained, 0.0, sigmoid(odds)).astype(np.float32),
            np.where(abstained, WITHHELD["log_odds"], odds).astype(np.float32),
            np.where(abstained, np.float32(ABSTAINED), ood),
        )

    def __deepcopy__(self, memo: object) -> Judge:
        """Return itself: ``env.spec`` records the judge, whose function may hold a large model."""
        return self

    def takes(self, images: object) -> bool:
        """Return False: images are scored on the host."""
        return False

    def check(self) -> None:
        """Do nothing: on the host :meth:`predict` raises."""

    def close(self) -> None:
        """Do nothing: the function is its user's."""


def scores_of_judge(
    function: JudgeFunction, images: NDArray[np.uint8], name: str
) -> NDArray[np.float64]:
    """Return a judge's scores of ``(N, H, W, 3)`` images, ``(N,)`` from 0 to 1 or NaN.

    OutputError: the function fails, or returns anything else.
    """
    if not len(images):
        return np.zeros(0)
    try:
        given = function(images)
        scores = np.array(to_numpy(given) if is_tensor(given) else given, np.float64)
    except VinorewardError:
        raise
    except Exception as error:  # anybody's code may raise anything
        raise OutputError(
            f"the judge {name} failed on {len(images)} images: {type(error).__name__}: "
            f"{reason_of(error)}. Expected {len(images)} scores from 0 to 1; correct the function, "
            "or return NaN for an image that it cannot score."
        ) from error
    inside = np.isnan(scores) | ((scores >= 0) & (scores <= 1))
    if scores.shape != (len(images),) or not inside.all():
        found = f"the shape {scores.shape}" if inside.all() else f"{scores[~inside].ravel()[:3]}"
        raise OutputError(
            f"the judge {name} returned {found} for {len(images)} images. Expected an array "
            f"({len(images)},) of scores from 0 to 1, or NaN to abstain; correct the function: of "
            "other numbers a sigmoid makes such scores."
        )
    return scores


def log_odds_of_scores(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-odds of scores from 0 to 1, finite; NaN stays."""
    inner = np.clip(scores, _LEAST, 1 - _LEAST)
    return np.asarray(np.log(inner) - np.log1p(-inner))
