"""What the three forms of EncodedObservation share: options, latents, stacks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.encoders.encoder import Encoder
from vinoreward.errors import ConfigError, InputError
from vinoreward.wrappers.sources import PictureSource

Pictures = list[NDArray[np.uint8]]


@dataclass(frozen=True)
class EncodingOptions:
    """The options of an encoded observation, checked; see ``vinoreward.EncodedObservation``."""

    keep: Sequence[str] = ()
    frame_stack: int = 1
    sample: bool = False
    seed: int | None = None
    picture_in_info: bool = False

    def __post_init__(self) -> None:
        # A single key may be given as it is: RL Zoo's YAML makes that an easy slip.
        keep = (self.keep,) if isinstance(self.keep, str) else tuple(self.keep)
        if any(not isinstance(key, str) for key in keep) or len(set(keep)) != len(keep):
            raise ConfigError(
                f"keep is {self.keep!r}. Expected different keys of the observation, e.g. "
                "('position',)."
            )
        object.__setattr__(self, "keep", keep)
        if not _whole(self.frame_stack) or self.frame_stack < 1:
            raise ConfigError(f"frame_stack is {self.frame_stack!r}. Expected at least 1.")
        if self.seed is not None and (not _whole(self.seed) or self.seed < 0):
            raise ConfigError(f"seed is {self.seed!r}. Expected a number of at least 0, or None.")
        for name in ("sample", "picture_in_info"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}. Expected true or false.")


class EncodingCore:
    """Turns pictures into observations for several environments; knows nothing of stepping.

    One call of :meth:`look` per step encodes all pictures that the step needs. Then :meth:`push`
    takes what continues an episode and :meth:`begin` what starts one, and :meth:`observation`
    says what the learner sees.

    Args:
        encoder: what encodes pictures.
        source: where pictures come from.
        space: the observation space of one environment.
        options: what the observation is made of.
        num_envs: environments, each with its own stack and random numbers.

    Raises:
        ConfigError: options that do not fit the encoder or the observation space.
    """

    def __init__(
        self,
        encoder: Encoder,
        source: PictureSource,
        space: gym.Space[Any],
        options: EncodingOptions,
        num_envs: int,
    ) -> None:
        if options.sample:
            encoder.check_samples()
        self.encoder = encoder
        self.source = source
        self.options = options
        self._kept = {key: _kept(space, key, source) for key in options.keep}
        frames = options.frame_stack * source.count
        parts = [gym.spaces.flatten_space(part) for part in self._kept.values()]
        boxes = [part for part in parts if isinstance(part, gym.spaces.Box)]
        # Rounding to float32 keeps order, so that no value leaves bounds rounded like it.
        self.space = gym.spaces.Box(
            np.concatenate([np.tile(encoder.low, frames), *(box.low for box in boxes)]).astype(
                np.float32
            ),
            np.concatenate([np.tile(encoder.high, frames), *(box.high for box in boxes)]).astype(
                np.float32
            ),
        )
        size = source.count * encoder.latent_size
        self._stacks = np.zeros((num_envs, options.frame_stack, size), np.float32)
        self._random = [self._generator(i) for i in range(num_envs)]

    def seed(self, index: int, seed: int | None) -> None:
        """Start an environment's random numbers anew where it is reset with a seed."""
        if seed is not None:
            own = 0 if self.options.seed is None else self.options.seed + 1
            self._random[index] = np.random.default_rng([own, int(seed)])

    def look(self, indices: Sequence[int], pictures: Sequence[Pictures]) -> NDArray[np.float32]:
        """Return the latents ``(M, count * D)`` of M observations' pictures, in one call.

        Args:
            indices: which environment each belongs to; their order decides random numbers.
            pictures: the source's ``count`` pictures of each, ``(H, W, 3)`` uint8, oldest first.

        Raises:
            InputError: pictures of different shapes.
            PictureMismatchError: of another size than the bundle takes.
        """
        if not pictures:
            return np.zeros((0, self._stacks.shape[2]), np.float32)
        together = [picture for several in pictures for picture in several]
        shapes = {picture.shape for picture in together}
        if len(shapes) > 1:
            raise InputError(
                f"the environments gave pictures of the shapes {sorted(shapes)}. Expected one "
                "shape; give all environments the same image size."
            )
        batch = np.stack(together)
        if not self.options.sample:
            return self.encoder.encode(batch).reshape(len(pictures), -1)
        mean, std = self.encoder.posterior(batch)
        shape = (self.source.count, self.encoder.latent_size)
        noise = [self._random[i].standard_normal(shape, np.float32) for i in indices]
        if std is not None:
            mean = mean + std * np.concatenate(noise)
        return self.encoder.clip(mean).reshape(len(pictures), -1)

    def begin(self, index: int, latent: NDArray[np.float32]) -> None:
        """Start an episode: the first latent stands for those before it."""
        self._stacks[index] = latent

    def push(self, index: int, latent: NDArray[np.float32]) -> None:
        """Put the next latent of an episode behind the others."""
        stack = self._stacks[index]
        stack[:-1] = stack[1:].copy()
        stack[-1] = latent

    def observation(self, index: int, observation: Any) -> NDArray[np.float32]:
        """Return what the learner sees of one environment, ``(L,)`` float32 in new memory.

        Args:
            index: of the environment; its stack is read.
            observation: the environment's own, for the kept keys.
        """
        parts = [self._stacks[index].reshape(-1)]
        for key, space in self._kept.items():
            flat: Any = gym.spaces.flatten(space, observation[key])
            parts.append(np.asarray(flat, np.float32))
        return np.concatenate(parts)

    def _generator(self, index: int) -> np.random.Generator:
        if self.options.seed is None:
            return np.random.default_rng()
        entropy = np.random.SeedSequence(self.options.seed + 1, spawn_key=(index,))
        return np.random.default_rng(entropy)


def both(
    last: Mapping[int, Any],
    first: Mapping[int, Any],
    core: EncodingCore,
    take: Callable[[int, Any], Pictures],
) -> tuple[list[dict[int, NDArray[np.float32]]], list[dict[int, NDArray[np.uint8]]]]:
    """Encode what ends a step and what starts an episode in one call.

    Args:
        last: environment to its observation.
        first: likewise, of those that start an episode.
        core: encodes them.
        take: gives the pictures of one.

    Returns:
        Environment to latent, for ``last`` and for ``first``; and likewise the newest pictures.
    """
    order = [*last, *first]
    pictures = [take(i, rows[i]) for rows in (last, first) for i in rows]
    found, cut = core.look(order, pictures), len(last)
    newest = [several[-1] for several in pictures]
    return (
        [dict(zip(last, found[:cut], strict=True)), dict(zip(first, found[cut:], strict=True))],
        [dict(zip(last, newest[:cut], strict=True)), dict(zip(first, newest[cut:], strict=True))],
    )


def shown(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy of a picture for ``info``: environments may write to theirs again."""
    return np.array(picture, order="C")


def _kept(space: gym.Space[Any], key: str, source: PictureSource) -> gym.Space[Any]:
    if not isinstance(space, gym.spaces.Dict) or key not in space.spaces:
        what = (
            f"a Dict with {', '.join(space.spaces)}"
            if isinstance(space, gym.spaces.Dict)
            else space
        )
        raise ConfigError(
            f"keep names {key!r} and the observation is {what}. Expected keys of a Dict; correct "
            "keep, or leave it out."
        )
    found = space.spaces[key]
    if key == source.key or not found.is_np_flattenable:
        raise ConfigError(
            f"keep names {key!r}, which is {found}. Expected a part that is numbers of fixed "
            "length and not the picture; correct keep."
        )
    return found


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
