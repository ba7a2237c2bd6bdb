"""One training of a bench row, and what it says of itself.

Every training is a preset of ``vinoreward actors``, so that each can be repeated by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vinoreward.actor_learner.acting.evaluation import FIRST_SEED, Evaluator
from vinoreward.actor_learner.acting.profile import Breakdown
from vinoreward.actor_learner.trainer import Progress
from vinoreward.errors import ConfigError
from vinoreward_training.actors.build import build, evaluation_environment
from vinoreward_training.actors.resolve import resolve
from vinoreward_training.actors.run import FINAL_SEED, make
from vinoreward_training.actors.watcher import difference
from vinoreward_training.configs.actors import ActorsConfig

EAGER, COMPILED, INT8 = "eager fp32", "openvino fp32", "openvino int8"
MANY = "openvino fp32, 8 environments"
PRESETS = {EAGER: "fp32", COMPILED: "fp32-compiled", INT8: "int8", MANY: "fp32-8-environments"}
"""What presets with an arm are called."""
WINDOW = 20
"""Episodes whose mean return decides that a training has arrived."""


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


def train(arm: str, config: ActorsConfig, *, greedy: bool = False) -> Trained:
    """Train until the target is reached, or for all steps.

    Args:
        arm: which.
        config: settled; with a target or without.
        greedy: the target is for the learner's policy, without exploration, in an evaluation every
            ``evaluate_every`` steps, whose time does not count. Otherwise it is for the mean of the
            actors' last episodes.

    Raises:
        ConfigError: too few steps for a single update.
        EngineError: no actor can be kept running.
    """
    # Evaluations beside the training would take part of its processors, which are timed.
    parts = build(dataclasses.replace(config, evaluate_every=0))
    trainer = make(config, parts, None)
    began: list[float] = []
    reached: list[float] = []
    evaluating = 0.0
    evaluated_at = 0
    warm: list[tuple[float, int, Breakdown]] = []

    def watch(progress: Progress) -> bool:
        now = time.monotonic()
        if not began:
            # Starting processes and importing torch is no part of what is compared.
            began.append(now)
        share = progress.metrics.get("compressed_share", 0.0)
        if not warm and (parts.chain is None or share > 0.5):
            warm.append((now, progress.steps, trainer.profile()[0]))
        if config.target is not None and arrived(progress, config.target):
            reached.append(now)
        return bool(reached)

    def arrived(progress: Progress, target: float) -> bool:
        nonlocal evaluating, evaluated_at
        if not greedy:
            recent = trainer.recent_returns[-WINDOW:]
            return len(recent) == WINDOW and statistics.fmean(recent) >= target
        if progress.steps - evaluated_at < config.evaluate_every:
            return False
        evaluated_at, start = progress.steps, time.monotonic()
        seeds = range(FIRST_SEED, FIRST_SEED + config.evaluation_episodes)
        played = evaluator.play(parts.learner.policy(0), seeds, "openvino")
        if played.mean >= target:
            return True
        evaluating += time.monotonic() - start
        return False

    evaluator = Evaluator(evaluation_environment(config), "openvino")
    try:
        summary = trainer.learn(config.steps, watch)
        if not began:
            raise ConfigError(
                f"{arm} on {config.task} learned nothing in {config.steps} steps. Expected enough "
                "for a first update; give it more steps."
            )
        ended = (reached[0] if reached else time.monotonic()) - evaluating
        seeds = range(FINAL_SEED + config.seed, FINAL_SEED + config.seed + config.final_episodes)
        played = evaluator.play(parts.learner.policy(0), seeds, "openvino")
    finally:
        evaluator.close()
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
        f"{one.learner_ms:.2f}, together {one.step_ms:.2f} ms per step"
    )
