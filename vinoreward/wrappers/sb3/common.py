"""What the wrappers for Stable-Baselines3's vector environments share. Imports SB3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError, MissingExtraError, install_command
from vinoreward.wrappers.last_pictures import LastPictures, own_last
from vinoreward.wrappers.sources import ImageSource, PictureSource

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
    "keep_last",
    "lasts",
    "refuse_render",
    "rows_of",
    "sb3_scene_of",
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


def keep_last(venv: VecEnv, source: PictureSource, single: str) -> LastPictures | None:
    """See that no reset overwrites a ``terminal_observation``.

    Args:
        venv: the vector environment; the environments of a ``DummyVecEnv`` are wrapped.
        source: where its pictures are.
        single: name of the wrapper for one environment.

    Returns:
        What has to look at every step, or None.
    """
    base = venv.unwrapped
    if isinstance(base, DummyVecEnv):
        own_last(base.envs)
        return None
    remedy = f"put vinoreward.{single} around each environment before it is vectorised"
    return LastPictures(source, venv.num_envs, remedy)


def rows_of(observations: Any, num_envs: int) -> list[Any]:
    """Return one observation per environment, as views."""
    if isinstance(observations, dict):
        return [{key: batch[i] for key, batch in observations.items()} for i in range(num_envs)]
    if isinstance(observations, tuple):
        return [tuple(batch[i] for batch in observations) for i in range(num_envs)]
    return list(observations)


def lasts(
    dones: NDArray[np.bool_], infos: Sequence[Mapping[str, Any]], rows: list[Any]
) -> list[Any]:
    """Return what each environment's step ended with: ``terminal_observation`` where it is done.

    Raises:
        InputError: it is not there.
    """
    missing = [
        i for i in np.flatnonzero(dones).tolist() if infos[i].get("terminal_observation") is None
    ]
    if missing:
        raise InputError(
            f"the environments {missing} are done without infos[i]['terminal_observation'], only "
            f"{', '.join(infos[missing[0]]) or 'nothing'}. Expected their last observations there, "
            "as SB3's vector environments give them; without them the picture that an episode "
            "ended with is lost."
        )
    return [infos[i]["terminal_observation"] if dones[i] else item for i, item in enumerate(rows)]


def copied_observation(observation: Any) -> Any:
    """Return a copy of an observation, or of a batch of them."""
    if isinstance(observation, dict):
        return {key: np.array(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(np.array(part) for part in observation)
    return np.array(observation)


def sb3_scene_of(venv: VecEnv) -> object:
    """Return the environments' ``picture_scene``, None where they have none."""
    if not venv.has_attr("picture_scene"):
        return None
    return venv.get_attr("picture_scene", indices=[0])[0]
