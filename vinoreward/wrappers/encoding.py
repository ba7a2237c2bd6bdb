"""What the three forms of EncodedObservation share: arguments, latents, stacks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.encoders.encoder import Encoder
from vinoreward.errors import ConfigError
from vinoreward.wrappers.layers import AnyEnv, Form, ImageSource
from vinoreward.wrappers.sources import (
    AnyBundle,
    PictureSource,
    default_source,
    located,
    recorded,
)


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

    One call of :meth:`advance` per step encodes all pictures that the step needs;
    :meth:`observations` says what the learner sees then.

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

    def advance(
        self,
        observations: Any,
        ends: Sequence[int],
        begins: Sequence[int] = (),
        last: Mapping[int, Any] = MappingProxyType({}),
        frames: Any = None,
    ) -> tuple[dict[int, NDArray[np.float32]], NDArray[np.uint8]]:
        """Encode in one call what ended a step and what begins an episode, and stack it.

        Args:
            observations: the batch of all environments; the arguments are those of
                :meth:`PictureSource.batch`.
            ends: environments whose episode goes on or ends with this step.
            begins: environments whose episode begins.
            last: environment to the last observation of its episode.
            frames: what rendering gave.

        Returns:
            Environment to what the learner sees at its episode's end, ``(L,)``, for those in
            ``last``; and the newest pictures of ``ends``, then ``begins``: ``(M, H, W, 3)``.

        Raises:
            InputError: pictures of different shapes.
            PictureMismatchError: of another size than the bundle takes.
        """
        pictures = self.source.batch(observations, ends, begins, last, frames)
        latents = self.look([*ends, *begins], pictures)
        self.push(ends, latents[: len(ends)])
        final = dict(zip(last, self.observations(list(last), list(last.values())), strict=True))
        self.begin(begins, latents[len(ends) :])
        return final, pictures[:, -1]

    def look(self, indices: Sequence[int], pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the latents ``(M, count * D)`` of M observations' pictures.

        Args:
            indices: which environment each belongs to; their order decides random numbers.
            pictures: ``(M, count, H, W, 3)`` uint8, oldest first.

        Raises:
            PictureMismatchError: of another size than the bundle takes.
        """
        together = pictures.reshape(-1, *pictures.shape[2:])
        if not self.options.sample:
            return self.encoder.encode(together).reshape(len(pictures), self._stacks.shape[2])
        mean, std = self.encoder.posterior(together)
        if std is not None and len(pictures):
            shape = (self.source.count, self.encoder.latent_size)
            noise = [self._random[i].standard_normal(shape, np.float32) for i in indices]
            mean = mean + std * np.concatenate(noise)
        return self.encoder.clip(mean).reshape(len(pictures), self._stacks.shape[2])

    def begin(self, indices: Sequence[int], latents: NDArray[np.float32]) -> None:
        """Start episodes: the first latents ``(M, count * D)`` stand for those before them."""
        self._stacks[list(indices)] = latents[:, None]

    def push(self, indices: Sequence[int], latents: NDArray[np.float32]) -> None:
        """Put the next latents ``(M, count * D)`` of episodes behind the others."""
        at = list(indices)
        if self.options.frame_stack > 1:
            self._stacks[at, :-1] = self._stacks[at, 1:]
        self._stacks[at, -1] = latents

    def rows(self, observations: Any) -> list[Any]:
        """Return a batch of observations one by one, for :meth:`observations`."""
        return self.source.rows(observations) if self._kept else []

    def observations(self, indices: Sequence[int], rows: Sequence[Any]) -> NDArray[np.float32]:
        """Return what the learner sees of M environments, ``(M, L)`` float32 in new memory.

        Args:
            indices: of the environments; their stacks are read.
            rows: their own observations; read for the kept keys only.
        """
        seen = self._stacks[list(indices)].reshape(len(indices), self._stacks[0].size)
        if not self._kept or not rows:
            return seen
        own = []
        for row in rows:
            flat: Any = [gym.spaces.flatten(space, row[key]) for key, space in self._kept.items()]
            own.append(np.concatenate(flat, dtype=np.float32, casting="unsafe"))
        return np.concatenate([seen, np.stack(own)], axis=1)

    def _generator(self, index: int) -> np.random.Generator:
        if self.options.seed is None:
            return np.random.default_rng()
        entropy = np.random.SeedSequence(self.options.seed + 1, spawn_key=(index,))
        return np.random.default_rng(entropy)


class EncodedObservationBase(Form[AnyEnv]):
    """Base of the forms of :class:`~vinoreward.EncodedObservation`; it explains the arguments."""

    def __init__(
        self,
        env: AnyEnv,
        bundle: AnyBundle,
        *,
        backend: str = "openvino",
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
        image_source: ImageSource | None = None,
        keep: Sequence[str] = (),
        frame_stack: int = 1,
        sample: bool = False,
        seed: int | None = None,
        picture_in_info: bool = False,
    ) -> None:
        options = EncodingOptions(keep, frame_stack, sample, seed, picture_in_info)
        encoder = Encoder(
            located(bundle), backend=backend, device=device, precision=precision, threads=threads
        )
        arguments = {
            "bundle": recorded(bundle, encoder.bundle),
            "backend": backend,
            "device": device,
            "precision": precision,
            "threads": threads,
            "image_source": image_source,
            **{name: getattr(options, name) for name in options.__dataclass_fields__},
        }
        inside = self._inside(env)
        given = image_source
        if given is None:
            given = default_source(inside.space, inside.render_mode)
        self._enclose(env, given, arguments)
        source = PictureSource(given, inside, encoder.bundle, stacked=True)
        self._core = EncodingCore(encoder, source, inside.space, options, inside.num_envs)
        self._show(self._core.space)

    @property
    def encoder(self) -> Encoder:
        """What encodes the pictures. It loads at the first one."""
        return self._core.encoder


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
