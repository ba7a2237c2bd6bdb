"""Hysteresis, patience and cooldown for every strategy that steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vinoreward.errors import ConfigError
from vinoreward.monitoring.strategy import Readings, Remembering

Verdict = Literal["bad", "good", "between", "absent", "resting"]


@dataclass(frozen=True)
class Limit:
    """Limits of a reading, with hysteresis.

    Attributes:
        reading: its name.
        bad: beyond it the strategy acts at once.
        good: on the safe side of it the strategy may step back; between the two it does nothing.
            Below ``bad`` if large readings are bad, above ``bad`` if small ones are.

    Raises:
        ConfigError: ``bad`` and ``good`` are equal or not finite.
    """

    reading: str
    bad: float
    good: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bad) and math.isfinite(self.good)) or self.bad == self.good:
            raise ConfigError(
                f"the limits of {self.reading} are {self.bad} and {self.good}. Expected two "
                "different numbers: without room between them a strategy flaps."
            )

    def too_far(self, value: float) -> bool:
        """Return whether a value is beyond ``bad``."""
        return value > self.bad if self.bad > self.good else value < self.bad

    def fine(self, value: float) -> bool:
        """Return whether a value is on the safe side of ``good``."""
        return value < self.good if self.bad > self.good else value > self.good

    def words(self, value: float) -> str:
        """Return a clause about a value that is beyond ``bad``."""
        side = "above" if self.bad > self.good else "below"
        return f"{self.reading} is {value:.4g}, {side} its limit {self.bad:.4g}"


class Judge(Remembering):
    """Says whether readings are bad, or have been good for long enough.

    Args:
        limits: one bad reading is enough for ``"bad"``; ``"good"`` needs all present readings good.
        patience: good rounds in a row before ``"good"``. Each relapse doubles it, so a compression
            that keeps failing is retried less and less often.
        cooldown: rounds without a verdict after a change; at least as many as a compressor takes
            for one policy.
        longest: maximum of patience.

    Raises:
        ConfigError: no limits, or numbers below 1 (cooldown: 0).
    """

    remembered = ("rounds", "rest", "relapses")

    def __init__(
        self, limits: Sequence[Limit], *, patience: int, cooldown: int, longest: int = 100_000
    ) -> None:
        if not limits or patience < 1 or cooldown < 0 or longest < patience:
            raise ConfigError(
                f"a strategy has {len(limits)} limits, patience {patience} (at most {longest}) and "
                f"cooldown {cooldown}. Expected at least one limit, patience from 1, cooldown from "
                "0."
            )
        self.limits = tuple(limits)
        self.patience, self.cooldown, self.longest = patience, cooldown, longest
        self.rounds = 0
        self.rest = 0
        self.relapses = 0
        self.reason = ""

    def lengthened(self, rounds: int) -> int:
        """Return a waiting time, doubled for each relapse."""
        longest = max(self.longest, rounds)
        return min(rounds << min(self.relapses, 32), longest)

    def verdict(self, readings: Readings) -> Verdict:
        """Return the verdict on a round's readings; sets ``reason``."""
        if self.rest > 0:
            self.rest -= 1
            return "resting"
        seen = [
            (limit, readings[limit.reading]) for limit in self.limits if limit.reading in readings
        ]
        for limit, value in seen:
            if limit.too_far(value):
                self.rounds = 0
                self.reason = limit.words(value)
                return "bad"
        if not seen:
            return "absent"
        if not all(limit.fine(value) for limit, value in seen):
            self.rounds = 0
            return "between"
        self.rounds += 1
        if self.rounds < self.lengthened(self.patience):
            return "between"
        worst = ", ".join(f"{limit.reading} {value:.4g}" for limit, value in seen)
        self.reason = f"{self.rounds} good rounds in a row ({worst})"
        self.rounds = 0
        return "good"

    def changed(self, *, relapsed: bool = False, forgiven: bool = False) -> None:
        """Start the cooldown after a change of the setting.

        Args:
            relapsed: the change takes back a step that was made because all was good.
            forgiven: nothing changed; a long good stretch cancels one relapse.
        """
        if forgiven:
            self.relapses = max(0, self.relapses - 1)
            return
        self.relapses += relapsed
        self.rest = self.cooldown
        self.rounds = 0

    def reads(self) -> tuple[str, ...]:
        """Return the names of all readings with a limit."""
        return tuple(limit.reading for limit in self.limits)
