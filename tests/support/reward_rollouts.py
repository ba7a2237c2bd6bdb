"""A wrapper around a vector environment, and a vector environment of wrapped ones: the same steps.

The second is the oracle: Gymnasium's or Stable-Baselines3's own loop over single environments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from toy_environments import Corridor

from vinoreward import LearnedReward
from vinoreward.bundles.bundle import Bundle

ENVS = 3
TRANSITIONS = 40
SEED = 5
SCORED = ("is_success", "reward_prob", "original_env_rew", "true_success")
"""What the learned reward says of a step."""


def actions_of(index: int) -> list[int]:
    """Mostly to the right, so that successes, ends and truncations all happen."""
    return (np.random.default_rng(index).random(TRANSITIONS) < 0.65).astype(int).tolist()


def sync(mode: AutoresetMode, **env: Any) -> SyncVectorEnv:
    return SyncVectorEnv([functools.partial(Corridor, **env)] * ENVS, autoreset_mode=mode)


def learned(bundle: Bundle, env: dict[str, Any], **options: Any) -> gym.Env[Any, Any]:
    return LearnedReward(Corridor(**env), bundle, **options)


def singles(
    mode: AutoresetMode, bundle: Bundle, env: dict[str, Any], **options: Any
) -> SyncVectorEnv:
    """The oracle of a vector form."""
    make = functools.partial(learned, bundle, env, **options)
    return SyncVectorEnv([make] * ENVS, autoreset_mode=mode)


def sb3_singles(bundle: Bundle, env: dict[str, Any], **options: Any) -> DummyVecEnv:
    """The oracle of the form for Stable-Baselines3."""
    return DummyVecEnv([functools.partial(learned, bundle, env, **options)] * ENVS)


def assert_near(found: Any, expected: Any, name: str = "") -> None:
    """Batches of another size are summed in another order."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_near(found[key], value)
    elif name == "reward_prob":
        np.testing.assert_allclose(found, expected, atol=1e-6)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def assert_same(
    ours: VectorEnv[Any, Any, Any], expected: VectorEnv[Any, Any, Any], keys: Sequence[str] = SCORED
) -> set[tuple[bool, bool]]:
    """Step both alike and close them; return how episodes ended: (terminated, with a claim)."""
    mode, ends = ours.metadata["autoreset_mode"], set()
    both = ours, expected
    assert_near(*(env.reset(seed=SEED)[0] for env in both))
    for step in range(TRANSITIONS):
        actions = np.array([actions_of(i)[step] for i in range(ENVS)])
        one, other = (env.step(actions) for env in both)
        for found, wanted in zip(one[:4], other[:4], strict=True):
            assert_near(found, wanted)
        assert all(one[0][i] in ours.single_observation_space for i in range(ENVS) if not keys)
        over = other[2] | other[3]
        for i in range(ENVS):
            last, told = one[4], other[4]
            if mode is AutoresetMode.SAME_STEP and over[i]:
                assert_near(last["final_obs"][i], told["final_obs"][i])
                for key in keys:
                    assert last[key][i] == last["final_info"][key][i]
                last, told = last["final_info"], told["final_info"]
            for key in keys:
                if f"_{key}" in told and told[f"_{key}"][i]:
                    assert_near(last[key][i], told[key][i], key)
            if over[i]:
                ends.add((bool(other[2][i]), bool(keys and told["is_success"][i])))
        if mode is AutoresetMode.DISABLED and over.any():
            assert_near(*(env.reset(options={"reset_mask": over})[0] for env in both))
    for env in both:
        env.close()
    return ends


def assert_same_sb3(ours: VecEnv, expected: VecEnv, keys: Sequence[str] = SCORED) -> None:
    """Step both alike and close them."""
    both = ours, expected
    for env in both:
        env.seed(SEED)
    assert_near(*(env.reset() for env in both))
    for step in range(TRANSITIONS):
        actions = np.array([actions_of(i)[step] for i in range(ENVS)])
        one, other = (env.step(actions) for env in both)
        for found, wanted in zip(one[:3], other[:3], strict=True):
            assert_near(found, wanted)
        for last, told in zip(one[3], other[3], strict=True):
            for key in (*keys, "terminal_observation", "TimeLimit.truncated"):
                assert (key in last) == (key in told)
                if key in told:
                    assert_near(last[key], told[key], key)
    for env in both:
        env.close()
