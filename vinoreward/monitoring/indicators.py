"""Indicators: each is one number that says how far the acting network is from the learner's.

To write your own, implement ``name`` and ``update(batch) -> float``.
"""

from __future__ import annotations

import abc
from typing import Literal, get_args

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward.monitoring.batch import Against, Direction, Doubles, MonitorBatch, Rows
from vinoreward.policies.distributions import entropy

NO_READING = float("nan")
WINDOW = 4096
"""Default window in rows; large enough to include rare observations."""
FEWEST = 64
"""Minimum number of rows for a mean."""

Statistic = Literal["mean", "variance", "max"]


class Window:
    """The last ``size`` rows.

    Args:
        size: capacity in rows.
        columns: numbers per row.

    Raises:
        ConfigError: a size below 1.
    """

    def __init__(self, size: int, columns: int = 1) -> None:
        if size < 1:
            raise ConfigError(f"the window has {size} rows. Expected at least 1.")
        self._rows = np.zeros((size, columns))
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Doubles) -> None:
        """Add rows (n,) or (n, columns), oldest first."""
        size, columns = self._rows.shape
        new = rows.reshape(len(rows), columns)[-size:]
        self._rows[(self._next + np.arange(len(new))) % size] = new
        self._next = (self._next + len(new)) % size
        self._count = min(size, self._count + len(new))

    def rows(self) -> Doubles:
        """Return a view of the rows (n, columns), unordered."""
        return self._rows[: self._count]

    def clear(self) -> None:
        """Forget all rows."""
        self._next = self._count = 0


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
    """Base of indicators over the last rows; subclasses define the numbers and the reading.

    Args:
        name: of the reading.
        window: number of rows.
        fewest: minimum number of rows for a reading.
        columns: numbers per row.
    """

    def __init__(self, name: str, window: int, fewest: int, columns: int = 1) -> None:
        self.name = name
        self._fewest = fewest
        self._window = Window(window, columns)

    def update(self, batch: MonitorBatch) -> float:
        """See :meth:`Indicator.update`."""
        rows = self._rows(batch)
        self._window.add(rows)
        if len(rows) == 0 or len(self._window) < self._fewest:
            return NO_READING
        values = self._window.rows()
        return self._read(values) if np.isfinite(values).all() else float("inf")

    def reset(self) -> None:
        """Forget all rows."""
        self._window.clear()

    @abc.abstractmethod
    def _rows(self, batch: MonitorBatch) -> Doubles:
        """Return the batch's numbers, (n,) or (n, columns)."""

    @abc.abstractmethod
    def _read(self, values: Doubles) -> float:
        """Return the reading of finite numbers (n, columns)."""


def _statistic(values: Doubles, statistic: str) -> float:
    if statistic == "max":
        return float(values.max())
    return float(values.var()) if statistic == "variance" else float(values.mean())


def _checked(value: str, allowed: tuple[str, ...], what: str) -> str:
    if value not in allowed:
        raise ConfigError(f"{what} is {value!r}. Expected one of {', '.join(allowed)}.")
    return value


def _named(name: str, against: Against) -> str:
    _checked(against, ("learner", "source"), "against")
    return f"compression_{name}" if against == "source" else name


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

    def __init__(
        self,
        statistic: Statistic = "max",
        direction: Direction = "mu_pi",
        *,
        rows: Rows = "compressed",
        against: Against = "learner",
        window: int = WINDOW,
    ) -> None:
        _checked(statistic, ("mean", "variance", "max"), "statistic")
        _checked(direction, ("mu_pi", "pi_mu"), "direction")
        # A maximum needs only one row: one row above the limit is enough to act.
        fewest = 1 if statistic == "max" else FEWEST
        _checked(rows, get_args(Rows), "rows")
        name = _named(f"kl_{direction}_{statistic}", against)
        super().__init__(name if rows == "compressed" else f"{name}_{rows}", window, fewest)
        self._statistic: Statistic = statistic
        self._direction: Direction = direction
        self._of: Rows = rows
        self._against: Against = against

    def _rows(self, batch: MonitorBatch) -> Doubles:
        values = batch.divergences(self._direction, self._against)
        return values[batch.mask(self._of, self._against)]

    def _read(self, values: Doubles) -> float:
        return _statistic(values, self._statistic)


class ActionError(WindowedIndicator):
    """Action difference of ``tanh`` heads in units of the exploration's sigma.

    Args:
        statistic: ``"rmse"`` or ``"max"`` over rows.
        against: as for :class:`KL`.
        window: number of rows.
    """

    def __init__(
        self,
        statistic: Literal["rmse", "max"] = "rmse",
        *,
        against: Against = "learner",
        window: int = WINDOW,
    ) -> None:
        _checked(statistic, ("rmse", "max"), "statistic")
        name = _named(f"action_{statistic}", against)
        super().__init__(name, window, 1 if statistic == "max" else FEWEST)
        self._statistic = statistic
        self._against: Against = against

    def _rows(self, batch: MonitorBatch) -> Doubles:
        if batch.spec.head != "tanh":
            return np.zeros(0)
        return batch.action_errors(self._against)[batch.mask("compressed", self._against)]

    def _read(self, values: Doubles) -> float:
        return float(np.sqrt((values**2).mean()) if self._statistic == "rmse" else values.max())


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
        _checked(statistic, ("mean", "max"), "statistic")
        super().__init__(_named(f"q_regret_{statistic}", against), window, FEWEST, columns=2)
        self._statistic = statistic
        self._against: Against = against

    def _rows(self, batch: MonitorBatch) -> Doubles:
        if batch.spec.head != "q":
            return np.zeros((0, 2))
        mask = batch.mask("compressed", self._against)
        values = batch.reference(self._against)[mask].astype(np.float64)
        acted = batch.mu[mask]
        finite = np.isfinite(values).all(1) & np.isfinite(acted).all(1)
        found = np.full((len(values), 2), np.inf)
        values, chosen = values[finite], acted[finite].argmax(1)
        best = values.max(1)
        found[finite, 0] = best - values[np.arange(len(values)), chosen]
        found[finite, 1] = best - values.mean(1)
        return found

    def _read(self, values: Doubles) -> float:
        regret, usual = _statistic(values[:, 0], self._statistic), float(values[:, 1].mean())
        return regret / usual if usual > 0.0 else 0.0


class Entropy(WindowedIndicator):
    """Mean entropy of the policy in nats (of the Gaussian before the tanh); not for ``tanh`` heads.

    Args:
        network: ``"pi"``, the learner's, or ``"mu"``, the one that acted.
        window: number of rows.
    """

    def __init__(self, network: Literal["pi", "mu"] = "pi", *, window: int = WINDOW) -> None:
        _checked(network, ("pi", "mu"), "network")
        super().__init__("entropy" if network == "pi" else "entropy_mu", window, FEWEST)
        self._network = network

    def _rows(self, batch: MonitorBatch) -> Doubles:
        if batch.spec.head == "tanh":
            return np.zeros(0)
        outputs = batch.pi if self._network == "pi" else batch.mu
        finite = np.isfinite(outputs).all(1)
        found = np.full(len(outputs), np.inf)
        found[finite] = entropy(batch.spec, outputs[finite], batch.exploration)
        return found

    def _read(self, values: Doubles) -> float:
        return float(values.mean())
