"""Paired evaluation: the full and the compressed policy play the same episodes; pure maths.

Returns of the actors' own episodes do not measure this (they include exploration and lag), and
in an unpaired evaluation the spread between start states hides the gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError, needed_for

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PairedReturns:
    """Returns of two policies on the same environment seeds, without exploration.

    Attributes:
        full: (S,) undiscounted returns of the policy in full precision.
        compressed: (S,) of the same policy compressed, on the same seeds in the same order.

    Raises:
        InputError: arrays of different lengths, or not finite.
    """

    full: Doubles
    compressed: Doubles

    def __post_init__(self) -> None:
        full, compressed = np.asarray(self.full, float), np.asarray(self.compressed, float)
        if (
            full.ndim != 1
            or full.shape != compressed.shape
            or not (np.isfinite(full).all() and np.isfinite(compressed).all())
        ):
            raise InputError(
                f"paired returns have shapes {full.shape} and {compressed.shape}. Expected two "
                "vectors of finite numbers of one length, one pair per environment seed."
            )
        object.__setattr__(self, "full", full)
        object.__setattr__(self, "compressed", compressed)


@dataclass(frozen=True)
class Gap:
    """Return lost to compression.

    Attributes:
        mean: of full minus compressed; positive means that compression costs return.
        error: standard error of the mean.
        lower: one-sided lower confidence bound of the true gap (Student's t).
        scale: unit for a relative gap: the spread of the full policy's returns between seeds, or
            a tenth of their mean where that is larger.
        worse: whether the gap exceeds the tolerance at the given confidence.
    """

    mean: float
    error: float
    lower: float
    scale: float
    worse: bool


def paired_gap(returns: PairedReturns, *, confidence: float = 0.95, tolerance: float = 0.0) -> Gap:
    """Return the gap between two policies with a one-sided test.

    Args:
        returns: at least 2 pairs.
        confidence: that a gap within the tolerance is not called worse, from 0.5 to below 1.
        tolerance: in units of reward; AcceRL's delta.

    Raises:
        InputError: fewer than 2 pairs.
        ConfigError: an invalid confidence.
        MissingExtraError: SciPy is not installed.
    """
    if not 0.5 <= confidence < 1.0:
        raise ConfigError(f"the confidence is {confidence}. Expected 0.5 to below 1.")
    count = len(returns.full)
    if count < 2:
        raise InputError(f"got {count} pairs of returns. Expected at least 2.")
    gaps = returns.full - returns.compressed
    mean = float(gaps.mean())
    error = float(gaps.std(ddof=1)) / math.sqrt(count)
    with needed_for("comparing returns", "train"):
        from scipy.special import stdtrit
    lower = mean - float(stdtrit(count - 1, confidence)) * error
    scale = max(float(returns.full.std(ddof=1)), 0.1 * abs(float(returns.full.mean())), 1e-9)
    return Gap(mean, error, lower, scale, lower > tolerance)
