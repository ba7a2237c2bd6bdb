"""Compressed weights that cannot act: the learner's own do, it is told, and nothing dies."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from actor_learner_parts import settings
from engine_runs import check_nothing_left
from faulty_environments import Rescales
from plain_links import PlainLink, acted, policy_of

from vinoreward.errors import OutputError
from vinoreward_actors.actor_learner.acting.actor import Refused
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.controller import Controller
from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.trainer import ActorLearner, Progress
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Trajectory,
)
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring.monitor import default_monitor
from vinoreward_actors.policies.distributions import log_prob
from vinoreward_actors.policies.policy import Policy, forward
from vinoreward_actors.policies.spec import mlp

NUMBERED = mlp(2, 2, head="logits", hidden=(8, 8))
SMALL = mlp(2, 2, head="logits", hidden=(16, 16), value=True)
ENVIRONMENT = "faulty_environments:Numbered"
STEPS = 9


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


def sound(version: int) -> Policy:
    """Compressed weights that can act, and are others than the learner's."""
    return policy_of(NUMBERED, version, seed=1000 + version).replace(backend="numpy")


def overflowing(version: int) -> Policy:
    """Compressed weights that give infinity from Numbered's episode 11 on, not before."""
    weights = {name: value.copy() for name, value in sound(version).float_parameters().items()}
    first, second = NUMBERED.weighted[:2]
    weights[f"{first.name}.weight"][...] = (3.2e37, 0.0)
    weights[f"{second.name}.weight"] *= np.float32(1e-37)
    return sound(version).replace(parameters=weights)


def check_stored(one: Trajectory, networks: dict[tuple[int, int], Policy]) -> None:
    """Every row is of the network that it names, and finite."""
    for step in range(len(one.rewards)):
        network = networks[int(one.network[step, 0]), int(one.versions[step, 0])]
        outputs = forward(network, one.observations[step])
        np.testing.assert_allclose(one.behaviour[step], outputs, rtol=1e-3, atol=1e-3)
        explored = ActorSettings().exploration(0, 1)
        expected = log_prob(NUMBERED, one.behaviour[step], one.actions[step], explored)
        np.testing.assert_allclose(one.log_mu[step], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
class TestActor:
    def test_the_learners_own_weights_act_from_that_very_step(self) -> None:
        """In the middle of a trajectory: rows of both networks, each under its own name."""

        def begin(link: PlainLink) -> None:
            link.publish(overflowing(0), COMPRESSED)

        link = acted(
            NUMBERED, ENVIRONMENT, rollouts=8, steps=7, begin=begin, compressed=True,
            settings=ActorSettings(pull_period=1),
        )  # fmt: skip
        kinds = np.concatenate([one.network[:, 0] for one in link.done])
        episodes = np.concatenate([one.observations[:, 0, 0] for one in link.done])
        np.testing.assert_array_equal(kinds == COMPRESSED, episodes < 11)
        assert {len(set(one.network[:, 0])) for one in link.done} == {1, 2}  # also within one
        networks = {(FULL_PRECISION, 0): policy_of(NUMBERED, 0), (COMPRESSED, 0): overflowing(0)}
        for one in link.done:
            check_stored(one, networks)
        assert link.refused == [
            {
                "version": 0,
                "why": "the numpy backend returned NaN or infinity with the weights of version 0",
            }
        ]
        assert link.counts["compressed_steps"] == (kinds == COMPRESSED).sum()

    def test_later_versions_are_tried_and_refused_ones_never_again(self) -> None:
        def begin(link: PlainLink) -> None:
            link.publish(sound(0), COMPRESSED)

            def after(done: int) -> None:
                if done == 4:  # episode 12
                    link.publish(overflowing(1), COMPRESSED)
                if done == 7:
                    link.publish(sound(2), COMPRESSED)

            link.after = after

        link = acted(
            NUMBERED, ENVIRONMENT, rollouts=10, steps=STEPS, begin=begin, compressed=True,
            settings=ActorSettings(pull_period=1),
        )  # fmt: skip
        kinds = [int(one.network[0, 0]) for one in link.done]
        assert kinds == [COMPRESSED] * 4 + [FULL_PRECISION] * 3 + [COMPRESSED] * 3
        assert [report["version"] for report in link.refused] == [1]
        networks = {(COMPRESSED, version): sound(version) for version in (0, 2)}
        networks[FULL_PRECISION, 0] = policy_of(NUMBERED, 0)
        for one in link.done:
            check_stored(one, networks)
        assert [have for network, have in link.looks if network == COMPRESSED][-1] == 2

    @pytest.mark.parametrize("fault", ["weights", "engine"])
    def test_weights_that_cannot_be_loaded(self, fault: str) -> None:
        broken = sound(0).replace(backend="unheard of")
        if fault == "weights":
            weights = dict(sound(0).float_parameters())
            weights["head.bias"] = np.full(2, np.nan, np.float32)
            broken = sound(0).replace(parameters=weights)

        link = acted(
            NUMBERED, ENVIRONMENT, rollouts=3, steps=STEPS, compressed=True,
            begin=lambda link: link.publish(broken, COMPRESSED),
            settings=ActorSettings(pull_period=1),
        )  # fmt: skip
        assert all((one.network == FULL_PRECISION).all() for one in link.done)
        (refused,) = link.refused
        assert refused["version"] == 0
        expected = {"weights": "head.bias of version 0 has NaN", "engine": "'unheard of'"}
        assert expected[fault] in refused["why"]
        assert "learner" not in refused["why"]

    def test_probabilities_that_are_not_finite(self) -> None:
        """The outputs are, but no learner could make anything of what was drawn from them."""
        spec = mlp(3, 1, head="tanh_gaussian", hidden=(8,))
        weights = dict(policy_of(spec, 0).float_parameters())
        weights["head.bias"] = np.array([1e30, 0.0], np.float32)
        broken = policy_of(spec, 0).replace(parameters=weights)
        link = acted(
            spec, "Pendulum-v1", rollouts=2, compressed=True,
            begin=lambda link: link.publish(broken, COMPRESSED),
        )  # fmt: skip
        assert all((one.network == FULL_PRECISION).all() for one in link.done)
        assert "log probabilities" in link.refused[0]["why"]

    def test_the_learners_own_are_an_error_as_ever(self) -> None:
        def begin(link: PlainLink) -> None:
            link.publish(overflowing(0))
            link.publish(overflowing(0), COMPRESSED)

        with pytest.raises(OutputError, match="the learner has diverged"):
            acted(NUMBERED, ENVIRONMENT, rollouts=8, steps=STEPS, begin=begin, compressed=True)

    def test_with_a_fixed_lag_they_are_an_error(self) -> None:
        def begin(link: PlainLink) -> None:
            link.version = 7
            link.publish(overflowing(0), COMPRESSED)
            link.after = lambda done: link.publish(overflowing(done), COMPRESSED)

        with pytest.raises(OutputError, match=r"compressed weights of version 3 .* fixed lag"):
            acted(
                NUMBERED, ENVIRONMENT, rollouts=8, steps=STEPS, compressed=True, lag=0,
                begin=begin,
            )  # fmt: skip


class TestController:
    @pytest.mark.parametrize("monitored", [True, False])
    def test_compression_is_switched_off_for_good(self, monitored: bool) -> None:
        monitor = default_monitor("logits") if monitored else None
        learner = Impala(SMALL, ImpalaConfig(trajectories=2, precision="fp32"))
        controller = Controller(
            learner, settings(), CompressorChain().add(Quantize("int8")), monitor
        )
        controller.begin()
        first = controller.actor_settings(ActorSettings(), 0)
        assert controller.on_refused([], 1) == []
        assert controller.actor_settings(first, 4) == first
        events = controller.on_refused([(2, Refused(3, "it gave infinity"))], 4)
        assert [each.who for each in events] == ["actor 2"]
        assert "version 3 (it gave infinity)" in events[0].what
        off = controller.actor_settings(first, 5)
        assert [off.enabled_at(version) for version in (3, 4, 5, 9)] == [True, True, False, False]
        assert controller.actor_settings(off, 9) == off
        if monitor is not None:
            (change,) = controller.changes()
            assert "enabled" in change and "actor 2 cannot use" in change
            assert monitor.halted


class Overflows(Impala):
    """Its own weights are what :class:`Rescales` makes of them: finite, and useless far away."""

    def policy(self, version: int) -> Policy:
        return Rescales().compress(super().policy(version), None)  # type: ignore[arg-type]


@pytest.mark.slow
def test_training_goes_on_without_compression() -> None:
    """A policy that is sound on all that the compressor sees and overflows on rare observations."""
    events: list[str] = []
    changes: list[str] = []
    off = 0
    compressed = False

    def progressed(progress: Progress) -> bool:
        nonlocal off, compressed
        events.extend(str(each) for each in progress.events)
        changes.extend(progress.changes)
        share = progress.metrics["compressed_share"]
        compressed = compressed or share > 0
        off = off + 1 if events and share == 0 else 0
        return off > 60

    monitor = default_monitor("logits")
    summary = ActorLearner(
        EnvironmentSpec("faulty_environments:Far", {"owner": os.getpid()}),
        Impala(SMALL, ImpalaConfig(trajectories=2, precision="fp32")),
        settings(actors=2, restarts=0),
        compressor=CompressorChain().add(Rescales()),
        monitor=monitor,
    ).learn(1_000_000, progressed)
    assert summary.stopped and compressed
    refused = [each for each in events if "of the steps of the last" not in each]
    assert refused
    for each in refused:
        assert "cannot use the compressed weights of version" in each
        assert "compression is switched off" in each
    assert monitor.halted
    assert not monitor.setting.enabled
    assert "enabled" in changes[-1] and "NaN or infinity" in changes[-1]


def test_a_learner_whose_own_weights_overflow_ends_as_ever() -> None:
    chain = CompressorChain().add(Quantize("w8"))
    trainer = ActorLearner(
        EnvironmentSpec("faulty_environments:Far", {"owner": os.getpid()}),
        Overflows(SMALL, ImpalaConfig(trajectories=2, precision="fp32")),
        settings(restarts=0),
        compressor=chain,
    )
    with pytest.raises(EngineError, match="the learner has diverged"):
        trainer.learn(1_000_000)
