"""Indicators about the experience: its age, its usefulness, and its returns."""

from __future__ import annotations

from typing import Literal

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward.monitoring.batch import Doubles, MonitorBatch, Rows
from vinoreward.monitoring.indicators import (
    FEWEST,
    NO_READING,
    WINDOW,
    Indicator,
    Window,
    WindowedIndicator,
)
from vinoreward.monitoring.returns import PairedReturns, paired_gap

LARGEST_LOG_RATIO = 700.0
"""Largest log ratio of probabilities; exp of more overflows."""
PAIRS = 32
"""Window of a return gap, in pairs of episodes."""


def effective_sample_size(log_ratios: Doubles) -> float:
    """Return (sum w)^2 / (n sum w^2) of weights w = exp(log_ratios), (n,).

    Ranges from 1/n to 1, where 1 is as good as on-policy (Kong 1992). Subtracts the maximum of the
    ratios first, so that nothing overflows.
    """
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


class PolicyLag(WindowedIndicator):
    """The learner's version minus the version of the network that acted.

    Args:
        statistic: ``"mean"`` or ``"max"``.
        window: number of rows.
    """

    def __init__(self, statistic: Literal["mean", "max"] = "mean", *, window: int = WINDOW) -> None:
        _one_of(statistic, ("mean", "max"))
        super().__init__(f"lag_{statistic}", window, 1)
        self._statistic = statistic

    def _rows(self, batch: MonitorBatch) -> Doubles:
        return batch.lag.astype(np.float64)

    def _read(self, values: Doubles) -> float:
        return float(values.max() if self._statistic == "max" else values.mean())


class _Ratios(WindowedIndicator):
    """Base of indicators over log importance ratios; needs ``log_pi`` and ``log_mu``."""

    def __init__(self, name: str, rows: Rows, window: int) -> None:
        _one_of(rows, ("compressed", "full", "all"))
        super().__init__(name if rows == "all" else f"{name}_{rows}", window, FEWEST)
        self._of: Rows = rows

    def _rows(self, batch: MonitorBatch) -> Doubles:
        if batch.log_pi is None or batch.log_mu is None:
            return np.zeros(0)
        mask = batch.mask(self._of)
        log_pi, log_mu = (
            values[mask].astype(np.float64) for values in (batch.log_pi, batch.log_mu)
        )
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
        super().__init__("ess", rows, window)

    def update(self, batch: MonitorBatch) -> float:
        """See :meth:`Indicator.update`; 0 if a probability is NaN."""
        found = super().update(batch)
        return 0.0 if found == float("inf") else found

    def _read(self, values: Doubles) -> float:
        return effective_sample_size(values[:, 0])


class ClippedFraction(_Ratios):
    """Fraction of the rows whose importance weight is above the truncation level.

    Args:
        level: V-trace's rho-bar. Weights up to 0.1% above it do not count: with equal policies,
            rounding would otherwise put half of them there.
        rows: which rows.
        window: number of rows.
    """

    def __init__(self, level: float = 1.0, rows: Rows = "all", *, window: int = WINDOW) -> None:
        if not level > 0.0:
            raise ConfigError(f"the clipping level is {level}. Expected a number above 0.")
        super().__init__("clipped", rows, window)
        self._log_level = float(np.log(level * 1.001))

    def _read(self, values: Doubles) -> float:
        return float((values > self._log_level).mean())


class ReturnGap(Indicator):
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

    def __init__(
        self,
        statistic: Literal["mean", "error", "lower", "relative"] = "relative",
        *,
        confidence: float = 0.95,
        pairs: int = PAIRS,
    ) -> None:
        _one_of(statistic, ("mean", "error", "lower", "relative"))
        self.name = f"return_gap_{statistic}"
        self._statistic, self._confidence = statistic, confidence
        self._window = Window(pairs, 2)

    def update(self, batch: MonitorBatch) -> float:
        """See :meth:`Indicator.update`."""
        returns = batch.judged_returns
        if returns is None:
            return NO_READING
        self._window.add(np.stack([returns.full, returns.compressed], 1))
        if len(self._window) < 2:
            return NO_READING
        full, compressed = self._window.rows().T
        gap = paired_gap(PairedReturns(full, compressed), confidence=self._confidence)
        if self._statistic == "relative":
            return gap.lower / gap.scale
        return {"mean": gap.mean, "error": gap.error, "lower": gap.lower}[self._statistic]

    def reset(self) -> None:
        """Forget all evaluations."""
        self._window.clear()


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


def _one_of(value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"got {value!r}. Expected one of {', '.join(allowed)}.")
