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
import numpy.typing as npt

from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.interventions import Axis, SearchSpace
from vinoreward_training.audit.battery import FALSELY_CLAIMED, Battery, look
from vinoreward_training.audit.states import (
    APART,
    FAILURE,
    STARTS,
    Images,
    Looked,
    States,
    StateScores,
    Truth,
    climb,
)
from vinoreward_training.classifier.corruptions import CORRUPTIONS as SHIFTS
from vinoreward_training.classifier.corruptions import corrupted as shifted

STATES = 4096
"""Spread over each space, about; half as many more are looked at near the worst of a large one."""
PLANE_AXES = 2
"""The area of false claims is measured in the plane of so many axes, the first."""
GRID_AXES = 3
"""A space of more axes is sampled."""
NEIGHBOURS = 32
"""States around a false claim that show whether it is one of many."""
NEARBY = 0.01
"""They are within this share of each axis."""
SHIFTED = 16
"""One in so many of the states is looked at under each shift, and half as many of the worst."""


@dataclass
class Hole:
    """A failure that is claimed."""

    state: tuple[float, ...]
    probability: float
    around: int
    """Failures close to it that were looked at."""
    claimed: int
    """Those of them that are claimed too."""

    @property
    def open(self) -> bool:
        """Whether a policy can rest in it: most states around it are claimed too."""
        return self.claimed * 2 > self.around > 0


@dataclass
class Under:
    """What is claimed in a space under one shift."""

    shift: str
    strength: float
    failures: int
    claimed: int
    """Of the spread states."""
    worst: int
    """Of the states that were worst on clean images."""


@dataclass
class Searched:
    """What a search of one space found."""

    space: str
    axes: tuple[Axis, ...]
    states: int = 0
    failures: int = 0
    """Of the spread states."""
    claimed: int = 0
    """Those of them that are claimed."""
    most: float = 0.0
    """Largest probability of a failure that the guard lets pass."""
    at: tuple[float, ...] = ()
    """Its state."""
    plane: float = 0.0
    """Area (in the product of the first two axes' units) of false claims: of a space of two axes,
    else of the plane through ``at`` in which the two first vary."""
    cell: float = 0.0
    """Area for which one state of that plane stands."""
    holes: list[Hole] = field(default_factory=list)
    under: list[Under] = field(default_factory=list)
    drawn: tuple[States, States, npt.NDArray[np.bool_]] | None = field(default=None, repr=False)
    """States (N, K) of the plane, log-odds (NaN for what is no failure), and false claims."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        values = dataclasses.asdict(dataclasses.replace(self, drawn=None))
        del values["drawn"]
        return values | {"rate_high": self.rate_high, "area": self.area()}

    @property
    def rate_high(self) -> float:
        """One-sided 95 % upper bound of the share of failures that are claimed."""
        return clopper_pearson(self.claimed, self.failures, 0.95, "upper")[1]

    def place(self, state: Sequence[float]) -> str:
        """Name a state."""
        parts = zip(self.axes, state, strict=True)
        return ", ".join(f"{axis.name} {value:.4g} {axis.unit}".strip() for axis, value in parts)

    def area(self) -> str:
        """``plane`` with its unit."""
        units = [axis.unit for axis in self.axes[:2]]
        if units == ["m", "m"]:
            return f"{1e4 * self.plane:.3g} cm²"
        if len(units) == 1 or not all(units):
            return f"{self.plane:.3g} {units[0]}".strip()
        return f"{self.plane:.3g} {units[0]} x {units[1]}"

    def faults(self) -> list[str]:
        """Return a sentence for each fault, the worst first."""
        found = []
        holes = [hole for hole in self.holes if hole.open]
        if holes:
            worst = max(holes, key=lambda one: one.probability)
            found.append(
                f"in the space {self.space!r} it claims a failure and most states around it "
                f"(P {worst.probability:.3f} at {self.place(worst.state)}; {self.area()} in the "
                "plane of the worst)"
            )
        if clopper_pearson(self.claimed, self.failures, 0.95, "lower")[0] > FALSELY_CLAIMED:
            found.append(
                f"in the space {self.space!r} it claims {self.claimed} of {self.failures} failures"
            )
        for one in self.under:
            if clopper_pearson(one.claimed, one.failures, 0.95, "lower")[0] > FALSELY_CLAIMED:
                found.append(
                    f"in the space {self.space!r} it claims {one.claimed} of {one.failures} "
                    f"failures under {one.shift} {one.strength:g}"
                )
        return found


def search(
    classifier: Classifier,
    space: SearchSpace,
    image: Callable[[], Images],
    found: Searched,
    fooled: Battery,
    *,
    seed: int,
    states: int = STATES,
) -> Iterator[str]:
    """Look for failures that are claimed; yield what is done next.

    Args:
        classifier: as it will judge, with its guard.
        space: to search.
        image: takes the environment's image.
        found: takes the counts.
        fooled: takes the images of false claims.
        seed: of samples and shifts.
        states: spread over the space, about.

    Raises:
        ConfigError: a ``set_state`` that fails.
    """

    def judge(images: Images, truth: Truth) -> StateScores:
        judged = classifier.predict(images)
        ood_score = np.zeros(len(images)) if judged.ood_score is None else judged.ood_score
        paid = (judged.probability >= np.float32(classifier.threshold)) & (ood_score <= 1.0)
        wrong = paid & (truth == FAILURE)
        fooled.show(images[wrong], judged.probability[wrong], space.name)
        # Lower where the guard withholds.
        score = judged.log_odds - 10.0 * np.clip(ood_score - 1.0, 0.0, 2.0)
        return StateScores(judged.probability, score, paid)

    looked = Looked(space, image, judge)
    random = np.random.default_rng([seed, 0x5EA7])
    exhaustive = len(space.axes) <= GRID_AXES
    spread = grid(space.axes, states) if exhaustive else looked.spread(states, seed)
    yield from looked.at(spread, f"{space.name}: ")
    count = len(spread)
    if not exhaustive:
        yield from climb(looked, random, states // 4)
    known = looked.truth[:count] == FAILURE
    found.failures, found.claimed = int(known.sum()), int((known & looked.paid[:count]).sum())
    if (worst := looked.worst(1)).size:
        at = looked.states[worst[0]]
        found.at, found.most = tuple(at.tolist()), float(looked.probability[worst[0]])
        yield from _plane(looked, at, found, count, states // 4)
    yield from _holes(looked, random, found)
    yield from _shifts(classifier, looked, found, fooled, count, states // SHIFTED, seed)
    found.states = len(looked.states)


def grid(axes: Sequence[Axis], states: int) -> States:
    """Return the states ``(N, K)`` of a grid: at most ``states``, at least two along each axis.

    Along axes of one unit the spacing is about the same; it is as if the longest axes of all units
    had one length.
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
        # In the middle of cells, so that each state stands for the same area.
        axis.low + (axis.high - axis.low) * (np.arange(n) + 0.5) / n
        for axis, n in zip(axes, numbers(count), strict=True)
    ]
    return np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, len(axes))


def _holes(looked: Looked, random: np.random.Generator, found: Searched) -> Iterator[str]:
    """Look around false claims that are apart."""
    wrong = np.flatnonzero(looked.paid & (looked.truth == FAILURE))
    apart: list[int] = []
    for index in wrong[np.argsort(-looked.score[wrong], kind="stable")].tolist():
        state = looked.states[index]
        if all((np.abs(state - looked.states[one]) / looked.span).max() > APART for one in apart):
            apart.append(index)
        if len(apart) == STARTS:
            break
    for index in apart:
        state = looked.states[index]
        around = random.uniform(-NEARBY, NEARBY, (NEIGHBOURS, len(state)))
        before = len(looked.states)
        near = state + looked.span * around
        yield from looked.at(near, f"{looked.space.name}, around one: ")
        failed = looked.truth[before:] == FAILURE
        found.holes.append(
            Hole(
                tuple(state.tolist()),
                float(looked.probability[index]),
                int(failed.sum()),
                int((failed & looked.paid[before:]).sum()),
            )
        )


def _plane(looked: Looked, at: States, found: Searched, spread: int, states: int) -> Iterator[str]:
    """Measure the area of false claims in the plane of the two first axes."""
    axes = looked.space.axes[:PLANE_AXES]
    area = math.prod(axis.high - axis.low for axis in axes)
    first, last = 0, spread
    if len(looked.space.axes) > len(axes):
        plane = grid(axes, states)
        first = len(looked.states)
        rest = np.broadcast_to(at[PLANE_AXES:], (len(plane), len(at) - PLANE_AXES))
        yield from looked.at(np.hstack([plane, rest]), f"{looked.space.name}, plane: ")
        last = len(looked.states)
    wrong = looked.paid[first:last] & (looked.truth[first:last] == FAILURE)
    score = looked.score[first:last]
    shown = np.where(np.isfinite(score), score, np.nan)
    found.drawn = looked.states[first:last], shown, wrong
    found.cell = area / (last - first)
    found.plane = found.cell * int(wrong.sum())


def _shifts(
    classifier: Classifier, looked: Looked, found: Searched, fooled: Battery, spread: int,
    states: int, seed: int,
) -> Iterator[str]:  # fmt: skip
    """Look at failures under each shift: some of the spread ones, and the worst."""
    failures = np.flatnonzero(looked.truth[:spread] == FAILURE)
    some = failures[:: max(1, len(failures) // states)]
    worst = looked.worst(states // 2)
    if not len(some):
        return
    yield f"{looked.space.name}: images of the worst"
    both = np.concatenate([some, worst])
    images = np.stack([looked.look_at(looked.states[index])[1] for index in both])
    before = looked.paid[both]
    for shift in SHIFTS:
        for strength in shift.strengths:
            name = f"{looked.space.name}, {shift.name} {strength:g}"
            yield name
            changed = shifted(shift, strength, images, seed=seed)
            seen = look(classifier, changed)
            paid = seen.paid
            new = paid & ~before
            fooled.show(changed[new], seen.probability[new], name)
            claimed = int(paid[: len(some)].sum())
            found.under.append(
                Under(shift.name, strength, len(some), claimed, int(paid[len(some) :].sum()))
            )


def spaces_searched(
    classifier: Classifier,
    env: Any,
    spaces: Sequence[SearchSpace],
    image: Callable[[Any], Images],
    found: list[Searched],
    fooled: Battery,
    *,
    seed: int,
    states: int = STATES,
) -> Iterator[str]:
    """Search each space of an environment, as :func:`search`; ``found`` takes a result for each."""
    observation, _ = env.reset(seed=seed)
    for space in spaces:
        found.append(Searched(space.name, space.axes))
        yield from search(
            classifier,
            space,
            lambda: image(observation),
            found[-1],
            fooled,
            seed=seed,
            states=states,
        )
