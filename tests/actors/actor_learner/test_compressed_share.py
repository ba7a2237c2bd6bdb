"""How much of a training acts compressed, how old that is, and that too little of it is said."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from actor_learner_parts import impala, settings, weights_of
from engine_runs import check_nothing_left
from faulty_environments import Slow
from plain_links import CARTPOLE, policy_of

from vinoreward_actors.actor_learner.compressor import (
    MISSED,
    TEACHING,
    Compressor,
    CompressorConfig,
    Pace,
)
from vinoreward_actors.actor_learner.progress import WINDOW, CompressedShare
from vinoreward_actors.actor_learner.trainer import ActorLearner, Progress
from vinoreward_actors.actor_learner.transport.link import ActorSettings, CompressorLink, Weights
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    Trajectory,
    TrajectorySpec,
)
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.monitoring import CompressionSetting, Monitor
from vinoreward_actors.monitoring.indicators import KL
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.policies.wire import encode


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


def rows(compressed: int, age: int, version: int, steps: int = 10) -> Trajectory:
    one = TrajectorySpec(steps, 1, (4,), "float32", (), 2).empty()
    one.network[...] = 0
    one.network[:compressed] = COMPRESSED
    one.versions[...] = version - age
    return one


class WorkPaced(CompressorLink):
    """Of a learner that pushes whenever the compressor has worked for ``interval`` seconds.

    These are of processor time: whatever else the machine does, weights are late by the same work.
    It ends ``pushes`` after the first compressed weights, which take long.
    """

    def __init__(self, interval: float, pushes: int) -> None:
        self._interval, self._pushes, self._began = interval, pushes, time.thread_time()
        self._newest = 0
        self.published: list[tuple[int, int]] = []
        """The learner's version when weights came out, and theirs."""

    @property
    def version(self) -> int:
        worked = time.thread_time() - self._began
        self._newest = max(self._newest, int(worked / self._interval))
        return self._newest

    @property
    def stopped(self) -> bool:
        return bool(self.published) and self.version >= self.published[0][0] + self._pushes

    def settings(self) -> ActorSettings:
        return ActorSettings()

    def report(self, kind: str, value: Any) -> None:
        assert "error" not in value, value

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        self._newest = max(self.version, have + 1)
        encoded = encode(policy_of(CARTPOLE, self._newest, seed=0))
        return Weights(encoded.header, encoded.payload())

    def observations(self) -> Any:
        return np.random.default_rng(0).normal(size=(1024, 4)).astype(np.float32)

    def publish(self, policy: Policy) -> None:
        self.published.append((self.version, policy.version))

    def staleness(self) -> list[int]:
        """How old the newest weights are at each of the learner's pushes after the first ones."""
        ages = []
        for (since, made_of), (until, _) in itertools.pairwise(self.published[1:]):
            ages += [version - made_of for version in range(since, until)]
        return ages


def test_an_expensive_student_is_at_most_20_pushes_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the median, where the learner pushes 500 times in a second of the compressor's work."""
    monkeypatch.setattr(time, "perf_counter", time.thread_time)
    student = mlp(4, 2, head="logits", hidden=(512, 512))
    link = WorkPaced(0.002, 400)
    Compressor(CompressorConfig(CompressorChain().add(Distill(student=student))), link).run()
    ages = link.staleness()
    assert len(ages) > 100 and np.median(ages) <= 20


class TestTrainings:
    @pytest.mark.slow
    def test_an_expensive_student_keeps_acting(self) -> None:
        """Teaching it is ten times the work of a learner's update, and it acts all the same."""
        student = mlp(4, 2, head="logits", hidden=(512, 512), value=True)
        compressed = updates = 0

        def watch(progress: Progress) -> bool:
            nonlocal compressed, updates
            share = progress.metrics["compressed_share"]
            if updates or share:
                updates += 1
                compressed += share > 0.5
            return updates >= 80

        summary = ActorLearner(
            "CartPole-v1",
            impala(4),
            settings(steps=20, pull_period=20),
            compressor=CompressorChain().add(Distill(student=student)),
        ).learn(200_000, watch)
        assert summary.stopped, "it never acted compressed"
        assert compressed >= 0.9 * updates
        assert summary.compressed_share >= 0.9
        assert 0 <= summary.staleness <= 100

    @pytest.mark.slow
    def test_weights_that_are_always_too_old_are_told(self) -> None:
        told: list[str] = []

        def watch(progress: Progress) -> bool:
            told.extend(str(event) for event in progress.events)
            return bool(told)

        chain = CompressorChain().add(Slow(0.5))
        summary = ActorLearner(
            "CartPole-v1", impala(), settings(max_staleness=0), compressor=chain
        ).learn(200_000, watch)
        assert "of the last 50 updates acted compressed" in told[0]
        assert "actors use none older than 0" in told[0] and "max_staleness" in told[0]
        assert summary.compressed_share < 0.5

    def test_a_compression_that_is_off_is_told_in_the_log_where_nobody_watches(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        monitor = Monitor([KL("max", "mu_pi")], setting=CompressionSetting(enabled=False))
        with caplog.at_level("WARNING", logger="vinoreward"):
            summary = ActorLearner(
                "CartPole-v1",
                impala(),
                settings(),
                compressor=CompressorChain().add(Slow(0.5)),
                monitor=monitor,
            ).learn(WINDOW * 20 + 200)
        assert "only 0% of the steps" in caplog.text and "switched off" in caplog.text
        assert summary.compressed_share == 0.0 and math.isnan(summary.staleness)

    @pytest.mark.slow
    def test_with_a_fixed_lag_a_student_repeats_to_the_bit(self) -> None:
        """However fast the machine is: updates are counted, not timed."""

        def trained() -> str:
            learner = impala()
            student = mlp(4, 2, head="logits", hidden=(12,), value=True)
            chain = CompressorChain().add(Distill(3, student=student, cold_steps=4))
            ActorLearner("CartPole-v1", learner, settings(lag=1), compressor=chain).learn(60)
            return weights_of(learner)

        assert trained() == trained()


class TestCounts:
    def test_the_share_counts_from_the_first_compressed_step(self) -> None:
        found = CompressedShare()
        assert found.share == 0.0 and math.isnan(found.staleness)
        for _ in range(3):
            found.add([rows(0, 0, 7)], 7)
        found.add([rows(10, 2, 20), rows(10, 4, 20)], 20)
        found.add([rows(5, 9, 21)], 21)
        assert found.share == pytest.approx(25 / 30)
        assert found.staleness == 4.0

    def test_the_alarm_is_told_once_until_it_recovers(self) -> None:
        found, actor_settings = CompressedShare(), ActorSettings()
        for _ in range(WINDOW - 1):
            found.add([rows(0, 0, 0)], 0)
        assert found.alarm(actor_settings, 150, 100) is None
        found.add([rows(0, 0, 0)], 0)
        words = found.alarm(actor_settings, 150, 100)
        assert words is not None and "150 pushes old" in words and "older than 100" in words
        assert found.alarm(actor_settings, 150, 100) is None
        for share, told in ((10, False), (0, True)):
            for _ in range(WINDOW):
                found.add([rows(share, 0, 0)], 0)
            assert (found.alarm(actor_settings, 150, 100) is not None) is told

    def test_a_mix_that_a_monitor_chose_is_not_taken_for_lateness(self) -> None:
        found = CompressedShare()
        for _ in range(WINDOW):
            found.add([rows(0, 0, 0)], 0)
        words = found.alarm(ActorSettings(alpha=0.05), 3, 100)
        assert words is not None and "5% of the blocks" in words


class TestPace:
    def test_teaching_takes_half_of_the_time_between_pushes(self) -> None:
        pace = Pace()
        assert pace.seconds(3, 10.0) == 0.0
        assert pace.seconds(4, 11.0) == pytest.approx(TEACHING)
        assert pace.seconds(6, 13.0) == pytest.approx(2 * TEACHING)

    def test_a_late_compressor_does_not_get_later(self) -> None:
        pace = Pace()
        pace.seconds(0, 0.0)
        assert pace.seconds(1000, 10.0) == pytest.approx(TEACHING * 0.01 * MISSED)

    def test_a_pause_of_the_learner_does_not_lengthen_it(self) -> None:
        pace, now = Pace(), 0.0
        for version in range(6):
            pace.seconds(version, now)
            now += 1.0
        assert pace.seconds(6, now + 60.0) == pytest.approx(TEACHING)
        assert np.isfinite(pace.seconds(7, now + 61.0))
