"""What a training tells whoever watches it."""

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
    """Where a training stands, after an update.

    Attributes:
        steps: environment steps, those before a resume included.
        updates: of the learner.
        seconds: of this process.
        metrics: the learner's last, and of the last trajectories ``lag_mean``, ``lag_max`` (pushes)
            and ``compressed_share``; ``dropped``: trajectories that were too old, so far.
        readings: the monitor's last.
        mean_return: of the last 100 episodes.
        episodes: that have ended.
        events: what happened to processes since the last progress.
        changes: of the compression since the last progress, in words.
        compressor: its reports since the last progress.
        evaluations: that have ended since the last progress.
        ended: episodes that have ended since the last progress.
        pushed: whether actors were given the weights of this very update.
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
    """What a training came to.

    Attributes:
        steps: environment steps in all.
        updates: of the learner.
        seconds: of this process.
        mean_return: of the last 100 behaviour episodes; no evaluation.
        profile: where the actors' time went.
        learner_seconds: wall time of updates and pushes per environment step.
        stopped: whether ``on_progress`` ended it.
        compressed_share: part of the steps, from the first one that acted compressed, that did; 0
            if none did, NaN without a compressor.
        staleness: pushes by which compressed weights were behind the learner's when what they acted
            was learned from, the median; NaN if nothing acted compressed.
        evaluations: that have ended after the last progress: one that was under way, or due, at the
            end. None if ``on_progress`` ended it.
        policy: the weights pushed last, in full precision.
        compressed: what the compressor made of them, or of those before if it was late.
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
