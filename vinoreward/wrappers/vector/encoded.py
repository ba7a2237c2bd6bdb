"""EncodedObservation for Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from vinoreward.wrappers.encoding import EncodedObservationBase, shown
from vinoreward.wrappers.vector.common import Step, VectorForm, put


class VectorEncodedObservation(EncodedObservationBase[VectorEnv[Any, Any, Any]], VectorForm):
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

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start new episodes in all sub-environments, or where ``options["reset_mask"]`` says."""
        mask, observations, infos = self._reset(seed, options)
        fresh = np.flatnonzero(mask).tolist()
        if seed is not None:
            for i in fresh:
                self._core.seed(i, seed[i] if isinstance(seed, Sequence) else seed + i)
        _, infos = self._encode(observations, [], fresh, {}, infos)
        return self._observed(observations), infos

    def step(self, actions: Any) -> Step:
        """Step all sub-environments and encode their pictures.

        Raises:
            ConfigError: DISABLED mode, and an episode that ended was not reset; or SAME_STEP mode,
                and last pictures are overwritten by resets.
            InputError: a picture has a wrong shape, or SAME_STEP and no ``final_obs``.
        """
        observations, rewards, terminations, truncations, infos = self._step(actions)
        ended = np.asarray(terminations, np.bool_) | np.asarray(truncations, np.bool_)
        last: Mapping[int, Any] = {}
        going, starting = np.ones_like(ended), np.zeros_like(ended)
        if self._mode is AutoresetMode.SAME_STEP:
            starting = ended
            last = self._finals(self._core.source, ended, observations, infos)
        elif self._mode is AutoresetMode.NEXT_STEP:
            going, starting = ~self._over, self._over
        ends, begins = np.flatnonzero(going).tolist(), np.flatnonzero(starting).tolist()
        final, infos = self._encode(observations, ends, begins, last, infos)
        if final:
            infos["final_obs"] = np.full(self.num_envs, None, object)
            for i, observation in final.items():
                infos["final_obs"][i] = observation
        self._over = ended
        return self._observed(observations), rewards, terminations, truncations, infos

    def close(self, **kwargs: Any) -> None:
        """Close the environments and free the network."""
        self._core.encoder.close()
        super().close(**kwargs)

    def _encode(
        self,
        observations: Any,
        ends: list[int],
        begins: list[int],
        last: Mapping[int, Any],
        infos: dict[str, Any],
    ) -> tuple[dict[int, NDArray[np.float32]], dict[str, Any]]:
        """Encode all at once; return what the learner sees at ends, and infos with pictures."""
        frames = self.env.render() if self._core.source.renders else None
        final, newest = self._core.advance(observations, ends, begins, last, frames)
        if final or self._core.options.picture_in_info:
            infos = dict(infos)
        if self._core.options.picture_in_info:
            pictures = dict(zip([*ends, *begins], newest, strict=True))
            for i, picture in pictures.items():
                put(self, infos, {"picture": shown(picture)}, i)
            if isinstance(infos.get("final_info"), dict):
                for i in final:  # all environments are in ends then
                    put(self, infos["final_info"], {"picture": shown(newest[i])}, i)
        return final, infos

    def _observed(self, observations: Any) -> NDArray[np.float32]:
        return self._core.observations(range(self.num_envs), self._core.rows(observations))
