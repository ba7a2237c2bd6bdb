"""EncodedObservation for Stable-Baselines3's vector environments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.encoders.encoder import Encoder
from vinoreward.wrappers.encoding import EncodingCore, EncodingOptions, Pictures, both, shown
from vinoreward.wrappers.sb3.common import (
    VecEnv,
    VecEnvWrapper,
    keep_last,
    lasts,
    refuse_render,
    rows_of,
    sb3_scene_of,
)
from vinoreward.wrappers.sources import ImageSource, PictureSource, check_scene, default_source


class VecEncodedObservation(VecEnvWrapper):
    """:class:`~vinoreward.EncodedObservation` for an SB3 ``VecEnv``, one batched call per step.

    ``infos[i]["terminal_observation"]`` is encoded too, with the latents of the episode that ended;
    ``infos[i]["picture"]`` is then that episode's last one. ``image_source="render"`` is refused:
    SB3 has reset an environment before it can be rendered.

    Args:
        venv: the vector environment.
        bundle: as :class:`~vinoreward.EncodedObservation`, like all other arguments but:
        image_source: a callable is given ``None`` for the environment, one observation at a time.
    """

    def __init__(
        self,
        venv: VecEnv,
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
        space = venv.observation_space
        chosen = default_source(space, venv.render_mode) if image_source is None else image_source
        refuse_render(chosen, "EncodedObservation")
        source = PictureSource(chosen, space, venv.render_mode, encoder.bundle, stacked=True)
        if not source.calls:
            check_scene(sb3_scene_of(venv), encoder.bundle)
        self._core = EncodingCore(encoder, source, space, options, venv.num_envs)
        super().__init__(venv, observation_space=self._core.space)
        self._last = keep_last(venv, source, "EncodedObservation")
        self._resetting: list[int | None] = [None] * venv.num_envs

    @property
    def encoder(self) -> Encoder:
        """What encodes the pictures. It loads at the first one."""
        return self._core.encoder

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Set the seeds of the next reset, and with them those of the draws."""
        seeds = self.venv.seed(seed)
        self._resetting = list(seeds)
        return seeds

    def reset(self) -> NDArray[np.float32]:
        """Start new episodes everywhere."""
        rows = rows_of(self.venv.reset(), self.num_envs)
        self.reset_infos = [dict(info) for info in self.venv.reset_infos]
        for i, seed in enumerate(self._resetting):
            self._core.seed(i, seed)
        self._resetting = [None] * self.num_envs
        (_, starting), (_, begun) = both({}, dict(enumerate(rows)), self._core, self._take)
        for i, latent in starting.items():
            self._core.begin(i, latent)
        self._show(begun, self.reset_infos)
        return self._observed(rows)

    def step_wait(self) -> Any:
        """Return SB3's ``(observations, rewards, dones, infos)`` of the step that was begun.

        Raises:
            ConfigError: last pictures are overwritten by resets.
            InputError: a picture of a wrong shape or dtype, or no ``terminal_observation``.
        """
        observations, rewards, dones, found = self.venv.step_wait()
        infos = [dict(info) for info in found]
        self.reset_infos = [dict(info) for info in self.venv.reset_infos]
        rows = rows_of(observations, self.num_envs)
        first = {i: rows[i] for i in np.flatnonzero(dones).tolist()}
        last = dict(enumerate(lasts(dones, infos, rows)))
        if self._last is not None:
            self._last.check(np.asarray(dones, np.bool_), list(last.values()), rows)
        (going, starting), (newest, begun) = both(last, first, self._core, self._take)
        for i, latent in going.items():
            self._core.push(i, latent)
        for i, latent in starting.items():
            infos[i]["terminal_observation"] = self._core.observation(i, last[i])
            self._core.begin(i, latent)
        self._show(newest, infos)
        self._show(begun, self.reset_infos)
        return self._observed(rows), rewards, dones, infos

    def close(self) -> None:
        """Close the environments and free the network."""
        self._core.encoder.close()
        self.venv.close()

    def _take(self, i: int, observation: Any) -> Pictures:
        return self._core.source.pictures(None, observation)

    def _show(self, pictures: dict[int, NDArray[np.uint8]], infos: list[dict[str, Any]]) -> None:
        if self._core.options.picture_in_info:
            for i, picture in pictures.items():
                infos[i]["picture"] = shown(picture)

    def _observed(self, rows: list[Any]) -> NDArray[np.float32]:
        return np.stack([self._core.observation(i, item) for i, item in enumerate(rows)])
