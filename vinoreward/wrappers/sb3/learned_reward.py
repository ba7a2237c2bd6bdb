"""LearnedReward for Stable-Baselines3's vector environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
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
from vinoreward.wrappers.layers import strict_monitor
from vinoreward.wrappers.sb3.common import (
    Monitor,
    VecEnv,
    VecEnvWrapper,
    copied_observation,
    keep_last,
    lasts,
    refuse_render,
    rows_of,
    sb3_scene_of,
)
from vinoreward.wrappers.sources import ImageSource, PictureSource, check_scene


class VecLearnedReward(VecEnvWrapper):
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
        venv: the vector environment.
        bundle: as :class:`~vinoreward.LearnedReward`, like all other arguments but:
        image_source: ``"obs"`` by default; a callable is given ``None`` for the environment, one
            observation at a time.
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
        image_source: ImageSource = "obs",
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
        _check(venv, image_source, terminate_on_success)
        classifier = make_classifier(
            bundle, backend, device, precision, threads, success_threshold, reward_mode
        )
        space = venv.observation_space
        self._core = RewardCore(classifier, options, venv.num_envs)
        self._source = PictureSource(image_source, space, venv.render_mode, classifier.bundle)
        if not self._source.calls:
            check_scene(sb3_scene_of(venv), classifier.bundle)
        shown = with_hold(space, success_hold_steps) if hold_in_observation else space
        super().__init__(venv, observation_space=shown)
        self._last = keep_last(venv, self._source, "LearnedReward")

    @property
    def classifier(self) -> Classifier:
        """What scores the pictures. It loads at the first one."""
        return self._core.classifier

    def reset(self) -> Any:
        """Start new episodes everywhere."""
        observations = self.venv.reset()
        self.reset_infos = list(self.venv.reset_infos)
        everyone = np.ones(self.num_envs, np.bool_)
        self._begin(everyone, rows_of(observations, self.num_envs))
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
        rows = rows_of(observations, self.num_envs)
        last = lasts(dones, infos, rows)
        if self._last is not None:
            self._last.check(dones, last, rows)
        everyone = np.ones(self.num_envs, np.bool_)
        probability, odds = self._core.look([self._source.picture(None, item) for item in last])
        terminated = np.array(
            [
                bool(done and not info.get("TimeLimit.truncated", False))
                for done, info in zip(dones, infos, strict=True)
            ]
        )
        scores = self._core.transition(
            everyone, probability, odds, np.asarray(env_rewards, np.float64), terminated, last
        )
        counter = self._core.detector.counter
        if (scores.terminated & ~dones).any():
            observations = self._restart(scores.terminated & ~dones, observations, infos, rows)
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
            self._begin(ended, rows_of(observations, self.num_envs))
        return self._observed(observations), scores.rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        """Close the environments and free the network."""
        self._core.classifier.close()
        self.venv.close()

    def _restart(
        self, mask: NDArray[np.bool_], observations: Any, infos: list[dict[str, Any]], rows: Any
    ) -> Any:
        """Reset sub-environments that do not know that their episode is over."""
        fresh = copied_observation(observations)
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

    def _begin(self, mask: NDArray[np.bool_], rows: list[Any]) -> None:
        first = np.zeros(self.num_envs, np.float32)
        if self._core.needs_first_pictures:
            chosen = np.flatnonzero(mask).tolist()
            pictures = [self._source.picture(None, rows[i]) for i in chosen]
            first[chosen] = self._core.look(pictures)[0]
        self._core.begin(mask, first)

    def _observed(self, observations: Any) -> Any:
        if not self._core.options.hold_in_observation:
            return observations
        return append_hold(observations, self._core.detector.counter)


def _check(venv: VecEnv, source: ImageSource, terminate: bool) -> None:
    refuse_render(source, "LearnedReward")
    if not terminate:
        return
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
