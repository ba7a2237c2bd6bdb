"""Intervals, thresholds and temperatures against independent restatements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import binom, binomtest

from vinoreward.errors import ConfigError, InputError, TooFewNegativesError
from vinoreward.rewards.calibration import (
    clopper_pearson,
    negatives_needed,
    temperature,
    threshold_for_fpr,
    threshold_for_recall,
)

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts=COUNTS, confidence=st.floats(0.5, 0.999))
def test_intervals_are_those_of_the_binomial_test(
    counts: tuple[int, int], confidence: float
) -> None:
    k, n = counts
    for side, alternative in (("two", "two-sided"), ("upper", "less"), ("lower", "greater")):
        expected = binomtest(k, n, alternative=alternative).proportion_ci(confidence, "exact")
        found = clopper_pearson(k, n, confidence, side)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, (expected.low, expected.high), atol=1e-8)


@given(counts=COUNTS)
def test_the_upper_bound_is_the_rate_at_which_so_few_events_are_rare(
    counts: tuple[int, int],
) -> None:
    k, n = counts
    upper = clopper_pearson(k, n, 0.95, "upper")[1]
    if k < n:
        assert binom.cdf(k, n, upper) == pytest.approx(0.05, abs=1e-6)
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@given(target=st.floats(0.001, 0.5), confidence=st.floats(0.5, 0.99))
def test_no_fewer_negatives_would_do(target: float, confidence: float) -> None:
    needed = negatives_needed(target, confidence)
    assert clopper_pearson(0, needed, confidence, "upper")[1] <= target + 1e-9
    if needed > 1:
        assert clopper_pearson(0, needed - 1, confidence, "upper")[1] > target - 1e-9


@settings(max_examples=40, deadline=None)
@given(
    negative=hnp.arrays(np.float32, st.integers(60, 200), elements=st.floats(0, 0.875, width=32)),
    positive=hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(0, 1, width=32)),
    per_episode=st.integers(1, 3),
)
def test_the_threshold_is_the_smallest_that_holds_both_bounds(
    negative: np.ndarray, positive: np.ndarray, per_episode: int
) -> None:
    target, confidence = 0.1, 0.95
    probabilities = np.concatenate([negative, positive])
    labels = np.repeat([0, 1], [len(negative), len(positive)])
    episodes = np.concatenate(
        [np.arange(len(negative)) // per_episode, 10_000 + np.arange(len(positive))]
    )
    chosen = threshold_for_fpr(probabilities, labels, episodes, target)
    enough = len(np.unique(episodes[labels == 0])) >= negatives_needed(target, confidence)

    def holds(value: float) -> bool:
        wrong = (probabilities >= np.float32(value)) & (labels == 0)
        frames = binomtest(int(wrong.sum()), len(negative), alternative="less")
        groups = len(np.unique(episodes[wrong])), len(np.unique(episodes[labels == 0]))
        by_episode = binomtest(*groups, alternative="less")
        bounds = [frames.proportion_ci(confidence, "exact").high]
        if enough:
            bounds.append(by_episode.proportion_ci(confidence, "exact").high)
        return max(bounds) <= target

    assert holds(chosen.value)
    if chosen.value > 0:
        assert not holds(float(np.nextafter(np.float32(chosen.value), np.float32(-1))))
    assert chosen.true_positives == int((positive >= np.float32(chosen.value)).sum())
    assert chosen.recall == chosen.true_positives / len(positive)
    assert chosen.episodes_reach_target == enough
    assert bool(chosen.notes) != enough


@given(
    negative=hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(0, 1, width=32)),
    positive=hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(0, 1, width=32)),
    recall=st.floats(0, 1),
)
def test_the_threshold_is_the_largest_that_keeps_a_recall(
    negative: np.ndarray, positive: np.ndarray, recall: float
) -> None:
    probabilities = np.concatenate([negative, positive])
    labels = np.repeat([0, 1], [len(negative), len(positive)])
    chosen = threshold_for_recall(probabilities, labels, np.arange(len(labels)), recall)
    claimed = int((positive >= np.float32(chosen.value)).sum())
    fewer = int((positive > np.float32(chosen.value)).sum())
    assert claimed == chosen.true_positives and claimed / len(positive) >= recall - 1e-9
    assert fewer == 0 or fewer / len(positive) < recall
    assert chosen.false_positives == int((negative >= np.float32(chosen.value)).sum())


def test_too_few_negatives_are_refused_with_the_number_needed() -> None:
    probabilities, labels = np.full(298, 0.1), np.zeros(298, int)
    assert negatives_needed(0.01) == 299
    with pytest.raises(TooFewNegativesError, match="299"):
        threshold_for_fpr(probabilities, labels, np.arange(298), 0.01)
    one_more = threshold_for_fpr(np.full(299, 0.1), np.zeros(299, int), np.arange(299), 0.01)
    assert one_more.false_positives == 0 and one_more.episodes_reach_target


def test_arrays_that_cannot_work_are_refused() -> None:
    with pytest.raises(InputError, match="no success frame"):
        threshold_for_recall(np.zeros(3), np.zeros(3, int), np.arange(3), 0.9)
    with pytest.raises(InputError, match=r"recall=1\.2"):
        threshold_for_recall(np.zeros(3), np.ones(3, int), np.arange(3), 1.2)
    with pytest.raises(InputError, match="probability 1"):
        threshold_for_fpr(np.ones(400), np.zeros(400, int), np.arange(400), 0.01)
    for probabilities, labels in (
        ([0.5, 2.0], [0, 1]),
        ([0.5, np.nan], [0, 1]),
        ([0.5, 0.5], [0, 2]),
        ([0.5], [0, 1]),
    ):
        with pytest.raises(InputError, match="Expected"):
            threshold_for_fpr(np.array(probabilities), np.array(labels), np.arange(2))
    for logits, of_rows in (
        (np.zeros((0, 2)), np.zeros(0, int)),
        (np.full((1, 2), np.nan), np.zeros(1, int)),
        (np.zeros((2, 2)), np.array([0, 2])),
        (np.zeros((2, 1)), np.zeros(2, int)),
    ):
        with pytest.raises(InputError, match="Expected"):
            temperature(logits, of_rows)
    with pytest.raises(ConfigError):
        clopper_pearson(3, 2)


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_the_temperature_that_made_the_labels_is_found(true: float) -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(20_000, 2)) * 3
    odds = (logits[:, 1] - logits[:, 0]) / true
    labels = (generator.random(20_000) < 1 / (1 + np.exp(-odds))).astype(int)
    assert temperature(logits, labels) == pytest.approx(true, rel=0.1)


@given(
    logits=hnp.arrays(np.float64, (120, 2), elements=st.floats(-20, 20)),
)
def test_the_temperature_is_never_worse_than_none(logits: np.ndarray) -> None:
    labels = np.arange(120) % 2
    logits[:2] = [[0.0, 1.0], [1.0, 0.0]]  # two on the wrong side: not separated

    def loss(scale: float) -> float:
        odds = (logits[:, 1] - logits[:, 0]) / scale * np.where(labels == 1, -1, 1)
        return float(np.logaddexp(0, odds).mean())

    found = temperature(logits, labels)
    assert 0.05 <= found <= 20.0 + 1e-9
    assert loss(found) <= min(loss(scale) for scale in (0.05, 0.3, 1.0, 3.0, 20.0)) + 1e-6


@pytest.mark.parametrize("scale", [0.1, 3.0, 57.0])
@pytest.mark.parametrize("frames", [2, 400])
def test_separated_labels_do_not_raise_the_certainty(scale: float, frames: int) -> None:
    labels = np.arange(frames) % 2
    logits = np.stack([np.zeros(frames), np.where(labels == 1, scale, -scale)], axis=1)
    assert temperature(logits, labels) == pytest.approx(1.0)
    assert temperature(np.roll(logits, 1, axis=1), labels, success=0) == pytest.approx(1.0)


def test_few_frames_do_not_raise_the_certainty() -> None:
    labels = np.arange(40) % 2
    odds = np.where(labels == 1, 0.3, -0.3)
    odds[:2] *= -1
    few = temperature(np.stack([0 * odds, odds], axis=1), labels)
    many = temperature(np.tile(np.stack([0 * odds, odds], axis=1), (10, 1)), np.tile(labels, 10))
    assert few == pytest.approx(1.0) and many < 0.2
