"""INT8 products that overflow: found by running an engine's kernels, avoided with 7-bit weights.

Processors without VNNI multiply unsigned by signed bytes in pairs and keep each pair's sum in 16
bits (``vpmaddubsw``): two products of 255 and 127 are 64770, and 32767 comes out. With codes up to
64 no pair passes 32640.

Measured on such processors (ONNX Runtime 1.31, OpenVINO 2026.4): both engines saturate with AVX2
and with AVX-512, OpenVINO with SSE4.1 too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.executors.folded import int8_layers
from vinoreward.policies.policy import ActivationRange, Parameter, Policy, QuantizedArray
from vinoreward.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp

LARGEST = 64
"""Largest code of which two, times 255 each, fit into 16 bits."""
_BYTES = np.arange(256, dtype=np.uint8).view(np.int8)
_REDUCED = np.rint(_BYTES * (LARGEST / 127.0)).astype(np.int8)
"""For every byte of an 8-bit code, the code of the same weight where 64 stands for 127."""


def reduced(policy: Policy) -> Policy:
    """Return a policy whose layers in INT8 have codes from -64 to 64, and scales to match.

    Rounding error of the weights is about 2.2 times that of 8 bits. Codes that are small enough
    stay as they are.
    """
    parameters: dict[str, Parameter] = dict(policy.parameters)
    for layer in int8_layers(policy):
        name = f"{layer}.weight"
        weight = parameters[name]
        if isinstance(weight, QuantizedArray) and _too_large(weight.codes):
            codes = np.take(_REDUCED, np.ascontiguousarray(weight.codes).view(np.uint8))
            scales = weight.scales * np.float32(127.0 / LARGEST)
            parameters[name] = QuantizedArray(codes, scales)
    return policy.replace(parameters=parameters)


def _too_large(codes: npt.NDArray[np.int8]) -> bool:
    return bool(codes.size) and (int(codes.max()) > LARGEST or int(codes.min()) < -LARGEST)


def probes() -> Iterator[tuple[Policy, npt.NDArray[Any]]]:
    """Yield networks with one observation (1, *shape) of each, all of whose outputs are 1.

    Every input has the highest level and every weight the largest code, so that outputs are far
    less than 1 where sums of pairs saturate. One network has dense layers, one convolutions.
    """
    for spec in (_DENSE, _PICTURES):
        parameters: dict[str, Parameter] = {}
        for name, shape in spec.parameter_shapes().items():
            if name.endswith(".bias"):
                parameters[name] = np.zeros(shape, dtype=np.float32)
            else:
                codes = np.full(shape, 127, dtype=np.int8)
                scale = 1.0 / (127.0 * float(np.prod(shape[1:])))
                parameters[name] = QuantizedArray(codes, np.full(shape[0], scale, dtype=np.float32))
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
