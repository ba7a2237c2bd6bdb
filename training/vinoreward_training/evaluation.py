"""How good a classifier is: pure functions of log-odds and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def sigmoid(log_odds: Floats) -> Floats:
    """Return the probability of each log-odds, without overflow."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(log_odds, dtype=np.float64)))


def log_loss(log_odds: Floats, labels: Labels) -> float:
    """Return the mean cross-entropy of labels (1 = success) under log-odds."""
    signs = np.where(labels == 1, 1.0, -1.0)
    return float(np.mean(np.logaddexp(0.0, -signs * log_odds)))


def _cumulative(scores: Floats, labels: Labels) -> tuple[Floats, Floats, Floats]:
    """Return (thresholds, true positives, false positives) at each distinct score, falling."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], labels[order] == 1
    # Equal scores are decided together.
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    true = np.cumsum(hits)[last].astype(np.float64)
    false = np.cumsum(~hits)[last].astype(np.float64)
    return ranked[last], true, false


def average_precision(scores: Floats, labels: Labels) -> float:
    """Return the area under the precision-recall steps; 0 without a success."""
    _, true, false = _cumulative(np.asarray(scores, dtype=np.float64), labels)
    if true[-1] == 0:
        return 0.0
    recall = np.concatenate([[0.0], true / true[-1]])
    return float(np.sum(np.diff(recall) * (true / (true + false))))


def roc_curve(scores: Floats, labels: Labels) -> tuple[Floats, Floats]:
    """Return (false-positive rates, recalls), from (0, 0) to (1, 1)."""
    _, true, false = _cumulative(np.asarray(scores, dtype=np.float64), labels)
    return (
        np.concatenate([[0.0], false / max(1.0, false[-1])]),
        np.concatenate([[0.0], true / max(1.0, true[-1])]),
    )


def pr_curve(scores: Floats, labels: Labels) -> tuple[Floats, Floats]:
    """Return (recalls, precisions) by falling threshold."""
    _, true, false = _cumulative(np.asarray(scores, dtype=np.float64), labels)
    return true / max(1.0, true[-1]), true / (true + false)


@dataclass(frozen=True)
class Rates:
    """What a classifier decided at its threshold, with 95 % bounds.

    Attributes:
        true_positives, false_positives, true_negatives, false_negatives: frames.
        recall, false_positive_rate, precision: shares, 0 where there is nothing to count.
        recall_low, recall_high: two-sided 95 % Clopper-Pearson interval of the recall.
        fpr_high: one-sided 95 % Clopper-Pearson upper bound of the false-positive rate.
    """

    true_positives: int
    false_positives: int
    true_negatives: int
    false_negatives: int
    recall: float
    recall_low: float
    recall_high: float
    false_positive_rate: float
    fpr_high: float
    precision: float

    def as_dict(self) -> dict[str, float]:
        """Return the fields as plain numbers."""
        return dict(asdict(self))


def rates(decisions: npt.NDArray[np.bool_], labels: Labels) -> Rates:
    """Count decisions (N,) bool against labels (N,) with 1 = success."""
    from vinoreward.rewards.calibration import clopper_pearson

    success = labels == 1
    tp, fp = int((decisions & success).sum()), int((decisions & ~success).sum())
    fn, tn = int((~decisions & success).sum()), int((~decisions & ~success).sum())
    positives, negatives = tp + fn, fp + tn
    low, high = clopper_pearson(tp, positives, 0.95)
    bound = clopper_pearson(fp, negatives, 0.95, "upper")[1]
    return Rates(
        true_positives=tp,
        false_positives=fp,
        true_negatives=tn,
        false_negatives=fn,
        recall=tp / positives if positives else 0.0,
        recall_low=low,
        recall_high=high,
        false_positive_rate=fp / negatives if negatives else 0.0,
        fpr_high=bound,
        precision=tp / (tp + fp) if tp + fp else 0.0,
    )


def per_category(
    decisions: npt.NDArray[np.bool_], labels: Labels, categories: Sequence[str]
) -> list[dict[str, object]]:
    """Return one row per category: frames, wrong decisions, share wrong."""
    names = np.asarray(categories)
    wrong = decisions != (labels == 1)
    return [
        {
            "category": str(name),
            "frames": int((names == name).sum()),
            "wrong": int(wrong[names == name].sum()),
            "share wrong": f"{wrong[names == name].mean():.2%}",
        }
        for name in np.unique(names)
    ]
