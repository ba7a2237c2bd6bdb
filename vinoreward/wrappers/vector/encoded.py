"""EncodedObservation for Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.encoders.encoder import Encoder
from vinoreward.wrappers.encoding import EncodingCore, EncodingOptions, Pictures, both, shown
from vinoreward.wrappers.last_pictures import keep_last
from vinoreward.wrappers.render_once import vector_render_once
from vinoreward.wrappers.sources import ImageSource, PictureSource, check_scene, default_source
from vinoreward.wrappers.vector.checks import check_was_reset, checked_mode, scene_of
from vinoreward.wrappers.vector.info import finals, put
from vinoreward.wrappers.vector.learned_reward import Step


class VectorEncodedObservation(VectorWrapper[Any, Any, Any, Any, NDArray[Any]]):
    """:class:`~vinoreward.EncodedObservation` for all sub-environments, one batched call per step.

    The wrapped environment's autoreset mode stays what it is. In SAME_STEP mode ``final_obs`` is
    encoded too, with the latents of the episode that ended; the rendered frame already belongs to
    the next episode there, so ``image_source="render"`` is refused. In DISABLED mode the caller
    resets with ``options={"reset_mask": mask}``. With ``picture_in_info`` the last picture of an
    episode is in ``final_info``.

    Args:
        env: the vector environment.
        bundle: as :class:`~vinoreward.EncodedObservation`, like all other arguments but:
        image_source: a callable is given ``None`` for the environment, one observation at a time.
    """

    passes_masked_resets = True

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        bundle: Bundle | str | Path,
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
            bundle, backend=backend, device=device, precision=precision, threads=threads
        )
        space = env.single_observation_space
        chosen = default_source(space, env.render_mode) if image_source is None else image_source
        mode = checked_mode(env, chosen, terminate=False)
        source = PictureSource(chosen, space, env.render_mode, encoder.bundle, stacked=True)
        if not source.calls:
            check_scene(scene_of(env), encoder.bundle)
        super().__init__(vector_render_once(env) if source.renders else env)
        self._mode = mode
        self._core = EncodingCore(encoder, source, space, options, env.num_envs)
        self.single_observation_space = self._core.space
        self.observation_space = batch_space(self._core.space, env.num_envs)
        self._last = keep_last(env, source)
        self._over = np.zeros(env.num_envs, np.bool_)
        """Episodes that ended with the last step."""

    @property
    def encoder(self) -> Encoder:
        """What encodes the pictures. It loads at the first one."""
        return self._core.encoder

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start new episodes in all sub-environments, or where ``options["reset_mask"]`` says."""
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = np.asarray(options["reset_mask"], np.bool_).copy()
        # Copied, because Gymnasium takes the mask out of the dictionary it is given.
        given = None if options is None else dict(options)
        observations, infos = self.env.reset(seed=seed, options=given)  # type: ignore[arg-type]
        self._over = self._over & ~mask
        rows = self._rows(observations)
        fresh = {i: rows[i] for i in np.flatnonzero(mask).tolist()}
        for i in fresh:
            if seed is not None:
                self._core.seed(i, seed[i] if isinstance(seed, Sequence) else seed + i)
        _, infos = self._encode({}, fresh, infos)
        return self._observed(rows), infos

    def step(self, actions: Any) -> Step:
        """Step all sub-environments and encode their pictures.

        Raises:
            ConfigError: DISABLED mode, and an episode that ended was not reset; or SAME_STEP mode,
                and last pictures are overwritten by resets.
            InputError: a picture has a wrong shape, or SAME_STEP and no ``final_obs``.
        """
        check_was_reset(self._mode, self._over)
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        ended = np.asarray(terminations, np.bool_) | np.asarray(truncations, np.bool_)
        rows = self._rows(observations)
        last = dict(enumerate(rows))
        starting = self._over
        if self._mode is AutoresetMode.SAME_STEP:
            starting = ended
            last |= finals(self.env, ended, infos)
            if self._last is not None:
                self._last.check(ended, list(last.values()), rows)
        elif self._mode is AutoresetMode.NEXT_STEP:
            last = {i: item for i, item in last.items() if not starting[i]}
        else:
            starting = np.zeros_like(ended)
        first = {i: rows[i] for i in np.flatnonzero(starting).tolist()}
        ends, infos = self._encode(last, first, infos)
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i, latent in ends.items():
                infos["final_obs"][i] = latent
        self._over = ended
        return self._observed(rows), rewards, terminations, truncations, infos

    def close(self, **kwargs: Any) -> None:
        """Close the environments and free the network."""
        self._core.encoder.close()
        super().close(**kwargs)

    def _encode(
        self, last: Mapping[int, Any], first: Mapping[int, Any], infos: dict[str, Any]
    ) -> tuple[dict[int, NDArray[np.float32]], dict[str, Any]]:
        """Encode all at once: ``last`` goes on, ``first`` begins an episode.

        Returns:
            For each environment in both, what ends its episode; and the infos with the pictures.
        """
        core = self._core
        frames: Any = self.env.render() if core.source.renders else None

        def take(i: int, observation: Any) -> Pictures:
            return core.source.pictures(None, observation, None if frames is None else frames[i])

        (going, starting), (newest, begun) = both(last, first, core, take)
        ends = {}
        for i, latent in going.items():
            core.push(i, latent)
            if i in first:
                ends[i] = core.observation(i, last[i])
        for i, latent in starting.items():
            core.begin(i, latent)
        if core.options.picture_in_info:
            infos = dict(infos)
            for i, picture in {**newest, **begun}.items():
                put(self, infos, {"picture": shown(picture)}, i)
            if ends and isinstance(infos.get("final_info"), dict):
                for i in ends:
                    put(self, infos["final_info"], {"picture": shown(newest[i])}, i)
        elif ends:
            infos = dict(infos)
        return ends, infos

    def _rows(self, observations: Any) -> list[Any]:
        return list(iterate(self.env.observation_space, observations))

    def _observed(self, rows: list[Any]) -> NDArray[np.float32]:
        return np.stack([self._core.observation(i, item) for i, item in enumerate(rows)])
