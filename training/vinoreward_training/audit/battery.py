"""What a classifier claims on shifted images, and on those of a dead or frozen camera."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.spatial.distance import cdist

from vinoreward.images import View
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.frozen import CLAIMED, distance, visible_change
from vinoreward_training.classifier.camera_failure import FAMILIES, UNSEEN_FAMILIES, held_out
from vinoreward_training.classifier.corruptions import CORRUPTIONS as SHIFTS
from vinoreward_training.classifier.corruptions import Corruption as Shift
from vinoreward_training.classifier.corruptions import corrupted as shifted
from vinoreward_training.classifier.evaluation import GOOD_RECALL, Rates, rates

Images = npt.NDArray[np.uint8]
Claims = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DEAD_CLAIMED = 0.001
"""Largest share of a dead camera's frames that may be claimed."""
FALSELY_CLAIMED = 0.01
"""Largest share of failures that may be claimed under a shift."""
KEPT = 0.9
"""Least share of the successes claimed on clean images that must be claimed under a shift."""
TOLD = 0.95
"""Or the guard must find so many of the images out of distribution."""
ALARMS = 0.01
"""Largest share of clean images that the guard may find out of distribution."""
SHOWN = 64
"""Images of wrong claims that are kept."""
PARTS = 8
"""Rows and columns of the parts by whose means images are compared."""
ALIKE = 12.0
"""Grey levels by which no part of two images that look alike differs more."""
KINDS = (*FAMILIES, *UNSEEN_FAMILIES)
"""Of a dead camera."""
STALE = (
    *(("frozen", 1.0), ("frozen top", 0.5), ("frozen bottom", 0.5), ("frozen left", 0.5)),
    *(("stale blocks", 0.5), ("ghost", 0.7)),
)
"""What a frozen camera shows of an earlier success, and how much of it."""
_ORDER = [("", None), *((s.name, strength) for s in SHIFTS for strength in s.strengths), *STALE]
ALIKE_PAIRS = 0.05
"""Share of the failures that look most like the success before: no frozen camera is told there."""
_PART = 0xA0D1
"""Number of :func:`held_out`'s frames that only an audit draws."""
_BATCH = 64


@dataclass(frozen=True)
class Fooled:
    """An image of no success that is claimed."""

    image: Images
    """``(H, W, 3)``."""
    probability: float
    by: str
    """What was done to it."""


@dataclass(frozen=True)
class Row:
    """What is claimed under one shift."""

    shift: str
    strength: float | None
    """None for clean images."""
    unit: str
    rates: Rates
    """Of claims that the guard lets pass."""
    alone: Rates
    """Of the network's claims."""
    flips: int | None
    """Decisions of the network that differ from FP32's; None where FP32 decides."""
    withheld: int | None = None
    """Images that the guard finds out of distribution, of which nothing is claimed; None without a
    guard."""

    @property
    def name(self) -> str:
        """What was done, in words."""
        if self.strength is None:
            return "nothing done"
        return f"{self.shift} ({self.strength:g} {self.unit})" if self.unit else self.shift

    @property
    def told(self) -> bool:
        """Whether the guard notices it: not surely fewer than ``TOLD`` images score above 1."""
        one = self.rates
        images = one.true_positives + one.false_positives + one.true_negatives + one.false_negatives
        return self.withheld is not None and (
            clopper_pearson(self.withheld, images, 0.95, "upper")[1] >= TOLD
        )


@dataclass
class Battery:
    """The rows, and the images that fooled the classifier."""

    rows: list[Row] = field(default_factory=list)
    dead: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Family of a dead camera's frames to (claimed, frames)."""
    fooled: list[Fooled] = field(default_factory=list)
    """The most certain first, at most ``SHOWN``."""
    _parts: list[Floats] = field(default_factory=list)
    """What each of them looks like."""
    _nearest: float = 0.0
    """How far the two of them are apart that look most alike, once there are ``SHOWN``."""

    def show(self, images: Images, probabilities: npt.NDArray[np.float32], by: str) -> None:
        """Keep images of wrong claims that look different from each other.

        They are to be labelled, and a network learns little from the same image twice. If there
        are too many, of the two that look most alike the less certain one goes.
        """
        for index in np.argsort(-probabilities, kind="stable"):
            parts, probability = _parts_of(images[index]), float(probabilities[index])
            apart = [float(np.abs(parts - other).max()) for other in self._parts]
            if any(
                far <= max(ALIKE, self._nearest) and one.probability >= probability
                for far, one in zip(apart, self.fooled, strict=True)
            ):
                continue
            for place in reversed(np.flatnonzero(np.array(apart) <= ALIKE)):
                del self.fooled[place], self._parts[place]
            place = bisect.bisect(self.fooled, -probability, key=lambda one: -one.probability)
            self.fooled.insert(place, Fooled(images[index].copy(), probability, by))
            self._parts.insert(place, parts)
            if len(self.fooled) > SHOWN:
                place = int(self._most_alike()[1].max())
                del self.fooled[place], self._parts[place]
            self._nearest = self._most_alike()[0] if len(self.fooled) == SHOWN else 0.0

    def _most_alike(self) -> tuple[float, Indices]:
        """Return how far the two are apart that look most alike, and which they are."""
        flat = np.stack([parts.ravel() for parts in self._parts])
        apart = cdist(flat, flat, "chebyshev")
        np.fill_diagonal(apart, np.inf)
        both = np.array(np.unravel_index(np.argmin(apart), apart.shape))
        return float(apart[tuple(both)]), both

    def dead_total(self) -> tuple[int, int]:
        """Return (claimed, frames) of all dead cameras."""
        counts = np.array(list(self.dead.values()) or [(0, 0)])
        return int(counts[:, 0].sum()), int(counts[:, 1].sum())


def _parts_of(image: Images) -> Floats:
    """Return the means of an image's parts, ``(PARTS, PARTS, 3)``."""
    small = Image.fromarray(image).resize((PARTS, PARTS), Image.Resampling.BOX)
    return np.asarray(small, np.float64)


@dataclass(frozen=True)
class Look:
    """What a classifier says of N images, as a wrapper would get it."""

    probability: npt.NDArray[np.float32]
    """(N,)"""
    claims: Claims
    """(N,) The network's."""
    ood: Claims | None
    """(N,) Where the guard withholds them; None without a guard."""

    @property
    def paid(self) -> Claims:
        """(N,) Claims that the guard lets pass."""
        return self.claims if self.ood is None else self.claims & ~self.ood


def look(classifier: Classifier, images: Images) -> Look:
    """Judge images (N, H, W, 3)."""
    parts = [
        classifier.predict(images[start : start + _BATCH])
        for start in range(0, max(1, len(images)), _BATCH)
    ]
    probability = np.concatenate([part.probability for part in parts])
    ood = [part.ood_score > 1.0 for part in parts if part.ood_score is not None]
    claims = probability >= np.float32(classifier.threshold)
    return Look(probability, claims, np.concatenate(ood) if ood else None)


def strongest_first() -> list[tuple[Shift | None, float | None]]:
    """Return clean images, then each shift at its strongest, which finds faults first."""
    steps = range(1, 1 + max(len(shift.strengths) for shift in SHIFTS))
    shifts = [(one, one.strengths[-n]) for n in steps for one in SHIFTS if n <= len(one.strengths)]
    return [(None, None), *shifts]


def _flips(exact: Classifier | None, images: Images, seen: Look) -> int | None:
    return None if exact is None else int((look(exact, images).claims != seen.claims).sum())


def shift_rows(
    classifier: Classifier,
    exact: Classifier | None,
    images: Images,
    success: Claims,
    found: Battery,
    *,
    changes: Sequence[tuple[Shift | None, float | None]],
    seed: int,
    views: Sequence[View] = (),
) -> Iterator[tuple[str, int]]:
    """Judge changed under each change; add to ``found``; yield what is done, and of how many.

    Args:
        classifier: as it will judge.
        exact: the same in FP32, if that is another.
        images: ``(N, H, W, 3)`` uint8.
        success: ``(N,)``.
        found: takes the rows, in the order of a report, and the wrong claims.
        changes: shifts and strengths in this order, (None, None) for clean changed.
        seed: of noise, places and directions.
        views: of the changed.
    """
    for shift, strength in changes:
        name = "clean changed" if shift is None else f"{shift.name} {strength:g}"
        changed = images
        if shift is not None and strength is not None:
            changed = shifted(shift, strength, images, seed=seed, views=views)
        seen = look(classifier, changed)
        flips = _flips(exact, changed, seen)
        wrong = seen.paid & ~success
        found.show(changed[wrong], seen.probability[wrong], name)
        row = Row(
            shift="" if shift is None else shift.name,
            strength=strength,
            unit="" if shift is None else shift.unit,
            rates=rates(seen.paid, success.astype(np.int64)),
            alone=rates(seen.claims, success.astype(np.int64)),
            flips=flips,
            withheld=None if seen.ood is None else int(seen.ood.sum()),
        )
        bisect.insort(found.rows, row, key=lambda one: _ORDER.index((one.shift, one.strength)))
        yield name, len(images) * (1 if exact is None else 2)


def _stale(new: Images, old: Images, random: np.random.Generator) -> Iterator[Images]:
    """Yield what a camera shows of two moments, (N, H, W, 3), in the order of ``STALE``."""
    count, height, width = new.shape[:3]
    y, x = np.indices((height, width))[..., None]
    yield old
    for places in (y < height // 2, y >= height // 2, x < width // 2):
        yield np.where(places, old, new)
    stale = (random.random((count, PARTS, PARTS)) < 0.5)[:, y * PARTS // height, x * PARTS // width]
    yield np.where(stale, old, new)
    yield np.rint(0.7 * old + 0.3 * new.astype(np.float32)).astype(np.uint8)


def stale_rows(
    classifier: Classifier,
    exact: Classifier | None,
    images: Images,
    success: Claims,
    found: Battery,
    *,
    seed: int,
) -> Iterator[tuple[str, int]]:
    """Judge failures of which a camera shows, in whole or in part, a success earlier.

    As a learned reward does whose frozen-camera check knows from the observation that the state is
    another one. As :func:`shift_rows`.
    """
    random = np.random.default_rng([_PART, seed])
    new = images[~success]
    old = images[success][random.integers(success.sum(), size=len(new))]
    usual = np.median(images, axis=0).astype(np.uint8).reshape(1, -1)

    def change(shown_now: Images, earlier: Images) -> Floats:
        flat, other = shown_now.reshape(len(shown_now), -1), earlier.reshape(len(earlier), -1)
        far = distance(flat, usual), distance(other, usual)
        return visible_change(*far, distance(flat, other))

    real = change(new, old)
    least = np.quantile(real, ALIKE_PAIRS)
    new, old = new[real >= least], old[real >= least]
    nothing = np.zeros(len(new), np.int64)
    for (name, strength), shown_now in zip(STALE, _stale(new, old, random), strict=True):
        seen = look(classifier, shown_now)
        shown = change(shown_now, old)
        frozen = (shown < CLAIMED * least) & (seen.claims | (shown == 0))
        ood = frozen if seen.ood is None else frozen | seen.ood
        both = rates(seen.claims & ~ood, nothing), rates(seen.claims, nothing)
        flips = _flips(exact, shown_now, seen)
        row = Row(name, strength, "of the earlier image", *both, flips, int(ood.sum()))
        found.rows.append(row)
        yield name, len(real) * (1 if exact is None else 2)


def dead_rows(
    classifier: Classifier,
    images: Images,
    failures: Indices,
    found: Battery,
    *,
    count: int,
    seed: int,
    views: Sequence[View] = (),
) -> Iterator[tuple[str, int]]:
    """Judge at least ``count`` frames of a dead camera, of all kinds; as :func:`shift_rows`.

    ``failures`` are the indices of damaged that may be damaged.
    """
    each = -(-count // len(KINDS))
    drawn = held_out(_PART, images, failures, seed=seed, count=each, families=KINDS, views=views)
    for family, damaged in drawn:
        seen = look(classifier, damaged)
        wrong = seen.paid
        found.show(damaged[wrong], seen.probability[wrong], f"dead camera: {family}")
        found.dead[family] = int(wrong.sum()), len(wrong)
        yield f"dead camera: {family}", len(damaged)


def not_surely_above(bar: float, count: int) -> float:
    """Return the largest rate in ``count`` images that does not surely miss a bar."""
    claimed = 0
    while claimed < count and clopper_pearson(claimed + 1, count, 0.95, "lower")[0] <= bar:
        claimed += 1
    return claimed / max(1, count)


def faults(found: Battery) -> list[str]:
    """Return a sentence for each bar of false claims that is surely missed."""
    sentences = []
    claimed, frames = found.dead_total()
    if clopper_pearson(claimed, frames, 0.95, "lower")[0] > DEAD_CLAIMED:
        worst = max(found.dead, key=lambda family: found.dead[family][0])
        sentences.append(
            f"it claims {claimed} of {frames} frames of a dead camera (most of "
            f"{worst!r}: {found.dead[worst][0]} of {found.dead[worst][1]}); at most "
            f"{DEAD_CLAIMED:.1%} may be"
        )
    for row in found.rows:
        wrong = row.rates.false_positives
        failures = wrong + row.rates.true_negatives
        if clopper_pearson(wrong, failures, 0.95, "lower")[0] > FALSELY_CLAIMED:
            sentences.append(
                f"it claims {wrong} of {failures} failures under {row.name}; at most "
                f"{FALSELY_CLAIMED:.0%} may be"
            )
    return sentences


def misses(found: Battery) -> list[str]:
    """Return a sentence for each bar of claimed successes that is surely missed."""
    if not found.rows:
        return []
    sentences = []
    clean = found.rows[0].rates
    successes = clean.true_positives + clean.false_negatives
    if clean.recall_high < GOOD_RECALL:
        sentences.append(
            f"it claims {clean.true_positives} of {successes} successes on clean images; at "
            f"least {GOOD_RECALL:.0%} must be"
        )
    failures = clean.false_positives + clean.true_negatives
    alarms = found.rows[0].withheld or 0
    if clopper_pearson(alarms, successes + failures, 0.95, "lower")[0] > ALARMS:
        sentences.append(
            f"its guard finds {alarms} of {successes + failures} clean images out of "
            "distribution; at most "
            f"{ALARMS:.0%} may be"
        )
    for row in found.rows[1:]:
        if row.alone.recall_high < KEPT * clean.recall and not row.told:
            sentences.append(
                f"under {row.name} it claims {row.alone.true_positives} of {successes} successes, "
                f"{clean.true_positives} on clean images, and gives no sign of it"
            )
    return sentences
