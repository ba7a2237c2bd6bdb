"""Replays the actions that led to a claim from another start.

Where resets differ, a claim that depends on what the reset put there must go. No interventions are
needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vinoreward_training.audit.checks import Check, Subject, share_check
from vinoreward_training.audit.env import LEAST_CLAIMS, UNDONE, AuditEnv, Episode, difference
from vinoreward_training.audit.interventions import STAY

REPLAYS = 50
"""Claims whose actions are replayed."""
STEPS = 10_000
"""Most steps to play for them."""


@dataclass
class ReplayReport:
    """What came of the same actions from another start."""

    claims: int = 0
    """Claims met."""
    steps: int = 0
    replayed: int = 0
    """Those of them whose actions could be replayed, from a start that looks different."""
    stay: int = 0
    """Of these, claimed again."""
    failures: int = 0
    """Of these, no success by the environment's own truth."""
    false: int = 0
    """Failures that are claimed."""
    alike: int = 0
    """Claims whose other start looked the same, so that a replay says nothing."""
    truth_known: bool = False

    @property
    def conclusive(self) -> bool:
        """Whether the cause of enough claims was removed."""
        return self.failures >= LEAST_CLAIMS

    def checks(self) -> Iterator[Check]:
        """Yield the checks of replays and of the robot's state."""
        met = "met by replaying a claim's actions from another start"
        sentence = f"of {self.failures} failures, {met}, it claims {self.false}"
        yield share_check(sentence, self.false, self.failures, STAY)

    @property
    def note(self) -> str:
        """How much this says."""
        if self.replayed < LEAST_CLAIMS:
            alike = f"; {self.alike} starts looked alike" if self.alike else ""
            return (
                f"The actions of {self.replayed} claims were replayed from another start, too few "
                f"to say anything ({self.claims} claims in {self.steps} steps{alike})."
            )
        known = "the environment does not tell which of them are true"
        if self.truth_known:
            known = f"{self.failures} of these were failures, {self.false} of them claimed"
        return (
            f"Of {self.replayed} claims {self.stay} stay when the same actions are replayed from "
            f"another start; {known}."
        )


def replay_claims(subject: Subject, played: AuditEnv, report: ReplayReport) -> Iterator[str]:
    """Play until there are enough claims; replay each one's actions from another start.

    Yields what is done next.
    """
    random = np.random.default_rng([subject.seed, 0x5A3E])
    played.env.action_space.seed(int(random.integers(2**31)))
    while report.replayed < REPLAYS and report.steps < STEPS:
        yield f"replays: {report.replayed} of {REPLAYS}"
        episode = played.play(subject, random, STEPS - report.steps)
        report.steps += len(episode.actions)
        if episode.claim is not None:
            report.claims += 1
            _replay(subject, played, episode, report, int(random.integers(2**31)))


def _replay(
    subject: Subject, played: AuditEnv, episode: Episode, report: ReplayReport, seed: int
) -> None:
    observation, _ = played.env.reset(seed=seed)
    if difference(episode.first, played.take(observation)) <= UNDONE:
        report.alike += 1
        return
    info: Mapping[str, Any] = {}
    for number, action in enumerate(episode.actions, 1):
        observation, _, terminated, truncated, info = played.env.step(action)
        report.steps += 1
        if (terminated or truncated) and number < len(episode.actions):
            return
    image = played.take(observation)
    scores, true = subject.score(image[None]), played.truth(info)
    claimed = bool(scores.rewarded[0])
    report.replayed += 1
    report.stay += claimed
    if true is not None:
        report.truth_known = True
        report.failures += not true
        report.false += claimed and not true
        if claimed and not true:
            cause = "same actions from another start"
            subject.false_positives.add(image[None], scores.probability, cause)
