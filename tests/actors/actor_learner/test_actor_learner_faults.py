"""Whole trainings with real processes: what they survive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from actor_learner_parts import CARTPOLE, impala, settings
from engine_runs import (
    PATIENCE,
    check_nothing_left,
    compressor_pushes,
    replay_training,
    segments,
)
from faulty_environments import Remembers, pushes_counted
from waiting import until

from vinoreward.errors import ConfigError, OutputError
from vinoreward.files import read_state, save_state
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.checkpoint import load_checkpoint
from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.trainer import ActorLearner, ActorLearnerConfig, Progress
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.policies.spec import mlp

TESTS = Path(__file__).parents[2] / "support"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


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
    @pytest.mark.parametrize("lag", [0, 2])
    def test_a_compressor_that_fails_at_once_ends_a_fixed_lag(self, lag: int) -> None:
        """Nobody could go on, or would say so: actors wait for version 0, the learner for them."""
        network = mlp(4, 2, head="logits", hidden=(8,), value=True)
        learner = Impala(network, ImpalaConfig(trajectories=1, precision="fp32"))
        chain = CompressorChain().add(Quantize("int8"))
        trainer = ActorLearner("CartPole-v1", learner, settings(lag=lag), compressor=chain)
        with pytest.raises(EngineError, match=r"failed on version 0: .*Expected a layer between"):
            trainer.learn(1_000_000)

    def test_weights_that_are_nan(self, tmp_path: Path) -> None:
        """Neither actors nor the checkpoint get them; the last good one is gone on from."""
        learner = Poisoned(CARTPOLE, ImpalaConfig(trajectories=2, precision="fp32"))
        trainer = ActorLearner(
            "CartPole-v1", learner, settings(checkpoint_seconds=1e-9), folder=tmp_path
        )
        with pytest.raises(
            OutputError, match=r"after 4 updates the learner's .* has NaN.*Nothing of it"
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
            ImpalaConfig(trajectories=2, learning_rate=1e30, max_grad_norm=1e30, precision="fp32"),
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

    def test_what_a_slow_learner_has_not_read_yet_counts_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # It takes one trajectory after the other, as from an actor that is slow.
        monkeypatch.setattr("vinoreward_actors.actor_learner.sampler.TAKE_TIMEOUT", 0.0)
        environment = EnvironmentSpec("faulty_environments:Numbered", {"fault": "raise", "at": 75})
        spec = mlp(2, 2, head="logits", hidden=(8,), value=True)
        learner = Impala(spec, ImpalaConfig(trajectories=2, precision="fp32"))
        trainer = ActorLearner(environment, learner, settings(restarts=1), folder=tmp_path)

        def progressed(progress: Progress) -> None:
            if progress.updates == 6:
                time.sleep(3)  # the last actor hands over two more and is given up

        with pytest.raises(EngineError, match="the simulator fell over"):
            trainer.learn(1_000_000, progressed)
        assert (trainer.steps, learner.updates) == (140, 7)

    def test_no_environment(self) -> None:
        with pytest.raises(ConfigError, match="is not a function"):
            ActorLearner("faulty_environments:nothing", impala())
        with pytest.raises(ConfigError, match=r"Expected a Box of float32 .* of the shape \(4,\)"):
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
        paths = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
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
            until(lambda: segments(pid) == [])
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
            until(lambda: len(training.children()) >= 3)
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
        rows = [one._state.observations.rows for one in (again, first)]
        np.testing.assert_array_equal(*rows)

    def test_a_broken_checkpoint_is_said(self, tmp_path: Path) -> None:
        from vinoreward.errors import ModelCorruptError

        (tmp_path / "checkpoint.pt").write_bytes(b"not a checkpoint")
        with pytest.raises(ModelCorruptError, match="delete it to start over"):
            ActorLearner("CartPole-v1", impala(), settings(), folder=tmp_path, resume=True)

    def test_a_checkpoint_that_does_not_fit_is_said(self, tmp_path: Path) -> None:
        from vinoreward.errors import ModelCorruptError

        ActorLearner("CartPole-v1", impala(), settings(), folder=tmp_path).learn(20)
        state = read_state(tmp_path / "checkpoint.pt")
        learner = state["learner"]
        for change in (
            {**learner, "parts": dict.fromkeys(learner["parts"], 5)},
            {**learner, "updates": "many"},
            {**learner, "draws": torch.zeros(3)},
            {**learner, "speed": []},
        ):
            save_state(tmp_path / "checkpoint.pt", {**state, "learner": change})
            with pytest.raises((ModelCorruptError, ConfigError), match=r"not fit.*Expected"):
                ActorLearner("CartPole-v1", impala(), settings(), folder=tmp_path, resume=True)
