"""AcceRL's three stages of a training, derived from the progress of its return."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward.monitoring.setting import CompressionSetting
from vinoreward.monitoring.strategy import Readings, Strategy

Stage = Literal["exploration", "improving", "convergence"]
EXPLORATION: Mapping[str, Any] = {"bits": 8, "sparsity": 0.75}
IMPROVING: Mapping[str, Any] = {"bits": 16, "sparsity": 0.25}
CONVERGENCE: Mapping[str, Any] = {"bits": 8, "sparsity": 0.5}


ERRORS = 4.0
"""Standard errors that count as significant: windows overlap, so a training has many tests."""


def trend(values: Sequence[float]) -> tuple[float, float, float]:
    """Fit a line to at least 3 values; return its rise, the rise's error, and its first value."""
    count = len(values)
    times = np.arange(count) - 0.5 * (count - 1)
    seen = np.array(values)
    spread = float((times**2).sum())
    slope = float(times @ seen) / spread
    left = seen - seen.mean() - slope * times
    error = math.sqrt(float((left**2).sum()) / ((count - 2) * spread))
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

    remembered = ("stage", "seen", "still")

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
        self._changes: dict[str, dict[str, Any]] = {
            "exploration": dict(exploration),
            "improving": dict(improving),
            "convergence": dict(convergence),
        }
        for change in self._changes.values():
            CompressionSetting().changed(change)
        self._reading, self._window = reading, window
        self._patience, self._least = patience, least
        self.stage: Stage | None = None
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
