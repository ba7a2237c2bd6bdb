"""OpenVINO graphs whose weights are inputs: a refresh binds new ones without compiling.

Measured (Zen 4, one thread; weights as constants in brackets): 3x2048 in FP32 1.3 ms a call
(1.8 to 3 ms) and 0.1 ms a refresh (50 ms); two layers of 256, 16 us (12 us), 0.1 ms (25 ms). In
INT8, two layers of 256 17 us (9 us); 3x2048 0.44 ms (0.15 ms), because every call packs it.

Pitfalls: weights as OpenVINO state variables give silently wrong results (``MatMul(x, ReadValue)``,
2026.4); weights must be (outputs, inputs) with ``transpose_b``, otherwise they take twice the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.policies.backends.int8 import float_array, folded, int8_layers
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import Conv, Dense, Flatten, PolicySpec

Array = npt.NDArray[Any]
WIDE = 2_000_000
"""Weights of a dense layer from which, with several observations, the product is transposed:
OpenVINO then reads the weights in place instead of packing them first (3x2048, 8 observations: a
quarter less time; slower for narrow layers)."""
HALF = 0.5
"""OpenVINO uses an INT8 product only if a constant multiplies the weights."""


class Swappable:
    """A graph with inputs for every parameter.

    Args:
        openvino: the imported module.
        policy: gives the layers and which of them are INT8; its weights are not in the graph.
        batch: observations per call.

    Attributes:
        model: ``openvino.Model``; input 0 is the observations, the others follow :meth:`arrays`.
    """

    def __init__(self, openvino: Any, policy: Policy, batch: int) -> None:
        self._policy_layers = policy.spec.weighted
        self._int8 = int8_layers(policy)
        self._batch = batch
        self._turned = (
            batch > 1
            and not self._int8
            and any(
                isinstance(layer, Dense) and layer.inputs * layer.outputs >= WIDE
                for layer in policy.spec.weighted
            )
        )
        self._op = openvino.opset13
        self.model = self._build(openvino, policy)

    def arrays(self, policy: Policy) -> Iterator[Array]:
        """Yield the arrays for inputs 1, 2 and so on, as views of the policy if possible."""
        for layer in self._policy_layers:
            sides = (1, -1, 1, 1) if isinstance(layer, Conv) else (1, -1)
            if layer.name in self._int8:
                whole = folded(policy, layer.name)
                step = np.full((1, 1), 1.0 / whole.bounds.step, dtype=np.float32)
                yield step
                yield step * np.float32(-whole.bounds.low)
                yield np.ascontiguousarray(whole.codes)
                yield (whole.scales / np.float32(HALF)).reshape(sides)
                yield whole.bias.reshape(sides)
            else:
                yield float_array(policy, f"{layer.name}.weight")
                bias = float_array(policy, f"{layer.name}.bias")
                turned = self._turned and isinstance(layer, Dense)
                yield bias.reshape((-1, 1) if turned else sides)

    def _build(self, openvino: Any, policy: Policy) -> Any:
        op = self._op
        inputs = [observation_input(op, policy.spec, self._batch)]
        values = scaled(op, inputs[0], policy.spec)
        turned = False  # whether values are (numbers, batch) already
        given = self.arrays(policy)

        def parameter() -> Any:
            array = next(given)
            inputs.append(op.parameter(list(array.shape), array.dtype.type))
            return inputs[-1]

        for layer in policy.spec.layers:
            if isinstance(layer, Flatten):
                values = rows(op, values, self._batch)
                continue
            if layer.name in self._int8:
                values = self._int8_product(values, parameter)
            elif isinstance(layer, Conv):
                values = convolution(op, values, parameter(), layer)
            elif self._turned:
                values = op.matmul(parameter(), values, False, not turned)
                turned = True
            else:
                values = op.matmul(values, parameter(), False, True)
            values = activated(op, op.add(values, parameter()), layer.activation)
        if turned:
            values = op.transpose(values, op.constant(np.array([1, 0])))
        return openvino.Model([values], inputs, "policy")

    def _int8_product(self, values: Any, parameter: Any) -> Any:
        op = self._op
        # The range is an input too, so values are mapped to 0 to 255 before rounding.
        values = op.add(op.multiply(values, parameter()), parameter())
        levels = rounded(op, values, 0.0, 255.0, 2)
        codes = op.multiply(op.convert(parameter(), "f32"), filled(op, HALF, 2))
        return op.multiply(op.matmul(levels, codes, False, True), parameter())


def observation_input(op: Any, spec: PolicySpec, batch: int) -> Any:
    """Return the graph's input for observations."""
    return op.parameter([batch, *spec.observation_shape], np.dtype(spec.observation_dtype).type)


def scaled(op: Any, values: Any, spec: PolicySpec) -> Any:
    """Return observations as floats times the spec's scale."""
    if spec.observation_dtype == "uint8":
        values = op.convert(values, "f32")
    if spec.scale != 1.0:
        values = op.multiply(values, op.constant(np.float32(spec.scale)))
    return values


def rows(op: Any, values: Any, batch: int) -> Any:
    """Return values flattened to (batch, numbers)."""
    return op.reshape(values, op.constant(np.array([batch, -1])), False)


def convolution(op: Any, values: Any, weights: Any, layer: Conv) -> Any:
    """Return a convolution without padding."""
    return op.convolution(values, weights, [layer.stride] * 2, [0, 0], [0, 0], [1, 1])


def filled(op: Any, value: float, sides: int) -> Any:
    """Return a constant with one number and ``sides`` axes."""
    return op.constant(np.full((1,) * sides, value, dtype=np.float32))


def rounded(op: Any, values: Any, low: float, high: float, sides: int) -> Any:
    """Return the level, 0 to 255, of every value between ``low`` and ``high``."""
    ends = [filled(op, end, sides) for end in (low, high, 0.0, 255.0)]
    return op.fake_quantize(values, *ends, 256)


def activated(op: Any, values: Any, activation: str) -> Any:
    """Return values after an activation."""
    if activation == "relu":
        return op.relu(values)
    return op.tanh(values) if activation == "tanh" else values
