"""Images rendered once for several wrappers, and images that travel in ``info``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from vinoreward.errors import ConfigError, MissingDisplayError

IMAGE = "image"
"""Key of ``info`` under which an image travels."""


class _RenderOnce:
    env: Any
    _frames: Any = None
    """What was rendered since the last step or reset."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment and forget what it showed."""
        self._frames = None
        return self.env.reset(seed=seed, options=options)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Step the environment and forget what it showed."""
        self._frames = None
        return self.env.step(*args, **kwargs)

    def render(self) -> Any:
        """Return what the environment shows, rendered at the first call after a step or reset."""
        if self.env.render_mode != "rgb_array":
            return self.env.render()
        if self._frames is None:
            self._frames = self.env.render()
        return _copied(self._frames)


class PlainWrapper(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """A wrapper without arguments, which ``env.spec`` can make again."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)


class RenderOnce(_RenderOnce, PlainWrapper):
    """Render once per step or reset; every caller of ``render()`` gets its own copy.

    For ``render_mode="rgb_array"`` only. A state changed without a step or reset is not seen.
    """


class VectorRenderOnce(_RenderOnce, VectorWrapper[Any, Any, Any, Any, Any]):
    """:class:`RenderOnce` for the frames of all sub-environments; tensors are not copied."""

    passes_masked_resets = True


class ImageInInfo(PlainWrapper):
    """Render after every step and reset and put the image into ``info["image"]``.

    Vector environments of Stable-Baselines3 reset an environment before its last image can be
    rendered. With this wrapper around each environment that image travels in the ``info`` of the
    last step, so that ``VecLearnedReward`` takes ``image_source="render"``, also from environments
    in other processes.

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
        super().__init__(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; ``info["image"]`` is the episode's first image."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._with_image(info)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; ``info["image"]`` is the image that the step ended with."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._with_image(info)

    def _with_image(self, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, IMAGE: _copied(render(self.env))}


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


def render_once(env: Any) -> Any:
    """Return an environment that renders once per step; ``env`` itself if it does already."""
    if any(isinstance(layer, _RenderOnce) for layer in layers(env)):
        return env
    return VectorRenderOnce(env) if isinstance(env, VectorEnv) else RenderOnce(env)


def layers(env: Any) -> Iterator[Any]:
    """Yield an environment's wrappers from the outermost to the innermost, then itself."""
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        yield env
        env = env.env
    yield env


def _copied(frames: Any) -> Any:
    """Return a copy of an image, or of those of a vector environment; tensors as they are."""
    if isinstance(frames, (tuple, list)):
        return tuple(map(_copied, frames))
    return frames.copy() if isinstance(frames, np.ndarray) else frames
