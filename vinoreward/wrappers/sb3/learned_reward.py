"""LearnedReward for Stable-Baselines3's vector environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward.rewards.core import Scores
from vinoreward.wrappers.layers import ImageSource, strict_monitor
from vinoreward.wrappers.rewarding import LearnedRewardBase, append_hold
from vinoreward.wrappers.sb3.common import (
    Monitor,
    SB3Form,
    VecEnv,
    VecEnvWrapper,
    copied_observation,
)


class VecLearnedReward(LearnedRewardBase[VecEnv], SB3Form):
    """:class:`~vinoreward.LearnedReward` for an SB3 ``VecEnv``, with one batched call per step.

    The picture that is scored is ``terminal_observation`` where an episode ended, because the
    observation that SB3 returns there belongs to the next episode. For the same reason
    ``image_source="render"`` is refused: SB3 has reset the environment before it can be rendered.
    An environment that returns one array again and again overwrites ``terminal_observation``: in a
    ``DummyVecEnv`` it is copied in time, elsewhere such an environment is refused as soon as that
    is seen.

    ``terminate_on_success``: on a claimed success the sub-environment is reset at once, as SB3 does
    it for any end of an episode. Therefore this wrapper goes directly around a ``DummyVecEnv`` or
    ``SubprocVecEnv``; others (``VecNormalize``, ``VecFrameStack``) go around it.

    ``infos[i]["episode"]`` at an episode's end has the return of the learned reward ``r``, the
    length ``l`` and its seconds ``t``, so that SB3's logs and ``evaluate_policy`` see every
    episode. What a ``Monitor`` inside wrote about the environment's own reward is kept as
    ``original_episode``.

    Args:
        env: the vector environment.
        bundle: as :class:`~vinoreward.LearnedReward`, like all other arguments but:
        image_source: None means ``"obs"``; a callable is given ``None`` for the environment, one
            observation at a time.
    """

    _default_source = "obs"
    _single = "LearnedReward"

    def _enclose(self, env: VecEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        if self._core.options.terminate_on_success:
            _check_restarts(env)
        super()._enclose(env, source, arguments)

    def reset(self) -> Any:
        """Start new episodes everywhere."""
        observations = self.venv.reset()
        self.reset_infos = list(self.venv.reset_infos)
        self._begin(observations, np.ones(self.num_envs, np.bool_))
        return self._observed(observations)

    def step_wait(self) -> Any:
        """Return SB3's ``(observations, rewards, dones, infos)`` of the step that was begun.

        Raises:
            ConfigError: last pictures are overwritten by resets.
            InputError: a picture of a wrong shape or dtype, or no ``terminal_observation``.
            OutputError: the network returned NaN or infinity.
        """
        observations, env_rewards, dones, found = self.venv.step_wait()
        dones = np.array(dones, np.bool_)
        infos = [dict(info) for info in found]
        self.reset_infos = list(self.venv.reset_infos)
        last = self._finals(self._source, dones, observations, infos)
        everyone = np.ones(self.num_envs, np.bool_)
        probability, odds, _ = self._score(observations, everyone, ~everyone, last)
        terminated = np.array(
            [
                bool(done and not info.get("TimeLimit.truncated", False))
                for done, info in zip(dones, infos, strict=True)
            ]
        )
        guarded = self._guarded(observations, last)
        scores = self._core.transition(
            everyone, probability, odds, np.asarray(env_rewards, np.float64), terminated, guarded
        )
        counter = self._core.detector.counter
        if (scores.terminated & ~dones).any():
            observations = self._restart(scores.terminated & ~dones, observations, infos)
        ended = dones | scores.terminated
        for i, info in enumerate(infos):
            if "is_success" in info:
                info["original_is_success"] = info["is_success"]
            info["is_success"] = bool(scores.claimed[i])
            info["reward_prob"] = float(scores.probability[i])
            info["original_env_rew"] = float(env_rewards[i])
            if ended[i]:
                self._end(info, i, scores, counter[i])
        if ended.any():
            self._begin(observations, ended)
        return self._observed(observations), scores.rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        """Close the environments and free the network."""
        self._classifier.close()
        self.venv.close()

    def _restart(
        self, mask: NDArray[np.bool_], observations: Any, infos: list[dict[str, Any]]
    ) -> Any:
        """Reset sub-environments that do not know that their episode is over."""
        rows, fresh = self._source.rows(observations), copied_observation(observations)
        for i in np.flatnonzero(mask).tolist():
            infos[i]["terminal_observation"] = copied_observation(rows[i])
            observation, self.reset_infos[i] = self.venv.env_method("reset", indices=[i])[0]
            if isinstance(fresh, dict):
                for key, batch in fresh.items():
                    batch[i] = observation[key]
            elif isinstance(fresh, tuple):
                for batch, part in zip(fresh, observation, strict=True):
                    batch[i] = part
            else:
                fresh[i] = observation
        return fresh

    def _end(self, info: dict[str, Any], i: int, scores: Scores, counter: np.int64) -> None:
        info["TimeLimit.truncated"] = not scores.terminated[i]
        if self._core.options.hold_in_observation:
            info["terminal_observation"] = append_hold(
                info["terminal_observation"], np.asarray(counter)
            )
        if "episode" in info:
            info["original_episode"] = info["episode"]
        info["episode"] = scores.episode(i)

    def _begin(self, observations: Any, mask: NDArray[np.bool_]) -> None:
        """Begin episodes where ``mask`` is True; ``observations`` are their first ones."""
        first = self._score(observations, np.zeros_like(mask), mask)[2]
        self._core.begin(mask, first)


def _check_restarts(venv: VecEnv) -> None:
    """Raise ConfigError where an environment cannot be reset before its episode ends."""
    if isinstance(venv, VecEnvWrapper):
        raise ConfigError(
            f"terminate_on_success is set and the environment is wrapped in {type(venv).__name__}, "
            "whose state and observations would be wrong when one environment is reset below it. "
            "Expected a DummyVecEnv or SubprocVecEnv; put the other wrappers around "
            "VecLearnedReward, or set terminate_on_success=False."
        )
    for i, monitored in enumerate(venv.env_is_wrapped(Monitor)):
        if monitored and not venv.get_attr("allow_early_resets", indices=[i])[0]:
            raise strict_monitor()
