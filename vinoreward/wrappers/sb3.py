"""LearnedReward and EncodedObservation for Stable-Baselines3, and a callback for its trainings.

``vinoreward`` has them as ``VecLearnedReward``, ``VecEncodedObservation`` and ``ClaimedVsTrue``.
This imports SB3.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, needed_for
from vinoreward.rewards.alarms import (
    TESTS,
    Alarm,
    Ended,
    OodImages,
    RateAlarm,
    TrustMonitor,
)
from vinoreward.wrappers.encoded import EncodedObservationBase
from vinoreward.wrappers.env_adapter import IMAGE, EnvAdapter, FinalObs, ImageInInfo
from vinoreward.wrappers.learned_reward import (
    RELABELS,
    LearnedRewardBase,
    append_hold,
    check_early_resets,
)
from vinoreward.wrappers.sources import EnvInfo, ImageSource, takes_render
from vinoreward.wrappers.true_success import Truth, claim_of

with needed_for("vinoreward.wrappers.sb3", "train"):
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper


__all__ = ["ClaimedVsTrue", "EncodedObservation", "LearnedReward"]

Infos = list[dict[str, Any]]
OnAlarm = Literal["tell", "stop"]


class SB3Adapter(EnvAdapter[VecEnv], VecEnvWrapper):
    """:class:`EnvAdapter` for Stable-Baselines3's vector environments."""

    _source: Any
    """What reads the images."""

    def _env_info(self, env: VecEnv) -> EnvInfo:
        known = env.has_attr("image_scene")
        scene = env.get_attr("image_scene", indices=[0])[0] if known else None
        return EnvInfo(env.observation_space, env.render_mode, scene, env.num_envs)

    def _init_wrapper(self, env: VecEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        learned = isinstance(self, LearnedReward)
        single = "vinoreward.LearnedReward" if learned else "vinoreward.EncodedObservation"
        if takes_render(source) and not (learned and all(env.env_is_wrapped(ImageInInfo))):
            raise ConfigError(
                "image_source is 'render' in a VecEnv, which resets an environment before it can "
                "be rendered, so that the frame shows the next episode. Expected the image in "
                "the observation (image_source='obs' or 'obs:<key>'), or "
                f"{'vinoreward.ImageInInfo or ' if learned else ''}{single} around each "
                "environment before it is vectorised (make_vec_env's wrapper_class)."
            )
        VecEnvWrapper.__init__(self, env)
        base = env.unwrapped
        self._final_obs = FinalObs(
            base.envs if isinstance(base, DummyVecEnv) else None,
            f"put {single} around each environment before it is vectorised",
        )
        self._all_envs = np.ones(env.num_envs, np.bool_)

    def _finals(self, dones: Any, observations: Any, infos: Infos) -> dict[int, Any]:
        """Return the ``terminal_observation`` of each environment that is done."""
        final = {i: infos[i].get("terminal_observation") for i in np.flatnonzero(dones).tolist()}
        how = "are done without infos[i]['terminal_observation']"
        return self._final_obs.checked(self._source, final, observations, how, infos[0])


def _rendered(infos: Infos) -> Any:
    """Stand for a vector environment whose environments have put their images into infos."""
    return SimpleNamespace(render=lambda: [info[IMAGE] for info in infos])


class EncodedObservation(EncodedObservationBase[VecEnv], SB3Adapter):
    """:class:`~vinoreward.EncodedObservation` for an SB3 ``VecEnv``, in batched calls.

    ``infos[i]["terminal_observation"]`` is encoded too, with the latents of the episode that ended.
    ``image_source="render"`` is refused: SB3 has reset an environment before it can be rendered.

    Arguments are those of :class:`~vinoreward.EncodedObservation`; a function as
    ``image_source`` is given ``None`` for the environment.
    """

    def reset(self) -> Any:
        """Start new episodes everywhere."""
        observations = self.venv.reset()
        self.reset_infos = self.venv.reset_infos
        self._model.advance(self.venv, observations, ~self._all_envs, self._all_envs)
        return self._model.observed(observations)

    def step_wait(self) -> Any:
        """Return SB3's ``(observations, rewards, dones, infos)`` of the step that was begun.

        Raises:
            ConfigError: final images are overwritten by resets.
            InputError: an image of a wrong shape or dtype, or no ``terminal_observation``.
        """
        observations, rewards, dones, env_infos = self.venv.step_wait()
        infos = [dict(info) for info in env_infos]
        self.reset_infos = self.venv.reset_infos
        final = self._finals(dones, observations, infos)
        seen = self._model.advance(self.venv, observations, self._all_envs, dones, final)
        for i, observation in seen.items():
            infos[i]["terminal_observation"] = observation
        return self._model.observed(observations), rewards, dones, infos


class LearnedReward(LearnedRewardBase[VecEnv], SB3Adapter):
    """:class:`~vinoreward.LearnedReward` for an SB3 ``VecEnv``, with one batched call per step.

    Where an episode ended, ``terminal_observation`` is scored. SB3 has reset an environment before
    it can be rendered, so ``image_source="render"`` needs :class:`~vinoreward.ImageInInfo` around
    each environment. An environment whose resets overwrite ``terminal_observation`` is refused once
    that is seen, but in a ``DummyVecEnv``, where it is copied.

    ``terminate_on_success``: a claimed success resets the sub-environment at once, as SB3 does at
    any end of an episode. So put this wrapper directly around a ``DummyVecEnv`` or
    ``SubprocVecEnv``, and others (``VecNormalize``, ``VecFrameStack``) around it.

    ``infos[i]["episode"]`` is there at the end of every episode, with or without a ``Monitor``.

    Arguments are those of :class:`~vinoreward.LearnedReward`, but ``image_source`` None means
    ``"obs"``, and a function is given ``None`` for the environment.
    """

    _default_source = "obs"
    _recorded = True

    def _init_wrapper(self, env: VecEnv, source: ImageSource, arguments: dict[str, Any]) -> None:
        if self._model.options.terminate_on_success:
            _check_restarts(env)
        super()._init_wrapper(env, source, arguments)

    def reset(self) -> Any:
        """Start new episodes everywhere."""
        observations = self.venv.reset()
        self.reset_infos = list(self.venv.reset_infos)
        self._restarted(observations, self._all_envs)
        return self._observed(observations)

    def step_wait(self) -> Any:
        """Return SB3's ``(observations, rewards, dones, infos)`` of the step that was begun.

        Raises:
            ConfigError: final images are overwritten by resets.
            InputError: an image of a wrong shape or dtype, or no ``terminal_observation``.
            OutputError: the network returned NaN or infinity.
        """
        observations, env_rewards, dones, env_infos = self.venv.step_wait()
        dones, infos = np.array(dones, np.bool_), [dict(info) for info in env_infos]
        # A claim's reset is not among those that the inner environment knows of.
        for i in np.flatnonzero(dones).tolist():
            self.reset_infos[i] = self.venv.reset_infos[i]
        final = self._finals(dones, observations, infos)
        truncated = [bool(info.get("TimeLimit.truncated", False)) for info in infos]
        with self._forget_on_error(dones, self._all_envs):
            scores = self._score(
                _rendered(infos),
                observations,
                self._all_envs,
                np.asarray(env_rewards, np.float64),
                dones & ~np.array(truncated, np.bool_),
                final,
            )
        counter = self._model.detector.counter
        if (scores.terminated & ~dones).any():
            observations = self._restart(scores.terminated & ~dones, observations, infos)
        ended = dones | scores.terminated
        for i, info in enumerate(infos):
            self._record(info, scores, i, env_rewards[i], ended=bool(ended[i]))
            if ended[i]:
                info["TimeLimit.truncated"] = not scores.terminated[i]
            if ended[i] and self._model.options.hold_in_observation:
                last = info["terminal_observation"]
                info["terminal_observation"] = append_hold(last, counter[i])
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

    def _restart(self, mask: NDArray[np.bool_], observations: Any, infos: Infos) -> Any:
        """Reset sub-environments whose episode a claimed success ended; return observations."""
        rows = self._info.rows(observations)
        for i in np.flatnonzero(mask).tolist():
            infos[i]["terminal_observation"] = copy.deepcopy(rows[i])
            rows[i], self.reset_infos[i] = self.venv.env_method("reset", indices=[i])[0]
        empty: Any = create_empty_array(self._info.space, n=len(rows))
        return concatenate(self._info.space, rows, empty)

    def _restarted(self, observations: Any, mask: NDArray[np.bool_]) -> None:
        """Start episodes where ``mask`` is True; ``observations`` has their first ones."""
        with self._forget_on_error(mask):
            self._begin(_rendered(self.reset_infos), observations, mask)


def _check_restarts(venv: VecEnv) -> None:
    """Raise ConfigError if an environment cannot be reset before its episode ends."""
    if isinstance(venv, VecEnvWrapper) or isinstance(getattr(venv, "batch", None), VectorEnv):
        raise ConfigError(
            f"terminate_on_success is set and the environment is a {type(venv).__name__}, in which "
            "one environment cannot be reset alone. Expected a DummyVecEnv or SubprocVecEnv, with "
            "other wrappers around VecLearnedReward; or set terminate_on_success=False; or put "
            "VectorLearnedReward into a batch."
        )
    for i, monitored in enumerate(venv.env_is_wrapped(Monitor)):
        if monitored:
            check_early_resets(venv.get_attr("allow_early_resets", indices=[i]))


class ClaimedVsTrue(BaseCallback):
    """Draw claimed and true success as two curves, wherever SB3 logs.

    It reads both from each episode's last ``info`` and logs ``rollout/claimed_success`` and
    ``rollout/true_success``, from 0 to 1, over the last ``window`` episodes, where they are known.
    Where the two part, the policy has found what fools the classifier. What
    :class:`~vinoreward.TrustMonitor` reads is under ``trust/``. Works with one environment and with
    many, on-policy and off-policy::

        record = ClaimedVsTrue()
        SAC("MlpPolicy", "PandaHover-v0", tensorboard_log="logs").learn(200, callback=record)
        print(record.rates(), record.episodes[-1])

    Args:
        truth_key: key of the truth in ``info``; None finds the usual ones, see
            :class:`~vinoreward.wrappers.true_success.Truth`.
        window: episodes behind a logged rate, at least 1.
        alarm: tests whether claims are still true successes; None: no test.
        ood_alarm: tests whether episodes that are out of distribution for the bundle's guard become
            too many, which needs no truth; None: no test.
        earliest: first step of an episode, from 1, at which a success is possible: tests whether
            claims come before; None: no test.
        on_alarm: ``"tell"`` warns at the first alarm of each test, ``"stop"`` ends the training.
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
        alarm: RateAlarm | None = None,
        ood_alarm: RateAlarm | None = None,
        earliest: int | None = None,
        on_alarm: OnAlarm = "tell",
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if on_alarm not in get_args(OnAlarm):
            raise ConfigError(f"on_alarm is {on_alarm!r}. Expected tell or stop.")
        self.on_alarm = on_alarm
        self.trust = TrustMonitor(false=alarm, ood=ood_alarm, earliest=earliest, window=window)
        self.raised: dict[str, list[int]] = {test: [] for test in TESTS}
        """Steps of the training at which each test raised its alarm."""
        self._ood: dict[int, OodImages] = {}
        self.window = window
        self.truth = Truth(truth_key)
        self.episodes: list[Mapping[str, float | int | None]] = []
        """One row per finished episode: ``step`` (of the training, at its end), ``reward`` (its
        return), ``length``, and 1 or 0 for ``claimed``, ``true`` and ``ood`` (a tenth of its images
        or more were out of distribution); None where not known."""
        self._said = False

    @property
    def alarm_count(self) -> int:
        """Alarms of all tests so far."""
        return sum(map(len, self.raised.values()))

    def rates(self) -> dict[str, float]:
        """Return ``claimed`` and ``true`` over the last ``window`` episodes, where known."""
        recent = self.episodes[-self.window :]
        known = {
            name: [value for row in recent if (value := row[name]) is not None]
            for name in ("claimed", "true")
        }
        return {name: float(np.mean(values)) for name, values in known.items() if values}

    def say(self, text: str) -> None:
        """Print where the truth is read from, if ``verbose``."""
        if self.verbose:
            print(text)

    def _on_step(self) -> bool:
        ended = []
        before = self.alarm_count
        for number, info in enumerate(self.locals["infos"]):
            self._ood.setdefault(number, OodImages()).add(info)
            if self.locals["dones"][number]:
                ended.append(info)
                self._note(info, self._ood.pop(number).many)
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

    def _note(self, info: Mapping[str, Any], ood: bool | None = None) -> None:
        claimed, true = claim_of(info), self.truth(info)
        if not self._said and self.truth.key != "true_success":
            self._said = True
            read = f"true success is read from info[{self.truth.key!r}]"
            self.say(self.truth.missing(info) if true is None else read)
        recorded = info.get("episode", {})
        length = int(recorded["l"]) if "l" in recorded else None
        reward = round(float(recorded["r"]), 6) if "r" in recorded else None
        flags = {"claimed": claimed, "true": true, "ood": ood}
        known = {name: None if flag is None else int(flag) for name, flag in flags.items()}
        row = {"step": self.num_timesteps, "reward": reward, "length": length, **known}
        self.episodes.append(row)
        self.tell(self.trust.add(Ended(claimed, true, ood, length)))


# As vinoreward names them.
VecEncodedObservation, VecLearnedReward = EncodedObservation, LearnedReward
