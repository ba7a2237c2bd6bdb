"""Which vector environments the wrappers can be right for."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward.wrappers.sources import ImageSource


def checked_mode(
    env: VectorEnv[Any, Any, Any], source: ImageSource, terminate: bool
) -> AutoresetMode:
    """Return the autoreset mode.

    Args:
        env: the vector environment.
        source: where pictures come from.
        terminate: whether sub-environments are to be reset before they end their episodes.

    Raises:
        ConfigError: with these options some picture would belong to another episode.
    """
    mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise ConfigError(
            f"the vector environment's metadata['autoreset_mode'] is {mode!r}. Expected one of "
            "gymnasium.vector.AutoresetMode: without it, it is not known which episode a picture "
            "belongs to; set it in the environment's metadata."
        )
    if mode is AutoresetMode.SAME_STEP and source == "render":
        raise ConfigError(
            "image_source is 'render' and the autoreset mode is SAME_STEP, where the frame "
            "rendered after an episode's last step already shows the next episode. Expected a mode "
            "that keeps the last frame; make the environment with "
            "autoreset_mode=AutoresetMode.NEXT_STEP, or use picture observations with "
            "image_source='obs'."
        )
    if not terminate or mode is AutoresetMode.DISABLED:
        return mode
    while getattr(type(env), "passes_masked_resets", False) and isinstance(env, VectorWrapper):
        env = env.env
    if not isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):
        raise ConfigError(
            f"terminate_on_success is set and the vector environment is a {type(env).__name__} in "
            f"{mode.name} mode, whose sub-environments cannot be told that their episode is over. "
            "Expected a SyncVectorEnv or AsyncVectorEnv (put other vector wrappers outside this "
            "one), or an environment in DISABLED mode; or set terminate_on_success=False."
        )
    shared = getattr(env, "shared_memory", True)
    if mode is AutoresetMode.NEXT_STEP and not shared:
        raise ConfigError(
            "terminate_on_success is set and the AsyncVectorEnv has shared_memory=False in "
            "NEXT_STEP mode, where Gymnasium's workers may reset twice after a masked reset. "
            "Expected shared_memory=True or another autoreset mode."
        )
    return mode


def check_was_reset(mode: AutoresetMode, over: NDArray[np.bool_]) -> None:
    """Raise ConfigError where autoreset is DISABLED and an episode that ended is stepped on."""
    if mode is AutoresetMode.DISABLED and over.any():
        raise ConfigError(
            f"the sub-environments {np.flatnonzero(over).tolist()} ended their episodes "
            "and were stepped. Expected a reset first, because autoreset is DISABLED: "
            "env.reset(options={'reset_mask': terminations | truncations})."
        )


def scene_of(env: VectorEnv[Any, Any, Any]) -> object:
    """Return the sub-environments' ``picture_scene``, None where they have none."""
    base = env.unwrapped
    if hasattr(base, "picture_scene"):
        return base.picture_scene
    if not isinstance(base, (SyncVectorEnv, AsyncVectorEnv)):
        return None
    # Asked first, because a missing attribute ends an AsyncVectorEnv's workers.
    if not all(base.call("has_wrapper_attr", "picture_scene")):
        return None
    return base.call("get_wrapper_attr", "picture_scene")[0]
