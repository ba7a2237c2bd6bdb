"""The fastest backend for a network, by measuring all of them on this machine.

Which one is fastest depends on processor and network: with VNNI OpenVINO's INT8 is, without it
often ONNX Runtime's, and for small networks neither gains from INT8.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.errors import ConfigError, MissingExtraError, RunFolderError
from vinoreward.files import cache_folder, read_json, write_json
from vinoreward_actors.policies.backends.base import PolicyBackend, make_backend
from vinoreward_actors.policies.policy import (
    ActivationRange,
    Policy,
    layer_inputs,
    quantize_array,
    random_policy,
)
from vinoreward_actors.policies.spec import PolicySpec

AUTO = "auto"
EAGER = "torch"
FP32 = ("openvino", "onnxruntime", EAGER)
INT8 = ("openvino", "onnxruntime")
SECONDS = 1.0
"""Of measuring calls, in all."""
REFRESHES = 3
MARGIN = 0.95
"""A candidate is chosen over eager PyTorch from this fraction of its time down."""
ROWS = 128
"""Observations that INT8 ranges are measured on."""


@dataclass(frozen=True)
class Cost:
    """Median wall seconds that a backend takes for a network."""

    call: float
    """For a batch of observations."""
    refresh: float
    """To take over new weights, with their quantization."""

    def per_call(self, calls: float) -> float:
        """Return the seconds of a call, with new weights every so many calls."""
        return self.call + self.refresh / calls


def measure(spec: PolicySpec, batch: int) -> Mapping[str, Cost]:
    """Return what each way to compute a network costs, such as ``"openvino int8"``.

    Takes about a second and the time to compile. Ways take turns, so that other load on the
    machine affects all of them alike. Leaves out backends that are not installed or cannot run the
    network. The result is kept in ``$XDG_CACHE_HOME/vinoreward/choices`` (``~/.cache``), by
    processor, versions of the backends and the network's layers.

    Args:
        spec: of the network; its weights are random.
        batch: observations per call.
    """
    known = repr((_machine(), spec.digest(), batch))
    entry = cache_folder("choices") / f"{hashlib.sha256(known.encode()).hexdigest()}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = read_json(entry)
        if kept["of"] == known:
            return {way: Cost(*map(float, numbers)) for way, numbers in kept["seconds"].items()}
    costs = _measured(spec, batch)
    with contextlib.suppress(RunFolderError):
        seconds = {way: astuple(cost) for way, cost in costs.items()}
        write_json(entry, {"of": known, "seconds": seconds})
    return costs


def _machine() -> list[str]:
    """Return what the backends' speed depends on: processor, instructions, versions."""
    found = [platform.machine(), platform.processor(), os.environ.get("ONEDNN_MAX_CPU_ISA", "")]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        found += sorted({line for line in lines if line.startswith(("model name", "flags"))})
    for name in FP32:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return found


def _measured(spec: PolicySpec, batch: int) -> dict[str, Cost]:
    policy = random_policy(spec, 0)
    ways: list[tuple[str, Callable[[Policy], Policy]]] = [
        (name, lambda given: given) for name in FP32
    ]
    if len(spec.weighted) > 2:
        ways += [(name, quantized) for name in INT8]
    seen = np.zeros((batch, *spec.observation_shape), dtype=spec.observation_dtype)
    calls: dict[str, Callable[[], Any]] = {}
    refreshes: dict[str, Callable[[], Any]] = {}
    with contextlib.ExitStack() as stack:
        for name, prepared in ways:
            with contextlib.suppress(MissingExtraError, ConfigError):
                backend = stack.enter_context(make_backend(name, batch))
                backend.refresh(prepared(policy))
                way = f"{name} {'int8' if prepared is quantized else 'fp32'}"
                refreshes[way] = functools.partial(_refresh, backend, prepared, policy)
                calls[way] = functools.partial(backend.infer, seen)
        refresh = _medians(refreshes, range(REFRESHES))
        until = time.perf_counter() + SECONDS
        call = _medians(
            calls, itertools.takewhile(lambda _: time.perf_counter() < until, itertools.count())
        )
    return {way: Cost(call[way], refresh[way]) for way in calls}


def _refresh(backend: PolicyBackend, prepared: Callable[[Policy], Policy], policy: Policy) -> None:
    backend.refresh(prepared(policy))


def _medians(calls: Mapping[str, Callable[[], Any]], rounds: Iterable[object]) -> dict[str, float]:
    """Return the median seconds of calls that take turns; the first one of each does not count."""
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in rounds:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}


def quantized(policy: Policy) -> Policy:
    """Return a policy with its hidden layers in INT8, for ranges that only a measurement needs."""
    names = [layer.name for layer in policy.spec.weighted[1:-1]]
    weights = {
        f"{name}.weight": quantize_array(policy.float_parameter(f"{name}.weight")) for name in names
    }
    spec = policy.spec
    rows = np.ones((ROWS, *spec.observation_shape), dtype=spec.observation_dtype)
    inputs = layer_inputs(policy, rows)
    ranges = {
        name: ActivationRange(
            min(-1.0, float(inputs[name].min())), max(1.0, float(inputs[name].max()))
        )
        for name in names
    }
    return policy.replace(parameters={**policy.parameters, **weights}, ranges=ranges)


def fastest(spec: PolicySpec, batch: int, *, int8: bool = False) -> str:
    """Return the name of the fastest backend for a network in FP32, or in INT8.

    Eager PyTorch where no other is clearly faster in FP32.
    """
    costs = measure(spec, batch)
    known = {name: costs[f"{name} int8"].call for name in INT8 if f"{name} int8" in costs}
    if not int8 or not known:
        known = {name: costs[f"{name} fp32"].call for name in FP32 if f"{name} fp32" in costs}
    best = min(known, key=lambda name: known[name])
    if EAGER in known and known[best] > MARGIN * known[EAGER]:
        return EAGER
    return best
