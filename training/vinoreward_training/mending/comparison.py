"""Whether a bundle is worse than another: each measure with the probability of it by chance."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.audit.checks import Check, score_images
from vinoreward_training.audit.report import AuditReport
from vinoreward_training.data.dataset import Dataset, split_by_episode
from vinoreward_training.mending.labelled import Labelled
from vinoreward_training.runs.bundles import of_cut_images

SIGNIFICANCE = 0.05
"""Largest probability that a bundle no worse than the old one is refused."""
LOST_RECALL = 0.01
"""Loss of recall on the test part that is no reason to keep the old bundle."""


@dataclass(frozen=True)
class Comparison:
    """A measure of the old and the new bundle."""

    measure: str
    before: float
    after: float
    p_value: float | None
    """Probability of that if nothing changed; 1 where it is no worse. None where chance has no part
    in it, and it is worse."""
    worse: bool = False

    def __str__(self) -> str:
        """The measure before and after."""
        return f"{self.measure}: {self.before:.4g} -> {self.after:.4g}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def compare_bundles(
    old: Bundle, new: Bundle, audits: tuple[AuditReport, AuditReport], dataset: Dataset,
    labelled: Labelled,
) -> list[Comparison]:  # fmt: skip
    """Compare two bundles on the test part, on the labels held out, and in their audits.

    A measure is worse where that matters (by more than a point of recall, or beyond the bar of an
    audit) and where chance does not explain it.
    """
    rows = [*_on_images(old, new, dataset, labelled), *_in_audits(*audits)]
    worse = reject_nulls_bh([row.p_value for row in rows])
    return [replace(row, worse=one) for row, one in zip(rows, worse, strict=True)]


def _on_images(
    old: Bundle, new: Bundle, dataset: Dataset, labelled: Labelled
) -> Iterator[Comparison]:
    test, held_out = split_by_episode(dataset)[2], ~labelled.train
    success = dataset.labels[test] == 1
    rewarded, wrong = [], []
    for bundle in map(of_cut_images, (old, new)):
        with contextlib.closing(Classifier(bundle, precision="fp32")) as classifier:
            rewarded.append(score_images(classifier, dataset.images[test]).rewarded)
            claims = np.zeros(0, np.bool_)
            if held_out.any():
                claims = score_images(classifier, labelled.images[held_out]).rewarded
            wrong.append(claims != labelled.labels[held_out])
    before, after = (float(one[success].mean()) for one in rewarded)
    lost = sign_test_pvalue(*(one[success] for one in rewarded))
    matters = after < before - LOST_RECALL
    yield Comparison("recall on the test part", before, after, lost if matters else 1.0)
    before, after = (float(one[~success].mean()) for one in rewarded)
    more = sign_test_pvalue(*(~one[~success] for one in rewarded))
    target = float((new.spec.decision.chosen_for if new.spec.decision else {})["target_fpr"])
    matters = after > max(before, target)
    yield Comparison("false claims on the test part", before, after, more if matters else 1.0)
    before, after = (float(one.mean()) if len(one) else 0.0 for one in wrong)
    more = sign_test_pvalue(*(~one for one in wrong))
    yield Comparison("held-out labels that it gets wrong", before, after, more)


def _in_audits(before: AuditReport, after: AuditReport) -> Iterator[Comparison]:
    known = before.measures
    for name, new in after.measures.items():
        # What only the new audit could measure is compared with its bar.
        old = known.get(name, replace(new, value=0.0, of=0))
        yield Comparison(name, old.value, new.value, increase_pvalue(old, new))
    had, has = len(before.faults), len(after.faults)
    yield Comparison("faults that the audit finds", had, has, None if has and not had else 1.0)


def reject_nulls_bh(p_values: Sequence[float | None]) -> list[bool]:
    """Return which of several measures are worse, given each one's p-value; None is worse.

    So many are compared that one in twenty is worse by chance in nearly every mending. Benjamini
    and Hochberg (1995) keep the probability that any is said to be worse, though none is, at
    ``SIGNIFICANCE``.
    """
    from scipy.stats import false_discovery_control

    tests = [one for one in p_values if one is not None]
    corrected = iter(false_discovery_control(tests) if tests else ())
    return [one is None or bool(next(corrected) < SIGNIFICANCE) for one in p_values]


def increase_pvalue(before: Check, after: Check) -> float | None:
    """Return the probability of so high a measure if nothing changed; 1 where it is no worse.

    A measure is worse if it exceeds both its value before and its limit. For a share this is a
    one-sided binomial test of how many of both audits' claims are the second's, or, if the first
    audit did not measure it, of the second's share against the bar. None for a hole: both audits
    score the same states, so chance has no part in it.
    """
    if after.value <= max(before.value, after.limit):
        return 1.0
    if not after.of:
        return None
    from scipy.stats import binomtest

    counts = [round(one.value * one.of) for one in (after, before)]
    share = after.of / (after.of + before.of) if before.of else after.limit
    of = sum(counts) if before.of else after.of
    return float(binomtest(counts[0], of, share, alternative="greater").pvalue)


def sign_test_pvalue(before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]) -> float:
    """Return the probability of so many fewer true values (N,) than before if nothing changed.

    A one-sided sign test of the images on which the two differ.
    """
    from scipy.stats import binomtest

    lost, gained = int((before & ~after).sum()), int((~before & after).sum())
    if lost + gained == 0:
        return 1.0
    return float(binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue)
