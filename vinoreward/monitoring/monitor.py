"""The monitor: indicators, a strategy, and a record in words of what was changed and why."""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vinoreward.errors import ConfigError, VinorewardError
from vinoreward.monitoring.batch import MonitorBatch
from vinoreward.monitoring.indicators import KL, Indicator
from vinoreward.monitoring.setting import CompressionSetting, difference
from vinoreward.monitoring.strategy import Strategy
from vinoreward.monitoring.threshold import SwitchPrecision

ALARM = "alarm"
"""Reading that a monitor with limits adds: the largest of readings divided by their limits."""
HISTORY = 1000


@contextlib.contextmanager
def _named(what: str, expected: str) -> Iterator[None]:
    """Say which plug it was where one fails within the block."""
    try:
        yield
    except VinorewardError:
        raise
    except Exception as error:  # a user's own may raise anything; nothing is swallowed
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{what} failed: {type(error).__name__}: {error} ({last.filename}, line "
            f"{last.lineno}). Expected {expected}; mend it, or train without it."
        ) from error


@dataclass(frozen=True)
class Change:
    """A setting that was changed.

    Attributes:
        update: of the monitor, from 1.
        version: the learner's.
        what: such as ``bits 8 -> 16``.
        reason: in words.
    """

    update: int
    version: int
    what: str
    reason: str

    def __str__(self) -> str:
        return f"learner version {self.version}: {self.what}, because {self.reason}"


@dataclass(frozen=True)
class Reading:
    """What the indicators said at one update.

    Attributes:
        update: of the monitor, from 1.
        version: the learner's.
        values: indicator name to value; those with nothing to say are absent.
    """

    update: int
    version: int
    values: Mapping[str, float]


class Monitor:
    """Watches how far compressed actors are off, and turns the compression accordingly.

    A network that gives NaN or infinity stops compression at once, whatever the strategy says, and
    for good: only :meth:`begin` lifts it. So does :meth:`halt`, for whoever hears of such a network
    otherwise: actors that do not act with one leave no rows of it to look at.

    Args:
        indicators: with different names.
        strategy: decides; none only watches.
        setting: to begin with.
        limits: reading to a positive number; adds the reading ``"alarm"``.
        history: readings and changes that are kept, at most.

    Raises:
        ConfigError: two indicators of one name, limits that cannot be, or a strategy whose readings
            no indicator gives.
    """

    def __init__(
        self,
        indicators: Sequence[Indicator],
        strategy: Strategy | None = None,
        setting: CompressionSetting | None = None,
        *,
        limits: Mapping[str, float] | None = None,
        history: int = HISTORY,
    ) -> None:
        names = [indicator.name for indicator in indicators]
        if len(set(names)) != len(names) or ALARM in names:
            raise ConfigError(
                f"the monitor's indicators are named {names}. Expected names that differ, none of "
                f"them {ALARM!r}."
            )
        self._limits = dict(limits or {})
        if not set(self._limits) <= set(names) or not all(
            limit > 0.0 for limit in self._limits.values()
        ):
            raise ConfigError(
                f"the monitor's limits are {self._limits}. Expected positive limits of readings "
                f"among {', '.join(names)}."
            )
        self._indicators = tuple(indicators)
        self._strategy: Strategy | None = None
        self._fresh: dict[str, Any] | None = None
        self._version: int | None = None
        self._updates = 0
        self._after: int | None = None
        self._halted = ""
        self.setting = setting or CompressionSetting()
        self.readings: deque[Reading] = deque(maxlen=history)
        self.changes: deque[Change] = deque(maxlen=history)
        if strategy is not None:
            self.use(strategy)

    def use(self, strategy: Strategy) -> None:
        """Let another strategy decide from now on.

        Raises:
            ConfigError: a strategy whose readings no indicator gives.
        """
        given = [indicator.name for indicator in self._indicators]
        given += [ALARM] if self._limits else []
        wanted = strategy.reads()
        if wanted and not set(wanted) & set(given):
            raise ConfigError(
                f"{type(strategy).__name__} decides by {', '.join(wanted)}, and the indicators "
                f"give {', '.join(given) or 'nothing'}. Expected at least one in common: add the "
                "indicator, or a KLMonitor for a strategy that decides by alarm."
            )
        self._strategy = strategy
        self._fresh = strategy.state()

    def begin(self, setting: CompressionSetting) -> None:
        """Begin anew with a setting of the user's; lifts the stop after NaN or infinity."""
        self.setting = setting
        self._halted = ""
        if self._strategy is not None and self._fresh is not None:
            # What it remembers, such as settings to go back to, is of another beginning.
            self._strategy.load_state(self._fresh)
        self._forget(self._version)

    @property
    def needs_returns(self) -> bool:
        """Whether an indicator says nothing without evaluations."""
        return any(indicator.needs_returns for indicator in self._indicators)

    @property
    def halted(self) -> str:
        """In words why compression was stopped for good, or nothing."""
        return self._halted

    def observe(self, batch: MonitorBatch) -> CompressionSetting:
        """Take a batch of recent experience and return the setting to go on with.

        Args:
            batch: rows of any age; compressed rows of versions up to the last change of the
                network's setting are left out of what is judged.

        Raises:
            ConfigError: a strategy that returned something else than a setting; an indicator or a
                strategy that raised, with what it raised as cause.
        """
        self._updates += 1
        self._version = batch.learner_version
        judged = batch.judged_after(self._after)
        values = {}
        for indicator in self._indicators:
            with _named(f"the indicator {indicator.name!r}", "a number, NaN for no reading"):
                value = float(indicator.update(judged))
            if not np.isnan(value):
                values[indicator.name] = value
        alarms = [values[name] / limit for name, limit in self._limits.items() if name in values]
        if alarms:
            values[ALARM] = max(alarms)
        self.readings.append(Reading(self._updates, batch.learner_version, values))
        broken = batch.broken()
        if self._halted:
            return self.setting
        if broken:
            self._halt(broken, batch.learner_version)
        elif self._strategy is not None:
            self._strategy.reason = ""
            with _named(f"the strategy {type(self._strategy).__name__}", "a CompressionSetting"):
                found = self._strategy.decide(values, self.setting)
            if not isinstance(found, CompressionSetting):
                raise ConfigError(
                    f"{type(self._strategy).__name__} decided for {found!r}. Expected a "
                    "CompressionSetting: the one it was given if nothing is to change."
                )
            self._change(found, batch.learner_version, self._strategy.reason or self._guess(values))
        return self.setting

    def halt(self, reason: str, version: int) -> CompressionSetting:
        """Stop compression at once and for good; return the setting to go on with.

        Counts as an update, without readings. One that is stopped already stays as it is.

        Args:
            reason: in words, for :attr:`halted` and :attr:`changes`.
            version: the learner's.
        """
        if not self._halted:
            self._updates += 1
            self._version = version
            self._halt(reason, version)
        return self.setting

    def _halt(self, reason: str, version: int) -> None:
        self._halted = reason
        self._change(self.setting.changed({"enabled": False}), version, reason)

    def _guess(self, values: Mapping[str, float]) -> str:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        return f"{type(self._strategy).__name__} decided so ({shown or 'no readings'})"

    def _change(self, after: CompressionSetting, version: int, reason: str) -> None:
        if after == self.setting:
            return
        self.changes.append(Change(self._updates, version, difference(self.setting, after), reason))
        same = after.same_network(self.setting)
        self.setting = after
        if not same:
            self._forget(version)

    def _forget(self, version: int | None) -> None:
        """Let what is known of an earlier network count no longer."""
        self._after = version
        for indicator in self._indicators:
            indicator.reset()

    def state(self) -> dict[str, Any]:
        """Return as plain data what a resumed training needs; indicators fill up again."""
        return {
            "setting": self.setting.to_dict(),
            "strategy": self._strategy.state() if self._strategy else None,
            "updates": self._updates,
            "after": self._after,
            "halted": self._halted,
            "changes": [asdict(change) for change in self.changes],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take a state that :meth:`state` gave.

        Raises:
            ConfigError: a state of another strategy, or of something else.
        """
        try:
            strategy, after = state["strategy"], state["after"]
            changes = [Change(**change) for change in state["changes"]]
            setting = CompressionSetting.from_dict(state["setting"])
            updates, halted = int(state["updates"]), str(state["halted"])
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"a monitor's state cannot be read ({error!r}). Expected what Monitor.state gives."
            ) from error
        if (strategy is None) != (self._strategy is None):
            raise ConfigError(
                "a monitor's state and the monitor do not both have a strategy. Resume with the "
                "strategy that the training began with."
            )
        if self._strategy is not None:
            self._strategy.load_state(strategy)
        self.setting, self._updates, self._halted = setting, updates, halted
        self.changes = deque(changes, maxlen=self.changes.maxlen)
        self._forget(None if after is None else int(after))


class KLMonitor(Monitor):
    """AcceRL's: sounds the alarm when the largest KL(learner || compressed) passes a threshold.

    Args:
        threshold: in nats; AcceRL's 14 is for logits without bounds.
        strategy: decides by the reading ``"alarm"`` (1 at the threshold); by default 8 bits
            below, 16 above.
        setting: to begin with.
        window: rows to look back on.
    """

    def __init__(
        self,
        threshold: float = 14.0,
        strategy: Strategy | None = None,
        setting: CompressionSetting | None = None,
        *,
        window: int = 4096,
    ) -> None:
        watched = KL("max", "pi_mu", window=window)
        others = [
            KL(statistic, "pi_mu", window=window) for statistic in ("mean", "variance")
        ]  # fmt: skip
        super().__init__(
            [watched, *others],
            strategy or SwitchPrecision("int8", "fp16"),
            setting,
            limits={watched.name: threshold},
        )
