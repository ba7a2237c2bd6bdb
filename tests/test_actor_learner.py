"""Whole trainings with real processes: what they promise, and what they survive."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import psutil
import pytest
import torch
from engine_runs import (
    PATIENCE,
    check_nothing_left,
    compressor_pushes,
    config,
    process_named,
    replay_training,
    segments,
    started,
    until,
)
from faulty_environments import Harms, Remembers, pushes_counted

from vinoreward.actor_learner import training_loop
from vinoreward.actor_learner.actor_learner import ActorLearner, ActorLearnerConfig, Progress
from vinoreward.actor_learner.checkpoint import load_checkpoint
from vinoreward.actor_learner.engine_setup import limiter_for
from vinoreward.actor_learner.engines.base import Engine, EngineError
from vinoreward.actor_learner.environments import EnvironmentSpec
from vinoreward.actor_learner.intake import Intake
from vinoreward.actor_learner.learners.dqn import DQN, DQNConfig
from vinoreward.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward.actor_learner.recent import RecentObservations
from vinoreward.actor_learner.steering import Steering
from vinoreward.actor_learner.trajectory import COMPRESSED, Trajectory, TrajectorySpec
from vinoreward.compression.chain import CompressorChain
from vinoreward.compression.compile import Compile
from vinoreward.compression.prune import Prune
from vinoreward.compression.quantize import Quantize
from vinoreward.errors import ConfigError, OutputError
from vinoreward.monitoring.defaults import default_monitor
from vinoreward.monitoring.indicators import KL
from vinoreward.monitoring.monitor import Monitor
from vinoreward.monitoring.setting import CompressionSetting
from vinoreward.monitoring.strategy import Strategy
from vinoreward.policies.distributions import kl
from vinoreward.policies.reference import forward
from vinoreward.policies.spec import mlp

CARTPOLE = mlp(4, 2, head="logits", hidden=(16, 16), activation="tanh", value=True)
TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


def impala(trajectories: int = 2, seed: int = 0) -> Impala:
    return Impala(CARTPOLE, ImpalaConfig(trajectories=trajectories, seed=seed, precision="fp32"))


def dqn(**config: Any) -> DQN:
    settings = {"batch": 16, "minimum": 100, "capacity": 4000, "precision": "fp32"} | config
    return DQN(mlp(4, 2, head="q", hidden=(16, 16)), DQNConfig(**settings))


def settings(**changed: Any) -> ActorLearnerConfig:
    return ActorLearnerConfig(
        **({"actors": 1, "steps": 10, "executor": "numpy", "pull_period": 10} | changed)
    )


def weights_of(learner: Impala | DQN) -> str:
    values = learner.policy(0).float_parameters().values()
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()


class Keeps(Impala):
    """Keeps what it was given."""

    def __init__(self, trajectories: int = 2) -> None:
        super().__init__(
            CARTPOLE, ImpalaConfig(trajectories=trajectories, seed=0, precision="fp32")
        )
        self.given: list[list[Trajectory]] = []

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        self.given.append([one.copy() for one in trajectories])
        return super().update(trajectories)


class Switches(Strategy):
    """Turns compression off and on at every other look."""

    def decide(self, readings: Any, setting: CompressionSetting) -> CompressionSetting:
        return setting.changed({"enabled": not setting.enabled})


class TestFixedLag:
    @pytest.mark.slow
    @pytest.mark.parametrize("actors", [1, 2])
    @pytest.mark.parametrize("compressed", [False, True])
    def test_repeats_to_the_bit(self, actors: int, compressed: bool) -> None:
        def trained(seed: int) -> str:
            chain = CompressorChain().add(Quantize("int8")).add(Compile("openvino"))
            learner = impala()
            ActorLearner(
                "CartPole-v1",
                learner,
                settings(actors=actors, lag=1, seed=seed, executor="openvino"),
                compressor=chain if compressed else None,
            ).learn(600)
            return weights_of(learner)

        first = trained(0)
        assert first == trained(0)
        # Another seed is another training.
        assert compressed or actors > 1 or first != trained(1)

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
            ).learn(600)
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
        with pytest.raises(ConfigError, match="multiple of the actors"):
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
            settings(actors=2, environments=4, executor="openvino", lag=1),
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

    @pytest.mark.parametrize("bits", [16, 4])
    def test_communication_bits(self, bits: int) -> None:
        seen: list[Progress] = []
        ActorLearner("CartPole-v1", impala(), settings(bits=bits)).learn(
            300, lambda progress: seen.append(progress)
        )
        assert np.isfinite(seen[-1].metrics["loss"])

    @pytest.mark.parametrize(("version", "dropped"), [(10, 0), (11, 10)])
    def test_trajectories_that_are_too_old_are_dropped(self, version: int, dropped: int) -> None:
        """As long as there are others: of twelve that wait, all of version 0, the last two stay."""
        told = config(CARTPOLE, "CartPole-v1", actors=2, slots=6, steps=5)
        with started(told) as engine, ExitStack() as stack:
            until(lambda: engine.waiting() == 12)
            intake = Intake(engine, impala(2), settings(max_lag=10), None, [])
            found = intake.take(stack, version)
            assert found is not None
            assert (len(found), intake.dropped) == (2, dropped)
            # What was dropped was acted all the same.
            assert intake.steps == 5 * (2 + dropped)

    def test_a_trajectory_is_as_old_as_its_oldest_step(self) -> None:
        intake = Intake(create_autospec(Engine), impala(), settings(max_lag=10), None, [])
        one = TrajectorySpec(3, 1, (4,), "float32", (), 2).empty()
        one.versions[:, 0] = [4, 5, 9]
        assert [intake._too_old(one, version) for version in (14, 15)] == [False, True]

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
    @pytest.mark.parametrize("ratio", [1.0, 16.0])
    def test_is_kept_on_both_sides(self, ratio: float) -> None:
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


class TestOrders:
    def test_the_chain_is_left_as_it_was_made(self) -> None:
        chain = CompressorChain().add(Prune(0.5)).add(Quantize("w4"))
        from vinoreward.actor_learner.orders import Orders

        for monitor in (None, Monitor([KL("max", "pi_mu")])):
            steering = Steering(impala(), settings(pull_period=7), chain, monitor)
            steering.begin()
            orders = steering.orders(Orders(), 0)
            assert (orders.bits, orders.sparsity, orders.pull_period) == (4, 0.5, 7)

    def test_what_the_user_set_stays(self) -> None:
        from vinoreward.actor_learner.orders import Orders

        chain = CompressorChain().add(Prune(0.5)).add(Quantize("int8"))
        monitor = Monitor(
            [KL("max", "pi_mu")], setting=CompressionSetting(sparsity=0.25, pull_period=30)
        )
        steering = Steering(impala(), settings(pull_period=7), chain, monitor)
        steering.begin()
        orders = steering.orders(Orders(), 0)
        assert (orders.bits, orders.sparsity, orders.pull_period) == (8, 0.25, 30)

    def test_a_switch_names_the_version_it_holds_from(self) -> None:
        from vinoreward.actor_learner.orders import Orders

        monitor = Monitor([KL("max", "pi_mu")])
        steering = Steering(impala(), settings(), CompressorChain(), monitor)
        first = steering.orders(Orders(), 0)
        assert first.enabled_at(0)
        monitor.setting = monitor.setting.changed({"enabled": False})
        off = steering.orders(first, 5)
        assert [off.enabled_at(version) for version in (3, 4, 5, 6)] == [True, True, False, False]
        assert steering.orders(off, 9).since == 5

    def test_compression_is_held_against_its_own_version(self) -> None:
        """And not only against the learner's present network, which has moved on."""
        learner = impala()
        monitor = Monitor([KL("max", "mu_pi", against="source"), KL("max", "mu_pi")])
        steering = Steering(learner, settings(), CompressorChain().add(Harms()), monitor)
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
            steering.keep(policy)
        steering.watch([one], 2)
        outputs = forward(versions[1], one.observations[1::2, 0])
        expected = kl(CARTPOLE, one.behaviour[1::2, 0], outputs).max()
        readings = steering.readings()
        assert readings["compression_kl_mu_pi_max"] == pytest.approx(expected, rel=1e-3)
        assert expected > 0.5

    @pytest.mark.slow
    def test_the_default_strategy_stops_a_compression_that_hurts(self) -> None:
        changes: list[str] = []

        def progressed(progress: Progress) -> bool:
            changes.extend(progress.changes)
            return len(changes) > 1 and progress.metrics["compressed_share"] == 0

        summary = ActorLearner(
            "CartPole-v1",
            impala(),
            settings(),
            compressor=CompressorChain().add(Harms()).add(Quantize("int8")),
            monitor=default_monitor("logits"),
        ).learn(1_000_000, progressed)
        assert summary.stopped
        assert "bits 8 -> 16" in changes[0]
        assert "enabled" in changes[-1]


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
        recent = RecentObservations(np.zeros((8, 3), np.float32), 16, each=4)
        for number in range(1, 10):
            one = self.spec().empty()
            one.observations[...] = number
            recent.add([one])
            one.observations[...] = -1  # memory that is used for something else
        assert recent.rows.shape == (16, 3)
        assert recent.rows[:, 0].tolist() == sorted([6, 7, 8, 9] * 4)

    def test_starts_with_what_it_is_given(self) -> None:
        recent = RecentObservations(np.arange(60, dtype=np.float32).reshape(20, 3), 16)
        np.testing.assert_array_equal(recent.rows[:, 0], np.arange(12, 60, 3))


class Poisoned(Impala):
    """Gives NaN weights after some updates."""

    at = 4

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        metrics = super().update(trajectories)
        if self.updates == self.at:
            with torch.no_grad():
                next(iter(self.actor.parameters())).fill_(float("nan"))
        return metrics


class TestFaults:
    def test_weights_that_are_nan(self, tmp_path: Path) -> None:
        """Neither actors nor the checkpoint get them; the last good one is gone on from."""
        learner = Poisoned(CARTPOLE, ImpalaConfig(trajectories=2, precision="fp32"))
        trainer = ActorLearner(
            "CartPole-v1", learner, settings(checkpoint_seconds=1e-9), folder=tmp_path
        )
        with pytest.raises(
            OutputError, match=r"after 4 updates the learner's .* holds NaN.*Nothing of it"
        ):
            trainer.learn(1_000_000)
        state = load_checkpoint(tmp_path)
        assert state is not None
        saved = state["learner"]["updates"]
        assert state["version"] == saved < 4
        again = Poisoned(CARTPOLE, ImpalaConfig(trajectories=2, precision="fp32"))
        again.at = 0
        resumed = ActorLearner("CartPole-v1", again, settings(), folder=tmp_path, resume=True)
        assert again.updates == saved
        assert resumed.learn(resumed.steps + 100).updates == saved + 5

    def test_a_learner_that_diverges(self) -> None:
        learner = Impala(
            CARTPOLE,
            ImpalaConfig(trajectories=2, learning_rate=1e30, clip_norm=1e30, precision="fp32"),
        )
        with pytest.raises(OutputError, match="diverged"):
            ActorLearner("CartPole-v1", learner, settings()).learn(1_000_000)

    def test_a_checkpoint_is_saved_when_actors_cannot_be_kept(self, tmp_path: Path) -> None:
        environment = EnvironmentSpec("faulty_environments:Numbered", {"fault": "raise", "at": 75})
        spec = mlp(2, 2, head="logits", hidden=(8,), value=True)
        learner = Impala(spec, ImpalaConfig(trajectories=2, precision="fp32"))
        trainer = ActorLearner(environment, learner, settings(restarts=1), folder=tmp_path)
        events: list[str] = []

        def progressed(progress: Progress) -> None:
            events.extend(str(each) for each in progress.events)

        with pytest.raises(EngineError, match="the simulator fell over"):
            trainer.learn(1_000_000, progressed)
        assert len(events) == 1
        state = load_checkpoint(tmp_path)
        assert state is not None
        # Each generation filled seven trajectories.
        assert state["steps"] == trainer.steps == 140
        assert state["learner"]["updates"] == 7

    def test_no_environment(self) -> None:
        with pytest.raises(ConfigError, match="is not a function"):
            ActorLearner("faulty_environments:nothing", impala())
        with pytest.raises(ConfigError, match=r"Expected a Box of float32\(4,\)"):
            ActorLearner("Pendulum-v1", impala())

    def test_settings_that_cannot_be(self) -> None:
        with pytest.raises(ConfigError, match=r"actors=0, steps=-1"):
            ActorLearnerConfig(actors=0, steps=-1)
        with pytest.raises(ConfigError, match=r"samples_per_insert=0"):
            ActorLearnerConfig(samples_per_insert=0)
        with pytest.raises(ConfigError, match=r"lag=-1"):
            ActorLearnerConfig(lag=-1)


# Trainings in a process of their own, to be killed and interrupted

SCRIPT = """
import sys
from pathlib import Path
from engine_runs import compressor_pushes, replay_training

folder = Path(sys.argv[1])
trainer = replay_training(folder)
print("begin", flush=True)

def progressed(progress):
    if progress.updates % 20 == 0 and compressor_pushes(folder) > 4:
        print("at", progress.steps, progress.updates, flush=True)

trainer.learn(10_000_000, progressed)
"""


class Training:
    """A training in its own process and process group, as one of a terminal has."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def line(self, word: str) -> list[int]:
        """The numbers of the next line that begins with a word."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            first, *numbers = line.split()
            if first == word:
                return [int(number) for number in numbers]
        raise AssertionError(self.process.communicate()[1])

    def children(self) -> list[psutil.Process]:
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in found if "resource_tracker" not in " ".join(one.cmdline())]

    def end(self) -> str:
        """Wait for its end and return what it wrote to the terminal."""
        return self.process.communicate(timeout=PATIENCE)[1]

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def check_goes_on(folder: Path) -> None:
    """Counters, replay and the compressor's state are taken up where they were."""
    state = load_checkpoint(folder)
    assert state is not None
    pushed = compressor_pushes(folder)
    trainer = replay_training(folder)
    learner = trainer.learner
    assert trainer.steps == state["steps"] > 100
    assert learner.updates == state["learner"]["updates"] > 0
    assert learner.replay.size > 100
    assert learner.ready
    seen: list[Progress] = []
    summary = trainer.learn(
        10_000_000, lambda progress: seen.append(progress) or compressor_pushes(folder) > pushed
    )
    assert summary.stopped
    assert seen[0].updates == state["learner"]["updates"] + 1
    assert seen[0].steps <= state["steps"] + 200
    assert summary.policy.version == state["version"] + len(seen)
    # Every policy that was made says how many the compressor has made in its life.
    assert summary.compressed is not None
    assert pushes_counted(summary.compressed) > pushed


class TestInterruption:
    @pytest.mark.slow
    def test_kill_and_resume(self, tmp_path: Path) -> None:
        """kill -9 of the learner: no orphan, nothing in shared memory, and it goes on."""
        with Training(tmp_path) as training:
            training.line("at")
            children = training.children()
            assert len(children) == 3
            pid = training.process.pid
            assert segments(pid) != []
            training.process.kill()
            gone, alive = psutil.wait_procs(children, timeout=PATIENCE)
            assert (len(gone), alive) == (3, [])
            deadline = time.monotonic() + PATIENCE
            while segments(pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert segments(pid) == []
            training.end()
        check_goes_on(tmp_path)

    @pytest.mark.slow
    def test_ctrl_c(self, tmp_path: Path) -> None:
        """SIGINT to the whole group, as a terminal sends it: saved, ended, and gone on with."""
        with Training(tmp_path) as training:
            *_, last = training.line("at")
            children = training.children()
            pid = training.process.pid
            os.killpg(pid, signal.SIGINT)
            said = training.end()
            assert training.process.returncode != 0
            # One KeyboardInterrupt, the learner's; children say nothing.
            assert said.count("Traceback") == 1, said
            assert said.rstrip().endswith("KeyboardInterrupt")
            assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []
            assert segments(pid) == []
        state = load_checkpoint(tmp_path)
        assert state is not None
        assert state["learner"]["updates"] >= last
        check_goes_on(tmp_path)

    @pytest.mark.slow
    def test_ctrl_c_while_it_starts(self, tmp_path: Path) -> None:
        """Processes that still import are not disturbed by it, and none is left."""
        with Training(tmp_path) as training:
            training.line("begin")
            deadline = time.monotonic() + PATIENCE
            while len(training.children()) < 3 and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.15)  # in the middle of their imports
            children = training.children()
            os.killpg(training.process.pid, signal.SIGINT)
            said = training.end()
            assert said.count("Traceback") == 1, said
            assert said.rstrip().endswith("KeyboardInterrupt")
            assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []
            assert segments(training.process.pid) == []
        assert load_checkpoint(tmp_path) is not None

    def test_a_compressor_of_another_training(self, tmp_path: Path) -> None:
        """What an older training left in the folder is not taken up by a new one."""
        np.savez(tmp_path / "compressor.npz", pushes=np.asarray(5))
        ActorLearner(
            "CartPole-v1",
            impala(),
            settings(),
            compressor=CompressorChain().add(Remembers()),
            folder=tmp_path,
        ).learn(20)
        assert not (tmp_path / "compressor.npz").exists() or compressor_pushes(tmp_path) < 5

    def test_observations_and_returns_are_resumed(self, tmp_path: Path) -> None:
        first = ActorLearner("CartPole-v1", impala(), settings(), folder=tmp_path)
        first.learn(400)
        again = ActorLearner("CartPole-v1", impala(), settings(), folder=tmp_path, resume=True)
        assert again.steps == 400
        assert again.recent_returns == first.recent_returns
        np.testing.assert_array_equal(again._recent.rows, first._recent.rows)

    def test_a_broken_checkpoint_is_said(self, tmp_path: Path) -> None:
        from vinoreward.errors import ModelCorruptError

        (tmp_path / "checkpoint.pt").write_bytes(b"not a checkpoint")
        with pytest.raises(ModelCorruptError, match="delete it to start anew"):
            ActorLearner("CartPole-v1", impala(), settings(), folder=tmp_path, resume=True)
