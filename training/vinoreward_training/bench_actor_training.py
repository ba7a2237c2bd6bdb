"""Bench rows about whole trainings with compressed actors: time to a return, paired by seed."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vinoreward.actor_learner.actor_learner import ActorLearner, ActorLearnerConfig, Progress
from vinoreward.actor_learner.environments import Environments, EnvironmentSpec
from vinoreward.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward.actor_learner.profile import Breakdown
from vinoreward.compression.chain import CompressorChain
from vinoreward.compression.compile import Compile
from vinoreward.compression.quantize import Quantize
from vinoreward.correction import VTrace
from vinoreward.policies.distributions import Exploration, act
from vinoreward.policies.policy import Policy
from vinoreward.policies.reference import forward
from vinoreward_training.actor_networks import network
from vinoreward_training.actor_tasks import find_task
from vinoreward_training.bench_settings import BenchConfig
from vinoreward_training.bench_statistics import Row, quartiles

TASK = "CartPole-v0"
TIMES = 3.0
WINDOW = 20
"""Episodes whose mean return decides that a training has arrived."""
EVALUATION_EPISODES = 20
ARMS = ("eager fp32", "openvino int8", "openvino fp32, 8 environments")


@dataclass(frozen=True)
class Trained:
    """One training.

    Attributes:
        arm: which.
        seed: of everything.
        seconds: wall time until the return was reached, from the first update on; None if it was
            not within the steps.
        steps: environment steps until then.
        evaluated: mean return of the learner's policy, greedy, on episodes of its own.
        profile: of the actor.
        learner_ms: of an update, per environment step.
    """

    arm: str
    seed: int
    seconds: float | None
    steps: int
    evaluated: float
    profile: Breakdown
    learner_ms: float


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


def returns(policy: Policy, episodes: int, seed: int, task: str = TASK) -> list[float]:
    """Return the returns of a policy's greedy episodes."""
    spec = EnvironmentSpec("vinoreward_training.actor_tasks:make_task", {"name": task})
    environments = Environments(spec, policy.spec, episodes, seed)
    found: dict[int, float] = {}
    greedy, random = Exploration(greedy=True), np.random.default_rng(0)
    try:
        while len(found) < episodes:
            outputs = forward(policy, environments.observations)
            stepped = environments.step(act(policy.spec, outputs, random, greedy).actions)
            for episode in stepped.episodes:
                # The first episode of each environment: short ones must not count more often.
                found.setdefault(episode.env, episode.reward)
    finally:
        environments.close()
    return list(found.values())


def train(arm: str, seed: int, *, most_steps: int, hidden: str = "3x2048") -> Trained:
    """Train until the mean return of the last episodes reaches the task's threshold."""
    task = find_task(TASK)
    spec = network(TASK, hidden, "impala")
    learner = Impala(
        spec,
        # Chosen on seed 0 with the fp32 arm; the same for every arm.
        ImpalaConfig(
            trajectories=8,
            learning_rate=3e-4,
            value=0.01,
            normalise=True,
            seed=seed,
            correctors=(VTrace(),),
        ),
    )
    chain = None
    if "int8" in arm:
        chain = CompressorChain().add(Quantize("int8")).add(Compile("openvino"))
    trainer = ActorLearner(
        EnvironmentSpec("vinoreward_training.actor_tasks:make_task", {"name": TASK}),
        learner,
        ActorLearnerConfig(
            actors=1,
            environments=8 if "8 env" in arm else 1,
            steps=4 if "8 env" in arm else 32,
            executor="torch" if "eager" in arm else "openvino",
            pull_period=32,
            observations=256,
            seed=seed,
        ),
        compressor=chain,
    )
    began: list[float] = []
    reached: list[Progress] = []

    def arrived(progress: Progress) -> bool:
        if not began:
            # Starting processes and importing torch is no part of what is compared.
            began.append(time.monotonic())
        recent = trainer.recent_returns[-WINDOW:]
        if len(recent) == WINDOW and task.solved(statistics.fmean(recent)):
            reached.append(progress)
            return True
        return False

    summary = trainer.learn(most_steps, arrived)
    seconds = time.monotonic() - began[0]
    evaluated = returns(learner.policy(0), EVALUATION_EPISODES, 10_000 + seed)
    return Trained(
        arm,
        seed,
        seconds if reached else None,
        summary.steps,
        statistics.fmean(evaluated),
        summary.profile,
        summary.learner_seconds * 1e3,
    )


def cartpole_rows(config: BenchConfig) -> list[Row]:
    """Train CartPole with 3x2048 and V-trace in every arm, seed by seed, the arms in turn."""
    found: dict[str, list[Trained]] = {arm: [] for arm in ARMS}
    with learner_threads(1):
        for turn in range(config.seeds):
            for arm in ARMS[turn % len(ARMS) :] + ARMS[: turn % len(ARMS)]:
                trained = train(arm, config.first_seed + turn, most_steps=config.actor_steps)
                found[arm].append(trained)
                print(_line(trained), flush=True)
    return [_row(found, arm) for arm in ARMS[1:]]


def _line(one: Trained) -> str:
    when = "not reached" if one.seconds is None else f"{one.seconds:.1f} s"
    return (
        f"{one.arm}, seed {one.seed}: {when} after {one.steps} steps; greedy {one.evaluated:.0f}; "
        f"actor step {one.profile.step_cpu * 1e3:.2f} ms, learner {one.learner_ms:.2f} ms per step"
    )


def _row(found: dict[str, list[Trained]], arm: str) -> Row:
    pairs = list(zip(found[ARMS[0]], found[arm], strict=True))
    ratios = [
        slow.seconds / fast.seconds
        for slow, fast in pairs
        if slow.seconds is not None and fast.seconds is not None
    ]
    what = f"{TASK} to its threshold, 3x2048, V-trace, one actor: wall time, eager FP32 over {arm}"
    lines = "; ".join(_line(one) for pair in pairs for one in pair)
    if len(ratios) < len(pairs):
        note = f"{len(pairs) - len(ratios)} of {len(pairs)} pairs did not arrive. {lines}"
        return Row("actor-cartpole", what, None, note=note, met=False)
    low, middle, high = quartiles(ratios)
    return Row(
        "actor-cartpole",
        what,
        middle,
        low=low,
        high=high,
        spread=f"quartiles of {len(ratios)} seeds",
        target=f">= {TIMES:g} x" if "int8" in arm else "",
        met=middle >= TIMES if "int8" in arm else None,
        note=lines,
        details={"ratios": ratios},
    )
