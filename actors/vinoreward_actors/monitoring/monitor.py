"""The monitor: indicators, a strategy, and a log of changes with their reasons.

The limits of the default monitor follow from these measurements. Each row shows the largest
KL(compressed || its own full precision network) and the return lost in paired episodes. Pendulum:
SAC, two trained policies, greedy actions. CartPole: A2C, two policies, sampled actions. INT8 has
fixed activation ranges and one weight scale per output. Nothing is distilled unless the row says
so.

========================================  ========================  =======================
variant                                   Pendulum: KL, lost        CartPole: KL, lost
========================================  ========================  =======================
half precision                            0.000  0 of 191           0.000          0 of 108
INT8, min-max ranges, first layer float   0.01, 0.02  0             0.001          0
pruned by half and distilled              0.32  0 of 151
INT8, min-max ranges everywhere           0.7, 1.4  0               0.001, 0.063   0
weights of 5 bits                         4.9  1 of 191             0.000          0
weights of 4 bits                         13.6  209 of 191          0.004          0
weights of 2 bits                         40  1140 of 191           0.059, 0.100   62 of 108
INT8, NNCF's MIXED preset                 24  648 of 151
INT8, NNCF's default ranges: mean of      70, 92  703, 789          0.235, 0.381   71 of 108
each observation's minimum and maximum
========================================  ========================  =======================

The mean action error does not rank these (Pendulum: 4 bits 0.08, 5 bits 0.21, of 2). The limits lie
between harmless and clipped ranges, nearer to the harmless side: a false alarm costs speed, a
missed alarm costs the training. For Gaussians, 6 nats are 3.5 standard deviations between two
actions. Softmax policies have far smaller divergences, at most the negative log of the learner's
smallest probability. Their limit does not detect a small bias everywhere, as with 2 bits; the
paired return does.

Q-regret, from DQN on CartPole (two policies): 8-bit weights give up to 0.19 (mean) and 4 (maximum),
with returns moving both ways. NNCF's default ranges give 0.33 and 0.76 (mean), 7.6 and 27
(maximum), and lose two thirds of the return.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import numpy as np

from vinoreward.errors import ConfigError, VinorewardError
from vinoreward_actors.monitoring.batch import MonitorBatch
from vinoreward_actors.monitoring.indicators import (
    KL,
    Indicator,
    Statistic,
    default_indicators,
)
from vinoreward_actors.monitoring.strategies import STOP, SwitchPrecision, Threshold
from vinoreward_actors.monitoring.strategy import (
    CompressionSetting,
    Limit,
    Strategy,
    difference,
)
from vinoreward_actors.policies.spec import Head

HISTORY = 1000

# Compression alone, for rows with a known source; far stricter than the limits that include lag.
GAUSSIAN_KL_MAX = Limit("compression_kl_mu_pi_max", bad=6.0, good=1.5)
SOFTMAX_KL_MAX = Limit("compression_kl_mu_pi_max", bad=0.2, good=0.1)
Q_REGRET_MEAN = Limit("compression_q_regret_mean", bad=0.25, good=0.2)
Q_REGRET_MAX = Limit("compression_q_regret_max", bad=5.0, good=4.0)
# Compression and staleness together: only for rows whose own full precision network is unknown.
# Not for deterministic policies: one push of a new D4PG policy moves its actions by 45 to 57 nats
# (walker-stand, sigma 0.2), of which INT8 is less than 0.001.
UNSOURCED_KL_MAX = Limit("kl_mu_pi_max_unsourced", bad=6.0, good=3.0)
ESS = Limit("ess_compressed", bad=0.1, good=0.3)
"""Below 0.1, nine rows in ten are wasted, and so is whatever compression saves."""
RETURN_GAP = Limit("return_gap_relative", bad=0.1, good=0.05)
"""A bound: the loss is at least this fraction of the returns' spread."""


@contextlib.contextmanager
def _named(what: str, expected: str) -> Iterator[None]:
    """Name the plug in the error if its code fails."""
    try:
        yield
    except VinorewardError:
        raise
    except Exception as error:  # a user's plug may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"{what} failed: {type(error).__name__}: {error} ({last.filename}, line "
            f"{last.lineno}). Expected {expected}; fix it, or train without it."
        ) from error


@dataclass(frozen=True)
class Change:
    """A change of the setting."""

    update: int
    """The monitor's update count, from 1."""
    version: int
    """The learner's."""
    what: str
    """Such as ``bits 8 -> 16``."""
    reason: str
    """Why, as a clause."""

    def __str__(self) -> str:
        return f"learner version {self.version}: {self.what}, because {self.reason}"


@dataclass(frozen=True)
class Reading:
    """All readings of one update."""

    update: int
    """The monitor's update count, from 1."""
    version: int
    """The learner's."""
    values: Mapping[str, float]
    """Indicator name to value; indicators without a reading are absent."""


class Monitor:
    """Watches how far compressed actors are off, and adjusts the compression.

    NaN or infinity from a network stops compression permanently, whatever the strategy says; only
    :meth:`begin` lifts the stop. :meth:`halt` does the same for callers that learn of such a
    network in another way: actors refuse to act with it, so no rows show it.

    Args:
        indicators: with distinct names.
        strategy: decides on changes; None only watches.
        setting: the initial setting.
        history: maximum number of readings and changes in memory.

    Raises:
        ConfigError: duplicate indicator names, or a strategy whose readings no indicator gives.
    """

    def __init__(
        self,
        indicators: Sequence[Indicator],
        strategy: Strategy | None = None,
        setting: CompressionSetting | None = None,
        *,
        history: int = HISTORY,
    ) -> None:
        names = [indicator.name for indicator in indicators]
        if len(set(names)) != len(names):
            raise ConfigError(
                f"the monitor's indicators are named {names}. Expected distinct names."
            )
        self._indicators = tuple(indicators)
        self._strategy: Strategy | None = None
        self._fresh: dict[str, Any] | None = None
        self._version: int | None = None
        self._updates = 0
        self._after: int | None = None
        self.halted = ""
        """Why compression was stopped permanently; empty if it was not."""
        self.setting = setting or CompressionSetting()
        self.readings: deque[Reading] = deque(maxlen=history)
        self.changes: deque[Change] = deque(maxlen=history)
        if strategy is not None:
            self.use(strategy)

    def use(self, strategy: Strategy) -> None:
        """Replace the strategy.

        Raises:
            ConfigError: no indicator gives the strategy's readings.
        """
        given = [indicator.name for indicator in self._indicators]
        wanted = strategy.reads()
        if wanted and not set(wanted) & set(given):
            raise ConfigError(
                f"{type(strategy).__name__} decides by {', '.join(wanted)}, but the indicators "
                f"give {', '.join(given) or 'nothing'}. Expected at least one in common: add the "
                "indicator."
            )
        self._strategy = strategy
        self._fresh = strategy.state()

    def begin(self, setting: CompressionSetting) -> None:
        """Restart with the user's setting; lifts the stop after NaN or infinity."""
        self.setting = setting
        self.halted = ""
        if self._strategy is not None and self._fresh is not None:
            # Its state, such as settings to go back to, belongs to the earlier start.
            self._strategy.load_state(self._fresh)
        self._forget(self._version)

    @property
    def needs_returns(self) -> bool:
        """Whether an indicator needs evaluations."""
        return any(indicator.needs_returns for indicator in self._indicators)

    def observe(self, batch: MonitorBatch) -> CompressionSetting:
        """Add a batch of recent experience and return the next setting.

        Compressed rows of versions up to the last change of the network's setting do not count.

        Raises:
            ConfigError: the strategy returned no CompressionSetting, or an indicator or the
                strategy raised an error (attached as the cause).
        """
        self._updates += 1
        self._version = batch.learner_version
        judged = replace(batch, after=self._after)
        values = {}
        for indicator in self._indicators:
            with _named(f"the indicator {indicator.name!r}", "a number, NaN for no reading"):
                value = float(indicator.update(judged))
            if not np.isnan(value):
                values[indicator.name] = value
        self.readings.append(Reading(self._updates, batch.learner_version, values))
        broken = batch.broken()
        if self.halted:
            return self.setting
        if broken:
            self._halt(broken, batch.learner_version)
        elif self._strategy is not None:
            self._strategy.reason = ""
            with _named(f"the strategy {type(self._strategy).__name__}", "a CompressionSetting"):
                after = self._strategy.decide(values, self.setting)
            if not isinstance(after, CompressionSetting):
                raise ConfigError(
                    f"{type(self._strategy).__name__} returned {after!r}. Expected a "
                    "CompressionSetting: the current one if nothing is to change."
                )
            shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            reason = f"{type(self._strategy).__name__} decided it ({shown or 'no readings'})"
            self._change(after, batch.learner_version, self._strategy.reason or reason)
        return self.setting

    def halt(self, reason: str, version: int) -> CompressionSetting:
        """Stop compression permanently and return the setting.

        Counts as an update without readings. Does nothing if compression is stopped already. The
        reason is a clause, for :attr:`halted` and :attr:`changes`.
        """
        if not self.halted:
            self._updates += 1
            self._version = version
            self._halt(reason, version)
        return self.setting

    def _halt(self, reason: str, version: int) -> None:
        self.halted = reason
        self._change(self.setting.changed({"enabled": False}), version, reason)

    def _change(self, after: CompressionSetting, version: int, reason: str) -> None:
        if after == self.setting:
            return
        before, self.setting = self.setting, after
        self.changes.append(Change(self._updates, version, difference(before, after), reason))
        if not after.same_network(before):
            self._forget(version)

    def _forget(self, version: int | None) -> None:
        """Reset the indicators: rows of the earlier network no longer count."""
        self._after = version
        for indicator in self._indicators:
            indicator.reset()

    def state(self) -> dict[str, Any]:
        """Return plain data for a resumed training; indicators fill their windows again."""
        return {
            "setting": self.setting.to_dict(),
            "strategy": self._strategy.state() if self._strategy else None,
            "updates": self._updates,
            "after": self._after,
            "halted": self.halted,
            "changes": [asdict(change) for change in self.changes],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ConfigError: the state is malformed or of another strategy.
        """
        try:
            strategy, after = state["strategy"], state["after"]
            changes = [Change(**change) for change in state["changes"]]
            setting = CompressionSetting.from_dict(state["setting"])
            updates, halted = int(state["updates"]), str(state["halted"])
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"cannot read the monitor's state ({error!r}). Expected what Monitor.state returns."
            ) from error
        if (strategy is None) != (self._strategy is None):
            raise ConfigError(
                "only one of the monitor and its saved state has a strategy. Resume with the "
                "strategy that the training started with."
            )
        if self._strategy is not None:
            self._strategy.load_state(strategy)
        self.setting, self._updates, self.halted = setting, updates, halted
        self.changes = deque(changes, maxlen=self.changes.maxlen)
        self._forget(None if after is None else int(after))


class KLMonitor(Monitor):
    """AcceRL's: more bits when the largest KL(learner || compressed) passes a threshold.

    Args:
        threshold: in nats; AcceRL's 14 is for unbounded logits. Fewer bits again below a quarter.
        fast: precision while all is well.
        safe: precision otherwise.
        setting: the initial setting.
    """

    def __init__(
        self,
        threshold: float = 14.0,
        fast: str = "int8",
        safe: str = "fp16",
        setting: CompressionSetting | None = None,
    ) -> None:
        limit = Limit("kl_pi_mu_max", threshold, 0.25 * threshold)
        watched = [KL(each, "pi_mu") for each in get_args(Statistic)]
        super().__init__(watched, SwitchPrecision(fast, safe, limits=(limit,)), setting)


def default_strategy(
    head: Head = "tanh_gaussian", safer: Sequence[Mapping[str, Any]] = ()
) -> Strategy:
    """Return a strategy that stops harmful compression before the return drops.

    A limit that is passed selects the first safer setting at once. If no safer setting helps,
    compression stops and actors run the learner's own weights. Stepping back takes 50 good rounds,
    doubled by each relapse.

    Args:
        head: of the policy; softmax policies have smaller divergences than Gaussian ones.
        safer: setting changes to try before compression stops, for example from
            ``CompressorChain.safer()``. Each must act faster than the learner's own weights.
            Half precision does not (3x2048 on OpenVINO: 1.43 ms a step against 1.34), and nothing
            is safer than the learner's weights.
    """
    largest = SOFTMAX_KL_MAX if head == "logits" else GAUSSIAN_KL_MAX
    limits = (largest, Q_REGRET_MEAN, Q_REGRET_MAX, UNSOURCED_KL_MAX, ESS, RETURN_GAP)
    return Threshold(limits, (*safer, STOP))


def default_monitor(
    head: Head, setting: CompressionSetting | None = None, safer: Sequence[Mapping[str, Any]] = ()
) -> Monitor:
    """Return the monitor that a training uses by default, see :func:`default_strategy`."""
    return Monitor(default_indicators(head), default_strategy(head, safer), setting)
