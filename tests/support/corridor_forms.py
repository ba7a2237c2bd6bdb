"""One walk through the corridor, paid by each form of the learned reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_environments import Corridor

from vinoreward import LearnedReward, VecLearnedReward, VectorLearnedReward

ACTIONS = [1, 1, 0, 1, 1, 1] * 5
CLAIM = ("is_success", "reward_prob")


def start() -> Corridor:
    return Corridor("image", first_cells=(3,))


def single(
    *, keys: Sequence[str] = CLAIM, actions: Sequence[int] = ACTIONS, **given: Any
) -> list[tuple[float, ...]]:
    """Return the reward of each step, and these entries of its info."""
    env = LearnedReward(start(), image_source="obs", **given)
    env.reset(seed=0)
    found = []
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        found.append((float(reward), *(info[key] for key in keys)))
        if terminated or truncated:
            env.reset()
    return found


def vector(
    *, keys: Sequence[str] = CLAIM, actions: Sequence[int] = ACTIONS, **given: Any
) -> list[tuple[float, ...]]:
    """Likewise, of the second of two environments."""
    envs = SyncVectorEnv([start] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env = VectorLearnedReward(envs, image_source="obs", **given)
    env.reset(seed=0)
    found = []
    for action in actions:
        _, rewards, _, _, infos = env.step(np.array([action, action]))
        found.append((float(rewards[1]), *(infos[key][1] for key in keys)))
    return found


def sb3(
    *, keys: Sequence[str] = CLAIM, actions: Sequence[int] = ACTIONS, **given: Any
) -> list[tuple[float, ...]]:
    """Likewise, as Stable-Baselines3 steps."""
    env = VecLearnedReward(DummyVecEnv([start]), image_source="obs", **given)
    env.seed(0)
    env.reset()
    found = []
    for action in actions:
        _, rewards, _, infos = env.step(np.array([action]))
        found.append((float(rewards[0]), *(infos[0][key] for key in keys)))
    return found
