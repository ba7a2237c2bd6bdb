"""One contract for the three forms of LearnedReward: the same transitions earn the same."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor
from toy_environments import Corridor, cell_log_odds, save_toy_bundle

from vinoreward import LearnedReward, VecLearnedReward, VectorLearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, InputError, PictureMismatchError

ENVS = 3
TRANSITIONS = 40
SEED = 5

MODES = list(AutoresetMode)

OPTIONS: dict[str, dict[str, Any]] = {
    "sparse": {"step_reward": -0.25, "success_reward": 3.0},
    "with-the-environments-reward": {"env_reward_weight": 0.5},
    "goes-on-after-success": {"terminate_on_success": False},
    "hold": {"success_hold_steps": 2},
    "hold-and-go-on": {"success_hold_steps": 2, "terminate_on_success": False},
    "probability": {"reward_mode": "probability", "terminate_on_success": False},
    "log-odds": {"reward_mode": "log_odds"},
    "potential": {"reward_mode": "potential", "gamma": 0.9},
    "potential-and-go-on": {"reward_mode": "potential", "terminate_on_success": False},
    "threshold": {"success_threshold": 0.9},
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy")


@dataclass
class Transition:
    """What a learner is told about one step of one environment."""

    observation: Any
    reward: float
    terminated: bool
    over: bool
    claimed: bool
    probability: float
    original: float
    true_success: bool


def actions_of(index: int) -> list[int]:
    """Mostly to the right, so that successes, ends and truncations all happen."""
    return (np.random.default_rng(index).random(TRANSITIONS) < 0.65).astype(int).tolist()


def one_after_another(
    bundle: Bundle, env: dict[str, Any], **options: Any
) -> list[list[Transition]]:
    """The oracle: N single environments in a plain loop."""
    everything = []
    for index in range(ENVS):
        single = LearnedReward(Corridor(**env), bundle, **options)
        single.reset(seed=SEED + index)
        transitions = []
        for action in actions_of(index):
            observation, reward, terminated, truncated, info = single.step(action)
            transitions.append(
                Transition(
                    copy.deepcopy(observation),
                    float(reward),
                    terminated,
                    terminated or truncated,
                    info["is_success"],
                    info["reward_prob"],
                    info["original_env_rew"],
                    info["true_success"],
                )
            )
            if terminated or truncated:
                single.reset()
        single.close()
        everything.append(transitions)
    return everything


def vector_rollout(env: VectorLearnedReward) -> list[list[Transition]]:
    """Step a vector environment as its autoreset mode asks, and keep what is a transition."""
    mode = env.metadata["autoreset_mode"]
    found: list[list[Transition]] = [[] for _ in range(ENVS)]
    env.reset(seed=SEED)
    waiting = np.zeros(ENVS, np.bool_)
    while min(len(item) for item in found) < TRANSITIONS:
        actions = np.array(
            [actions_of(i)[min(len(found[i]), TRANSITIONS - 1)] for i in range(ENVS)]
        )
        observations, rewards, terminated, truncated, infos = env.step(actions)
        over = terminated | truncated
        for i in range(ENVS):
            if waiting[i]:
                assert rewards[i] == 0.0 and not over[i], "a reset frame earns nothing"
                assert not infos["_is_success"][i] and not infos["is_success"][i]
                continue
            assert infos["_is_success"][i]
            last = row(observations, i)
            if mode is AutoresetMode.SAME_STEP and over[i]:
                last = infos["final_obs"][i]
                final = infos["final_info"]
                assert final["_is_success"][i]
                assert final["is_success"][i] == infos["is_success"][i]
                assert final["reward_prob"][i] == infos["reward_prob"][i]
                assert final["true_success"][i] == infos["true_success"][i]
            found[i].append(
                Transition(
                    copy.deepcopy(last),
                    float(rewards[i]),
                    bool(terminated[i]),
                    bool(over[i]),
                    bool(infos["is_success"][i]),
                    float(infos["reward_prob"][i]),
                    float(infos["original_env_rew"][i]),
                    bool(infos["true_success"][i]),
                )
            )
        waiting = over if mode is AutoresetMode.NEXT_STEP else waiting
        if mode is AutoresetMode.DISABLED and over.any():
            env.reset(options={"reset_mask": over})
    env.close()
    return [item[:TRANSITIONS] for item in found]


def sb3_rollout(env: VecLearnedReward) -> list[list[Transition]]:
    found: list[list[Transition]] = [[] for _ in range(ENVS)]
    env.seed(SEED)
    env.reset()
    for step in range(TRANSITIONS):
        actions = np.array([actions_of(i)[step] for i in range(ENVS)])
        observations, rewards, dones, infos = env.step(actions)
        for i, info in enumerate(infos):
            last = info["terminal_observation"] if dones[i] else row(observations, i)
            found[i].append(
                Transition(
                    copy.deepcopy(last),
                    float(rewards[i]),
                    bool(dones[i] and not info["TimeLimit.truncated"]),
                    bool(dones[i]),
                    info["is_success"],
                    info["reward_prob"],
                    info["original_env_rew"],
                    info["true_success"],
                )
            )
    env.close()
    return found


def row(observations: Any, i: int) -> Any:
    if isinstance(observations, dict):
        return {key: value[i] for key, value in observations.items()}
    return observations[i]


def assert_same(found: list[list[Transition]], expected: list[list[Transition]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            where = f"transition {number}"
            assert (a.terminated, a.over) == (b.terminated, b.over), where
            assert (a.claimed, a.true_success) == (b.claimed, b.true_success), where
            assert a.original == b.original, where
            np.testing.assert_allclose(a.probability, b.probability, atol=1e-6, err_msg=where)
            np.testing.assert_allclose(a.reward, b.reward, rtol=1e-5, atol=1e-5, err_msg=where)
            np.testing.assert_equal(a.observation, b.observation, err_msg=where)


def sync(mode: AutoresetMode, **env: Any) -> SyncVectorEnv:
    return SyncVectorEnv([functools.partial(Corridor, **env)] * ENVS, autoreset_mode=mode)


# --- the oracle itself, from first principles ------------------------------------------------


def test_the_single_form_says_what_the_picture_says(bundle: Bundle) -> None:
    env = LearnedReward(
        Corridor(render_mode="rgb_array", first_cells=(3,)),
        bundle,
        success_reward=7.0,
        step_reward=-1.0,
        env_reward_weight=0.5,
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
        assert reward == pytest.approx((7.0 if claimed else -1.0) + 0.5 * (cell - 7))
        assert (terminated, truncated) == (claimed, False)
    env.close()


def test_the_episodes_of_the_oracle_end_in_every_way(bundle: Bundle) -> None:
    everything = one_after_another(bundle, {"render_mode": "rgb_array"})
    ends = {
        (t.terminated, t.claimed, t.observation[0] in (0, 7))
        for one in everything
        for t in one
        if t.over
    }
    # by the environment, by a claim, by both at once, and by truncation
    assert {(True, False, True), (True, True, False), (True, True, True)} <= ends
    assert (False, False, False) in ends


# --- the three forms --------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_vector_form_equals_single_environments(
    bundle: Bundle, mode: AutoresetMode, name: str
) -> None:
    options = {"image_source": "obs", **OPTIONS[name]}
    expected = one_after_another(bundle, {"observation": "picture"}, **options)
    env = VectorLearnedReward(sync(mode, observation="picture"), bundle, **options)
    assert_same(vector_rollout(env), expected)


@pytest.mark.parametrize("name", ["sparse", "potential", "goes-on-after-success"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_vector_form_by_rendering(bundle: Bundle, mode: AutoresetMode, name: str) -> None:
    env = {"render_mode": "rgb_array"}
    expected = one_after_another(bundle, env, **OPTIONS[name])
    found = vector_rollout(VectorLearnedReward(sync(mode, **env), bundle, **OPTIONS[name]))
    assert_same(found, expected)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize(("kind", "source"), [("planes", "obs"), ("dict", "obs:image")])
def test_vector_form_reads_other_observations(
    bundle: Bundle, mode: AutoresetMode, kind: str, source: str
) -> None:
    options = {"image_source": source, "reward_mode": "potential"}
    expected = one_after_another(bundle, {"observation": kind}, **options)
    env = VectorLearnedReward(sync(mode, observation=kind), bundle, **options)
    assert_same(vector_rollout(env), expected)


def picture_of_vector(env: Any, observation: Any) -> Any:
    picture = np.zeros((6, 8, 3), np.uint8)
    picture[..., 0] = round(255 * float(observation[0]) / 7)
    return picture


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_hold_counter_is_in_the_observation(bundle: Bundle, mode: AutoresetMode) -> None:
    options = {
        "image_source": picture_of_vector,
        "success_hold_steps": 3,
        "hold_in_observation": True,
    }
    expected = one_after_another(bundle, {}, **options)
    assert {t.observation[2] for one in expected for t in one} == {0, 1, 2, 3}
    assert_same(vector_rollout(VectorLearnedReward(sync(mode), bundle, **options)), expected)
    assert_same(
        sb3_rollout(VecLearnedReward(DummyVecEnv([Corridor] * ENVS), bundle, **options)), expected
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_sb3_form_equals_single_environments(bundle: Bundle, name: str) -> None:
    options = {"image_source": "obs", **OPTIONS[name]}
    expected = one_after_another(bundle, {"observation": "picture"}, **options)
    make = functools.partial(Corridor, observation="picture")
    venv = DummyVecEnv([lambda: Monitor(make())] * ENVS)
    assert_same(sb3_rollout(VecLearnedReward(venv, bundle, **options)), expected)


@pytest.mark.parametrize(("kind", "source"), [("planes", "obs"), ("dict", "obs:image")])
def test_sb3_form_reads_other_observations(bundle: Bundle, kind: str, source: str) -> None:
    options = {"image_source": source, "reward_mode": "potential"}
    expected = one_after_another(bundle, {"observation": kind}, **options)
    venv = DummyVecEnv([functools.partial(Corridor, observation=kind)] * ENVS)
    assert_same(sb3_rollout(VecLearnedReward(venv, bundle, **options)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_vector_form_over_processes(bundle: Bundle, mode: AutoresetMode) -> None:
    options = {"image_source": "obs", "reward_mode": "potential"}
    expected = one_after_another(bundle, {"observation": "picture"}, **options)
    inner = AsyncVectorEnv(
        [functools.partial(Corridor, observation="picture")] * ENVS,
        autoreset_mode=mode,
        context="spawn",
    )
    assert_same(vector_rollout(VectorLearnedReward(inner, bundle, **options)), expected)


@pytest.mark.slow
def test_sb3_form_over_processes(bundle: Bundle) -> None:
    options = {"image_source": "obs:image"}
    expected = one_after_another(bundle, {"observation": "dict"}, **options)
    venv = SubprocVecEnv(
        [functools.partial(Corridor, observation="dict")] * ENVS, start_method="spawn"
    )
    assert_same(sb3_rollout(VecLearnedReward(venv, bundle, **options)), expected)


def test_sb3_episodes_count_the_learned_reward(bundle: Bundle) -> None:
    venv = DummyVecEnv([lambda: Monitor(Corridor(observation="picture"))] * ENVS)
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


@pytest.mark.parametrize("form", ["single", *(mode.name for mode in MODES), "sb3"])
def test_a_held_frame_does_not_count_in_the_next_episode(bundle: Bundle, form: str) -> None:
    """Every episode is one step, from cell 6 to the end: one counting frame, two are needed."""
    make = functools.partial(Corridor, observation="picture", first_cells=(6,))
    options: dict[str, Any] = {"image_source": "obs", "success_hold_steps": 2}
    claims: list[bool] = []
    env: Any
    if form == "single":
        env = LearnedReward(make(), bundle, **options)
        for _ in range(3):
            env.reset(seed=0)
            claims.append(env.step(1)[4]["is_success"])
    elif form == "sb3":
        env = VecLearnedReward(DummyVecEnv([make]), bundle, **options)
        env.reset()
        claims = [env.step(np.array([1]))[3][0]["is_success"] for _ in range(3)]
    else:
        mode = AutoresetMode[form]
        env = VectorLearnedReward(SyncVectorEnv([make], autoreset_mode=mode), bundle, **options)
        env.reset(seed=0)
        for _ in range(5):
            _, _, terminated, _, infos = env.step(np.array([1]))
            claims.append(bool(infos["is_success"][0]))
            if mode is AutoresetMode.DISABLED:
                env.reset(options={"reset_mask": terminated})
    assert not any(claims)
    env.close()


# --- potential-based shaping ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_shaping_telescopes(bundle: Bundle, seed: int) -> None:
    """The discounted sum of the shaping is gamma^T phi(last) - phi(first); phi(end) is 0."""
    gamma = 0.9
    plain, shaped = (
        LearnedReward(Corridor(observation="picture"), bundle, image_source="obs", **options)
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


# --- what is refused ---------------------------------------------------------------------------


def test_render_is_refused_where_the_frame_is_of_the_next_episode(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match="NEXT_STEP"):
        VectorLearnedReward(sync(AutoresetMode.SAME_STEP, render_mode="rgb_array"), bundle)
    with pytest.raises(ConfigError, match="LearnedReward around each"):
        VecLearnedReward(DummyVecEnv([Corridor]), bundle, image_source="render")


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("vector", "render", "render_mode"),
        ("vector", "obs", "uint8"),
        ("grey", "obs", "colour"),
        ("float", "obs", "uint8"),
        ("square", "obs", "first or last"),
        ("dict", "obs", "obs:<key>"),
        ("dict", "obs:camera", "image, position"),
        ("picture", "obs:image", "Dict"),
        ("picture", "pixels", "image_source"),
    ],
)
def test_a_picture_that_is_not_there_is_refused_at_once(
    bundle: Bundle, kind: str, source: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LearnedReward(Corridor(observation=kind), bundle, image_source=source)


@pytest.mark.parametrize(
    "wrong",
    [
        {"gamma": 1.5},
        {"reward_mode": "dense"},
        {"success_reward": float("nan")},
        {"success_hold_steps": 0},
        {"success_threshold": 1.5},
        {"terminate_on_success": 1},
        {"guard": 3},
        {"env_reward_weight": "much"},
        {"hold_in_observation": True},
    ],
    ids=str,
)
def test_wrong_options_are_refused_at_once(bundle: Bundle, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LearnedReward(Corridor(observation="picture"), bundle, image_source="obs", **wrong)


def test_another_scene_is_refused(tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "scened", scene={"mesh": "20", "height": 6})
    same, other = {"mesh": "20", "height": 6}, {"mesh": "full", "height": 6}
    LearnedReward(Corridor("picture", scene=same), bundle, image_source="obs").close()
    VecLearnedReward(DummyVecEnv([lambda: Corridor("picture", scene=same)]), bundle).close()
    with pytest.raises(PictureMismatchError, match="mesh='full'"):
        LearnedReward(Corridor("picture", scene=other), bundle, image_source="obs")
    with pytest.raises(PictureMismatchError):
        VectorLearnedReward(
            sync(AutoresetMode.NEXT_STEP, observation="picture", scene=other),
            bundle,
            image_source="obs",
        )
    with pytest.raises(PictureMismatchError):
        VecLearnedReward(DummyVecEnv([lambda: Corridor("picture", scene=other)]), bundle)


def test_ends_that_cannot_be_made_true_are_refused(bundle: Bundle) -> None:
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(
        sync(AutoresetMode.NEXT_STEP, observation="picture")
    )
    with pytest.raises(ConfigError, match="outside"):
        VectorLearnedReward(wrapped, bundle, image_source="obs")
    VectorLearnedReward(wrapped, bundle, image_source="obs", terminate_on_success=False).close()
    strict = DummyVecEnv([lambda: Monitor(Corridor("picture"), allow_early_resets=False)])
    with pytest.raises(ConfigError, match="allow_early_resets"):
        VecLearnedReward(strict, bundle)
    with pytest.raises(ConfigError, match="around"):
        VecLearnedReward(VecMonitor(DummyVecEnv([lambda: Corridor("picture")])), bundle)


def test_a_disabled_autoreset_that_is_forgotten_is_an_error(bundle: Bundle) -> None:
    env = VectorLearnedReward(
        sync(AutoresetMode.DISABLED, observation="picture", first_cells=(4,)),
        bundle,
        image_source="obs",
    )
    env.reset(seed=0)
    _, _, terminated, _, _ = env.step(np.ones(ENVS, int))
    assert terminated.all()
    with pytest.raises(ConfigError, match="reset_mask"):
        env.step(np.ones(ENVS, int))
    env.close()


def test_a_bad_picture_from_a_function_is_an_error(bundle: Bundle) -> None:
    env = LearnedReward(Corridor(), bundle, image_source=lambda env, obs: np.zeros((6, 8, 3)))
    env.reset(seed=0)
    with pytest.raises(InputError, match="float64"):
        env.step(1)
    env.close()


def test_the_guard_has_the_last_word(bundle: Bundle) -> None:
    asked: list[tuple[float, float]] = []

    def guard(observation: Any, probability: float) -> bool:
        asked.append((float(observation[0]), probability))
        return bool(observation[0] >= 6)

    env = LearnedReward(Corridor(render_mode="rgb_array", first_cells=(3,)), bundle, guard=guard)
    env.reset(seed=0)
    assert [env.step(1)[4]["is_success"] for _ in range(3)] == [False, False, True]
    assert [cell for cell, _ in asked] == [5, 6]
    env.close()


# --- how others carry it -----------------------------------------------------------------------


def test_the_specification_can_be_written_and_made_again(bundle: Bundle) -> None:
    env = LearnedReward(
        gym.make("ToyCorridor-v0", observation="picture", first_cells=(4,)),
        str(bundle.path),
        image_source="obs",
        success_reward=2.0,
    )
    assert env.spec is not None
    text = env.spec.to_json()
    json.loads(text)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(text))
    again.reset(seed=0)
    _, reward, terminated, _, info = again.step(1)
    assert (reward, terminated, info["is_success"]) == (2.0, True, True)
    env.close()
    again.close()
