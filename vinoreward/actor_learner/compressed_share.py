"""The fraction of steps that acted compressed, the age of those weights, and an alarm."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from vinoreward.actor_learner.transport.link import ActorSettings
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, Trajectory

WINDOW = 50
"""Updates in the alarm's window."""
NEAR_ZERO = 0.1
"""Fraction of compressed steps below which the alarm is raised."""


class CompressedShare:
    """Counts the steps of updates by the network that acted."""

    def __init__(self) -> None:
        self._steps = self._compressed = 0
        self._ages: Counter[int] = Counter()
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._raised = False

    def add(self, trajectories: Sequence[Trajectory], version: int) -> None:
        """Count the steps of an update.

        Args:
            trajectories: of the update; at least one.
            version: of the learner's last push.
        """
        steps = compressed = 0
        for one in trajectories:
            chosen = one.network == COMPRESSED
            steps += one.network.size
            compressed += int(chosen.sum())
            ages, counts = np.unique(version - one.versions[chosen], return_counts=True)
            self._ages.update(dict(zip(ages.tolist(), counts.tolist(), strict=True)))
        self._last.append(compressed / max(1, steps))
        if self._compressed or compressed:
            self._steps += steps
            self._compressed += compressed

    @property
    def share(self) -> float:
        """Fraction of steps that acted compressed, counted from the first of them; 0 if none."""
        return self._compressed / self._steps if self._steps else 0.0

    @property
    def staleness(self) -> float:
        """Median number of pushes that compressed weights were behind; NaN if none acted."""
        left = self._compressed / 2
        for age in sorted(self._ages):
            left -= self._ages[age]
            if left <= 0:
                return float(age)
        return float("nan")

    def alarm(self, settings: ActorSettings, behind: int | None, limit: int) -> str | None:
        """Return a warning if almost no steps act compressed; once until the fraction recovers.

        Args:
            settings: of the actors.
            behind: how many pushes the newest compressed weights are behind; None if there are
                none.
            limit: ``max_staleness``.
        """
        share = float(np.mean(self._last)) if self._last else 1.0
        if share >= NEAR_ZERO:
            self._raised = False
        if self._raised or share >= NEAR_ZERO or len(self._last) < WINDOW:
            return None
        self._raised = True
        found = f"only {share:.0%} of the steps of the last {WINDOW} updates acted compressed: "
        if not settings.enabled:
            return (
                f"{found}compression is switched off. Compress less, or watch without switching "
                "(--monitor watch)"
            )
        if settings.alpha < 1.0:
            return (
                f"{found}the monitor lets the compressed network act in {settings.alpha:.0%} of "
                "the blocks. Compress less, or choose another monitor"
            )
        if behind is None:
            return f"{found}there are no compressed weights yet. Use a cheaper compression"
        if 2 * behind < limit:
            return (
                f"{found}the newest compressed weights are only {behind} pushes old, so actors "
                "cannot act with them or rarely take them. See what actors report; compress less, "
                "or pull more often (pull_period)"
            )
        return (
            f"{found}the newest compressed weights are {behind} pushes old, and actors use none "
            f"older than {limit}. Use a cheaper compression (distill batch=16, a smaller student), "
            "push less often (push_period), or allow older weights (max_staleness)"
        )
