"""Whole trainings with real processes: what they promise."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import pytest
from actor_learner_parts import CARTPOLE, Keeps, Switches, dqn, impala, settings, weights_of
from engine_runs import (
    check_nothing_left,
    config,
    process_named,
    random_policy,
    started,
    until,
)
from faulty_environments import Remembers, Slow

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.engines.base import Engine
from vinoreward_actors.actor_learner.learners.base import Consumption
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.sampler import Sampler
from vinoreward_actors.actor_learner.trainer import ActorLearner, Progress, limiter_for
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import TrajectorySpec
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.graph import Compile
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring.indicators import KL
from vinoreward_actors.monitoring.monitor import Monitor
from vinoreward_actors.monitoring.strategy import CompressionSetting
from vinoreward_actors.policies.spec import mlp


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


class Replays(Impala):
    """Says of itself what learners with a replay of their own say."""

    @property
    def consumption(self) -> Consumption:
        return Consumption(1, any_age=True)


class TestFixedLag:
    @pytest.mark.slow
    @pytest.mark.parametrize(("actors", "compressed"), [(1, False), (2, True)])
    def test_repeats_to_the_bit(self, actors: int, compressed: bool) -> None:
        def trained(seed: int) -> str:
            chain = CompressorChain().add(Quantize("int8")).add(Compile("openvino"))
            learner = impala()
            ActorLearner(
                "CartPole-v1",
                learner,
                settings(actors=actors, lag=1, seed=seed, backend="openvino"),
                compressor=chain if compressed else None,
            ).learn(300)
            return weights_of(learner)

        first = trained(0)
        assert first == trained(0)
        # Another seed is another training.
        assert compressed or first != trained(1)

    @pytest.mark.slow
    def test_repeats_to_the_bit_while_a_strategy_switches(self) -> None:
        def trained() -> tuple[str, list[int]]:
            learner = Keeps()
            ActorLearner(
                "CartPole-v1",
                learner,
                settings(actors=2, lag=1, monitor_period=3),
                compressor=CompressorChain().add(Remembers()).add(Quantize("int8")),
                monitor=Monitor([KL("max", "pi_mu")], Switches()),
            ).learn(360)
            return weights_of(learner), [int(one[0].network[0, 0]) for one in learner.given]

        first = trained()
        assert first == trained()
        assert {0, 1} == set(first[1])

    @pytest.mark.parametrize("lag", [0, 2])
    def test_versions_are_exact(self, lag: int) -> None:
        learner = Keeps(trajectories=2)
        seen: list[Progress] = []
        ActorLearner("CartPole-v1", learner, settings(actors=2, lag=lag)).learn(200, seen.append)  # type: ignore[arg-type]
        assert len(learner.given) == 10
        for update, given in enumerate(learner.given):
            assert [one.actor for one in given] == [0, 1]
            for one in given:
                assert np.unique(one.versions).tolist() == [max(0, update - lag)]
        lags = [one.metrics["lag_mean"] for one in seen]
        assert lags == [min(update, lag) for update in range(10)]

    def test_refused_where_it_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match="multiple of the 2 actors"):
            ActorLearner("CartPole-v1", impala(3), settings(actors=2, lag=1)).learn(100)
        with pytest.raises(ConfigError, match="push_period=2"):
            settings(lag=1, push_period=2)


class TestTraining:
    @pytest.mark.slow
    def test_learns_with_compressed_actors(self) -> None:
        """The mean return of CartPole doubles: weights go out, experience comes back."""
        learner = Impala(
            CARTPOLE,
            ImpalaConfig(trajectories=4, seed=1, learning_rate=3e-3, precision="fp32"),
        )
        chain = CompressorChain().add(Quantize("int8")).add(Compile("openvino"))
        last: list[Progress] = []

        def progressed(progress: Progress) -> bool:
            last[:] = [progress]
            return progress.episodes > 150 and progress.mean_return > 60

        summary = ActorLearner(
            "CartPole-v1",
            learner,
            settings(actors=2, environments=4, backend="openvino", lag=1),
            compressor=chain,
        ).learn(150_000, progressed)
        assert summary.stopped
        assert last[0].metrics["compressed_share"] > 0
        assert summary.compressed is not None
        assert summary.compressed.ranges
        assert summary.profile.steps >= summary.steps
        assert "network takes" in summary.profile.advice(0.0)

    def test_progress_and_summary(self) -> None:
        seen: list[Progress] = []
        trainer = ActorLearner("CartPole-v1", impala(), settings(actors=2, environments=8, steps=5))
        summary = trainer.learn(800, lambda progress: seen.append(progress))
        assert [one.updates for one in seen] == list(range(1, len(seen) + 1))
        assert [one.steps for one in seen] == [80 * at for at in range(1, len(seen) + 1)]
        assert summary.steps == trainer.steps == 800
        assert summary.policy.version == 10
        assert summary.compressed is None
        assert sum(len(one.ended) for one in seen) == seen[-1].episodes
        assert seen[-1].metrics["compressed_share"] == 0.0
        assert all(one.metrics["lag_max"] >= one.metrics["lag_mean"] >= 0 for one in seen)

    def test_a_compression_that_fails_after_the_last_update_is_in_the_summary(self) -> None:
        # Both layers stay float in INT8, so each version fails, long after the 40 steps.
        learner = Impala(mlp(4, 2, head="logits", hidden=(8,), value=True), ImpalaConfig())
        chain = CompressorChain().add(Slow(2.0)).add(Quantize("int8"))
        summary = ActorLearner("CartPole-v1", learner, settings(), compressor=chain).learn(40)
        assert summary.compressor, "the error is lost"
        assert all("a layer between them" in report["error"] for report in summary.compressor)
        assert summary.compressed is None

    def test_observations_of_float64(self) -> None:
        """Rounded on their way in: the same training as with float32, to the bit."""

        def trained(dtype: str) -> str:
            network = mlp(2, 2, head="logits", hidden=(8,), value=True)
            learner = Impala(network, ImpalaConfig(trajectories=2, seed=0, precision="fp32"))
            environment = EnvironmentSpec("faulty_environments:Numbered", {"dtype": dtype})
            ActorLearner(environment, learner, settings(lag=0)).learn(40)
            return weights_of(learner)

        assert trained("float64") == trained("float32")

    def test_learning_again_goes_on(self) -> None:
        trainer = ActorLearner("CartPole-v1", impala(), settings())
        trainer.learn(100)
        summary = trainer.learn(300)
        assert summary.steps == 300
        assert summary.policy.version == 15

    def test_on_progress_ends_it(self) -> None:
        summary = ActorLearner("CartPole-v1", impala(), settings()).learn(
            10_000, lambda progress: progress.updates == 3
        )
        assert summary.stopped
        assert summary.updates == 3

    @pytest.mark.slow
    def test_half_of_the_blocks_are_compressed(self) -> None:
        learner = Keeps()
        monitor = Monitor([KL("max", "pi_mu")], setting=CompressionSetting(alpha=0.5))
        began: list[int] = []

        def progressed(progress: Progress) -> bool:
            if progress.metrics["compressed_share"] and not began:
                began.append(len(learner.given))
            return bool(began) and len(learner.given) - began[0] > 120

        ActorLearner(
            "CartPole-v1",
            learner,
            settings(max_staleness=10_000),
            compressor=CompressorChain().add(Quantize("int8")),
            monitor=monitor,
        ).learn(1_000_000, progressed)
        kinds = np.array(
            [one.network[:, 0] for given in learner.given[began[0] :] for one in given]
        )
        assert (kinds == kinds[:, :1]).all()
        # 240 fair coins: five standard deviations.
        assert abs(kinds[:, 0].mean() - 0.5) < 5 * 0.5 / 240**0.5

    def test_trajectories_that_are_too_old_are_dropped(self) -> None:
        """Of six that wait, all of version 0, the learner of version 10 gets two, 11 none."""
        told = config(CARTPOLE, "CartPole-v1", actors=2, slots=3, steps=5, max_lag=10)
        with started(told, ActorSettings(pull_period=10**6)) as engine, ExitStack() as stack:
            until(lambda: engine.waiting() == 6)
            intake = Sampler(engine, impala(2), settings(max_lag=10), None, [])
            found = intake.take(stack, 10)
            assert found is not None
            assert (len(found), intake.dropped) == (2, 0)
            assert intake.take(stack, 11) is None
            assert intake.dropped == 4
            # What was dropped was acted all the same.
            assert intake.steps == 5 * (2 + 4)
            stack.close()
            # Actors pull for that, long before their period is over.
            engine.publish(random_policy(CARTPOLE, version=11))
            while (found := intake.take(stack, 11)) is None:
                stack.close()
            assert len(found) == 2
            assert min(one.versions.min() for one in found) == 11

    def test_the_lag_is_bounded_whatever_the_pull_period(self) -> None:
        lags: list[float] = []
        ActorLearner("CartPole-v1", impala(), settings(max_lag=3, pull_period=10**6)).learn(
            3000, lambda progress: lags.append(progress.metrics["lag_max"])
        )
        assert 0 < max(lags) <= 3
        assert len(lags) > 10

    def test_compressed_weights_come_back_under_a_short_bound(self) -> None:
        """Too old, they do not act; newer ones do before the pull period is over."""
        shares: list[float] = []

        def progressed(progress: Progress) -> bool:
            if shares or progress.metrics["compressed_share"]:
                shares.append(progress.metrics["compressed_share"])
            return len(shares) >= 300

        ActorLearner(
            "CartPole-v1",
            impala(),
            settings(max_lag=3, pull_period=10**6),
            compressor=CompressorChain().add(Remembers()),
        ).learn(1_000_000, progressed)
        late = shares[len(shares) // 2 :]
        assert sum(late) / len(late) > 0.2

    def test_a_learner_with_a_replay_of_its_own_is_given_what_is_old_too(self) -> None:
        told = config(CARTPOLE, "CartPole-v1", actors=1, slots=6, steps=5)
        learner = Replays(CARTPOLE, ImpalaConfig())
        with started(told) as engine, ExitStack() as stack:
            until(lambda: engine.waiting() == 6)
            intake = Sampler(engine, learner, settings(max_lag=10), None, [])
            found = intake.take(stack, 100)
            assert found is not None
            assert (len(found), intake.dropped) == (1, 0)

    def test_a_trajectory_is_as_old_as_its_oldest_step(self) -> None:
        one = TrajectorySpec(3, 1, (4,), "float32", (), 2).empty()
        one.versions[:, 0] = [4, 5, 9]
        engine = create_autospec(Engine)
        engine.take.return_value = nullcontext([one])
        engine.waiting.return_value = 0
        intake = Sampler(engine, impala(1), settings(max_lag=10), None, [])
        with ExitStack() as stack:
            assert intake.take(stack, 14) == [one] and intake.dropped == 0
            assert intake.take(stack, 15) is None and intake.dropped == 1

    def test_more_trajectories_than_the_actors_left_have_room_for(self) -> None:
        """Of two actors one dies for good; updates of six go on with what the other sends."""
        killed: list[int] = []

        def progressed(progress: Progress) -> bool:
            if not killed:
                killed.append(progress.updates)
                os.kill(process_named("actor 0").pid, signal.SIGKILL)
            return progress.updates - killed[0] > 12

        summary = ActorLearner("CartPole-v1", impala(6), settings(actors=2, restarts=0)).learn(
            1_000_000, progressed
        )
        assert summary.stopped


class TestSamplesPerInsert:
    @pytest.mark.slow
    def test_is_kept_on_both_sides(self) -> None:
        ratio = 4.0
        learner = dqn()
        config = settings(actors=2, steps=5, samples_per_insert=ratio)
        limiter = limiter_for(learner, config)
        assert limiter is not None
        seen: list[Progress] = []
        ActorLearner("CartPole-v1", learner, config).learn(
            1500, lambda progress: seen.append(progress)
        )
        for one in seen:
            # What the learner was given is a little less than what actors have inserted.
            surplus = limiter.surplus(one.steps, 16 * one.updates)
            assert -limiter.error_buffer - ratio * 10 * 4 <= surplus <= limiter.error_buffer
        samples = 16 * learner.updates
        assert samples / (1500 - 100) == pytest.approx(ratio, rel=0.25)
        # Nothing that was taken was kept from the replay.
        assert learner.replay.inserted >= 1500 - 2 * limiter.error_buffer / ratio

    def test_what_waits_for_the_limit_is_part_of_the_checkpoint(self, tmp_path: Path) -> None:
        """One update for 1600 steps: nearly all of them wait."""
        config = settings(samples_per_insert=0.01)
        first = dqn()
        trainer = ActorLearner("CartPole-v1", first, config, folder=tmp_path)
        trainer.learn(600)
        assert first.replay.inserted < 400 < trainer.steps
        again = dqn()
        resumed = ActorLearner("CartPole-v1", again, config, folder=tmp_path, resume=True)
        assert resumed.steps == trainer.steps
        assert again.replay.inserted == first.replay.inserted
        # The next update takes in what waited; also when the same training goes on.
        for training, learner in ((resumed, again), (trainer, first)):
            training.learn(1_000_000, lambda progress: True)
            assert learner.replay.inserted == training.steps

    def test_not_counted_anew_with_a_full_replay(self, tmp_path: Path) -> None:
        learner = dqn()
        ActorLearner("CartPole-v1", learner, settings(), folder=tmp_path).learn(300)
        again = dqn()
        ActorLearner("CartPole-v1", again, settings(), folder=tmp_path, resume=True)
        assert again.ready
        limiter = limiter_for(again, settings())
        assert limiter is not None
        assert limiter.min_size == 1
