"""OpenVINO graphs with weights compiled in: the fastest kernels for large INT8 weights.

Compiling takes 20 to 45 ms of processor time at each refresh. The compressor can do it once for all
actors: an actor imports the bytes of :func:`compile_blob` in about half that time.
"""

from __future__ import annotations

import platform
from typing import Any

from vinoreward.errors import ConfigError
from vinoreward.policies.backends.blob import describes, seal, unseal
from vinoreward.policies.backends.int8 import (
    float_array,
    folded,
    int8_layers,
    weight_count,
)
from vinoreward.policies.backends.openvino_inputs import (
    activated,
    convolution,
    observation_input,
    rounded,
    rows,
    scaled,
)
from vinoreward.policies.policy import Policy, QuantizedArray
from vinoreward.policies.spec import Conv, Flatten

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


def weight_only_layers(policy: Policy) -> tuple[str, ...]:
    """Return the layers with quantized weights and float inputs."""
    return tuple(
        layer.name
        for layer in policy.spec.weighted
        if isinstance(policy.parameters[f"{layer.name}.weight"], QuantizedArray)
        and not policy.in_int8(layer.name)
    )


def wants_constants(policy: Policy) -> bool:
    """Return whether to compile a policy's weights in rather than bind them.

    INT8 convolutions always need it: OpenVINO has no INT8 convolution with weights as an input.
    """
    whole = int8_layers(policy)
    convolutions = {layer.name for layer in policy.spec.weighted if isinstance(layer, Conv)}
    return (
        bool(convolutions.intersection(whole))
        or weight_count(policy.spec, whole) >= INT8_CONSTANT
        or weight_count(policy.spec, weight_only_layers(policy)) >= WEIGHT_ONLY_CONSTANT
    )


def constant_model(openvino: Any, policy: Policy, batch: int) -> Any:
    """Return an ``openvino.Model`` that contains the policy's weights."""
    op = openvino.opset13
    source = observation_input(op, policy.spec, batch)
    values = scaled(op, source, policy.spec)
    for layer in policy.spec.layers:
        if isinstance(layer, Flatten):
            values = rows(op, values, batch)
            continue
        name = f"{layer.name}.weight"
        given = policy.parameters[name]
        sides = 4 if isinstance(layer, Conv) else 2
        along = (-1, *[1] * (sides - 1))
        if policy.in_int8(layer.name):
            whole = folded(policy, layer.name)
            values = rounded(op, values, whole.bounds.low, whole.bounds.high, sides)
            weights = _from_codes(op, whole.codes, whole.scales.reshape(along))
            bias = whole.bias
        else:
            bias = float_array(policy, f"{layer.name}.bias")
            if isinstance(given, QuantizedArray):
                weights = _from_codes(op, given.codes, given.scales.reshape(along))
            else:
                weights = op.constant(float_array(policy, name))
        if isinstance(layer, Conv):
            values = convolution(op, values, weights, layer)
        else:
            values = op.matmul(values, weights, False, True)
        bias = bias.reshape((1, -1, *[1] * (sides - 2)))
        values = activated(op, op.add(values, op.constant(bias)), layer.activation)
    return openvino.Model([values], [source], "policy")


def _from_codes(op: Any, codes: Any, scales: Any) -> Any:
    # A copy: the model must not refer to memory that later weights overwrite.
    return op.multiply(op.convert(op.constant(codes), "f32"), op.constant(scales))


def compiled(openvino: Any, core: Any, model: Any) -> Any:
    """Compile a model for one CPU thread.

    Raises:
        ConfigError: OpenVINO refuses the model.
    """
    try:
        return core.compile_model(model, "CPU", OPTIONS)
    except RuntimeError as error:
        raise ConfigError(
            "OpenVINO cannot compile the policy for the CPU. Expected a network that it "
            "supports; use backend='numpy', and report this. "
            f"The reason it gives: {str(error).splitlines()[0]}"
        ) from error


def compile_blob(openvino: Any, core: Any, policy: Policy, batch: int) -> bytes | None:
    """Compile a policy for machines like this one; None where weights are bound as inputs.

    Raises:
        ConfigError: OpenVINO refuses the network.
    """
    if not wants_constants(policy):
        return None
    exported = compiled(openvino, core, constant_model(openvino, policy, batch)).export_model()
    payload = exported if isinstance(exported, bytes) else exported.getvalue()
    return seal(_header(openvino, core, policy, batch), payload)


def import_blob(openvino: Any, core: Any, policy: Policy, batch: int) -> Any | None:
    """Return the compiled model in a policy's blob, or None if it does not fit.

    It does not fit if made with another OpenVINO, processor, batch or weights, or if damaged. The
    caller then compiles the policy.
    """
    if policy.blob is None:
        return None
    payload = unseal(policy.blob, _header(openvino, core, policy, batch))
    if payload is None:
        return None
    try:
        return core.import_model(bytes(payload), "CPU", OPTIONS)
    except RuntimeError:
        return None


def _header(openvino: Any, core: Any, policy: Policy, batch: int) -> dict[str, Any]:
    return describes(policy, "openvino") | {
        "openvino": str(openvino.get_version()),
        "processor": [
            platform.machine(),
            str(core.get_property("CPU", "FULL_DEVICE_NAME")),
            sorted(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
        ],
        "batch": batch,
    }
