"""A layer in INT8 as whole numbers: what is left when every constant is folded away.

With levels ``q = rint((clip(x, low, high) - low) / step)``, from 0 to 255,

    y = (q * step + low) @ (codes * scales).T + b
      = (q @ codes.T) * (step * scales) + (b + low * scales * codes.sum(1)).

So inputs of any range are unsigned bytes without a zero point, for dense layers and, since there is
no padding, for convolutions as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward.policies.policy import ActivationRange, Floats, Policy, QuantizedArray
from vinoreward.policies.spec import PolicySpec


@dataclass(frozen=True)
class Folded:
    """A layer in INT8.

    Attributes:
        bounds: of its input.
        codes: (O, ...) int8.
        scales: (O,) float32, of one unit of ``q @ codes.T``.
        bias: (O,) float32.
    """

    bounds: ActivationRange
    codes: npt.NDArray[np.int8]
    scales: Floats
    bias: Floats


def folded(policy: Policy, layer: str) -> Folded:
    """Return a layer that the policy computes in INT8.

    Raises:
        ConfigError: it computes it in float.
    """
    weight, bounds = policy.parameters[f"{layer}.weight"], policy.ranges[layer]
    bias = policy.parameters[f"{layer}.bias"]
    if not isinstance(weight, QuantizedArray) or isinstance(bias, QuantizedArray):
        raise ConfigError(
            f"the layer {layer} is not quantized as INT8 needs it. Expected 8-bit weights and a "
            "bias in float."
        )
    # In double: low times a sum of thousands of codes is large beside the bias.
    scales = weight.scales.astype(np.float64)
    total = bias.astype(np.float64)
    if bounds.low != 0.0:
        rows = weight.codes.reshape(len(weight.codes), -1)
        total += bounds.low * scales * np.add.reduce(rows, axis=1, dtype=np.int32)
    return Folded(
        bounds=bounds,
        codes=weight.codes,
        scales=(scales * bounds.step).astype(np.float32),
        bias=total.astype(np.float32),
    )


def int8_layers(policy: Policy) -> tuple[str, ...]:
    """Return the names of the layers in INT8, in order."""
    return tuple(layer.name for layer in policy.spec.weighted if policy.in_int8(layer.name))


def weight_count(spec: PolicySpec, layers: tuple[str, ...]) -> int:
    """Return the number of weights, without biases, of some layers."""
    shapes = spec.parameter_shapes()
    return int(sum(np.prod(shapes[f"{name}.weight"]) for name in layers))


def float_array(policy: Policy, name: str) -> Floats:
    """Return a parameter as contiguous float32: itself if it is that already."""
    value = policy.parameters[name]
    if isinstance(value, QuantizedArray):
        return value.dequantized()
    found: Floats = np.ascontiguousarray(value, dtype=np.float32)
    return found
