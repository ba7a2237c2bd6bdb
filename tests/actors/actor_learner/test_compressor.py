"""The compressor beside a training: what it makes, how late it is, and that too late is said."""

import math

import numpy as np
import pytest
from actor_learner_parts import chain, impala, training
from faulty_environments import Remembers, pushes_counted
from plain_links import CARTPOLE, policy_of

from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.compressor import (
    MISSED,
    TEACHING,
    Compressor,
    Pace,
)
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.progress import CompressedShare
from vinoreward_actors.actor_learner.transport.link import ActorSettings, Link, Weights
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    TrajectorySpec,
)
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.policies.policy import forward
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.policies.wire import encode

pytestmark = pytest.mark.usefixtures("nothing_left")


def rows(compressed, age, version, steps=10):
    one = TrajectorySpec(steps, 1, (4,), "float32", (), 2).empty()
    one.network[...] = 0
    one.network[:compressed] = COMPRESSED
    one.versions[...] = version - age
    return one


@pytest.mark.slow
def test_an_expensive_student_keeps_acting():
    """Teaching it is ten times the work of a learner's update, and it acts all the same."""
    student = mlp(4, 2, head="logits", hidden=(512, 512), value=True)
    shares = []

    def watch(progress):
        share = progress.metrics["compressed_share"]
        shares.extend([share] if shares or share else [])
        return len(shares) >= 40

    trainer = training(impala(4), Distill(student=student), steps=20, pull_period=20)
    summary = trainer.learn(200_000, watch)
    assert summary.stopped, "it never acted compressed"
    assert sum(share > 0.5 for share in shares) >= 0.9 * len(shares)
    assert summary.compressed_share >= 0.9
    assert 0 <= summary.staleness <= 20  # pushes, in the median


def test_the_share_counts_from_the_first_compressed_step():
    found = CompressedShare()
    assert found.share == 0.0 and math.isnan(found.staleness)
    for _ in range(3):
        found.add([rows(0, 0, 7)], 7)
    found.add([rows(10, 2, 20), rows(10, 4, 20)], 20)
    found.add([rows(5, 9, 21)], 21)
    assert found.share == pytest.approx(25 / 30)
    assert found.staleness == 4.0


def test_teaching_takes_half_of_the_time_between_pushes_and_never_gets_later():
    pace = Pace()
    assert pace.seconds(3, 10.0) == 0.0
    assert pace.seconds(4, 11.0) == pytest.approx(TEACHING)
    assert pace.seconds(6, 13.0) == pytest.approx(2 * TEACHING)
    late = Pace()
    late.seconds(0, 0.0)
    assert late.seconds(1000, 10.0) == pytest.approx(TEACHING * 0.01 * MISSED)
    # A pause of the learner does not lengthen it.
    paused = Pace()
    for version in range(6):
        paused.seconds(version, float(version))
    assert paused.seconds(6, 66.0) == pytest.approx(TEACHING)
    assert np.isfinite(paused.seconds(7, 67.0))


# The compressor's process


class Given(Link):
    """The learner publishes the versions it was given, one before each call."""

    def __init__(self, versions, *settings):
        super().__init__(TrajectorySpec(1, 1, (4,), "float32", (), 2))
        self._versions, self._told = versions, settings or (ActorSettings(),)
        self.published = []
        self.observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)

    def publishing(self):
        for at, policy in enumerate(self._versions):
            encoded = encode(policy)
            self.stores[FULL_PRECISION] = Weights(encoded.header, encoded.payload(), at)
            self.settings = self._told[min(at, len(self._told) - 1)]
            yield

    @property
    def reports(self):
        return [value for kind, value in self.sent if kind == "compressor"]

    def publish(self, policy):
        self.published.append(policy)


def compressed(link, *stages, outputs=None, **told):
    config = EngineConfig(
        ActorLearnerConfig(backend="numpy"), EnvironmentSpec("CartPole-v1"), CARTPOLE, **told
    )
    compressor = Compressor(config, chain(*(stages or (Quantize("int8"),))), link, outputs)
    for _ in link.publishing():
        compressor.step()
    return link


def versions(count):
    return [policy_of(CARTPOLE, version) for version in range(count)]


def test_every_version_is_compressed_and_its_quality_told():
    link = compressed(Given(versions(2)))
    assert [policy.version for policy in link.published] == [0, 1]
    assert [report["version"] for report in link.reports] == [0, 1]
    assert link.reports[0]["quality"]["kl_max"] < 0.5
    assert link.published[0].ranges
    # By what the engine gives.
    teacher = versions(1)[0]
    link = compressed(Given([teacher]), outputs=lambda policy, seen: forward(teacher, seen))
    assert link.reports[0]["quality"]["kl_max"] == 0.0


def test_bits_and_sparsity_are_turned():
    link = compressed(Given(versions(2), ActorSettings(bits=8), ActorSettings(bits=None)))
    assert [bool(policy.ranges) for policy in link.published] == [True, False]
    told = [ActorSettings(sparsity=sparsity) for sparsity in (0.25, 0.5, 0.0)]
    link = compressed(Given(versions(3), *told), Prune(0.75), Distill(1, cold_steps=1))
    widths = [[layer.outputs for layer in policy.spec.weighted] for policy in link.published]
    assert widths == [[12, 12, 2], [8, 8, 2], [16, 16, 2]]


def test_an_error_is_told_and_the_next_version_tried():
    broken, sound = versions(2)
    weights = dict(broken.float_parameters())
    weights["head.weight"] = weights["head.weight"] * np.float32(np.inf)
    link = compressed(Given([broken.replace(parameters=weights), sound]))
    assert [policy.version for policy in link.published] == [1]
    assert "has NaN or infinite values" in link.reports[0]["error"]


def test_state_is_saved_when_asked_and_taken_up(tmp_path):
    compressed(
        Given(versions(3), ActorSettings(), ActorSettings(save=1)), Remembers(), folder=tmp_path
    )
    assert [path.name for path in tmp_path.iterdir()] == ["compressor.npz"]
    link = compressed(Given(versions(1)), Remembers(), folder=tmp_path, resume=True)
    # Saved on being asked, before the second push of three.
    assert pushes_counted(link.published[0]) == 2
