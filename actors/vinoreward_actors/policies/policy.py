"""A policy: a spec with its weights, as NumPy arrays, and what it computes, in plain NumPy.

:func:`forward` is the reference for tests of every backend. INT8 is exact here: inputs are rounded
to the 256 levels of their range, weights are codes times scales, and sums are floats.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.policies.spec import Activation, Conv, Dense, PolicySpec

Floats = npt.NDArray[np.float32]
FLOAT_TYPES = (np.float32, np.float16)


def largest_code(bits: int) -> int:
    """Return the largest code of ``bits`` bits; codes are symmetric, so one pattern is unused."""
    if not 2 <= bits <= 8:
        raise ConfigError(f"codes have {bits} bits. Expected 2 to 8.")
    return int(2 ** (bits - 1) - 1)


@dataclass(frozen=True)
class QuantizedArray:
    """Weights as integers: ``value = codes * scales``, symmetric, one scale per output."""

    codes: npt.NDArray[np.int8]
    """(O, ...), from -(2^(bits-1) - 1) to 2^(bits-1) - 1."""
    scales: Floats
    """(O,), positive."""
    bits: int = 8
    """2 to 8; size of a packed code."""

    def __post_init__(self) -> None:
        largest_code(self.bits)
        if (
            self.codes.dtype != np.int8
            or self.scales.dtype != np.float32
            or self.scales.shape != self.codes.shape[:1]
        ):
            raise InputError(
                f"quantized weights have codes {self.codes.dtype}{self.codes.shape} and scales "
                f"{self.scales.dtype}{self.scales.shape}. Expected int8 (O, ...), float32 (O,)."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weights."""
        return self.codes.shape

    def dequantized(self) -> Floats:
        """Return the weights (O, ...) as float32."""
        scales = self.scales.reshape(-1, *[1] * (self.codes.ndim - 1))
        return self.codes.astype(np.float32) * scales


def quantize_array(weights: Floats, bits: int = 8) -> QuantizedArray:
    """Quantize finite float32 weights (O, ...) to the nearest code of 2 to 8 bits."""
    largest = largest_code(bits)
    if not np.isfinite(weights).all():
        raise InputError(
            "the weights to quantize have NaN or infinity. Expected finite numbers: the learner "
            "has diverged. Lower its learning rate."
        )
    rows = weights.reshape(len(weights), -1)
    highest = np.maximum(rows.max(1, initial=0.0), -rows.min(1, initial=0.0))
    # Subnormal scales would overflow the division; a row that small is zero to any policy.
    scales = np.where(highest > 1e-30, highest / largest, 1.0).astype(np.float32)
    # No code exceeds the largest one: scales are off by 1e-7, not by half a step.
    nearest = rows / scales[:, None]
    codes = np.rint(nearest, out=nearest).astype(np.int8).reshape(weights.shape)
    return QuantizedArray(codes, scales, bits)


@dataclass(frozen=True)
class ActivationRange:
    """Range to which INT8 clips a layer's input, in 256 even levels."""

    low: float
    """At most 0, so that zero stays zero."""
    high: float
    """At least 0, above ``low``."""

    def __post_init__(self) -> None:
        if not (np.isfinite([self.low, self.high]).all() and self.low <= 0 <= self.high):
            raise InputError(
                f"a layer's input has the range {self.low} to {self.high}. Expected finite numbers "
                "on both sides of 0."
            )
        if self.low == self.high:
            raise InputError("a layer's input has an empty range. Expected low < high.")

    @property
    def step(self) -> float:
        """Distance between two levels."""
        return (self.high - self.low) / 255.0


Parameter = npt.NDArray[Any] | QuantizedArray


@dataclass(frozen=True)
class Policy:
    """A network with weights, ready for any backend.

    Raises:
        InputError: the parameters do not match the spec.
    """

    spec: PolicySpec
    """The layers."""
    parameters: Mapping[str, Parameter]
    """Name to float32 or float16 array, or quantized weights; biases are float32."""
    ranges: Mapping[str, ActivationRange] = field(default_factory=dict)
    """Layer name to the range of its input. A layer with a range and 8-bit weights is computed in
    INT8, all others in float."""
    backend: str = "numpy"
    """On which actors run it."""
    version: int = 0
    """Of the learner's policy from which it was made."""
    blob: bytes | memoryview | None = field(default=None, repr=False)
    """The backend's compiled form, if it pays to compile once for all actors. After transport it is
    a view of the received bytes, valid as long as the parameters."""

    def __post_init__(self) -> None:
        wanted = self.spec.parameter_shapes()
        shapes = {name: tuple(value.shape) for name, value in self.parameters.items()}
        if shapes != wanted:
            both = sorted({*shapes, *wanted})
            wrong = [name for name in both if shapes.get(name) != wanted.get(name)]
            raise InputError(
                f"the parameters {', '.join(wrong)} do not match the network: found "
                f"{[shapes.get(name) for name in wrong]}. Expected "
                f"{[wanted.get(name) for name in wrong]}."
            )
        for name, value in self.parameters.items():
            if not isinstance(value, QuantizedArray) and value.dtype not in FLOAT_TYPES:
                raise InputError(f"{name} is {value.dtype}. Expected float32 or float16.")
        unknown = set(self.ranges) - {layer.name for layer in self.spec.weighted}
        if unknown:
            raise InputError(f"there are ranges for {sorted(unknown)}, which are not layers.")
        object.__setattr__(self, "parameters", MappingProxyType(dict(self.parameters)))
        object.__setattr__(self, "ranges", MappingProxyType(dict(self.ranges)))

    def float_parameter(self, name: str) -> Floats:
        """Return a parameter as contiguous float32, dequantized; without a copy if possible."""
        value = self.parameters[name]
        if isinstance(value, QuantizedArray):
            return value.dequantized()
        return np.ascontiguousarray(value, dtype=np.float32)

    def float_parameters(self) -> dict[str, Floats]:
        """Return every parameter as float32, quantized ones dequantized."""
        return {name: self.float_parameter(name) for name in self.parameters}

    def in_int8(self, layer: str) -> bool:
        """Whether a layer is computed with 8-bit weights and inputs."""
        weight = self.parameters[f"{layer}.weight"]
        return layer in self.ranges and isinstance(weight, QuantizedArray) and weight.bits == 8

    def replace(self, **changes: Any) -> Policy:
        """Return a copy with some attributes changed."""
        return dataclasses.replace(self, **changes)


def random_policy(spec: PolicySpec, seed: int, *, gain: float = 1.0) -> Policy:
    """Return a policy with He-scaled random weights and random biases."""
    random = np.random.default_rng(seed)
    parameters: dict[str, Parameter] = {}
    for name, shape in spec.parameter_shapes().items():
        if name.endswith(".bias"):
            parameters[name] = (0.1 * random.standard_normal(shape)).astype(np.float32)
        else:
            scale = gain * np.sqrt(2.0 / np.prod(shape[1:]))
            parameters[name] = (scale * random.standard_normal(shape)).astype(np.float32)
    return Policy(spec, parameters)


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
    levels: Floats = np.rint((np.clip(values, bounds.low, bounds.high) - bounds.low) / step)
    return (levels * step + bounds.low).astype(np.float32)


def activated(values: Floats, activation: Activation) -> Floats:
    """Return the activation of values, of the same shape."""
    if activation == "tanh":
        return np.tanh(values)
    if activation == "relu":
        return np.maximum(values, np.float32(0.0))
    if activation == "elu":
        zero = np.float32(0.0)
        elu: Floats = np.add(np.maximum(values, zero), np.expm1(np.minimum(values, zero))).astype(
            np.float32, copy=False
        )
        return elu
    if activation == "silu":  # by the tanh, because an exponential can overflow
        half = np.float32(0.5)
        silu: Floats = (values * (half + half * np.tanh(half * values))).astype(
            np.float32, copy=False
        )
        return silu
    return values


def _apply(layer: Dense | Conv, values: Floats, weight: Floats, bias: Floats) -> Floats:
    if isinstance(layer, Dense):
        return activated(values @ weight.T + bias, layer.activation)
    kernel = (layer.kernel, layer.kernel)
    windows = np.lib.stride_tricks.sliding_window_view(values, kernel, axis=(2, 3))
    windows = windows[:, :, :: layer.stride, :: layer.stride]
    count, _, rows, columns = windows.shape[:4]
    patches = windows.transpose(0, 2, 3, 1, 4, 5).reshape(count, rows, columns, -1)
    summed = patches @ weight.reshape(layer.outputs, -1).T + bias
    return activated(np.ascontiguousarray(summed.transpose(0, 3, 1, 2)), layer.activation)


def layer_inputs(policy: Policy, observations: npt.NDArray[np.generic]) -> dict[str, Floats]:
    """Return the input of every layer with weights, head included, before any rounding."""
    check_observations(policy.spec, observations)
    return run(policy, policy.float_parameters(), observations)[1]


def forward(policy: Policy, observations: npt.NDArray[np.generic]) -> Floats:
    """Return the head's outputs (N, K) for observations (N, *shape).

    Raises:
        InputError: observations of another shape or dtype, or not finite.
    """
    check_observations(policy.spec, observations)
    return run(policy, policy.float_parameters(), observations)[0]


def run(
    policy: Policy, parameters: Mapping[str, Floats], observations: npt.NDArray[np.generic]
) -> tuple[Floats, dict[str, Floats]]:
    """Return outputs (N, K) and layers' inputs, by the policy's :meth:`Policy.float_parameters`."""
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


@dataclass(frozen=True)
class Folded:
    """An INT8 layer of O outputs in integers, with all constants folded.

    With levels ``q = rint((clip(x, low, high) - low) / step)``, from 0 to 255,

        y = (q * step + low) @ (codes * scales).T + b
          = (q @ codes.T) * (step * scales) + (b + low * scales * codes.sum(1)).

    So inputs of any range become unsigned bytes without a zero point. That holds for dense layers
    and, since there is no padding, for convolutions.
    """

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


LARGEST = 64
"""Largest code for which two products with 255 fit into 16 bits."""
_BYTES = np.arange(256, dtype=np.uint8).view(np.int8)
_REDUCED = np.rint(_BYTES * (LARGEST / 127.0)).astype(np.int8)
"""For each byte of an 8-bit code, the code of the same weight where 64 replaces 127."""


def reduced(policy: Policy) -> Policy:
    """Return a policy whose INT8 layers have codes from -64 to 64 and matching scales.

    Processors without VNNI multiply unsigned by signed bytes in pairs and sum each pair in 16 bits
    (``vpmaddubsw``): two products of 255 and 127 are 64770, but the result is 32767. With codes up
    to 64 no pair exceeds 32640. Measured on such processors (ONNX Runtime 1.31, OpenVINO 2026.4):
    both backends saturate with AVX2 and with AVX-512, OpenVINO with SSE4.1 too.

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
