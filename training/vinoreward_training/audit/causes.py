"""Takes the cause of a claim away, in an environment that can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.interventions import Intervention
from vinoreward_actors.actor_learner.acting.environments import as_config_error
from vinoreward_training.audit.battery import KEPT, Battery, look

CLAIMS = 100
"""Claims to look at, each of another episode."""
LEAST_CLAIMS = 10
"""With fewer nothing is said."""
STEPS = 20_000
"""Steps to play for them."""
STAY = 0.05
"""Largest share of claims that may stay when their cause is gone."""
_APPLIES = "apply(random) that changes the environment and returns what undoes it; mend it"
RESTORED = 0.5
"""Grey levels that an image may differ by, on average, once a change is undone."""


@dataclass
class Change:
    """What one kind of change did to claims."""

    name: str
    success: bool
    """Whether they should stay."""
    claimed: int = 0
    """Claims that were looked at."""
    stay: int = 0
    """Those of them that stay."""

    def fault(self) -> str | None:
        """Return a sentence if surely too many or too few stay."""
        low = clopper_pearson(self.stay, self.claimed, 0.95, "lower")[0]
        high = clopper_pearson(self.stay, self.claimed, 0.95, "upper")[1]
        if not self.success and low > STAY:
            return f"of {self.claimed} claims {self.stay} stay after this: {self.name}"
        if self.success and high < KEPT:
            return (
                f"of {self.claimed} claims only {self.stay} stay after this, which should not "
                f"matter: {self.name}"
            )
        return None


@dataclass
class Causes:
    """What the changes did, and how many claims and steps there were."""

    changes: list[Change] = field(default_factory=list)
    claims: int = 0
    steps: int = 0

    @property
    def told(self) -> bool:
        """Whether a cause was taken away, often enough."""
        return self.claims >= LEAST_CLAIMS and any(not each.success for each in self.changes)

    def faults(self, *, success: bool = False) -> list[str]:
        """Return a sentence for each change that shows a fault, or with ``success`` a miss."""
        if self.claims < LEAST_CLAIMS:
            return []
        changes = [change for change in self.changes if change.success == success]
        return [fault for change in changes if (fault := change.fault()) is not None]

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
        return f"{self.claims} claims of as many episodes were looked at, in {self.steps} steps."


def remove_causes(
    classifier: Classifier,
    env: Any,
    image: Callable[[Any], npt.NDArray[np.uint8]],
    act: Callable[[Any], Any] | None,
    interventions: Sequence[Intervention],
    found: Causes,
    fooled: Battery,
    *,
    seed: int,
    claims: int = CLAIMS,
    steps: int = STEPS,
) -> Iterator[str]:
    """Play until there are enough claims; change each one's state in every way, and undo it.

    Args:
        classifier: as it will judge.
        env: the environment.
        image: takes its image, given an observation.
        act: plays, given an observation; None plays at random.
        interventions: of the environment.
        found: takes the counts.
        fooled: takes images of claims that stay.
        seed: of episodes, actions and changes.
        claims: to look at.
        steps: to play at most.

    Yields:
        The name of each episode, before it is played.

    Raises:
        ConfigError: a change that is not undone.
    """
    found.changes = [Change(one.name, one.success) for one in interventions]
    if not interventions:
        return
    random = np.random.default_rng([seed, 0xCA5E])
    env.action_space.seed(int(random.integers(2**31)))
    while found.claims < claims and found.steps < steps:
        yield f"claims: {found.claims} of {claims}"
        observation, _ = env.reset(seed=int(random.integers(2**31)))
        ended = False
        while not ended and found.steps < steps:
            action = env.action_space.sample() if act is None else act(observation)
            observation, _, terminated, truncated, _ = env.step(action)
            found.steps += 1
            ended = bool(terminated or truncated)
            before = image(observation)
            if not classifier.compute_reward(before[None])[0]:
                continue
            found.claims += 1
            for one, change in zip(interventions, found.changes, strict=True):
                with as_config_error(f"the intervention {one.name!r} fails", _APPLIES):
                    undo = one.apply(random)
                after = image(observation)
                with as_config_error(f"the intervention {one.name!r} fails", _APPLIES):
                    undo()
                seen = look(classifier, after[None])
                change.claimed += 1
                if seen.paid[0]:
                    change.stay += 1
                    if not one.success:
                        fooled.show(after[None], seen.probability, one.name)
                _check_undone(before, image(observation), one)
            break  # the frames of one episode resemble each other


def _check_undone(
    before: npt.NDArray[np.uint8], after: npt.NDArray[np.uint8], one: Intervention
) -> None:
    differ = float(np.abs(before.astype(np.float64) - after).mean())
    if differ > RESTORED:
        raise ConfigError(
            f"the intervention {one.name!r} does not undo what it did: the image differs by "
            f"{differ:.1f} grey levels from the one before. Expected apply(random) to return a "
            "function that brings the environment back; correct it."
        )
