"""Any function that scores images, in the place of a bundle's classifier."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import is_tensor, to_numpy
from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.bundles.schema import Decision
from vinoreward.entry_points import named_function
from vinoreward.errors import (
    ConfigError,
    InputError,
    ModelNotFoundError,
    OutputError,
    VinorewardError,
)
from vinoreward.files import read_json, read_plain, reason_of
from vinoreward.rewards.classifier import Prediction, sigmoid
from vinoreward.rewards.decision import WITHHELD, check_thresholds
from vinoreward.rewards.ood import OodDetector, read_guard

JudgeFunction = Callable[[NDArray[np.uint8]], Any]
"""Takes ``(N, H, W, 3)`` uint8 RGB images; returns ``(N,)`` scores from 0 to 1, NaN to abstain."""
ABSTAINED = 100.0
"""OOD score of an image that a judge abstained from."""
JUDGE_FILE = "judge.json"
_LEAST = 1e-6  # scores of 0 and 1 have finite log-odds


class Judge:
    """A function that scores images, with a threshold: used where a classifier is.

    An image from which it abstains earns nothing, as one that is out of distribution.

    Example::

        def reached(images):  # (N, H, W, 3) uint8 RGB
            return (images[..., 0].mean((1, 2)) > 120).astype(float)

        env = LearnedReward(env, judge=Judge(reached, threshold=0.5))

    Args:
        function: see :data:`JudgeFunction`.
        threshold: probability from which success is claimed.
        exit_threshold: probability below which a claim ends; ``None`` is the threshold.
        temperature: log-odds of scores are divided by this.
        guard: an OOD detector of images of the same size.
        name: for messages; the function's by default.

    Raises:
        ConfigError: thresholds or a temperature that cannot work.
    """

    def __init__(
        self,
        function: JudgeFunction,
        threshold: float,
        *,
        exit_threshold: float | None = None,
        temperature: float = 1.0,
        guard: OodDetector | None = None,
        name: str | None = None,
    ) -> None:
        if not callable(function):
            raise ConfigError(field="judge", value=function, expected="a function of images")
        if not 0 < temperature < np.inf:
            raise ConfigError(field="temperature", value=temperature, expected="a number above 0")
        self.function = function
        self.threshold, self.exit_threshold = check_thresholds(threshold, exit_threshold)
        self.temperature = float(temperature)
        self.guard = guard
        self.name = name or str(getattr(function, "__qualname__", type(function).__name__))
        self.prepared: NDArray[np.uint8] | None = None
        """Images of the last :meth:`predict`; None if there were none."""

    @classmethod
    def load(cls, name: str) -> Judge:
        """Return a judge ``FILE.py:FUNCTION`` as ``vinoreward calibrate`` has calibrated it.

        This runs the file.

        Raises:
            ConfigError: no such function, or it was calibrated as another version of the file.
            ModelNotFoundError: it was not calibrated.
        """
        folder, remedy = judge_folder(name), f"run vinoreward calibrate --judge {name}"
        try:
            record = read_json(folder / JUDGE_FILE, 1 << 20)
            decision = Decision(**record["decision"])
            guard, sha256 = record["guard"], record["sha256"]
        except FileNotFoundError as error:
            raise ModelNotFoundError(
                f"the judge {name} has no {folder / JUDGE_FILE}. Expected a calibrated one; "
                f"{remedy}, or give Judge(function, threshold)."
            ) from error
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise ConfigError(
                f"{folder / JUDGE_FILE} cannot be read: {reason_of(error)}. Expected what "
                f"vinoreward calibrate wrote; {remedy}."
            ) from error
        if sha256 != judge_hash(name):
            raise ConfigError(
                f"the judge {name} was calibrated as another version of its file. Expected the "
                f"version that its threshold is for; {remedy}, or restore the file."
            )
        return cls(
            named_function(name, "judge", "a function of images"),
            decision.threshold,
            temperature=decision.temperature,
            guard=None if guard is None else read_guard(folder / GUARD_FILE, guard),
            name=name,
        )

    def with_options(
        self, threshold: float | None, exit_threshold: float | None, *, guarded: bool
    ) -> Judge:
        """Return the judge with other thresholds (None: its own), or without its detector."""
        own = threshold is None and exit_threshold is None
        return Judge(
            self.function,
            self.threshold if threshold is None else threshold,
            exit_threshold=self.exit_threshold if own else exit_threshold,
            temperature=self.temperature,
            guard=self.guard if guarded else None,
            name=self.name,
        )

    def predict(self, images: Any) -> Prediction:
        """Return probability, log-odds and OOD score of ``(N, H, W, 3)`` uint8 images.

        Raises:
            InputError: no such images, or of another size than the OOD detector's.
            OutputError: the function fails, or returns anything but N scores from 0 to 1 and NaN.
        """
        images = to_numpy(images) if is_tensor(images) else np.asarray(images)
        if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
            raise InputError(
                f"the judge {self.name} was given {images.dtype} {images.shape}. Expected uint8 "
                "(N, height, width, 3) RGB images; convert them."
            )
        size = images.shape[1:3] if self.guard is None else tuple(self.guard.size.tolist())
        if images.shape[1:3] != size:
            raise InputError(
                f"the judge {self.name} was given images of {images.shape[1:3]} (height, width). "
                f"Expected {size}, of its OOD detector; resize them, or calibrate it again."
            )
        self.prepared = images if len(images) else None
        scores = scores_of_judge(self.function, images, self.name)
        abstained = np.isnan(scores)
        odds = log_odds_of_scores(scores) / self.temperature
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


def judge_hash(name: str) -> str:
    """Return the SHA-256 of a judge ``FILE.py:FUNCTION``: of the file's bytes and the name."""
    file, _, function = name.rpartition(":")
    try:
        data = read_plain(_judge_file(file, name), 16 << 20)
    except OSError as error:
        raise ConfigError(
            field="judge", value=name, expected=f"a file that can be read ({reason_of(error)})"
        ) from error
    return hashlib.sha256(data + b"\0" + function.encode()).hexdigest()


def judge_folder(name: str) -> Path:
    """Return the folder of a judge's scores and calibration, FILE.FUNCTION, beside its file."""
    file, _, function = name.rpartition(":")
    path = _judge_file(file, name)
    return path.with_name(f"{path.stem}.{function}")


def _judge_file(file: str, name: str) -> Path:
    if not file.endswith(".py"):
        raise ConfigError(
            field="judge",
            value=name,
            expected="FILE.py:FUNCTION, a function of images",
            remedy="write a file that imports what is in a package",
        )
    return Path(file).resolve()
