"""A policy as an ONNX graph; its weights are inputs, or constants for packed INT8 products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.policies.backends.int8 import float_array, folded, int8_layers
from vinoreward.policies.backends.onnx_bytes import Node, Value, model_bytes, type_number
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import Conv, Flatten

Array = npt.NDArray[Any]
SOURCE, RESULT, ZERO = "observations", "outputs", "zero"


@dataclass(frozen=True)
class Shape:
    """Properties of a graph besides the spec: two policies of one shape share a session.

    Attributes:
        int8: INT8 layers.
        shifted: INT8 layers whose range does not start at 0.
        direct: whether the first layer uses the bytes of an image directly as levels.
    """

    int8: tuple[str, ...]
    shifted: tuple[str, ...]
    direct: bool


def shape_of(policy: Policy) -> Shape:
    """Return the shape of a policy's graph."""
    int8 = int8_layers(policy)
    first = policy.spec.weighted[0].name
    bounds = policy.ranges.get(first)
    direct = (
        first in int8
        and bounds is not None
        and policy.spec.observation_dtype == "uint8"
        and bounds.low == 0.0
        and bool(np.isclose(bounds.step, policy.spec.scale, rtol=1e-6, atol=0.0))
    )
    return Shape(int8, tuple(name for name in int8 if policy.ranges[name].low != 0.0), direct)


def weights_of(policy: Policy, ready: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Return name to array of all weights in the graph's layout.

    Args:
        policy: the network.
        ready: the result of :func:`int8_arrays`, if known.
    """
    int8 = int8_arrays(policy) if ready is None else ready
    whole = int8_layers(policy)
    found: dict[str, Array] = dict(int8)
    for layer in policy.spec.weighted:
        if layer.name not in whole:
            for kind in ("weight", "bias"):
                found[f"{layer.name}.{kind}"] = float_array(policy, f"{layer.name}.{kind}")
    return found


def int8_arrays(policy: Policy) -> dict[str, Array]:
    """Return name to array of the INT8 layers.

    Dense layers multiply bytes. Convolutions get levels and weights as floats, because ONNX
    Runtime's ConvInteger is slower than its FP32 convolution.
    """
    shape = shape_of(policy)
    found: dict[str, Array] = {}
    for layer in policy.spec.weighted:
        name = layer.name
        if name not in shape.int8:
            continue
        whole = folded(policy, name)
        if isinstance(layer, Conv):
            scales = whole.scales.reshape(-1, 1, 1, 1)
            found[f"{name}.weight"] = whole.codes.astype(np.float32) * scales
            found[f"{name}.bias"] = whole.bias
        else:
            # MatMulInteger cannot transpose.
            found[f"{name}.weight"] = np.ascontiguousarray(whole.codes.T)
            found[f"{name}.scales"] = whole.scales.reshape(1, -1)
            found[f"{name}.bias"] = whole.bias.reshape(1, -1)
        if not (shape.direct and layer is policy.spec.weighted[0]):
            found[f"{name}.step"] = np.array(whole.bounds.step, dtype=np.float32)
        if name in shape.shifted:
            found[f"{name}.low"] = np.array(whole.bounds.low, dtype=np.float32)
    return found


def policy_model(
    policy: Policy, batch: int, weights: Mapping[str, Array], *, constants: bool
) -> bytes:
    """Return a policy's ONNX model.

    Args:
        policy: gives the layers.
        batch: observations per call.
        weights: from :func:`weights_of`.
        constants: whether weights are constants of the model; otherwise they are named inputs.
    """
    spec = policy.spec
    inputs = [Value(SOURCE, spec.observation_dtype, (batch, *spec.observation_shape))]
    fixed: dict[str, Array] = {ZERO: np.array(0, dtype=np.uint8)}
    if constants:
        fixed |= weights
    else:
        inputs += [Value(name, array.dtype.name, array.shape) for name, array in weights.items()]
    nodes = _nodes(policy, fixed)
    nodes[-1] = Node(nodes[-1].kind, nodes[-1].inputs, RESULT, nodes[-1].attributes)
    return model_bytes(nodes, inputs, Value(RESULT, "float32", (batch, spec.outputs)), fixed)


def _nodes(policy: Policy, fixed: dict[str, Array]) -> list[Node]:
    spec, shape = policy.spec, shape_of(policy)
    nodes: list[Node] = []
    current = SOURCE

    def then(kind: str, name: str, *others: str, **attributes: Any) -> None:
        nonlocal current
        nodes.append(Node(kind, [current, *others], name, attributes))
        current = name

    if not shape.direct:
        if spec.observation_dtype == "uint8":
            then("Cast", "floats", to=type_number("float32"))
        if spec.scale != 1.0:
            fixed["scale"] = np.array(spec.scale, dtype=np.float32)
            then("Mul", "scaled", "scale")
    for layer in spec.layers:
        name = layer.name
        if isinstance(layer, Flatten):
            then("Flatten", f"{name} rows", axis=1)
            continue
        if name in shape.int8:
            if name in shape.shifted:
                then("Sub", f"{name} shifted", f"{name}.low")
            if current != SOURCE or not shape.direct:
                then("QuantizeLinear", f"{name} levels", f"{name}.step", ZERO)
        if isinstance(layer, Conv):
            if name in shape.int8:
                then("Cast", f"{name} float levels", to=type_number("float32"))
            strides = [layer.stride] * 2
            then("Conv", f"{name} biased", f"{name}.weight", f"{name}.bias", strides=strides)
        elif name in shape.int8:
            then("MatMulInteger", f"{name} sums", f"{name}.weight")
            then("Cast", f"{name} float sums", to=type_number("float32"))
            then("Mul", f"{name} products", f"{name}.scales")
            then("Add", f"{name} biased", f"{name}.bias")
        else:
            then("Gemm", f"{name} biased", f"{name}.weight", f"{name}.bias", transB=1)
        if layer.activation != "none":
            kind = "Relu" if layer.activation == "relu" else "Tanh"
            then(kind, f"{name} activated")
    return nodes
