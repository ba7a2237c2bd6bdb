"""A frame that several wrappers look at is rendered once.

Written specifications of environments name this module, so it stays where it is.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper


class RenderOnce(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Keep what ``render()`` gives until the next step or reset.

    For ``render_mode="rgb_array"`` only; every caller gets its own copy. Whoever changes the
    environment's state without a step or reset does not see it in the frame.

    Args:
        env: the environment.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self._frame: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and forget its frame."""
        self._frame = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and forget its frame."""
        self._frame = None
        return self.env.step(action)

    def render(self) -> Any:
        """Return the frame, drawn at the first call after a step or reset."""
        if self.env.render_mode != "rgb_array":
            return self.env.render()
        if self._frame is None:
            self._frame = self.env.render()
        return _own(self._frame)


class VectorRenderOnce(VectorWrapper[Any, Any, Any, Any, Any]):
    """:class:`RenderOnce` for the frames of all sub-environments.

    Args:
        env: the vector environment.
    """

    passes_masked_resets = True

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._frames: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environments and forget their frames."""
        self._frames = None
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """Step the environments and forget their frames."""
        self._frames = None
        return self.env.step(actions)

    def render(self) -> Any:
        """Return the frames, drawn at the first call after a step or reset."""
        if self.env.render_mode != "rgb_array":
            return self.env.render()
        if self._frames is None:
            self._frames = self.env.render()
        return None if self._frames is None else tuple(_own(frame) for frame in self._frames)


def render_once(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return ``env`` in a :class:`RenderOnce`, or as it is where one is below already."""
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, RenderOnce):
            return env
        layer = layer.env
    return RenderOnce(env)


def vector_render_once(env: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Return ``env`` in a :class:`VectorRenderOnce`, or as it is where one is below already."""
    layer: Any = env
    while isinstance(layer, VectorWrapper):
        if isinstance(layer, VectorRenderOnce):
            return env
        layer = layer.env
    return VectorRenderOnce(env)


def _own(frame: Any) -> Any:
    return frame.copy() if isinstance(frame, np.ndarray) else frame
