"""Bench rows about whole trainings with compressed actors, paired by seed: time to a return, and
time per step where the samples per insert decide what limits.

Every training is a preset of ``vinoreward actors``, so that each can be repeated by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vinoreward.actor_learner.actor_learner import Progress
from vinoreward.actor_learner.profile import Breakdown
from vinoreward_training.actors_build import build, evaluation_options
from vinoreward_training.actors_evaluate import FINAL_SEED, Evaluator
from vinoreward_training.actors_resolve import resolve
from vinoreward_training.actors_run import difference, make
from vinoreward_training.actors_settings import ActorsConfig
from vinoreward_training.bench_settings import BenchConfig
from vinoreward_training.bench_statistics import Row, quartiles

TIMES = 3.0
WINDOW = 20
"""Episodes whose mean return decides that a training has arrived."""
EAGER, INT8, MANY = "eager fp32", "openvino int8", "openvino fp32, 8 environments"
PRESETS = {EAGER: "fp32", INT8: "int8", MANY: "fp32-8-environments"}
RATIOS = {1: "-spi1", 16: ""}
"""Samples per insert, and what the presets with them are called."""


@dataclass(frozen=True)
class Trained:
    """One training.

    Attributes:
        arm: which.
        seed: of everything.
        seconds: wall time from the first update, until the return was reached or, without a
            target, the steps were; None if the return was not within the steps.
        steps: environment steps until then.
        evaluated: mean return of the learner's policy, greedy, on episodes of its own.
        error: its standard error.
        profile: of the actor, once it acted with what it goes on with.
        learner_ms: of the learner, per environment step.
        step_ms: wall time per environment step, once everything was running.
        details: more to publish, as plain data.
    """

    arm: str
    seed: int
    seconds: float | None
    steps: int
    evaluated: float
    error: float
    profile: Breakdown
    learner_ms: float
    step_ms: float
    details: Mapping[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def learner_threads(count: int) -> Iterator[None]:
    """Let torch compute on so many threads in this block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def preset(name: str, seed: int, **changes: Any) -> ActorsConfig:
    """Return a preset's settings with some of them changed."""
    settled = resolve(ActorsConfig(preset=name, seed=seed, explicit=("seed",)))
    return dataclasses.replace(settled, **changes)


def train(arm: str, config: ActorsConfig) -> Trained:
    """Train until the mean return of the last episodes reaches the target, or for all steps."""
    parts = build(config)
    trainer = make(config, parts, None)
    began: list[float] = []
    reached: list[float] = []
    warm: list[tuple[float, int, Breakdown]] = []

    def watch(progress: Progress) -> bool:
        now = time.monotonic()
        if not began:
            # Starting processes and importing torch is no part of what is compared.
            began.append(now)
        share = progress.metrics.get("compressed_share", 0.0)
        if not warm and (parts.chain is None or share > 0.5):
            warm.append((now, progress.steps, trainer.profile()[0]))
        recent = trainer.recent_returns[-WINDOW:]
        enough = config.target is not None and len(recent) == WINDOW
        if enough and statistics.fmean(recent) >= (config.target or 0.0):
            reached.append(now)
        return bool(reached)

    try:
        summary = trainer.learn(config.steps, watch)
        ended = reached[0] if reached else time.monotonic()
        with Evaluator(config.task, evaluation_options(config), "openvino") as evaluator:
            seeds = range(
                FINAL_SEED + config.seed, FINAL_SEED + config.seed + config.final_episodes
            )
            played = evaluator.play(parts.learner.policy(0), seeds, "openvino")
    finally:
        parts.close()
    since, at, before = warm[0] if warm else (began[0], 0, None)
    return Trained(
        arm,
        config.seed,
        ended - began[0] if reached or config.target is None else None,
        summary.steps,
        played.mean,
        played.error,
        difference(summary.profile, before),
        summary.learner_seconds * 1e3,
        (ended - since) * 1e3 / max(1, summary.steps - at),
    )


def cartpole_rows(config: BenchConfig) -> list[Row]:
    """Train CartPole with 3x2048 and V-trace in every arm, seed by seed, the arms in turn."""
    arms = (EAGER, INT8, MANY)
    found = _paired(config, "actorq/cartpole", arms, config.seeds)
    return [
        time_row(
            "actor-cartpole", "CartPole-v0 with V-trace", found, arm, TIMES if arm == INT8 else None
        )
        for arm in arms[1:]
    ]


def classic_rows(config: BenchConfig) -> list[Row]:
    """Train Acrobot with V-trace and MountainCar with DQN: ActorQ's other tasks of Gym."""
    rows = []
    for name, what in (
        ("actorq/acrobot", "Acrobot-v1 with V-trace"),
        ("actorq/mountain-car-dqn", "MountainCar-v0 with DQN"),
    ):
        found = _paired(config, name, (EAGER, INT8), config.actor_seeds)
        rows.append(time_row("actor-classic", what, found, INT8))
    return rows


def _paired(
    config: BenchConfig, name: str, arms: Sequence[str], seeds: int
) -> dict[str, list[Trained]]:
    found: dict[str, list[Trained]] = {arm: [] for arm in arms}
    for turn in range(seeds):
        for arm in (*arms[turn % len(arms) :], *arms[: turn % len(arms)]):
            settings = preset(f"{name}-{PRESETS[arm]}", config.first_seed + turn)
            steps = min(settings.steps, config.actor_steps)
            with learner_threads(settings.threads):
                trained = train(arm, dataclasses.replace(settings, steps=steps))
            found[arm].append(trained)
            print(line(trained), flush=True)
    return found


def samples_rows(config: BenchConfig) -> list[Row]:
    """Train DQN and D4PG for a fixed number of steps, each step learned from once or 16 times."""
    rows = []
    for name, what in (
        ("actorq/cartpole-dqn", "DQN, CartPole-v0"),
        ("actorq/cartpole-balance", "D4PG, cartpole-balance"),
    ):
        for ratio, suffix in RATIOS.items():
            found: dict[str, list[Trained]] = {EAGER: [], INT8: []}
            for turn in range(config.actor_seeds):
                for arm in (EAGER, INT8) if turn % 2 == 0 else (INT8, EAGER):
                    settings = preset(
                        f"{name}-{PRESETS[arm]}{suffix}",
                        config.first_seed + turn,
                        steps=config.samples_steps,
                        actors=1,
                        target=None,
                    )
                    with learner_threads(settings.threads):
                        found[arm].append(train(arm, settings))
                    print(f"{what}, {ratio} samples per insert: {line(found[arm][-1])}", flush=True)
            rows.append(_samples_row(what, ratio, found))
    return rows


def _samples_row(what: str, ratio: int, found: Mapping[str, Sequence[Trained]]) -> Row:
    pairs = list(zip(found[EAGER], found[INT8], strict=True))
    ratios = [slow.step_ms / fast.step_ms for slow, fast in pairs]
    low, middle, high = quartiles(ratios)
    return Row(
        "actor-samples",
        f"{what}, 3x2048, one actor, {ratio} samples per insert: wall time per step, eager FP32 "
        "over INT8",
        middle,
        low=low,
        high=high,
        spread=f"quartiles of {len(ratios)} seeds",
        note=f"{bound(found[EAGER])} {bound(found[INT8])}",
        details={"ratios": ratios, "lines": [line(one) for pair in pairs for one in pair]},
    )


def bound(trained: Sequence[Trained]) -> str:
    """Say what limits an arm: the actor's own step or the learner's share of one."""
    actor = statistics.median(one.profile.step_cpu for one in trained) * 1e3
    learner = statistics.median(one.learner_ms for one in trained)
    took = statistics.median(one.step_ms for one in trained)
    which = "the actor" if actor > learner else "the learner"
    return (
        f"{trained[0].arm}: {took:.2f} ms per step, of an actor's {actor:.2f} and a learner's "
        f"{learner:.2f}: {which} limits."
    )


def line(one: Trained) -> str:
    """Return a training in words."""
    when = "not reached" if one.seconds is None else f"{one.seconds:.1f} s"
    return (
        f"{one.arm}, seed {one.seed}: {when} after {one.steps} steps; greedy {one.evaluated:.0f} "
        f"± {one.error:.0f}; actor step {one.profile.step_cpu * 1e3:.2f} ms, learner "
        f"{one.learner_ms:.2f} ms per step"
    )


def time_row(
    name: str,
    what: str,
    found: Mapping[str, Sequence[Trained]],
    arm: str,
    times: float | None = None,
) -> Row:
    """Return the ratio of times to a return: the median of pairs of one seed.

    Args:
        name: of the row.
        what: was trained.
        found: the trainings of each arm, by seed.
        arm: that is compared with eager PyTorch.
        times: the ratio to reach, None for none.
    """
    pairs = list(zip(found[EAGER], found[arm], strict=True))
    ratios = [
        slow.seconds / fast.seconds
        for slow, fast in pairs
        if slow.seconds is not None and fast.seconds is not None
    ]
    what = f"{what} to its threshold, 3x2048, one actor: wall time, eager FP32 over {arm}"
    lines = "; ".join(line(one) for pair in pairs for one in pair)
    if len(ratios) < len(pairs):
        missing = f"{len(pairs) - len(ratios)} of {len(pairs)} pairs did not arrive. {lines}"
        met = False if times is not None else None
        return Row(name, what, None, note=missing, met=met)
    low, middle, high = quartiles(ratios)
    return Row(
        name,
        what,
        middle,
        low=low,
        high=high,
        spread=f"quartiles of {len(ratios)} seeds",
        target="" if times is None else f">= {times:g} x",
        met=None if times is None else middle >= times,
        note=lines,
        details={"ratios": ratios},
    )
