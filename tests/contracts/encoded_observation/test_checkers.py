"""EncodedObservation: what the checkers of others say, and what is left alone."""

from __future__ import annotations

import json
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from encoded_rollouts import OPTIONS
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from toy_environments import Camera

from vinoreward import EncodedObservation
from vinoreward.bundles.bundle import Bundle


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_checkers_have_nothing_to_say(bundle: Bundle, options: dict[str, Any]) -> None:
    env = EncodedObservation(Camera("dict"), bundle, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Gymnasium asks for the unwrapped environment by a warning, and for renders of its modes.
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version.*")
        check_env(env, skip_render_check=True)
        sb3_check_env(env)
    env.close()


def test_the_specification_can_be_written_and_made_again(bundle: Bundle) -> None:
    made = gym.make("ToyCamera-v0", observation="vector", render_mode="rgb_array")
    env = EncodedObservation(made, str(bundle.path), frame_stack=2)
    assert env.spec is not None
    text = env.spec.to_json()
    json.loads(text)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(text), render_mode="rgb_array")
    np.testing.assert_allclose(again.reset(seed=1)[0], env.reset(seed=1)[0], atol=1e-6)
    env.close()
    again.close()
