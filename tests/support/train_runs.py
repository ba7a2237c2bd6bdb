"""Trainings of a second, with one environment and with many at once, for tests."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from vinoreward.bundles.bundle import Bundle
from vinoreward_training.configs import TrainConfig
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.policy.train import SETTINGS
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.many import make_envs

SMALL: dict[str, Any] = {
    "learning_starts": 40,
    "batch_size": 16,
    "policy_kwargs": {"net_arch": [16]},
}


def config(out: Path, **changes: Any) -> TrainConfig:
    """A run of a second: the oracle, a tiny network."""
    settings: dict[str, Any] = {
        "backend": "oracle",
        "timesteps": 120,
        "eval_every": 50,
        "eval_episodes": 1,
        "final_episodes": 3,
        "algorithm_kwargs": SMALL,
    }
    return SETTINGS.of(out=out, **{**settings, **changes})


class Corridor(gym.Env[np.ndarray, int]):
    """Walk right three times; the claim is made one cell too early, the truth is the third."""

    observation_space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.steps = 0, 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.cell], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.cell += int(action)
        self.steps += 1
        info = {"is_success": self.cell >= 2, "true_success": self.cell == 3}
        return self.observe(), 1.0, False, self.steps == 4, info


TOY = "toy_environments:ToyCorridor-v0"
SMALL_DQN: dict[str, Any] = {
    "learning_starts": 20,
    "batch_size": 8,
    "policy_kwargs": {"net_arch": [8]},
}


def toy_config(out: Path, bundle: Bundle, /, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "env": TOY,
        "backend": "openvino",
        "bundle": str(bundle.path),
        "success_reward": 1.0,
        "step_reward": 0.0,
        "algorithm": "DQN",
        "algorithm_kwargs": SMALL_DQN,
        "num_envs": 3,
        "vec_env": "dummy",
        "stop_when_solved": None,
    }
    return config(out, **{**settings, **changes})


def toy_task(bundle: Bundle, **options: Any) -> RewardedTask:
    given = {"env": TOY, "bundle": str(bundle.path), "success_reward": 1.0, "step_reward": 0.0}
    return RewardedTask(**{**given, **options})


def one_by_one(count: int, actions: Any, task: RewardedTask, **options: Any) -> list[list[Any]]:
    """The oracle: what each of ``count`` single environments pays and claims in a plain loop."""
    found = []
    for index in range(count):
        with contextlib.closing(make_env(task, **options)) as env:
            env.reset(seed=7 + index)
            steps = []
            for action in actions[:, index]:
                observation, reward, terminated, truncated, info = env.step(action)
                over = terminated or truncated
                steps.append((observation, reward, over, info["is_success"], info["reward_prob"]))
                if over:
                    env.reset()
            found.append(steps)
    return found


def together(count: int, actions: Any, task: RewardedTask, **options: Any) -> list[list[Any]]:
    found: list[list[Any]] = [[] for _ in range(count)]
    with contextlib.closing(make_envs(count, task, **options)) as env:
        env.seed(7)
        env.reset()
        for row in actions:
            observations, rewards, dones, infos = env.step(row)
            for i, info in enumerate(infos):
                rows = observations
                last = info["terminal_observation"] if dones[i] else row_of(rows, i)
                claim = info["is_success"], info["reward_prob"]
                found[i].append((last, rewards[i], dones[i], *claim))
    return found


def row_of(observations: Any, i: int) -> Any:
    if isinstance(observations, dict):
        return {key: values[i] for key, values in observations.items()}
    return observations[i]


def assert_equal(found: list[list[Any]], expected: list[list[Any]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for one, two in zip(ours, theirs, strict=True):
            np.testing.assert_equal(one[0], two[0])
            assert one[1] == pytest.approx(two[1], rel=1e-5, abs=1e-5)
            assert (bool(one[2]), one[3]) == (two[2], two[3])
            assert one[4] == pytest.approx(two[4], abs=1e-5)
