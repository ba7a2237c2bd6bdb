"""The OpenVINO backend. Weights are inputs of its graph, or constants for the fastest INT8 kernels.

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

import platform
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.backends.runtime import import_openvino, shared_core
from vinoreward.errors import ConfigError, OutputError
from vinoreward_actors.policies.backends.base import Infer, PolicyBackend, describes, seal, unseal
from vinoreward_actors.policies.policy import (
    Floats,
    Policy,
    QuantizedArray,
    folded,
    int8_layers,
    weight_count,
)
from vinoreward_actors.policies.spec import Conv, Dense, Flatten

Array = npt.NDArray[Any]
OPTIONS = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    "INFERENCE_NUM_THREADS": 1,
    # With pinning, all actors of a machine would share one core.
    "ENABLE_CPU_PINNING": False,
    # By default, processors with bfloat16 use it, and weight-only layers round their inputs.
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}
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


class OpenVINOBackend(PolicyBackend):
    """Runs a policy with one OpenVINO request whose inputs and output are bound once.

    FP32 weights and small INT8 weights are graph inputs: a refresh points them at the policy's
    arrays. Large INT8 or weight-only weights are compiled in, or imported from ``policy.blob`` if
    it fits.
    """

    name: ClassVar[str] = "openvino"

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self._openvino = import_openvino()
        self._core: Any = shared_core(self._openvino)
        self._request: Any = None
        self._key: object = None
        """Of the graph whose weights are inputs; None where they are compiled in."""
        self._bound: list[Array] = []
        self.imported = False
        """Whether the current weights came from the policy's blob."""

    def blob(self, policy: Policy) -> bytes | None:
        """Return the compiled model for machines like this one, if weights are compiled in."""
        if not wants_constants(policy):
            return None
        exported = self._compile(policy, constants=True).export_model()
        payload = exported if isinstance(exported, bytes) else exported.getvalue()
        return seal(self._header(policy), payload)

    def _load(self, policy: Policy) -> Infer:
        self.imported = False
        if wants_constants(policy):
            model = self._import(policy)
            self.imported = model is not None
            if model is None:
                model = self._compile(policy, constants=True)
            self._open(model, policy)
            self._key, self._bound = None, []
            return self._run
        key = (policy.spec, int8_layers(policy))
        if key != self._key:
            self._open(self._compile(policy, constants=False), policy)
            self._key = key
        arrays = [_writable(array) for array in input_arrays(policy, self.batch)]
        for number, array in enumerate(arrays, start=1):
            self._request.set_input_tensor(number, self._tensor(array))
        # Release the previous weights only now: their memory may be reused from here on.
        self._bound = arrays
        return self._run

    def _compile(self, policy: Policy, *, constants: bool) -> Any:
        model = policy_model(self._openvino, policy, self.batch, constants=constants)
        try:
            return self._core.compile_model(model, "CPU", OPTIONS)
        except RuntimeError as error:
            raise ConfigError(
                "OpenVINO cannot compile the policy for the CPU. Expected a network that it "
                "supports; use backend='numpy', and report this. "
                f"The reason it gives: {str(error).splitlines()[0]}"
            ) from error

    def _import(self, policy: Policy) -> Any | None:
        """Return the compiled model in a policy's blob, or None if it does not fit.

        It does not fit if made with another OpenVINO, processor, batch or weights, or if damaged.
        """
        payload = None if policy.blob is None else unseal(policy.blob, self._header(policy))
        if payload is None:
            return None
        try:
            return self._core.import_model(bytes(payload), "CPU", OPTIONS)
        except RuntimeError:
            return None

    def _header(self, policy: Policy) -> dict[str, Any]:
        return describes(policy, "openvino") | {
            "openvino": str(self._openvino.get_version()),
            "processor": [
                platform.machine(),
                str(self._core.get_property("CPU", "FULL_DEVICE_NAME")),
                sorted(self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
            ],
            "batch": self.batch,
        }

    def _open(self, model: Any, policy: Policy) -> None:
        spec = policy.spec
        self._request = model.create_infer_request()
        self._source = np.zeros((self.batch, *spec.observation_shape), spec.observation_dtype)
        self._result = np.zeros((self.batch, spec.outputs), dtype=np.float32)
        self._request.set_input_tensor(0, self._tensor(self._source))
        self._request.set_output_tensor(0, self._tensor(self._result))

    def _tensor(self, array: Array) -> Any:
        return self._openvino.Tensor(array, shared_memory=True)

    def _run(self, observations: npt.NDArray[Any]) -> Floats:
        np.copyto(self._source, observations)
        try:
            self._request.infer(share_outputs=True)
        except RuntimeError as error:
            raise OutputError(
                "OpenVINO failed to run the policy. Expected outputs; the reason it gives: "
                f"{str(error).splitlines()[0]}"
            ) from error
        return self._result.copy()

    def _unload(self) -> None:
        self._request = self._key = self._core = None
        self._bound = []


class _Alias:
    """An array's memory declared writable: OpenVINO requires that although it only reads."""

    def __init__(self, array: Array) -> None:
        self.source = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _writable(array: Array) -> Array:
    return array if array.flags.writeable else np.asarray(_Alias(array))


def wants_constants(policy: Policy) -> bool:
    """Return whether to compile a policy's weights in rather than bind them.

    INT8 convolutions always need it: OpenVINO has no INT8 convolution with weights as an input.
    """
    int8, spec = int8_layers(policy), policy.spec
    others = [layer.name for layer in spec.weighted if layer.name not in int8]
    weight_only = tuple(
        name for name in others if isinstance(policy.parameters[f"{name}.weight"], QuantizedArray)
    )
    return (
        any(isinstance(layer, Conv) and layer.name in int8 for layer in spec.weighted)
        or weight_count(spec, int8) >= INT8_CONSTANT
        or weight_count(spec, weight_only) >= WEIGHT_ONLY_CONSTANT
    )


def input_arrays(policy: Policy, batch: int) -> Iterator[Array]:
    """Yield the arrays for inputs 1, 2 and so on, as views of the policy if possible."""
    turned = _is_turned(policy, batch)
    for layer in policy.spec.weighted:
        sides = (1, -1, 1, 1) if isinstance(layer, Conv) else (1, -1)
        if policy.in_int8(layer.name):
            int8 = folded(policy, layer.name)
            step = np.full((1, 1), 1.0 / int8.bounds.step, dtype=np.float32)
            yield step
            yield step * np.float32(-int8.bounds.low)
            yield np.ascontiguousarray(int8.codes)
            yield (int8.scales / np.float32(HALF)).reshape(sides)
            yield int8.bias.reshape(sides)
        else:
            yield policy.float_parameter(f"{layer.name}.weight")
            bias = policy.float_parameter(f"{layer.name}.bias")
            yield bias.reshape((-1, 1) if turned and isinstance(layer, Dense) else sides)


def _is_turned(policy: Policy, batch: int) -> bool:
    """Whether dense layers compute (outputs, batch), with weights as inputs."""
    if batch == 1 or int8_layers(policy):
        return False
    dense = (layer for layer in policy.spec.weighted if isinstance(layer, Dense))
    return any(layer.inputs * layer.outputs >= WIDE for layer in dense)


def policy_model(openvino: Any, policy: Policy, batch: int, *, constants: bool) -> Any:
    """Return an ``openvino.Model`` whose input 0 is the observations.

    The weights are constants of the graph, or else inputs, see :func:`input_arrays`.
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
        if layer.activation == "elu":
            values = op.elu(values, 1.0)
        elif layer.activation != "none":
            activations = {"relu": op.relu, "tanh": op.tanh, "silu": op.swish}
            values = activations[layer.activation](values)
    if turned:
        values = op.transpose(values, op.constant(np.array([1, 0])))
    return openvino.Model([values], inputs, "policy")


def _constants(op: Any, policy: Policy, layer: Dense | Conv, values: Any) -> tuple[Any, Any, Any]:
    """Return a layer's values, rounded if it is in INT8, and its weights and bias as constants."""
    weight = policy.parameters[f"{layer.name}.weight"]
    bias = policy.float_parameter(f"{layer.name}.bias")
    sides = 4 if isinstance(layer, Conv) else 2
    along = (-1, *[1] * (sides - 1))
    if isinstance(weight, QuantizedArray):
        codes, scales = weight.codes, weight.scales
        if policy.in_int8(layer.name):
            int8 = folded(policy, layer.name)
            values = _rounded(op, values, int8.bounds.low, int8.bounds.high, sides)
            scales, bias = int8.scales, int8.bias
        # A copy: the model must not refer to memory that later weights overwrite.
        scaling = op.constant(scales.reshape(along))
        weights = op.multiply(op.convert(op.constant(codes), "f32"), scaling)
    else:
        weights = op.constant(policy.float_parameter(f"{layer.name}.weight"))
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
