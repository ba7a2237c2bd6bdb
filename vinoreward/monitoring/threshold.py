"""Strategies that step to a safer compression at once, and back after patience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vinoreward.errors import ConfigError
from vinoreward.monitoring.judge import Judge, Limit
from vinoreward.monitoring.setting import CompressionSetting, bits_of
from vinoreward.monitoring.strategy import Readings, Strategy

STOP: Mapping[str, Any] = {"enabled": False}


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

    remembered = ("judge", "rung", "undo", "silent", "returned")

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
        self.rung = 0
        self.undo: list[dict[str, Any]] = []
        self.silent = 0
        self.returned = False

    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """See :meth:`Strategy.decide`."""
        verdict = self.judge.verdict(readings)
        if verdict == "bad":
            return self._safer(setting)
        if verdict == "good":
            if self.undo:
                return self._back(setting, self.judge.reason)
            self.returned = False
            self.judge.changed(forgiven=True)
        stopped = bool(self.undo) and not setting.enabled
        self.silent = self.silent + 1 if stopped and verdict == "absent" else 0
        if stopped and self._retry and self.silent >= self.judge.lengthened(self._retry):
            return self._back(setting, f"compression was stopped for {self.silent} rounds: retry")
        return setting

    def _safer(self, setting: CompressionSetting) -> CompressionSetting:
        while self.rung < len(self._changes):
            change = self._changes[self.rung]
            found = setting.changed(change)
            self.rung += 1
            if found == setting:
                self.undo.append({})
                continue
            self.undo.append({name: getattr(setting, name) for name in change})
            self.judge.changed(relapsed=self.returned)
            self.returned = False
            self.reason = self.judge.reason
            return found
        return setting

    def _back(self, setting: CompressionSetting, why: str) -> CompressionSetting:
        self.silent = 0
        self.judge.changed()
        self.returned = True
        while self.undo:
            self.rung = max(0, self.rung - 1)
            found = setting.changed(self.undo.pop())
            if found != setting:
                self.reason = why
                setting = found
                break
        while self.undo and not self.undo[-1]:  # rungs that were skipped on the way up
            self.undo.pop()
            self.rung = max(0, self.rung - 1)
        return setting

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Strategy.load_state`; a ladder with other rungs restarts at the bottom."""
        super().load_state(state)
        done = [set(undo) for undo in self.undo]
        if any(
            found and found != set(change)
            for found, change in zip(done, self._changes, strict=False)
        ) or len(done) > len(self._changes):
            # Earlier changes are still undone step by step on the way back.
            self.rung = 0

    def reads(self) -> tuple[str, ...]:
        """See :meth:`Strategy.reads`."""
        return self.judge.reads()


class SwitchPrecision(Threshold):
    """Fewer bits while all is well, more otherwise: AcceRL's 8 to 16 at a KL maximum of 14.

    Args:
        fast: precision while all is well: ``"int2"`` to ``"int8"``, ``"fp16"`` or ``"fp32"``.
        safe: precision otherwise.
        limits: limits on the readings; by default on the monitor's ``alarm``: the largest ratio of
            a reading to its limit.
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
        limits: Sequence[Limit] = (Limit("alarm", bad=1.0, good=0.25),),
        patience: int = 50,
        cooldown: int = 3,
    ) -> None:
        self._fast, safer = bits_of(fast), bits_of(safe)
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
