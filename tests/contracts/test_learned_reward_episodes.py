"""What is reported of an episode is the learned reward's, wherever episodes are recorded."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecorder
from reward_rollouts import ENVS, SEED, actions_of
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from toy_environments import Corridor

from vinoreward import LearnedReward, VectorLearnedReward
from vinoreward.bundles.bundle import Bundle

MODES = list(AutoresetMode)
REWARDS = {"success_reward": 3.0, "step_reward": -0.25}

own_key = functools.partial(RecordEpisodeStatistics, stats_key="own")


class ToTheNearEnd:
    """To the right from cell 3 on, where a claim ends the episode; to the left below."""

    def __init__(self, most: int) -> None:
        self.left = most

    def predict(self, observations: Any, **_: Any) -> tuple[Any, None]:
        self.left -= 1
        assert self.left >= 0, "episodes ended and were not counted"
        return (observations[:, 0] >= 3).astype(int), None


def test_sb3_evaluates_policies_that_succeed(bundle: Bundle) -> None:
    """As ``make_vec_env(wrapper_class=…)`` and RL Zoo build it: the Monitor is inside."""
    always: list[float] = []
    for first_cells in ((3,), (1, 3)):
        env = make_vec_env(
            Corridor,
            n_envs=2,
            seed=SEED,
            env_kwargs={"render_mode": "rgb_array", "first_cells": first_cells},
            wrapper_class=LearnedReward,
            wrapper_kwargs={"bundle": bundle, **REWARDS},
        )
        returns, lengths = evaluate_policy(
            ToTheNearEnd(100),  # type: ignore[arg-type]
            env,
            n_eval_episodes=16,
            return_episode_rewards=True,
        )
        env.close()
        # A success from cell 3 takes two steps, a failure from cell 1 one.
        assert isinstance(returns, list) and len(returns) == 16
        kinds = set(zip(returns, lengths, strict=True))
        assert kinds == ({(2.75, 2)} if first_cells == (3,) else {(2.75, 2), (-0.25, 1)})
        always += returns
    assert 0 < always.count(-0.25) < 16


@pytest.mark.parametrize(
    ("inside", "outside", "key", "kept"),
    [
        ([Monitor], [], "episode", True),
        ([], [RecordEpisodeStatistics], "episode", False),
        ([Monitor], [Monitor], "episode", True),
        ([RecordEpisodeStatistics], [own_key], "own", True),
        ([], [], None, False),
    ],
)
def test_one_environment_reports_every_episode(
    bundle: Bundle, inside: list[Any], outside: list[Any], key: str | None, kept: bool
) -> None:
    env: Any = Corridor(render_mode="rgb_array")
    for wrapper in inside:
        env = wrapper(env)
    env = LearnedReward(env, bundle, **REWARDS)
    for wrapper in outside:
        env = wrapper(env)
    env.reset(seed=SEED)
    total, length, by_claim, by_env = 0.0, 0, 0, 0
    for action in actions_of(0):
        _, reward, terminated, truncated, info = env.step(action)
        total, length = total + float(reward), length + 1
        if not (terminated or truncated):
            assert "episode" not in info and "original_episode" not in info
            continue
        ended = bool(env.unwrapped.over)
        by_claim, by_env = by_claim + (not ended), by_env + ended
        if key is None:
            assert "episode" not in info
        else:
            assert info[key]["r"] == pytest.approx(total)
            assert info[key]["l"] == length and info[key]["t"] >= 0.0
        assert ("original_episode" in info) is (kept and ended)
        if kept and ended:
            assert info["original_episode"]["l"] == length
            assert info["original_episode"]["r"] <= -length + 1  # minus the cells to go
        total, length = 0.0, 0
        env.reset()
    assert by_claim > 1 and by_env > 1
    env.close()


def part() -> gym.Env[Any, Any]:
    return Corridor("image")


def check_vector(env: Any) -> None:
    """Compare ``episode`` in ``infos`` with the rewards that were paid."""
    mode = env.metadata["autoreset_mode"]
    env.reset(seed=SEED)
    totals, lengths = np.zeros(ENVS), np.zeros(ENVS, int)
    ends = 0
    for step in range(40):
        actions = np.array([actions_of(i)[step] for i in range(ENVS)])
        _, rewards, terminated, truncated, infos = env.step(actions)
        scored = infos["_is_success"]
        totals, lengths = totals + rewards, lengths + scored
        over = terminated | truncated
        ends += int(over.sum())
        assert over.any() == ("episode" in infos)
        if over.any():
            np.testing.assert_array_equal(infos["_episode"], over)
            assert infos["episode"]["r"][over] == pytest.approx(totals[over], abs=1e-5)
            np.testing.assert_array_equal(infos["episode"]["l"][over], lengths[over])
        totals[over], lengths[over] = 0.0, 0
        if mode is AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})
    assert ends > 10
    env.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_recorder_inside_a_vector_environment(bundle: Bundle, mode: AutoresetMode) -> None:
    inner = VectorRecorder(SyncVectorEnv([part] * ENVS, autoreset_mode=mode))
    options = {"image_source": "obs", "terminate_on_success": False, **REWARDS}
    check_vector(VectorLearnedReward(inner, bundle, **options))


# DISABLED is missing: Gymnasium's recorder takes a masked reset for one of everybody.
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_recorder_around_a_vector_environment(bundle: Bundle, mode: AutoresetMode) -> None:
    inner = SyncVectorEnv([part] * ENVS, autoreset_mode=mode)
    check_vector(VectorRecorder(VectorLearnedReward(inner, bundle, image_source="obs", **REWARDS)))


class Noting(gym.Wrapper[Any, Any, Any, Any]):
    """Puts a key into every info."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "note": 7}


def test_a_claimed_success_has_no_infos_of_another_sub_environment(bundle: Bundle) -> None:
    makers = [
        lambda: Noting(Corridor("image", first_cells=(1,))),
        lambda: Corridor("image", first_cells=(3,)),
    ]
    parts = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    env = VectorLearnedReward(parts, bundle, image_source="obs")
    env.reset(seed=SEED)
    terminated, infos = np.zeros(2, bool), {}
    while not terminated[1]:
        _, _, terminated, _, infos = env.step(np.array([1, 1]))
    env.close()
    assert not terminated[0] and infos["_note"].tolist() == [True, False]
    assert not infos["final_info"].get("_note", np.zeros(2, bool)).any()


class Refusing(gym.Wrapper[Any, Any, Any, Any]):
    """Ends the episode at action 0, which it refuses: no image shows what it led to."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(1)
        if action == 0:
            return observation, reward, True, truncated, {**info, "invalid_action": True}
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_invalid_action_may_end_the_episode(bundle: Bundle, mode: AutoresetMode) -> None:
    parts = [lambda: Refusing(Corridor("image", first_cells=(4,)))] * 2  # one step from a success
    env = VectorLearnedReward(SyncVectorEnv(parts, autoreset_mode=mode), bundle, image_source="obs")
    env.reset(seed=SEED)
    _, rewards, terminated, truncated, infos = env.step(np.array([0, 1]))
    assert terminated.tolist() == [True, True] and not truncated.any()
    assert infos["is_success"].tolist() == [False, True] and rewards.tolist() == [0.0, 1.0]
    env.close()
