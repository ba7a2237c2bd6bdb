"""The ONNX Runtime backend: the fastest for small networks."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, OutputError, needed_for
from vinoreward_actors.policies.backends import base
from vinoreward_actors.policies.backends.base import Infer, PolicyBackend, describes
from vinoreward_actors.policies.policy import Floats, Policy, folded, int8_layers, weight_count
from vinoreward_actors.policies.spec import Conv, Dense, Flatten

Array = npt.NDArray[Any]
CONSTANTS = 1_000_000
"""With several observations, INT8 weights from this count on are constants of the session, because
only constants are prepacked. With one observation, weights as inputs cost 0.23 instead of 0.14 ms a
call for 3x2048, and save a session of 45 ms at every refresh."""
SMALLEST = 1_000_000
"""Dense INT8 weights from which a blob saves time: below it, checking the blob takes as long as
transposing the weights. Convolutions save nothing."""

_TABLE = re.compile(rb"[^\n]*\n")
SOURCE, RESULT, ZERO = "observations", "outputs", "zero"
IR_VERSION = 8
OPSET = 17


class ONNXRuntimeBackend(PolicyBackend):
    """Runs a policy in one session whose inputs and output are bound once.

    Weights are inputs: a refresh binds the policy's arrays. Large INT8 weights are transposed
    first, unless ``policy.blob`` has them transposed; for several observations they are constants
    of a new session. Quantized weights of float layers are dequantized at the refresh.
    """

    name: ClassVar[str] = "onnxruntime"

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        with needed_for("the onnxruntime backend", "onnxruntime"):
            import onnxruntime

            failures: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        self._library = onnxruntime
        self._failures = (failures.Fail, failures.RuntimeException, failures.InvalidArgument)
        self._refusals = (
            *self._failures,
            failures.InvalidProtobuf,
            failures.InvalidGraph,
            failures.NotImplemented,
        )
        self._session: Any = None
        self._binding: Any = None
        self._key: object = None
        self._bound: dict[str, Array] = {}

    def blob(self, policy: Policy) -> bytes | None:
        """Return large INT8 weights in ONNX Runtime's layout, for any batch and processor.

        Transposing 8 million weights takes an actor 25 ms at every refresh; reading them, 4 ms.
        """
        int8 = int8_layers(policy)
        dense = {layer.name for layer in policy.spec.weighted if isinstance(layer, Dense)}
        if weight_count(policy.spec, tuple(name for name in int8 if name in dense)) < SMALLEST:
            return None
        table, parts, end = [], [], 0
        for name, array in int8_arrays(policy).items():
            gap = -end % base.ALIGNMENT
            table.append([name, array.dtype.name, list(array.shape), end + gap])
            parts += [b"\0" * gap, array.tobytes()]
            end += gap + array.nbytes
        start = json.dumps(table).encode() + b"\n"
        start = b" " * (-len(start) % base.ALIGNMENT) + start
        return base.seal(describes(policy, self.name), start + b"".join(parts))

    def _load(self, policy: Policy) -> Infer:
        constants = self.batch > 1
        constants &= weight_count(policy.spec, int8_layers(policy)) >= CONSTANTS
        key = (policy.spec, shape_of(policy), constants)
        weights = weights_of(policy, read_blob(policy))
        if constants or self._session is None or key != self._key:
            self._key = None
            self._open(policy_model(policy, self.batch, weights, constants=constants), policy)
            self._key = key
        bound = {} if constants else weights
        for name, array in bound.items():
            self._bind(name, array)
        # Release the previous weights only now: their memory may be reused from here on.
        self._bound = bound
        return self._run

    def _open(self, model: bytes, policy: Policy) -> None:
        options = self._library.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # failures are raised as exceptions
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            self._session = self._library.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except self._refusals as error:
            raise ConfigError(
                "ONNX Runtime cannot open the policy. Expected a network that it supports; use "
                f"backend='numpy', and report this. The reason it gives: {error}"
            ) from error
        spec = policy.spec
        self._binding = self._session.io_binding()
        self._source = np.zeros((self.batch, *spec.observation_shape), spec.observation_dtype)
        self._result = np.zeros((self.batch, spec.outputs), dtype=np.float32)
        self._bind(SOURCE, self._source)
        self._binding.bind_output(
            RESULT, "cpu", 0, np.float32, self._result.shape, self._result.ctypes.data
        )

    def _bind(self, name: str, array: Array) -> None:
        # Binds the address without a copy, so the array must stay alive.
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _run(self, observations: npt.NDArray[Any]) -> Floats:
        np.copyto(self._source, observations)
        try:
            self._session.run_with_iobinding(self._binding)
        except self._failures as error:
            raise OutputError(
                "ONNX Runtime failed to run the policy. Expected outputs; the reason it gives: "
                f"{error}"
            ) from error
        return self._result.copy()

    def _unload(self) -> None:
        self._session = self._binding = self._key = None
        self._bound = {}


def read_blob(policy: Policy) -> dict[str, Array] | None:
    """Return the arrays of a policy's blob as views, or None if the blob does not fit."""
    if policy.blob is None:
        return None
    payload = base.unseal(policy.blob, describes(policy, "onnxruntime"))
    table = None if payload is None else _TABLE.match(payload)
    if payload is None or table is None:
        return None
    arrays: dict[str, Array] = {}
    for name, dtype, shape, offset in json.loads(table[0]):
        flat = np.frombuffer(payload, dtype, math.prod(shape), table.end() + offset)
        arrays[name] = flat.reshape(shape)
    return arrays


@dataclass(frozen=True)
class Shape:
    """Properties of a graph besides the spec: two policies of one shape share a session."""

    int8: tuple[str, ...]
    """INT8 layers."""
    shifted: tuple[str, ...]
    """INT8 layers whose range does not start at 0."""
    direct: bool
    """Whether the first layer uses the bytes of an image directly as levels."""


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

    ``ready`` is the result of :func:`int8_arrays`, if known.
    """
    weights = dict(int8_arrays(policy) if ready is None else ready)
    for layer in policy.spec.weighted:
        if not policy.in_int8(layer.name):
            for name in (f"{layer.name}.weight", f"{layer.name}.bias"):
                weights[name] = policy.float_parameter(name)
    return weights


def int8_arrays(policy: Policy) -> dict[str, Array]:
    """Return name to array of the INT8 layers.

    Dense layers multiply bytes. Convolutions get levels and weights as floats, because ONNX
    Runtime's ConvInteger is slower than its FP32 convolution.
    """
    shape = shape_of(policy)
    arrays: dict[str, Array] = {}
    for layer in policy.spec.weighted:
        name = layer.name
        if name not in shape.int8:
            continue
        int8 = folded(policy, name)
        if isinstance(layer, Conv):
            scales = int8.scales.reshape(-1, 1, 1, 1)
            arrays[f"{name}.weight"] = int8.codes.astype(np.float32) * scales
            arrays[f"{name}.bias"] = int8.bias
        else:
            # MatMulInteger cannot transpose.
            arrays[f"{name}.weight"] = np.ascontiguousarray(int8.codes.T)
            arrays[f"{name}.scales"] = int8.scales.reshape(1, -1)
            arrays[f"{name}.bias"] = int8.bias.reshape(1, -1)
        if not (shape.direct and layer is policy.spec.weighted[0]):
            arrays[f"{name}.step"] = np.array(int8.bounds.step, dtype=np.float32)
        if name in shape.shifted:
            arrays[f"{name}.low"] = np.array(int8.bounds.low, dtype=np.float32)
    return arrays


def policy_model(
    policy: Policy, batch: int, weights: Mapping[str, Array], *, constants: bool
) -> bytes:
    """Return a policy's ONNX ``ModelProto``, with ``weights`` from :func:`weights_of`.

    They are constants of the model, or else named inputs.
    """
    with needed_for("policies on onnxruntime", "train"):
        from onnx import helper, numpy_helper

    def value(name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return helper.make_tensor_value_info(name, kind, shape)

    spec = policy.spec
    fixed: dict[str, Array] = {
        ZERO: np.array(0, dtype=np.uint8),
        "scale": np.array(spec.scale, dtype=np.float32),
    }
    inputs = [value(SOURCE, spec.observation_dtype, (batch, *spec.observation_shape))]
    if constants:
        fixed |= weights
    else:
        inputs += [value(name, array.dtype, array.shape) for name, array in weights.items()]
    graph = helper.make_graph(
        _nodes(policy),
        "policy",
        inputs,
        [value(RESULT, "float32", (batch, spec.outputs))],
        [numpy_helper.from_array(array, name) for name, array in fixed.items()],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opset)
    return bytes(model.SerializeToString())


def _nodes(policy: Policy) -> list[Any]:
    from onnx import TensorProto, helper

    spec, shape = policy.spec, shape_of(policy)
    nodes: list[Any] = []
    current = SOURCE

    def then(kind: str, name: str, *others: str, **attributes: Any) -> None:
        nonlocal current
        nodes.append(helper.make_node(kind, [current, *others], [name], **attributes))
        current = name

    if not shape.direct:
        if spec.observation_dtype == "uint8":
            then("Cast", "floats", to=TensorProto.FLOAT)
        if spec.scale != 1.0:
            then("Mul", "scaled", "scale")
    for layer in spec.layers:
        name = layer.name
        if isinstance(layer, Flatten):
            then("Flatten", f"{name} rows", axis=1)
            continue
        biased = RESULT if layer is spec.layers[-1] else f"{name} biased"
        if name in shape.int8:
            if name in shape.shifted:
                then("Sub", f"{name} shifted", f"{name}.low")
            if current != SOURCE or not shape.direct:
                then("QuantizeLinear", f"{name} levels", f"{name}.step", ZERO)
        if isinstance(layer, Conv):
            if name in shape.int8:
                then("Cast", f"{name} float levels", to=TensorProto.FLOAT)
            then("Conv", biased, f"{name}.weight", f"{name}.bias", strides=[layer.stride] * 2)
        elif name in shape.int8:
            then("MatMulInteger", f"{name} sums", f"{name}.weight")
            then("Cast", f"{name} float sums", to=TensorProto.FLOAT)
            then("Mul", f"{name} products", f"{name}.scales")
            then("Add", biased, f"{name}.bias")
        else:
            then("Gemm", biased, f"{name}.weight", f"{name}.bias", transB=1)
        if layer.activation == "silu":
            then("Sigmoid", f"{name} sigmoid")
            then("Mul", f"{name} activated", biased)
        elif layer.activation != "none":
            kind = {"relu": "Relu", "tanh": "Tanh", "elu": "Elu"}[layer.activation]
            then(kind, f"{name} activated")
    return nodes
