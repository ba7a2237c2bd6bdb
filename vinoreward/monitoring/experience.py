"""Indicators about the experience: how old, how useful, and what returns it leads to."""

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
    WindowedIndicator,
)
from vinoreward.monitoring.returns import PairedReturns, paired_gap
from vinoreward.monitoring.window import Window

LARGEST_LOG_RATIO = 700.0
"""Of probabilities: exp of more overflows."""
PAIRS = 32
"""Pairs of episodes that a return gap looks back on."""


def effective_sample_size(log_ratios: Doubles) -> float:
    """Return (sum w)^2 / (n sum w^2) of weights w = exp(log_ratios), (n,).

    From 1/n to 1, which is as good as on-policy (Kong 1992). Ratios are shifted by their
    maximum first, so nothing overflows.
    """
    weights = np.exp(log_ratios - log_ratios.max())
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


class PolicyLag(WindowedIndicator):
    """Learner's version minus the version that the acting network was made of.

    Args:
        statistic: ``"mean"`` or ``"max"``.
        window: rows to look back on.
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
    """Base of indicators over log importance ratios; none without ``log_pi`` and ``log_mu``."""

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
    """Part of the experience that importance weights leave, from 1/n to 1.

    Args:
        rows: whose; staleness lowers it too, so compare ``"compressed"`` with ``"full"``.
        window: rows to look back on.
    """

    def __init__(self, rows: Rows = "all", *, window: int = WINDOW) -> None:
        super().__init__("ess", rows, window)

    def update(self, batch: MonitorBatch) -> float:
        """See :meth:`Indicator.update`; 0 where a probability is not a number."""
        found = super().update(batch)
        return 0.0 if found == float("inf") else found

    def _read(self, values: Doubles) -> float:
        return effective_sample_size(values[:, 0])


class ClippedFraction(_Ratios):
    """Part of the rows whose importance weight is above the truncation level.

    Args:
        level: V-trace's rho-bar. Weights within a thousandth above it do not count: with equal
            policies rounding would otherwise put half of them there.
        rows: whose.
        window: rows to look back on.
    """

    def __init__(self, level: float = 1.0, rows: Rows = "all", *, window: int = WINDOW) -> None:
        if not level > 0.0:
            raise ConfigError(f"weights clipped at {level} were asked for. Expected above 0.")
        super().__init__("clipped", rows, window)
        self._log_level = float(np.log(level * 1.001))

    def _read(self, values: Doubles) -> float:
        return float((values > self._log_level).mean())


class ReturnGap(Indicator):
    """Return lost to compression, from paired evaluations; a reading after each evaluation.

    Evaluations of versions that were compressed in an earlier setting do not count.

    Args:
        statistic: ``"mean"`` of full minus compressed, in reward; its standard ``"error"``;
            ``"lower"``: the one-sided lower bound of the true gap; ``"relative"``: that bound
            in units of the spread of returns, which needs no knowledge of the reward's scale.
        confidence: of the bound.
        pairs: of episodes to look back on.
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
    """Mean return of the full precision policy in each evaluation: what stages are told by.

    It needs no pair: while compression is stopped or late, training goes on, and so do its stages.
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
        raise ConfigError(f"{value!r} was asked for. Expected one of {', '.join(allowed)}.")
