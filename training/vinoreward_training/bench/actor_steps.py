"""Bench rows about compressed actors: a step, new weights, whole actor steps, bits on the wire.

Weights are random, as speed does not depend on them. All candidates take their turns in one
process, so whatever else the machine does slows all of them and the ratios stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import MissingExtraError
from vinoreward_actors.actor_learner.acting.environments import Environments, EnvironmentSpec
from vinoreward_actors.compression.chain import CompressionContext
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.policies.backends.base import PolicyBackend, compile_blob, make_backend
from vinoreward_actors.policies.distributions import Exploration, act
from vinoreward_actors.policies.policy import Policy, random_policy
from vinoreward_actors.policies.spec import PolicySpec, mlp
from vinoreward_actors.policies.wire import encode
from vinoreward_actors.tasks.lookup import ACTORQ, find_task
from vinoreward_actors.tasks.networks import network
from vinoreward_training.bench.rows import Row, interleaved, median_row, speed_row, turns
from vinoreward_training.configs import BenchConfig

TURN_SECONDS = 0.02
"""Of one candidate in one round: long beside the clock's steps, short beside a neighbour's load."""
BITS = (32, 16, 8, 6, 4, 3, 2)
BACKENDS = ("openvino", "onnxruntime")
MANY = 8
"""Environments of one actor, where batching is compared with compressing."""
REFRESH_FP32_MS, REFRESH_INT8_MS = 1.0, 60.0
TASK_TIMES = 2.3
PONG_TIMES = 4.13
"""AcceRL's best, of the actor alone."""
WIDE = mlp(24, 6, head="tanh", hidden=(2048,) * 3, activation="tanh")
NARROW = mlp(24, 6, head="tanh", hidden=(256,) * 2)


@dataclass(frozen=True)
class Arm:
    """One candidate."""

    network: str
    """Its name, for the table."""
    spec: PolicySpec
    backend: str
    precision: str = "fp32"
    """``"fp32"`` or one of :class:`~vinoreward_actors.compression.quantize.Quantize`'s."""
    batch: int = 1
    """Environments of one actor; times are per environment's step."""
    target: float | None = None
    """How many times faster than the baseline it should be, or milliseconds that new weights may
    take; None informs only."""

    @property
    def label(self) -> str:
        """What is compared, in words."""
        return f"{self.network} {self.precision}, {self.backend}, batch {self.batch}"


def eager(network: str, spec: PolicySpec) -> Arm:
    """Return the baseline: PyTorch, uncompiled, autograd on, one observation, as ActorQ ran it.

    Like every arm's, its time includes the checks of observations and outputs, 2 us a call.
    """
    return Arm(network, spec, "torch")


def observations(arm: Arm, seed: int) -> npt.NDArray[Any]:
    """Return random observations (batch, \\*shape) of an arm's spec."""
    random = np.random.default_rng(seed)
    shape = (arm.batch, *arm.spec.observation_shape)
    if arm.spec.observation_dtype == "uint8":
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.standard_normal(shape).astype(np.float32)


def policy_for(arm: Arm, seed: int) -> Policy:
    """Return random weights in an arm's precision, every layer, prepared for its backend."""
    policy = random_policy(arm.spec, seed).replace(backend=arm.backend)
    if arm.precision != "fp32":
        context = CompressionContext(policy, observations(dataclasses.replace(arm, batch=32), seed))
        policy = Quantize(arm.precision, first=True, head=True).compress(policy, context)
    return policy.replace(blob=compile_blob(policy, arm.batch))


def halved(spec: PolicySpec) -> PolicySpec:
    """Return a network with half the neurons and channels in every layer but the head: pruned."""
    policy = random_policy(spec, 0)
    seen = observations(Arm("", spec, "numpy", batch=8), 0)
    return Prune(0.5).compress(policy, CompressionContext(policy, seen)).spec


def actor_step_rows(config: BenchConfig) -> list[Row]:
    """Time one action of every network, backend and precision against eager PyTorch."""
    original, net3 = network("pong", "original"), network("pong", "net3")
    pruned = Arm("3x2048 pruned by half", halved(WIDE), "openvino", "int8", target=15.0)
    smaller = Arm("Atari net3", net3, "openvino", "int8", target=20.0)
    rows: list[Row] = []
    for name, spec, targets, more in (
        ("3x2048", WIDE, {"openvino int8": 5.0}, [pruned]),
        ("2x256", NARROW, {"onnxruntime fp32": 4.0}, []),
        ("Atari Original", original, {"openvino int8": 4.5}, [smaller]),
    ):
        arms = [
            # Only the papers' setting, one environment, has a figure to reach.
            Arm(name, spec, backend, precision, batch, target if batch == 1 else None)
            for batch in (1, MANY)
            for backend in BACKENDS
            for precision in ("fp32", "int8")
            for target in [targets.get(f"{backend} {precision}")]
        ]
        baseline = eager(name, spec)
        rows += step_rows(baseline, [*arms, *more], rounds=config.rounds, seed=config.seed)
    return rows


def step_rows(baseline: Arm, arms: Sequence[Arm], *, rounds: int = 15, seed: int = 0) -> list[Row]:
    """Compare arms, of other networks too, with a baseline; ratios are per environment's step."""
    every = [baseline, *arms]
    with contextlib.ExitStack() as stack:
        calls: dict[str, Callable[[], object]] = {}
        for number, arm in enumerate(every):
            backend = stack.enter_context(make_backend(arm.backend, arm.batch))
            backend.refresh(policy_for(arm, seed))
            calls[str(number)] = functools.partial(backend.infer, observations(arm, seed))
        # How many calls a turn holds; the first ones, that fill caches, do not count.
        once = interleaved(calls, rounds=3, calls=5, warm_up=5)
        count = {
            name: int(TURN_SECONDS * 1e3 / max(timing.median_ms(), 1e-3)) + 1
            for name, timing in once.items()
        }
        random = np.random.default_rng(seed)
        times = interleaved(calls, rounds=rounds, calls=count, warm_up=0, random=random)
    first, *others = (timing / arm.batch for timing, arm in zip(times.values(), every, strict=True))
    names = [f"{arm.label} against {baseline.label}" for arm in arms]
    return [
        speed_row("actor-step", name, first, timing, at_least=arm.target)
        for name, arm, timing in zip(names, arms, others, strict=True)
    ]


def actor_refresh_rows(config: BenchConfig) -> list[Row]:
    """Time new weights until they act: swapped in place, or compiled in advance."""
    arms = [
        Arm("3x2048", WIDE, "openvino", "fp32", target=REFRESH_FP32_MS),
        Arm("3x2048", WIDE, "openvino", "int8", target=REFRESH_INT8_MS),
    ]
    return refresh_rows(arms, rounds=config.rounds, seed=config.seed)


def refresh_rows(arms: Sequence[Arm], *, rounds: int = 15, seed: int = 0) -> list[Row]:
    """Measure what new weights cost: the refresh, and what it adds to the first action after it.

    Two sets of weights take turns, so the first action finds the new ones out of the caches.
    """
    samples: list[list[tuple[float, float, float]]] = [[] for _ in arms]
    order = list(turns(map(str, range(len(arms))), rounds, np.random.default_rng(seed)))
    with contextlib.ExitStack() as stack:
        made = []
        for arm in arms:
            backend = stack.enter_context(make_backend(arm.backend, arm.batch))
            pair = (policy_for(arm, seed), policy_for(arm, seed + 1))
            made.append((backend, pair, observations(arm, seed)))
            _refreshed(backend, pair[1], made[-1][2])
        for number, at in order:
            backend, pair, seen = made[int(at)]
            samples[int(at)].append(_refreshed(backend, pair[number % 2], seen))
    parts = ("refresh_ms_cpu", "first_action_ms_cpu", "later_action_ms_cpu")
    return [
        median_row(
            "actor-refresh",
            f"{arm.label}: new weights to the first action, beyond an ordinary action",
            [refresh + first - later for refresh, first, later in taken],
            "refreshes",
            unit="ms",
            target="" if arm.target is None else f"< {arm.target:g} ms",
            details=dict(zip(parts, np.median(taken, axis=0).tolist(), strict=True)),
        )
        for arm, taken in zip(arms, samples, strict=True)
    ]


def _refreshed(
    backend: PolicyBackend, policy: Policy, seen: npt.NDArray[Any]
) -> tuple[float, float, float]:
    """Return milliseconds of processor time: of the refresh, the first action, and a later one."""
    times = [time.process_time()]
    backend.refresh(policy)
    times.append(time.process_time())
    for _ in range(6):
        backend.infer(seen)
        times.append(time.process_time())
    refresh, first, *later = np.diff(times) * 1e3
    return float(refresh), float(first), statistics.median(later)


def actor_tasks_rows(config: BenchConfig) -> list[Row]:
    """Time whole actor steps (act and step): ActorQ's eleven tasks with 3x2048, and Pong."""
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
    target = PONG_TIMES if name == "pong" else TASK_TIMES
    arms = {
        "eager": eager(name, spec),
        "openvino fp32": Arm(name, spec, "openvino"),
        "openvino int8": Arm(name, spec, "openvino", "int8", target=target),
        f"openvino fp32, {MANY} environments": Arm(name, spec, "openvino", batch=MANY),
    }
    if name == "pong":
        arms["Net3, openvino int8"] = Arm(name, network(name, "net3"), "openvino", "int8")
    return arms


def _task(config: BenchConfig, name: str, of_what: str) -> list[Row]:
    arms = task_arms(name, of_what)
    with contextlib.ExitStack() as stack:
        steps = {label: _acting(stack, name, arm, config.seed) for label, arm in arms.items()}
        # A real actor's process runs one network and one environment, and nothing else.
        whole = interleaved(steps, rounds=config.rounds, calls=20, warm_up=20, settle=20)
    times = {label: timing / arms[label].batch for label, timing in whole.items()}
    slow = times.pop("eager")
    return [
        speed_row(
            "actor-tasks",
            f"{name}, {of_what}, act and step, per environment step: {label} against eager PyTorch "
            "with one environment",
            slow,
            timing,
            at_least=arms[label].target,
            note=f"{slow.median_ms():.2f} and {timing.median_ms():.2f} ms of processor time per "
            "step; weights are random, nothing was trained",
        )
        for label, timing in times.items()
    ]


def _acting(stack: contextlib.ExitStack, name: str, arm: Arm, seed: int) -> Callable[[], object]:
    """Return one actor's loop without a learner: act on a batch, step, reset where one ended."""
    made = EnvironmentSpec("vinoreward_actors.tasks.lookup:make_task", {"name": name})
    environments = Environments(made, arm.spec, arm.batch, seed)
    stack.callback(environments.close)
    backend = stack.enter_context(make_backend(arm.backend, arm.batch))
    backend.refresh(policy_for(arm, seed))
    random = np.random.default_rng(seed)
    exploration = Exploration(sigma=0.1 if arm.spec.head == "tanh" else 0.0)

    def step() -> None:
        outputs = backend.infer(environments.observations)
        environments.step(act(arm.spec, outputs, random, exploration).actions)

    return step


def actor_wire_rows(config: BenchConfig, bits: Sequence[int] = BITS) -> list[Row]:
    """Count the bytes of a push of 3x2048 at every number of bits."""
    policy = random_policy(WIDE, config.seed)
    whole = encode(policy).nbytes
    sizes = {count: encode(policy, bits=count).nbytes for count in bits}
    return [
        Row(
            "actor-wire",
            f"a push of 3x2048 with {count} bits per weight, header included",
            size / 1e6,
            "MB",
            note=f"{size / whole:.3f} of the float32 push; {count / 32:.3f} without scales, biases "
            "and header",
        )
        for count, size in sizes.items()
    ]
