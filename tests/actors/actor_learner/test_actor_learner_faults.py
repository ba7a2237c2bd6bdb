"""Whole trainings with real processes: what they survive, and from what they are resumed."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch
from actor_learner_parts import CARTPOLE, dqn, impala, training
from engine_runs import PATIENCE, compressor_pushes, replay_training
from faulty_environments import Remembers, pushes_counted
from waiting import until

from vinoreward.errors import ConfigError, ModelCorruptError, OutputError
from vinoreward.files import read_state, save_state
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.checkpoint import CHECKPOINT, load_checkpoint
from vinoreward_actors.actor_learner.compressor import STATE_FILE
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.learners.d4pg import D4PG, D4PGConfig
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.transport.trajectory import TrajectorySpec
from vinoreward_actors.compression import Compile
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring import default_monitor
from vinoreward_actors.policies.spec import mlp

pytestmark = pytest.mark.usefixtures("nothing_left")

TESTS = Path(__file__).parents[2] / "support"
FAST = ImpalaConfig(trajectories=2, precision="fp32")


class Poisoned(Impala):
    """Gives NaN weights after some updates."""

    at = 4

    def update(self, trajectories):
        metrics = super().update(trajectories)
        if self.updates == self.at:
            with torch.no_grad():
                next(iter(self.actor.parameters())).fill_(float("nan"))
        return metrics


# Faults


def test_weights_that_are_nan_reach_neither_actors_nor_the_checkpoint(tmp_path):
    """The last good ones are gone on from."""
    # Inline no checkpoint holds half of a batch, so that the updates can be counted.
    where = {"folder": tmp_path, "engine": "inline"}
    trainer = training(Poisoned(CARTPOLE, FAST), checkpoint_seconds=1e-9, **where)
    with pytest.raises(
        OutputError, match=r"after 4 updates the learner's .* has NaN.*Nothing of it"
    ):
        trainer.learn(1_000_000)
    state = load_checkpoint(tmp_path)
    saved = state["learner"]["updates"]
    assert state["version"] == saved < 4
    again = Poisoned(CARTPOLE, FAST)
    again.at = 0
    resumed = training(again, resume=True, **where)
    assert again.updates == saved
    assert resumed.learn(resumed.steps + 100).updates == saved + 5


def test_a_checkpoint_is_saved_when_actors_cannot_be_kept(tmp_path):
    environment = EnvironmentSpec("faulty_environments:Numbered", {"fault": "raise", "at": 75})
    learner = Impala(mlp(2, 2, head="logits", hidden=(8,), value=True), FAST)
    trainer = training(learner, environment=environment, restarts=1, folder=tmp_path)
    events = []
    with pytest.raises(EngineError, match="the simulator fell over"):
        trainer.learn(1_000_000, lambda progress: events.extend(map(str, progress.events)))
    assert len(events) == 1
    state = load_checkpoint(tmp_path)
    # Each generation filled seven trajectories.
    assert state["steps"] == trainer.steps == 140
    assert state["learner"]["updates"] == 7


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: training(environment="Pendulum-v1"), r"Expected a Box of float32 .*\(4,\)"),
        (lambda: ActorLearnerConfig(actors=0), "actors"),
        (lambda: ActorLearnerConfig(samples_per_insert=0), "samples_per_insert"),
        (lambda: ActorLearnerConfig(bits=4), "bits"),
    ],
)
def test_what_cannot_be_trained_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("learner", {"learner": object()}),  # such as a model of Stable-Baselines3
        ("environment", {"environment": gym.make("CartPole-v1")}),
        ("environment", {"environment": lambda: gym.make("CartPole-v1")}),
        ("environment", {"environment": gym.make_vec("CartPole-v1", 2)}),
        ("evaluation", {"evaluation": "CartPole-v1"}),
    ],
)
def test_an_argument_of_another_kind_is_named(field, given):
    with pytest.raises(ConfigError) as caught:
        training(**given)
    assert caught.value.field == field


def test_no_room_for_another_process():
    """The error is the documented one, and what was there is closed."""
    used = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    trainer = training(actors=8)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            trainer.learn(100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


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

    def __init__(self, folder):
        paths = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def wait_for(self, word):
        assert self.process.stdout is not None
        assert any(line.startswith(word) for line in self.process.stdout), (
            self.process.communicate()[1]
        )

    def children(self):
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in found if "resource_tracker" not in " ".join(one.cmdline())]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


@pytest.mark.slow
def test_kill_and_resume(tmp_path):
    """kill -9 of the learner: no orphan, and it goes on."""
    with Training(tmp_path) as killed:
        killed.wait_for("at")
        children = killed.children()
        assert len(children) == 3
        killed.process.kill()
        assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []
    state = load_checkpoint(tmp_path)
    assert state is not None
    pushed = compressor_pushes(tmp_path)
    trainer = replay_training(tmp_path)
    learner = trainer.learner
    assert trainer.steps == state["steps"] > 100
    assert learner.updates == state["learner"]["updates"] > 0
    assert learner.replay.size > 100 and learner.ready
    assert trainer.recent_returns == state["returns"]
    seen = []
    summary = trainer.learn(
        10_000_000, lambda progress: seen.append(progress) or compressor_pushes(tmp_path) > pushed
    )
    assert summary.stopped
    assert seen[0].updates == state["learner"]["updates"] + 1
    assert seen[0].steps <= state["steps"] + 200
    assert summary.policy.version == state["version"] + len(seen)
    # Every policy that was made says how many the compressor has made in its life.
    assert summary.compressed is not None
    assert pushes_counted(summary.compressed) > pushed


@pytest.mark.slow
def test_ctrl_c_while_it_starts(tmp_path):
    """Processes that still import are not disturbed by it, and none is left."""
    with Training(tmp_path) as interrupted:
        interrupted.wait_for("begin")
        until(lambda: len(interrupted.children()) >= 3)
        time.sleep(0.15)  # in the middle of their imports
        children = interrupted.children()
        os.killpg(interrupted.process.pid, signal.SIGINT)
        said = interrupted.process.communicate(timeout=PATIENCE)[1]
        # One KeyboardInterrupt, the learner's; children say nothing.
        assert said.count("Traceback") == 1, said
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []
    assert load_checkpoint(tmp_path) is not None


# Resuming


STAGES = Remembers(), Quantize("w4"), Compile("numpy")


def test_a_compressor_of_another_training_is_not_taken_up(tmp_path):
    np.savez(tmp_path / STATE_FILE, pushes=np.asarray(5))
    training(None, Remembers(), folder=tmp_path).learn(20)
    assert not (tmp_path / STATE_FILE).exists() or compressor_pushes(tmp_path) < 5


def test_a_checkpoint_that_is_broken_or_does_not_fit_is_said(tmp_path):
    training(folder=tmp_path).learn(20)
    state = read_state(tmp_path / CHECKPOINT)
    learner = state["learner"]
    save_state(tmp_path / CHECKPOINT, {**state, "learner": {**learner, "kind": "DQN"}})
    with pytest.raises(ConfigError, match=r"the state is of DQN.*Expected Impala"):
        training(folder=tmp_path, resume=True)
    (tmp_path / CHECKPOINT).write_bytes(b"not a checkpoint")
    with pytest.raises(ModelCorruptError, match="delete it to start over"):
        training(folder=tmp_path, resume=True)


def test_a_learning_rate_that_was_lowered_is_what_is_gone_on_with():
    def learners(rate):
        config = D4PGConfig(learning_rate=rate, critic_learning_rate=3 * rate)
        return [
            Impala(CARTPOLE, ImpalaConfig(learning_rate=rate)),
            D4PG(mlp(3, 1, head="tanh", hidden=(8,)), config),
        ]

    def rates(learner):
        states = [part for part in learner.state()["parts"].values() if "param_groups" in part]
        return [group["lr"] for state in states for group in state["param_groups"]]

    for learner, other in zip(learners(1e-5), learners(1e-3), strict=True):
        before = rates(learner)
        learner.load_state(other.state())
        assert rates(learner) == before != rates(other)


def test_another_chain_is_refused_and_nothing_is_lost(tmp_path):
    first = training(None, *STAGES, folder=tmp_path)
    first.learn(40)
    kept = (tmp_path / STATE_FILE).read_bytes()
    with pytest.raises(ConfigError, match="is of another chain"):
        training(None, Quantize("w4"), Compile("numpy"), folder=tmp_path, resume=True)
    assert (tmp_path / STATE_FILE).read_bytes() == kept
    assert training(None, *STAGES, folder=tmp_path, resume=True).steps == first.steps


@pytest.mark.parametrize("monitored", [False, True])
def test_a_monitor_goes_on_with_the_users_settings(tmp_path, monitored):
    """Whether it was there before or not: the chain's bits."""
    before = default_monitor("logits") if monitored else None
    training(None, Quantize("w4"), monitor=before, folder=tmp_path).learn(20)
    again = default_monitor("logits")
    training(None, Quantize("w4"), monitor=again, folder=tmp_path, resume=True)
    assert again.setting.bits == 4


@pytest.mark.parametrize("trajectories", [1, 4])
def test_trajectories_that_waited_do_not_stop_a_run_that_takes_others(tmp_path, trajectories):
    training(impala(4), actors=2, folder=tmp_path).learn(40)
    waits = TrajectorySpec.of(CARTPOLE, 10, 1).empty()
    for array in waits.arrays().values():
        array[...] = 0
    held = [{name: torch.from_numpy(array) for name, array in waits.arrays().items()}] * 3
    save_state(tmp_path / CHECKPOINT, {**read_state(tmp_path / CHECKPOINT), "pending": held})
    again = training(impala(trajectories), folder=tmp_path, resume=True, actors=2)
    before = again.learner.updates
    again.learn(again.steps + 160)
    assert again.learner.updates > before


def test_a_monitor_needs_a_unit_for_actions_without_probabilities():
    learner = D4PG(mlp(3, 1, head="tanh", hidden=(8,)), D4PGConfig(sigma=0.0))
    int8, pendulum = Quantize("int8", first=True), {"environment": "Pendulum-v1"}
    with pytest.raises(ConfigError, match="sigma above 0"):
        training(learner, int8, monitor=default_monitor("tanh"), **pendulum)
    training(learner, Quantize("int8", first=True), **pendulum)


def test_a_chain_that_does_not_say_what_runs_it_is_run_as_the_rest():
    """But not by PyTorch, which actors do not import for it."""
    for backend, engine in (("onnxruntime", "onnxruntime"), ("torch", "numpy")):
        learner = dqn() if backend == "torch" else None
        summary = training(learner, Quantize("w8"), backend=backend).learn(200)
        assert summary.compressed is not None
        assert summary.compressed.backend == engine
