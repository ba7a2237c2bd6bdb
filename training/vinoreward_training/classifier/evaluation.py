"""How good a classifier is: rates, threshold and verdict, as functions of log-odds and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from vinoreward.backends.network import FINE
from vinoreward.bundles.schema import Decision
from vinoreward.errors import UselessClassifierError
from vinoreward.rewards.calibration import (
    clopper_pearson,
    episode_rate,
    negatives_needed,
    rate_for_episodes,
    rate_supported,
    temperature,
    threshold_for_fpr,
    threshold_for_recall,
)
from vinoreward.rewards.classifier import log_odds as log_odds_of
from vinoreward.rewards.classifier import sigmoid
from vinoreward_training.classifier.camera_failure import Images, logits_by_family

if TYPE_CHECKING:
    from vinoreward.rewards.calibration import Threshold
    from vinoreward_training.data.dataset import Dataset

LOWEST_THRESHOLD = 0.5
"""If the classes are far apart, many thresholds keep the false-positive rate, and the lowest would
claim what is less likely than not. The threshold is raised to this if it loses few successes."""
HIGHEST_RAISE = 0.99
"""The threshold is raised no further: INT8 needs a band above it."""
RECALL_COST = 0.01
"""Largest share of the claimed successes that raising the threshold may cost."""
GOOD_RECALL = 0.8
"""A classifier that claims fewer of the successes is weak."""
LEAST_RECALL = 0.05
"""One that claims fewer than this is useless: a learner would hardly ever see the reward."""
NOT_LEARNT = 0.2
"""A network that saves less of the cross-entropy of guessing on training frames sees too little."""
LEAST_LEARNT = 0.02
"""One that saves less than this guesses: what it claims right is luck."""
DEAD_CLAIMED = 0.01
"""A classifier that claims more of the dead-camera frames is weak."""
EPISODE_LIMIT = 0.1
"""A classifier that falsely claims a success in more of the failing episodes is weak."""
DEFAULT_RATE = 0.01
RATES = (0.001, 0.002, 0.005, DEFAULT_RATE, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
"""False-positive rates to choose from where the frames do not support the one wanted."""
LONGEST_HOLD = 5
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Level = Literal["usable", "weak", "useless"]


def log_loss(log_odds: Floats, labels: Labels) -> float:
    """Return the mean cross-entropy of labels (1 = success) under log-odds."""
    signs = np.where(labels == 1, 1.0, -1.0)
    return float(np.mean(np.logaddexp(0.0, -signs * log_odds)))


def rounded_up(rate: float) -> float:
    """Return a rate from 0 to 1 with two digits, none lower."""
    scale = 10.0 ** (1 - math.floor(math.log10(rate)))
    return math.ceil(rate * scale) / scale


def saved_by(logits: Floats, labels: Labels) -> float:
    """Return the share of the cross-entropy of guessing that calibrated logits (N, 2) save."""
    share = float(np.clip(np.mean(labels == 1), 1e-6, 1 - 1e-6))
    guessing = -share * np.log(share) - (1 - share) * np.log(1 - share)
    log_odds = (logits[:, 1] - logits[:, 0]) / temperature(logits, labels)
    return float(max(0.0, 1 - log_loss(log_odds, labels) / guessing))


def finer(network: str, height: int, width: int) -> str:
    """Return what helps a network that sees too little of a small target, the best first."""
    other = f", or --network {FINE}, whose cells are 4 pixels wide and not 16 or 32"
    return (
        f"larger images, captured with --image-size {2 * height} {2 * width}, a camera closer to "
        f"the target, --image-crop around it{other if network != FINE else ''}"
    )


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


def roc_area(scores: Floats, labels: Labels) -> float:
    """Return the chance that a success scores higher than a failure; ties count half."""
    false, recall = roc_curve(scores, labels)
    return float(np.sum(np.diff(false) * (recall[1:] + recall[:-1]) / 2))


def reliability(probabilities: Floats, labels: Labels, bins: int = 10) -> list[dict[str, Any]]:
    """Return for each interval of probability how many frames there are, and are successes.

    ``low`` and ``high`` are the two-sided 95 % Clopper-Pearson interval of that share.
    """
    which = np.minimum((probabilities * bins).astype(np.int64), bins - 1)
    rows = []
    for each in np.unique(which).tolist():
        inside = which == each
        count, hits = int(inside.sum()), int((labels[inside] == 1).sum())
        low, high = clopper_pearson(hits, count)
        rows.append(
            {
                "probability": f"{each / bins:g} to {(each + 1) / bins:g}",
                "frames": count,
                "mean probability": float(probabilities[inside].mean()),
                "share of successes": hits / count,
                "low": low,
                "high": high,
            }
        )
    return rows


def calibration_error(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean distance of probability and share of successes, weighted by frames."""
    counts, means, shares = (
        np.array([row[name] for row in rows], dtype=np.float64)
        for name in ("frames", "mean probability", "share of successes")
    )
    return float(np.average(np.abs(means - shares), weights=counts))


@dataclass(frozen=True)
class Rates:
    """Decisions at a threshold: counts, and shares of them, 0 if there is nothing to count.

    ``recall_low`` to ``recall_high`` is the two-sided 95 % Clopper-Pearson interval of the recall,
    ``fpr_high`` the one-sided 95 % upper bound of the false-positive rate.
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

    @classmethod
    def counted(cls, claimed: int, successes: int, false_claims: int, failures: int) -> Rates:
        """Return the rates of claims of successes, and of false claims of failures."""
        low, high = clopper_pearson(claimed, successes, 0.95)
        return cls(
            true_positives=claimed,
            false_positives=false_claims,
            true_negatives=failures - false_claims,
            false_negatives=successes - claimed,
            recall=claimed / max(1, successes),
            recall_low=low,
            recall_high=high,
            false_positive_rate=false_claims / max(1, failures),
            fpr_high=clopper_pearson(false_claims, failures, 0.95, "upper")[1],
            precision=claimed / max(1, claimed + false_claims),
        )

    @property
    def successes(self) -> int:
        """How many successes there are."""
        return self.true_positives + self.false_negatives

    @property
    def failures(self) -> int:
        """How many failures there are."""
        return self.false_positives + self.true_negatives


def rates(decisions: npt.NDArray[np.bool_], labels: Labels) -> Rates:
    """Count decisions (N,) bool against labels (N,) with 1 = success."""
    success = labels == 1
    masks = (success & decisions, success, ~success & decisions, ~success)
    return Rates.counted(*(int(mask.sum()) for mask in masks))


def episode_rates(decisions: npt.NDArray[np.bool_], labels: Labels, episodes: Labels) -> Rates:
    """Count episodes (N,) with a success frame or a failure frame, and with claims of such frames.

    Frames of one episode resemble each other, episodes do not.
    """
    success = labels == 1
    masks = (success & decisions, success, ~success & decisions, ~success)
    return Rates.counted(*(len(np.unique(episodes[mask])) for mask in masks))


def claims_by_episode(
    frames: Rates, by_episode: Rates, steps: int, *, lasting: bool
) -> dict[str, Any]:
    """Return how many failing episodes get a false claim, for ``metrics.failing_episodes``.

    ``share`` is median-unbiased, ``share_high`` its one-sided 95 % upper bound; both are too high
    where steps of an episode resemble each other. Of a ``lasting`` success, ``hold`` is how many
    claims in a row keep ``EPISODE_LIMIT``, were neighbouring steps independent.
    """
    episodes = by_episode.failures
    scored = frames.failures / max(1, episodes)
    rate = clopper_pearson(frames.false_positives, frames.failures, 0.5, "upper")[1]
    middle = clopper_pearson(by_episode.false_positives, episodes, 0.5, "upper")[1]
    share, high = (episode_rate(each, steps, scored) for each in (middle, by_episode.fpr_high))
    holds = range(2, LONGEST_HOLD + 1) if lasting and share > EPISODE_LIMIT else ()
    held = (hold for hold in holds if episode_rate(rate**hold, steps) <= EPISODE_LIMIT)
    found = {"steps": steps, "episodes": episodes, "scored": scored, "share": share}
    summary = (
        f"at {steps} steps about {share:.0%} of failing episodes get a false claim (at most "
        f"{high:.0%}), fewer where steps resemble each other"
    )
    return found | {"share_high": high, "hold": next(held, None), "summary": summary}


def default_rate(labels: Labels, episodes: Labels, steps: int | None) -> tuple[float | None, str]:
    """Return the false-positive rate to ask for and why; None if the episodes support none.

    ``labels`` and ``episodes`` (N,) are of the frames that choose the threshold, ``steps`` is the
    length of a failing episode, None if not known.
    With it at most ``EPISODE_LIMIT`` of the failing episodes get a false claim, and it is at most
    0.01; where the episodes do not support it, it is the next of ``RATES`` that they support.
    """
    failing = episodes[labels == 0]
    count = len(np.unique(failing))
    wanted, need = DEFAULT_RATE, ""
    if steps is not None and count:
        rate = float(f"{rate_for_episodes(EPISODE_LIMIT, steps, len(failing) / count):.2g}")
        if rate < wanted:
            wanted, need = rate, f", as episodes of {steps} steps need"
    why = f"{count} failing episodes choose the threshold"
    if (supported := rate_supported(count)) <= wanted:
        return wanted, f"{why}{need}"
    higher = next((rate for rate in RATES if rate >= supported), None)
    return higher, f"{why}; {negatives_needed(wanted)} would support {wanted:.2g}{need}"


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

    Raising it costs at most ``RECALL_COST`` of the claimed successes and ends at ``HIGHEST_RAISE``.
    ``chosen`` is the lowest threshold that keeps the false-positive rate; ``successes`` (N,) and
    ``dead`` (M,) are probabilities.
    """
    above = np.nextafter(np.float32(dead.max(initial=0.0)), np.float32(2.0))
    wanted = min(max(LOWEST_THRESHOLD, float(above)), HIGHEST_RAISE)
    claimed = np.sort(successes.astype(np.float32)[successes.astype(np.float32) >= chosen])
    if len(claimed):
        wanted = min(wanted, float(claimed[int(RECALL_COST * len(claimed))]))
    return max(chosen, wanted)


@dataclass(frozen=True)
class Verdict:
    """Whether a classifier can serve as a reward."""

    level: Level
    """Weak: a learner may fail on it. Useless: it gives no reward to learn from."""
    reasons: tuple[str, ...] = ()
    """None if it is usable."""
    advice: tuple[str, ...] = ()
    """What to try."""
    frames: int | None = None
    """Size of the dataset that would do, if more frames help."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``metrics.verdict`` of a bundle."""
        return {**asdict(self), "reasons": [*self.reasons], "advice": [*self.advice]}

    def bullets(self) -> str:
        """Return reasons and advice as a Markdown list."""
        return "\n".join([f"- {r}" for r in self.reasons] + [f"- Try: {a}" for a in self.advice])

    def __str__(self) -> str:
        text = str(self.level)
        if self.reasons:
            text += f": {'; '.join(self.reasons)}"
        return text + (f". Try: {'; '.join(self.advice)}" if self.advice else "")


def give_verdict(
    test: Rates,
    chosen: Threshold,
    *,
    dead: int,
    dead_claimed: int,
    learnt: float = 1.0,
    finer: str | None = "",
    by_episode: Mapping[str, Any] | None = None,
    frames: int = 0,
) -> Verdict:
    """Return the verdict on a classifier.

    Args:
        test: rates on the test frames.
        chosen: the threshold from the validation frames.
        dead: dead-camera frames tested.
        dead_claimed: how many of them it claims.
        learnt: :func:`saved_by` it on training frames.
        finer: advice for a network that has not learnt its training frames; None for one that was
            not trained here.
        by_episode: :func:`claims_by_episode`; None if the length of episodes is not known.
        frames: size of the dataset.
    """
    episodes, needed = chosen.negative_episodes, negatives_needed(chosen.target_fpr)
    few = not chosen.episodes_reach_target and episodes < needed
    supported = 1 - 0.05 ** (1 / max(1, episodes))
    misses, blind = test.recall < GOOD_RECALL, dead_claimed > DEAD_CLAIMED * dead
    never, as_often = test.recall < LEAST_RECALL, test.recall_low <= test.false_positive_rate
    unlearnt, guesses = misses and learnt < NOT_LEARNT, misses and learnt < LEAST_LEARNT
    least = clopper_pearson(test.false_positives, test.failures, 0.95, "lower")[0]
    long = by_episode is not None and by_episode["share"] > EPISODE_LIMIT
    claims = f"{test.true_positives} of {test.successes}"
    false_claims = f"{test.false_positives} of {test.failures}"
    rate = max(supported, chosen.episode_fpr_upper)
    hold = by_episode["hold"] if by_episode is not None else None
    retrain = "more frames of successes and near misses, or more --epochs"
    if finer is None:
        retrain = "training one on these images, with vinoreward finetune"
    found = [
        (
            unlearnt,
            f"it has not learnt even its training frames: it saves {learnt:.0%} of the "
            "cross-entropy of guessing on them",
            finer,
        ),
        (misses, f"it claims {claims} test successes ({test.recall:.1%})", retrain),
        (
            as_often and not never and not guesses,
            f"it claims failures about as often ({false_claims}) as successes ({claims})",
            "a look at the labels and at mistakes.png",
        ),
        (
            least > chosen.target_fpr,
            f"it claims {false_claims} test failures, more than the {chosen.target_fpr:g} asked "
            "for",
            f"--target-fpr {test.fpr_high:.2g}, or more frames",
        ),
        (
            not chosen.episodes_reach_target,
            f"the {episodes} validation episodes with failures support a false-positive rate of "
            f"{rate:.2g} an episode, not {chosen.target_fpr:g}",
            f"failures from more episodes ({needed} are needed in validation), or --target-fpr "
            f"{rounded_up(supported):.2g}, the lowest that {episodes} can support" * few,
        ),
        (
            long,
            f"{by_episode['summary'] if by_episode else ''}; {EPISODE_LIMIT:.0%} are accepted",
            "" if hold is None else f"train --hold {hold}, for so many claims in a row",
        ),
        (
            blind,
            f"it claims {dead_claimed} of {dead} dead-camera frames",
            "a look at which those are, in the report: can the camera fail so?",
        ),
    ]
    reasons = tuple(reason for holds, reason, _ in found if holds)
    advice = [remedy for holds, _, remedy in found if holds and remedy]
    growth = [needed / max(1, episodes)] * few + [2.0] * (misses and not unlearnt)
    if long and by_episode is not None:
        wanted = rate_for_episodes(EPISODE_LIMIT, by_episode["steps"], by_episode["scored"])
        growth.append(max(2.0, negatives_needed(wanted, 0.5) / max(1, by_episode["episodes"])))
    size = math.ceil(1.1 * max(growth) * frames / 100) * 100 if growth and frames else None
    if size is not None:
        advice.append(f"{size} frames in all, from more episodes")
    level: Level = "useless" if never or as_often or guesses else "weak" if reasons else "usable"
    return Verdict(level, reasons, tuple(advice), size)


@dataclass(frozen=True)
class Evaluation:
    """What the held-out frames say about a classifier."""

    decision: Decision
    test: Rates
    logits: Floats
    """(N, K) of the test frames."""
    log_odds: Floats
    """(N,) of the test frames, calibrated."""
    metrics: dict[str, Any]
    categories: list[dict[str, object]]
    """As :func:`per_category`, of test and dead-camera frames."""
    verdict: Verdict


def evaluate(
    score: Callable[[Images], npt.NDArray[np.floating]],
    dataset: Dataset,
    parts: Sequence[Labels],
    target_fpr: float | None,
    *,
    success: int = 1,
    seed: int = 0,
    trained: Labels | None = None,
    network: str | None = None,
    recall: float | None = None,
    known: Sequence[Floats | None] = (None, None),
) -> Evaluation:
    """Calibrate and choose the threshold on validation frames, then measure on test frames.

    Frames of a failing camera only raise the threshold: among the failures they would dilute the
    false-positive rate, as they are easy.

    Args:
        score: returns logits (N, K) of images (N, H, W, 3).
        dataset: all frames.
        parts: indices of (validation, test).
        target_fpr: of the threshold; None is :func:`default_rate`.
        success: the column of the logits that means success.
        seed: of the failing cameras' frames.
        trained: indices of some training frames, to compare test frames with.
        network: name of a network that was trained here.
        recall: to keep, whatever the false-positive rate: the threshold is the largest that claims
            this share of the validation successes, but at most ``HIGHEST_RAISE`` where all
            validation failures are below that.
        known: logits (N, K) of the parts' frames, where ``score`` was fitted on these frames.
    """
    choosing, test = (
        Scored(
            score(dataset.images[part]).astype(np.float64) if logits is None else logits,
            dataset.labels[part],
            dataset.episodes[part],
            dataset.categories[part].tolist(),
            logits_by_family(score, dataset, part, number, seed),
        )
        for number, (part, logits) in enumerate(zip(parts, known, strict=True), 1)
    )
    learnt = 1.0
    if trained is not None:
        on_training = score(dataset.images[trained]).astype(np.float64)
        learnt = saved_by(on_training, dataset.labels[trained])
    return evaluate_scored(
        choosing,
        test,
        target_fpr,
        success=success,
        recall=recall,
        steps=dataset.episode_steps,
        lasting=dataset.success_lasts,
        learnt=learnt,
        finer=None if network is None else finer(network, *dataset.images.shape[1:3]),
        frames=len(dataset.labels),
    )


@dataclass(frozen=True)
class Scored:
    """Held-out frames, and what a classifier says of them."""

    logits: Floats
    """(N, K)."""
    labels: Labels
    """(N,), 1 for success."""
    episodes: Labels
    """(N,)."""
    categories: Sequence[str] = ()
    """(N,), or none."""
    dead: Mapping[str, Floats] = field(default_factory=dict)
    """Logits (M, K) of a failing camera's frames, by its kind."""


def evaluate_scored(
    choosing: Scored,
    test: Scored,
    target_fpr: float | None,
    *,
    success: int = 1,
    recall: float | None = None,
    steps: int | None = None,
    lasting: bool = False,
    learnt: float = 1.0,
    finer: str | None = None,
    frames: int = 0,
) -> Evaluation:
    """Calibrate and choose the threshold on some scored frames, then measure on others.

    ``steps`` and ``lasting`` are as for :func:`claims_by_episode`, ``learnt``, ``finer`` and
    ``frames`` as for :func:`give_verdict`, the others as for :func:`evaluate`.
    """
    labels = choosing.labels
    target_fpr = target_fpr or default_rate(labels, choosing.episodes, steps)[0] or RATES[-1]
    heat = temperature(choosing.logits, labels, success)
    probabilities = sigmoid(log_odds_of(choosing.logits, success, heat))
    calibrated = probabilities, labels, choosing.episodes
    successes = probabilities[labels == 1]
    if recall is None:
        chosen = threshold_for_fpr(*calibrated, target_fpr)
        dead = [sigmoid(log_odds_of(each, success, heat)) for each in choosing.dead.values()]
        value = raised_threshold(float(chosen.value), successes, np.concatenate([*dead, []]))
    else:
        chosen = threshold_for_recall(*calibrated, recall, target_fpr)
        value = float(chosen.value)
        if probabilities[labels == 0].max(initial=0.0) < HIGHEST_RAISE:
            value = min(value, HIGHEST_RAISE)  # a stricter one would only lose successes that vary
    details = asdict(chosen)
    if value > chosen.value:
        raised = rates(probabilities.astype(np.float32) >= np.float32(value), labels)
        details |= {"raised_to": value, "at_raised": asdict(raised)}
    test_odds = log_odds_of(test.logits, success, heat)
    test_claims = claimed(test_odds, value)
    by_family = {
        family: claimed(log_odds_of(each, success, heat), value)
        for family, each in test.dead.items()
    }
    dead_claimed = np.concatenate([np.zeros(0, np.bool_), *by_family.values()])
    dead_labels = np.zeros(len(dead_claimed), dtype=np.int64)
    test_rates, dead_rates = rates(test_claims, test.labels), rates(dead_claimed, dead_labels)
    by_episode = None
    if steps is not None:
        counts = episode_rates(test_claims, test.labels, test.episodes)
        by_episode = claims_by_episode(test_rates, counts, steps, lasting=lasting)
    verdict = give_verdict(
        test_rates,
        chosen,
        dead=len(dead_claimed),
        dead_claimed=dead_rates.false_positives,
        learnt=learnt,
        finer=finer,
        by_episode=by_episode,
        frames=frames,
    )
    metrics = {
        "verdict": verdict.as_dict(),
        "test": asdict(test_rates)
        | {
            "average_precision": average_precision(test_odds, test.labels),
            "log_loss": log_loss(test_odds, test.labels),
            "frames": len(test.labels),
            "episodes": len(np.unique(test.episodes)),
        },
        "failing_episodes": by_episode,
        "dead_camera": {
            "frames": len(dead_claimed),
            "claimed": dead_rates.false_positives,
            "claimed_high": dead_rates.fpr_high,
            "by_family": {family: int(each.sum()) for family, each in by_family.items()},
        },
    }
    families = [f"dead_camera: {family}" for family, each in by_family.items() for _ in each]
    by_category = per_category(test_claims, test.labels, test.categories) if test.categories else []
    return Evaluation(
        decision=Decision(threshold=value, temperature=heat, chosen_for=details),
        test=test_rates,
        logits=test.logits,
        log_odds=test_odds,
        metrics=metrics,
        categories=by_category + per_category(dead_claimed, dead_labels, families),
        verdict=verdict,
    )


def claimed(log_odds: Floats, threshold: float) -> npt.NDArray[np.bool_]:
    """Return which log-odds (N,) are claimed, compared in float32 as at run time."""
    return sigmoid(log_odds).astype(np.float32) >= np.float32(threshold)


def refuse_useless(name: str, metrics: Mapping[str, Any], *, force: bool) -> None:
    """Refuse a bundle with the verdict useless; one without a verdict passes."""
    verdict = metrics.get("verdict")
    if force or not isinstance(verdict, Mapping) or verdict.get("level") != "useless":
        return
    reasons = verdict.get("reasons")
    why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
    raise UselessClassifierError(
        f"the verdict on {name} was useless{': ' * bool(why)}{why}. Expected "
        "a classifier that claims successes; train a better one (its README.md says what to try), "
        "or use this one all the same with --force."
    )
