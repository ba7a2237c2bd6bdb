"""What every form of the learned reward refuses, and what it carries along."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from reward_rollouts import ENVS, sync
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor
from toy_environments import Camera, Corridor, save_toy_bundle, save_toy_encoder

from vinoreward import (
    EncodedObservation,
    ImageInInfo,
    LearnedReward,
    VecLearnedReward,
    VectorLearnedReward,
)
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ImageMismatchError, InputError


def test_render_is_refused_where_the_frame_is_of_the_next_episode(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match="NEXT_STEP"):
        VectorLearnedReward(sync(AutoresetMode.SAME_STEP, render_mode="rgb_array"), bundle)
    with pytest.raises(ConfigError, match=r"ImageInInfo or vinoreward\.LearnedReward around each"):
        VecLearnedReward(DummyVecEnv([Corridor]), bundle, image_source="render")
    with pytest.raises(ConfigError, match=r"render_mode is None.*render_mode='rgb_array'"):
        ImageInInfo(Corridor())


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("vector", "render", "render_mode"),
        ("vector", "obs", "uint8"),
        ("alpha", "obs", "colour"),
        ("image", ("obs", "render"), "looks at one"),
        ("square", "obs", "first or last"),
        ("dict", "obs", "obs:<key>"),
        ("dict", "obs:camera", "image, position"),
        ("image", "obs:image", "Dict"),
        ("image", "pixels", "image_source"),
    ],
)
def test_an_image_that_is_not_there_is_refused_at_once(
    bundle: Bundle, kind: str, source: Any, message: str
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
        {"success_exit_threshold": -0.1},
        {"success_exit_threshold": 0.6},  # above the threshold, 0.5
        {"success_exit_threshold": float("nan")},
        {"terminate_on_success": 1},
        {"success_filter": 3},
        {"env_reward_weight": "much"},
        {"success_replaces_env_reward": 1},
        {"hold_in_observation": True},
        {"on_ood": "hide"},
    ],
    ids=str,
)
def test_wrong_options_are_refused_at_once(bundle: Bundle, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LearnedReward(Corridor(observation="image"), bundle, image_source="obs", **wrong)


def test_another_scene_is_refused(tmp_path: Path) -> None:
    bundle = save_toy_bundle(tmp_path / "scened", scene={"mesh": "20", "height": 6})
    same, other = {"mesh": "20", "height": 6}, {"mesh": "full", "height": 6}
    LearnedReward(Corridor("image", scene=same), bundle, image_source="obs").close()
    VecLearnedReward(DummyVecEnv([lambda: Corridor("image", scene=same)]), bundle).close()
    with pytest.raises(ImageMismatchError, match="mesh='full'"):
        LearnedReward(Corridor("image", scene=other), bundle, image_source="obs")
    with pytest.raises(ImageMismatchError):
        VectorLearnedReward(
            sync(AutoresetMode.NEXT_STEP, observation="image", scene=other),
            bundle,
            image_source="obs",
        )
    with pytest.raises(ImageMismatchError):
        VecLearnedReward(DummyVecEnv([lambda: Corridor("image", scene=other)]), bundle)


@pytest.mark.parametrize("form", ["single", "vector", "sb3"])
def test_images_of_unknown_origin_are_refused(bundle: Bundle, form: str) -> None:
    """Where the environment says what draws its images and the bundle does not."""
    make = functools.partial(Corridor, "image", scene={"mesh": "20"})

    def wrapped(**options: Any) -> Any:
        if form == "single":
            return LearnedReward(make(), bundle, image_source="obs", **options)
        if form == "sb3":
            return VecLearnedReward(DummyVecEnv([make]), bundle, **options)
        return VectorLearnedReward(SyncVectorEnv([make]), bundle, image_source="obs", **options)

    with pytest.raises(ImageMismatchError, match=r"does not say what drew.*accept_foreign"):
        wrapped()
    wrapped(accept_foreign_images=True).close()


def test_ends_that_cannot_be_made_true_are_refused(bundle: Bundle) -> None:
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(
        sync(AutoresetMode.NEXT_STEP, observation="image")
    )
    with pytest.raises(ConfigError, match="outside"):
        VectorLearnedReward(wrapped, bundle, image_source="obs")
    VectorLearnedReward(wrapped, bundle, image_source="obs", terminate_on_success=False).close()
    single = Monitor(Corridor("image"), allow_early_resets=False)
    with pytest.raises(ConfigError, match="allow_early_resets"):
        LearnedReward(single, bundle, image_source="obs")
    parts = gym.vector.SyncVectorEnv([lambda: Monitor(Corridor("image"), allow_early_resets=False)])
    with pytest.raises(ConfigError, match="allow_early_resets"):
        VectorLearnedReward(parts, bundle, image_source="obs")
    strict = DummyVecEnv([lambda: Monitor(Corridor("image"), allow_early_resets=False)])
    with pytest.raises(ConfigError, match="allow_early_resets"):
        VecLearnedReward(strict, bundle)
    with pytest.raises(ConfigError, match="around"):
        VecLearnedReward(VecMonitor(DummyVecEnv([lambda: Corridor("image")])), bundle)


def test_an_autoreset_inside_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """Its step() returns the first image of the next episode, which earns nothing."""
    inside = gym.wrappers.OrderEnforcing(gym.wrappers.Autoreset(Corridor("image")))
    with pytest.raises(ConfigError, match="Autoreset outside"):
        LearnedReward(inside, bundle, image_source="obs")
    encoder = save_toy_encoder(tmp_path / "encoder")
    with pytest.raises(ConfigError, match="Autoreset outside"):
        EncodedObservation(gym.wrappers.Autoreset(Camera()), encoder, frame_stack=2)


def test_an_observation_with_the_hold_counter_is_in_its_space(bundle: Bundle) -> None:
    class Bytes(gym.ObservationWrapper[Any, Any, Any]):
        observation_space = gym.spaces.Box(0, 10, (2,), np.uint8)

        def observation(self, observation: Any) -> Any:
            return observation.astype(np.uint8)

    def make() -> gym.Env[Any, Any]:
        return Bytes(Corridor(render_mode="rgb_array", first_cells=(3,)))

    options: dict[str, Any] = {"hold_in_observation": True, "success_hold_steps": 3}
    single = LearnedReward(make(), bundle, **options)
    several = VectorLearnedReward(SyncVectorEnv([make]), bundle, **options)
    observed = [single.reset(seed=0)[0], several.reset(seed=0)[0][0]]
    for _ in range(3):
        observed += [single.step(1)[0], several.step(np.array([1]))[0][0]]
    for observation in observed:
        assert observation in single.observation_space
        assert observation in several.single_observation_space
    assert [observation[-1] for observation in observed] == [0, 0, 0, 0, 1, 1, 2, 2]
    single.close()
    several.close()
    with pytest.raises(ConfigError, match="wider dtype"):
        LearnedReward(make(), bundle, **{**options, "success_hold_steps": 300})


def test_a_disabled_autoreset_that_is_forgotten_is_an_error(bundle: Bundle) -> None:
    env = VectorLearnedReward(
        sync(AutoresetMode.DISABLED, observation="image", first_cells=(4,)),
        bundle,
        image_source="obs",
    )
    env.reset(seed=0)
    _, _, terminated, _, _ = env.step(np.ones(ENVS, int))
    assert terminated.all()
    with pytest.raises(ConfigError, match="reset_mask"):
        env.step(np.ones(ENVS, int))
    env.close()


def test_a_bad_image_from_a_function_is_an_error(bundle: Bundle) -> None:
    env = LearnedReward(Corridor(), bundle, image_source=lambda env, obs: np.zeros((6, 8, 3)))
    env.reset(seed=0)
    with pytest.raises(InputError, match="float64"):
        env.step(1)
    env.close()


@pytest.mark.parametrize("form", ["vector", "sb3"])
def test_a_function_that_needs_the_environment_is_told_that_there_is_none(
    bundle: Bundle, form: str
) -> None:
    def image(env: Any, observation: Any) -> Any:
        return env.unwrapped.render()

    made = functools.partial(Corridor, render_mode="rgb_array")
    env: Any = (
        VectorLearnedReward(SyncVectorEnv([made]), bundle, image_source=image)
        if form == "vector"
        else VecLearnedReward(DummyVecEnv([made]), bundle, image_source=image)
    )
    env.reset()
    with pytest.raises(ConfigError, match=r"env=None.*LearnedReward around each environment"):
        env.step(np.array([1]))
    env.close()
