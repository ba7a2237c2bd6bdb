"""Claimed and true success side by side, for Stable-Baselines3. Importing this imports SB3."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from vinoreward.errors import ConfigError, needed_for
from vinoreward.rewards.alarms import (
    TESTS,
    Alarm,
    Ended,
    OodImages,
    RateAlarm,
    TrustMonitor,
)
from vinoreward.wrappers.true_success import Truth, claim_of

with needed_for("vinoreward.wrappers.sb3_callback", "train"):
    from stable_baselines3.common.callbacks import BaseCallback

OnAlarm = Literal["tell", "stop"]


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
