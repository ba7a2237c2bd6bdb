"""One contract for the three forms of EncodedObservation: the same episodes look the same."""

from __future__ import annotations

import functools
import pickle
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from encoded_rollouts import (
    ENVS,
    MODES,
    OPTIONS,
    SEED,
    assert_same,
    one_after_another,
    sb3_rollout,
    sync,
    vector_rollout,
)
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv
from toy_environments import LATENT, Camera, save_toy_encoder, toy_latents

from vinoreward import EncodedObservation, VecEncodedObservation, VectorEncodedObservation
from vinoreward.bundles.bundle import Bundle

# --- the oracle itself, from first principles ----------------------------------------------------


def test_the_single_form_says_what_the_image_holds(bundle: Bundle) -> None:
    raw, env = (
        Camera("dict"),
        EncodedObservation(Camera("dict"), bundle, keep=["joints", "gear"], frame_stack=3),
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


def test_the_bounds_are_stated(bundle: Bundle, tmp_path: Path) -> None:
    env = EncodedObservation(Camera("dict"), bundle, keep=("joints", "gear"), frame_stack=2)
    space = env.observation_space
    assert isinstance(space, gym.spaces.Box) and space.dtype == np.float32
    assert space.low.tolist() == [-20] * 6 + [-1, -1, 0, 0, 0]
    assert space.high.tolist() == [20] * 6 + [30, 30, 1, 1, 1]
    narrow = EncodedObservation(Camera(), save_toy_encoder(tmp_path / "narrow", bound=0.25))
    observation, _ = narrow.reset(seed=0)
    assert narrow.observation_space.contains(observation)
    assert np.abs(observation).max() == 0.25, "clipped to the bounds"


# --- the three forms -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_vector_form_equals_single_environments(
    bundle: Bundle, mode: AutoresetMode, name: str
) -> None:
    env = {"observation": "dict"}
    expected = one_after_another(bundle, env, **OPTIONS[name])
    assert_same(
        vector_rollout(VectorEncodedObservation(sync(mode, **env), bundle, **OPTIONS[name])),
        expected,
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_sb3_form_equals_single_environments(bundle: Bundle, name: str) -> None:
    expected = one_after_another(bundle, {"observation": "dict"}, **OPTIONS[name])
    venv = DummyVecEnv([functools.partial(Camera, "dict")] * ENVS)
    assert_same(sb3_rollout(VecEncodedObservation(venv, bundle, **OPTIONS[name])), expected)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_vector_form_by_rendering(bundle: Bundle, mode: AutoresetMode) -> None:
    env = {"observation": "vector", "render_mode": "rgb_array"}
    expected = one_after_another(bundle, env, frame_stack=2)
    found = vector_rollout(VectorEncodedObservation(sync(mode, **env), bundle, frame_stack=2))
    assert_same(found, expected)


@pytest.mark.parametrize("kind", ["image", "planes", "dict"])
def test_every_layout_of_one_image_is_the_same_image(bundle: Bundle, kind: str) -> None:
    expected = one_after_another(bundle, {"observation": "image"})
    assert_same(one_after_another(bundle, {"observation": kind}), expected)
    venv = DummyVecEnv([functools.partial(Camera, kind)] * ENVS)
    assert_same(sb3_rollout(VecEncodedObservation(venv, bundle)), expected)


def wrapped(path: str) -> gym.Env[Any, Any]:
    return EncodedObservation(Camera("dict"), path, frame_stack=2)


@pytest.mark.slow
def test_a_wrapped_environment_runs_in_a_spawned_worker(bundle: Bundle) -> None:
    expected = one_after_another(bundle, {"observation": "dict"}, frame_stack=2)
    venv = SubprocVecEnv([functools.partial(wrapped, str(bundle.path))], start_method="spawn")
    venv.seed(SEED)
    first = venv.reset()
    np.testing.assert_allclose(first, [expected[0][0]], atol=1e-5)
    venv.close()


def test_a_wrapped_environment_can_be_pickled(bundle: Bundle) -> None:
    env = EncodedObservation(Camera("dict"), bundle, frame_stack=2)
    env.reset(seed=1)
    env.step(0)
    twin = pickle.loads(pickle.dumps(env))
    np.testing.assert_array_equal(twin.step(0)[0], env.step(0)[0])
    env.close()
    twin.close()
