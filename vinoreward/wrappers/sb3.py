"""LearnedReward and EncodedObservation for Stable-Baselines3's vector environments. Imports SB3.

``vinoreward`` has them as ``VecLearnedReward`` and ``VecEncodedObservation``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError, needed_for
from vinoreward.rewards.success import Scores
from vinoreward.wrappers.encoded import EncodedObservationBase, shown
from vinoreward.wrappers.learned_reward import LearnedRewardBase, append_hold, strict_monitor
from vinoreward.wrappers.render_once import LastPictures, own_last
from vinoreward.wrappers.sources import Form, ImageSource, Inside, PictureSource, takes_render
from vinoreward.wrappers.views import ViewSource

with needed_for("vinoreward.wrappers.sb3", "train"):
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper


__all__ = ["EncodedObservation", "LearnedReward"]


class SB3Form(Form[VecEnv], VecEnvWrapper):
    """:class:`Form` for Stable-Baselines3's vector environments."""

    _single: ClassVar[str]
    """Name of the wrapper for one environment, which can render."""

    def _inside(self, env: VecEnv) -> Inside:
        known = env.has_attr("picture_scene")
        scene = env.get_attr("picture_scene", indices=[0])[0] if known else None
        return Inside(env.observation_space, env.render_mode, scene, env.num_envs)

    def _enclose(self, env: VecEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        if takes_render(source):
            raise ConfigError(
                "image_source is 'render' in a VecEnv, which resets an environment before it can "
                "be rendered, so that the frame shows the next episode. Expected the picture in "
                "the observation (image_source='obs' or 'obs:<key>'), or "
                f"vinoreward.{self._single} around each environment before it is vectorised "
                "(make_vec_env's wrapper_class)."
            )
        VecEnvWrapper.__init__(self, env)
        self._last: LastPictures | None = None
        base = env.unwrapped
        if isinstance(base, DummyVecEnv):
            own_last(base.envs)
        else:
            self._last = LastPictures(
                f"put vinoreward.{self._single} around each environment before it is vectorised"
            )

    def _show(self, space: gym.Space[Any]) -> None:
        self.observation_space = space

    def _finals(
        self,
        source: PictureSource | ViewSource,
        dones: NDArray[np.bool_],
        observations: Any,
        infos: Sequence[Mapping[str, Any]],
    ) -> dict[int, Any]:
        """Return the ``terminal_observation`` of each environment that is done."""
        last = {i: infos[i].get("terminal_observation") for i in np.flatnonzero(dones).tolist()}
        missing = [i for i, observation in last.items() if observation is None]
        if missing:
            raise InputError(
                f"the environments {missing} are done without infos[i]['terminal_observation'], "
                f"only {', '.join(infos[missing[0]]) or 'nothing'}. Expected their last "
                "observations there, as SB3's vector environments give them; without them the "
                "picture that an episode ended with is lost."
            )
        if self._last is not None:
            self._last.check(source, last, observations)
        return last


class EncodedObservation(EncodedObservationBase[VecEnv], SB3Form):
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
        _, newest = self._core.advance(self.venv, observations, [], everyone)
        self._put(everyone, newest, self.reset_infos)
        return self._core.observed(observations)

    def step_wait(self) -> Any:
        """Return SB3's ``(observations, rewards, dones, infos)`` of the step that was begun.

        Raises:
            ConfigError: last pictures are overwritten by resets.
            InputError: a picture of a wrong shape or dtype, or no ``terminal_observation``.
        """
        observations, rewards, dones, env_infos = self.venv.step_wait()
        infos = [dict(info) for info in env_infos]
        self.reset_infos = [dict(info) for info in self.venv.reset_infos]
        last = self._finals(self._core.source, dones, observations, infos)
        everyone = list(range(self.num_envs))
        final, newest = self._core.advance(self.venv, observations, everyone, list(last), last)
        for i, observation in final.items():
            infos[i]["terminal_observation"] = observation
        self._put(everyone, newest[: self.num_envs], infos)
        self._put(list(last), newest[self.num_envs :], self.reset_infos)
        return self._core.observed(observations), rewards, dones, infos

    def _put(
        self, indices: list[int], pictures: NDArray[np.uint8], infos: list[dict[str, Any]]
    ) -> None:
        if self._core.options.picture_in_info:
            for i, picture in zip(indices, pictures, strict=True):
                infos[i]["picture"] = shown(picture)


class LearnedReward(LearnedRewardBase[VecEnv], SB3Form):
    """:class:`~vinoreward.LearnedReward` for an SB3 ``VecEnv``, with one batched call per step.

    Where an episode ended, ``terminal_observation`` is scored: the observation that SB3 returns
    there belongs to the next episode. ``image_source="render"`` is refused, because SB3 has reset
    the environment before it can be rendered. An environment that returns the same array every time
    overwrites ``terminal_observation``: a ``DummyVecEnv``'s is copied in time, elsewhere such an
    environment is refused once that is seen.

    ``terminate_on_success``: a claimed success resets the sub-environment at once, as SB3 does at
    any end of an episode. So put this wrapper directly around a ``DummyVecEnv`` or
    ``SubprocVecEnv``, and others (``VecNormalize``, ``VecFrameStack``) around it.

    ``infos[i]["episode"]`` at an episode's end has the learned reward's return ``r``, the length
    ``l`` and the seconds ``t``, so that SB3's logs and ``evaluate_policy`` see every episode. The
    entry of a ``Monitor`` inside moves to ``original_episode``.

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
        observations, env_rewards, dones, env_infos = self.venv.step_wait()
        dones = np.array(dones, np.bool_)
        infos = [dict(info) for info in env_infos]
        self.reset_infos = list(self.venv.reset_infos)
        last = self._finals(self._source, dones, observations, infos)
        everyone = np.ones(self.num_envs, np.bool_)
        probability, odds, _ = self._score(self.venv, observations, everyone, ~everyone, last)
        truncated = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
        terminated = dones & ~np.array(truncated, np.bool_)
        guarded = self._guarded(observations, last)
        scores = self._core.transition(
            everyone, probability, odds, np.asarray(env_rewards, np.float64), terminated, guarded
        )
        counter = self._core.detector.counter
        if (scores.terminated & ~dones).any():
            observations = self._restart(scores.terminated & ~dones, observations, infos)
        ended = dones | scores.terminated
        for i, info in enumerate(infos):
            self._record(info, scores, i, env_rewards[i])
            if ended[i]:
                self._end(info, i, scores, counter[i])
        if ended.any():
            self._begin(observations, ended)
        return self._observed(observations), scores.rewards.astype(np.float32), ended, infos

    def _restart(
        self, mask: NDArray[np.bool_], observations: Any, infos: list[dict[str, Any]]
    ) -> Any:
        """Reset sub-environments whose episode a claimed success ended."""
        rows, fresh = self._source.rows(observations), copy.deepcopy(observations)
        for i in np.flatnonzero(mask).tolist():
            infos[i]["terminal_observation"] = copy.deepcopy(rows[i])
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
        first = self._score(self.venv, observations, np.zeros_like(mask), mask)[2]
        self._core.begin(mask, first)


def _check_restarts(venv: VecEnv) -> None:
    """Raise ConfigError if an environment cannot be reset before its episode ends."""
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


# As vinoreward names them.
VecEncodedObservation, VecLearnedReward = EncodedObservation, LearnedReward
