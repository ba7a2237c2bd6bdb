"""Gradient steps while a batch steps: the same as in one thread's order, and at the same time."""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from vinoreward.errors import ConfigError
from vinoreward_training.sb3 import BatchedVecEnv, OverlappedTraining

SMALL: dict[str, Any] = {
    "learning_starts": 24, "batch_size": 16, "buffer_size": 400, "gradient_steps": 3,
    "policy_kwargs": {"net_arch": [8]},
}  # fmt: skip


@contextlib.contextmanager
def batch(backend: str = "oracle", count: int = 4) -> Iterator[BatchedVecEnv]:
    kind = "vector_entry_point"
    made = gym.make_vec("PandaHoverRandom-v0", count, vectorization_mode=kind, backend=backend)
    with contextlib.closing(BatchedVecEnv(made)) as env:
        yield env


def model_of(algorithm: Any, env: Any, **more: Any) -> Any:
    torch.set_num_threads(1)
    return algorithm("MlpPolicy", env, seed=3, device="cpu", **copy.deepcopy({**SMALL, **more}))


def left_by(model: Any) -> dict[str, Any]:
    """Return what a training leaves behind."""
    buffer = model.replay_buffer
    names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
    counters = model.num_timesteps, model._episode_num, model._n_updates
    return {
        "replay": {name: getattr(buffer, name).copy() for name in names},
        "place": (buffer.pos, buffer.full),
        "weights": {name: one.numpy().copy() for name, one in model.policy.state_dict().items()},
        "counters": (*counters, getattr(model, "_n_calls", 0)),
        "episodes": [(info["r"], info["l"]) for info in model.ep_info_buffer],
        "drawn": [np.random.random(4).tolist(), torch.rand(4).tolist()],
    }


class InOrder:
    """The oracle: gradient steps between the choice of the next actions and the next step."""

    due = 0

    def learn(self, *arguments: Any, **options: Any) -> Any:
        super().learn(*arguments, **options)  # type: ignore[misc]
        self._take()
        return self

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        self.due = gradient_steps

    def _sample_action(self, *arguments: Any, **options: Any) -> Any:
        found = super()._sample_action(*arguments, **options)  # type: ignore[misc]
        self._take()
        return found

    def _take(self) -> None:
        due, self.due = self.due, 0
        if due:
            super().train(due, self.batch_size)  # type: ignore[misc,attr-defined]


class InOrderSAC(InOrder, SAC):
    """SAC in that order."""


class InOrderTD3(InOrder, TD3):
    """TD3 in that order."""


@pytest.mark.parametrize(
    ("algorithm", "in_order", "backend", "more"),
    [
        (SAC, InOrderSAC, "openvino", {"train_freq": 3, "gradient_steps": -1}),
        (TD3, InOrderTD3, "oracle", {"learning_rate": lambda left: 1e-3 * left}),
    ],
    ids=["sac", "td3"],
)
def test_it_learns_as_in_one_thread(
    algorithm: Any, in_order: Any, backend: str, more: dict[str, Any]
) -> None:
    left = []
    for kind in (in_order, OverlappedTraining.of(algorithm), OverlappedTraining.of(algorithm)):
        with batch(backend) as env:
            model = model_of(kind, env, **more)
            left.append(left_by(model.learn(100)))
    for found in left[1:]:
        np.testing.assert_equal(found, left[0])
    assert left[0]["counters"][2] > 30  # gradient steps


class Meeting(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Steps of a thread meet a gradient step, and neither goes on without the other."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.barrier = threading.Barrier(2)
        self.met = 0
        self.over = False

    def step(self, actions: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            self.barrier.wait(60)
            self.met += 1
        return self.env.step(actions)


class Met(SAC):
    """Takes gradient steps, each time with a step of the batch but for the last."""

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        batch: Any = self.env.batch  # type: ignore[union-attr]
        if not batch.over:
            batch.barrier.wait(60)
        super().train(gradient_steps, batch_size)


class Over(BaseCallback):
    """Says when no step follows."""

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self.training_env.batch.over = True  # type: ignore[attr-defined]


def test_both_run_at_the_same_time() -> None:
    """One after the other would never end."""
    with batch() as inner:
        meeting = Meeting(inner.batch)
        model_of(OverlappedTraining.of(Met), BatchedVecEnv(meeting)).learn(80, callback=Over())
        assert meeting.met == (80 - 24) // 4 - 1


class Failing(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Fails when it is told to."""

    fails = False

    def step(self, actions: Any) -> Any:
        if self.fails:
            raise RuntimeError("the arm is on fire")
        return self.env.step(actions)


def test_an_error_of_either_ends_the_training_and_leaves_the_batch_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = sys.getswitchinterval()
    with batch() as inner:
        failing = Failing(inner.batch)
        env = BatchedVecEnv(failing)
        model = model_of(OverlappedTraining.of(SAC), env)
        model.learn(80)
        failing.fails = True
        with pytest.raises(RuntimeError, match="on fire"):
            model.learn(80)
        failing.fails = False

        def interrupted(*arguments: Any, **options: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(SAC, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.learn(80)
        monkeypatch.undo()
        # Nobody steps the batch any more, and it goes on.
        assert env.overlap_fn is None and sys.getswitchinterval() == before
        taken = model._n_updates
        model.learn(80)
        assert model._n_updates > taken
        assert np.isfinite(env.step(np.zeros((4, 2), np.float32))[0]).all()


def test_a_class_is_extended_once_and_only_where_there_are_gradient_steps() -> None:
    extended = OverlappedTraining.of(SAC)
    assert extended.__name__ == "SAC" and OverlappedTraining.of(extended) is extended
    with pytest.raises(ConfigError, match="algorithm="):
        OverlappedTraining.of(PPO)  # type: ignore[type-var]
    env = DummyVecEnv([lambda: gym.make("Pendulum-v1")])
    with pytest.raises(ConfigError, match="a BatchedVecEnv"):
        model_of(extended, env).learn(8)
