"""What the wrappers for Stable-Baselines3's vector environments share. Imports SB3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError, needed_for
from vinoreward.wrappers.last_pictures import LastPictures, own_last
from vinoreward.wrappers.layers import Form, ImageSource, Inside
from vinoreward.wrappers.sources import PictureSource

with needed_for("vinoreward.wrappers.sb3", "train"):
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper

__all__ = ["Monitor", "SB3Form", "VecEnv", "VecEnvWrapper", "copied_observation"]


class SB3Form(Form[VecEnv], VecEnvWrapper):
    """:class:`Form` for Stable-Baselines3's vector environments."""

    _single: ClassVar[str]
    """Name of the wrapper for one environment, which can render."""

    def _inside(self, env: VecEnv) -> Inside:
        known = env.has_attr("picture_scene")
        scene = env.get_attr("picture_scene", indices=[0])[0] if known else None
        return Inside(env.observation_space, env.render_mode, scene, env.num_envs)

    def _enclose(self, env: VecEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        if source == "render":
            raise ConfigError(
                "image_source is 'render' in a VecEnv, which resets an environment before it can "
                "be rendered, so that the frame shows the next episode. Expected the picture in "
                "the observation (image_source='obs' or 'obs:<key>'), or "
                f"vinoreward.{self._single} around each environment before it is vectorised "
                "(make_vec_env's wrapper_class)."
            )
        VecEnvWrapper.__init__(self, env)
        self._last: LastPictures | None = None
        base = env.unwrapped
        if isinstance(base, DummyVecEnv):
            own_last(base.envs)
        else:
            self._last = LastPictures(
                f"put vinoreward.{self._single} around each environment before it is vectorised"
            )

    def _show(self, space: gym.Space[Any]) -> None:
        self.observation_space = space

    def _finals(
        self,
        source: PictureSource,
        dones: NDArray[np.bool_],
        observations: Any,
        infos: Sequence[Mapping[str, Any]],
    ) -> dict[int, Any]:
        """Return the ``terminal_observation`` of each environment that is done.

        Raises:
            InputError: it is not there.
            ConfigError: it is overwritten by the reset.
        """
        last = {i: infos[i].get("terminal_observation") for i in np.flatnonzero(dones).tolist()}
        missing = [i for i, observation in last.items() if observation is None]
        if missing:
            raise InputError(
                f"the environments {missing} are done without infos[i]['terminal_observation'], "
                f"only {', '.join(infos[missing[0]]) or 'nothing'}. Expected their last "
                "observations there, as SB3's vector environments give them; without them the "
                "picture that an episode ended with is lost."
            )
        if self._last is not None:
            self._last.check(source, last, observations)
        return last


def copied_observation(observation: Any) -> Any:
    """Return a copy of an observation, or of a batch of them."""
    if isinstance(observation, dict):
        return {key: np.array(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(np.array(part) for part in observation)
    return np.array(observation)
