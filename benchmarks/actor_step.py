"""One action of a compressed actor, against eager PyTorch with autograd on, as ActorQ ran it.

Weights are random, as speed does not depend on them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import Benchmark, Row, Value, interleaved, times
from vinoreward_actors.compression.chain import CompressionContext
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.policies.backends.base import compile_blob, make_backend
from vinoreward_actors.policies.policy import Policy, random_policy
from vinoreward_actors.policies.spec import PolicySpec, mlp
from vinoreward_actors.tasks.networks import network

TURN_SECONDS = 0.02
"""Of one candidate in one round: long beside the clock's steps, short beside a neighbour's load."""
WIDE = mlp(24, 6, head="tanh", hidden=(2048,) * 3, activation="tanh")
NARROW = mlp(24, 6, head="tanh", hidden=(256,) * 2)


@dataclass(frozen=True)
class Arm:
    """One candidate; times are for each of the ``batch`` environments of an actor."""

    spec: PolicySpec
    backend: str
    precision: str = "fp32"
    batch: int = 1


def halved(spec: PolicySpec) -> PolicySpec:
    """Return a network with half the neurons and channels in every layer but the head: pruned."""
    context = CompressionContext(random_policy(spec, 0), observations(spec, 8, 0))
    return Prune(0.5).compress(random_policy(spec, 0), context).spec


def observations(spec: PolicySpec, count: int, seed: int) -> npt.NDArray[Any]:
    """Return random observations (count, \\*shape)."""
    random = np.random.default_rng(seed)
    shape = (count, *spec.observation_shape)
    if spec.observation_dtype == "uint8":
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.standard_normal(shape).astype(np.float32)


def policy_for(arm: Arm, seed: int) -> Policy:
    """Return random weights in an arm's precision, every layer, prepared for its backend."""
    policy = random_policy(arm.spec, seed).replace(backend=arm.backend)
    if arm.precision != "fp32":
        context = CompressionContext(policy, observations(arm.spec, 32, seed))
        policy = Quantize(arm.precision, first=True, head=True).compress(policy, context)
    return policy.replace(blob=compile_blob(policy, arm.batch))


def groups() -> dict[str, tuple[PolicySpec, dict[str, Arm]]]:
    """Return each network's spec, and what is compared with it in eager PyTorch."""
    atari = network("pong", "original")
    wide = {
        "openvino fp32": Arm(WIDE, "openvino"),
        "openvino fp16": Arm(WIDE, "openvino", "fp16"),
        "openvino int8": Arm(WIDE, "openvino", "int8"),
        "onnxruntime int8": Arm(WIDE, "onnxruntime", "int8"),
        "pruned by half, int8": Arm(halved(WIDE), "openvino", "int8"),
        "eight environments, fp32": Arm(WIDE, "openvino", batch=8),
        "eight environments, int8": Arm(WIDE, "openvino", "int8", 8),
    }
    narrow = {
        "openvino fp32": Arm(NARROW, "openvino"),
        "onnxruntime fp32": Arm(NARROW, "onnxruntime"),
        "openvino int8": Arm(NARROW, "openvino", "int8"),
    }
    images = {
        "openvino int8": Arm(atari, "openvino", "int8"),
        "Net3, int8": Arm(network("pong", "net3"), "openvino", "int8"),
    }
    return {"3×2048": (WIDE, wide), "2×256": (NARROW, narrow), "Atari Original": (atari, images)}


TARGETS = {
    ("3×2048", "openvino int8"): "≥5×",
    ("3×2048", "pruned by half, int8"): "≥15×",
    ("2×256", "onnxruntime fp32"): "≥4×",
    ("Atari Original", "openvino int8"): "≥4.5×",
    ("Atari Original", "Net3, int8"): "≥20×",
}
ROWS = {
    f"actor step {name} {arm}": Row(
        f"one action, {name}, against eager PyTorch: {arm}", TARGETS.get((name, arm), "")
    )
    for name, (_, arms) in groups().items()
    for arm in arms
} | {
    f"actor step AVX2 {arm}": Row(f"one action, 3×2048, oneDNN limited to AVX2: {arm}")
    for arm in groups()["3×2048"][1]
}
LIMIT = "ONEDNN_MAX_CPU_ISA"
"""oneDNN reads it when a process starts: PyTorch and OpenVINO use it, ONNX Runtime does not."""


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Time each network's candidates in turns."""
    limited = options.isa == "avx2"
    if limited and os.environ.get(LIMIT) != "AVX2":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, LIMIT: "AVX2"})
    for name, (spec, arms) in groups().items():
        if limited and name != "3×2048":
            continue
        every = {"eager": Arm(spec, "torch"), **arms}
        with contextlib.ExitStack() as stack:
            calls: dict[str, Callable[[], object]] = {}
            for label, arm in every.items():
                backend = stack.enter_context(make_backend(arm.backend, arm.batch))
                backend.refresh(policy_for(arm, options.seed))
                seen = observations(arm.spec, arm.batch, options.seed)
                calls[label] = functools.partial(backend.infer, seen)
            once = interleaved(calls, rounds=3, calls=5, warm_up=5)
            count = {
                label: int(TURN_SECONDS / max(float(np.median(timing.cpu)), 1e-6)) + 1
                for label, timing in once.items()
            }
            random = np.random.default_rng(options.seed)
            taken = interleaved(calls, rounds=options.rounds, calls=count, warm_up=0, random=random)
        for label, arm in arms.items():
            row = f"actor step {'AVX2' if limited else name} {label}"
            yield row, times(taken["eager"], taken[label] / arm.batch)


BENCH = Benchmark("Compressed actors", ROWS, measure, isa=("native", "avx2"), rounds=20, seed=0)

if __name__ == "__main__":
    sys.exit(BENCH.main())
