"""EncodedObservation: what cannot be right is refused when it is made."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from encoded_rollouts import ENVS, sync
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_environments import Camera, Corridor, save_toy_encoder

from vinoreward import (
    EncodedObservation,
    Encoder,
    LearnedReward,
    VecEncodedObservation,
    VectorEncodedObservation,
)
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ImageMismatchError, InputError
from vinoreward.wrappers.sources import EnvInfo, ImageReader


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("two", {}, "left, right"),
        ("vector", {}, "no image"),
        ("float", {}, "uint8"),
        ("mask", {}, "0 to 255"),
        ("uneven", {}, "3 channels first or last"),
        ("stack", {}, "give frame_stack"),
        ("small", {}, "6 x 7"),
        ("dict", {"image_source": "obs"}, "obs:<key>"),
        ("dict", {"image_source": "obs:wrist"}, "camera, gear, joints"),
        ("dict", {"image_source": "obs:joints"}, "uint8"),
        ("image", {"image_source": "render"}, "render_mode"),
        ("image", {"image_source": "pixels"}, "image_source"),
        ("image", {"keep": "joints"}, "Dict"),
        ("dict", {"keep": ("wheel",)}, "camera, gear, joints"),
        ("dict", {"keep": ("camera",)}, "not the image"),
        ("dict", {"frame_stack": 0}, "frame_stack"),
        ("dict", {"frame_stack": 1.5}, "frame_stack"),
        ("dict", {"precision": "int8"}, "INT8"),
    ],
)
def test_what_cannot_be_right_is_refused_at_once(
    bundle: Bundle, kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        EncodedObservation(Camera(kind), bundle, **options)
    with pytest.raises(ConfigError):
        VectorEncodedObservation(sync(AutoresetMode.NEXT_STEP, observation=kind), bundle, **options)
    with pytest.raises(ConfigError):
        VecEncodedObservation(DummyVecEnv([functools.partial(Camera, kind)]), bundle, **options)


def test_a_classifier_is_no_encoder(bundle: Bundle, classifier: Bundle) -> None:
    with pytest.raises(ConfigError, match="train-vae"):
        EncodedObservation(Camera(), classifier)
    with pytest.raises(ConfigError, match="finetune"):
        LearnedReward(Corridor("image"), bundle, image_source="obs")


def test_render_is_refused_where_the_frame_is_of_the_next_episode(bundle: Bundle) -> None:
    env = {"observation": "vector", "render_mode": "rgb_array"}
    with pytest.raises(ConfigError, match="NEXT_STEP"):
        VectorEncodedObservation(sync(AutoresetMode.SAME_STEP, **env), bundle)
    with pytest.raises(ConfigError, match="EncodedObservation around each"):
        VecEncodedObservation(DummyVecEnv([functools.partial(Camera, **env)]), bundle)


def test_another_scene_is_refused(tmp_path: Path) -> None:
    bundle = save_toy_encoder(tmp_path / "scened", scene={"mesh": "20"})
    EncodedObservation(Camera(scene={"mesh": "20"}), bundle).close()
    with pytest.raises(ImageMismatchError, match="mesh='full'"):
        EncodedObservation(Camera(scene={"mesh": "full"}), bundle)
    with pytest.raises(ImageMismatchError):
        VecEncodedObservation(
            DummyVecEnv([functools.partial(Camera, scene={"mesh": "full"})]), bundle
        )


def test_a_disabled_autoreset_that_is_forgotten_is_an_error(bundle: Bundle) -> None:
    env = VectorEncodedObservation(sync(AutoresetMode.DISABLED, max_steps=1), bundle)
    env.reset(seed=0)
    env.step(np.zeros(ENVS, int))
    with pytest.raises(ConfigError, match="reset_mask"):
        env.step(np.zeros(ENVS, int))
    env.close()


def test_a_bad_image_from_a_function_is_an_error(bundle: Bundle) -> None:
    env = EncodedObservation(
        Camera("vector"), bundle, image_source=lambda env, obs: np.zeros((6, 8, 3))
    )
    with pytest.raises(InputError, match="float64"):
        env.reset(seed=0)
    env.close()


def test_cubes_are_ambiguous(tmp_path: Path) -> None:
    bundle = save_toy_encoder(tmp_path / "any", resize="pil_bilinear")
    space = gym.spaces.Box(0, 255, (3, 12, 3), np.uint8)
    with pytest.raises(ConfigError, match="first or last"):
        ImageReader("obs", EnvInfo(space, None, None), bundle)


def test_the_encoder_is_loaded_late_and_closed(bundle: Bundle) -> None:
    env = EncodedObservation(Camera(), bundle)
    encoder = env.encoder
    assert isinstance(encoder, Encoder)
    env.close()
    with pytest.raises(ConfigError, match="closed"):
        encoder.encode(np.zeros((1, 6, 8, 3), np.uint8))
