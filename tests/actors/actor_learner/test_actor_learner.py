"""Whole trainings with real processes: what they promise."""

import os
import signal
from contextlib import ExitStack, nullcontext
from unittest.mock import create_autospec

import numpy as np
import pytest
from actor_learner_parts import (
    CARTPOLE,
    Keeps,
    Switches,
    dqn,
    impala,
    settings,
    training,
    weights_of,
)
from engine_runs import config, process_named, random_policy, started, until
from faulty_environments import Remembers, Slow

from vinoreward_actors.actor_learner.engines.base import Engine
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.sampler import Sampler
from vinoreward_actors.actor_learner.trainer import limiter_for
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import TrajectorySpec
from vinoreward_actors.compression.compile import Compile
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring.indicators import KL, CumulativeReward
from vinoreward_actors.monitoring.monitor import Monitor
from vinoreward_actors.policies.spec import mlp

pytestmark = pytest.mark.usefixtures("nothing_left")


# In one process


@pytest.mark.slow
def test_inline_repeats_to_the_bit_while_a_strategy_switches():
    """And its monitor hears of every evaluation at the same update."""

    def trained(seed=0):
        learner = Keeps()
        monitor = Monitor([KL("max", "pi_mu"), CumulativeReward()], Switches())
        told = {"engine": "inline", "evaluate_every": 200}
        student = mlp(4, 2, head="logits", hidden=(12,), value=True)
        stages = Remembers(), Distill(3, student=student, cold_steps=4)
        training(
            learner, *stages, monitor=monitor, actors=2, seed=seed, evaluation_episodes=2, **told
        ).learn(760)
        networks = [int(one[0].network[0, 0]) for one in learner.given]
        readings = [(one.version, dict(one.values)) for one in monitor.readings]
        return weights_of(learner), networks, readings

    first = trained()
    assert first == trained()
    assert {0, 1} == set(first[1])
    assert sum("return" in str(reading) for reading in first[2]) == 3
    assert first[0] != trained(seed=1)[0]


# Training


@pytest.mark.slow
def test_it_learns_with_compressed_actors():
    """The mean return of CartPole doubles: weights go out, experience comes back."""
    config = ImpalaConfig(trajectories=4, seed=1, learning_rate=3e-3, precision="fp32")
    last = []

    def progressed(progress):
        last[:] = [progress]
        return progress.episodes > 150 and progress.mean_return > 60

    stages = Quantize("int8"), Compile("openvino")
    told = {"actors": 2, "environments": 4, "backend": "openvino"}
    summary = training(Impala(CARTPOLE, config), *stages, **told).learn(150_000, progressed)
    assert summary.stopped
    assert last[0].metrics["compressed_share"] > 0
    assert summary.compressed is not None and summary.compressed.ranges
    assert summary.profile.steps >= summary.steps
    assert "for the network" in summary.profile.advice(0.0)


def test_progress_and_summary_and_that_learning_again_goes_on():
    seen = []
    trainer = training(actors=2, environments=8, steps=5)
    summary = trainer.learn(800, seen.append)
    assert [(one.updates, one.steps) for one in seen] == [(at, 80 * at) for at in range(1, 11)]
    assert summary.steps == trainer.steps == 800
    assert (summary.policy.version, summary.compressed) == (10, None)
    assert sum(len(one.ended) for one in seen) == seen[-1].episodes
    assert seen[-1].metrics["compressed_share"] == 0.0
    assert all(one.metrics["lag_max"] >= one.metrics["lag_mean"] >= 0 for one in seen)
    again = trainer.learn(10_000, lambda progress: progress.updates == 13)
    assert again.stopped
    assert (again.updates, again.policy.version) == (13, 13)


def test_a_compression_that_fails_after_the_last_update_is_in_the_summary():
    # Both layers stay float in INT8, so each version fails, long after the 40 steps.
    learner = Impala(mlp(4, 2, head="logits", hidden=(8,), value=True), ImpalaConfig())
    summary = training(learner, Slow(1.0), Quantize("int8")).learn(40)
    assert summary.compressor, "the error is lost"
    assert all("a layer between them" in report["error"] for report in summary.compressor)
    assert summary.compressed is None


# How old experience and weights may be


def test_trajectories_that_are_too_old_are_dropped():
    """Of six that wait, all of version 0, the learner of version 10 gets two, 11 none."""
    told = config(CARTPOLE, "CartPole-v1", actors=2, slots=3, steps=5, max_lag=10)
    with started(told, ActorSettings(pull_period=10**6)) as engine, ExitStack() as stack:
        until(lambda: engine.waiting() == 6)
        intake = Sampler(engine, impala(2), settings(max_lag=10), None, [])
        found = intake.take(stack, 10)
        assert found is not None
        assert (len(found), intake.dropped) == (2, 0)
        for dropped in (2, 4):
            assert intake.take(stack, 11) is None
            assert intake.dropped == dropped
        # What was dropped was acted all the same.
        assert intake.steps == 5 * (2 + 4)
        stack.close()
        # Actors pull for that, long before their period is over.
        engine.publish(random_policy(CARTPOLE, version=11))
        while (found := intake.take(stack, 11)) is None:
            stack.close()
        assert len(found) == 2
        assert min(one.versions.min() for one in found) == 11


def test_a_trajectory_is_as_old_as_its_oldest_step():
    one = TrajectorySpec(3, 1, (4,), "float32", (), 2).empty()
    one.versions[:, 0] = [4, 5, 9]
    engine = create_autospec(Engine)
    engine.take.return_value = nullcontext([one])
    engine.waiting.return_value = 0
    intake = Sampler(engine, impala(1), settings(max_lag=10), None, [])
    with ExitStack() as stack:
        assert intake.take(stack, 14) == [one] and intake.dropped == 0
        assert intake.take(stack, 15) is None and intake.dropped == 1


def test_the_lag_is_bounded_whatever_the_pull_period():
    lags = []
    training(max_lag=3, pull_period=10**6).learn(
        3000, lambda progress: lags.append(progress.metrics["lag_max"])
    )
    assert 0 < max(lags) <= 3
    assert len(lags) > 10


def test_compressed_weights_come_back_under_a_short_bound():
    """Too old, they do not act; newer ones do before the pull period is over."""
    shares = []

    def progressed(progress):
        if shares or progress.metrics["compressed_share"]:
            shares.append(progress.metrics["compressed_share"])
        return len(shares) >= 300

    training(None, Remembers(), max_lag=3, pull_period=10**6).learn(1_000_000, progressed)
    assert np.mean(shares[len(shares) // 2 :]) > 0.2


def test_more_trajectories_than_the_actors_left_have_room_for():
    """Of two actors one dies for good; updates of six go on with what the other sends."""
    killed = []

    def progressed(progress):
        if not killed:
            killed.append(progress.updates)
            os.kill(process_named("actor 0").pid, signal.SIGKILL)
        return progress.updates - killed[0] > 12

    assert training(impala(6), actors=2, restarts=0).learn(1_000_000, progressed).stopped


# Samples per insert


@pytest.mark.slow
def test_samples_per_insert_are_kept_on_both_sides():
    ratio, learner, seen = 4.0, dqn(), []
    told = {"actors": 2, "steps": 5, "samples_per_insert": ratio}
    limiter = limiter_for(learner, settings(**told))
    assert limiter is not None
    training(learner, **told).learn(1500, seen.append)
    for one in seen:
        # What the learner was given is a little less than what actors have inserted.
        surplus = limiter.surplus(one.steps, 16 * one.updates)
        assert -limiter.error_buffer - ratio * 10 * 4 <= surplus <= limiter.error_buffer
    assert 16 * learner.updates / (1500 - 100) == pytest.approx(ratio, rel=0.25)
    # Nothing that was taken was kept from the replay.
    assert learner.replay.inserted >= 1500 - 2 * limiter.error_buffer / ratio


def test_what_waits_for_the_limit_is_part_of_the_checkpoint(tmp_path):
    """One update for 1600 steps: nearly all of them wait."""
    first, again = dqn(), dqn()
    trainer = training(first, folder=tmp_path, samples_per_insert=0.01)
    trainer.learn(600)
    assert first.replay.inserted < 400 < trainer.steps
    resumed = training(again, folder=tmp_path, resume=True, samples_per_insert=0.01)
    assert (resumed.steps, again.replay.inserted) == (trainer.steps, first.replay.inserted)
    # With a full replay the steps before learning are not counted anew.
    limiter = limiter_for(again, settings())
    assert limiter is not None and again.ready and limiter.min_size == 1
    # The next update takes in what waited; also when the same training goes on.
    for either, learner in ((resumed, again), (trainer, first)):
        either.learn(1_000_000, lambda progress: True)
        assert learner.replay.inserted == either.steps
