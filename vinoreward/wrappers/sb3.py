"""What trains with Stable-Baselines3: both wrappers for its vector environments, and a callback.

This module imports SB3. ``vinoreward`` has the wrappers as ``VecLearnedReward`` and
``VecEncodedObservation``, and the callback ``ClaimedVsTrue``.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError, needed_for
from vinoreward.rewards.alarms import FalseClaimAlarm, RateAlarm
from vinoreward.rewards.decision import Scores
from vinoreward.rewards.trust import TESTS, Alarm, Ended, OddPictures, TrustMonitor
from vinoreward.rewards.truth import Truth, claim_of
from vinoreward.wrappers.encoded import EncodedObservationBase, shown
from vinoreward.wrappers.learned_reward import (
    RELABELS,
    LearnedRewardBase,
    append_hold,
    strict_monitor,
)
from vinoreward.wrappers.render_once import PICTURE, LastPictures, PictureInInfo, own_last
from vinoreward.wrappers.sources import Form, ImageSource, Inside, PictureSource, takes_render
from vinoreward.wrappers.views import ViewSource

with needed_for("vinoreward.wrappers.sb3", "train"):
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper


__all__ = ["ClaimedVsTrue", "EncodedObservation", "LearnedReward"]


class SB3Form(Form[VecEnv], VecEnvWrapper):
    """:class:`Form` for Stable-Baselines3's vector environments."""

    _single: ClassVar[str]
    """Name of the wrapper for one environment, which can render."""
    _takes_rendered: ClassVar[bool] = False
    """Whether pictures that the environments rendered themselves can be read from ``infos``."""

    def _inside(self, env: VecEnv) -> Inside:
        known = env.has_attr("picture_scene")
        scene = env.get_attr("picture_scene", indices=[0])[0] if known else None
        return Inside(env.observation_space, env.render_mode, scene, env.num_envs)

    def _enclose(self, env: VecEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        if takes_render(source) and not (self._takes_rendered and _rendered_in_time(env)):
            rendered = "vinoreward.PictureInInfo or " if self._takes_rendered else ""
            raise ConfigError(
                "image_source is 'render' in a VecEnv, which resets an environment before it can "
                "be rendered, so that the frame shows the next episode. Expected the picture in "
                "the observation (image_source='obs' or 'obs:<key>'), or "
                f"{rendered}vinoreward.{self._single} around each environment before it is "
                "vectorised (make_vec_env's wrapper_class)."
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


def _rendered_in_time(env: VecEnv) -> bool:
    """Return whether each environment renders before it is reset."""
    return all(env.env_is_wrapped(PictureInInfo))


class _Rendered:
    """Stands for a vector environment whose environments have put their pictures into infos."""

    def __init__(self, infos: Sequence[Mapping[str, Any]]) -> None:
        self._infos = infos

    def render(self) -> list[Any]:
        """Return each environment's picture."""
        return [info[PICTURE] for info in self._infos]


def _with_rows(observations: Any, rows: Mapping[int, Any]) -> Any:
    """Return a copy of a batch of observations with these at their places."""
    fresh = copy.deepcopy(observations)
    for i, observation in rows.items():
        if isinstance(fresh, dict):
            for key, batch in fresh.items():
                batch[i] = observation[key]
        elif isinstance(fresh, tuple):
            for batch, part in zip(fresh, observation, strict=True):
                batch[i] = part
        else:
            fresh[i] = observation
    return fresh


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
    there belongs to the next episode. SB3 has reset an environment before it can be rendered, so
    ``image_source="render"`` needs :class:`~vinoreward.PictureInInfo` around each environment. An
    environment that returns the same array every time overwrites ``terminal_observation``: a
    ``DummyVecEnv``'s is copied in time, elsewhere such an environment is refused once that is seen.

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
    _takes_rendered = True

    def _enclose(self, env: VecEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        if self._model.options.terminate_on_success:
            _check_restarts(env)
        super()._enclose(env, source, arguments)
        self._all = np.ones(env.num_envs, np.bool_)

    def reset(self) -> Any:
        """Start new episodes everywhere."""
        observations = self.venv.reset()
        self.reset_infos = list(self.venv.reset_infos)
        self._restarted(observations, self._all)
        return self._observed(observations)

    def step_wait(self) -> Any:
        """Return SB3's ``(observations, rewards, dones, infos)`` of the step that was begun.

        Raises:
            ConfigError: last pictures are overwritten by resets.
            InputError: a picture of a wrong shape or dtype, or no ``terminal_observation``.
            OutputError: the network returned NaN or infinity.
        """
        observations, env_rewards, dones, env_infos = self.venv.step_wait()
        dones, infos = np.array(dones, np.bool_), [dict(info) for info in env_infos]
        # A claim's reset is not among those that the inner environment knows of.
        for i in np.flatnonzero(dones).tolist():
            self.reset_infos[i] = self.venv.reset_infos[i]
        final = self._finals(self._source, dones, observations, infos)
        truncated = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
        with self._forget_on_error(dones, self._all):
            scores = self._score(
                _Rendered(infos),
                observations,
                self._all,
                np.asarray(env_rewards, np.float64),
                dones & ~np.array(truncated, np.bool_),
                final,
            )
        counter = self._model.hold_counter
        if (scores.terminated & ~dones).any():
            observations = self._restart(scores.terminated & ~dones, observations, infos)
        ended = dones | scores.terminated
        for i, info in enumerate(infos):
            self._record(info, scores, i, env_rewards[i])
            if ended[i]:
                self._end(info, i, scores, counter[i])
        if ended.any():
            self._restarted(observations, ended)
        return self._observed(observations), scores.rewards.astype(np.float32), ended, infos

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of environments; ConfigError for ``compute_reward``, also by its name."""
        if RELABELS in (method_name, *(arg for arg in method_args if isinstance(arg, str))):
            self.compute_reward()
        return super().env_method(method_name, *method_args, indices=indices, **method_kwargs)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of environments; ConfigError for ``compute_reward``."""
        if attr_name == RELABELS:
            self.compute_reward()
        return super().get_attr(attr_name, indices)

    def _restart(
        self, mask: NDArray[np.bool_], observations: Any, infos: list[dict[str, Any]]
    ) -> Any:
        """Reset sub-environments whose episode a claimed success ended."""
        rows, fresh = self._source.rows(observations), {}
        for i in np.flatnonzero(mask).tolist():
            infos[i]["terminal_observation"] = copy.deepcopy(rows[i])
            fresh[i], self.reset_infos[i] = self.venv.env_method("reset", indices=[i])[0]
        return _with_rows(observations, fresh)

    def _end(self, info: dict[str, Any], i: int, scores: Scores, counter: np.int64) -> None:
        info["TimeLimit.truncated"] = not scores.terminated[i]
        if self._model.options.hold_in_observation:
            info["terminal_observation"] = append_hold(
                info["terminal_observation"], np.asarray(counter)
            )
        if "episode" in info:
            info["original_episode"] = info["episode"]
        info["episode"] = scores.episode(i)

    def _restarted(self, observations: Any, mask: NDArray[np.bool_]) -> None:
        """Start episodes where ``mask`` is True; ``observations`` has their first ones."""
        with self._forget_on_error(mask):
            self._begin(_Rendered(self.reset_infos), observations, mask)


def _check_restarts(venv: VecEnv) -> None:
    """Raise ConfigError if an environment cannot be reset before its episode ends."""
    if isinstance(venv, VecEnvWrapper):
        raise ConfigError(
            f"terminate_on_success is set and the environment is wrapped in {type(venv).__name__}, "
            "whose state and observations would be wrong when one environment is reset below it. "
            "Expected a DummyVecEnv or SubprocVecEnv; put the other wrappers around "
            "VecLearnedReward, or set terminate_on_success=False."
        )
    if isinstance(getattr(venv, "batch", None), VectorEnv):
        raise ConfigError(
            f"terminate_on_success is set and the environment is a {type(venv).__name__}, which "
            "resets its environments itself. Expected a DummyVecEnv or SubprocVecEnv, or "
            "terminate_on_success=False; or put VectorLearnedReward into it."
        )
    for i, monitored in enumerate(venv.env_is_wrapped(Monitor)):
        if monitored and not venv.get_attr("allow_early_resets", indices=[i])[0]:
            raise strict_monitor()


def claimed_picture(env: VecEnv, index: int) -> NDArray[np.uint8] | None:
    """Return the picture of an environment's last claim, ``(H, W, 3)`` RGB; None without any.

    It may be that of an earlier episode if the last one claimed nothing.
    """
    layer = env
    while isinstance(layer, VecEnvWrapper):
        if isinstance(layer, LearnedReward):
            return layer.claimed_picture(index)
        layer = layer.venv
    if not env.has_attr("claimed_picture"):
        return None
    picture: NDArray[np.uint8] | None = env.env_method("claimed_picture", indices=[index])[0]
    return picture


OnAlarm = Literal["tell", "stop"]


class ClaimedVsTrue(BaseCallback):
    """Draw claimed and true success as two curves, wherever SB3 logs.

    At the end of each training episode it reads both from the last step's ``info``, and logs
    ``rollout/claimed_success`` and ``rollout/true_success``, from 0 to 1, over the last ``window``
    episodes. Where the two part, the policy has found what fools the classifier. A curve is missing
    where its side is not known: the claim without a learned reward, the truth where the environment
    does not tell. The truth is only recorded, the policy never sees it. The rates and the evidence
    of the alarms' tests are under ``trust/``, see :class:`~vinoreward.TrustMonitor`.

    Works with one environment and with many, on-policy and off-policy::

        from stable_baselines3 import SAC
        from vinoreward import ClaimedVsTrue

        record = ClaimedVsTrue()
        SAC("MlpPolicy", "PandaHover-v0", tensorboard_log="logs").learn(200, callback=record)
        print(record.rates(), record.episodes[-1])

    Args:
        truth_key: key of the truth in ``info``; None finds the usual ones, see
            :class:`~vinoreward.rewards.truth.Truth`.
        window: episodes behind a logged rate, at least 1.
        alarm: tests whether claims are still true successes; None: no test.
        odd_alarm: tests whether episodes of which a tenth or more is odd to the bundle's guard
            become too many, which needs no truth; None: no test.
        earliest: tests whether claims come before this step of an episode, from 1, where no success
            is possible yet; needs lengths of episodes. None: no test.
        on_alarm: ``"tell"`` warns at the first alarm of each, ``"stop"`` ends the training at any.
        verbose: 1 prints once where the truth is read from, or that it is not known.

    Raises:
        ConfigError: a window below 1, or another ``on_alarm``; while training, a named key that is
            not there.
    """

    def __init__(
        self,
        truth_key: str | None = None,
        *,
        window: int = 50,
        alarm: FalseClaimAlarm | None = None,
        odd_alarm: RateAlarm | None = None,
        earliest: int | None = None,
        on_alarm: OnAlarm = "tell",
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if on_alarm not in get_args(OnAlarm):
            raise ConfigError(f"on_alarm is {on_alarm!r}. Expected tell or stop.")
        self.on_alarm = on_alarm
        self.trust = TrustMonitor(false=alarm, odd=odd_alarm, earliest=earliest, window=window)
        """What tests the episodes."""
        self.raised: dict[str, list[int]] = {test: [] for test in TESTS}
        """Steps of the training at which each test raised its alarm."""
        self._odd: dict[int, OddPictures] = {}
        self.window = window
        self.truth = Truth(truth_key)
        """Reads the truth; its ``key`` is the one in use."""
        self.episodes: list[Mapping[str, float | int | None]] = []
        """One row per finished episode: ``step`` (of the training, at its end), ``reward`` (its
        return) and ``length`` (None without a ``Monitor`` or a learned reward), ``claimed`` and
        ``true``, and ``odd``: whether a tenth of its pictures or more were odd to the guard (1, 0,
        or None where not known)."""
        self._said = False

    @property
    def alarms(self) -> list[int]:
        """Steps of the training at which the alarm of false claims was raised."""
        return self.raised["false"]

    @property
    def odd_alarms(self) -> list[int]:
        """Those at which the alarm of odd pictures was raised."""
        return self.raised["odd"]

    @property
    def alarm_count(self) -> int:
        """Alarms of all tests so far."""
        return sum(map(len, self.raised.values()))

    def rates(self) -> dict[str, float]:
        """Return ``claimed`` and ``true`` over the last ``window`` episodes, where known."""
        found: dict[str, float] = {}
        for name in ("claimed", "true"):
            recent = [row[name] for row in self.episodes[-self.window :]]
            known = [value for value in recent if value is not None]
            if known:
                found[name] = float(np.mean(known))
        return found

    def say(self, text: str) -> None:
        """Print where the truth is read from, if ``verbose``."""
        if self.verbose:
            print(text)

    def _on_step(self) -> bool:
        ended = []
        before = self.alarm_count
        for number, info in enumerate(self.locals["infos"]):
            self._odd.setdefault(number, OddPictures()).add(info)
            if self.locals["dones"][number]:
                ended.append(info)
                self._note(info, self._odd.pop(number).many)
        if ended:
            for name, value in self.rates().items():
                self.logger.record(f"rollout/{name}_success", value)
            for name, value in self.trust.readings().items():
                self.logger.record(f"trust/{name}", value)
        return self.on_alarm == "tell" or self.alarm_count == before

    def warn(self, text: str) -> None:
        """Tell of an alarm."""
        warnings.warn(text, UserWarning, stacklevel=2)

    def tell(self, alarms: Sequence[Alarm]) -> None:
        """Note alarms; tell of the first of each test."""
        for alarm in alarms:
            self.raised[alarm.test].append(self.num_timesteps)
            if alarm.first:
                self.warn(f"alarm at step {self.num_timesteps}: {alarm.text}.")

    def _note(self, info: Mapping[str, Any], odd: bool | None = None) -> None:
        claimed, true = claim_of(info), self.truth(info)
        if not self._said and self.truth.key != "true_success":
            self._said = True
            read = f"true success is read from info[{self.truth.key!r}]"
            self.say(self.truth.missing(info) if true is None else read)
        recorded = info.get("episode", {})
        length = int(recorded["l"]) if "l" in recorded else None
        self.episodes.append(
            {
                "step": self.num_timesteps,
                "reward": round(float(recorded["r"]), 6) if "r" in recorded else None,
                "length": length,
                "claimed": None if claimed is None else int(claimed),
                "true": None if true is None else int(true),
                "odd": None if odd is None else int(odd),
            }
        )
        self.tell(self.trust.add(Ended(claimed, true, odd, length)))


# As vinoreward names them.
VecEncodedObservation, VecLearnedReward = EncodedObservation, LearnedReward
