"""Counters of a training: progress reports, summary, and the fraction of compressed steps."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vinoreward_actors.actor_learner.acting.environments import Episode
from vinoreward_actors.actor_learner.acting.evaluation import Evaluation
from vinoreward_actors.actor_learner.acting.profile import Breakdown
from vinoreward_actors.actor_learner.engines.base import Event
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, Trajectory
from vinoreward_actors.policies.policy import Policy


@dataclass(frozen=True)
class Progress:
    """State of a training after an update.

    Attributes:
        steps: environment steps, including those before a resume.
        updates: of the learner.
        seconds: of this process.
        metrics: the learner's latest, plus ``lag_mean``, ``lag_max`` (pushes) and
            ``compressed_share`` of the last trajectories; ``dropped``: trajectories that were too
            old, so far.
        readings: the monitor's latest.
        mean_return: of the last 100 episodes.
        episodes: finished so far.
        events: about processes, since the last progress.
        changes: of the compression since the last progress, as clauses.
        compressor: its reports since the last progress.
        evaluations: finished since the last progress.
        ended: episodes finished since the last progress.
    """

    steps: int
    updates: int
    seconds: float
    metrics: dict[str, float]
    readings: dict[str, float]
    mean_return: float
    episodes: int
    events: tuple[Event, ...] = ()
    changes: tuple[str, ...] = ()
    compressor: tuple[dict[str, Any], ...] = ()
    ended: tuple[Episode, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()


@dataclass(frozen=True)
class Summary:
    """Result of a training.

    Attributes:
        steps: environment steps in all.
        updates: of the learner.
        seconds: of this process.
        mean_return: of the last 100 behaviour episodes; not an evaluation.
        profile: breakdown of the actors' time.
        learner_seconds: wall time of updates and pushes per environment step.
        stopped: whether ``on_progress`` ended the training.
        compressed_share: fraction of steps that acted compressed, counted from the first of them;
            0 if there are none, NaN without a compressor.
        staleness: median number of pushes that compressed weights were behind when the learner used
            their steps; NaN if none acted.
        evaluations: finished after the last progress: running or due at the end. Empty if
            ``on_progress`` ended the training.
        compressor: its reports after the last progress.
        policy: the last pushed weights, in full precision.
        compressed: the last weights from the compressor; of an earlier push if it was late.
    """

    steps: int
    updates: int
    seconds: float
    mean_return: float
    profile: Breakdown
    learner_seconds: float
    stopped: bool
    compressed_share: float
    staleness: float
    evaluations: tuple[Evaluation, ...]
    compressor: tuple[dict[str, Any], ...]
    policy: Policy = field(repr=False)
    compressed: Policy | None = field(repr=False)


@dataclass
class Totals:
    """Counters that continue after a resume."""

    steps: int = 0
    version: int = 0
    episodes: int = 0
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    """Of the last episodes; their scores if those differ from the rewards."""

    @property
    def mean_return(self) -> float:
        """Mean return of the last episodes; NaN before the first."""
        return float(np.mean(self.returns)) if self.returns else float("nan")


class CompressedShare:
    """Counts the steps of updates by the network that acted."""

    def __init__(self) -> None:
        self._steps = self._compressed = 0
        self._ages: Counter[int] = Counter()

    def add(self, trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
        """Count the steps of an update; return their lag and the fraction that acted compressed."""
        steps = compressed = 0
        for one in trajectories:
            chosen = one.network == COMPRESSED
            steps += one.network.size
            if chosen.any():
                compressed += int(chosen.sum())
                ages, counts = np.unique(version - one.versions[chosen], return_counts=True)
                self._ages.update(dict(zip(ages.tolist(), counts.tolist(), strict=True)))
        if self._compressed or compressed:
            self._steps += steps
            self._compressed += compressed
        behind = [version - one.versions for one in trajectories]
        shares = [(one.network == COMPRESSED).mean() for one in trajectories]
        return {
            "lag_mean": float(np.mean([part.mean() for part in behind])),
            "lag_max": float(max(part.max() for part in behind)),
            "compressed_share": float(np.mean(shares)),
        }

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
