"""LearnedReward for Gymnasium's vector environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from vinoreward.rewards.core import Scores
from vinoreward.wrappers.layers import ImageSource, parts_have_recorders, vector_has_recorder
from vinoreward.wrappers.rewarding import Found, LearnedRewardBase, append_hold
from vinoreward.wrappers.vector.common import (
    Step,
    VectorForm,
    copied,
    joined,
    keep_original,
    mask_of,
    put,
    row,
    withdraw,
)


class VectorLearnedReward(LearnedRewardBase[VectorEnv[Any, Any, Any]], VectorForm):
    """:class:`~vinoreward.LearnedReward` for all sub-environments, with one batched call per step.

    The wrapped environment's autoreset mode stays what it is, and what is scored is always the
    picture that the rewarded transition ended with:

    - NEXT_STEP: the step that resets a sub-environment earns 0, is not scored, and has no
      ``is_success`` (its mask ``_is_success`` is False).
    - SAME_STEP: ``final_obs`` is scored. The rendered frame already belongs to the next episode, so
      ``image_source="render"`` is refused. ``info`` and ``final_info`` both describe the
      transition as far as this wrapper's keys and ``true_success`` go. An environment that returns
      one array again and again overwrites its last picture there: in a ``SyncVectorEnv`` it is
      copied in time, elsewhere such an environment is refused as soon as that is seen.
    - DISABLED: the caller resets with ``options={"reset_mask": mask}``.

    Where a ``RecordEpisodeStatistics`` or ``Monitor`` is inside, ``episode`` is of the learned
    reward and ``original_episode`` what the recorder wrote, as in
    :class:`~vinoreward.LearnedReward`: in ``final_info`` where the sub-environments of a SAME_STEP
    environment have the recorder, else in ``info``.

    ``terminate_on_success``: a claimed success sets ``terminated`` and the sub-environment really
    starts a new episode, by a masked reset. In NEXT_STEP and SAME_STEP mode this needs a
    ``SyncVectorEnv`` or ``AsyncVectorEnv``, other vector wrappers go outside this one. In NEXT_STEP
    mode the sub-environment is stepped once more before it is reset (its result is thrown away), as
    such environments can only be stepped all together; an environment that draws random numbers in
    ``step`` then starts its next episode from a later state of its generator.

    Args:
        env: the vector environment.
        bundle: as :class:`~vinoreward.LearnedReward`, like all other arguments but:
        image_source: a callable is given ``None`` for the environment, one observation at a time.
    """

    def _enclose(
        self, env: VectorEnv[Any, Any, Any], source: ImageSource, arguments: dict[str, Any]
    ) -> None:
        super()._enclose(env, source, arguments)
        self._recorded = vector_has_recorder(env)
        self._recorded_in_parts = parts_have_recorders(env)
        self._unaware = np.zeros(env.num_envs, np.bool_)
        """Of the episodes that ended, those of which the sub-environment does not know."""

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes in all sub-environments, or where ``options["reset_mask"]`` says."""
        mask, observations, infos = self._reset(seed, options)
        self._unaware = self._unaware & ~mask
        self._begin(observations, mask)
        return self._observed(observations), infos

    def step(self, actions: Any) -> Step:
        """Step all sub-environments and score the pictures their transitions ended with.

        Raises:
            ConfigError: DISABLED mode, and an episode that ended was not reset; or SAME_STEP mode,
                and last pictures are overwritten by resets.
            InputError: a picture has a wrong shape, or SAME_STEP and no ``final_obs``.
            OutputError: the network returned NaN or infinity.
        """
        observations, env_rewards, terminations, truncations, infos = self._step(actions)
        terminations, truncations = np.array(terminations), np.array(truncations)
        env_rewards = np.array(env_rewards, np.float64)
        starting = np.zeros(self.num_envs, np.bool_)
        if self._mode is AutoresetMode.NEXT_STEP:
            starting = self._over
            if self._unaware.any():
                observations = self._reset_where(self._unaware, observations, infos)
                for values in (env_rewards, terminations, truncations):
                    values[self._unaware] = 0
        scored = ~starting
        ended = terminations | truncations
        last: Mapping[int, Any] = {}
        if self._mode is AutoresetMode.SAME_STEP:
            starting = ended
            last = self._finals(self._source, ended, observations, infos)
        probability, odds, first = self._look(observations, scored, starting, last)
        if self._mode is not AutoresetMode.SAME_STEP:
            self._core.begin(starting, first)
        guarded = self._guarded(observations, last)
        scores = self._core.transition(
            scored, probability, odds, env_rewards, terminations, guarded
        )
        self._unaware = scores.terminated & ~ended
        self._over = scores.terminated | (truncations & scored)
        if self._mode is AutoresetMode.SAME_STEP:
            counter = self._core.detector.counter
            self._core.begin(starting, first)
            if self._unaware.any():
                observations = self._restart_now(observations, infos)
            infos = self._report(infos, scores, scored, env_rewards)
            self._extend_final(infos, counter)
        else:
            infos = self._report(infos, scores, scored, env_rewards)
        return self._observed(observations), scores.rewards, scores.terminated, truncations, infos

    def close(self, **kwargs: Any) -> None:
        """Close the environments and free the network."""
        self._classifier.close()
        super().close(**kwargs)

    def _look(
        self,
        observations: Any,
        ends: NDArray[np.bool_],
        begins: NDArray[np.bool_],
        last: Mapping[int, Any],
    ) -> Found:
        begins = begins & self._core.needs_first_pictures
        frames = None
        if self._source.renders and (ends | begins).any():
            frames = self.env.render()
        return self._score(observations, ends, begins, last, frames)

    def _begin(self, observations: Any, mask: NDArray[np.bool_]) -> None:
        """Begin episodes where ``mask`` is True; ``observations`` are their first ones."""
        _, _, first = self._look(observations, np.zeros_like(mask), mask, {})
        self._core.begin(mask, first)

    def _reset_where(
        self, mask: NDArray[np.bool_], observations: Any, infos: dict[str, Any]
    ) -> Any:
        """Reset some sub-environments; return the observations with theirs, and put their infos."""
        fresh, fresh_infos = self.env.reset(options={"reset_mask": mask.copy()})
        rows, new = self._source.rows(observations), self._source.rows(fresh)
        for i in np.flatnonzero(mask).tolist():
            withdraw(infos, i)
            put(self, infos, row(fresh_infos, i), i)
            rows[i] = new[i]
        return joined(self.env.single_observation_space, rows)

    def _restart_now(self, observations: Any, infos: dict[str, Any]) -> Any:
        """SAME_STEP: move what is there to ``final_obs`` and ``final_info``, then reset."""
        mask = self._unaware
        space, last = self.env.single_observation_space, self._source.rows(observations)
        # Copied before the reset, which may write to the same memory.
        kept = {
            i: {"final_obs": copied(space, last[i]), "final_info": row(infos, i)}
            for i in np.flatnonzero(mask).tolist()
        }
        result = self._reset_where(mask, observations, infos)
        for i, final in kept.items():
            put(self, infos, final, i)
        self._begin(result, mask)
        self._unaware = np.zeros_like(mask)
        return result

    def _report(
        self,
        infos: dict[str, Any],
        scores: Scores,
        scored: NDArray[np.bool_],
        env_rewards: NDArray[np.float64],
    ) -> dict[str, Any]:
        infos = dict(infos)
        final = infos.get("final_info")
        places = [infos] if not isinstance(final, dict) else [infos, final]
        for place in places:
            keep_original(place, "is_success", self.num_envs)
        ours = {
            "is_success": scores.claimed,
            "reward_prob": scores.probability,
            "original_env_rew": np.where(scored, env_rewards, 0.0),
        }
        for key, values in ours.items():
            infos[key], infos[f"_{key}"] = values, scored.copy()
            if isinstance(final, dict):
                mask = self._over.copy()
                final[key], final[f"_{key}"] = np.where(mask, values, values.dtype.type(0)), mask
        if isinstance(final, dict) and "true_success" in final:
            if "true_success" in infos:  # not written to: it may be the environment's own memory
                infos["true_success"] = np.array(infos["true_success"])
            for i in np.flatnonzero(mask_of(final, "true_success", self._over)).tolist():
                put(self, infos, {"true_success": bool(final["true_success"][i])}, i)
        self._report_episodes(infos, scores)
        return infos

    def _report_episodes(self, infos: dict[str, Any], scores: Scores) -> None:
        """Write ``episode`` where a recorder inside writes it, and keep what it wrote."""
        final = infos.get("final_info")
        inner = final if isinstance(final, dict) else infos
        self._recorded |= keep_original(infos, "episode", self.num_envs)
        if inner is not infos:
            self._recorded_in_parts |= keep_original(inner, "episode", self.num_envs)
        places = [infos] if self._recorded else []
        if self._recorded_in_parts and (inner is not infos or not places):
            places.append(inner)
        for i in np.flatnonzero(self._over).tolist():
            for place in places:
                put(self, place, {"episode": scores.episode(i)}, i)

    def _extend_final(self, infos: dict[str, Any], counter: NDArray[np.int64]) -> None:
        if self._core.options.hold_in_observation and self._over.any():
            # New memory: a native vector environment may keep its own.
            last = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(self._over).tolist():
                last[i] = append_hold(np.asarray(infos["final_obs"][i]), counter[i])
            infos["final_obs"] = last
