"""The strategies: AcceRL's, and steps to a safer or cheaper compression by limits on readings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward_actors.monitoring.strategy import (
    PRECISIONS,
    CompressionSetting,
    Judge,
    Limit,
    Readings,
    Strategy,
)

STOP: Mapping[str, Any] = {"enabled": False}
EXPLORATION: Mapping[str, Any] = {"bits": 8, "sparsity": 0.75}
IMPROVING: Mapping[str, Any] = {"bits": 16, "sparsity": 0.25}
CONVERGENCE: Mapping[str, Any] = {"bits": 8, "sparsity": 0.5}
ERRORS = 4.0
"""Standard errors that count as significant: windows overlap, so a training has many tests."""


class Threshold(Strategy):
    """A ladder of safer settings: one rung up when a limit is passed, one down when all is well.

    A stopped compression gives no readings. It is retried after ``retry`` rounds, doubled each
    time it fails again.

    Args:
        limits: limits on the readings; passing any of them steps up.
        changes: the setting changes of each rung, such as ``{"bits": 16}``. Rungs that change
            nothing are skipped.
        patience: good rounds in a row before a step down.
        cooldown: rounds without a verdict after each step.
        retry: rounds without any reading before a step down from a stopped compression; None
            leaves it stopped.

    Raises:
        ConfigError: no rungs, an unknown field, or invalid numbers.
    """

    persistent = ("judge", "rung", "undo", "silent", "returned")

    def __init__(
        self,
        limits: Sequence[Limit],
        changes: Sequence[Mapping[str, Any]] = (STOP,),
        *,
        patience: int = 50,
        cooldown: int = 3,
        retry: int | None = 500,
    ) -> None:
        if not changes or (retry is not None and retry < 1):
            raise ConfigError(
                f"Threshold has {len(changes)} safer settings and retries after {retry} rounds. "
                "Expected at least one setting, and retry of at least 1 or None."
            )
        for change in changes:
            CompressionSetting().changed(change)
        self.judge = Judge(limits, patience=patience, cooldown=cooldown)
        self._changes = tuple(dict(change) for change in changes)
        self._retry = retry
        self.rung = self.silent = 0
        self.undo: list[dict[str, Any]] = []
        self.returned = False

    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """See :meth:`Strategy.decide`."""
        verdict = self.judge.verdict(readings)
        if verdict == "bad":
            return self._safer(setting)
        if verdict == "good":
            if self.undo:
                return self._back(setting, self.judge.reason)
            # A long good stretch cancels one relapse.
            self.returned = False
            self.judge.relapses = max(0, self.judge.relapses - 1)
        stopped = bool(self.undo) and not setting.enabled
        self.silent = self.silent + 1 if stopped and verdict == "absent" else 0
        if stopped and self._retry and self.silent >= self.judge.lengthened(self._retry):
            return self._back(setting, f"compression was stopped for {self.silent} rounds: retry")
        return setting

    def _safer(self, setting: CompressionSetting) -> CompressionSetting:
        while self.rung < len(self._changes):
            change = self._changes[self.rung]
            self.rung += 1
            if setting.changed(change) == setting:
                self.undo.append({})
                continue
            self.undo.append({name: getattr(setting, name) for name in change})
            relapsed, self.returned = self.returned, False
            self.judge.changed(relapsed=relapsed)
            self.reason = self.judge.reason
            return setting.changed(change)
        return setting

    def _back(self, setting: CompressionSetting, why: str) -> CompressionSetting:
        self.silent = 0
        self.judge.changed()
        self.returned = True
        before = setting
        # Past rungs that were skipped on the way up, on either side of the one that changes it.
        while self.undo and (setting == before or not self.undo[-1]):
            self.rung = max(0, self.rung - 1)
            setting = setting.changed(self.undo.pop())
        if setting != before:
            self.reason = why
        return setting

    def reads(self) -> tuple[str, ...]:
        """See :meth:`Strategy.reads`."""
        return tuple(limit.reading for limit in self.judge.limits)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Stateful.load_state`; a ladder with other rungs restarts at the bottom."""
        super().load_state(state)
        pairs = zip(self.undo, self._changes, strict=False)
        others = any(undo and set(undo) != set(change) for undo, change in pairs)
        if others or len(self.undo) > len(self._changes):
            # Earlier changes are still undone step by step on the way back.
            self.rung = 0


class SwitchPrecision(Threshold):
    """Fewer bits while all is well, more otherwise: AcceRL's 8 to 16 at a KL maximum of 14.

    Args:
        fast: precision while all is well: ``"int2"`` to ``"int8"``, ``"fp16"`` or ``"fp32"``.
        safe: precision otherwise.
        limits: limits on the readings; by default AcceRL's, on the largest KL(learner ||
            compressed).
        patience: as for :class:`Threshold`.
        cooldown: as for :class:`Threshold`.

    Raises:
        ConfigError: ``safe`` does not have more bits than ``fast``.
    """

    def __init__(
        self,
        fast: str = "int8",
        safe: str = "fp16",
        *,
        limits: Sequence[Limit] = (Limit("kl_pi_mu_max", bad=14.0, good=3.5),),
        patience: int = 50,
        cooldown: int = 3,
    ) -> None:
        for name in (fast, safe):
            if name not in PRECISIONS:
                raise ConfigError(f"got precision {name!r}. Expected fp32, fp16 or int2 to int8.")
        self._fast, safer = PRECISIONS[fast], PRECISIONS[safe]
        if self._fast is None or (safer is not None and safer <= self._fast):
            raise ConfigError(
                f"SwitchPrecision goes from {fast} to {safe}. Expected a safe precision with more "
                "bits."
            )
        super().__init__(limits, ({"bits": safer},), patience=patience, cooldown=cooldown)

    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """See :meth:`Strategy.decide`."""
        if not self.undo and setting.bits != self._fast:
            self.judge.changed()
            self.reason = "start with the fast precision"
            return setting.changed({"bits": self._fast})
        return super().decide(readings, setting)


class LinearAlpha(Strategy):
    """AcceRL's linear strategy: the further the compressed network is off, the less it acts.

    alpha falls linearly from 1 at ``low`` to ``least`` at ``high``.

    Args:
        low: up to this reading the compressed network always acts.
        high: from this reading on it acts with probability ``least``.
        reading: AcceRL uses the mean of KL(learner || compressed).
        least: alpha at ``high``. At 0 there are no compressed rows any more; only readings from a
            compressor's probe observations can then raise alpha again.
        step: smallest change of alpha; each change is a message to every actor.

    Raises:
        ConfigError: the numbers do not make a falling line.
    """

    def __init__(
        self,
        low: float,
        high: float,
        *,
        reading: str = "kl_pi_mu_mean",
        least: float = 0.05,
        step: float = 0.05,
    ) -> None:
        if not (0.0 <= low < high and 0.0 <= least < 1.0 and 0.0 <= step <= 0.5):
            raise ConfigError(
                f"alpha falls between readings {low} and {high} to {least} in steps of {step}. "
                "Expected 0 <= low < high, 0 <= least < 1 and a step of at most 0.5."
            )
        self._low, self._high, self._reading = low, high, reading
        self._least, self._step = least, step

    def alpha(self, value: float) -> float:
        """Return alpha for a reading."""
        part = min(1.0, max(0.0, (self._high - value) / (self._high - self._low)))
        return self._least + (1.0 - self._least) * part

    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """See :meth:`Strategy.decide`."""
        if self._reading not in readings:
            return setting
        value = readings[self._reading]
        alpha = self.alpha(value)
        at_an_end = alpha in (self._least, 1.0)
        if alpha == setting.alpha or (not at_an_end and abs(alpha - setting.alpha) < self._step):
            return setting
        self.reason = (
            f"{self._reading} is {value:.4g}, between {self._low:.4g} (always compressed) and "
            f"{self._high:.4g}"
        )
        return setting.changed({"alpha": alpha})

    def reads(self) -> tuple[str, ...]:
        """See :meth:`Strategy.reads`."""
        return (self._reading,)


def trend(values: Sequence[float]) -> tuple[float, float, float]:
    """Fit a line to at least 3 values; return its rise, the rise's error, and its first value."""
    count = len(values)
    times = np.arange(count) - 0.5 * (count - 1)
    seen = np.array(values)
    spread = float((times**2).sum())
    slope = float(times @ seen) / spread
    residuals = seen - seen.mean() - slope * times
    error = math.sqrt(float((residuals**2).sum()) / ((count - 2) * spread))
    return slope * (count - 1), error * (count - 1), float(seen.mean()) + slope * float(times[0])


class Staged(Strategy):
    """Smallest network before learning, larger while the return improves, smaller afterwards.

    Fits a line to the last readings of the return. Improving begins when it rises by four standard
    errors. Convergence begins after ``patience`` readings without such a rise. A later rise, or a
    fall of that size, goes back to improving. Exploration never returns.

    Args:
        exploration: setting changes for that stage.
        improving: as above.
        convergence: as above.
        reading: the return's name; one reading per evaluation.
        window: readings in the fit, at least 4.
        patience: readings without progress before the training counts as converged.
        least: smallest rise in return that counts as progress, in units of reward.

    Raises:
        ConfigError: an unknown field, or invalid numbers.
    """

    persistent = ("stage", "seen", "still")

    def __init__(
        self,
        exploration: Mapping[str, Any] = EXPLORATION,
        improving: Mapping[str, Any] = IMPROVING,
        convergence: Mapping[str, Any] = CONVERGENCE,
        *,
        reading: str = "return",
        window: int = 10,
        patience: int = 5,
        least: float = 0.0,
    ) -> None:
        if window < 4 or patience < 1 or least < 0.0:
            raise ConfigError(
                f"stages have a window of {window} returns, patience {patience} and a least rise "
                f"of {least}. Expected at least 4, 1 and 0."
            )
        self._changes = {
            "exploration": dict(exploration),
            "improving": dict(improving),
            "convergence": dict(convergence),
        }
        for change in self._changes.values():
            CompressionSetting().changed(change)
        self._reading, self._window = reading, window
        self._patience, self._least = patience, least
        self.stage: Literal["exploration", "improving", "convergence"] | None = None
        self.seen: list[float] = []
        self.still = 0

    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """See :meth:`Strategy.decide`."""
        before = self.stage
        if before is None:
            self.stage = "exploration"
            self.reason = "training starts with exploration"
        if self._reading in readings and math.isfinite(readings[self._reading]):
            self.seen = [*self.seen, readings[self._reading]][-self._window :]
            self._advance()
        # Change the setting only when a stage begins: in between, other strategies may change it.
        return setting if self.stage == before else setting.changed(self._changes[str(self.stage)])

    def _advance(self) -> None:
        if len(self.seen) < self._window:
            return
        rise, error, begin = trend(self.seen)
        moved = abs(rise) > max(ERRORS * error, self._least) and rise != 0.0
        rose = moved and rise > 0.0
        self.still = 0 if rose else self.still + 1
        words = f"the return went from {begin:.4g} to {begin + rise:.4g}"
        if self.stage == "exploration" and rose:
            self.stage, self.reason = "improving", f"{words}: the policy improves"
        elif self.stage == "improving" and self.still >= self._patience:
            self.stage, self.reason = "convergence", f"{words}: it no longer improves"
        elif self.stage == "convergence" and moved:
            self.stage, self.still = "improving", 0
            self.reason = f"{words}: the policy changes again"

    def reads(self) -> tuple[str, ...]:
        """See :meth:`Strategy.reads`."""
        return (self._reading,)
