"""An INT8 layer in integers, with all constants folded.

With levels ``q = rint((clip(x, low, high) - low) / step)``, from 0 to 255,

    y = (q * step + low) @ (codes * scales).T + b
      = (q @ codes.T) * (step * scales) + (b + low * scales * codes.sum(1)).

So inputs of any range become unsigned bytes without a zero point. That holds for dense layers and,
since there is no padding, for convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward.policies.policy import ActivationRange, Floats, Parameter, Policy, QuantizedArray
from vinoreward.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp


@dataclass(frozen=True)
class Folded:
    """A layer of O outputs in INT8."""

    bounds: ActivationRange
    """Range of its input."""
    codes: npt.NDArray[np.int8]
    """(O, ...)."""
    scales: Floats
    """(O,), value of one unit of ``q @ codes.T``."""
    bias: Floats
    """(O,)."""


def folded(policy: Policy, layer: str) -> Folded:
    """Return the folded form of a layer; ConfigError if it is not in INT8."""
    weight, bounds = policy.parameters[f"{layer}.weight"], policy.ranges[layer]
    bias = policy.parameters[f"{layer}.bias"]
    if not isinstance(weight, QuantizedArray) or isinstance(bias, QuantizedArray):
        raise ConfigError(
            f"layer {layer} is not quantized for INT8. Expected 8-bit weights and a float bias."
        )
    # In float64: low times a sum of thousands of codes is large compared with the bias.
    scales = weight.scales.astype(np.float64)
    total = bias.astype(np.float64)
    if bounds.low != 0.0:
        rows = weight.codes.reshape(len(weight.codes), -1)
        total += bounds.low * scales * np.add.reduce(rows, axis=1, dtype=np.int32)
    scales = scales * bounds.step
    return Folded(bounds, weight.codes, scales.astype(np.float32), total.astype(np.float32))


def int8_layers(policy: Policy) -> tuple[str, ...]:
    """Return the names of the layers in INT8, in order."""
    return tuple(layer.name for layer in policy.spec.weighted if policy.in_int8(layer.name))


def weight_count(spec: PolicySpec, layers: tuple[str, ...]) -> int:
    """Return the number of weights, without biases, of some layers."""
    shapes = spec.parameter_shapes()
    return sum(math.prod(shapes[f"{name}.weight"]) for name in layers)


# Products that overflow
#
# Processors without VNNI multiply unsigned by signed bytes in pairs and sum each pair in 16 bits
# (``vpmaddubsw``): two products of 255 and 127 are 64770, but the result is 32767. With codes up
# to 64 no pair exceeds 32640.
#
# Measured on such processors (ONNX Runtime 1.31, OpenVINO 2026.4): both backends saturate with AVX2
# and with AVX-512, OpenVINO with SSE4.1 too.
LARGEST = 64
"""Largest code for which two products with 255 fit into 16 bits."""
_BYTES = np.arange(256, dtype=np.uint8).view(np.int8)
_REDUCED = np.rint(_BYTES * (LARGEST / 127.0)).astype(np.int8)
"""For each byte of an 8-bit code, the code of the same weight where 64 replaces 127."""


def reduced(policy: Policy) -> Policy:
    """Return a policy whose INT8 layers have codes from -64 to 64 and matching scales.

    The rounding error of the weights is about 2.2 times that of 8 bits. Codes that are already
    small enough do not change.
    """
    parameters: dict[str, Parameter] = dict(policy.parameters)
    for layer in int8_layers(policy):
        name = f"{layer}.weight"
        weight = parameters[name]
        if isinstance(weight, QuantizedArray) and (
            weight.codes.max(initial=0) > LARGEST or weight.codes.min(initial=0) < -LARGEST
        ):
            codes = np.take(_REDUCED, np.ascontiguousarray(weight.codes).view(np.uint8))
            scales = weight.scales * np.float32(127.0 / LARGEST)
            parameters[name] = QuantizedArray(codes, scales)
    return policy.replace(parameters=parameters)


def probes() -> Iterator[tuple[Policy, npt.NDArray[Any]]]:
    """Yield networks with one observation (1, *shape) each, for which all outputs are 1.

    Inputs are at the highest level and weights at the largest code, so outputs fall far below 1 if
    pair sums saturate. One network has dense layers, the other convolutions.
    """
    for spec in (_DENSE, _PICTURES):
        parameters: dict[str, Parameter] = {}
        for name, shape in spec.parameter_shapes().items():
            scale = np.full(shape[0], 1.0 / (127.0 * math.prod(shape[1:])), dtype=np.float32)
            parameters[name] = QuantizedArray(np.full(shape, 127, dtype=np.int8), scale)
            if name.endswith(".bias"):
                parameters[name] = np.zeros(shape, dtype=np.float32)
        ranges = {layer.name: ActivationRange(0.0, 1.0) for layer in spec.weighted}
        most = 255 if spec.observation_dtype == "uint8" else 1
        seen = np.full((1, *spec.observation_shape), most, dtype=spec.observation_dtype)
        yield Policy(spec, parameters, ranges), seen


_DENSE = mlp(64, 8, head="q", hidden=(64, 64))
_PICTURES = PolicySpec(
    observation_shape=(4, 12, 12),
    layers=(
        Conv("conv0", 4, 32, 4, 2),
        Conv("conv1", 32, 32, 3, 1),
        Flatten(),
        Dense("dense0", 32 * 3 * 3, 64, "relu"),
        Dense("head", 64, 8),
    ),
    head="q",
    actions=8,
    observation_dtype="uint8",
    scale=1.0 / 255.0,
)
