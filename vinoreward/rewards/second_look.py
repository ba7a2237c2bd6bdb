"""Second look: INT8 decides where it is sure, FP32 where it is not.

INT8 arithmetic moves a network's output a little. That changes a decision only close to the
threshold, and there the FP32 network of the same bundle is asked. The mean cost depends on how
often that is: seldom while a policy explores, more often once every episode ends in success.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def logit(probability: float) -> float:
    """Return ``log(p / (1 - p))``; minus and plus infinity for 0 and 1."""
    if 0.0 < probability < 1.0:
        return math.log(probability) - math.log1p(-probability)
    return math.inf if probability >= 1.0 else -math.inf


def unsure(log_odds: NDArray[np.float64], threshold: float, band: float) -> NDArray[np.bool_]:
    """Return which pictures are to be looked at again.

    Args:
        log_odds: ``(N,)`` finite, of the INT8 network.
        threshold: in log-odds; where it is infinite nothing is unsure.
        band: half-width, in log-odds; 0 looks at nothing again.

    Returns:
        ``(N,)`` bool, True strictly within the band.
    """
    return np.asarray(np.abs(log_odds - threshold) < band)
