"""INT8 decides where it is sure; the FP32 network looks again where it is not."""

from __future__ import annotations

import dataclasses
import math
import pickle
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from toy_environments import HEIGHT, WIDTH, Corridor, save_toy_bundle

from vinoreward import LearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import add_int8
from vinoreward.bundles.schema import Decision, Quantization
from vinoreward.errors import BundleParityError, ConfigError
from vinoreward.files import sha256
from vinoreward.rewards.classifier import Classifier, sigmoid
from vinoreward.rewards.second_look import logit, unsure

THRESHOLD = 0.7
BAND = 1.5
PASSED = Quantization(passed=True, flips=0, frames=400, method="nncf-ptq")
finite = st.floats(-20, 20)


# --- which pictures ----------------------------------------------------------------------------


@given(
    st.lists(st.tuples(finite, st.floats(-2, 2)), min_size=1, max_size=30),
    st.floats(-5, 5),
)
@settings(deadline=None)
def test_no_error_within_the_band_flips_a_decision(
    frames: list[tuple[float, float]], threshold: float
) -> None:
    exact = np.array([value for value, _ in frames])
    small = exact + np.array([error for _, error in frames])
    band = float(np.abs(small - exact).max()) + 1e-9
    combined = np.where(unsure(small, threshold, band), exact, small)
    assert ((combined >= threshold) == (exact >= threshold)).all()


@given(st.lists(finite, min_size=1, max_size=30), st.floats(-5, 5), st.floats(0, 5))
@settings(deadline=None)
def test_the_band_is_open_and_even_on_both_sides(
    values: list[float], threshold: float, band: float
) -> None:
    odds = np.array(values)
    found = unsure(odds, threshold, band)
    assert found.tolist() == [abs(value - threshold) < band for value in values]
    assert not unsure(odds, threshold, 0.0).any()
    assert not unsure(odds, math.inf, band).any() and not unsure(odds, -math.inf, band).any()


@given(st.floats(1e-6, 1 - 1e-6))
def test_the_logit_is_the_inverse_of_the_sigmoid(probability: float) -> None:
    assert float(sigmoid(np.array(logit(probability)))) == pytest.approx(probability)


def test_certain_thresholds_are_infinitely_far() -> None:
    assert (logit(0.0), logit(1.0)) == (-math.inf, math.inf)


# --- the classifier ----------------------------------------------------------------------------


def biased(source: Path, target: Path, shift: float) -> Path:
    """Write the toy network with ``shift`` added to its success logit: it stands for INT8."""
    model = onnx.load(str(source))
    for item in model.graph.initializer:
        if item.name == "bias":
            moved = numpy_helper.to_array(item) + np.array([0, shift], np.float32)
            item.CopyFrom(numpy_helper.from_array(moved, "bias"))
    onnx.save(model, str(target))
    return target


SHIFT = 0.4
"""Error of the network that stands for INT8, in calibrated log-odds."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("toy")
    made = save_toy_bundle(folder / "toy", decision=Decision(threshold=THRESHOLD))
    small = biased(made.path / "model.onnx", folder / "small.onnx", SHIFT)
    golden = made.golden.logits + np.array([0, SHIFT], np.float32)
    return add_int8(made, small, PASSED, golden, BAND)


def without_band(bundle: Bundle) -> Bundle:
    decision = dataclasses.replace(bundle.spec.decision, int8_band=None)
    return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, decision=decision))


def pictures() -> np.ndarray:
    """Every shade of red: log-odds from far below the threshold to far above."""
    images = np.zeros((256, HEIGHT, WIDTH, 3), np.uint8)
    images[..., 0] = np.arange(256)[:, None, None]
    return images


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_fp32_answers_within_the_band_and_int8_beyond(bundle: Bundle, backend: str) -> None:
    with (
        Classifier(bundle, backend=backend, precision="fp32") as fp32,
        Classifier(without_band(bundle), backend=backend) as int8,
        Classifier(bundle, backend=backend) as both,
    ):
        exact, small = fp32.log_odds(pictures()), int8.log_odds(pictures())
        np.testing.assert_allclose(small - exact, SHIFT, atol=1e-3)
        again = np.abs(small - logit(THRESHOLD)) < BAND
        assert 0 < again.sum() < 256
        found = both.log_odds(pictures())
        assert found.tolist() == np.where(again, exact, small).tolist()
        assert (both.looks, both.second_looks) == (256, again.sum())
        claims = both.compute_reward(pictures())
        assert np.array_equal(claims, fp32.compute_reward(pictures()))
        assert not np.array_equal(int8.compute_reward(pictures()), claims)
        # One answer, however it is asked for.
        probability, odds = both.score(pictures())
        assert np.array_equal(odds, found)
        assert np.array_equal(probability, both.probability(pictures()))
        np.testing.assert_allclose(probability, sigmoid(odds.astype(np.float64)), rtol=1e-5)
        assert np.array_equal(probability >= np.float32(both.threshold), claims > 0)
        assert both.second_looks == 4 * again.sum()
        assert (fp32.band, fp32.second_looks, int8.second_looks) == (None, 0, 0)
        assert len(fp32.backends) == len(int8.backends) == 1


def test_pictures_one_by_one_give_what_the_batch_gives(bundle: Bundle) -> None:
    with Classifier(bundle) as classifier:
        batch = classifier.log_odds(pictures())
        single = [classifier.log_odds(picture[None])[0] for picture in pictures()]
        np.testing.assert_allclose(single, batch, atol=1e-5)


def test_both_networks_are_built_at_once_and_closed_together(bundle: Bundle) -> None:
    classifier = Classifier(bundle)
    first, second = classifier.backends
    assert (first.precision, second.precision) == ("int8", "fp32")
    assert classifier.backend is first and classifier.looks == 0
    classifier.close()
    for backend in (first, second):
        with pytest.raises(ConfigError, match="closed"):
            backend.infer(pictures()[:1])


def test_a_broken_second_network_is_found_before_the_first_picture(
    bundle: Bundle, tmp_path: Path
) -> None:
    broken = biased(bundle.path / "model.onnx", tmp_path / "broken.onnx", 9.0)
    copy = Path(shutil.copytree(bundle.path, tmp_path / "copy"))
    shutil.copyfile(broken, copy / "model.onnx")
    spec = dataclasses.replace(
        bundle.spec, files={**bundle.spec.files, "model.onnx": sha256(copy / "model.onnx")}
    )
    with pytest.raises(BundleParityError):
        Classifier(Bundle(copy, spec)).log_odds(pictures()[:1])


def test_a_pickled_classifier_looks_twice_where_it_arrives(bundle: Bundle) -> None:
    with Classifier(bundle) as classifier:
        expected = classifier.log_odds(pictures())
        with pickle.loads(pickle.dumps(classifier)) as again:
            assert again.looks == again.second_looks == 0
            assert np.array_equal(again.log_odds(pictures()), expected)
            assert again.second_looks == classifier.second_looks > 0


def test_the_band_follows_the_users_threshold(bundle: Bundle) -> None:
    own = 0.05
    with Classifier(bundle, precision="fp32") as fp32, Classifier(bundle, threshold=own) as both:
        assert both.threshold == own
        exact = fp32.log_odds(pictures())
        found = both.log_odds(pictures())
        near = np.abs(exact - logit(own)) < BAND - SHIFT
        assert near.any() and np.array_equal(found[near], exact[near])
        decided = both.compute_reward(pictures()) > 0
        assert np.array_equal(decided, fp32.probability(pictures()) >= np.float32(own))
    for wrong in (-0.1, 1.5, math.nan):
        with pytest.raises(ConfigError, match="0 to 1"):
            Classifier(bundle, threshold=wrong)


def test_a_wrappers_threshold_moves_the_band_too(bundle: Bundle) -> None:
    env = LearnedReward(
        Corridor(observation="picture"), bundle, image_source="obs", success_threshold=0.9
    )
    assert (env.classifier.threshold, env.classifier.band) == (0.9, BAND)
    env.close()


def test_a_certain_threshold_needs_no_second_look(bundle: Bundle) -> None:
    with Classifier(bundle, threshold=1.0) as classifier:
        classifier.log_odds(pictures())
        assert classifier.second_looks == 0


def test_a_band_of_zero_is_none(bundle: Bundle) -> None:
    decision = dataclasses.replace(bundle.spec.decision, int8_band=0.0)
    spec = dataclasses.replace(bundle.spec, decision=decision)
    assert Classifier(dataclasses.replace(bundle, spec=spec)).band is None


def test_the_card_explains_the_second_look(bundle: Bundle) -> None:
    card = (bundle.path / "README.md").read_text()
    assert "within 1.5 of the threshold" in card


def test_a_mistyped_backend_is_said_when_the_classifier_is_made() -> None:
    from vinoreward.errors import UnknownBackendError

    with pytest.raises(UnknownBackendError, match="openvino"):
        Classifier("panda-hover-classifier", backend="openvino2")
