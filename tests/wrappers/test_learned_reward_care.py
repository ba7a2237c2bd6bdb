"""What others bring along: rewards that are no numbers, unknown images, wrappers in wrappers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_environments import Corridor, save_toy_bundle

from vinoreward import (
    Bundle,
    LearnedReward,
    VecLearnedReward,
    VectorLearnedReward,
)
from vinoreward.errors import ConfigError, InputError, OutOfDistributionError
from vinoreward.wrappers.true_success import Truth, claim_of
from vinoreward_training.sb3 import BatchedVecEnv


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Claims the cells from 5."""
    return save_toy_bundle(tmp_path_factory.mktemp("care") / "toy")


def at(cell: int, **options: Any) -> Corridor:
    return Corridor("image", first_cells=(cell,), **options)


class Pays(gym.Wrapper):
    """Pays what no simulator should."""

    def __init__(self, env: gym.Env[Any, Any], reward: Any) -> None:
        super().__init__(env)
        self.reward = reward

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, self.reward, terminated, truncated, info


def one(env: gym.Env[Any, Any], toy: Bundle, **options: Any) -> tuple[float, dict[str, Any]]:
    wrapped = LearnedReward(env, toy.path, image_source="obs", **options)
    wrapped.reset(seed=0)
    _, reward, *_, info = wrapped.step(1)
    wrapped.close()
    return float(reward), info


def several(env: gym.Env[Any, Any], toy: Bundle, **options: Any) -> tuple[float, dict[str, Any]]:
    wrapped = VectorLearnedReward(
        SyncVectorEnv([lambda: env]), toy.path, image_source="obs", **options
    )
    wrapped.reset(seed=0)
    _, rewards, *_, infos = wrapped.step(np.array([1]))
    wrapped.close()
    return float(rewards[0]), {key: value[0] for key, value in infos.items() if key[0] != "_"}


def of_sb3(env: gym.Env[Any, Any], toy: Bundle, **options: Any) -> tuple[float, dict[str, Any]]:
    wrapped = VecLearnedReward(DummyVecEnv([lambda: env]), toy.path, image_source="obs", **options)
    wrapped.seed(0)
    wrapped.reset()
    _, rewards, _, infos = wrapped.step(np.array([1]))
    wrapped.close()
    return float(rewards[0]), infos[0]


FORMS = [one, several, of_sb3]
Form = Callable[..., tuple[float, dict[str, Any]]]


# --- the environment's own reward --------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_reward_that_counts_has_to_be_finite(toy: Bundle, form: Form) -> None:
    got, info = form(Pays(at(4), np.nan), toy, success_reward=7.0)
    assert got == 7.0 and info["is_success"] and np.isnan(info["original_env_rew"])
    with pytest.raises(InputError, match=r"\[nan\].*Expected finite.*weight is 0\.5"):
        form(Pays(at(4), np.nan), toy, env_reward_weight=0.5)


def test_single_environments_may_pay_none_or_an_array(toy: Bundle) -> None:
    assert one(Pays(at(4), None), toy)[0] == 1.0
    assert one(Pays(at(4), np.array([[2.0]])), toy, env_reward_weight=1.0)[0] == 3.0
    assert one(Pays(at(4), torch.tensor(2.0)), toy, env_reward_weight=1.0)[0] == 3.0
    for reward in (np.array([1.0, 2.0]), "1.5", 1 + 2j, {}, 10**400):
        with pytest.raises(InputError, match=r"gave the reward .*Expected a number; fix the env"):
            one(Pays(at(4), reward), toy)


# --- errors while a step is judged -------------------------------------------------------------


GUARDED = {"image_source": "obs", "on_ood": "raise", "terminate_on_success": False}


def test_after_an_error_no_claim_ends_an_episode_twice(tmp_path: Path) -> None:
    """One that a claim ended is reset in the step that fails, and goes on after it."""
    guarded = save_toy_bundle(tmp_path / "guarded", seen=(0, 1, 2, 5, 6))
    claims, ood = at(4), at(1)
    env = VectorLearnedReward(
        SyncVectorEnv([lambda: claims, lambda: ood]),
        guarded.path,
        **{**GUARDED, "terminate_on_success": True},
    )
    env.reset(seed=0)
    _, _, terminated, *_ = env.step(np.array([1, 1]))
    assert terminated.tolist() == [True, False]
    claims.first_cells, ood.cell = (1,), 2
    with pytest.raises(OutOfDistributionError):
        env.step(np.array([1, 1]))
    assert claims.cell == 1
    ood.cell = 0
    _, _, _, _, infos = env.step(np.array([1, 1]))
    assert claims.cell == 2 and infos["_is_success"].tolist() == [True, True]
    env.close()


# --- wrappers in wrappers ----------------------------------------------------------------------


class Own(gym.Wrapper):
    """Has a success of its own under SB3's name, and tells no truth besides."""

    def _told(self, info: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in info.items() if key != "true_success"} | {
            "is_success": False
        }

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return observation, self._told(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *step, info = self.env.step(action)
        return (*step, self._told(info))  # type: ignore[return-value]


class Silent(gym.Wrapper):
    """Says nothing of success."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *step, _ = self.env.step(action)
        return (*step, {})  # type: ignore[return-value]


@pytest.mark.parametrize("form", FORMS)
def test_a_claim_is_never_taken_for_the_truth(toy: Bundle, form: Form) -> None:
    """Of a learned reward in another one only the environment's own success is the truth."""
    for around, told in ((Own, False), (Silent, None)):
        inner = LearnedReward(
            around(at(4)), toy.path, image_source="obs", terminate_on_success=False
        )
        _, info = form(inner, toy)
        assert claim_of(info) is True
        assert info.get("original_is_success") is told or info["original_is_success"] == told
        assert told is None or Truth()(info) is False


# --- images and infos ------------------------------------------------------------------------


def test_reset_infos_are_of_the_episode_that_goes_on(toy: Bundle) -> None:
    env = VecLearnedReward(DummyVecEnv([lambda: at(4)] * 2), toy.path, image_source="obs")
    env.seed(0)
    env.reset()
    for actions in ([1, 0], [1, 1], [0, 1], [1, 0]):
        observations, *_ = env.step(np.array(actions))
        told = [info["blue"] for info in env.reset_infos]
        assert told == observations[:, 0, 0, 2].tolist()
    env.close()


def test_a_batch_that_resets_itself_cannot_be_ended_by_a_claim(toy: Bundle) -> None:
    batch = SyncVectorEnv([lambda: at(4)], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ConfigError, match=r"a BatchedVecEnv.*terminate_on_success=False"):
        VecLearnedReward(BatchedVecEnv(batch), toy.path)
    env = VecLearnedReward(BatchedVecEnv(batch), toy.path, terminate_on_success=False)
    env.reset()
    _, rewards, dones, infos = env.step(np.array([1]))
    assert rewards.tolist() == [1.0] and not dones.any() and infos[0]["is_success"]
    env.close()
