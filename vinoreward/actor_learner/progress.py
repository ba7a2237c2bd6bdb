"""Progress reports and summary of a training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vinoreward.actor_learner.acting.environments import Episode
from vinoreward.actor_learner.acting.evaluation import Evaluation
from vinoreward.actor_learner.acting.profile import Breakdown
from vinoreward.actor_learner.engines.supervisor import Event
from vinoreward.policies.policy import Policy


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
        pushed: whether this update's weights were pushed to actors.
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
    pushed: bool = True


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
    policy: Policy = field(repr=False)
    compressed: Policy | None = field(repr=False)
