"""Calibrated probabilities, and a threshold whose error rate the data can support."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError, TooFewNegativesError, needed_for

# A temperature outside this range says that the logits are wrong, not that they need scaling.
TEMPERATURES = (0.05, 20.0)
CONFIDENCE = 0.95
"""Of the bounds, unless another is given."""
FEW = 50
"""Fewer frames of a label do not show that a network is surer than it says."""

Side = Literal["two", "upper", "lower"]


@dataclass(frozen=True)
class Threshold:
    """A threshold, ``value``, with its counts of frames and episodes, and its bounds.

    An episode is negative if it has a failure frame, and a false positive if one of them reaches
    the threshold. ``fpr_upper`` and ``episode_fpr_upper`` are one-sided bounds of the
    false-positive rate, ``recall_interval`` is two-sided. Frames of an episode resemble each other,
    so ``episodes_reach_target`` says whether the bound per episode is within the target too.
    ``notes`` are sentences that a reader of the numbers has to know.
    """

    value: float
    target_fpr: float
    confidence: float
    false_positives: int
    negatives: int
    fpr_upper: float
    false_positive_episodes: int
    negative_episodes: int
    episode_fpr_upper: float
    episodes_reach_target: bool
    true_positives: int
    positives: int
    recall: float
    recall_interval: tuple[float, float]
    notes: tuple[str, ...] = ()


def temperature(
    logits: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    success: int = 1,
) -> float:
    """Return the T that makes ``softmax(logits / T)`` most likely (Guo et al. 2017, ICML).

    ``logits`` are ``(N, K)``, finite, of data that the network was not trained on; ``labels`` are
    ``(N,)``, 1 for success, whose column is ``success``, and 0 for a failure of any kind. T is
    within 0.05 and 20, and at least 1 where a label has fewer than :data:`FEW` frames or the labels
    are separated perfectly: there the lowest would be likeliest.
    """
    values, targets = np.asarray(logits, dtype=np.float64), np.asarray(labels)
    usable = len(values) and values.shape[1] > 1 and np.isfinite(values).all()
    if not (usable and np.isin(targets, (0, 1)).all()):
        raise InputError(
            f"found logits of shape {values.shape}, with NaN or infinity among them, or labels but "
            "0 and 1. Expected one row or more of finite numbers, at least two columns, and "
            "labels: 1 for success, 0 for failure."
        )
    possible = (np.arange(values.shape[1]) == success) == (targets[:, None] == 1)
    # Not scipy.stats, which takes a second to load.
    with needed_for("calibration", "train"):
        from scipy.optimize import minimize_scalar
        from scipy.special import logsumexp

    def loss(log_t: float) -> float:
        scaled = values / math.exp(log_t)
        own = logsumexp(np.where(possible, scaled, -np.inf), axis=1)
        return float((logsumexp(scaled, axis=1) - own).mean())

    low, high = (math.log(bound) for bound in TEMPERATURES)
    counts = np.unique(targets, return_counts=True)[1]
    own, others = (np.where(mask, values, -np.inf).max(axis=1) for mask in (possible, ~possible))
    if len(counts) < 2 or counts.min() < FEW or (own > others).all():
        low = 0.0
    # The loss is convex in 1 / T, hence it has one minimum in log T: a bounded search finds it.
    best = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    return float(math.exp(min((low, high, float(best.x)), key=loss)))


def clopper_pearson(
    k: int, n: int, confidence: float = CONFIDENCE, side: Side = "two"
) -> tuple[float, float]:
    """Return the exact interval of a rate, ``k`` events in ``n`` trials (Clopper & Pearson 1934).

    ``side`` ``"upper"`` gives (0, bound), ``"lower"`` (bound, 1), with all of the error probability
    on that side. No trials give (0, 1).
    """
    if not 0 <= k <= n or int(k) != k or int(n) != n:
        raise ConfigError(f"found {k} events in {n} trials. Expected whole numbers, 0 <= k <= n.")
    _check_rate("confidence", confidence)
    if n == 0:
        return 0.0, 1.0
    error = (1.0 - confidence) / (2.0 if side == "two" else 1.0)
    with needed_for("calibration", "train"):
        from scipy.special import betainccinv, betaincinv
    low = 0.0 if k == 0 or side == "upper" else float(betaincinv(k, n - k + 1, error))
    high = 1.0 if k == n or side == "lower" else float(betainccinv(k + 1, n - k, error))
    return low, high


def negatives_needed(target_fpr: float, confidence: float = CONFIDENCE) -> int:
    """Return how many negatives without a false positive support the rate: 299 for 1 %."""
    _check_rate("target_fpr", target_fpr)
    _check_rate("confidence", confidence)
    # 1e-9: an exact whole number must not be rounded up by the last bit.
    return max(1, math.ceil(math.log1p(-confidence) / math.log1p(-target_fpr) - 1e-9))


def rate_supported(negatives: int, confidence: float = CONFIDENCE) -> float:
    """Return the lowest rate that so many negatives without an error prove: 1 % for 299."""
    _check_rate("confidence", confidence)
    if negatives < 1:
        return 1.0
    return float(-math.expm1(math.log1p(-confidence) / negatives))


def episode_rate(rate: float, steps: float, seen: float = 1.0) -> float:
    """Return the share of episodes of ``steps`` steps with at least one false claim.

    ``rate`` is that share where only ``seen`` random steps of each are looked at. The others are
    taken as independent of them: an upper estimate, as steps of an episode resemble each other.
    """
    return float(1 - (1 - rate) ** max(1.0, steps / seen))


def rate_for_episodes(share: float, steps: float, seen: float = 1.0) -> float:
    """Return the ``rate`` at which :func:`episode_rate` is ``share``."""
    return float(1 - (1 - share) ** min(1.0, seen / steps))


def threshold_for_fpr(
    probabilities: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    episodes: NDArray[np.integer[Any]],
    target_fpr: float = 0.01,
) -> Threshold:
    """Return the smallest threshold whose false-positive rate is below the target, with confidence.

    The one-sided Clopper-Pearson upper bound holds per frame, and per episode if there are at least
    :func:`negatives_needed` episodes. With fewer the threshold is chosen by frames alone, and
    ``episodes_reach_target`` and ``notes`` say so.

    Args:
        probabilities: ``(N,)`` from 0 to 1, of data not used for training.
        labels: ``(N,)``, 1 for success and 0 for failure.
        episodes: ``(N,)`` number of the episode each frame comes from.
        target_fpr: highest accepted rate, between 0 and 1.

    Raises:
        TooFewNegativesError: too few failure frames to support the rate.
        InputError: arrays that cannot work, or no threshold reaches the target.
    """
    frames = _Frames(probabilities, labels, episodes)
    needed = negatives_needed(target_fpr)
    negative, peaks = frames.negative, frames.peaks
    if len(negative) < needed:
        raise TooFewNegativesError(
            f"found {len(negative)} failure frames. Expected at least {needed} to support a "
            f"false-positive rate of {target_fpr:g} at {CONFIDENCE:g} confidence even without a "
            f"single error; capture {needed - len(negative)} more, or accept a higher target_fpr."
        )
    smallest = _above(negative, _allowed(len(negative), target_fpr))
    if len(peaks) >= needed:
        smallest = max(smallest, _above(peaks, _allowed(len(peaks), target_fpr)))
    if smallest > 1.0:
        raise InputError(
            f"found more failure frames or episodes of probability 1 than a rate of {target_fpr:g} "
            "allows. Expected a network that separates them better; check the highest-scored "
            "failures' labels, train again with more like them, or raise target_fpr."
        )
    return frames.measured(smallest, target_fpr)


def threshold_for_recall(
    probabilities: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    episodes: NDArray[np.integer[Any]],
    recall: float,
    target_fpr: float = 0.01,
) -> Threshold:
    """Return the largest threshold that claims at least a share ``recall`` of the successes.

    Arguments are as in :func:`threshold_for_fpr`; ``episodes_reach_target`` and ``notes`` compare
    with ``target_fpr``.

    Raises:
        InputError: arrays that cannot work, no success frame, or a rate beyond its range.
    """
    if not 0 <= recall <= 1:
        raise InputError(f"found recall={recall}. Expected a share from 0 to 1.")
    frames = _Frames(probabilities, labels, episodes)
    positive = np.sort(frames.positive)[::-1]
    if not len(positive):
        raise InputError("found no success frame. Expected some, to keep a recall.")
    # Less than a billionth of a frame is rounding.
    least = min(len(positive), max(1, math.ceil(recall * len(positive) - 1e-9)))
    return frames.measured(float(positive[least - 1]), target_fpr)


class _Frames:
    """Probabilities of failure and success frames, and the highest of each negative episode."""

    def __init__(
        self, probabilities: NDArray[Any], labels: NDArray[Any], episodes: NDArray[Any]
    ) -> None:
        # Through float32: the precision in which the threshold is compared at run time.
        values = np.asarray(probabilities, dtype=np.float32).astype(np.float64)
        marks, groups = np.asarray(labels), np.asarray(episodes)
        alike = values.ndim == 1 and marks.shape == groups.shape == values.shape
        fits = alike and ((values >= 0) & (values <= 1)).all() and np.isin(marks, (0, 1)).all()
        if not fits:
            raise InputError(
                f"found probabilities {values.shape}, labels {marks.shape} and episodes "
                f"{groups.shape}. Expected three arrays of one length, of probabilities from 0 to "
                "1 without NaN, and of labels: 1 for success, 0 for failure."
            )
        self.negative, self.positive = values[marks == 0], values[marks == 1]
        names, inverse = np.unique(groups[marks == 0], return_inverse=True)
        self.peaks = np.zeros(len(names))
        np.maximum.at(self.peaks, inverse, self.negative)

    def measured(self, value: float, target_fpr: float) -> Threshold:
        """Return a threshold with its rates on these frames."""
        every = self.negative, self.peaks, self.positive
        wrong, wrong_episodes, right = (int((each >= value).sum()) for each in every)
        negatives, episodes, positives = map(len, every)
        episode_bound = clopper_pearson(wrong_episodes, episodes, CONFIDENCE, "upper")[1]
        notes = []
        if episode_bound > target_fpr:
            notes.append(
                f"The bound per episode is {episode_bound:.3g}, above the target of "
                f"{target_fpr:g}: {episodes} episodes with failures were found and "
                f"{negatives_needed(target_fpr)} are needed. Frames of an episode "
                "resemble each other, so the bound per frame is optimistic; capture more, shorter "
                "episodes."
            )
        if not positives:
            notes.append("No success frame was found: the recall is not known.")
        return Threshold(
            value=value,
            target_fpr=target_fpr,
            confidence=CONFIDENCE,
            false_positives=wrong,
            negatives=negatives,
            fpr_upper=clopper_pearson(wrong, negatives, CONFIDENCE, "upper")[1],
            false_positive_episodes=wrong_episodes,
            negative_episodes=episodes,
            episode_fpr_upper=episode_bound,
            episodes_reach_target=episode_bound <= target_fpr,
            true_positives=right,
            positives=positives,
            recall=right / positives if positives else 0.0,
            recall_interval=clopper_pearson(right, positives, CONFIDENCE),
            notes=tuple(notes),
        )


def _allowed(n: int, target: float) -> int:
    """Return the most errors in ``n`` whose upper bound is within the target, at least 0."""

    def upper(errors: int) -> float:
        return clopper_pearson(errors, n, CONFIDENCE, "upper")[1]

    return max(0, bisect.bisect_right(range(n + 1), target, key=upper) - 1)


def _above(values: NDArray[np.float64], allowed: int) -> float:
    """Smallest float32 that at most ``allowed`` of the values reach, 0 where all may."""
    if allowed >= len(values):
        return 0.0
    highest = np.sort(values)[::-1]
    # float32, because a classifier's probabilities are compared in that precision.
    return float(np.nextafter(np.float32(highest[allowed]), np.float32(2.0)))


def _check_rate(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{name} is {value}. Expected a number between 0 and 1.")
