"""LearnedReward for Gymnasium's vector environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.detector import Guard
from vinoreward.wrappers.core import (
    RewardCore,
    RewardMode,
    RewardOptions,
    Scores,
    append_hold,
    make_classifier,
    with_hold,
)
from vinoreward.wrappers.last_pictures import keep_last
from vinoreward.wrappers.layers import parts_have_recorders, vector_has_recorder
from vinoreward.wrappers.render_once import vector_render_once
from vinoreward.wrappers.sources import ImageSource, PictureSource, check_scene
from vinoreward.wrappers.vector.checks import check_was_reset, checked_mode, scene_of
from vinoreward.wrappers.vector.info import (
    copied,
    finals,
    joined,
    keep_original,
    mask_of,
    put,
    row,
    withdraw,
)

Step = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class VectorLearnedReward(VectorWrapper[Any, Any, Any, Any, NDArray[Any]]):
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

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        bundle: Bundle | str | Path,
        *,
        backend: str = "openvino",
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
        image_source: ImageSource = "render",
        success_reward: float = 1.0,
        step_reward: float = 0.0,
        env_reward_weight: float = 0.0,
        reward_mode: RewardMode = "sparse",
        success_threshold: float | None = None,
        success_hold_steps: int = 1,
        guard: Guard | None = None,
        terminate_on_success: bool = True,
        gamma: float = 0.99,
        hold_in_observation: bool = False,
    ) -> None:
        options = RewardOptions(
            success_reward=success_reward,
            step_reward=step_reward,
            env_reward_weight=env_reward_weight,
            reward_mode=reward_mode,
            success_hold_steps=success_hold_steps,
            guard=guard,
            terminate_on_success=terminate_on_success,
            gamma=gamma,
            hold_in_observation=hold_in_observation,
        )
        super().__init__(vector_render_once(env) if image_source == "render" else env)
        self._mode = checked_mode(env, image_source, terminate_on_success)
        classifier = make_classifier(
            bundle, backend, device, precision, threads, success_threshold, reward_mode
        )
        self._core = RewardCore(classifier, options, env.num_envs)
        single = env.single_observation_space
        self._source = PictureSource(image_source, single, env.render_mode, classifier.bundle)
        if not self._source.calls:
            check_scene(scene_of(env), classifier.bundle)
        if hold_in_observation:
            self.single_observation_space = with_hold(single, success_hold_steps)
            self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self._last = keep_last(env, self._source)
        self._recorded = vector_has_recorder(env)
        self._recorded_in_parts = parts_have_recorders(env)
        nobody = np.zeros(env.num_envs, np.bool_)
        self._over = nobody
        """Episodes that ended with the last step, to the caller."""
        self._unaware = nobody
        """Those of them that the sub-environment does not know to have ended."""

    @property
    def classifier(self) -> Classifier:
        """What scores the pictures. It loads at the first one."""
        return self._core.classifier

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes in all sub-environments, or where ``options["reset_mask"]`` says."""
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = np.asarray(options["reset_mask"], np.bool_).copy()
        # Copied, because Gymnasium takes the mask out of the dictionary it is given.
        given = None if options is None else dict(options)
        observations, infos = self.env.reset(seed=seed, options=given)  # type: ignore[arg-type]
        self._over = self._over & ~mask
        self._unaware = self._unaware & ~mask
        rows = list(iterate(self.env.observation_space, observations))
        self._look(rows, np.zeros_like(mask), rows, mask)
        return self._observed(observations), infos

    def step(self, actions: Any) -> Step:
        """Step all sub-environments and score the pictures their transitions ended with.

        Raises:
            ConfigError: DISABLED mode, and an episode that ended was not reset; or SAME_STEP mode,
                and last pictures are overwritten by resets.
            InputError: a picture has a wrong shape, or SAME_STEP and no ``final_obs``.
            OutputError: the network returned NaN or infinity.
        """
        check_was_reset(self._mode, self._over)
        observations, env_rewards, terminations, truncations, infos = self.env.step(actions)
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
        rows = list(iterate(self.env.observation_space, observations))
        ended = terminations | truncations
        last = rows
        if self._mode is AutoresetMode.SAME_STEP:
            starting = ended
            found = finals(self.env, ended, infos)
            last = [found.get(i, item) for i, item in enumerate(rows)]
            if self._last is not None:
                self._last.check(ended, last, rows)
        probability, odds, first = self._score(last, scored, rows, starting)
        if self._mode is not AutoresetMode.SAME_STEP:
            self._core.begin(starting, first)
        scores = self._core.transition(scored, probability, odds, env_rewards, terminations, last)
        self._unaware = scores.terminated & ~ended
        self._over = scores.terminated | (truncations & scored)
        if self._mode is AutoresetMode.SAME_STEP:
            counter = self._core.detector.counter
            self._core.begin(starting, first)
            if self._unaware.any():
                observations = self._restart_now(last, observations, infos)
            infos = self._report(infos, scores, scored, env_rewards)
            self._extend_final(infos, counter)
        else:
            infos = self._report(infos, scores, scored, env_rewards)
        return self._observed(observations), scores.rewards, scores.terminated, truncations, infos

    def close(self, **kwargs: Any) -> None:
        """Close the environments and free the network."""
        self._core.classifier.close()
        super().close(**kwargs)

    def _look(
        self, last: list[Any], scored: NDArray[np.bool_], rows: list[Any], start: NDArray[np.bool_]
    ) -> None:
        """Begin episodes where ``start`` is True."""
        _, _, first = self._score(last, scored, rows, start)
        self._core.begin(start, first)

    def _score(
        self, last: list[Any], scored: NDArray[np.bool_], rows: list[Any], start: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Score last and first pictures in one call; return two for ``last``, one for ``rows``."""
        ends = np.flatnonzero(scored).tolist()
        begins = np.flatnonzero(start).tolist() if self._core.needs_first_pictures else []
        frames: Any = None
        if self._source.renders and (ends or begins):
            frames = self.env.render()
        pictures = [
            self._source.picture(None, rows_[i], None if frames is None else frames[i])
            for rows_, chosen in ((last, ends), (rows, begins))
            for i in chosen
        ]
        found, odds = self._core.look(pictures)
        results = np.zeros((3, self.num_envs), np.float32)
        results[0, ends], results[1, ends] = found[: len(ends)], odds[: len(ends)]
        results[2, begins] = found[len(ends) :]
        return results[0], results[1], results[2]

    def _reset_where(
        self, mask: NDArray[np.bool_], observations: Any, infos: dict[str, Any]
    ) -> Any:
        """Reset some sub-environments; return the observations with theirs, and put their infos."""
        fresh, fresh_infos = self.env.reset(options={"reset_mask": mask.copy()})
        rows = list(iterate(self.env.observation_space, observations))
        new = list(iterate(self.env.observation_space, fresh))
        for i in np.flatnonzero(mask).tolist():
            withdraw(infos, i)
            put(self, infos, row(fresh_infos, i), i)
            rows[i] = new[i]
        return joined(self.env.single_observation_space, rows)

    def _restart_now(self, last: list[Any], observations: Any, infos: dict[str, Any]) -> Any:
        """SAME_STEP: move what is there to ``final_obs`` and ``final_info``, then reset."""
        mask = self._unaware
        space = self.env.single_observation_space
        # Copied before the reset, which may write to the same memory.
        kept = {
            i: {"final_obs": copied(space, last[i]), "final_info": row(infos, i)}
            for i in np.flatnonzero(mask).tolist()
        }
        result = self._reset_where(mask, observations, infos)
        for i, final in kept.items():
            put(self, infos, final, i)
        if self._core.needs_first_pictures:
            self._look(
                [], np.zeros_like(mask), list(iterate(self.env.observation_space, result)), mask
            )
        else:
            self._core.begin(mask, np.zeros(self.num_envs, np.float32))
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

    def _observed(self, observations: Any) -> Any:
        if not self._core.options.hold_in_observation:
            return observations
        return append_hold(observations, self._core.detector.counter)
