"""Evaluations beside a training: what they pair, what they tell, and that learning goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from actor_learner_parts import CARTPOLE, impala, settings
from engine_runs import check_nothing_left
from faulty_environments import Slow

from vinoreward_actors.actor_learner import controller, training_loop
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.acting.evaluation import Evaluation, Evaluator
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.trainer import ActorLearner, Progress
from vinoreward_actors.compression.chain import CompressionContext, CompressorChain
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring.indicators import KL, CumulativeReward
from vinoreward_actors.monitoring.monitor import Monitor, default_monitor
from vinoreward_actors.policies.policy import Policy

CARTPOLE_ENV = EnvironmentSpec("CartPole-v1")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


class Remembered(Impala):
    """Keeps every version that it pushed."""

    def __init__(self) -> None:
        super().__init__(CARTPOLE, ImpalaConfig(trajectories=2, seed=0, precision="fp32"))
        self.pushed: dict[int, Policy] = {}

    def policy(self, version: int) -> Policy:
        self.pushed[version] = super().policy(version)
        return self.pushed[version]


def chain() -> CompressorChain:
    return CompressorChain().add(Quantize("w4"))


def evaluated(training: ActorLearner, count: int) -> list[Evaluation]:
    """Train until so many evaluations have ended."""
    found: list[Evaluation] = []

    def enough(progress: Progress) -> bool:
        found.extend(progress.evaluations)
        return len(found) >= count

    assert training.learn(10**7, enough).stopped
    return found


def test_what_is_evaluated_is_one_version_in_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the default monitor hears of the returns without being asked to be given any."""
    monkeypatch.setattr(training_loop, "EVALUATE_EVERY", 200)
    learner, monitor = Remembered(), default_monitor("logits")
    training = ActorLearner(
        "CartPole-v1",
        learner,
        settings(evaluation_episodes=3),
        compressor=chain(),
        monitor=monitor,
    )
    found = evaluated(training, 3)
    versions = [one.pair.full.version for one in found]
    assert versions == sorted(set(versions)) and versions[0] > 0
    assert [one.steps for one in found] == sorted(one.steps for one in found)
    with Evaluator(CARTPOLE_ENV, "numpy") as evaluator:
        for one in found:
            assert one.pair.compressed is not None
            pushed = learner.pushed[one.pair.full.version].replace(backend="numpy")
            context = CompressionContext(teacher=pushed, observations=np.zeros((2, 4), np.float32))
            small = chain().compress(pushed, context)
            again = evaluator.pair(pushed, small, one.pair.seeds)
            assert again.compressed is not None
            np.testing.assert_array_equal(one.pair.full.returns, again.full.returns)
            np.testing.assert_array_equal(one.pair.compressed.returns, again.compressed.returns)
            assert one.pair.compressed.version == one.pair.full.version
    told = [one.values for one in monitor.readings if "return" in one.values]
    assert [values["return"] for values in told] == [one.pair.full.mean for one in found]
    assert all("return_gap_mean" in values for values in told)


def test_the_learner_goes_on_while_it_is_evaluated(tmp_path: Path) -> None:
    updates: list[int] = []

    def progressed(progress: Progress) -> bool:
        if (tmp_path / "begun").exists():
            updates.append(progress.updates)
        if len(updates) == 30:
            assert not progress.evaluations
            (tmp_path / "go").touch()
        return bool(progress.evaluations)

    training = ActorLearner(
        "CartPole-v1",
        impala(),
        settings(evaluate_every=100, evaluation_episodes=2),
        evaluation=EnvironmentSpec("faulty_environments:Waits", {"folder": str(tmp_path)}),
    )
    assert training.learn(10**7, progressed).stopped
    assert updates[:30] == list(range(updates[0], updates[0] + 30))


def test_the_last_evaluation_is_waited_for() -> None:
    told: list[Evaluation] = []
    training = ActorLearner(
        "CartPole-v1",
        impala(),
        settings(evaluate_every=200, evaluation_episodes=2),
        compressor=chain(),
    )
    summary = training.learn(200, lambda progress: told.extend(progress.evaluations))
    (last,) = [*told, *summary.evaluations]
    assert last.steps == 200 and last.pair.compressed is not None
    assert last.pair.full.version == last.pair.compressed.version == summary.policy.version


def test_an_evaluation_that_fails_is_told_and_training_goes_on() -> None:
    events: list[str] = []

    def progressed(progress: Progress) -> bool:
        events.extend(str(one) for one in progress.events)
        return len(events) > 1

    broken = EnvironmentSpec("faulty_environments:Numbered", {"fault": "raise", "at": 1})
    training = ActorLearner(
        "CartPole-v1", impala(), settings(evaluate_every=100), evaluation=broken
    )
    assert training.learn(10**7, progressed).stopped
    assert all("evaluation: it failed" in one for one in events)


@pytest.mark.slow
def test_a_fixed_lag_repeats_with_evaluations() -> None:
    """The monitor hears of each at the same update, however long it took."""

    def trained() -> list[tuple[int, dict[str, float]]]:
        monitor = Monitor([KL("max"), CumulativeReward()])
        ActorLearner(
            "CartPole-v1",
            impala(),
            settings(lag=1, monitor_period=3, evaluate_every=100, evaluation_episodes=2),
            compressor=chain(),
            monitor=monitor,
        ).learn(600)
        return [(one.version, dict(one.values)) for one in monitor.readings]

    first = trained()
    assert first == trained()
    assert sum("return" in values for _, values in first) == 6


@pytest.mark.slow
def test_a_slow_compressor_is_seen_with_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the versions that it passes over no row comes; those it takes are kept."""
    monkeypatch.setattr(controller, "MAX_BYTES", 1)
    monitor = Monitor([KL("max", "mu_pi", against="source")])
    seen: list[bool] = []

    def progressed(progress: Progress) -> bool:
        if progress.metrics["compressed_share"] > 0.5 and progress.updates % 10 == 0:
            seen.append("compression_kl_mu_pi_max" in progress.readings)
        return len(seen) >= 40

    training = ActorLearner(
        "CartPole-v1",
        impala(),
        settings(max_lag=10**6, max_staleness=10**6, monitor_period=1),
        compressor=CompressorChain().add(Slow(0.3)),
        monitor=monitor,
    )
    assert training.learn(10**7, progressed).stopped
    assert sum(seen) >= 0.9 * len(seen)
