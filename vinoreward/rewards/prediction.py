"""From a network's outputs to log-odds and probabilities of success: the arithmetic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array
from vinoreward.bundles.golden import columns
from vinoreward.errors import OutputError

if TYPE_CHECKING:
    from vinoreward.bundles.schema import BundleSpec

# Smallest probability of a float32 softmax; the logarithm of 0 would be infinite.
_LEAST = float(np.finfo(np.float32).tiny)


class Prediction(NamedTuple):
    """What a classifier and its OOD detector say of N images: arrays of the caller's library."""

    probability: Array
    """(N,) float32, calibrated, from 0 to 1; on a device NaN where the network gave no number."""
    log_odds: Array
    """(N,) float32, of the same."""
    ood_score: Array | None
    """(N,) float32, how unlike the training images: above 1 the classifier knows nothing of it.
    None without a detector."""


def success_log_odds(outputs: NDArray[np.float32], spec: BundleSpec) -> NDArray[np.float64]:
    """Return the calibrated log-odds of success, ``(N,)``, of a network's outputs."""
    return log_odds(scores_of(outputs, spec), spec.success_index, spec.decision.temperature)


def shifts_of(images: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], ...]:
    """Return images (N, H, W, 3) as they are, moved by a pixel to the left, and to the right.

    The pixels at a side are repeated there. Strides and pooling make a network's answer depend on
    where edges lie between pixels (Zhang 2019, "Making convolutional networks shift-invariant
    again"), and the mean depends on it less. Sideways only: views lie below each other.
    """
    left = np.concatenate([images[:, :, 1:], images[:, :, -1:]], axis=2)
    right = np.concatenate([images[:, :, :1], images[:, :, :-1]], axis=2)
    return images, left, right


def scores_of(outputs: NDArray[np.float32], spec: BundleSpec) -> NDArray[np.float64]:
    """Return a network's outputs as logits ``(N, K)``, one column per label.

    Raises:
        OutputError: the bundle says that they are probabilities, and they are not.
    """
    values = columns(outputs, spec)
    if spec.output in ("logits", "logit"):
        return values
    if values.min() < -1e-4 or np.abs(values.sum(axis=1) - 1.0).max() > 1e-2:
        logits = "logit" if spec.output == "probability" else "logits"
        raise OutputError(
            f"the network returned {outputs[0].round(4).tolist()} as {spec.output}. Expected "
            f"numbers of at least 0 that sum to 1 over the labels; if it returns {logits}, say "
            f"output={logits!r} in the bundle."
        )
    return np.asarray(np.log(np.clip(values, _LEAST, 1.0)))


def log_odds(
    logits: NDArray[np.float64], success: int, temperature: float = 1.0
) -> NDArray[np.float64]:
    """Return ``log p(success) - log p(not success)`` of the softmax of ``logits / temperature``.

    ``logits`` are ``(N, K)`` with K at least 2, ``success`` is a column; the result is ``(N,)``.
    """
    scaled = logits / temperature
    others = scaled[:, np.arange(scaled.shape[1]) != success]
    highest = others.max(axis=1)
    if others.shape[1] == 1:
        rest = highest
    else:
        rest = highest + np.log(np.exp(others - highest[:, None]).sum(axis=1))
    return np.asarray(scaled[:, success] - rest)


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``1 / (1 + exp(-x))`` without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def logit(probability: float) -> float:
    """Return ``log(p / (1 - p))``; minus and plus infinity for 0 and 1."""
    if 0.0 < probability < 1.0:
        return math.log(probability) - math.log1p(-probability)
    return math.inf if probability >= 1.0 else -math.inf


def unsure(log_odds: NDArray[np.float64], threshold: float, band: float) -> NDArray[np.bool_]:
    """Return which images need a second look, ``(N,)`` bool: strictly within the band.

    Threshold and half-width are in log-odds; an infinite threshold means none.
    """
    return np.asarray(np.abs(log_odds - threshold) < band)
