"""Evaluations beside a training: what they pair, what they tell, and that learning goes on."""

import numpy as np
import pytest
from actor_learner_parts import CARTPOLE, chain, training

from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.acting.evaluation import Evaluator
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.compression.chain import CompressionContext
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring.monitor import default_monitor

CARTPOLE_ENV = EnvironmentSpec("CartPole-v1")


pytestmark = pytest.mark.usefixtures("nothing_left")


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
