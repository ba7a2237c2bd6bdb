"""EncodedObservation for Stable-Baselines3's vector environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.wrappers.encoding import EncodedObservationBase, shown
from vinoreward.wrappers.layers import ImageSource
from vinoreward.wrappers.sb3.common import SB3Form, VecEnv


class VecEncodedObservation(EncodedObservationBase[VecEnv], SB3Form):
    """:class:`~vinoreward.EncodedObservation` for an SB3 ``VecEnv``, one batched call per step.

    ``infos[i]["terminal_observation"]`` is encoded too, with the latents of the episode that ended;
    ``infos[i]["picture"]`` is then that episode's last one. ``image_source="render"`` is refused:
    SB3 has reset an environment before it can be rendered.

    Args:
        env: the vector environment.
        bundle: as :class:`~vinoreward.EncodedObservation`, like all other arguments but:
        image_source: a callable is given ``None`` for the environment, one observation at a time.
    """

    _single = "EncodedObservation"

    def _enclose(self, env: VecEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        super()._enclose(env, source, arguments)
        self._resetting: list[int | None] = [None] * env.num_envs

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Set the seeds of the next reset, and with them those of the draws."""
        seeds = self.venv.seed(seed)
        self._resetting = list(seeds)
        return seeds

    def reset(self) -> NDArray[np.float32]:
        """Start new episodes everywhere."""
        observations = self.venv.reset()
        self.reset_infos = [dict(info) for info in self.venv.reset_infos]
        for i, seed in enumerate(self._resetting):
            self._core.seed(i, seed)
        self._resetting = [None] * self.num_envs
        everyone = list(range(self.num_envs))
        _, newest = self._core.advance(observations, [], everyone)
        self._put(everyone, newest, self.reset_infos)
        return self._observed(observations)

    def step_wait(self) -> Any:
        """Return SB3's ``(observations, rewards, dones, infos)`` of the step that was begun.

        Raises:
            ConfigError: last pictures are overwritten by resets.
            InputError: a picture of a wrong shape or dtype, or no ``terminal_observation``.
        """
        observations, rewards, dones, found = self.venv.step_wait()
        infos = [dict(info) for info in found]
        self.reset_infos = [dict(info) for info in self.venv.reset_infos]
        last = self._finals(self._core.source, dones, observations, infos)
        everyone = list(range(self.num_envs))
        final, newest = self._core.advance(observations, everyone, list(last), last)
        for i, observation in final.items():
            infos[i]["terminal_observation"] = observation
        self._put(everyone, newest[: self.num_envs], infos)
        self._put(list(last), newest[self.num_envs :], self.reset_infos)
        return self._observed(observations), rewards, dones, infos

    def close(self) -> None:
        """Close the environments and free the network."""
        self._core.encoder.close()
        self.venv.close()

    def _put(
        self, indices: list[int], pictures: NDArray[np.uint8], infos: list[dict[str, Any]]
    ) -> None:
        if self._core.options.picture_in_info:
            for i, picture in zip(indices, pictures, strict=True):
                infos[i]["picture"] = shown(picture)

    def _observed(self, observations: Any) -> NDArray[np.float32]:
        return self._core.observations(range(self.num_envs), self._core.rows(observations))
