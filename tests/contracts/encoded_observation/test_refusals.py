"""EncodedObservation: what cannot be right is refused when it is made."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from encoded_rollouts import sync
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_environments import Camera

from vinoreward import (
    EncodedObservation,
    VecEncodedObservation,
    VectorEncodedObservation,
)
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError


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
