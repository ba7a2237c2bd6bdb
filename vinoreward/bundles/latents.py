"""How far two latent vectors are apart, in a unit that means something."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.schema import Encoding

RANGE_SHARE = 0.05
"""The unit of a dimension whose posterior is not known: this share of its range."""
FLOAT_SHARE = 0.1
"""Backends in FP32 may differ by this many units, or by 1e-3 of the largest number if that is more:
the order of sums is theirs."""
FLOAT_ROUNDING = 1e-3
LOG_VARIANCE_TOLERANCE = 0.1


def means(outputs: NDArray[Any], encoding: Encoding) -> NDArray[Any]:
    """Return the ``(N, D)`` means out of an encoder's outputs."""
    return outputs[:, : len(encoding.low)]


def unit(encoding: Encoding, recorded: NDArray[Any]) -> NDArray[np.float64]:
    """Return the ``(D,)`` unit of each dimension's differences; positive.

    Args:
        encoding: of the bundle. Its ``std`` is the unit where it is known.
        recorded: ``(N, D)`` vectors; without ``std`` the unit is 5 % of their range.
    """
    if encoding.std is not None:
        return np.asarray(encoding.std, np.float64)
    spread = np.ptp(recorded.astype(np.float64), axis=0)
    # A dimension that hardly varies, or few frames: as much as the others vary on average.
    return np.asarray(RANGE_SHARE * np.maximum(spread, max(float(spread.mean()), 1e-3)))


def moved(
    found: NDArray[Any], expected: NDArray[Any], encoding: Encoding, recorded: NDArray[Any]
) -> NDArray[np.float64]:
    """Return how far each frame's vector moved, ``(N,)``: the largest dimension, in units.

    Args:
        found: ``(N, D)`` or with log variances ``(N, 2 D)``, which are not looked at.
        expected: likewise.
        encoding: of the bundle.
        recorded: what :func:`unit` measures ranges on.
    """
    difference = means(found, encoding).astype(np.float64) - means(expected, encoding)
    return np.asarray(
        np.abs(difference / unit(encoding, means(recorded, encoding))).max(axis=1), np.float64
    )


def parity(
    found: NDArray[np.float32], expected: NDArray[np.float32], encoding: Encoding, exact: bool
) -> NDArray[np.float64]:
    """Return how far each frame is from what was recorded, ``(G,)``, where 1 is the limit.

    FP32: every mean within 0.1 unit, every log variance within 0.1. INT8 and bf16, whose arithmetic
    differs between processor generations: the root mean square over the means within one unit.
    """
    mean = means(expected, encoding).astype(np.float64)
    difference = np.abs(means(found, encoding) - mean)
    units = unit(encoding, mean)
    if not exact:
        return np.asarray(np.sqrt(np.square(difference / units).mean(axis=1)))
    limit = np.maximum(FLOAT_SHARE * units, FLOAT_ROUNDING * max(1.0, float(np.abs(mean).max())))
    off = np.asarray((difference / limit).max(axis=1))
    if encoding.posterior:
        size = mean.shape[1]
        spread = np.abs(found[:, size:].astype(np.float64) - expected[:, size:]).max(axis=1)
        off = np.maximum(off, spread / LOG_VARIANCE_TOLERANCE)
    return off
