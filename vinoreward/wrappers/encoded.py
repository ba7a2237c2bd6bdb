"""EncodedObservation for one Gymnasium environment, and what its three forms share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from vinoreward.wrappers.sources import EnvInfo, ImageReader, ImageSource, OneSource, default_source


class EncodingCore:
    """Turns images of N environments into observations.

    Arrays are NumPy's, or torch tensors on one device after :meth:`use`; nothing waits for it.
    """

    def __init__(
        self,
        encoder: Encoder,
        source: ImageReader,
        info: EnvInfo,
        keep: Sequence[str],
        frame_stack: int,
    ) -> None:
        self.encoder = encoder
        self.source = source
        self._info = info
        self._kept = {key: _kept(info.space, key, source) for key in keep}
        parts = [gym.spaces.flatten_space(part) for part in self._kept.values()]
        boxes = [part for part in parts if isinstance(part, gym.spaces.Box)]
        low = np.concatenate([np.tile(encoder.low, frame_stack), *(box.low for box in boxes)])
        high = np.concatenate([np.tile(encoder.high, frame_stack), *(box.high for box in boxes)])
        # Rounding to float32 keeps order, so that no value leaves bounds rounded like it.
        self.space = gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        shape = (info.num_envs, frame_stack, encoder.latent_size)
        self._stacks: Array = np.zeros(shape, np.float32)

    def stays_on(self, images: object) -> bool:
        """Return whether images are tensors that are encoded without waiting for their device."""
        return self.source.key is None and not self._kept and self.encoder.takes(images)

    def use(self, arrays: Arrays) -> None:
        """Take and return arrays of this library and device from now on; forget all stacks."""
        self._stacks = arrays.cast(np.zeros_like(self._stacks), "float32")

    def check(self) -> None:
        """Raise OutputError, once, if the network gave NaN or infinity on a device."""
        self.encoder.check()

    def advance(
        self, env: Any, observations: Any, stepped: Array, starting: Array, final: Any = NOTHING
    ) -> Any:
        """Encode what steps ended with and what episodes begin with, and stack it.

        Args:
            env: what renders, if images are rendered.
            observations: of all environments; where an episode ended, the next one's first.
            stepped: ``(num_envs,)`` bool, which made a transition.
            starting: likewise, whose episode begins.
            final: an ended episode's final observation by environment; on a device the images
                ``(num_envs, H, W, 3)`` that transitions ended with, where they are others.

        Returns:
            What the learner sees at an episode's end, ``(L,)`` by environment; on a device
            ``(num_envs, L)`` or None.
        """
        if is_tensor(self._stacks):
            latents = self.encoder.encode(self.source.tensors(observations, env))
            if final is NOTHING:
                self.push(stepped, latents)
                self.begin(starting, latents)
                return None
            self.push(stepped, self.encoder.encode(final))
            seen = self.observations()
            self.begin(starting, latents)
            return seen
        if stepped.any():
            self.push(stepped, self._latents(stepped, observations, env, final))
        seen = {i: self.observations([i], [one])[0] for i, one in final.items()}
        if starting.any():
            self.begin(starting, self._latents(starting, observations, env))
        return seen

    def begin(self, mask: Array, latents: Array) -> None:
        """Fill stacks with an episode's first latents ``(N, D)`` where ``mask`` is True."""
        where = Arrays.like(self._stacks).xp.where
        self._stacks = where(mask[:, None, None], latents[:, None], self._stacks)

    def push(self, mask: Array, latents: Array) -> None:
        """Append the next latents ``(N, D)`` to the stacks where ``mask`` is True."""
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

    def _latents(
        self,
        mask: NDArray[np.bool_],
        observations: Any,
        env: Any,
        final: Mapping[int, Any] = NOTHING,
    ) -> NDArray[np.float32]:
        """Return ``(num_envs, D)``, zero where ``mask`` is False."""
        rows = np.flatnonzero(mask).tolist()
        latents = np.zeros((len(mask), self.encoder.latent_size), np.float32)
        latents[rows] = self.encoder.encode(self.source.batch(observations, rows, env, final))
        return latents


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
    ) -> None:
        arguments = dict(locals())
        del arguments["self"], arguments["env"]
        if not isinstance(frame_stack, (int, np.integer)) or frame_stack < 1:
            raise ConfigError(
                f"frame_stack is {frame_stack!r}. Expected a whole number of at least 1."
            )
        # A single key may be given as it is: RL Zoo's YAML makes that an easy slip.
        keep = (keep,) if isinstance(keep, str) else tuple(keep)
        loaded, info = resolve_bundle(bundle), self._env_info(env)
        encoder = Encoder(
            loaded, backend=backend, device=device, precision=precision, threads=threads
        )
        arguments |= {"keep": keep, "bundle": bundle_spec(bundle, loaded)}
        if image_source is None:
            image_source = default_source(info.space, info.render_mode)
        self._init_wrapper(env, image_source, arguments)
        self._source = ImageReader(image_source, info, loaded)
        self._model = EncodingCore(encoder, self._source, info, keep, frame_stack)
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
        return self._observe(observation, first=True), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment and encode the image it ended with.

        Raises:
            InputError: the image has a wrong shape or dtype.
            OutputError: the network returned NaN or infinity.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        seen = self._observe(observation, first=False)
        return seen, reward, terminated, truncated, info

    def _observe(self, observation: Any, *, first: bool) -> Any:
        core = self._model
        latents = core.encoder.encode(core.source.single(self.env, observation))
        (core.begin if first else core.push)(ONE, latents)
        return core.observations(rows=[observation])[0]


def _kept(space: gym.Space[Any], key: str, source: ImageReader) -> gym.Space[Any]:
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {}
    if key not in parts or key == source.key or not parts[key].is_np_flattenable:
        what = f"a Dict with {', '.join(parts)}" if parts else space
        raise ConfigError(
            f"keep names {key!r} and the observation is {what}. Expected keys of a Dict that are "
            "numbers of fixed length and not the image; correct keep, or leave it out."
        )
    return parts[key]
