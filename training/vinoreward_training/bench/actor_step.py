"""How long an actor's step takes, and how long until new weights act: paired, by processor time.

All candidates take their turns in one process, in an order drawn anew for every round, so whatever
else the machine does slows all of them and the ratios stay.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward.policies.backends.base import PolicyBackend
from vinoreward.policies.backends.registry import compile_blob, make_backend
from vinoreward.policies.policy import (
    ActivationRange,
    Parameter,
    Policy,
    quantize_array,
    random_policy,
)
from vinoreward.policies.reference import layer_inputs
from vinoreward.policies.spec import Conv, Dense, Layer, PolicySpec
from vinoreward.policies.wire import lowered
from vinoreward_training.bench.rows import Row, Timing, interleaved, quartiles, speed_row

TURN_SECONDS = 0.02
"""Of one candidate in one round: long beside the clock's steps, short beside a neighbour's load."""
_BITS = {"fp32": 32, "fp16": 16, **{f"w{bits}": bits for bits in range(2, 9)}}
PRECISIONS = ("int8", *_BITS)
"""``"int8"``: weights and inputs; ``"w8"`` to ``"w2"``: weights alone."""


@dataclass(frozen=True)
class Arm:
    """One candidate.

    Attributes:
        network: its name, for the table.
        spec: its layers.
        backend: what runs it.
        precision: one of :data:`PRECISIONS`.
        batch: environments of one actor; times are per environment's step.
        target: how many times faster than the baseline it should be; None informs only.
        blob: whether weights come with the backend's prepared form, as from the compressor.
    """

    network: str
    spec: PolicySpec
    backend: str
    precision: str = "fp32"
    batch: int = 1
    target: float | None = None
    blob: bool = True

    @property
    def label(self) -> str:
        """What is compared, in words."""
        return f"{self.network} {self.precision}, {self.backend}, batch {self.batch}"


def eager(network: str, spec: PolicySpec) -> Arm:
    """Return the baseline: PyTorch, uncompiled, autograd on, one observation, as ActorQ ran it.

    The checks of observations and outputs are in its time as in every other arm's: 2 us a call.
    """
    return Arm(network, spec, "torch")


def step_rows(
    baseline: Arm, arms: Sequence[Arm], *, rounds: int = 15, seed: int = 0, name: str = "actor-step"
) -> list[Row]:
    """Compare arms with a baseline; the ratios are per environment's step.

    Args:
        baseline: usually :func:`eager` of the full network.
        arms: may be of other networks (pruned ones, say).
        rounds: turns of each.
        seed: of weights, observations and the order of the turns.
        name: of the rows.

    Raises:
        ConfigError: no rounds, no arms, or an unknown precision or backend.
        MissingExtraError: a backend's library is not installed.
    """
    every = [baseline, *arms]
    with contextlib.ExitStack() as stack:
        calls = [_ready(stack, arm, seed) for arm in every]
        times = _in_random_order(calls, rounds, np.random.default_rng(seed))
    per_step = [timing / arm.batch for timing, arm in zip(times, every, strict=True)]
    return [
        speed_row(
            name,
            f"{arm.label} against {baseline.label}",
            per_step[0],
            timing,
            at_least=arm.target,
        )
        for arm, timing in zip(arms, per_step[1:], strict=True)
    ]


def refresh_rows(
    arms: Sequence[tuple[Arm, float | None]],
    *,
    rounds: int = 15,
    seed: int = 0,
    name: str = "weight-refresh",
) -> list[Row]:
    """Measure what new weights cost: the refresh, and what it adds to the first action after it.

    Two sets of weights take turns, so the first action finds the new ones out of the caches.

    Args:
        arms: each with the milliseconds of processor time that it may take, if there is a limit.
        rounds: refreshes of each.
        seed: of weights, observations and order.
        name: of the rows.

    Raises:
        ConfigError: no rounds, or an unknown precision or backend.
        MissingExtraError: a backend's library is not installed.
    """
    if rounds < 1:
        raise ConfigError(f"{rounds} rounds. Expected at least one.")
    random = np.random.default_rng(seed)
    spent: list[list[tuple[float, float, float]]] = [[] for _ in arms]
    with contextlib.ExitStack() as stack:
        made = []
        for arm, _ in arms:
            backend = stack.enter_context(make_backend(arm.backend, arm.batch))
            pair = (policy_for(arm, seed), policy_for(arm, seed + 1))
            made.append((backend, pair, observations(arm, seed)))
        for number in range(-1, rounds):
            for index in random.permutation(len(arms)):
                backend, pair, seen = made[index]
                found = _refreshed(backend, pair[number % 2], seen)
                if number >= 0:
                    spent[index].append(found)
    return [
        _refresh_row(name, arm, limit, samples)
        for (arm, limit), samples in zip(arms, spent, strict=True)
    ]


def _refreshed(
    backend: PolicyBackend, policy: Policy, seen: npt.NDArray[Any]
) -> tuple[float, float, float]:
    """Return milliseconds of processor time: of the refresh, the first action, and a later one."""
    start = time.process_time()
    backend.refresh(policy)
    loaded = time.process_time()
    backend.infer(seen)
    acted = time.process_time()
    later = []
    for _ in range(5):
        before = time.process_time()
        backend.infer(seen)
        later.append(time.process_time() - before)
    return (loaded - start) * 1e3, (acted - loaded) * 1e3, statistics.median(later) * 1e3


def _refresh_row(
    name: str, arm: Arm, limit: float | None, samples: Sequence[tuple[float, float, float]]
) -> Row:
    refresh, first, later = (list(part) for part in zip(*samples, strict=True))
    added = [a + b - c for a, b, c in samples]
    low, middle, high = quartiles(added)
    return Row(
        name=name,
        what=f"{arm.label}: new weights to the first action, beyond an ordinary action",
        value=middle,
        unit="ms",
        low=low,
        high=high,
        spread=f"quartiles of {len(samples)} refreshes",
        target="" if limit is None else f"< {limit:g} ms",
        met=None if limit is None else middle < limit,
        details={
            "refresh_ms_cpu": statistics.median(refresh),
            "first_action_ms_cpu": statistics.median(first),
            "later_action_ms_cpu": statistics.median(later),
        },
    )


def policy_for(arm: Arm, seed: int) -> Policy:
    """Return random weights in an arm's precision, with its backend's blob.

    Ranges are those that the layers' inputs have on random observations: speed does not depend on
    them.

    Raises:
        ConfigError: an unknown precision or backend.
    """
    policy = random_policy(arm.spec, seed).replace(backend=arm.backend)
    if arm.precision == "int8":
        policy = _in_int8(policy, observations(dataclasses.replace(arm, batch=32), seed))
    elif arm.precision in _BITS:
        policy = lowered(policy, _BITS[arm.precision])
    else:
        raise ConfigError(
            f"no precision {arm.precision!r}. Expected one of {', '.join(PRECISIONS)}."
        )
    return policy.replace(blob=compile_blob(policy, arm.batch)) if arm.blob else policy


def _in_int8(policy: Policy, seen: npt.NDArray[Any]) -> Policy:
    parameters: dict[str, Parameter] = dict(policy.parameters)
    floats, ranges = policy.float_parameters(), {}
    for layer, values in layer_inputs(policy, seen).items():
        parameters[f"{layer}.weight"] = quantize_array(floats[f"{layer}.weight"])
        ranges[layer] = ActivationRange(min(0.0, float(values.min())), float(values.max()))
    return policy.replace(parameters=parameters, ranges=ranges)


def observations(arm: Arm, seed: int) -> npt.NDArray[Any]:
    """Return random observations (batch, \\*shape) of an arm's spec."""
    random = np.random.default_rng(seed)
    shape = (arm.batch, *arm.spec.observation_shape)
    if arm.spec.observation_dtype == "uint8":
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.standard_normal(shape).astype(np.float32)


def halved(spec: PolicySpec) -> PolicySpec:
    """Return a network with half the neurons and channels in every layer but the head: pruned."""
    layers: list[Layer] = []
    shapes = spec.shapes()
    kept = spec.observation_shape[0]
    for index, layer in enumerate(spec.layers):
        if not isinstance(layer, Dense | Conv):
            # Each channel left takes its whole picture along.
            kept *= int(np.prod(shapes[index][1:]))
            layers.append(layer)
            continue
        last = index == len(spec.layers) - 1
        outputs = layer.outputs if last else max(1, layer.outputs // 2)
        layers.append(dataclasses.replace(layer, inputs=kept, outputs=outputs))
        kept = outputs
    value = spec.value
    if value is not None:
        value = dataclasses.replace(value, inputs=max(1, value.inputs // 2))
    return dataclasses.replace(spec, layers=tuple(layers), value=value)


def _ready(stack: contextlib.ExitStack, arm: Arm, seed: int) -> Callable[[], object]:
    backend = stack.enter_context(make_backend(arm.backend, arm.batch))
    backend.refresh(policy_for(arm, seed))
    seen = observations(arm, seed)
    return lambda: backend.infer(seen)


def _in_random_order(
    calls: Sequence[Callable[[], object]], rounds: int, random: np.random.Generator
) -> list[Timing]:
    candidates = {str(number): call for number, call in enumerate(calls)}
    # How many calls a turn holds; the first ones, that fill caches, do not count.
    once = interleaved(candidates, rounds=3, calls=5, warm_up=5)
    count = {
        name: int(TURN_SECONDS * 1e3 / max(timing.median_ms(), 1e-3)) + 1
        for name, timing in once.items()
    }
    times = interleaved(candidates, rounds=rounds, calls=count, warm_up=0, random=random)
    return list(times.values())
