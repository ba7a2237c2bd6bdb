"""A policy as an OpenVINO graph; its weights are inputs, or constants for the fastest INT8 kernels.

As inputs, a refresh binds new weights without compiling. As constants they are compiled in: 20 to
45 ms of processor time at each refresh, unless the compressor does it once for all actors, which
import the compiled model in about half that time.

Measured (Zen 4, one thread; weights as constants in brackets): 3x2048 in FP32 1.3 ms a call
(1.8 to 3 ms) and 0.1 ms a refresh (50 ms); two layers of 256, 16 us (12 us), 0.1 ms (25 ms). In
INT8, two layers of 256 17 us (9 us); 3x2048 0.44 ms (0.15 ms), because every call packs it.

Pitfalls: weights as OpenVINO state variables give silently wrong results (``MatMul(x, ReadValue)``,
2026.4); weights must be (outputs, inputs) with ``transpose_b``, otherwise they take twice the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.policies.backends.int8 import folded, int8_layers, weight_count
from vinoreward.policies.policy import Policy, QuantizedArray
from vinoreward.policies.spec import Conv, Dense, Flatten

Array = npt.NDArray[Any]
INT8_CONSTANT = 1_000_000
"""INT8 weights from which compiling them in pays. Fewer fit the processor's own cache, and saving
some microseconds per call does not repay the compilation between two refreshes."""
WEIGHT_ONLY_CONSTANT = 4_000_000
"""The same for 8-bit weights of float layers: 0.45 against 1.3 ms a call for 3x2048."""
WIDE = 2_000_000
"""Weights of a dense layer from which, with several observations, the product is transposed:
OpenVINO then reads the weights in place instead of packing them first (3x2048, 8 observations: a
quarter less time; slower for narrow layers)."""
HALF = 0.5
"""OpenVINO uses an INT8 product only if a constant multiplies the weights."""


def wants_constants(policy: Policy) -> bool:
    """Return whether to compile a policy's weights in rather than bind them.

    INT8 convolutions always need it: OpenVINO has no INT8 convolution with weights as an input.
    """
    whole = int8_layers(policy)
    weight_only = tuple(
        layer.name
        for layer in policy.spec.weighted
        if isinstance(policy.parameters[f"{layer.name}.weight"], QuantizedArray)
        and layer.name not in whole
    )
    return (
        any(isinstance(layer, Conv) and layer.name in whole for layer in policy.spec.weighted)
        or weight_count(policy.spec, whole) >= INT8_CONSTANT
        or weight_count(policy.spec, weight_only) >= WEIGHT_ONLY_CONSTANT
    )


def input_arrays(policy: Policy, batch: int) -> Iterator[Array]:
    """Yield the arrays for inputs 1, 2 and so on, as views of the policy if possible."""
    turned = _is_turned(policy, batch)
    for layer in policy.spec.weighted:
        sides = (1, -1, 1, 1) if isinstance(layer, Conv) else (1, -1)
        if policy.in_int8(layer.name):
            whole = folded(policy, layer.name)
            step = np.full((1, 1), 1.0 / whole.bounds.step, dtype=np.float32)
            yield step
            yield step * np.float32(-whole.bounds.low)
            yield np.ascontiguousarray(whole.codes)
            yield (whole.scales / np.float32(HALF)).reshape(sides)
            yield whole.bias.reshape(sides)
        else:
            yield policy.float_parameter(f"{layer.name}.weight")
            bias = policy.float_parameter(f"{layer.name}.bias")
            yield bias.reshape((-1, 1) if turned and isinstance(layer, Dense) else sides)


def _is_turned(policy: Policy, batch: int) -> bool:
    """Whether dense layers compute (outputs, batch), with weights as inputs."""
    sizes = [one.inputs * one.outputs for one in policy.spec.weighted if isinstance(one, Dense)]
    return batch > 1 and max(sizes) >= WIDE and not int8_layers(policy)


def policy_model(openvino: Any, policy: Policy, batch: int, *, constants: bool) -> Any:
    """Return an ``openvino.Model`` whose input 0 is the observations.

    Args:
        openvino: the imported module.
        policy: gives the layers and which of them are INT8.
        batch: observations per call.
        constants: whether the policy's weights are in the graph; otherwise they are inputs, see
            :func:`input_arrays`.
    """
    op, spec = openvino.opset13, policy.spec
    inputs = [op.parameter([batch, *spec.observation_shape], np.dtype(spec.observation_dtype).type)]
    given = input_arrays(policy, batch)

    def parameter() -> Any:
        array = next(given)
        inputs.append(op.parameter(list(array.shape), array.dtype.type))
        return inputs[-1]

    values = inputs[0]
    if spec.observation_dtype == "uint8":
        values = op.convert(values, "f32")
    if spec.scale != 1.0:
        values = op.multiply(values, op.constant(np.float32(spec.scale)))
    turned = False  # whether values are (numbers, batch)
    for layer in spec.layers:
        if isinstance(layer, Flatten):
            values = op.reshape(values, op.constant(np.array([batch, -1])), False)
            continue
        factor = None
        if constants:
            values, weights, bias = _constants(op, policy, layer, values)
        elif policy.in_int8(layer.name):
            values, weights = _levels_and_codes(op, values, parameter)
            factor, bias = parameter(), parameter()
        else:
            weights, bias = parameter(), parameter()
        if isinstance(layer, Conv):
            strides, none = [layer.stride] * 2, [0, 0]
            values = op.convolution(values, weights, strides, none, none, [1, 1])
        elif not constants and _is_turned(policy, batch):
            values, turned = op.matmul(weights, values, False, not turned), True
        else:
            values = op.matmul(values, weights, False, True)
        values = op.add(values if factor is None else op.multiply(values, factor), bias)
        if layer.activation != "none":
            values = op.relu(values) if layer.activation == "relu" else op.tanh(values)
    if turned:
        values = op.transpose(values, op.constant(np.array([1, 0])))
    return openvino.Model([values], inputs, "policy")


def _constants(op: Any, policy: Policy, layer: Dense | Conv, values: Any) -> tuple[Any, Any, Any]:
    """Return a layer's values, rounded if it is in INT8, and its weights and bias as constants."""
    weight = policy.parameters[f"{layer.name}.weight"]
    bias = policy.float_parameter(f"{layer.name}.bias")
    sides = 4 if isinstance(layer, Conv) else 2
    codes, scales = None, None
    if policy.in_int8(layer.name):
        whole = folded(policy, layer.name)
        values = _rounded(op, values, whole.bounds.low, whole.bounds.high, sides)
        codes, scales, bias = whole.codes, whole.scales, whole.bias
    elif isinstance(weight, QuantizedArray):
        codes, scales = weight.codes, weight.scales
    along = (-1, *[1] * (sides - 1))
    if codes is None or scales is None:
        weights = op.constant(policy.float_parameter(f"{layer.name}.weight"))
    else:
        # A copy: the model must not refer to memory that later weights overwrite.
        scaling = op.constant(scales.reshape(along))
        weights = op.multiply(op.convert(op.constant(codes), "f32"), scaling)
    return values, weights, op.constant(bias.reshape((1, *along[:-1])))


def _levels_and_codes(op: Any, values: Any, parameter: Callable[[], Any]) -> tuple[Any, Any]:
    """Return an INT8 layer's input levels, 0 to 255, and its codes, from inputs of the graph."""
    # The range is an input too, so values are mapped to 0 to 255 before rounding.
    values = op.add(op.multiply(values, parameter()), parameter())
    half = op.constant(np.full((1, 1), HALF, dtype=np.float32))
    return _rounded(op, values, 0.0, 255.0, 2), op.multiply(op.convert(parameter(), "f32"), half)


def _rounded(op: Any, values: Any, low: float, high: float, sides: int) -> Any:
    """Return the level, 0 to 255, of every value between ``low`` and ``high``."""
    ends = [op.constant(np.full((1,) * sides, end, np.float32)) for end in (low, high, 0.0, 255.0)]
    return op.fake_quantize(values, *ends, 256)
