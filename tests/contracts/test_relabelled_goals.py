"""No form of the learned reward lets a learner read the environment's own reward of other goals."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from toy_environments import Corridor

from vinoreward import LearnedReward, VecLearnedReward, VectorLearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward_training.sb3 import BatchedVecEnv

REFUSED = "a goal that is relabelled has no image"


class Goals(Corridor):
    """A corridor whose goal is a cell."""

    def __init__(self) -> None:
        super().__init__(render_mode="rgb_array")
        cell = gym.spaces.Box(0, 10, (1,), np.float32)
        parts = {"observation": cell, "achieved_goal": cell, "desired_goal": cell}
        self.observation_space = gym.spaces.Dict(parts)

    def _observe(self) -> Any:
        cell = np.array([self.cell], np.float32)
        return {"observation": cell, "achieved_goal": cell, "desired_goal": cell * 0 + 6}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.abs(np.asarray(achieved) - desired).sum(axis=-1)


def image(env: Any, observation: Any) -> Any:
    return np.full((6, 8, 3), round(20 * observation["observation"][0]), np.uint8)


def of_singles(bundle: Bundle) -> VecEnv:
    def make() -> Any:
        env = LearnedReward(Goals(), bundle, image_source="render")
        return gym.wrappers.TimeLimit(Monitor(env), 6)

    return DummyVecEnv([make])


def of_sb3(bundle: Bundle) -> VecEnv:
    return VecLearnedReward(DummyVecEnv([Goals]), bundle, image_source=image)


def of_a_batch(bundle: Bundle) -> VecEnv:
    batch = SyncVectorEnv([Goals], autoreset_mode=AutoresetMode.SAME_STEP)
    batch.compute_reward = Goals().compute_reward  # type: ignore[attr-defined]
    return BatchedVecEnv(VectorLearnedReward(batch, bundle, image_source=image))


@pytest.mark.parametrize("form", [of_singles, of_sb3])
def test_hindsight_replay_is_refused(bundle: Bundle, form: Any) -> None:
    env = form(bundle)
    buffer = HerReplayBuffer(100, env.observation_space, env.action_space, env, n_sampled_goal=4)
    observations: Any = env.reset()
    for _ in range(30):
        actions = np.array([1])
        following, rewards, dones, infos = env.step(actions)
        buffer.add(observations, following, actions, rewards, dones, infos)
        observations = following
    with pytest.raises(ConfigError, match=REFUSED):
        buffer.sample(8)
    env.close()


@pytest.mark.parametrize("form", [of_singles, of_sb3, of_a_batch])
def test_every_way_to_the_old_reward_is_refused(bundle: Bundle, form: Any) -> None:
    env = form(bundle)
    goal = np.zeros((1, 1), np.float32)
    for way in (
        lambda: env.env_method("compute_reward", goal, goal, [{}]),
        lambda: env.get_attr("compute_reward")[0](goal, goal, [{}]),
    ):
        with pytest.raises(ConfigError, match=REFUSED):
            way()
    env.close()


def test_a_name_for_it_is_refused_and_the_own_door_stays(bundle: Bundle) -> None:
    env = gym.wrappers.TimeLimit(LearnedReward(Goals(), bundle), 6)
    vector = VectorLearnedReward(SyncVectorEnv([lambda: LearnedReward(Goals(), bundle)]), bundle)
    inner: Any = vector.unwrapped
    for way in (
        env.get_wrapper_attr("compute_reward"),
        env.env.compute_reward,  # type: ignore[attr-defined]
        vector.compute_reward,
        lambda *arguments: inner.call("compute_reward", *arguments),
    ):
        with pytest.raises(ConfigError, match=REFUSED):
            way(1, 2, {})
    own: Any = env.unwrapped
    assert own.compute_reward([4], [6], {}) == -2
    env.close()
    vector.close()
