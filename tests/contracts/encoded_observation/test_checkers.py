"""EncodedObservation: what the checkers of others say, and what is left alone."""

from __future__ import annotations

import warnings
from typing import Any

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
