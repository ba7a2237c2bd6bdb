"""The fastest backend for a network, by measuring all of them on this machine.

Which one is fastest depends on processor and network: with VNNI OpenVINO's INT8 is, without it
often ONNX Runtime's, and for small networks neither gains from INT8.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from vinoreward.errors import ConfigError, MissingExtraError
from vinoreward_actors.policies.backends.base import make_backend
from vinoreward_actors.policies.policy import (
    ActivationRange,
    Policy,
    quantize_array,
    random_policy,
)
from vinoreward_actors.policies.spec import PolicySpec

AUTO = "auto"
EAGER = "torch"
FP32 = ("openvino", "onnxruntime", EAGER)
INT8 = ("openvino", "onnxruntime")
SECONDS = 1.0
"""Of measuring, in all."""
MARGIN = 0.95
"""A candidate is chosen over eager PyTorch from this fraction of its time down."""


@functools.lru_cache(maxsize=64)
def measure(spec: PolicySpec, batch: int) -> Mapping[str, float]:
    """Return the seconds per call of each way to compute a network, such as ``"openvino int8"``.

    Takes about a second and the time to compile. Ways take turns, so that other load on the
    machine affects all of them alike; the numbers are medians. Leaves out backends that are not
    installed.

    Args:
        spec: of the network; its weights are random.
        batch: observations per call.
    """
    policy = random_policy(spec, 0)
    ways = [(name, name, policy) for name in FP32]
    if len(spec.weighted) > 2:
        coarse = quantized(policy)
        ways += [(f"{name} int8", name, coarse) for name in INT8]
    seen = np.zeros((batch, *spec.observation_shape), dtype=spec.observation_dtype)
    calls: dict[str, Callable[[], Any]] = {}
    with contextlib.ExitStack() as stack:
        for way, name, given in ways:
            with contextlib.suppress(MissingExtraError, ConfigError):
                backend = stack.enter_context(make_backend(name, batch))
                backend.refresh(given)
                backend.infer(seen)
                calls[way] = functools.partial(backend.infer, seen)
        seconds: dict[str, list[float]] = {way: [] for way in calls}
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            for way, call in calls.items():
                start = time.perf_counter()
                call()
                seconds[way].append(time.perf_counter() - start)
    return MappingProxyType({way: statistics.median(each) for way, each in seconds.items()})


def quantized(policy: Policy) -> Policy:
    """Return a policy with its hidden layers in INT8, for ranges that only a measurement needs."""
    names = [layer.name for layer in policy.spec.weighted[1:-1]]
    weights = {
        f"{name}.weight": quantize_array(policy.float_parameter(f"{name}.weight")) for name in names
    }
    ranges = dict.fromkeys(names, ActivationRange(-4.0, 4.0))
    return policy.replace(parameters={**policy.parameters, **weights}, ranges=ranges)


def fastest(spec: PolicySpec, batch: int, *, int8: bool = False) -> str:
    """Return the name of the fastest backend for a network in FP32, or in INT8.

    Eager PyTorch where no other is clearly faster in FP32.
    """
    seconds = measure(spec, batch)
    known = {name: seconds[f"{name} int8"] for name in INT8 if f"{name} int8" in seconds}
    if not int8 or not known:
        known = {name: seconds[name] for name in FP32 if name in seconds}
    best = min(known, key=lambda name: known[name])
    if EAGER in known and known[best] > MARGIN * known[EAGER]:
        return EAGER
    return best
