"""Is the demo's classifier as good as the shipped one, and is its threshold's claim supported?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier.evaluation import average_precision
from vinoreward_training.classifier.fresh_scenes import evaluate_classifier, fresh_scenes
from vinoreward_training.demo.plan import SHIPPED

SIGNIFICANCE = 0.05


def compare(bundle: Path, count: int, seed: int) -> dict[str, Any]:
    """Let the shipped classifier and that of ``bundle`` judge the same fresh scenes.

    Args:
        bundle: folder of a bundle.
        count: scenes.
        seed: of the scenes.

    Returns:
        plain data: ``rows`` (one per quantity), ``categories`` (one per kind of scene),
        ``verdict`` and ``claim`` (sentences).
    """

    images, labels, categories = fresh_scenes(count, seed)
    columns: dict[str, dict[str, str]] = {}
    wrong: dict[str, npt.NDArray[np.bool_]] = {}
    by_category: dict[str, dict[str, object]] = {}
    claim = ""
    for name, source in (("shipped", SHIPPED), ("this demo's", str(bundle))):
        with Classifier(source) as classifier:
            found = evaluate_classifier(classifier, images, labels, categories)
            chosen = dict(classifier.bundle.spec.decision.chosen_for)
            threshold, precision = classifier.threshold, classifier.precision
        counts, scores = found.rates, found.probabilities.astype(np.float64)
        failures = counts.false_positives + counts.true_negatives
        columns[name] = {
            "precision": precision.upper(),
            "threshold": f"{threshold:.3f}",
            "recall": f"{counts.recall:.1%}",
            "recall, 95 % interval": f"{counts.recall_low:.1%} to {counts.recall_high:.1%}",
            "false positives": f"{counts.false_positives} of {failures}",
            "false-positive rate": f"{counts.false_positive_rate:.2%}",
            "false-positive rate, 95 % upper bound": f"{counts.fpr_high:.2%}",
            "average precision (no threshold)": f"{average_precision(scores, labels):.4f}",
        }
        wrong[name] = found.decisions != (labels == 1)
        for row in found.categories:
            kept = by_category.setdefault(
                str(row["category"]), {"kind": row["category"], "scenes": row["frames"]}
            )
            kept[name] = row["wrong"]
        claim = claim_sentence(chosen, counts.false_positives, failures)
    return {
        "rows": [
            {"": key} | {name: column[key] for name, column in columns.items()}
            for key in next(iter(columns.values()))
        ],
        "categories": list(by_category.values()),
        "verdict": verdict(wrong["shipped"], wrong["this demo's"]),
        "claim": claim,
    }


def verdict(before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]) -> str:
    """Say whether the second of two classifiers is worse, by the exact McNemar test.

    Args:
        before: (N,) where the first was wrong.
        after: (N,) where the second was wrong, on the same scenes.
    """
    from scipy.stats import binomtest

    lost, gained = int((after & ~before).sum()), int((before & ~after).sum())
    counts = (
        f"Of {len(before)} scenes the shipped classifier alone was right on {lost}, this one alone "
        f"on {gained}"
    )
    p = 1.0 if lost + gained == 0 else float(binomtest(lost, lost + gained).pvalue)
    if p >= SIGNIFICANCE:
        return f"{counts}: no difference that so many scenes could show (p = {p:.2g})."
    return (
        f"{counts}: this one makes {'more' if lost > gained else 'fewer'} mistakes (p = {p:.2g})."
    )


def claim_sentence(chosen: dict[str, Any], false_positives: int, failures: int) -> str:
    """Say what the threshold was chosen for and whether frames and fresh scenes support it.

    Args:
        chosen: a bundle's ``decision.chosen_for``.
        false_positives: among the fresh scenes.
        failures: among the fresh scenes.
    """

    if "target_fpr" not in chosen:
        return "The bundle does not say what its threshold was chosen for."
    target, negatives = float(chosen["target_fpr"]), int(chosen["negatives"])
    percent = f"{100 * target:g} %"
    errors, upper = int(chosen["false_positives"]), float(chosen["fpr_upper"])
    allowed = -1
    while clopper_pearson(allowed + 1, negatives, 0.95, "upper")[1] <= target:
        allowed += 1
    text = (
        f"The threshold is the lowest that keeps false positives under {percent} with 95 % "
        f"confidence, on validation frames: {errors} of {negatives} failures were claimed as "
        f"success, hence at most {upper:.2%}. So few frames allow {max(allowed, 0)} mistakes "
        f"({max(allowed, 0) / negatives:.2%}), well under the target: the margin for chance is "
        "paid in recall, and more frames would buy it back."
    )
    if "raised_to" in chosen:
        text += f" It was then raised to {float(chosen['raised_to']):g}."
    if upper > target:
        text += f" The bound is above {percent}: these frames do not support the claim."
    bound = clopper_pearson(false_positives, failures, 0.95, "upper")[1]
    low = clopper_pearson(false_positives, failures, 0.95, "lower")[0]
    text += (
        f"\nFresh scenes, which had no part in choosing it: {false_positives} of {failures} "
        f"({false_positives / failures:.2%}, at most {bound:.2%}). "
    )
    if bound <= target:
        return text + f"They support the claim of {percent}."
    if low > target:
        return text + f"They contradict the claim: the rate is above {percent}."
    return text + (
        f"They are too few to support {percent} or to refute it; ask for more with --scenes."
    )
