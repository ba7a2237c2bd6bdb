"""Searches an environment's states for false claims.

A space of at most three axes is searched on a grid; a larger one by a low-discrepancy sample
(Sobol) and, from its worst states, by the cross-entropy method (Rubinstein & Kroese 2004, "The
cross-entropy method").
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.interventions import Axis, SearchSpace
from vinoreward_training.audit.checks import Check, Floats, Images, Subject, share_check
from vinoreward_training.audit.corruptions import FALSELY_CLAIMED
from vinoreward_training.audit.states import FAILURE, STARTS, StateScores, StateTable, Truth, climb
from vinoreward_training.classifier.corruptions import CORRUPTIONS, corrupted

STATES = 4096
"""In each space, about; half as many more are scored near the worst of a large one."""
GRID_AXES = 3
"""A space of more axes is sampled."""
NEIGHBOURS = 32
"""States around a false claim that show whether it is one of many."""
NEARBY = 0.01
"""They are within this share of each axis."""
CORRUPTED = 16
"""One in so many of the states is scored under each corruption, and half as many of the worst."""


@dataclass
class Hole:
    """A failure that is claimed."""

    state: tuple[float, ...]
    probability: float
    around: int
    """Failures close to it that were scored."""
    claimed: int
    """Those of them that are claimed too."""

    @property
    def open(self) -> bool:
        """Whether a policy can rest in it: most states around it are claimed too."""
        return self.claimed * 2 > self.around > 0


@dataclass
class CorruptedSearch:
    """How many sampled failures of a space are claimed under one corruption."""

    corruption: str
    strength: float
    failures: int
    claimed: int


@dataclass
class SearchReport:
    """What a search of one space found."""

    space: str
    axes: tuple[Axis, ...]
    states: int = 0
    failures: int = 0
    """Of the sampled states."""
    claimed: int = 0
    """Those of them that are claimed."""
    most: float = 0.0
    """Largest probability of a failure."""
    at: tuple[float, ...] = ()
    """Its state."""
    holes: list[Hole] = field(default_factory=list)
    corrupted: list[CorruptedSearch] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return dataclasses.asdict(self) | {"rate_high": self.rate_high}

    @property
    def rate_high(self) -> float:
        """One-sided 95 % upper bound of the share of failures that are claimed."""
        return clopper_pearson(self.claimed, self.failures, 0.95, "upper")[1]

    def place(self, state: Sequence[float]) -> str:
        """Name a state."""
        parts = zip(self.axes, state, strict=True)
        return ", ".join(f"{axis.name} {value:.4g} {axis.unit}".strip() for axis, value in parts)

    def checks(self) -> Iterator[Check]:
        """Yield the checks of holes and rates."""
        space = f"in the space {self.space!r}"
        holes = [hole for hole in self.holes if hole.open]
        sentence = ""
        if holes:
            worst = max(holes, key=lambda one: one.probability)
            sentence = (
                f"{space} it claims a failure and most states around it "
                f"(P {worst.probability:.3f} at {self.place(worst.state)})"
            )
        measure = f"a hole {space}"
        yield Check(sentence, bool(holes), measure=measure, value=float(bool(holes)))
        sentence = f"{space} it claims {self.claimed} of {self.failures} failures"
        measure = f"failures claimed {space}"
        yield share_check(sentence, self.claimed, self.failures, FALSELY_CLAIMED, measure=measure)
        for one in self.corrupted:
            sentence = f"{space} it claims {one.claimed} of {one.failures} failures"
            sentence += f" under {one.corruption} {one.strength:g}"
            yield share_check(sentence, one.claimed, one.failures, FALSELY_CLAIMED)


def search(
    subject: Subject,
    space: SearchSpace,
    take: Callable[[], Images],
    report: SearchReport,
    *,
    states: int = STATES,
) -> Iterator[str]:
    """Search a space for failures that are claimed; yield what is done next.

    ``take`` returns the environment's image; about ``states`` are sampled. ConfigError: a
    ``set_state`` that fails.
    """

    def score(images: Images, truth: Truth) -> StateScores:
        scores = subject.score(images)
        wrong = scores.rewarded & (truth == FAILURE)
        subject.false_positives.add(images[wrong], scores.probability[wrong], space.name)
        log_odds = scores.log_odds
        if scores.ood_score is not None:  # lower where the OOD detector withholds a claim
            log_odds = log_odds - 10.0 * np.clip(scores.ood_score - 1.0, 0.0, 2.0)
        return StateScores(scores.probability, log_odds, scores.rewarded)

    table = StateTable(space, take, score)
    random = np.random.default_rng([subject.seed, 0x5EA7])
    on_grid = len(space.axes) <= GRID_AXES
    sample = grid(space.axes, states) if on_grid else table.sample(states, subject.seed)
    yield from table.add(sample, "")
    if not on_grid:
        yield from climb(table, random, states // 4)
    report.failures = int((table.truth[: len(sample)] == FAILURE).sum())
    report.claimed = int(table.false[: len(sample)].sum())
    if (worst := table.worst(1)).size:
        report.at = tuple(table.states[worst[0]].tolist())
        report.most = float(table.probability[worst[0]])
    yield from _measure_holes(table, random, report)
    yield from _corrupt(subject, table, report, len(sample), states // CORRUPTED)
    report.states = len(table.states)


def grid(axes: Sequence[Axis], states: int) -> Floats:
    """Return the states ``(N, K)`` of a grid: at most ``states``, at least two along each axis.

    Along axes of one unit the spacing is about the same; it is as if the longest axes of all units
    had one length. States lie in the middle of cells, so that each stands for the same area.
    """
    longest: dict[str, float] = {}
    for axis in axes:
        longest[axis.unit] = max(longest.get(axis.unit, 0.0), axis.high - axis.low)
    shares = [(axis.high - axis.low) / longest[axis.unit] for axis in axes]

    def numbers(count: int) -> list[int]:
        return [max(2, round(share * count)) for share in shares]

    count = 2
    while math.prod(numbers(count + 1)) <= states:
        count += 1
    lines = [
        axis.low + (axis.high - axis.low) * (np.arange(n) + 0.5) / n
        for axis, n in zip(axes, numbers(count), strict=True)
    ]
    return np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, len(axes))


def _measure_holes(
    table: StateTable, random: np.random.Generator, report: SearchReport
) -> Iterator[str]:
    """Score states around false claims that are apart."""
    wrong = np.flatnonzero(table.false)
    wrong = wrong[np.argsort(-table.score[wrong], kind="stable")]
    for index in table.distinct(wrong, STARTS):
        state, before = table.states[index], len(table.states)
        around = random.uniform(-NEARBY, NEARBY, (NEIGHBOURS, len(state)))
        yield from table.add(state + table.span * around, ", around a false claim")
        failures = int((table.truth[before:] == FAILURE).sum())
        claimed, probability = int(table.false[before:].sum()), float(table.probability[index])
        report.holes.append(Hole(tuple(state.tolist()), probability, failures, claimed))


def _corrupt(
    subject: Subject, table: StateTable, report: SearchReport, sampled: int, states: int
) -> Iterator[str]:
    """Score failures under each corruption: some of the sampled ones, and the worst."""
    failures = np.flatnonzero(table.truth[:sampled] == FAILURE)
    some = failures[:: max(1, len(failures) // states)]
    if not len(some):
        return
    yield f"{table.space.name}: images of the worst"
    both = np.concatenate([some, table.worst(states // 2)])
    images = np.stack([table.visit(table.states[index])[1] for index in both])
    for one in CORRUPTIONS:
        for strength in one.strengths:
            name = f"{table.space.name}, {one.name} {strength:g}"
            yield name
            changed = corrupted(one, strength, images, seed=subject.seed)
            scores = subject.score(changed)
            new = scores.rewarded & ~table.claimed[both]
            subject.false_positives.add(changed[new], scores.probability[new], name)
            claimed = int(scores.rewarded[: len(some)].sum())
            report.corrupted.append(CorruptedSearch(one.name, strength, len(some), claimed))
