"""What the wrappers for Stable-Baselines3's vector environments share. Imports SB3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError, MissingExtraError, install_command
from vinoreward.wrappers.last_pictures import LastPictures, own_last
from vinoreward.wrappers.layers import Inside
from vinoreward.wrappers.sources import ImageSource

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper
except ImportError as missing:
    raise MissingExtraError(
        "VecLearnedReward and VecEncodedObservation need stable-baselines3, which is not "
        f"installed. Install it with: {install_command('train')}"
    ) from missing

__all__ = [
    "Monitor",
    "VecEnv",
    "VecEnvWrapper",
    "copied_observation",
    "inside_of",
    "keep_last",
    "lasts",
    "refuse_render",
]


def refuse_render(source: ImageSource, single: str) -> None:
    """Raise ConfigError where the picture would be rendered.

    Args:
        source: the image source.
        single: name of the wrapper for one environment, which can render.
    """
    if source == "render":
        raise ConfigError(
            "image_source is 'render' in a VecEnv, which resets an environment before it can be "
            "rendered, so that the frame shows the next episode. Expected the picture in the "
            f"observation (image_source='obs' or 'obs:<key>'), or vinoreward.{single} around "
            "each environment before it is vectorised (make_vec_env's wrapper_class)."
        )


def keep_last(venv: VecEnv, single: str) -> LastPictures | None:
    """See that no reset overwrites a ``terminal_observation``.

    Args:
        venv: the vector environment; the environments of a ``DummyVecEnv`` are wrapped.
        single: name of the wrapper for one environment.

    Returns:
        What has to look at every step, or None.
    """
    base = venv.unwrapped
    if isinstance(base, DummyVecEnv):
        own_last(base.envs)
        return None
    return LastPictures(f"put vinoreward.{single} around each environment before it is vectorised")


def lasts(dones: NDArray[np.bool_], infos: Sequence[Mapping[str, Any]]) -> dict[int, Any]:
    """Return the ``terminal_observation`` of each environment that is done.

    Raises:
        InputError: it is not there.
    """
    found = {i: infos[i].get("terminal_observation") for i in np.flatnonzero(dones).tolist()}
    missing = [i for i, observation in found.items() if observation is None]
    if missing:
        raise InputError(
            f"the environments {missing} are done without infos[i]['terminal_observation'], only "
            f"{', '.join(infos[missing[0]]) or 'nothing'}. Expected their last observations there, "
            "as SB3's vector environments give them; without them the picture that an episode "
            "ended with is lost."
        )
    return found


def copied_observation(observation: Any) -> Any:
    """Return a copy of an observation, or of a batch of them."""
    if isinstance(observation, dict):
        return {key: np.array(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(np.array(part) for part in observation)
    return np.array(observation)


def inside_of(venv: VecEnv) -> Inside:
    """Return what is inside an SB3 vector environment."""
    known = venv.has_attr("picture_scene")
    scene = venv.get_attr("picture_scene", indices=[0])[0] if known else None
    return Inside(venv.observation_space, venv.render_mode, scene, venv.num_envs)
