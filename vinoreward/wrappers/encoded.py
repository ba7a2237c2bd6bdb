"""EncodedObservation for one Gymnasium environment, and what its three forms share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.bundle import AnyBundle, bundle_spec, resolve_bundle
from vinoreward.encoders import Encoder
from vinoreward.errors import ConfigError
from vinoreward.wrappers.sources import (
    AnyEnv,
    Env,
    Form,
    ImageSource,
    OneSource,
    PictureSource,
    SingleForm,
    default_source,
    refuse_autoreset,
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
    """Turns pictures of several environments into observations.

    :meth:`advance` encodes all pictures of a step in one call; :meth:`observations` then returns
    what the learner sees. ``space`` is one environment's.
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
        low = np.concatenate([np.tile(encoder.low, frames), *(box.low for box in boxes)])
        high = np.concatenate([np.tile(encoder.high, frames), *(box.high for box in boxes)])
        # Rounding to float32 keeps order, so that no value leaves bounds rounded like it.
        self.space = gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        size = source.count * encoder.latent_size
        self._stacks = np.zeros((num_envs, options.frame_stack, size), np.float32)
        self._random = [self._generator(i) for i in range(num_envs)]

    def seed(self, index: int, seed: int | None) -> None:
        """Restart an environment's random numbers where it is reset with a seed."""
        if seed is not None:
            own = 0 if self.options.seed is None else self.options.seed + 1
            self._random[index] = np.random.default_rng([own, int(seed)])

    def advance(
        self,
        env: Any,
        observations: Any,
        ends: Sequence[int],
        begins: Sequence[int] = (),
        last: Mapping[int, Any] = MappingProxyType({}),
    ) -> tuple[dict[int, NDArray[np.float32]], NDArray[np.uint8]]:
        """Encode last pictures of steps and first ones of episodes in one call, and stack them.

        Arguments as :meth:`PictureSource.batch`. Returns what the learner sees at an episode's end,
        ``(L,)``, by environment of ``last``; and the newest pictures of ``ends``, then ``begins``,
        ``(M, H, W, 3)``.
        """
        pictures = self.source.batch(observations, ends, begins, last, env)
        latents = self.look([*ends, *begins], pictures)
        self.push(ends, latents[: len(ends)])
        final = dict(zip(last, self.observations(list(last), list(last.values())), strict=True))
        self.begin(begins, latents[len(ends) :])
        return final, pictures[:, -1]

    def look(self, indices: Sequence[int], pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return latents ``(M, count * D)`` of ``(M, count, H, W, 3)`` uint8 of M environments."""
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
        """Start episodes: fill their stacks with the first latents ``(M, count * D)``."""
        self._stacks[list(indices)] = latents[:, None]

    def push(self, indices: Sequence[int], latents: NDArray[np.float32]) -> None:
        """Append the next latents ``(M, count * D)`` to the stacks."""
        at = list(indices)
        if self.options.frame_stack > 1:
            self._stacks[at, :-1] = self._stacks[at, 1:]
        self._stacks[at, -1] = latents

    def observed(self, observations: Any) -> NDArray[np.float32]:
        """Return what the learner sees of a batch of all environments."""
        rows = self.source.rows(observations) if self._kept else []
        return self.observations(range(len(self._stacks)), rows)

    def observations(self, indices: Sequence[int], rows: Sequence[Any]) -> NDArray[np.float32]:
        """Return what the learner sees of M environments, ``(M, L)`` float32 in new memory.

        The kept keys are read from ``rows``, their own observations.
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
        image_source: OneSource | None = None,
        keep: Sequence[str] = (),
        frame_stack: int = 1,
        sample: bool = False,
        seed: int | None = None,
        picture_in_info: bool = False,
    ) -> None:
        options = EncodingOptions(keep, frame_stack, sample, seed, picture_in_info)
        encoder = Encoder(
            resolve_bundle(bundle),
            backend=backend,
            device=device,
            precision=precision,
            threads=threads,
        )
        arguments = {
            "bundle": bundle_spec(bundle, encoder.bundle),
            "backend": backend,
            "device": device,
            "precision": precision,
            "threads": threads,
            "image_source": image_source,
            **vars(options),
        }
        inside = self._inside(env)
        if image_source is None:
            image_source = default_source(inside.space, inside.render_mode)
        self._enclose(env, image_source, arguments)
        source = PictureSource(image_source, inside, encoder.bundle, stacked=True)
        self._core = EncodingCore(encoder, source, inside.space, options, inside.num_envs)
        self._show(self._core.space)

    @property
    def encoder(self) -> Encoder:
        """What encodes the pictures. It loads at the first one."""
        return self._core.encoder

    def close(self, **kwargs: Any) -> None:
        """Close the environment and free the network."""
        self._core.encoder.close()
        super().close(**kwargs)  # type: ignore[misc]


class EncodedObservation(EncodedObservationBase[Env], SingleForm):
    """Replace the environment's observation by what an encoder sees in its picture.

    The observation is one flat float32 Box: the latent vectors of the last ``frame_stack`` steps,
    oldest first, then the kept parts of the environment's own observation, flattened. Its bounds
    are the bundle's and the parts' own.

    Stacked pictures, ``(k, H, W, 3)``, ``(k, 3, H, W)``, ``(H, W, 3 k)`` or ``(3 k, H, W)``, are
    encoded one by one, oldest first.

    All arguments but a callable ``image_source`` and a loaded ``bundle`` are YAML values, so that
    RL Zoo's ``env_wrapper`` can carry them. ``env.spec`` makes the same environment again; its JSON
    carries a loaded bundle too, but no functions.

    Args:
        env: the environment.
        bundle: a loaded encoder bundle, the folder of one, an installed one's name, or what
            ``env.spec`` recorded of one.
        backend: ``"openvino"``, ``"torch"``, ``"onnxruntime"`` or another registered one.
        device: device of the backend.
        precision: ``"auto"``, ``"fp32"``, ``"int8"``, …
        threads: threads of one inference.
        image_source: ``"obs"``, ``"obs:<key>"``, ``"render"`` or ``callable(env, observation)``
            returning ``(H, W, 3)`` uint8 RGB. None: the observation if it is a picture, its only
            picture key, else ``"render"``.
        keep: keys of the observation that the learner sees too, such as joint angles.
        frame_stack: latent vectors of so many steps; after a reset the first stands for those
            before it.
        sample: draw from the posterior instead of taking its mean.
        seed: of the draws, together with the seeds that ``reset`` is given; None: random where
            ``reset`` is given none.
        picture_in_info: put the newest picture into ``info["picture"]``, ``(H, W, 3)`` uint8.

    Raises:
        ConfigError: arguments that cannot work, on their own or with this environment.
        PictureMismatchError: the environment's picture is not the bundle's.
        ModelNotFoundError: no such bundle.
    """

    def _enclose(self, env: Env, source: ImageSource, arguments: dict[str, Any]) -> None:
        if arguments["frame_stack"] > 1:
            refuse_autoreset(env, "it would be stacked on those of the episode that ended")
        super()._enclose(env, source, arguments)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._core.seed(0, seed)
        return self._observe(observation, info, first=True)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and encode the picture it ended with.

        Raises:
            InputError: the picture has a wrong shape or dtype.
            OutputError: the network returned NaN or infinity.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        seen, info = self._observe(observation, info, first=False)
        return seen, reward, terminated, truncated, info

    def _observe(
        self, observation: Any, info: dict[str, Any], *, first: bool
    ) -> tuple[Any, dict[str, Any]]:
        core = self._core
        pictures = core.source.single(self.env, observation)
        latent = core.look([0], pictures)
        if first:
            core.begin([0], latent)
        else:
            core.push([0], latent)
        if core.options.picture_in_info:
            info = {**info, "picture": shown(pictures[0, -1])}
        return core.observations([0], [observation])[0], info


def shown(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy of a picture for ``info``: environments may write to theirs again."""
    return np.array(picture, order="C")


def _kept(space: gym.Space[Any], key: str, source: PictureSource) -> gym.Space[Any]:
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else None
    if parts is None or key not in parts:
        what = space if parts is None else f"a Dict with {', '.join(parts)}"
        raise ConfigError(
            f"keep names {key!r} and the observation is {what}. Expected keys of a Dict; correct "
            "keep, or leave it out."
        )
    part = parts[key]
    if key == source.key or not part.is_np_flattenable:
        raise ConfigError(
            f"keep names {key!r}, which is {part}. Expected a part that is numbers of fixed "
            "length and not the picture; correct keep."
        )
    return part


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
