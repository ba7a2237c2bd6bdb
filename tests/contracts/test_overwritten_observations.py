"""Environments that return one array again and again: right, or refused, never the next episode."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from reward_rollouts import ENVS, assert_same, assert_same_sb3, sb3_singles, singles
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_environments import (
    HEIGHT,
    WIDTH,
    Corridor,
)

from vinoreward import (
    VecLearnedReward,
    VectorLearnedReward,
)
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, InputError


class OneBuffer(gym.Wrapper[Any, Any, Any, Any]):
    """Returns its observations as views of the same memory."""

    memory: Any = None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        return self._put(observation), info

    def step(self, action: Any) -> Any:
        observation, *others = self.env.step(action)
        return self._put(observation), *others

    def _put(self, observation: Any) -> Any:
        if self.memory is None:
            self.memory = np.zeros_like(observation["image"])
        self.memory[...] = observation["image"]
        return {**observation, "image": self.memory[:]}


def corridor() -> gym.Env[Any, Any]:
    return OneBuffer(Corridor("dict"))


@pytest.mark.parametrize("form", ["sb3", *AutoresetMode], ids=str)
def test_every_form_in_this_process_is_right(bundle: Bundle, form: Any) -> None:
    options: dict[str, Any] = {"image_source": "obs:image", "reward_mode": "potential"}
    env = {"observation": "dict"}
    if form == "sb3":
        ours = VecLearnedReward(DummyVecEnv([corridor] * ENVS), bundle, **options)
        assert_same_sb3(ours, sb3_singles(bundle, env, **options))
    else:
        inner = SyncVectorEnv([corridor] * ENVS, autoreset_mode=form)
        vector = VectorLearnedReward(inner, bundle, **options)
        assert_same(vector, singles(form, bundle, env, **options))


class Native(VectorEnv[Any, Any, Any]):
    """A corridor of cells that is vectorised by itself, in SAME_STEP mode.

    ``final`` says what it makes of final_obs: "own" memory, a view of the "batch", or "none".
    """

    def __init__(self, final: str, success: bool = False) -> None:
        self.num_envs = 2
        self.final = final
        self.success = success
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = gym.spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)
        self.cells = np.array([5, 3])
        self.batch = np.zeros((2, HEIGHT, WIDTH, 3), np.uint8)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.cells = np.array([5, 3])
        return self._draw(), {}

    def step(self, actions: Any) -> Any:
        self.cells = self.cells + 2 * np.asarray(actions) - 1
        over = (self.cells == 7) | (self.cells == 0)
        infos: dict[str, Any] = {"is_success": self.cells >= 6} if self.success else {}
        self._draw()
        if over.any() and self.final != "none":
            infos["final_obs"] = self.batch.copy() if self.final == "own" else self.batch
        self.cells = np.where(over, [5, 3], self.cells)
        observations = self._draw() if self.final != "own" else self._draw().copy()
        return observations, np.zeros(2), over, np.zeros(2, np.bool_), infos

    def _draw(self) -> Any:
        self.batch[..., 0] = np.round(255 * self.cells / 7)[:, None, None]
        return self.batch


def learned(env: VectorEnv[Any, Any, Any], bundle: Bundle) -> VectorLearnedReward:
    return VectorLearnedReward(env, bundle, image_source="obs", terminate_on_success=False)


def test_a_native_environment_whose_final_obs_is_its_batch_is_refused(bundle: Bundle) -> None:
    env = learned(Native("batch"), bundle)
    env.reset()
    env.step(np.array([1, 1]))
    with pytest.raises(ConfigError, match="in the memory of the first one"):
        env.step(np.array([1, 1]))
    env.close()


def test_a_native_environment_with_memory_of_its_own_is_not(bundle: Bundle) -> None:
    env = learned(Native("own", success=True), bundle)
    env.reset()
    claims = []
    for _ in range(6):
        _, _, over, _, infos = env.step(np.array([1, 1]))
        claims.append(infos["is_success"].tolist())
        # It says is_success without Gymnasium's mask: all of it holds.
        assert infos["_original_is_success"].all() and infos["_is_success"].all()
        assert infos["original_is_success"][over].all()
    # Cells 6 7 6 7 6 7 and 4 5 6 7 4 5, of which 5 to 7 are claimed.
    assert claims == [[True, c] for c in (False, True, True, True, False, True)]
    env.close()


def test_a_missing_final_observation_is_an_error(bundle: Bundle) -> None:
    env = learned(Native("none"), bundle)
    env.reset()
    env.step(np.array([1, 1]))
    with pytest.raises(InputError, match=r"without infos\['final_obs'\]"):
        env.step(np.array([1, 1]))
    env.close()

    class Forgetful(DummyVecEnv):
        def step_wait(self) -> Any:
            observations, rewards, dones, infos = super().step_wait()
            for info in infos:
                info.pop("terminal_observation", None)
            return observations, rewards, dones, infos

    venv = VecLearnedReward(
        Forgetful([functools.partial(Corridor, "image", first_cells=(6,))]), bundle
    )
    venv.reset()
    with pytest.raises(InputError, match=r"\[0\] are done without"):
        venv.step(np.array([1]))
    venv.close()


class Script(Native):
    """One environment whose episodes show given cells; every observation is in new memory."""

    def __init__(self, episodes: list[list[int]]) -> None:
        super().__init__("own")
        self.num_envs = 1
        self.observation_space = batch_space(self.single_observation_space, 1)
        self.action_space = batch_space(self.single_action_space, 1)
        self.batch = self.batch[:1]
        self.episodes = episodes
        self.number = self.step_number = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._show(), {}

    def step(self, actions: Any) -> Any:
        self.step_number += 1
        last = self._show()
        over = self.step_number == len(self.episodes[self.number]) - 1
        if over:
            self.number, self.step_number = self.number + 1, 0
        infos = {"final_obs": last} if over else {}
        return self._show(), np.zeros(1), np.array([over]), np.zeros(1, np.bool_), infos

    def _show(self) -> Any:
        self.cells = np.array([self.episodes[self.number][self.step_number]])
        return self._draw().copy()


BACK, AWAY, STILL = [3, 4, 3], [3, 4, 5], [3, 3, 3]


@pytest.mark.parametrize(
    ("episodes", "refused"),
    [([BACK] * 4 + [STILL] * 4 + [BACK] * 4, True), ([BACK] * 7 + [AWAY] + [BACK] * 20, False)],
    ids=["back-or-still", "away-once"],
)
def test_ends_that_are_the_next_beginning(
    bundle: Bundle, episodes: list[list[int]], refused: bool
) -> None:
    """What another process returns tells of one buffer only by its content."""
    env = learned(Script([*episodes, STILL]), bundle)
    env.reset()
    ended = 0
    try:
        while ended < len(episodes):
            ended += int(env.step(np.zeros(1, int))[2].sum())
    except ConfigError as error:
        assert refused and "8 of the last 8 episodes" in str(error)
        assert ended == len(episodes) - 1
    else:
        assert not refused
    env.close()
