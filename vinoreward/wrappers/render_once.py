"""Images rendered once for several wrappers, and images that travel in ``info``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from vinoreward.arrays import is_tensor
from vinoreward.errors import ConfigError, MissingDisplayError

IMAGE = "image"
"""Key of ``info`` under which an image travels."""


class RenderOnce(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Render once per step or reset; every caller of ``render()`` gets its own copy.

    For ``render_mode="rgb_array"`` only. A state changed without a step or reset is not seen.
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
    """:class:`RenderOnce` for the frames of all sub-environments."""

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
        if self._frames is None or is_tensor(self._frames):
            return self._frames
        return tuple(_own(frame) for frame in self._frames)


class ImageInInfo(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Render after every step and reset and put the image into ``info["image"]``.

    Vector environments of Stable-Baselines3 reset an environment at the end of its episode, before
    anyone can render it. With this wrapper around each environment, the last image of an episode
    travels in the ``info`` of its last step, so that ``VecLearnedReward`` takes
    ``image_source="render"``, also from environments in other processes.

    Args:
        env: an environment made with ``render_mode="rgb_array"``.

    Raises:
        ConfigError: another render mode.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if env.render_mode != "rgb_array":
            raise ConfigError(
                f"the environment's render_mode is {env.render_mode!r}. Expected 'rgb_array', as "
                "every step is rendered; make the environment with render_mode='rgb_array'."
            )
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; ``info["image"]`` is the episode's first image."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, IMAGE: self._image()}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; ``info["image"]`` is the image that the step ended with."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, IMAGE: self._image()}

    def _image(self) -> Any:
        return _own(render(self.env))


def render(env: Any) -> Any:
    """Return what an environment renders.

    ConfigError if it does not draw, MissingDisplayError if it finds no OpenGL to draw with.
    """
    try:
        return env.render()
    except (NotImplementedError, AssertionError) as error:  # the latter is Gymnasium's checker's
        raise ConfigError(
            "the environment shows no images: render() raises "
            f"{': '.join(filter(None, (type(error).__name__, str(error))))}. Expected one that "
            "draws itself with render_mode='rgb_array'; write its render(), or name an image in "
            "its observation as image source, obs or obs:KEY."
        ) from error
    except Exception as error:  # each simulator has classes of its own, mujoco.FatalError is one
        if "OpenGL" not in str(error):
            raise
        raise MissingDisplayError(
            f"the environment cannot draw ({error}). Expected OpenGL: without a display set "
            "MUJOCO_GL=egl where there is a GPU, else install OSMesa (Debian: apt-get install "
            "libosmesa6) and set MUJOCO_GL=osmesa."
        ) from error


def render_once(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return ``env`` in a :class:`RenderOnce`, or as it is where one is below already."""
    return env if any(isinstance(layer, RenderOnce) for layer in layers(env)) else RenderOnce(env)


def vector_render_once(env: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Return ``env`` in a :class:`VectorRenderOnce`, or as it is where one is below already."""
    known = any(isinstance(layer, VectorRenderOnce) for layer in layers(env))
    return env if known else VectorRenderOnce(env)


def layers(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> Iterator[Any]:
    """Yield an environment's wrappers from the outermost to the innermost, then itself."""
    layer: Any = env
    while isinstance(layer, (gym.Wrapper, VectorWrapper)):
        yield layer
        layer = layer.env
    yield layer


def _own(frame: Any) -> Any:
    return frame.copy() if isinstance(frame, np.ndarray) else frame
