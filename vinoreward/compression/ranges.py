"""Input ranges of layers for INT8: measured, remembered, and aligned so that zero is a level.

Rare observations decide. NNCF's default, the mean of each observation's minimum and maximum, clips
them and ruins trained policies although the mean action error falls. This module uses the minimum
and maximum over all observations, with a margin.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from vinoreward.compression.context import Observations, batches
from vinoreward.errors import InputError
from vinoreward.policies.policy import ActivationRange, Policy
from vinoreward.policies.reference import layer_inputs
from vinoreward.policies.spec import PolicySpec

Estimator = Literal["minmax", "mean"]
Bounds = tuple[float, float]


def measure(policy: Policy, observations: Observations, estimator: Estimator) -> dict[str, Bounds]:
    """Return the minimum and maximum input of each layer.

    Args:
        policy: in full precision.
        observations: (N, *shape).
        estimator: ``"minmax"`` over everything; ``"mean"`` of each observation's own, NNCF's
            default, for comparison.

    Raises:
        InputError: a layer's input is NaN or infinite.
    """
    names = [layer.name for layer in policy.spec.weighted]
    lows: dict[str, list[float]] = {name: [] for name in names}
    highs: dict[str, list[float]] = {name: [] for name in names}
    for part in batches(observations):
        # The check below reports overflows.
        with np.errstate(over="ignore", invalid="ignore"):
            inputs = layer_inputs(policy, part)
        for name, values in inputs.items():
            rows = values.reshape(len(values), -1)
            lows[name] += rows.min(1).tolist()
            highs[name] += rows.max(1).tolist()
    least, most = (min, max) if estimator == "minmax" else (_mean, _mean)
    found = {name: (least(lows[name]), most(highs[name])) for name in names}
    for name, bounds in found.items():
        if not all(map(math.isfinite, bounds)):
            raise InputError(
                f"the input of layer {name} is NaN or infinite on some observation. Expected "
                "finite numbers: the learner has diverged. Lower its learning rate."
            )
    return found


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def limits(spec: PolicySpec) -> dict[str, Bounds]:
    """Return the bounds of each layer's input for any observation."""
    seen = 255.0 * spec.scale if spec.observation_dtype == "uint8" else math.inf
    found = {spec.weighted[0].name: (0.0 if math.isfinite(seen) else -math.inf, seen)}
    bounds = {"tanh": (-1.0, 1.0), "relu": (0.0, math.inf), "none": (-math.inf, math.inf)}
    for layer, reader in zip(spec.weighted[:-1], spec.weighted[1:], strict=True):
        found[reader.name] = bounds[layer.activation]
    return found


def remembered(now: Bounds, before: Bounds | None, decay: float) -> Bounds:
    """Return the union of the current range and the previous one, shrunk by ``decay``."""
    if before is None:
        return now
    return min(now[0], before[0] * decay), max(now[1], before[1] * decay)


def widened(bounds: Bounds, margin: float, limit: Bounds) -> Bounds:
    """Return a range that includes zero, ``margin`` times as wide, within limits."""
    low = max(min(bounds[0], 0.0) * margin, limit[0])
    high = min(max(bounds[1], 0.0) * margin, limit[1])
    # An input that was always zero may change later; any range will do.
    return (low, high) if low < high else (max(-1.0, limit[0]), min(1.0, limit[1]))


def aligned(bounds: Bounds) -> ActivationRange:
    """Return a range that contains ``bounds`` and has zero as one of its 256 levels exactly.

    The step has at most 16 significant bits. So its multiples up to 255 are exact in float32, and
    no backend's arithmetic shifts zero.
    Args:
        bounds: low <= 0 <= high, low < high.
    """
    low, high = bounds
    ideal = math.floor(255.0 * -low / (high - low))
    # Each non-empty side gets at least one level.
    least, most = int(low < 0), 255 - int(high > 0)
    choices = {min(max(zero, least), most) for zero in (ideal, ideal + 1)}
    step, zero = min((_step(low, high, zero), zero) for zero in choices)
    step = max(step, 1e-30)
    fraction, exponent = math.frexp(step)
    step = math.ldexp(math.ceil(fraction * 65536.0), exponent - 16)
    return ActivationRange(-zero * step, (255 - zero) * step)


def _step(low: float, high: float, zero: int) -> float:
    """Return the smallest step that reaches both ends with ``zero`` levels below zero."""
    return max(-low / max(zero, 1), high / max(255 - zero, 1))
