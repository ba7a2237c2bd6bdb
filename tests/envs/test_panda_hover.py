"""PandaHover: the environments' contract, judged by the truth and by the shipped classifier."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from tiny_network import brightness_bundle

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import (
    ConfigError,
    ImageMismatchError,
    InputError,
    MissingDisplayError,
)
from vinoreward_envs import constants as c
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.making import make_env

IDS = ("PandaHover-v0", "PandaHoverRandom-v0", "PandaHoverPixels-v0")


def make(id_: str = "PandaHover-v0", **kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make(id_, **{"backend": "oracle", **kwargs})


def approach(env: gym.Env[Any, Any]) -> np.ndarray:
    """Return the action that leads straight to the object."""
    scene = env.unwrapped.scene  # type: ignore[attr-defined]
    return np.clip(np.array(scene.object_xy) - scene.gripper[:2], -0.1, 0.1).astype(np.float32)


# --- what every environment does ------------------------------------------------------------


@pytest.mark.parametrize("id_", IDS)
# SB3 recommends actions within ±1 for every Box; ours are metres, and SAC rescales them itself.
@pytest.mark.filterwarnings("ignore:.*symmetric and normalized Box action space:UserWarning")
def test_the_checkers_accept_it_without_a_warning(id_: str) -> None:
    env = make(id_, render_mode="rgb_array")
    # The render check opens a window as well, which only a machine with a display can do.
    gymnasium_check_env(env.unwrapped, skip_render_check=not os.environ.get("DISPLAY"))
    env_checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env_checker.check_env(env.unwrapped)
    observation, _ = env.reset(seed=0)
    image: Any = env.render()
    assert (image.shape, image.dtype) == ((96, 128, 3), np.uint8)
    assert id_ != "PandaHoverPixels-v0" or (observation == image).all()
    env.close()


def test_a_step_costs_one_a_move_out_of_the_workspace_five_and_the_tenth_truncates() -> None:
    env = make()
    start, _ = env.reset(seed=0)
    for step in range(1, 11):
        outwards = step == 1
        moved, reward, terminated, truncated, info = env.step(
            np.array([-0.1 * outwards, 0.0], np.float32)
        )
        assert (reward, terminated, truncated) == (-5.0 if outwards else -1.0, False, step == 10)
        assert info.keys() == {"is_success", "true_success", "distance", "refused"}
        assert info["refused"] is outwards
        np.testing.assert_allclose(moved, start, atol=1e-6)
    env.close()


def test_observations_say_where_the_gripper_and_the_object_are() -> None:
    fixed, random = make(), make("PandaHoverRandom-v0")
    observation, _ = fixed.reset(seed=0)
    assert observation.shape == (2,)
    assert observation.dtype == np.float32
    places = set()
    for seed in range(20):
        observation, info = random.reset(seed=seed)
        scene = random.unwrapped.scene  # type: ignore[attr-defined]
        np.testing.assert_allclose(observation[2:], scene.object_xy, atol=1e-6)
        assert info["distance"] == pytest.approx(
            math.dist(observation[:2], observation[2:]), abs=1e-5
        )
        assert (observation[2:] >= np.array(c.WORKSPACE_LOW)).all()
        assert (observation[2:] <= np.array(c.WORKSPACE_HIGH)).all()
        places.add(tuple(observation[2:].tolist()))
    assert len(places) == 20
    fixed.close()
    random.close()


def test_an_episode_can_be_given_its_object_position() -> None:
    env = make()
    env.reset(seed=0, options={"object_position": (0.5, 0.2)})
    assert env.unwrapped.scene.object_xy == (0.5, 0.2)  # type: ignore[attr-defined]
    env.reset()
    assert env.unwrapped.scene.object_xy == c.FIXED_OBJECT  # type: ignore[attr-defined]
    for wrong in ((0.9, 0.0), (0.5, math.nan), (0.5,), "left", None):
        with pytest.raises(InputError, match="object_position"):
            env.reset(options={"object_position": wrong})
    with pytest.raises(ConfigError, match="objekt"):
        env.reset(options={"objekt": (0.5, 0.2)})
    env.close()


def test_a_broken_action_is_refused() -> None:
    env: Any = make_env(backend="oracle")
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(2, np.float32))
    env.reset(seed=0)
    for action in ((math.nan, 0.0), (0.0, math.inf), (0.1,), "left"):
        with pytest.raises(InputError, match="two finite numbers"):
            env.step(action)
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "found"),
    [
        ({"object_position": (2.0, 0.0)}, "object_position"),
        ({"camera": "phone"}, "camera='phone'"),
        ({"image_size": (0, 4)}, "image_size"),
        ({"fidelity": "high"}, "fidelity='high'"),
        ({"fidelity": "article", "image_size": (9, 9)}, "960x720"),
        ({"render_mode": "ansi"}, "render_mode='ansi'"),
    ],
)
def test_arguments_that_cannot_work_are_refused(kwargs: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        make_env(**{"backend": "oracle", **kwargs})


def test_a_window_without_a_display_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    with pytest.raises(MissingDisplayError, match="rgb_array"):
        make_env(backend="oracle", render_mode="human")


# --- motion, workers ------------------------------------------------------------------------


@pytest.mark.slow
def test_spawned_workers_step_as_one_environment_does() -> None:
    id_ = "PandaHoverPixels-v0"
    workers = gym.make_vec(
        f"vinoreward:{id_}",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"context": "spawn"},
        backend="oracle",
    )
    single = make(id_)
    try:
        observations, _ = workers.reset(seed=11)
        np.testing.assert_array_equal(observations[0], single.reset(seed=11)[0])
        action = np.array([0.03, 0.02], np.float32)
        observations, *_ = workers.step(np.stack([action, action]))
        np.testing.assert_array_equal(observations[0], single.step(action)[0])
    finally:
        workers.close()
        single.close()


# --- a classifier ---------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path) -> Bundle:
    """Somebody else's network, for 48x64 images: the logit of success is their brightness."""
    pytest.importorskip("onnx")
    return brightness_bundle(tmp_path / "brightness.onnx", 48, 64)


def test_a_bundle_of_this_scene_is_held_to_its_whole_image(foreign: Bundle) -> None:
    scene = CameraSpec(height=48, width=64, mesh="full").as_dict()
    image = dataclasses.replace(foreign.spec.image, scene=scene)
    ours = dataclasses.replace(foreign, spec=dataclasses.replace(foreign.spec, image=image))
    env: Any = make_env(bundle=ours, success_threshold=0.5)
    assert env.unwrapped.scene.camera_spec.as_dict() == scene
    env.close()

    with pytest.raises(ImageMismatchError, match=r"mesh='20'.*mesh='full'"):
        make_env(bundle=ours, success_threshold=0.5, mesh="20")
    with pytest.raises(ImageMismatchError, match=r"width=128.*width=64"):
        make_env(bundle=ours, success_threshold=0.5, image_size=(48, 128))


@pytest.mark.pybullet
@pytest.mark.slow
def test_the_articles_image_is_resized_to_the_bundles(foreign: Bundle) -> None:
    others: Any = {"bundle": foreign, "accept_foreign_images": True, "success_threshold": 0.5}
    env = make_env(fidelity="article", render_mode="rgb_array", **others)
    env.reset(seed=0)
    *_, info = env.step(np.zeros(2, np.float32))
    image = np.asarray(env.render())
    assert image.shape == (c.ARTICLE_HEIGHT, c.ARTICLE_WIDTH, 3)
    brightness = image.mean(axis=(0, 1)).sum() / 255
    assert info["reward_prob"] == pytest.approx(1 / (1 + np.exp(-brightness)), abs=1e-2)
    env.close()


# --- the shipped classifier -----------------------------------------------------------------


@pytest.mark.parametrize("backend", ["oracle", "openvino", "torch"])
def test_going_straight_to_the_object_is_claimed_as_a_success(backend: str) -> None:
    env = make("PandaHoverRandom-v0", backend=backend)
    agreed = steps = 0
    for seed in range(5):
        env.reset(seed=seed)
        ended = False
        while not ended:
            _, reward, terminated, truncated, info = env.step(approach(env))
            assert terminated == info["is_success"] == (reward == c.REWARD_SUCCESS)
            assert backend == "oracle" or 0.0 <= info["reward_prob"] <= 1.0
            agreed += info["is_success"] == info["true_success"]
            steps += 1
            ended = terminated or truncated
        assert backend != "oracle" or (terminated and not truncated)
    assert agreed >= (1.0 if backend == "oracle" else 0.8) * steps
    env.close()
