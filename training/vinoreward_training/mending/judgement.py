"""Whether a bundle is worse than another: each measure beside the chance of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.audit.battery import look
from vinoreward_training.audit.report import AuditReport, Measure
from vinoreward_training.data.dataset import Dataset, split_by_episode
from vinoreward_training.mending.labelled import Labelled
from vinoreward_training.runs.bundles import of_cut_images

SURE = 0.05
"""Largest chance that a bundle no worse than the old one is refused."""
LOST_RECALL = 0.01
"""Loss of recall on the test part that is no reason to keep the old bundle."""


@dataclass(frozen=True)
class Judgement:
    """The old and the new bundle side by side."""

    rows: list[dict[str, Any]]
    """Measure, before, after, the chance of that (:func:`surely`), and whether it is worse."""

    @property
    def worse(self) -> list[str]:
        """A sentence for each measure that is worse."""
        return [
            f"{row['measure']}: {row['before']:.3g} before, {row['after']:.3g} after"
            for row in self.rows
            if row["worse"]
        ]


def judged(
    old: Bundle, new: Bundle, audits: tuple[AuditReport, AuditReport], dataset: Dataset,
    labelled: Labelled,
) -> Judgement:  # fmt: skip
    """Compare two bundles on the test part, on the labels kept back, and in their audits.

    A measure is worse where that matters (by more than a point of recall, or beyond the bar of an
    audit) and where chance does not explain it.
    """
    test = split_by_episode(dataset)[2]
    success = dataset.labels[test] == 1
    kept = ~labelled.train
    claims, false_claims, answers, rates = [], [], [], []
    for bundle in (of_cut_images(old), of_cut_images(new)):
        with contextlib.closing(Classifier(bundle, precision="fp32")) as classifier:
            paid = look(classifier, dataset.images[test]).paid
            right = np.zeros(0, np.bool_)
            if kept.any():
                right = look(classifier, labelled.images[kept]).paid == labelled.labels[kept]
        wrong = float((~right).mean()) if len(right) else 0.0
        claims.append(paid[success])
        false_claims.append(paid[~success])
        answers.append(right)
        rates.append((float(paid[success].mean()), float(paid[~success].mean()), wrong))
    (recall, false, missed), (recall_new, false_new, missed_new) = rates
    target = float((new.spec.decision.chosen_for if new.spec.decision else {})["target_fpr"])
    lost = chance_of_fewer(claims[0], claims[1]) if recall_new < recall - LOST_RECALL else 1.0
    more = chance_of_fewer(false_claims[1], false_claims[0])
    rows = [
        _row("recall on the test part", recall, recall_new, lost),
        _row(
            "false claims on the test part",
            false,
            false_new,
            more if false_new > max(false, target) else 1.0,
        ),
        _row(
            "labels kept back that it gets wrong",
            missed,
            missed_new,
            chance_of_fewer(answers[0], answers[1]),
        ),
    ]
    before, after = (report.measures for report in audits)
    for name, one in after.items():
        # What only the new audit could measure is compared with its bar.
        known = before.get(name, Measure(0.0, one.bar))
        rows.append(_row(name, known.value, one.value, chance_of_worse(known, one)))
    had, has = (len(report.faults) for report in audits)
    rows.append(_row("faults that the audit finds", had, has, None if has and not had else 1.0))
    for row, worse in zip(rows, surely([row["chance"] for row in rows]), strict=True):
        row["worse"] = worse
    return Judgement(rows)


def surely(chances: Sequence[float | None]) -> list[bool]:
    """Return which of several measures are worse, given the chance of each if nothing changed.

    So many are looked at that one in twenty is worse by chance in nearly every mending. Benjamini
    and Hochberg (1995) keep the chance that any is said to be worse, though none is, at ``SURE``.
    None, where chance has no part, is worse.
    """
    from scipy.stats import false_discovery_control

    tests = [one for one in chances if one is not None]
    corrected = iter(false_discovery_control(tests) if tests else ())
    return [one is None or bool(next(corrected) < SURE) for one in chances]


def chance_of_worse(before: Measure, after: Measure) -> float | None:
    """Return the chance of so high a measure if nothing changed; 1 where it is no worse.

    A measure is worse if it exceeds both its value before and its bar. For a share this is a
    one-sided binomial test of how many of both audits' claims are the second's, or, if the first
    audit did not measure it, of the second's share against the bar. None for an area and for a
    hole: both audits look at the same states, so chance has no part in it.
    """
    if after.value <= max(before.value, after.bar):
        return 1.0
    if not after.of:
        return None
    from scipy.stats import binomtest

    if not before.of:
        claimed = round(after.value * after.of)
        return float(binomtest(claimed, after.of, after.bar, alternative="greater").pvalue)
    counts = [round(one.value * one.of) for one in (after, before)]
    share = after.of / (after.of + before.of)
    return float(binomtest(counts[0], sum(counts), share, alternative="greater").pvalue)


def chance_of_fewer(before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]) -> float:
    """Return the chance of so many fewer claims, or right answers, (N,) than before.

    A one-sided sign test of the images on which the two differ.
    """
    from scipy.stats import binomtest

    lost, gained = int((before & ~after).sum()), int((~before & after).sum())
    if lost + gained == 0:
        return 1.0
    return float(binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue)


def _row(measure: str, before: float, after: float, chance: float | None) -> dict[str, Any]:
    return {"measure": measure, "before": before, "after": after, "chance": chance}
