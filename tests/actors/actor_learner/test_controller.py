"""What actors and compressor are told in trainings, and evaluations beside them."""

import numpy as np
import pytest
from actor_learner_parts import CARTPOLE, chain, impala, settings, training
from faulty_environments import Harms, Remembers

from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.acting.evaluation import Evaluator
from vinoreward_actors.actor_learner.checkpoint import ObservationBuffer
from vinoreward_actors.actor_learner.controller import Controller, Pushed
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, TrajectorySpec
from vinoreward_actors.compression.chain import CompressionContext
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring.indicators import KL
from vinoreward_actors.monitoring.monitor import Monitor, default_monitor
from vinoreward_actors.monitoring.strategy import CompressionSetting
from vinoreward_actors.policies.distributions import kl
from vinoreward_actors.policies.policy import forward

pytestmark = pytest.mark.usefixtures("nothing_left")


# Orders


@pytest.mark.parametrize(
    ("monitor", "expected"),
    [
        (None, (4, 0.5, 7)),
        (Monitor([KL("max", "pi_mu")]), (4, 0.5, 7)),
        # What the user set stays.
        (Monitor([KL()], setting=CompressionSetting(sparsity=0.25)), (4, 0.25, 7)),
    ],
)
def test_actors_begin_with_the_chains_settings_and_the_users(monitor, expected):
    told = settings(pull_period=7)
    controller = Controller(impala(), told, chain(Prune(0.5), Quantize("w4")), monitor)
    controller.begin()
    found = controller.actor_settings(ActorSettings())
    assert (found.bits, found.sparsity, found.pull_period) == expected


def test_compression_is_compared_with_its_own_version():
    """And not only against the learner's present network, which has moved on."""
    learner = impala()
    monitor = Monitor([KL("max", "mu_pi", against="source"), KL("max", "mu_pi")])
    controller = Controller(learner, settings(), chain(Harms()), monitor)
    versions = [learner.policy(version) for version in range(3)]
    harmed = Harms().compress(versions[1], None)
    one = TrajectorySpec(8, 1, (4,), "float32", (), 2).empty()
    one.observations[...] = np.random.default_rng(0).normal(size=(8, 1, 4))
    one.versions[...] = 1
    one.log_mu[...] = -0.5
    for at in range(8):
        one.network[at] = COMPRESSED if at % 2 else 0
        one.behaviour[at] = forward(harmed if at % 2 else versions[1], one.observations[at])
    for policy in versions:
        controller.cache_pushed(Pushed(policy))
    controller.watch([one], 2)
    outputs = forward(versions[1], one.observations[1::2, 0])
    expected = kl(CARTPOLE, one.behaviour[1::2, 0], outputs).max()
    found = controller.readings()["compression_kl_mu_pi_max"]
    assert found == pytest.approx(expected, rel=1e-3) and expected > 0.5


@pytest.mark.slow
def test_the_default_strategy_stops_a_compression_that_hurts():
    changes = []

    def progressed(progress):
        changes.extend(progress.changes)
        return bool(changes) and progress.metrics["compressed_share"] == 0

    trainer = training(None, Harms(), Quantize("int8"), monitor=default_monitor("logits"))
    assert trainer.learn(1_000_000, progressed).stopped
    assert "enabled True -> False" in changes[0]


def test_a_stage_that_fails_is_told_in_the_log_where_nobody_watches(caplog, tmp_path):
    with caplog.at_level("WARNING", logger="vinoreward"):
        training(None, Remembers("raise", 1, str(tmp_path / "raised"))).learn(4000)
    assert "compressor" in caplog.text and "fell over" in caplog.text


def test_the_newest_observations_are_kept_after_those_it_is_given():
    recent = ObservationBuffer(np.arange(60, dtype=np.float32).reshape(20, 3), 16, each=4)
    np.testing.assert_array_equal(recent.rows[:, 0], np.arange(12, 60, 3))
    for number in range(1, 10):
        one = TrajectorySpec(5, 2, (3,), "float32", (), 2).empty()
        one.observations[...] = number
        recent.add([one])
        one.observations[...] = -1  # memory that is used for something else
    assert recent.rows[:, 0].tolist() == sorted([6, 7, 8, 9] * 4)


# Evaluations beside a training


CARTPOLE_ENV = EnvironmentSpec("CartPole-v1")


class Remembered(Impala):
    """Keeps every version that it pushed."""

    def __init__(self):
        super().__init__(CARTPOLE, ImpalaConfig(trajectories=2, seed=0, precision="fp32"))
        self.pushed = {}

    def policy(self, version):
        self.pushed[version] = super().policy(version)
        return self.pushed[version]


def evaluated(training, count):
    """Train until so many evaluations have ended."""
    found = []

    def enough(progress):
        found.extend(progress.evaluations)
        return len(found) >= count

    assert training.learn(10**7, enough).stopped
    return found


def test_what_is_evaluated_is_one_version_in_both_forms():
    learner, monitor = Remembered(), default_monitor("logits")
    trainer = training(
        learner, Quantize("w4"), monitor=monitor, evaluate_every=200, evaluation_episodes=3
    )
    found = evaluated(trainer, 3)
    versions = [one.pair.full.version for one in found]
    assert versions == sorted(set(versions)) and versions[0] > 0
    assert [one.steps for one in found] == sorted(one.steps for one in found)
    with Evaluator(CARTPOLE_ENV, "numpy") as evaluator:
        for one in found:
            assert one.pair.compressed is not None
            pushed = learner.pushed[one.pair.full.version].replace(backend="numpy")
            context = CompressionContext(teacher=pushed, observations=np.zeros((2, 4), np.float32))
            small = chain(Quantize("w4")).compress(pushed, context)
            again = evaluator.pair(pushed, small, one.pair.seeds)
            np.testing.assert_array_equal(one.pair.full.returns, again.full.returns)
            np.testing.assert_array_equal(one.pair.compressed.returns, again.compressed.returns)
            assert one.pair.compressed.version == one.pair.full.version
    told = [one.values for one in monitor.readings if "return" in one.values]
    assert [values["return"] for values in told] == [one.pair.full.mean for one in found]
    assert all("return_gap_mean" in values for values in told)


def test_the_learner_goes_on_while_it_is_evaluated(tmp_path):
    updates = []

    def progressed(progress):
        if (tmp_path / "begun").exists():
            updates.append(progress.updates)
        if len(updates) == 30:
            assert not progress.evaluations
            (tmp_path / "go").touch()
        return bool(progress.evaluations)

    waits = EnvironmentSpec("faulty_environments:Waits", {"folder": str(tmp_path)})
    trainer = training(evaluation=waits, evaluate_every=100, evaluation_episodes=2)
    assert trainer.learn(10**7, progressed).stopped
    assert updates[:30] == list(range(updates[0], updates[0] + 30))


def test_the_last_evaluation_and_the_compressor_that_starts_are_waited_for():
    told = []
    trainer = training(None, Quantize("w4"), evaluate_every=200, evaluation_episodes=2)
    summary = trainer.learn(200, lambda progress: told.extend(progress.evaluations))
    (last,) = [*told, *summary.evaluations]
    assert last.steps == 200 and last.pair.compressed is not None
    assert last.pair.full.version == last.pair.compressed.version == summary.policy.version
    assert summary.compressed is not None


def test_an_evaluation_that_fails_is_told_and_training_goes_on():
    events = []

    def progressed(progress):
        events.extend(str(one) for one in progress.events)
        return len(events) > 1

    broken = EnvironmentSpec("faulty_environments:Numbered", {"fault": "raise", "at": 1})
    assert training(evaluation=broken, evaluate_every=100).learn(10**7, progressed).stopped
    assert all("evaluation: it failed" in one for one in events)
