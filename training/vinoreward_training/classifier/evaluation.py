"""How good a classifier is: pure functions of log-odds and labels, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from vinoreward.errors import UselessClassifierError
from vinoreward.rewards.calibration import clopper_pearson, negatives_needed

if TYPE_CHECKING:
    from vinoreward.rewards.calibration import Threshold
    from vinoreward.rewards.classifier import Classifier

LOWEST_THRESHOLD = 0.5
"""Where classes are far apart, nearly any threshold keeps the false-positive rate of the data, and
the lowest would claim what is less likely than not. The threshold is raised to this where the
successes are likelier still; where they are not, that would only lose them."""
HIGHEST_RAISE = 0.99
"""Nor is the threshold raised beyond this: there is no room left above it for INT8 to be unsure."""
RECALL_COST = 0.01
"""Share of the claimed successes that raising the threshold may cost."""
GOOD_RECALL = 0.8
"""A classifier that claims fewer of the successes is weak."""
LEAST_RECALL = 0.05
"""One that claims fewer than this is useless: a learner would hardly ever see the reward."""
DEAD_CLAIMED = 0.01
"""A classifier that claims more of the dead-camera frames is weak."""
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def sigmoid(log_odds: Floats) -> Floats:
    """Return the probability of each log-odds, without overflow."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(log_odds, dtype=np.float64)))


def log_loss(log_odds: Floats, labels: Labels) -> float:
    """Return the mean cross-entropy of labels (1 = success) under log-odds."""
    signs = np.where(labels == 1, 1.0, -1.0)
    return float(np.mean(np.logaddexp(0.0, -signs * log_odds)))


def _cumulative(scores: Floats, labels: Labels) -> tuple[Floats, Floats]:
    """Return (true positives, false positives) at each distinct score, falling."""
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], labels[order] == 1
    # Equal scores are decided together.
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)
    true, false = np.cumsum(hits)[last], np.cumsum(~hits)[last]
    return true.astype(np.float64), false.astype(np.float64)


def average_precision(scores: Floats, labels: Labels) -> float:
    """Return the area under the precision-recall steps; 0 without a success."""
    true, false = _cumulative(scores, labels)
    if true[-1] == 0:
        return 0.0
    recall = np.concatenate([[0.0], true / true[-1]])
    return float(np.sum(np.diff(recall) * (true / (true + false))))


def roc_curve(scores: Floats, labels: Labels) -> tuple[Floats, Floats]:
    """Return (false-positive rates, recalls), from (0, 0) to (1, 1)."""
    true, false = _cumulative(scores, labels)
    return (
        np.concatenate([[0.0], false / max(1.0, false[-1])]),
        np.concatenate([[0.0], true / max(1.0, true[-1])]),
    )


def pr_curve(scores: Floats, labels: Labels) -> tuple[Floats, Floats]:
    """Return (recalls, precisions) by falling threshold."""
    true, false = _cumulative(scores, labels)
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


def rates(decisions: npt.NDArray[np.bool_], labels: Labels) -> Rates:
    """Count decisions (N,) bool against labels (N,) with 1 = success."""
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


def raised_threshold(chosen: float, successes: Floats, dead: Floats) -> float:
    """Return the threshold, raised to ``LOWEST_THRESHOLD`` and above the dead-camera frames.

    It is raised as far as that costs at most ``RECALL_COST`` of the successes that are claimed, and
    not beyond ``HIGHEST_RAISE``.

    Args:
        chosen: the lowest threshold that keeps the false-positive rate.
        successes: (N,) probabilities of the success frames.
        dead: (M,) probabilities of the dead-camera frames.
    """
    above = np.nextafter(np.float32(dead.max(initial=0.0)), np.float32(2.0))
    wanted = min(max(LOWEST_THRESHOLD, float(above)), HIGHEST_RAISE)
    claimed = np.sort(successes.astype(np.float32)[successes.astype(np.float32) >= chosen])
    if len(claimed):
        wanted = min(wanted, float(claimed[int(RECALL_COST * len(claimed))]))
    return max(chosen, wanted)


@dataclass(frozen=True)
class Verdict:
    """Whether a classifier can serve as a reward.

    Attributes:
        level: usable; weak (a learner may fail on it); useless (it gives no reward to learn from).
        reasons: sentences, none where it is usable.
        advice: sentences on what to try.
    """

    level: Literal["usable", "weak", "useless"]
    reasons: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``metrics.verdict`` of a bundle."""
        return {"level": self.level, "reasons": [*self.reasons], "advice": [*self.advice]}

    def bullets(self) -> str:
        """Return reasons and advice as a Markdown list."""
        return "\n".join([f"- {r}" for r in self.reasons] + [f"- Try: {a}" for a in self.advice])

    def __str__(self) -> str:
        text = str(self.level)
        if self.reasons:
            text += f": {'; '.join(self.reasons)}"
        return text + (f". Try: {'; '.join(self.advice)}" if self.advice else "")


def still_falling(losses: Sequence[float], epochs: int) -> bool:
    """Say whether a training was still getting better when it ended.

    Args:
        losses: positive; the validation loss of each epoch that was done.
        epochs: asked for; training stops earlier where the loss falls no more.
    """
    before = losses[: -max(1, len(losses) // 4)]
    if len(losses) < epochs:
        return False
    share = 0.98 if len(losses) > 3 else 1.0  # of fewer epochs nobody knows that it is flat
    return losses[-1] < min(share * min(before, default=float("inf")), 1.01 * min(losses))


def judge(
    test: Rates,
    chosen: Threshold,
    *,
    dead: int,
    dead_claimed: int,
    rate_of_good_recall: float,
    falling: bool,
) -> Verdict:
    """Return the verdict on a classifier.

    Args:
        test: rates on the test frames.
        chosen: the threshold as the validation frames gave it.
        dead: dead-camera frames tested.
        dead_claimed: how many of them it claims.
        rate_of_good_recall: upper bound of the false-positive rate at which ``GOOD_RECALL`` of the
            validation successes are claimed.
        falling: whether the validation loss was still falling when training ended.
    """
    positives = test.true_positives + test.false_negatives
    negatives = test.false_positives + test.true_negatives
    found, needed = chosen.negative_episodes, negatives_needed(chosen.target_fpr)
    few = not chosen.episodes_reach_target and found < needed
    supported = 1 - 0.05 ** (1 / max(1, found))
    reasons: list[str] = []
    advice: list[str] = []  # what helps most comes first
    useless = test.recall < LEAST_RECALL or test.recall_low <= test.false_positive_rate
    misses, blind = test.recall < GOOD_RECALL, dead_claimed > DEAD_CLAIMED * dead
    if falling and (misses or blind):
        advice.append("more --epochs: the validation loss was still falling")
    if useless:
        advice.append("a look at the labels and at mistakes.png")
    if few:
        advice.append(
            f"failures from more episodes ({needed} are needed in validation), or "
            f"--target-fpr {supported:.2g}, the lowest that {found} can support"
        )
    if misses:
        reasons.append(
            f"it claims {test.true_positives} of {positives} test successes ({test.recall:.1%})"
        )
        advice.append("more frames of successes and near misses")
        if rate_of_good_recall > chosen.target_fpr:
            advice.append(
                f"a higher --target-fpr: a recall of {GOOD_RECALL:.0%} comes with a "
                f"false-positive rate of up to {rate_of_good_recall:.2g} on these data"
            )
    if useless and test.recall >= LEAST_RECALL:
        reasons.append(
            f"it claims failures about as often ({test.false_positives} of {negatives}) as "
            f"successes ({test.true_positives} of {positives})"
        )
    if clopper_pearson(test.false_positives, negatives, 0.95, "lower")[0] > chosen.target_fpr:
        reasons.append(
            f"it claims {test.false_positives} of {negatives} test failures, more than the "
            f"{chosen.target_fpr:g} asked for"
        )
        advice.append(f"--target-fpr {test.fpr_high:.2g}, or more frames")
    if not chosen.episodes_reach_target:
        reasons.append(
            f"the {found} validation episodes with failures support a false-positive rate of "
            f"{max(supported, chosen.episode_fpr_upper):.2g} an episode, not "
            f"{chosen.target_fpr:g}"
        )
    if blind:
        reasons.append(f"it claims {dead_claimed} of {dead} dead-camera frames")
        advice.append("a look at which those are, in report.html: can the camera fail so?")
    if useless:
        return Verdict("useless", tuple(reasons), tuple(advice))
    return Verdict("weak" if reasons else "usable", tuple(reasons), tuple(advice))


def refuse_useless(name: str, metrics: Mapping[str, Any], *, force: bool) -> None:
    """Refuse a classifier whose own training called it useless; others pass, unjudged ones too.

    Args:
        name: of the bundle.
        metrics: of the bundle.
        force: use it all the same.

    Raises:
        UselessClassifierError: it is useless.
    """
    verdict = metrics.get("verdict")
    if force or not isinstance(verdict, Mapping) or verdict.get("level") != "useless":
        return
    reasons = verdict.get("reasons")
    why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
    raise UselessClassifierError(
        f"the training of {name} ended with the verdict useless{': ' * bool(why)}{why}. Expected "
        "a classifier that claims successes; train a better one (its README.md says what to try), "
        "or use this one all the same with --force."
    )


@dataclass(frozen=True)
class FreshResult:
    """How a classifier did on fresh scenes."""

    rates: Rates
    categories: list[dict[str, object]]
    """One row per category."""
    decisions: npt.NDArray[np.bool_]
    """(N,), in the order of the scenes."""
    probabilities: npt.NDArray[np.float32]
    """(N,) float32."""


def evaluate_classifier(
    classifier: Classifier,
    images: npt.NDArray[np.uint8],
    labels: Labels,
    categories: npt.NDArray[np.str_],
) -> FreshResult:
    """Let a classifier decide labelled scenes one by one, the way an environment asks.

    Args:
        classifier: on the backend and precision to be judged.
        images: (N, H, W, 3) uint8.
        labels: (N,) 1 = success.
        categories: (N,).
    """
    probabilities = np.concatenate(
        [classifier.probability(images[index : index + 1]) for index in range(len(images))]
    )
    decisions = probabilities >= np.float32(classifier.threshold)
    return FreshResult(
        rates=rates(decisions, labels),
        categories=per_category(decisions, labels, categories.tolist()),
        decisions=decisions,
        probabilities=probabilities,
    )
