"""One contract for the three forms of LearnedReward: the same transitions earn the same."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from reward_rollouts import (
    ENVS,
    SEED,
    TRANSITIONS,
    actions_of,
    assert_same,
    assert_same_sb3,
    sb3_singles,
    singles,
    sync,
)
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_environments import Corridor, cell_log_odds, save_toy_bundle

from vinoreward import LearnedReward, VecLearnedReward, VectorLearnedReward
from vinoreward.bundles.bundle import Bundle

MODES = list(AutoresetMode)
IMAGE = {"observation": "image"}

# Each option once; the golden traces have their combinations.
OPTIONS: dict[str, dict[str, Any]] = {
    "sparse": {"step_reward": -0.25, "success_reward": 3.0, "env_reward_weight": 0.5},
    "goes-on": {"terminate_on_success": False, "success_threshold": 0.9},
    "hold": {"success_hold_steps": 2, "success_exit_threshold": 0.05},
    "log-odds": {"reward_mode": "log_odds"},
    "potential": {"reward_mode": "potential", "gamma": 0.9},
}


@pytest.mark.parametrize("replaces", [False, True])
def test_the_single_form_says_what_the_image_says(bundle: Bundle, replaces: bool) -> None:
    env = LearnedReward(
        Corridor(render_mode="rgb_array", first_cells=(3,)),
        bundle,
        success_reward=7.0,
        step_reward=-1.0,
        env_reward_weight=0.5,
        success_replaces_env_reward=replaces,
    )
    env.reset(seed=0)
    for cell, claimed in ((4, False), (5, True)):
        _, reward, terminated, truncated, info = env.step(1)
        assert info["reward_prob"] == pytest.approx(
            1 / (1 + np.exp(-cell_log_odds(cell))), abs=1e-5
        )
        assert info["is_success"] is claimed
        assert info["original_is_success"] is False
        assert info["original_env_rew"] == cell - 7
        own = 0.0 if claimed and replaces else 0.5 * (cell - 7)
        assert reward == pytest.approx((7.0 if claimed else -1.0) + own)
        assert (terminated, truncated) == (claimed, False)
    env.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle whose guard knows all cells but the fifth, the first of those that are claimed."""
    folder = tmp_path_factory.mktemp("guarded") / "toy"
    return save_toy_bundle(folder, seen=(0, 1, 2, 3, 4, 6, 7))


WITHHELD: dict[str, dict[str, Any]] = {
    "sparse": {"terminate_on_success": False},
    "hold": {"success_hold_steps": 2, "terminate_on_success": False},
    "all-claimed": {"success_threshold": 0.0, "terminate_on_success": False},
    "probability": {"reward_mode": "probability", "terminate_on_success": False},
    "log-odds": {"reward_mode": "log_odds", "terminate_on_success": False},
    "potential": {"reward_mode": "potential", "gamma": 0.5, "terminate_on_success": False},
}


@pytest.mark.parametrize("name", WITHHELD)
def test_nothing_is_claimed_of_an_ood_image(guarded: Bundle, name: str) -> None:
    options = WITHHELD[name]
    env = LearnedReward(
        Corridor(first_cells=(4,)),
        guarded,
        image_source=image_of_vector,
        step_reward=-1.0,
        **options,
    )
    env.reset(seed=0)
    found = [env.step(action) for action in (1, 1, 0, 1)]
    env.close()
    cells = (5, 6, 5, 6)
    assert [info["reward_ood"] > 1 for *_, info in found] == [True, False, True, False]
    chances = [1 / (1 + np.exp(-cell_log_odds(cell))) for cell in cells]
    seen = [info["reward_prob"] for *_, info in found]
    assert seen == pytest.approx(chances, abs=1e-5), "what is withheld stays visible"
    claims = [info["is_success"] for *_, info in found]
    assert claims == ([False] * 4 if name == "hold" else [False, True, False, True])
    sparse = [1.0 if claim else -1.0 for claim in claims]
    high, low = chances[1], 1 / (1 + np.exp(-cell_log_odds(4)))
    assert [reward for _, reward, *_ in found] == pytest.approx(
        {
            "probability": [0, high, 0, high],
            "log-odds": [-20, cell_log_odds(6), -20, cell_log_odds(6)],
            "potential": [-1 - low, 1 + high / 2, -1 - high, 1 + high / 2],
        }.get(name, sparse),
        abs=1e-4,
    )


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *itertools.product(MODES, ("sparse", "hold")),
        *zip(MODES, ("goes-on", "log-odds", "potential"), strict=True),
    ],
    ids=str,
)
def test_vector_form_equals_single_environments(
    bundle: Bundle, mode: AutoresetMode, name: str
) -> None:
    options = {"image_source": "obs", **OPTIONS[name]}
    env = VectorLearnedReward(sync(mode, **IMAGE), bundle, **options)
    ends = assert_same(env, singles(mode, bundle, IMAGE, **options))
    if name == "sparse":  # by a claim, by the environment, by truncation
        assert ends >= {(True, True), (True, False), (False, False)}


def image_of_vector(env: Any, observation: Any) -> Any:
    image = np.zeros((6, 8, 3), np.uint8)
    image[..., 0] = round(255 * float(observation[0]) / 7)
    return image


@pytest.mark.parametrize("name", ["sparse", "hold", "potential"])
def test_sb3_form_equals_single_environments(bundle: Bundle, name: str) -> None:
    options = {"image_source": "obs", **OPTIONS[name]}
    venv = DummyVecEnv([functools.partial(Corridor, **IMAGE)] * ENVS)
    env = VecLearnedReward(venv, bundle, **options)
    assert_same_sb3(env, sb3_singles(bundle, IMAGE, **options))


@pytest.mark.slow
def test_vector_form_over_processes(bundle: Bundle) -> None:
    options = {"image_source": "obs", "reward_mode": "potential"}
    mode = AutoresetMode.SAME_STEP
    make = functools.partial(Corridor, **IMAGE)
    inner = AsyncVectorEnv([make] * ENVS, autoreset_mode=mode, context="spawn")
    env = VectorLearnedReward(inner, bundle, **options)
    assert_same(env, singles(mode, bundle, IMAGE, **options))


def test_sb3_episodes_count_the_learned_reward(bundle: Bundle) -> None:
    venv = DummyVecEnv([lambda: Monitor(Corridor(observation="image"))] * ENVS)
    env = VecLearnedReward(venv, bundle, success_reward=3.0, step_reward=-0.25)
    env.seed(SEED)
    env.reset()
    returns, lengths = np.zeros(ENVS), np.zeros(ENVS, int)
    for step in range(TRANSITIONS):
        _, rewards, dones, infos = env.step(np.array([actions_of(i)[step] for i in range(ENVS)]))
        returns, lengths = returns + rewards, lengths + 1
        for i in np.flatnonzero(dones):
            assert infos[i]["episode"]["r"] == pytest.approx(returns[i])
            assert infos[i]["episode"]["l"] == lengths[i]
            if "original_episode" in infos[i]:
                assert infos[i]["original_episode"]["l"] == lengths[i]
            returns[i], lengths[i] = 0, 0
    env.close()


@pytest.mark.parametrize("seed", range(2))
def test_shaping_telescopes(bundle: Bundle, seed: int) -> None:
    """The discounted sum of the shaping is gamma^T phi(last) - phi(first); phi(end) is 0."""
    gamma = 0.9
    plain, shaped = (
        LearnedReward(Corridor(observation="image"), bundle, image_source="obs", **options)
        for options in ({}, {"reward_mode": "potential", "gamma": gamma})
    )
    first, _ = shaped.reset(seed=seed)
    plain.reset(seed=seed)
    start = float(shaped.classifier.probability(first[None])[0])
    total = 0.0
    for step in range(7):
        action = (seed + step) % 2
        _, bare, *_ = plain.step(action)
        _, reward, terminated, truncated, info = shaped.step(action)
        total += gamma**step * (float(reward) - float(bare))
        if terminated or truncated:
            last = 0.0 if terminated else info["reward_prob"]
            assert total == pytest.approx(gamma ** (step + 1) * last - start, abs=1e-6)
            break
    else:
        pytest.fail("the episode did not end")
    plain.close()
    shaped.close()
