"""EncodedObservation for one Gymnasium environment, and what its three forms share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays, is_tensor
from vinoreward.bundles.bundle import AnyBundle, bundle_spec, resolve_bundle
from vinoreward.encoders import Encoder
from vinoreward.errors import ConfigError
from vinoreward.wrappers.env_adapter import (
    NOTHING,
    ONE,
    AnyEnv,
    Env,
    EnvAdapter,
    SingleAdapter,
    refuse_autoreset,
)
from vinoreward.wrappers.render_once import IMAGE
from vinoreward.wrappers.sources import EnvInfo, ImageReader, ImageSource, OneSource, default_source


@dataclass(frozen=True)
class EncodingOptions:
    """The options of an encoded observation, checked; see ``vinoreward.EncodedObservation``."""

    keep: Sequence[str] = ()
    frame_stack: int = 1
    sample: bool = False
    seed: int | None = None
    image_in_info: bool = False

    def __post_init__(self) -> None:
        # A single key may be given as it is: RL Zoo's YAML makes that an easy slip.
        keep = (self.keep,) if isinstance(self.keep, str) else tuple(self.keep)
        object.__setattr__(self, "keep", keep)
        different = all(isinstance(key, str) for key in keep) and len(set(keep)) == len(keep)
        for name, right, expected in (
            ("keep", different, "different keys of the observation, e.g. ('position',)"),
            ("frame_stack", _whole(self.frame_stack, 1), "a whole number of at least 1"),
            ("seed", self.seed is None or _whole(self.seed, 0), "a number of at least 0, or None"),
            ("sample", isinstance(self.sample, bool), "true or false"),
            ("image_in_info", isinstance(self.image_in_info, bool), "true or false"),
        ):
            if not right:
                raise ConfigError(f"{name} is {getattr(self, name)!r}. Expected {expected}.")


class EncodingCore:
    """Turns images of N environments into observations.

    Arrays are NumPy's, or torch tensors on one device after :meth:`use`; nothing waits for it.
    """

    def __init__(
        self, encoder: Encoder, source: ImageReader, info: EnvInfo, options: EncodingOptions
    ) -> None:
        if options.sample:
            encoder.check_samples()
        self.encoder = encoder
        self.source = source
        self.options = options
        self._info = info
        self._kept = {key: _kept(info.space, key, source) for key in options.keep}
        frames = options.frame_stack * source.count
        parts = [gym.spaces.flatten_space(part) for part in self._kept.values()]
        boxes = [part for part in parts if isinstance(part, gym.spaces.Box)]
        low = np.concatenate([np.tile(encoder.low, frames), *(box.low for box in boxes)])
        high = np.concatenate([np.tile(encoder.high, frames), *(box.high for box in boxes)])
        # Rounding to float32 keeps order, so that no value leaves bounds rounded like it.
        self.space = gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        size = source.count * encoder.latent_size
        self._stacks: Array = np.zeros((info.num_envs, options.frame_stack, size), np.float32)
        seed = None if options.seed is None else options.seed + 1
        entropy = [np.random.SeedSequence(seed, spawn_key=(i,)) for i in range(info.num_envs)]
        self._random = [np.random.default_rng(one) for one in entropy]

    def stays_on(self, images: object) -> bool:
        """Return whether images are tensors that are encoded without waiting for their device."""
        options = self.options
        on_host = self._kept or options.sample or options.image_in_info
        return self.source.key is None and not on_host and self.encoder.takes(images)

    def use(self, arrays: Arrays) -> None:
        """Take and return arrays of this library and device from now on; forget all stacks."""
        self._stacks = arrays.cast(np.zeros_like(self._stacks), "float32")

    def check(self) -> None:
        """Raise OutputError, once, if the network gave NaN or infinity on a device."""
        self.encoder.check()

    def seed(self, index: int, seed: int | None) -> None:
        """Restart an environment's random numbers where it is reset with a seed."""
        if seed is not None:
            own = 0 if self.options.seed is None else self.options.seed + 1
            self._random[index] = np.random.default_rng([own, int(seed)])

    def advance(
        self, env: Any, observations: Any, stepped: Array, starting: Array, final: Any = NOTHING
    ) -> tuple[Any, dict[int, NDArray[np.uint8]], dict[int, NDArray[np.uint8]]]:
        """Encode what steps ended with and what episodes begin with in one call, and stack it.

        Args:
            env: what renders, if images are rendered.
            observations: of all environments; where an episode ended, the next one's first.
            stepped: ``(num_envs,)`` bool, which made a transition.
            starting: likewise, whose episode begins.
            final: an ended episode's final observation by environment; on a device the images
                ``(num_envs, H, W, 3)`` that transitions ended with, where they are others.

        Returns:
            What the learner sees at an episode's end, ``(L,)`` by environment, on a device
            ``(num_envs, L)`` or None; and with ``image_in_info`` the newest image by environment
            of ``stepped`` and of ``starting``.
        """
        if is_tensor(self._stacks):
            latents = self.encoder.encode(self.source.tensors(observations, env))
            if final is NOTHING:
                self.push(stepped, latents)
                self.begin(starting, latents)
                return None, {}, {}
            self.push(stepped, self.encoder.encode(final))
            seen = self.observations()
            self.begin(starting, latents)
            return seen, {}, {}
        ends, begins = np.flatnonzero(stepped).tolist(), np.flatnonzero(starting).tolist()
        images = self.source.batch(observations, ends, begins, final, env)
        latents = self.encode([*ends, *begins], images)
        self.push(stepped, self._spread(ends, latents[: len(ends)]))
        seen = {i: self.observations([i], [one])[0] for i, one in final.items()}
        self.begin(starting, self._spread(begins, latents[len(ends) :]))
        if not self.options.image_in_info:
            return seen, {}, {}
        newest = iter(images[:, -1].copy())  # environments may write to theirs again
        return seen, {i: next(newest) for i in ends}, {i: next(newest) for i in begins}

    def encode(self, indices: Sequence[int], images: NDArray[np.uint8]) -> Array:
        """Return latents ``(M, count * D)`` of ``(M, count, H, W, 3)`` uint8 of M environments."""
        together = images.reshape(-1, *images.shape[2:])
        if not self.options.sample:
            return self.encoder.encode(together).reshape(len(images), self._stacks.shape[2])
        mean, std = self.encoder.posterior(together)
        if std is not None and len(images):
            shape = (self.source.count, self.encoder.latent_size)
            noise = [self._random[i].standard_normal(shape, np.float32) for i in indices]
            mean = mean + std * np.concatenate(noise)
        return self.encoder.clip(mean).reshape(len(images), self._stacks.shape[2])

    def begin(self, mask: Array, latents: Array) -> None:
        """Fill stacks with an episode's first latents ``(N, count * D)`` where ``mask`` is True."""
        where = Arrays.like(self._stacks).xp.where
        self._stacks = where(mask[:, None, None], latents[:, None], self._stacks)

    def push(self, mask: Array, latents: Array) -> None:
        """Append the next latents ``(N, count * D)`` to the stacks where ``mask`` is True."""
        xp = Arrays.like(self._stacks).xp
        stacks = xp.concatenate([self._stacks[:, 1:], latents[:, None]], 1)
        self._stacks = xp.where(mask[:, None, None], stacks, self._stacks)

    def observed(self, observations: Any) -> Array:
        """Return what the learner sees of a batch of all environments."""
        return self.observations(rows=self._info.rows(observations) if self._kept else ())

    def observations(self, indices: Any = slice(None), rows: Sequence[Any] = ()) -> Array:
        """Return what the learner sees of M environments, ``(M, L)`` float32 in new memory.

        The kept keys are read from ``rows``, their own observations.
        """
        seen = self._stacks[indices]
        seen = seen.reshape(len(seen), -1) + 0
        if not self._kept or not rows:
            return seen
        own = []
        for row in rows:
            flat: Any = [gym.spaces.flatten(space, row[key]) for key, space in self._kept.items()]
            own.append(np.concatenate(flat, dtype=np.float32, casting="unsafe"))
        return np.concatenate([seen, np.stack(own)], axis=1)

    def _spread(self, rows: Sequence[int], latents: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return ``(num_envs, count * D)``, zero but for these rows."""
        if len(rows) == len(self._stacks):
            return latents
        spread = np.zeros((len(self._stacks), latents.shape[1]), np.float32)
        spread[rows] = latents
        return spread


class EncodedObservationBase(EnvAdapter[AnyEnv]):
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
        image_in_info: bool = False,
    ) -> None:
        arguments = dict(locals())
        del arguments["self"], arguments["env"]
        options = EncodingOptions(keep, frame_stack, sample, seed, image_in_info)
        loaded, info = resolve_bundle(bundle), self._env_info(env)
        encoder = Encoder(
            loaded, backend=backend, device=device, precision=precision, threads=threads
        )
        arguments |= {**vars(options), "bundle": bundle_spec(bundle, loaded)}
        if image_source is None:
            image_source = default_source(info.space, info.render_mode)
        self._init_wrapper(env, image_source, arguments)
        self._source = ImageReader(image_source, info, loaded, stacked=True)
        self._model = EncodingCore(encoder, self._source, info, options)
        self._set_space(self._model.space)

    @property
    def encoder(self) -> Encoder:
        """What encodes the images. It loads at the first one."""
        return self._model.encoder

    def close(self, **kwargs: Any) -> None:
        """Close the environment and free the network."""
        self._model.encoder.close()
        super().close(**kwargs)  # type: ignore[misc]


class EncodedObservation(EncodedObservationBase[Env], SingleAdapter):
    """Replace the environment's observation by what an encoder sees in its image.

    The observation is one flat float32 Box: the latent vectors of the last ``frame_stack`` steps,
    oldest first, then the kept parts of the environment's own observation, flattened. Its bounds
    are the bundle's and the parts' own.

    Stacked images, ``(k, H, W, 3)``, ``(k, 3, H, W)``, ``(H, W, 3 k)`` or ``(3 k, H, W)``, are
    encoded one by one, oldest first.

    ``env.spec`` makes the same environment again, and RL Zoo's ``env_wrapper`` can carry the
    arguments, as those of :class:`~vinoreward.LearnedReward`.

    Args:
        env: the environment.
        bundle: an encoder's; this and ``backend``, ``device``, ``precision`` and ``threads`` are as
            for :class:`~vinoreward.LearnedReward`.
        image_source: ``"obs"``, ``"obs:<key>"``, ``"render"`` or ``callable(env, observation)``
            returning ``(H, W, 3)`` uint8 RGB. None: the observation if it is an image, its only
            image key, else ``"render"``.
        keep: keys of the observation that the learner sees too, such as joint angles.
        frame_stack: latent vectors of so many steps; after a reset the first stands for those
            before it.
        sample: draw from the posterior instead of taking its mean.
        seed: of the draws, together with the seeds that ``reset`` is given; None: random where
            ``reset`` is given none.
        image_in_info: put the newest image into ``info["image"]``, ``(H, W, 3)`` uint8.

    Raises:
        ConfigError: arguments that cannot work, on their own or with this environment.
        ImageMismatchError: the environment's image is not the bundle's.
        ModelNotFoundError: no such bundle.
    """

    def _init_wrapper(self, env: Env, source: ImageSource, arguments: dict[str, Any]) -> None:
        if arguments["frame_stack"] > 1:
            refuse_autoreset(env, "it would be stacked on those of the episode that ended")
        super()._init_wrapper(env, source, arguments)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._model.seed(0, seed)
        return self._observe(observation, info, first=True)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and encode the image it ended with.

        Raises:
            InputError: the image has a wrong shape or dtype.
            OutputError: the network returned NaN or infinity.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        seen, info = self._observe(observation, info, first=False)
        return seen, reward, terminated, truncated, info

    def _observe(
        self, observation: Any, info: dict[str, Any], *, first: bool
    ) -> tuple[Any, dict[str, Any]]:
        core = self._model
        images = core.source.single(self.env, observation)
        (core.begin if first else core.push)(ONE, core.encode([0], images))
        if core.options.image_in_info:
            info = {**info, IMAGE: images[0, -1].copy()}
        return core.observations(rows=[observation])[0], info


def _kept(space: gym.Space[Any], key: str, source: ImageReader) -> gym.Space[Any]:
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {}
    if key not in parts or key == source.key or not parts[key].is_np_flattenable:
        what = f"a Dict with {', '.join(parts)}" if parts else space
        raise ConfigError(
            f"keep names {key!r} and the observation is {what}. Expected keys of a Dict that are "
            "numbers of fixed length and not the image; correct keep, or leave it out."
        )
    return parts[key]


def _whole(value: Any, least: int) -> bool:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return whole and bool(value >= least)
