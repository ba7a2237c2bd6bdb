"""Ranges of layers' inputs for INT8: measured, remembered, and laid so that nought is a level.

A policy's rare observations are the ones that decide: the mean of each observation's least and
largest numbers, NNCF's default, clips them and ruins trained policies, while the mean error of
actions falls. Here the least and the largest of all count, and some room is left beyond.
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
    """Return the least and largest number that each layer is given.

    Args:
        policy: in full precision.
        observations: (N, *shape).
        estimator: ``"minmax"`` over everything; ``"mean"`` of each observation's own, as NNCF does
            by default, to show what that costs.

    Raises:
        InputError: a layer's input is NaN or infinite.
    """
    names = [layer.name for layer in policy.spec.weighted]
    lows: dict[str, list[float]] = {name: [] for name in names}
    highs: dict[str, list[float]] = {name: [] for name in names}
    for part in batches(observations):
        # What overflows is found below, and said.
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
                "finite numbers; the learner has diverged, lower its learning rate."
            )
    return found


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def limits(spec: PolicySpec) -> dict[str, Bounds]:
    """Return what each layer's input cannot go beyond, whatever is observed."""
    seen = 255.0 * spec.scale if spec.observation_dtype == "uint8" else math.inf
    found = {spec.weighted[0].name: (0.0 if math.isfinite(seen) else -math.inf, seen)}
    bounds = {"tanh": (-1.0, 1.0), "relu": (0.0, math.inf), "none": (-math.inf, math.inf)}
    for layer, reader in zip(spec.weighted[:-1], spec.weighted[1:], strict=True):
        found[reader.name] = bounds[layer.activation]
    return found


def remembered(now: Bounds, before: Bounds | None, decay: float) -> Bounds:
    """Return the wider of the range now and the one before, which shrinks by ``decay`` a push."""
    if before is None:
        return now
    return min(now[0], before[0] * decay), max(now[1], before[1] * decay)


def widened(bounds: Bounds, margin: float, limit: Bounds) -> Bounds:
    """Return a range around nought, ``margin`` times as wide, within limits."""
    low = max(min(bounds[0], 0.0) * margin, limit[0])
    high = min(max(bounds[1], 0.0) * margin, limit[1])
    # An input that was always nought may not stay so; any range is as good as another.
    return (low, high) if low < high else (max(-1.0, limit[0]), min(1.0, limit[1]))


def aligned(bounds: Bounds) -> ActivationRange:
    """Return a range that holds ``bounds`` and has nought as one of its 256 levels exactly.

    The step between levels has 16 binary digits at most, so that all its multiples up to 255 times
    are float32 numbers and no backend's arithmetic moves nought away.

    Args:
        bounds: low <= 0 <= high, low < high.
    """
    low, high = bounds
    ideal = math.floor(255.0 * -low / (high - low))
    # Each side that there is gets one level at least.
    least, most = int(low < 0), 255 - int(high > 0)
    choices = {min(max(zero, least), most) for zero in (ideal, ideal + 1)}
    step, zero = min((_step(low, high, zero), zero) for zero in choices)
    step = max(step, 1e-30)
    fraction, exponent = math.frexp(step)
    step = math.ldexp(math.ceil(fraction * 65536.0), exponent - 16)
    return ActivationRange(-zero * step, (255 - zero) * step)


def _step(low: float, high: float, zero: int) -> float:
    """Return the least step that reaches both ends with ``zero`` levels below nought."""
    return max(-low / max(zero, 1), high / max(255 - zero, 1))
