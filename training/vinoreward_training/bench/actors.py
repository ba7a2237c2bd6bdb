"""Bench rows about compressed actors: a step, new weights, whole actor steps, bits on the wire."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np

from vinoreward.actor_learner.acting.environments import Environments, EnvironmentSpec
from vinoreward.errors import MissingExtraError
from vinoreward.policies.backends.registry import make_backend
from vinoreward.policies.distributions import Exploration, act
from vinoreward.policies.policy import random_policy
from vinoreward.policies.spec import PolicySpec, mlp
from vinoreward.policies.wire import encode
from vinoreward_training.bench.actor_step import (
    Arm,
    eager,
    halved,
    policy_for,
    refresh_rows,
    step_rows,
)
from vinoreward_training.bench.rows import Row, interleaved, speed_row
from vinoreward_training.configs.bench import BenchConfig
from vinoreward_training.tasks.lookup import find_task
from vinoreward_training.tasks.networks import network
from vinoreward_training.tasks.table import ACTORQ

BITS = (32, 16, 8, 6, 4, 3, 2)
BACKENDS = ("openvino", "onnxruntime")
MANY = 8
"""Environments of one actor, where batching is compared with compressing."""
BATCH = f"openvino fp32, {MANY} environments"
REFRESH_FP32_MS, REFRESH_INT8_MS = 1.0, 60.0
TASK_TIMES = 2.3
PONG_TIMES = 4.13
"""AcceRL's best, of the actor alone."""


def _wide() -> PolicySpec:
    return mlp(24, 6, head="tanh", hidden=(2048,) * 3, activation="tanh")


def _narrow() -> PolicySpec:
    return mlp(24, 6, head="tanh", hidden=(256,) * 2)


def actor_step_rows(config: BenchConfig) -> list[Row]:
    """Time one action of every network, backend and precision against eager PyTorch."""
    rows: list[Row] = []
    for name, spec, targets in (
        ("3x2048", _wide(), {"openvino int8": 5.0}),
        ("2x256", _narrow(), {"onnxruntime fp32": 4.0}),
        ("Atari Original", network("pong", "original"), {"openvino int8": 4.5}),
    ):
        arms = [
            Arm(name, spec, backend, precision, batch, targets.get(f"{backend} {precision}"))
            for batch in (1, MANY)
            for backend in BACKENDS
            for precision in ("fp32", "int8")
        ]
        # Only the papers' setting, one environment, has a figure to reach.
        arms = [arm if arm.batch == 1 else dataclasses.replace(arm, target=None) for arm in arms]
        arms += _smaller(name, spec)
        if name != "Atari Original":
            arms += [Arm(name, spec, "numpy"), Arm(name, spec, "openvino", "w8")]
        arms.append(Arm(name, spec, "torch_inference"))
        rows += step_rows(
            eager(name, spec), arms, rounds=config.rounds, seed=config.seed, name="actor-step"
        )
    return rows


def _smaller(name: str, spec: PolicySpec) -> list[Arm]:
    """Return what pruning by half, or the paper's smaller networks, make of a network."""
    if name == "3x2048":
        half = halved(spec)
        return [
            Arm("3x2048 pruned by half", half, "openvino", "fp32"),
            Arm("3x2048 pruned by half", half, "openvino", "int8", target=15.0),
        ]
    if name == "Atari Original":
        found = []
        for student in ("net1", "net2", "net3"):
            layers = network("pong", student)
            found += [
                Arm(f"Atari {student}", layers, "openvino", "fp32"),
                Arm(
                    f"Atari {student}",
                    layers,
                    "openvino",
                    "int8",
                    target=20.0 if student == "net3" else None,
                ),
            ]
        return found
    return []


def actor_refresh_rows(config: BenchConfig) -> list[Row]:
    """Time new weights until they act: swapped in place, or compiled in advance."""
    wide, narrow = _wide(), _narrow()
    return refresh_rows(
        [
            (Arm("3x2048", wide, "openvino", "fp32"), REFRESH_FP32_MS),
            (Arm("3x2048", wide, "openvino", "int8"), REFRESH_INT8_MS),
            (Arm("3x2048", wide, "openvino", "int8", blob=False), None),
            (Arm("3x2048", wide, "onnxruntime", "fp32"), None),
            (Arm("3x2048", wide, "onnxruntime", "int8"), None),
            (Arm("2x256", narrow, "openvino", "fp32"), None),
            (Arm("2x256", narrow, "onnxruntime", "fp32"), None),
        ],
        rounds=config.rounds,
        seed=config.seed,
        name="actor-refresh",
    )


def actor_task_rows(config: BenchConfig) -> list[Row]:
    """Time whole actor steps (act and step): ActorQ's eleven tasks with 3x2048, and Pong.

    Beside the compressed arms stands the batch of :data:`MANY` environments, per environment step.
    """
    rows = []
    for name, of_what in (*((task.name, "3x2048") for task in ACTORQ), ("pong", "original")):
        try:
            rows += _task(config, name, of_what)
        except MissingExtraError as error:
            rows.append(Row("actor-tasks", name, None, note=str(error)))
    return rows


def task_arms(name: str, of_what: str) -> dict[str, Arm]:
    """Return what is compared on a task, by label; the first is the baseline."""
    algorithm = "impala" if find_task(name).discrete else "d4pg"
    spec = network(name, of_what, algorithm)
    arms = {
        "eager": eager(name, spec),
        "openvino fp32": Arm(name, spec, "openvino"),
        "openvino int8": Arm(name, spec, "openvino", "int8"),
        BATCH: Arm(name, spec, "openvino", batch=MANY),
    }
    if name == "pong":
        arms["Net3, openvino int8"] = Arm(name, network(name, "net3"), "openvino", "int8")
    return arms


def _task(config: BenchConfig, name: str, of_what: str) -> list[Row]:
    arms = task_arms(name, of_what)
    targets = {"openvino int8": PONG_TIMES if name == "pong" else TASK_TIMES}
    with contextlib.ExitStack() as stack:
        steps = {label: _acting(stack, name, arm, config.seed) for label, arm in arms.items()}
        # A real actor's process runs one network and one environment, and nothing else.
        found = interleaved(steps, rounds=config.rounds, calls=20, warm_up=20, settle=20)
    times = {label: timing / arms[label].batch for label, timing in found.items()}
    return [
        speed_row(
            "actor-tasks",
            f"{name}, {of_what}, act and step, per environment step: {label} against eager PyTorch "
            "with one environment",
            times["eager"],
            times[label],
            at_least=targets.get(label),
            note=f"{times['eager'].median_ms():.2f} and {times[label].median_ms():.2f} "
            "ms of processor time per step; weights are random, nothing was trained",
        )
        for label in arms
        if label != "eager"
    ]


class _Acting:
    """One actor's loop without a learner: act on a batch, step, reset where an episode ends."""

    def __init__(self, environments: Environments, arm: Arm, seed: int) -> None:
        self._environments = environments
        self._spec = arm.spec
        self._backend = make_backend(arm.backend, arm.batch)
        self._backend.refresh(policy_for(arm, seed))
        self._random = np.random.default_rng(seed)
        self._exploration = Exploration(sigma=0.1 if arm.spec.head == "tanh" else 0.0)

    def __call__(self) -> None:
        outputs = self._backend.infer(self._environments.observations)
        acted = act(self._spec, outputs, self._random, self._exploration)
        self._environments.step(acted.actions)

    def close(self) -> None:
        self._environments.close()
        self._backend.close()


def _acting(stack: contextlib.ExitStack, name: str, arm: Arm, seed: int) -> _Acting:
    made = EnvironmentSpec("vinoreward_training.tasks.lookup:make_task", {"name": name})
    found = _Acting(Environments(made, arm.spec, arm.batch, seed), arm, seed)
    stack.callback(found.close)
    return found


def wire_rows(config: BenchConfig, bits: Sequence[int] = BITS) -> list[Row]:
    """Count the bytes of a push of 3x2048 at every number of bits."""
    policy = random_policy(_wide(), config.seed)
    whole = encode(policy).nbytes
    return [
        Row(
            "actor-wire",
            f"a push of 3x2048 with {count} bits per weight, header included",
            encode(policy, bits=count).nbytes / 1e6,
            "MB",
            note=f"{encode(policy, bits=count).nbytes / whole:.3f} of the float32 push; "
            f"{count / 32:.3f} without scales, biases and header",
        )
        for count in bits
    ]
