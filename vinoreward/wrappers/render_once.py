"""Frames rendered once for several wrappers, and last observations that no reset overwrites.

Gymnasium's SAME_STEP mode and SB3's vector environments reset an environment before they return the
last observation of its episode. An environment that returns the same array every time has
overwritten it by then. In this process the array is copied in time; in another process, or in an
environment that is vectorised by itself, the fault can only be detected.

Written specifications of environments name this module, so it stays where it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from vinoreward.arrays import is_tensor
from vinoreward.errors import ConfigError, MissingDisplayError

if TYPE_CHECKING:
    from vinoreward.wrappers.sources import PictureSource
    from vinoreward.wrappers.views import ViewSource

PICTURE = "picture"
"""Key of ``info`` under which a picture travels."""
ENDS = 8
"""Episodes in a row that must end with the next one's first picture before an error is raised."""


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


class PictureInInfo(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Render after every step and reset and put the picture into ``info["picture"]``.

    Vector environments of Stable-Baselines3 reset an environment at the end of its episode, before
    anyone can render it. With this wrapper around each environment, the last picture of an episode
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
        """Reset the environment; ``info["picture"]`` is the episode's first picture."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, PICTURE: self._picture()}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; ``info["picture"]`` is the picture that the step ended with."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, PICTURE: self._picture()}

    def _picture(self) -> Any:
        return _own(drawn(self.env))


def drawn(env: Any) -> Any:
    """Return what an environment renders.

    ConfigError if it does not draw, MissingDisplayError if it finds no OpenGL to draw with.
    """
    try:
        return env.render()
    except (NotImplementedError, AssertionError) as error:  # the latter is Gymnasium's checker's
        raise ConfigError(
            "the environment shows no pictures: render() raises "
            f"{': '.join(filter(None, (type(error).__name__, str(error))))}. Expected one that "
            "draws itself with render_mode='rgb_array'; write its render(), or name a picture in "
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


class OwnLast(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Return the last observation of an episode in memory that no reset writes to."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; copy the observation where the episode ends."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info


def _equal(some: list[NDArray[Any]], others: list[NDArray[Any]]) -> bool:
    return all(map(np.array_equal, some, others))


def own_last(envs: list[gym.Env[Any, Any]]) -> None:
    """Put :class:`OwnLast` around each of a vector environment's environments, in place, once."""
    envs[:] = [env if isinstance(env, OwnLast) else OwnLast(env) for env in envs]


class LastPictures:
    """Detects last pictures that a reset has overwritten, where they cannot be copied in time.

    Proof is a last observation that shares memory with the next episode's first one. Pictures from
    another process share none: there :data:`ENDS` episodes in a row must end with exactly the next
    episode's first picture, after a step that showed another one. An episode that ends otherwise
    clears the environment for good. ``remedy`` ends the sentence of the error.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._before: list[NDArray[Any]] = []
        self._suspicious = 0
        self._cleared = False

    def check(
        self, source: PictureSource | ViewSource, last: Mapping[int, Any], observations: Any
    ) -> None:
        """Raise ConfigError if a step's last pictures are those of the next episodes.

        ``last`` has last observations by environment, ``observations`` all first ones.
        """
        pictures = source.stored(observations)
        for i, observation in last.items() if pictures else ():
            # Of each camera, if there are several.
            ends, firsts = source.stored(observation), [part[i] for part in pictures]
            pairs = list(zip(ends, firsts, strict=False))
            if not pairs:
                continue
            if any(np.may_share_memory(*pair) and np.shares_memory(*pair) for pair in pairs):
                raise self._refusal("is in the memory of the first one of the next episode")
            if self._cleared:
                continue
            if not _equal(ends, firsts):
                self._cleared, self._before = True, []
            elif self._before and not _equal([part[i] for part in self._before], ends):
                self._suspicious += 1
        if self._suspicious >= ENDS and not self._cleared:
            raise self._refusal(
                f"was the first one of the next episode in {self._suspicious} of the last "
                f"{self._suspicious} episodes in which anything moved"
            )
        if not self._cleared:
            self._before = [np.array(part) for part in pictures]

    def _refusal(self, evidence: str) -> ConfigError:
        return ConfigError(
            f"the last picture of an episode {evidence}: the environment writes to an array that "
            "it has returned before, so that the end of an episode is scored by another episode's "
            "picture. Expected a new array from every reset; return a copy from the environment "
            f"(gymnasium.wrappers.TransformObservation with numpy.copy), or {self._remedy}."
        )
