"""What all wrappers share: how they go around an environment, frames, and final observations.

An image is rendered once for several wrappers, and may travel in ``info``.

Gymnasium's SAME_STEP mode and SB3's vector environments reset an environment before they return the
final observation of its episode. An environment that returns the same array every time has
overwritten it by then. In this process the array is copied in time; in another process, or in an
environment that is vectorised by itself, the fault can only be detected.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError
from vinoreward.wrappers.sources import (
    EnvInfo,
    ImageReader,
    ImageSource,
    ViewReader,
    render,
    takes_render,
)

AnyEnv = TypeVar("AnyEnv")
Env = gym.Env[Any, Any]

ONE = np.ones(1, np.bool_)
"""The mask of a single environment."""
NOTHING: Mapping[int, Any] = MappingProxyType({})
"""No final observations."""
IMAGE = "image"
"""Key of ``info`` under which an image travels."""
ENDS = 8
"""Episodes in a row that must end with the next one's first image before an error is raised."""


class EnvAdapter(abc.ABC, Generic[AnyEnv]):
    """How a wrapper fits one kind of environment.

    Constructors call ``_env_info``, ``_init_wrapper`` and ``_set_space``, in this order.
    """

    @abc.abstractmethod
    def _env_info(self, env: AnyEnv) -> EnvInfo: ...

    @abc.abstractmethod
    def _init_wrapper(self, env: AnyEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        """Refuse an unsuitable environment; call the library's constructors."""

    def _set_space(self, space: gym.Space[Any]) -> None:
        """Set the observation space of one environment."""
        self.observation_space = space


class SingleAdapter(
    EnvAdapter[Env], gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs
):
    """:class:`EnvAdapter` for one Gymnasium environment."""

    def _env_info(self, env: Env) -> EnvInfo:
        scene = getattr(env.unwrapped, "image_scene", None)
        return EnvInfo(env.observation_space, env.render_mode, scene)

    def _init_wrapper(self, env: Env, source: ImageSource, arguments: dict[str, Any]) -> None:
        # Recorded so that env.spec can make this environment again, also from JSON.
        gym.utils.RecordConstructorArgs.__init__(self, **arguments)
        gym.Wrapper.__init__(self, render_once(env) if takes_render(source) else env)


def refuse_autoreset(env: Env, harm: str) -> None:
    """Raise ConfigError if Gymnasium's ``Autoreset`` is inside; ``harm`` goes into its sentence."""
    if any(isinstance(layer, gym.wrappers.Autoreset) for layer in layers(env)):
        raise ConfigError(
            "the environment is wrapped in gymnasium.wrappers.Autoreset, whose step() returns the "
            f"first image of the next episode like any other: {harm}. Expected Autoreset outside; "
            "put it around this wrapper."
        )


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


class CopyFinalObs(PlainWrapper):
    """Return the final observation of an episode in memory that no reset writes to."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; copy the observation where the episode ends."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info


def copy_final_obs(envs: list[Env]) -> None:
    """Put :class:`CopyFinalObs` around each of these environments, in place, once."""
    envs[:] = [env if isinstance(env, CopyFinalObs) else CopyFinalObs(env) for env in envs]


class FinalObs:
    """Has final observations copied before resets; else finds those that resets overwrite.

    Proof is a final observation that shares memory with the next episode's first one. Images from
    another process share none: there :data:`ENDS` episodes in a row must end with exactly the next
    episode's first image, after a step that showed another one. An episode that ends otherwise
    clears the environment for good. ``envs`` are a vector environment's in this process.
    """

    def __init__(self, envs: list[Env] | None, remedy: str) -> None:
        if envs is not None:
            copy_final_obs(envs)
        self._remedy = remedy
        self._copied = envs is not None
        self._before: list[NDArray[Any]] = []
        self._suspicious = 0
        self._cleared = False

    def checked(
        self,
        source: ImageReader | ViewReader,
        final: dict[int, Any],
        observations: Any,
        how: str,
        given: Iterable[str],
    ) -> dict[int, Any]:
        """Return final observations by environment; ``observations`` are all first ones.

        Raises:
            ConfigError: a reset has overwritten one.
            InputError: one is missing; ``how`` and the keys that were ``given`` say where.
        """
        missing = [i for i, observation in final.items() if observation is None]
        if missing:
            raise InputError(
                f"the environments {missing} {how}, only {', '.join(given) or 'nothing'}. Expected "
                "their final observations there, as vector environments give them; without them "
                "the image that an episode ended with is lost."
            )
        if not self._copied:
            self._check(source, final, source.stored(observations))
        return final

    def _check(
        self, source: ImageReader | ViewReader, final: dict[int, Any], images: list[NDArray[Any]]
    ) -> None:
        """Raise ConfigError if final images are the next episodes' first ones, in ``images``."""
        for i, observation in final.items() if images else ():
            # Of each camera, if there are several.
            ends, firsts = source.stored(observation), [part[i] for part in images]
            if any(map(np.shares_memory, ends, firsts)):
                raise self._refusal("is in the memory of the first one of the next episode")
            if not ends or self._cleared:
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
            self._before = [np.array(part) for part in images]

    def _refusal(self, evidence: str) -> ConfigError:
        return ConfigError(
            f"the final image of an episode {evidence}: the environment writes to an array that "
            "it has returned before, so that the end of an episode is scored by another episode's "
            "image. Expected a new array from every reset; return a copy from the environment "
            f"(gymnasium.wrappers.TransformObservation with numpy.copy), or {self._remedy}."
        )


def _equal(some: list[NDArray[Any]], others: list[NDArray[Any]]) -> bool:
    return all(map(np.array_equal, some, others))
