"""What actors and compressor are told in whole trainings, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from actor_learner_parts import CARTPOLE, impala, settings
from engine_runs import (
    check_nothing_left,
)
from faulty_environments import Harms, Remembers

from vinoreward_actors.actor_learner import training_loop
from vinoreward_actors.actor_learner.checkpoint import ObservationBuffer
from vinoreward_actors.actor_learner.controller import Controller, Pushed
from vinoreward_actors.actor_learner.trainer import ActorLearner, Progress
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, TrajectorySpec
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring.indicators import KL
from vinoreward_actors.monitoring.monitor import Monitor, default_monitor
from vinoreward_actors.monitoring.strategy import CompressionSetting
from vinoreward_actors.policies.distributions import kl
from vinoreward_actors.policies.policy import forward


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


class TestSettings:
    def test_the_chain_is_left_as_it_was_made(self) -> None:
        chain = CompressorChain().add(Prune(0.5)).add(Quantize("w4"))
        from vinoreward_actors.actor_learner.transport.link import ActorSettings

        for monitor in (None, Monitor([KL("max", "pi_mu")])):
            controller = Controller(impala(), settings(pull_period=7), chain, monitor)
            controller.begin()
            actor_settings = controller.actor_settings(ActorSettings(), 0)
            assert (actor_settings.bits, actor_settings.sparsity, actor_settings.pull_period) == (
                4,
                0.5,
                7,
            )

    def test_what_the_user_set_stays(self) -> None:
        from vinoreward_actors.actor_learner.transport.link import ActorSettings

        chain = CompressorChain().add(Prune(0.5)).add(Quantize("int8"))
        monitor = Monitor(
            [KL("max", "pi_mu")], setting=CompressionSetting(sparsity=0.25, pull_period=30)
        )
        controller = Controller(impala(), settings(pull_period=7), chain, monitor)
        controller.begin()
        actor_settings = controller.actor_settings(ActorSettings(), 0)
        assert (actor_settings.bits, actor_settings.sparsity, actor_settings.pull_period) == (
            8,
            0.25,
            30,
        )

    def test_a_switch_names_the_version_it_holds_from(self) -> None:
        from vinoreward_actors.actor_learner.transport.link import ActorSettings

        monitor = Monitor([KL("max", "pi_mu")])
        controller = Controller(impala(), settings(), CompressorChain(), monitor)
        first = controller.actor_settings(ActorSettings(), 0)
        assert first.enabled_at(0)
        monitor.setting = monitor.setting.changed({"enabled": False})
        off = controller.actor_settings(first, 5)
        assert [off.enabled_at(version) for version in (3, 4, 5, 6)] == [True, True, False, False]
        assert controller.actor_settings(off, 9).since == 5

    def test_compression_is_compared_with_its_own_version(self) -> None:
        """And not only against the learner's present network, which has moved on."""
        learner = impala()
        monitor = Monitor([KL("max", "mu_pi", against="source"), KL("max", "mu_pi")])
        controller = Controller(learner, settings(), CompressorChain().add(Harms()), monitor)
        versions = [learner.policy(version) for version in range(3)]
        harmed = Harms().compress(versions[1], None)  # type: ignore[arg-type]
        one = TrajectorySpec(8, 1, (4,), "float32", (), 2).empty()
        one.observations[...] = np.random.default_rng(0).normal(size=(8, 1, 4))
        one.versions[...] = 1
        one.log_mu[...] = -0.5
        for at in range(8):
            network = harmed if at % 2 else versions[1]
            one.network[at] = COMPRESSED if at % 2 else 0
            one.behaviour[at] = forward(network, one.observations[at])
        for policy in versions:
            controller.cache_pushed(Pushed(policy))
        controller.watch([one], 2)
        outputs = forward(versions[1], one.observations[1::2, 0])
        expected = kl(CARTPOLE, one.behaviour[1::2, 0], outputs).max()
        readings = controller.readings()
        assert readings["compression_kl_mu_pi_max"] == pytest.approx(expected, rel=1e-3)
        assert expected > 0.5

    @pytest.mark.slow
    def test_the_default_strategy_stops_a_compression_that_hurts(self) -> None:
        changes: list[str] = []

        def progressed(progress: Progress) -> bool:
            changes.extend(progress.changes)
            return bool(changes) and progress.metrics["compressed_share"] == 0

        summary = ActorLearner(
            "CartPole-v1",
            impala(),
            settings(),
            compressor=CompressorChain().add(Harms()).add(Quantize("int8")),
            monitor=default_monitor("logits"),
        ).learn(1_000_000, progressed)
        assert summary.stopped
        assert "enabled True -> False" in changes[0]


def test_a_stage_that_fails_is_told_where_nobody_watches(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A training goes on without; one that is watched is told in its progress."""
    chain = CompressorChain().add(Remembers("raise", at=1))
    config = settings(restarts=0)
    with caplog.at_level("WARNING", logger="vinoreward"):
        ActorLearner("CartPole-v1", impala(), config, compressor=chain).learn(4000)
    assert "compressor" in caplog.text and "fell over" in caplog.text
    caplog.clear()
    told: list[str] = []
    with caplog.at_level("WARNING", logger="vinoreward"):
        ActorLearner("CartPole-v1", impala(), config, compressor=chain).learn(
            1_000_000,
            lambda progress: told.extend(event.what for event in progress.events) or bool(told),
        )
    assert any("fell over" in each for each in told) and not caplog.text


class TestLastPolicy:
    @pytest.mark.parametrize(("fault", "comes"), [("", True), ("kill", False)])
    def test_waits_for_a_compressor_that_starts(
        self, monkeypatch: pytest.MonkeyPatch, fault: str, comes: bool
    ) -> None:
        """A training may be over before the compressor has imported PyTorch; one may die."""
        monkeypatch.setattr(training_loop, "LAST_TIMEOUT", 0.0)
        learner = impala()
        summary = ActorLearner(
            "CartPole-v1",
            learner,
            settings(),
            compressor=CompressorChain().add(Remembers(fault, at=1)),
        ).learn(20)
        assert summary.policy.version == learner.updates
        assert (summary.compressed is not None) == comes


class TestRecentObservations:
    def spec(self) -> TrajectorySpec:
        return TrajectorySpec(5, 2, (3,), "float32", (), 2)

    def test_keeps_the_newest(self) -> None:
        recent = ObservationBuffer(np.zeros((8, 3), np.float32), 16, each=4)
        for number in range(1, 10):
            one = self.spec().empty()
            one.observations[...] = number
            recent.add([one])
            one.observations[...] = -1  # memory that is used for something else
        assert recent.rows.shape == (16, 3)
        assert recent.rows[:, 0].tolist() == sorted([6, 7, 8, 9] * 4)

    def test_starts_with_what_it_is_given(self) -> None:
        recent = ObservationBuffer(np.arange(60, dtype=np.float32).reshape(20, 3), 16)
        np.testing.assert_array_equal(recent.rows[:, 0], np.arange(12, 60, 3))
