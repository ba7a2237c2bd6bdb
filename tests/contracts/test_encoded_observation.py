"""One contract for the three forms of EncodedObservation: the same episodes look the same."""

from __future__ import annotations

import functools
import pickle
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from reward_rollouts import assert_same, assert_same_sb3, learned
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_environments import (
    LATENT,
    Camera,
    Corridor,
    save_toy_encoder,
    toy_latents,
)

from vinoreward import (
    EncodedObservation,
    LearnedReward,
    VecEncodedObservation,
    VectorEncodedObservation,
    VectorLearnedReward,
)
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError

ENVS = 3
MODES = list(AutoresetMode)

OPTIONS: dict[str, dict[str, Any]] = {
    "stack": {"frame_stack": 3},
    "keep": {"keep": ("joints", "gear"), "image_source": "obs:camera"},
    "all": {"keep": ["gear"], "frame_stack": 2},
}


def encoded(bundle: Bundle, **options: Any) -> gym.Env[Any, Any]:
    return EncodedObservation(Camera("dict"), bundle, **options)


def sync(mode: AutoresetMode, **env: Any) -> SyncVectorEnv:
    return SyncVectorEnv([functools.partial(Camera, **env)] * ENVS, autoreset_mode=mode)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_encoder(tmp_path_factory.mktemp("encoder") / "toy")


# --- the oracle itself, from first principles ----------------------------------------------------


def test_the_single_form_says_what_the_image_holds(encoder: Bundle) -> None:
    raw, env = (
        Camera("dict"),
        EncodedObservation(Camera("dict"), encoder, keep=["joints", "gear"], frame_stack=3),
    )
    history: deque[np.ndarray] = deque(maxlen=3)
    for episode in range(4):
        seed = 3 if episode == 0 else None
        theirs, info = raw.reset(seed=seed)
        ours, said = env.reset(seed=seed)
        history.extend([toy_latents(theirs["camera"][None])[0, :LATENT]] * 3)
        while True:
            gear = np.eye(3)[theirs["gear"]]
            wanted = np.concatenate([*history, theirs["joints"], gear])
            np.testing.assert_allclose(ours, wanted, atol=1e-4)
            assert ours.dtype == np.float32 and env.observation_space.contains(ours)
            if raw.over:
                break
            theirs, _, _, _, info = raw.step(0)
            ours, _, _, _, said = env.step(0)
            assert said["steps"] == info["steps"]
            history.append(toy_latents(theirs["camera"][None])[0, :LATENT])
    env.close()


def test_the_bounds_are_stated(encoder: Bundle, tmp_path: Path) -> None:
    env = EncodedObservation(Camera("dict"), encoder, keep=("joints", "gear"), frame_stack=2)
    space = env.observation_space
    assert isinstance(space, gym.spaces.Box) and space.dtype == np.float32
    assert space.low.tolist() == [-20] * 6 + [-1, -1, 0, 0, 0]
    assert space.high.tolist() == [20] * 6 + [30, 30, 1, 1, 1]
    narrow = EncodedObservation(Camera(), save_toy_encoder(tmp_path / "narrow", bound=0.25))
    observation, _ = narrow.reset(seed=0)
    assert narrow.observation_space.contains(observation)
    assert np.abs(observation).max() == 0.25, "clipped to the bounds"


# --- the three forms -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "name"),
    [*((mode, "all") for mode in MODES), (MODES[0], "stack"), (MODES[1], "keep")],
    ids=str,
)
def test_vector_form_equals_single_environments(
    encoder: Bundle, mode: AutoresetMode, name: str
) -> None:
    make = functools.partial(encoded, encoder, **OPTIONS[name])
    expected = SyncVectorEnv([make] * ENVS, autoreset_mode=mode)
    env = VectorEncodedObservation(sync(mode, observation="dict"), encoder, **OPTIONS[name])
    assert_same(env, expected, keys=())


@pytest.mark.parametrize("name", ["keep", "all"])
def test_sb3_form_equals_single_environments(encoder: Bundle, name: str) -> None:
    expected = DummyVecEnv([functools.partial(encoded, encoder, **OPTIONS[name])] * ENVS)
    venv = DummyVecEnv([functools.partial(Camera, "dict")] * ENVS)
    assert_same_sb3(VecEncodedObservation(venv, encoder, **OPTIONS[name]), expected, keys=())


def test_a_wrapped_environment_can_be_pickled(encoder: Bundle) -> None:
    env = EncodedObservation(Camera("dict"), encoder, frame_stack=2)
    env.reset(seed=1)
    env.step(0)
    twin = pickle.loads(pickle.dumps(env))
    np.testing.assert_array_equal(twin.step(0)[0], env.step(0)[0])
    env.close()
    twin.close()


def test_the_checkers_have_nothing_to_say(encoder: Bundle) -> None:
    env = EncodedObservation(Camera("dict"), encoder, **OPTIONS["all"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Gymnasium asks for the unwrapped environment by a warning, and for renders of its modes.
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version.*")
        check_env(env, skip_render_check=True)
        sb3_check_env(env)
    env.close()


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("two", {}, "left, right"),
        ("vector", {}, "no image"),
        ("mask", {}, "0 to 255"),
        ("stack", {}, "give frame_stack"),
        ("small", {}, "6 x 7"),
        ("dict", {"image_source": "obs:joints"}, "uint8"),
        ("image", {"keep": "joints"}, "Dict"),
        ("dict", {"keep": ("wheel",)}, "camera, gear, joints"),
        ("dict", {"keep": ("camera",)}, "not the image"),
        ("dict", {"frame_stack": 0}, "frame_stack"),
        ("dict", {"precision": "int8"}, "INT8"),
    ],
)
def test_what_cannot_be_right_is_refused_at_once(
    encoder: Bundle, kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        EncodedObservation(Camera(kind), encoder, **options)
    vector = sync(AutoresetMode.NEXT_STEP, observation=kind)
    with pytest.raises(ConfigError, match=message):
        VectorEncodedObservation(vector, encoder, **options)
    with pytest.raises(ConfigError, match=message):
        VecEncodedObservation(DummyVecEnv([functools.partial(Camera, kind)]), encoder, **options)


class CountedCorridor(Corridor):
    """A corridor that counts how often others render it."""

    drawn = 0

    def render(self) -> Any:
        self.drawn += 1
        return super().render()

    def _observe(self) -> Any:
        return np.array([self.cell, self.steps], np.float32)


@pytest.mark.parametrize("inside", ["reward", "encoder"])
def test_one_frame_is_rendered_once(encoder: Bundle, bundle: Bundle, inside: str) -> None:
    raw = CountedCorridor(render_mode="rgb_array", first_cells=(1,))
    env: gym.Env[Any, Any]
    if inside == "reward":
        env = EncodedObservation(LearnedReward(raw, bundle, reward_mode="potential"), encoder)
    else:
        env = LearnedReward(EncodedObservation(raw, encoder), bundle, reward_mode="potential")
    observation, _ = env.reset(seed=0)
    assert raw.drawn == 1
    for step in range(4):
        observation, _, terminated, truncated, info = env.step(1)
        assert raw.drawn == step + 2
        frame = env.render()
        assert raw.drawn == step + 2
        wanted = toy_latents(np.asarray(frame)[None])[0, :LATENT]
        np.testing.assert_allclose(observation, wanted, atol=1e-4)
        assert info["is_success"] is (raw.cell >= 5)
    assert terminated and not truncated
    env.close()


@pytest.mark.parametrize(
    ("mode", "inside"),
    [
        (AutoresetMode.NEXT_STEP, "reward"),
        (AutoresetMode.NEXT_STEP, "encoder"),
        (AutoresetMode.DISABLED, "reward"),
        (AutoresetMode.DISABLED, "encoder"),
        (AutoresetMode.SAME_STEP, "reward"),  # which cannot render last images
    ],
)
def test_the_vector_forms_compose_in_both_orders(
    encoder: Bundle, bundle: Bundle, mode: AutoresetMode, inside: str
) -> None:
    """Claimed successes end episodes of which the environments below know nothing."""
    same_step = mode is AutoresetMode.SAME_STEP
    kwargs = {"observation": "image"} if same_step else {"render_mode": "rgb_array"}
    source = "obs" if same_step else "render"

    def both() -> gym.Env[Any, Any]:
        return EncodedObservation(
            learned(bundle, kwargs, image_source=source), encoder, frame_stack=2
        )

    env: Any = SyncVectorEnv([functools.partial(Corridor, **kwargs)] * ENVS, autoreset_mode=mode)
    if inside == "reward":
        env = VectorLearnedReward(env, bundle, image_source=source)
        env = VectorEncodedObservation(env, encoder, frame_stack=2)
    else:
        env = VectorLearnedReward(VectorEncodedObservation(env, encoder, frame_stack=2), bundle)
    assert (True, True) in assert_same(env, SyncVectorEnv([both] * ENVS, autoreset_mode=mode))
