"""Reference implementation of a policy in plain NumPy, for tests of every backend.

INT8 is exact here: inputs are rounded to the 256 levels of their range, weights are codes times
scales, and sums are floats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vinoreward.errors import InputError
from vinoreward.policies.policy import ActivationRange, Floats, Policy
from vinoreward.policies.spec import Activation, Conv, Dense, PolicySpec


def check_observations(spec: PolicySpec, observations: npt.NDArray[np.generic]) -> None:
    """Raise InputError unless observations are finite (N, *shape) of the spec's dtype."""
    if observations.shape[1:] != spec.observation_shape or observations.dtype != np.dtype(
        spec.observation_dtype
    ):
        raise InputError(
            f"observations are {observations.dtype}{observations.shape}. Expected "
            f"{spec.observation_dtype}(N, {', '.join(map(str, spec.observation_shape))})."
        )
    # A sum is NaN or infinite if any number is: one pass without a temporary array.
    if observations.dtype == np.float32 and not np.isfinite(np.sum(observations)):
        raise InputError("observations have NaN or infinity. Expected finite numbers.")


def quantized(values: Floats, bounds: ActivationRange) -> Floats:
    """Clip values to a range and round them to its levels."""
    step = bounds.step
    levels = np.rint((np.clip(values, bounds.low, bounds.high) - bounds.low) / step)
    found: Floats = (levels * step + bounds.low).astype(np.float32)
    return found


def activated(values: Floats, activation: Activation) -> Floats:
    """Apply an activation."""
    found = values
    if activation == "relu":
        found = np.maximum(values, np.float32(0.0))
    elif activation == "tanh":
        found = np.tanh(values)
    return found


def _patches(values: Floats, layer: Conv) -> Floats:
    """Return (N, rows, columns, inputs * kernel * kernel) of images (N, C, H, W)."""
    windows = np.lib.stride_tricks.sliding_window_view(
        values, (layer.kernel, layer.kernel), axis=(2, 3)
    )[:, :, :: layer.stride, :: layer.stride]
    count, _, rows, columns = windows.shape[:4]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(count, rows, columns, -1)


def _apply(layer: Dense | Conv, values: Floats, weight: Floats, bias: Floats) -> Floats:
    if isinstance(layer, Dense):
        return activated(values @ weight.T + bias, layer.activation)
    summed = _patches(values, layer) @ weight.reshape(layer.outputs, -1).T + bias
    return activated(np.ascontiguousarray(summed.transpose(0, 3, 1, 2)), layer.activation)


def layer_inputs(policy: Policy, observations: npt.NDArray[np.generic]) -> dict[str, Floats]:
    """Return the input of every layer with weights, head included, before any rounding.

    Args:
        policy: the network.
        observations: (N, *shape).
    """
    return _run(policy, observations)[1]


def forward(policy: Policy, observations: npt.NDArray[np.generic]) -> Floats:
    """Return the head's outputs (N, K) for observations (N, *shape).

    Raises:
        InputError: observations of another shape or dtype, or not finite.
    """
    return _run(policy, observations)[0]


def _run(policy: Policy, observations: npt.NDArray[np.generic]) -> tuple[Floats, dict[str, Floats]]:
    check_observations(policy.spec, observations)
    parameters = policy.float_parameters()
    values = observations.astype(np.float32) * np.float32(policy.spec.scale)
    inputs: dict[str, Floats] = {}
    for layer in policy.spec.layers:
        name = layer.name
        if not isinstance(layer, Dense | Conv):
            values = values.reshape(len(values), -1)
            continue
        inputs[name] = values
        seen = quantized(values, policy.ranges[name]) if policy.in_int8(name) else values
        values = _apply(layer, seen, parameters[f"{name}.weight"], parameters[f"{name}.bias"])
    return values, inputs
