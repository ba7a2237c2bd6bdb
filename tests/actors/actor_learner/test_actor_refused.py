"""Compressed weights that cannot act: the learner's own do, it is told, and nothing dies."""

import os

import numpy as np
import pytest
from actor_learner_parts import chain, settings, training
from faulty_environments import Rescales
from plain_links import acted, policy_of

from vinoreward.errors import OutputError
from vinoreward_actors.actor_learner.acting.actor import Refused
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.controller import Controller
from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring.monitor import default_monitor
from vinoreward_actors.policies.distributions import log_prob
from vinoreward_actors.policies.policy import forward
from vinoreward_actors.policies.spec import mlp

NUMBERED = mlp(2, 2, head="logits", hidden=(8, 8))
SMALL = mlp(2, 2, head="logits", hidden=(16, 16), value=True)
FAST = ImpalaConfig(trajectories=2, precision="fp32")

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]


def sound(version):
    """Compressed weights that can act, and are others than the learner's."""
    return policy_of(NUMBERED, version, seed=1000 + version).replace(backend="numpy")


def overflowing(version):
    """Compressed weights that give infinity from Numbered's episode 11 on, not before."""
    weights = {name: value.copy() for name, value in sound(version).float_parameters().items()}
    first, second = NUMBERED.weighted[:2]
    weights[f"{first.name}.weight"][...] = (3.2e37, 0.0)
    weights[f"{second.name}.weight"] *= np.float32(1e-37)
    return sound(version).replace(parameters=weights)


def acting(begin, **told):
    usual = {
        "rollouts": 8,
        "steps": 9,
        "compressed": True,
        "settings": ActorSettings(pull_period=1),
    }
    return acted(NUMBERED, "faulty_environments:Numbered", begin=begin, **(usual | told))


def check_stored(one, networks):
    """Every row is of the network that it names, and finite."""
    for step in range(len(one.rewards)):
        network = networks[int(one.network[step, 0]), int(one.versions[step, 0])]
        outputs = forward(network, one.observations[step])
        np.testing.assert_allclose(one.behaviour[step], outputs, rtol=1e-3, atol=1e-3)
        explored = ActorSettings().exploration(0, 1)
        expected = log_prob(NUMBERED, one.behaviour[step], one.actions[step], explored)
        np.testing.assert_allclose(one.log_mu[step], expected, rtol=1e-3, atol=1e-3)


def test_the_learners_own_weights_act_from_that_very_step():
    """In the middle of a trajectory: rows of both networks, each under its own name."""
    link = acting(lambda link: link.put(overflowing(0), COMPRESSED), steps=7)
    kinds = np.concatenate([one.network[:, 0] for one in link.done])
    episodes = np.concatenate([one.observations[:, 0, 0] for one in link.done])
    np.testing.assert_array_equal(kinds == COMPRESSED, episodes < 11)
    assert {len(set(one.network[:, 0])) for one in link.done} == {1, 2}  # also within one
    networks = {(FULL_PRECISION, 0): policy_of(NUMBERED, 0), (COMPRESSED, 0): overflowing(0)}
    for one in link.done:
        check_stored(one, networks)
    why = "the numpy backend returned NaN or infinity with the weights of version 0"
    assert link.refused == [{"version": 0, "why": why}]
    assert link.counted["compressed_steps"] == (kinds == COMPRESSED).sum()


def test_later_versions_are_tried_and_refused_ones_never_again():
    def begin(link):
        link.put(sound(0), COMPRESSED)

        def after(done):
            if done == 4:  # episode 12
                link.put(overflowing(1), COMPRESSED)
            if done == 7:
                link.put(sound(2), COMPRESSED)

        link.after = after

    link = acting(begin, rollouts=10)
    kinds = [int(one.network[0, 0]) for one in link.done]
    assert kinds == [COMPRESSED] * 4 + [FULL_PRECISION] * 3 + [COMPRESSED] * 3
    assert [report["version"] for report in link.refused] == [1]
    networks = {(COMPRESSED, version): sound(version) for version in (0, 2)}
    networks[FULL_PRECISION, 0] = policy_of(NUMBERED, 0)
    for one in link.done:
        check_stored(one, networks)


@pytest.mark.parametrize(
    ("fault", "said"), [("weights", "head.bias of version 0 has NaN"), ("engine", "'unheard of'")]
)
def test_weights_that_cannot_be_loaded(fault, said):
    broken = sound(0).replace(backend="unheard of")
    if fault == "weights":
        weights = dict(sound(0).float_parameters())
        weights["head.bias"] = np.full(2, np.nan, np.float32)
        broken = sound(0).replace(parameters=weights)
    link = acting(lambda link: link.put(broken, COMPRESSED), rollouts=3)
    assert all((one.network == FULL_PRECISION).all() for one in link.done)
    (refused,) = link.refused
    assert refused["version"] == 0
    assert said in refused["why"] and "learner" not in refused["why"]


def test_the_learners_own_are_an_error():
    def own(link):
        link.put(overflowing(0))
        link.put(overflowing(0), COMPRESSED)

    with pytest.raises(OutputError, match="the learner has diverged"):
        acting(own)


@pytest.mark.parametrize("monitored", [True, False])
def test_compression_is_switched_off_for_good(monitored):
    monitor = default_monitor("logits") if monitored else None
    controller = Controller(Impala(SMALL, FAST), settings(), chain(Quantize("int8")), monitor)
    controller.begin()
    first = controller.actor_settings(ActorSettings())
    assert controller.on_refused([], 1) == []
    assert controller.actor_settings(first) == first
    events = controller.on_refused([(2, Refused(3, "it gave infinity"))], 4)
    assert [each.who for each in events] == ["actor 2"]
    assert "version 3 (it gave infinity)" in events[0].what
    off = controller.actor_settings(first)
    assert not off.enabled
    assert controller.actor_settings(off) == off
    if monitor is not None:
        (change,) = controller.changes()
        assert "enabled" in change and "actor 2 cannot use" in change
        assert monitor.halted


def far():
    return EnvironmentSpec("faulty_environments:Far", {"owner": os.getpid()})


@pytest.mark.slow
def test_training_goes_on_without_compression():
    """A policy that is sound on all that the compressor sees and overflows on rare observations."""
    events = []
    changes = []
    shares = []

    def progressed(progress):
        events.extend(str(each) for each in progress.events)
        changes.extend(progress.changes)
        shares.append(progress.metrics["compressed_share"])
        return bool(events) and not any(shares[-60:])

    monitor = default_monitor("logits")
    told = {"environment": far(), "monitor": monitor, "actors": 2, "restarts": 0}
    trainer = training(Impala(SMALL, FAST), Rescales(), **told)
    assert trainer.learn(1_000_000, progressed).stopped and any(shares)
    assert events
    for each in events:
        assert "cannot use the compressed weights of version" in each
        assert "compression is switched off" in each
    assert monitor.halted and not monitor.setting.enabled
    assert "enabled" in changes[-1] and "NaN or infinity" in changes[-1]


class Overflows(Impala):
    """Its own weights are what :class:`Rescales` makes of them: finite, and useless far away."""

    def policy(self, version):
        return Rescales().compress(super().policy(version), None)


def test_a_learner_whose_own_weights_overflow_ends_as_ever():
    trainer = training(Overflows(SMALL, FAST), Quantize("w8"), environment=far(), restarts=0)
    with pytest.raises(EngineError, match="the learner has diverged"):
        trainer.learn(1_000_000)
