"""Atari games as the papers play them: frames, lives, scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from task_runs import play, same

from vinoreward.errors import ConfigError
from vinoreward_actors.tasks.atari import AreaResize, AtariEnv
from vinoreward_actors.tasks.lookup import make_task


@pytest.fixture
def pong() -> AtariEnv:
    pytest.importorskip("ale_py")
    return AtariEnv("pong")


@pytest.mark.parametrize("options", [{}, {"episodic_life": True, "press_fire": True}])
def test_the_atari_environment_is_a_gymnasium_environment(options: dict[str, Any]) -> None:
    pytest.importorskip("ale_py")
    check_env(AtariEnv("breakout", **options), skip_render_check=True)


def areas(image: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.float64]:
    """The mean of the area of each pixel, by repeating pixels until the areas are whole."""
    height, width = image.shape
    rows = image.astype(np.float64).repeat(side, 0).reshape(side, height, width).mean(1)
    return rows.repeat(side, 1).reshape(side, side, width).mean(2)


@given(st.tuples(*[st.integers(6, 60)] * 2), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_a_resized_pixel_is_the_mean_of_its_area(
    shape: tuple[int, int], side: int, seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    resized = AreaResize(*shape, side)(image)
    assert resized.dtype == np.uint8
    assert np.abs(resized - areas(image, side)).max() <= 0.5 + 1e-9


def test_an_observation_is_the_larger_of_two_raw_frames_shrunk_and_stacked(pong: AtariEnv) -> None:
    """Against ale-py's own environment, which shows every frame."""
    ale_py = pytest.importorskip("ale_py")
    raw = ale_py.AtariEnv(
        "pong", obs_type="grayscale", frameskip=1, repeat_action_probability=0.0
    )  # fmt: skip
    env = AtariEnv("pong", noops=0)
    first, _ = raw.reset(seed=0)
    observation, _ = env.reset(seed=0)
    stack = [areas(first, 84)] * 4
    random = np.random.default_rng(1)
    score = 0.0
    for _ in range(80):
        assert np.abs(observation - np.stack(stack)).max() <= 0.5 + 1e-9
        action = int(random.integers(6))
        frames = [raw.step(action) for _ in range(4)]
        observation, reward, terminated, truncated, info = env.step(action)
        stack = [*stack[1:], areas(np.maximum(frames[2][0], frames[3][0]), 84)]
        assert reward == sum(frame[1] for frame in frames)
        score += reward
        assert (info["score"], info["points"]) == (score, reward)
        assert not (terminated or truncated)
    assert score < 0


def test_an_observation_belongs_to_the_caller(pong: AtariEnv) -> None:
    before, _ = pong.reset(seed=0)
    kept = before.copy()
    after, *_ = pong.step(2)
    np.testing.assert_array_equal(before, kept)
    np.testing.assert_array_equal(after[:3], before[1:])
    after[:] = 0
    assert pong.step(2)[0][2].any()


def test_the_score_is_neither_clipped_nor_cut_at_a_life() -> None:
    pytest.importorskip("ale_py")
    clipped = make_task("space_invaders", seed=2, clip_reward=True, episodic_life=True)
    whole = make_task("space_invaders", seed=2)
    clipped.reset(), whole.reset()
    random = np.random.default_rng(0)
    lives, points, rewards, scores = [3], 0.0, set(), []
    while True:
        action = int(random.integers(6))
        _, reward, terminated, truncated, info = clipped.step(action)
        rewards.add(reward)
        points += info["points"]
        scores.append(info["score"])
        assert info["score"] == points
        assert terminated == (info["game_over"] or info["lives"] < lives[-1])
        assert not truncated
        if info["lives"] != lives[-1]:
            lives.append(info["lives"])
        if info["game_over"]:
            break
        if terminated:
            with pytest.raises(ResetNeeded):
                clipped.step(0)
            _, info = clipped.reset()
            assert info["score"] == points  # the game goes on
            assert info["lives"] == lives[-1]
    assert lives == [3, 2, 1, 0]
    assert rewards == {0.0, 1.0}
    assert points > len(scores) / 100 and points % 5 == 0 and points >= 50
    assert clipped.reset()[1]["score"] == 0.0

    total = 0.0
    while True:
        _, reward, terminated, truncated, info = whole.step(int(random.integers(6)))
        total += reward
        assert terminated == info["game_over"]
        if terminated:
            break
    assert info["score"] == total
    assert info["lives"] == 0


def test_a_game_cut_short_is_truncated_and_not_over() -> None:
    pytest.importorskip("ale_py")
    for life in (False, True):
        env = make_task("pong", seed=0, max_frames=100, noops=0, episodic_life=life)
        for _ in range(2):
            env.reset()
            steps = [env.step(0) for _ in range(25)]
            assert [step[2:4] for step in steps] == [(False, False)] * 24 + [(False, True)]
            assert steps[-1][4]["frames"] == 100
            assert not steps[-1][4]["game_over"]


def test_fire_starts_a_game_that_would_wait_for_it() -> None:
    pytest.importorskip("ale_py")
    frames = {}
    for press in (False, True):
        env = make_task("breakout", seed=0, press_fire=press)
        env.reset()
        frames[press] = [env.step(0)[4]["lives"] for _ in range(60)][-1]
    assert frames == {False: 5, True: 3}  # two balls are lost if they are in play


def test_fire_starts_each_life_of_an_episode_that_goes_on() -> None:
    """An evaluation of a game with five lives ends, though its player never learned to press."""
    pytest.importorskip("ale_py")
    env = make_task("breakout", seed=0, press_fire=True)
    env.reset()
    lives = [env.step(0)[4]["lives"] for _ in range(60)]
    while not env.unwrapped._over and len(lives) < 400:  # type: ignore[attr-defined]
        lives.append(env.step(0)[4]["lives"])
    assert lives[-1] == 0 and len(lives) < 400


def test_a_game_begins_at_different_moments_and_repeats_actions_if_asked() -> None:
    pytest.importorskip("ale_py")
    env = make_task("pong", seed=0)
    assert len({env.reset()[1]["frames"] for _ in range(20)}) > 5
    assert {env.reset()[1]["frames"] for _ in range(60)} <= set(range(1, 31))
    with pytest.raises(ConfigError, match="a probability below 1"):
        AtariEnv("pong", sticky=1.0)
    with pytest.raises(ConfigError, match="frame_skip=0"):
        AtariEnv("pong", frame_skip=0)
    one, other = (make_task("pong", seed=1, sticky=sticky) for sticky in (0.0, 0.25))
    for each in (one, other):
        each.action_space.seed(3)
    assert not same(play(one, 60), play(other, 60))
