"""A classifier's claims on corrupted images, and on images of a failing or frozen camera."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vinoreward.images import View
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.frozen import CLAIMED, distance, visible_change
from vinoreward_training.audit.checks import (
    PARTS,
    Check,
    Claims,
    Floats,
    Images,
    Subject,
    share_check,
)
from vinoreward_training.classifier.camera_failure import FAMILIES, UNSEEN_FAMILIES, held_out
from vinoreward_training.classifier.corruptions import CORRUPTIONS, Corruption, corrupted
from vinoreward_training.classifier.evaluation import GOOD_RECALL, Rates, rates

DEAD_CLAIMED = 0.001
"""Maximum share of a failing camera's frames that may be claimed."""
FALSELY_CLAIMED = 0.01
"""Maximum share of failures that may be claimed under a corruption."""
KEPT = 0.9
"""Minimum share of the successes claimed on clean images that must be claimed when corrupted."""
NOTICED = 0.95
"""Share of corrupted images; if the OOD detector withholds it, missed successes are allowed."""
ALARMS = 0.01
"""Maximum share of clean images that the OOD detector may withhold."""
FAILING_CAMERAS = (*FAMILIES, *UNSEEN_FAMILIES)
FROZEN = (
    *(("frozen", 1.0), ("frozen top", 0.5), ("frozen bottom", 0.5), ("frozen left", 0.5)),
    *(("stale blocks", 0.5), ("ghost", 0.7)),
)
"""Kinds of frozen cameras, and the share of the image that is of an earlier success."""
ALIKE_PAIRS = 0.05
"""Share of the failures that are left out: they look so much like the earlier success that a frozen
camera does not differ from a working one."""
EVERY: tuple[tuple[Corruption | None, float | None], ...] = (
    (None, None),
    *((one, strength) for one in CORRUPTIONS for strength in one.strengths),
)
"""Clean images, then each corruption from weak to strong."""
_PART = 0xA0D1
"""``part`` of :func:`held_out` for an audit, whose frames nothing else uses."""


@dataclass(frozen=True)
class CorruptionRow:
    """Claims under one corruption."""

    corruption: str
    strength: float | None
    """None for clean images."""
    unit: str
    rates: Rates
    """Of claims that the OOD detector lets pass."""
    network: Rates
    """Of the network's claims."""
    withheld: int | None = None
    """Images that the OOD detector withholds; None without one."""

    @property
    def name(self) -> str:
        """Corruption and strength in words."""
        if self.strength is None:
            return "no corruption"
        return (
            f"{self.corruption} ({self.strength:g} {self.unit})" if self.unit else self.corruption
        )

    @property
    def failures(self) -> int:
        """Number of images without a success."""
        return self.rates.false_positives + self.rates.true_negatives

    @property
    def successes(self) -> int:
        """Number of images with a success."""
        return self.rates.true_positives + self.rates.false_negatives

    @property
    def noticed(self) -> bool:
        """Whether the OOD detector notices: its upper 95 % bound reaches ``NOTICED``."""
        images = self.failures + self.successes
        return self.withheld is not None and (
            clopper_pearson(self.withheld, images, 0.95, "upper")[1] >= NOTICED
        )

    def checks(self, clean: CorruptionRow) -> Iterator[Check]:
        """Yield the checks of false claims, and of misses that the OOD detector overlooks."""
        wrong, failures = self.rates.false_positives, f"failures claimed under {self.name}"
        found = f"it claims {wrong} of {self.failures} failures under {self.name}"
        sentence = f"{found}; at most {FALSELY_CLAIMED:.0%} may be"
        yield share_check(sentence, wrong, self.failures, FALSELY_CLAIMED, measure=failures)
        if self.strength is None:
            return
        least, missed = KEPT * clean.rates.recall, self.network.false_negatives
        yield Check(
            f"under {self.name} it claims {self.network.true_positives} of {self.successes} "
            f"successes, {clean.rates.true_positives} on clean images, and gives no sign of it",
            failed=self.network.recall_high < least and not self.noticed,
            miss=True,
            measure=f"successes missed under {self.name} without a sign",
            value=0.0 if self.noticed else missed / max(1, self.successes),
            bar=1 - least,
            of=self.successes,
        )


@dataclass
class CorruptionReport:
    """Claims under each corruption, and on frames of failing cameras."""

    rows: list[CorruptionRow] = field(default_factory=list)
    """Clean images first."""
    failing_camera: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Family of a failing camera's frames to (claimed, frames)."""

    @property
    def failing_camera_total(self) -> tuple[int, int]:
        """(claimed, frames) of all failing cameras."""
        claimed, frames = np.array(list(self.failing_camera.values()) or [(0, 0)]).sum(axis=0)
        return int(claimed), int(frames)

    def checks(self) -> Iterator[Check]:
        """Yield all checks."""
        claimed, frames = self.failing_camera_total
        worst = max(self.failing_camera, key=lambda name: self.failing_camera[name][0], default="")
        of_worst = self.failing_camera.get(worst, (0, 0))
        sentence = (
            f"it claims {claimed} of {frames} frames of a failing camera (most of {worst!r}: "
            f"{of_worst[0]} of {of_worst[1]}); at most {DEAD_CLAIMED:.1%} may be"
        )
        measure = "failing-camera frames claimed"
        yield share_check(sentence, claimed, frames, DEAD_CLAIMED, measure=measure)
        if not self.rows:
            return
        clean = self.rows[0]
        sentence = (
            f"it claims {clean.rates.true_positives} of {clean.successes} successes on clean "
            f"images; at least {GOOD_RECALL:.0%} must be"
        )
        yield Check(sentence, clean.rates.recall_high < GOOD_RECALL, miss=True)
        images, alarms = clean.successes + clean.failures, clean.withheld or 0
        sentence = (
            f"its guard finds {alarms} of {images} clean images out of distribution; at most "
            f"{ALARMS:.0%} may be"
        )
        yield share_check(sentence, alarms, images, ALARMS, miss=True)
        for row in self.rows:
            yield from row.checks(clean)


def corrupt(
    subject: Subject,
    images: Images,
    success: Claims,
    report: CorruptionReport,
    views: tuple[View, ...] = (),
) -> Iterator[str]:
    """Score images (N, H, W, 3) clean and under each corruption; yield its name.

    ``success`` (N,) is the truth, ``views`` are the parts of each image.
    """
    for corruption, strength in EVERY:
        name, unit, changed = "", "", images
        if corruption is not None and strength is not None:
            name, unit = corruption.name, corruption.unit
            changed = corrupted(corruption, strength, images, seed=subject.seed, views=views)
        scores = subject.score(changed)
        done = f"{name} {strength:g}" if strength is not None else "clean images"
        wrong = scores.rewarded & ~success
        subject.false_positives.add(changed[wrong], scores.probability[wrong], done)
        labels = success.astype(np.int64)
        rewarded, network = rates(scores.rewarded, labels), rates(scores.claimed, labels)
        withheld = None if scores.withheld is None else int(scores.withheld.sum())
        report.rows.append(CorruptionRow(name, strength, unit, rewarded, network, withheld))
        yield done


def _frozen_images(new: Images, old: Images, random: np.random.Generator) -> Iterator[Images]:
    """Yield frozen cameras' mixtures of ``new`` and ``old``, (N, H, W, 3), as in ``FROZEN``."""
    count, height, width = new.shape[:3]
    y, x = np.indices((height, width))[..., None]
    yield old
    for places in (y < height // 2, y >= height // 2, x < width // 2):
        yield np.where(places, old, new)
    stale = (random.random((count, PARTS, PARTS)) < 0.5)[:, y * PARTS // height, x * PARTS // width]
    yield np.where(stale, old, new)
    yield np.rint(0.7 * old + 0.3 * new.astype(np.float32)).astype(np.uint8)


def freeze_camera(
    subject: Subject, images: Images, success: Claims, report: CorruptionReport
) -> Iterator[str]:
    """Score failures whose image is, in whole or in part, that of an earlier success.

    The frozen-camera check of a learned reward is applied as if the observation had changed between
    the two. The rest is as in :func:`corrupt`.
    """
    random = np.random.default_rng([_PART, subject.seed])
    new = images[~success]
    old = images[success][random.integers(success.sum(), size=len(new))]
    usual = np.median(images, axis=0).astype(np.uint8).reshape(1, -1)

    def change(after: Images, before: Images) -> Floats:
        flat, other = after.reshape(len(after), -1), before.reshape(len(before), -1)
        return visible_change(distance(flat, usual), distance(other, usual), distance(flat, other))

    real = change(new, old)
    least = np.quantile(real, ALIKE_PAIRS)
    new, old = new[real >= least], old[real >= least]
    nothing = np.zeros(len(new), np.int64)
    frozen = zip(FROZEN, _frozen_images(new, old, random), strict=True)
    for (name, strength), changed in frozen:
        scores, moved = subject.score(changed), change(changed, old)
        withheld = (moved < CLAIMED * least) & (scores.claimed | (moved == 0))
        withheld |= False if scores.withheld is None else scores.withheld
        network, rewarded = (rates(scores.claimed & one, nothing) for one in (True, ~withheld))
        count = int(withheld.sum())
        report.rows.append(
            CorruptionRow(name, strength, "of the earlier image", rewarded, network, count)
        )
        yield name


def fail_camera(
    subject: Subject,
    images: Images,
    success: Claims,
    report: CorruptionReport,
    views: tuple[View, ...] = (),
    *,
    frames: int,
) -> Iterator[str]:
    """Score at least ``frames`` images of failing cameras of all kinds; see :func:`corrupt`."""
    failures, count = np.flatnonzero(~success), -(-frames // len(FAILING_CAMERAS))
    options: dict[str, Any] = {"seed": subject.seed, "families": FAILING_CAMERAS, "views": views}
    for family, damaged in held_out(_PART, images, failures, count=count, **options):
        scores, done = subject.score(damaged), f"failing camera: {family}"
        wrong = scores.rewarded
        subject.false_positives.add(damaged[wrong], scores.probability[wrong], done)
        report.failing_camera[family] = int(wrong.sum()), len(wrong)
        yield done
