"""Removes the cause of a claim, in an environment that can: the claim must go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward_actors.actor_learner.acting.environments import as_config_error
from vinoreward_training.audit.checks import Check, Subject, share_check
from vinoreward_training.audit.corruptions import KEPT
from vinoreward_training.audit.env import LEAST_CLAIMS, UNDONE, AuditEnv, difference
from vinoreward_training.audit.progress import AS_MUCH, ProgressReport, ProgressRow

CLAIMS = 100
"""Claims to examine, each of another episode."""
STEPS = 20_000
"""Most steps to play for them."""
STAY = 0.05
"""Largest share of claims that may stay when their cause is gone."""
_APPLIES = "apply(random) that changes the environment and returns what undoes it; mend it"


@dataclass
class Change:
    """What one intervention did to claims."""

    name: str
    success: bool
    """Whether they should stay."""
    claimed: int = 0
    """Claims that were examined."""
    stay: int = 0
    """Those of them that stay."""

    def check(self) -> Check:
        """Return the check of claims that should have gone, or stayed."""
        share, stays = self.stay / max(1, self.claimed), "stay after this"
        if not self.success:
            sentence = f"of {self.claimed} claims {self.stay} {stays}: {self.name}"
            measure = f"claims that {stays}: {self.name}"
            return share_check(sentence, self.stay, self.claimed, STAY, measure=measure)
        high = clopper_pearson(self.stay, self.claimed, 0.95, "upper")[1]
        sentence = f"of {self.claimed} claims only {self.stay} {stays}, which should not matter"
        return Check(f"{sentence}: {self.name}", failed=high < KEPT, miss=True, value=1 - share)


@dataclass
class InterventionReport:
    """What the interventions did to claims."""

    changes: list[Change] = field(default_factory=list)
    claims: int = 0
    steps: int = 0

    @property
    def conclusive(self) -> bool:
        """Whether the cause of enough claims was removed."""
        return self.claims >= LEAST_CLAIMS and any(not each.success for each in self.changes)

    def checks(self) -> Iterator[Check]:
        """Yield a check of each intervention, if there were enough claims."""
        if self.claims >= LEAST_CLAIMS:
            yield from (change.check() for change in self.changes)

    @property
    def note(self) -> str:
        """How much this says."""
        if not self.changes:
            return (
                "The environment offers no interventions, so nothing says whether claims depend on "
                "their cause; see vinoreward.Intervention."
            )
        if self.claims < LEAST_CLAIMS:
            return (
                f"Only {self.claims} claims were met in {self.steps} steps of play, too few to say "
                "whether they depend on their cause; let a better --policy play."
            )
        return f"{self.claims} claims of as many episodes were examined, in {self.steps} steps."


def intervene(
    subject: Subject, played: AuditEnv, report: InterventionReport, progress: ProgressReport | None
) -> Iterator[str]:
    """Play until there are enough claims; apply every intervention to each, and undo it.

    Yields what is done next. ConfigError: an intervention that fails or is not undone.
    """
    report.changes = [Change(one.name, one.success) for one in played.interventions]
    rows = [ProgressRow(f"{AS_MUCH} after this: {one.name}") for one in played.interventions]
    random = np.random.default_rng([subject.seed, 0xCA5E])
    played.env.action_space.seed(int(random.integers(2**31)))
    while report.changes and report.claims < CLAIMS and report.steps < STEPS:
        yield f"claims: {report.claims} of {CLAIMS}"
        episode = played.play(subject, random, STEPS - report.steps)
        report.steps += len(episode.actions)
        if episode.claim is None:
            continue
        report.claims += 1
        observation, before, claim = episode.claim
        for one, change, row in zip(played.interventions, report.changes, rows, strict=True):
            with as_config_error(f"the intervention {one.name!r} fails", _APPLIES):
                undo = one.apply(random)
            image = played.take(observation)
            with as_config_error(f"the intervention {one.name!r} fails", _APPLIES):
                undo()
            scores = subject.score(image[None])
            change.claimed += 1
            if not one.success:
                row.add(scores.progress >= claim.progress)
            if scores.rewarded[0]:
                change.stay += 1
                if not one.success:
                    subject.false_positives.add(image[None], scores.probability, one.name)
            differs = difference(before, played.take(observation))
            if differs > UNDONE:
                raise ConfigError(
                    f"the intervention {one.name!r} does not undo what it did: the image differs "
                    f"by {differs:.1f} grey levels from the one before. Expected apply(random) to "
                    "return a function that brings the environment back; correct it."
                )
    if progress is not None and report.claims >= LEAST_CLAIMS:
        progress.rows += [row for row in rows if row.of]
