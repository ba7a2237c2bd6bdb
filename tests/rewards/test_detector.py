"""The success detector against a naive restatement, and the classifier's numbers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toy_environments import Corridor, cell_log_odds, save_toy_bundle

from vinoreward import Classifier, SuccessDetector
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Decision
from vinoreward.errors import ConfigError, InputError
from vinoreward.rewards.classifier import log_odds, sigmoid

PROBABILITIES = st.floats(0, 1, width=32)


def restated(frames: list[float], enter: float, leave: float, hold: int) -> list[bool]:
    """One environment, one frame at a time, by the words of the definition."""
    claims, run = [], 0
    for probability in frames:
        limit = leave if run else enter
        run = run + 1 if probability >= limit else 0
        claims.append(run >= hold)
    return claims


@given(
    frames=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 20), st.just(3)), elements=PROBABILITIES
    ),
    limits=st.tuples(PROBABILITIES, PROBABILITIES).map(sorted),
    hold=st.integers(1, 4),
)
def test_each_environment_is_judged_on_its_own(
    frames: np.ndarray, limits: list[float], hold: int
) -> None:
    leave, enter = limits
    detector = SuccessDetector(enter, leave, hold, num_envs=3)
    claims = np.array([detector.update(row) for row in frames])
    for env in range(3):
        assert claims[:, env].tolist() == restated(frames[:, env].tolist(), enter, leave, hold)
    assert (detector.counter <= hold).all()


def test_masked_environments_keep_their_state() -> None:
    detector = SuccessDetector(0.5, hold=2, num_envs=2)
    detector.update(np.array([0.9, 0.9]))
    claims = detector.update(np.array([np.nan, 0.9]), np.array([False, True]))
    assert claims.tolist() == [False, True]
    assert detector.counter.tolist() == [1, 2]
    assert detector.update(np.array([0.9, 0.1])).tolist() == [True, False]
    detector.reset(np.array([True, False]))
    assert detector.counter.tolist() == [0, 0]


def test_the_threshold_is_compared_in_the_classifiers_precision() -> None:
    assert SuccessDetector(0.9).update(np.array([0.9], np.float32))[0]


def test_what_cannot_work_is_refused() -> None:
    wrong: Any
    for wrong in (
        {"enter": 0.5, "exit": 0.6},
        {"enter": float("nan")},
        {"enter": 1.2},
        {"enter": 0.5, "hold": 0},
        {"enter": 0.5, "hold": True},
    ):
        with pytest.raises(ConfigError, match="Expected"):
            SuccessDetector(**wrong)
    for wrong in ([0.5, 0.5], [float("nan")], [1.5], [-3.0]):
        with pytest.raises(InputError, match="Expected"):
            SuccessDetector(0.5).update(np.array(wrong))


def test_a_guard_needs_observations() -> None:
    detector = SuccessDetector(0.5, success_filter=lambda observation, probability: observation > 0)
    assert detector.update(np.array([0.9]), observations=[1])[0]
    assert not detector.update(np.array([0.9]), observations=[-1])[0]
    with pytest.raises(InputError, match="observations"):
        detector.update(np.array([0.9]))


# --- the classifier ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    decision = Decision(threshold=0.7, temperature=2.0)
    return save_toy_bundle(tmp_path_factory.mktemp("toy") / "toy", decision=decision)


def images() -> np.ndarray:
    env = Corridor()
    frames = []
    for env.cell in range(8):
        frames.append(env.render())
    return np.stack(frames)


def test_probabilities_are_those_of_the_image_at_the_temperature(bundle: Bundle) -> None:
    odds = np.array([cell_log_odds(cell) for cell in range(8)]) / 2.0
    with Classifier(bundle) as classifier:
        np.testing.assert_allclose(classifier.predict(images()).log_odds, odds, atol=1e-4)
        probability = classifier.probability(images())
        np.testing.assert_allclose(probability, 1 / (1 + np.exp(-odds)), atol=1e-5)
        claims = classifier.compute_reward(images())
        assert claims.dtype == probability.dtype == np.float32
        assert claims.tolist() == (probability >= 0.7).astype(float).tolist()
        assert 0 < claims.sum() < 8
        assert classifier.threshold == 0.7
        assert classifier.probability(images()[:0]).shape == (0,)


def test_probability_outputs_give_the_same_numbers(bundle: Bundle, tmp_path: Path) -> None:
    other = save_toy_bundle(tmp_path / "p", decision=bundle.spec.decision, probabilities=True)
    with Classifier(bundle) as a, Classifier(other) as b:
        np.testing.assert_allclose(b.probability(images()), a.probability(images()), atol=1e-5)


def test_a_classifier_travels_and_ends_when_closed(bundle: Bundle) -> None:
    with Classifier(bundle) as classifier:
        expected = classifier.probability(images())
        with pickle.loads(pickle.dumps(classifier)) as again:
            assert np.array_equal(again.probability(images()), expected)
    with pytest.raises(ConfigError, match="closed"):
        classifier.probability(images())


@settings(max_examples=50)
@given(
    logits=hnp.arrays(np.float64, (4, 3), elements=st.floats(-30, 30)),
    temperature=st.floats(0.1, 10),
)
def test_log_odds_of_several_classes_are_those_of_the_softmax(
    logits: np.ndarray, temperature: float
) -> None:
    odds = log_odds(logits, 1, temperature)
    exponentials = np.exp(logits / temperature - (logits / temperature).max(axis=1, keepdims=True))
    share = exponentials[:, 1] / exponentials.sum(axis=1)
    np.testing.assert_allclose(sigmoid(odds), share, rtol=1e-6, atol=1e-9)
