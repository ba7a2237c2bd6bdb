"""Indicators: each is one number that says how far the acting network is from the learner's.

To write your own, implement ``name`` and ``update(batch) -> float``.
"""

from __future__ import annotations

import abc
import math
from typing import Literal, get_args

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward_actors.monitoring.batch import (
    Against,
    Direction,
    Doubles,
    MonitorBatch,
    PairedReturns,
    Rows,
    paired_gap,
)
from vinoreward_actors.policies.distributions import effective_sample_size
from vinoreward_actors.policies.spec import Head

NO_READING = float("nan")
WINDOW = 4096
"""Default window in rows; large enough to include rare observations."""
FEWEST = 64
"""Minimum number of rows for a mean."""
LARGEST_LOG_RATIO = 700.0
"""Largest log ratio of probabilities; exp of more overflows."""
PAIRS = 32
"""Window of a return gap, in pairs of episodes."""

Statistic = Literal["mean", "variance", "max"]


class Indicator(abc.ABC):
    """One number, updated with each batch.

    Attributes:
        name: of the reading, for strategies and logs.
        needs_returns: whether it needs evaluations to give a reading.
    """

    name: str
    needs_returns: bool = False

    @abc.abstractmethod
    def update(self, batch: MonitorBatch) -> float:
        """Add a batch and return the reading.

        NaN means no reading (no rows of this kind, or too few); strategies do not see it. Infinity
        means that a network gave numbers that are not finite.
        """

    def reset(self) -> None:  # noqa: B027  (most have no state)
        """Clear all state: the compression changed, so older rows no longer apply."""


class WindowedIndicator(Indicator):
    """Base of indicators over the last ``window`` rows.

    Subclasses give the numbers of a batch's rows and may compute the reading. The reading's
    ``name`` gets the statistic, the rows and the comparison added. There is no reading from fewer
    than ``fewest`` rows.
    """

    statistics: tuple[str, ...] = ("mean", "max")
    choices: tuple[Rows, ...] = ("compressed",)
    """Allowed ``rows``; the first is the default and not part of the name."""

    def __init__(
        self,
        name: str,
        window: int,
        fewest: int = FEWEST,
        columns: int = 1,
        *,
        statistic: str | None = None,
        rows: Rows | None = None,
        against: Against = "learner",
    ) -> None:
        if statistic is not None:
            name = f"{name}_{_checked(statistic, self.statistics, 'statistic')}"
        self._of: Rows = self.choices[0] if rows is None else rows
        if _checked(self._of, self.choices, "rows") != self.choices[0]:
            name = f"{name}_{rows}"
        if _checked(against, get_args(Against), "against") == "source":
            name = f"compression_{name}"
        if window < 1:
            raise ConfigError(f"the window has {window} rows. Expected at least 1.")
        self.name = name
        self._statistic = statistic or "mean"
        self._against: Against = against
        self._window, self._fewest = window, fewest
        self._values: Doubles = np.zeros((0, columns))

    def update(self, batch: MonitorBatch) -> float:
        """See :meth:`Indicator.update`."""
        new = self._rows(batch)
        new = new.reshape(len(new), self._values.shape[1])
        self._values = np.concatenate([self._values, new])[-self._window :]
        if len(new) == 0 or len(self._values) < self._fewest:
            return NO_READING
        return self._read(self._values) if np.isfinite(self._values).all() else float("inf")

    def reset(self) -> None:
        """Forget all rows."""
        self._values = self._values[:0]

    @abc.abstractmethod
    def _rows(self, batch: MonitorBatch) -> Doubles:
        """Return the batch's numbers, (n,) or (n, columns)."""

    def _read(self, values: Doubles) -> float:
        """Return the reading of finite numbers (n, columns), oldest first."""
        if self._statistic == "max":
            return float(values.max())
        if self._statistic == "rmse":
            return math.sqrt(float((values**2).mean()))
        return float(values.var() if self._statistic == "variance" else values.mean())


def _checked(value: str, allowed: tuple[str, ...], what: str) -> str:
    if value not in allowed:
        raise ConfigError(f"{what} is {value!r}. Expected one of {', '.join(allowed)}.")
    return value


class KL(WindowedIndicator):
    """Divergence of the network that acted from the learner's, in nats.

    Log probabilities are bounded below by -20, so unbounded logits give finite numbers. ``q`` heads
    without epsilon are compared as a softmax of their values, which depends on the scale of the
    reward; :class:`QRegret` does not. ``tanh`` heads are compared as Gaussians around their actions
    with the exploration's sigma: half the squared difference in sigmas.

    Args:
        statistic: ``"max"`` detects rare, decisive observations; mean and variance do not.
        direction: ``"mu_pi"``: KL(acted || learner); ``"pi_mu"``: AcceRL's equation 5.
        rows: which rows; ``"full"`` shows the effect of staleness alone. ``"unsourced"`` are
            compressed rows whose own full precision network is unknown.
        against: ``"learner"``: its current network, so compression and staleness together.
            ``"source"``: the full precision network of the row's own version, so compression
            alone. Rows without a known source are left out, and the reading's name begins with
            ``compression_``.
        window: number of rows.
    """

    statistics = get_args(Statistic)
    choices = ("compressed", "full", "all", "unsourced")

    def __init__(
        self,
        statistic: Statistic = "max",
        direction: Direction = "mu_pi",
        *,
        rows: Rows = "compressed",
        against: Against = "learner",
        window: int = WINDOW,
    ) -> None:
        _checked(direction, get_args(Direction), "direction")
        self._direction: Direction = direction
        # A maximum needs only one row: one row above the limit is enough to act.
        super().__init__(
            f"kl_{direction}", window, 1 if statistic == "max" else FEWEST,
            statistic=statistic, rows=rows, against=against,
        )  # fmt: skip

    def _rows(self, batch: MonitorBatch) -> Doubles:
        values = batch.divergences(self._direction, self._against)
        return values[batch.mask(self._of, self._against)]


class QRegret(WindowedIndicator):
    """Regret of the compressed network's greedy action under the learner's Q; ``q`` heads only.

    ``max_a Q(s, a) - Q(s, argmax of compressed)``, divided by the mean of
    ``max_a Q - mean_a Q``: 0 is the learner's choice, 1 is as bad as a random one. The scale of
    the reward cancels.

    Args:
        statistic: ``"mean"`` or ``"max"`` over rows.
        against: as for :class:`KL`.
        window: number of rows.
    """

    def __init__(
        self,
        statistic: Literal["mean", "max"] = "mean",
        *,
        against: Against = "learner",
        window: int = WINDOW,
    ) -> None:
        super().__init__("q_regret", window, columns=2, statistic=statistic, against=against)

    def _rows(self, batch: MonitorBatch) -> Doubles:
        if batch.spec.head != "q":
            return np.zeros((0, 2))
        mask = batch.mask(self._of, self._against)
        values = batch.reference(self._against)[mask].astype(np.float64)
        acted = batch.mu[mask]
        finite = np.isfinite(values).all(1) & np.isfinite(acted).all(1)
        regrets = np.full((len(values), 2), np.inf)
        values, chosen = values[finite], acted[finite].argmax(1)
        best = values.max(1)
        regrets[finite, 0] = best - values[np.arange(len(values)), chosen]
        regrets[finite, 1] = best - values.mean(1)
        return regrets

    def _read(self, values: Doubles) -> float:
        regret, usual = super()._read(values[:, 0]), float(values[:, 1].mean())
        return regret / usual if usual > 0.0 else 0.0


class PolicyLag(WindowedIndicator):
    """The learner's version minus the version of the network that acted.

    Args:
        statistic: ``"mean"`` or ``"max"``.
        window: number of rows.
    """

    def __init__(self, statistic: Literal["mean", "max"] = "mean", *, window: int = WINDOW) -> None:
        super().__init__("lag", window, 1, statistic=statistic)

    def _rows(self, batch: MonitorBatch) -> Doubles:
        return batch.lag.astype(np.float64)


class _Ratios(WindowedIndicator):
    """Base of indicators over log importance ratios; needs ``log_pi`` and ``log_mu``."""

    choices = ("all", "compressed", "full")

    def _rows(self, batch: MonitorBatch) -> Doubles:
        if batch.log_pi is None or batch.log_mu is None:
            return np.zeros(0)
        mask = batch.mask(self._of)
        log_pi, log_mu = (each[mask].astype(np.float64) for each in (batch.log_pi, batch.log_mu))
        known = ~(np.isnan(log_pi) | np.isnan(log_mu) | np.isneginf(log_mu))
        ratios = np.full(len(log_pi), np.inf)
        ratios[known] = np.clip(log_pi[known] - log_mu[known], -LARGEST_LOG_RATIO, None)
        return ratios


class EffectiveSampleSize(_Ratios):
    """Fraction of the experience that importance weights leave, from 1/n to 1.

    Args:
        rows: which rows. Staleness lowers it too, so compare ``"compressed"`` with ``"full"``.
        window: number of rows.
    """

    def __init__(self, rows: Rows = "all", *, window: int = WINDOW) -> None:
        super().__init__("ess", window, rows=rows)

    def update(self, batch: MonitorBatch) -> float:
        """See :meth:`Indicator.update`; 0 if a probability is NaN."""
        reading = super().update(batch)
        return 0.0 if reading == float("inf") else reading

    def _read(self, values: Doubles) -> float:
        return effective_sample_size(values[:, 0])


class ReturnGap(WindowedIndicator):
    """Return lost to compression, from paired evaluations; one reading per evaluation.

    Evaluations of versions that were compressed with an earlier setting do not count.

    Args:
        statistic: ``"mean"`` of full minus compressed, in reward; its standard ``"error"``;
            ``"lower"``: the one-sided lower bound of the true gap; ``"relative"``: that bound
            in units of the spread of returns, independent of the reward's scale.
        confidence: of the bound.
        pairs: window, in pairs of episodes.
    """

    needs_returns = True
    statistics = ("mean", "error", "lower", "relative")

    def __init__(
        self,
        statistic: Literal["mean", "error", "lower", "relative"] = "relative",
        *,
        confidence: float = 0.95,
        pairs: int = PAIRS,
    ) -> None:
        super().__init__("return_gap", pairs, 2, 2, statistic=statistic)
        self._confidence = confidence

    def _rows(self, batch: MonitorBatch) -> Doubles:
        returns = batch.judged_returns
        if returns is None:
            return np.zeros((0, 2))
        return np.stack([returns.full, returns.compressed], 1)

    def _read(self, values: Doubles) -> float:
        gap = paired_gap(PairedReturns(*values.T), confidence=self._confidence)
        if self._statistic == "relative":
            return gap.lower / gap.scale
        return float(getattr(gap, self._statistic))


class CumulativeReward(Indicator):
    """Mean return of the full precision policy in each evaluation.

    Needs no pairs, so :class:`Staged` also advances while compression is stopped or late.
    """

    name = "return"
    needs_returns = True

    def update(self, batch: MonitorBatch) -> float:
        """See :meth:`Indicator.update`."""
        full = batch.full_returns if batch.returns is None else batch.returns.full
        if full is None or len(full) == 0:
            return NO_READING
        return float(full.mean())


def default_indicators(head: Head, *, window: int = WINDOW) -> list[Indicator]:
    """Return the indicators for a kind of head, with windows of so many rows."""
    chosen: list[Indicator] = [
        PolicyLag("mean", window=window),
        PolicyLag("max", window=window),
        EffectiveSampleSize("all", window=window),
        EffectiveSampleSize("compressed", window=window),
        CumulativeReward(),
        ReturnGap("mean"),
        ReturnGap("error"),
        ReturnGap("relative"),
    ]
    if head == "q":
        # No KL here: for greedy policies it is infinite or zero, and for a softmax of the values
        # it depends on the scale of the reward.
        for against in get_args(Against):
            chosen.append(QRegret("mean", against=against, window=window))
            chosen.append(QRegret("max", against=against, window=window))
        return chosen
    if head != "tanh":
        chosen.append(KL("max", "mu_pi", rows="unsourced", window=window))
    for against in get_args(Against):
        for statistic in get_args(Statistic):
            chosen.append(KL(statistic, "mu_pi", against=against, window=window))
            chosen.append(KL(statistic, "pi_mu", against=against, window=window))
    return chosen
