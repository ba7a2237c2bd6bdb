"""Foreign networks run with explicit arguments, and what is missing is listed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_network import HEIGHT, MEAN, STD, WEIGHTS, WIDTH, expected_logits, golden_images, network

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Decision
from vinoreward.errors import (
    BundleError,
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
    OutputError,
)
from vinoreward.rewards.classifier import Classifier

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


INFO = {
    "model_info labels": "failure success",
    "model_info mean_values": " ".join(str(255 * value) for value in MEAN),
    "model_info scale_values": " ".join(str(255 * value) for value in STD),
    "model_info reverse_input_channels": "True",
    "model_info confidence_threshold": "0.7",
}


def test_a_foreign_network_runs_with_explicit_arguments(tmp_path: Path) -> None:
    path = network(tmp_path / "foreign.onnx", float_input=True)
    bundle = Bundle.from_model(
        path, labels=("failure", "success"), success_label="success", mean=MEAN, std=STD
    )
    assert (bundle.spec.picture.height, bundle.spec.picture.width) == (HEIGHT, WIDTH)
    assert bundle.spec.picture.layout == "NCHW"
    assert bundle.spec.output == "logits"
    images = golden_images()
    for name in ("openvino", "onnxruntime"):
        with bundle.backend(name) as backend:
            assert np.allclose(backend.infer(images), expected_logits(images), atol=1e-4)


def test_a_bgr_network_is_given_rgb(tmp_path: Path) -> None:
    path = network(tmp_path / "bgr.onnx", float_input=True, weights=WEIGHTS[::-1])
    bundle = Bundle.from_model(
        path, labels=("failure", "success"), success_label="success", color_order="BGR",
        mean=MEAN[::-1], std=STD[::-1],
    )  # fmt: skip
    images = golden_images()
    for name in ("openvino", "onnxruntime"):
        with bundle.backend(name) as backend:
            found = backend.infer(bundle.prepare(images))
            assert np.allclose(found, expected_logits(images), atol=1e-4)


def test_model_info_is_read(tmp_path: Path) -> None:
    path = network(tmp_path / "info.onnx", float_input=True, metadata=INFO, softmax=True)
    bundle = Bundle.from_model(path, success_label="success")
    spec = bundle.spec
    assert spec.labels == ("failure", "success")
    assert spec.decision.threshold == 0.7
    assert spec.output == "probabilities"
    assert spec.picture.color_order == "RGB"
    assert spec.picture.scale == 1.0
    with bundle.backend("openvino") as backend:
        found = backend.infer(golden_images())
    powers = np.exp(expected_logits(golden_images()))
    assert np.allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=1e-4)


def test_explicit_arguments_win_over_model_info(tmp_path: Path) -> None:
    info = INFO | {"model_info reverse_input_channels": "False"}
    path = network(tmp_path / "info.onnx", float_input=True, metadata=info)
    assert Bundle.from_model(path, success_label="success").spec.picture.color_order == "BGR"
    spec = Bundle.from_model(
        path, labels=("no", "yes"), success_label="yes", mean=MEAN, std=STD, color_order="RGB",
        threshold=0.9, output="probabilities", name="other",
    ).spec  # fmt: skip
    assert (spec.labels, spec.decision.threshold, spec.name) == (("no", "yes"), 0.9, "other")
    assert (spec.picture.mean, spec.picture.std, spec.picture.scale) == (MEAN, STD, 255.0)
    assert (spec.picture.color_order, spec.output) == ("RGB", "probabilities")


def test_missing_facts_are_listed(tmp_path: Path) -> None:
    path = network(tmp_path / "bare.onnx", float_input=True, size=("H", "W"))
    with pytest.raises(ConfigError, match="height=, width=, labels=, success_label=, mean=, std="):
        Bundle.from_model(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": ("a", "b", "c")}, "2 outputs"),
        ({"success_label": "won"}, "one of failure, success"),
        ({"mean": (0.5,)}, "three numbers"),
        ({"threshold": 3.0}, "0 to 1"),
        ({"output_index": 4}, "output_index"),
        ({"height": 5000}, "4096"),
    ],
)
def test_contradicting_arguments_are_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    path = network(tmp_path / "foreign.onnx", float_input=True)
    base: dict[str, Any] = {
        "labels": ("failure", "success"), "success_label": "success", "mean": MEAN, "std": STD,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        Bundle.from_model(path, **(base | arguments))


def test_a_uint8_network_cannot_want_bgr(model: Path) -> None:
    with pytest.raises(ConfigError, match="channel reversal inside the graph"):
        Bundle.from_model(model, labels=("a", "b"), success_label="b", color_order="BGR")
    bundle = Bundle.from_model(model, labels=("a", "b"), success_label="b")
    assert bundle.spec.picture.in_graph


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"absent\.onnx"):
        Bundle.from_model(tmp_path / "absent.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"not a network")
    with pytest.raises(ModelCorruptError, match="cannot be read"):
        Bundle.from_model(tmp_path / "broken.onnx")
    with pytest.raises(ConfigError, match="no \\.onnx file"):
        Bundle.from_model(tmp_path / "weights.pt")


def test_a_foreign_network_becomes_a_bundle(tmp_path: Path) -> None:
    path = network(tmp_path / "foreign.onnx", float_input=True, metadata=INFO)
    foreign = Bundle.from_model(path, success_label="success")
    with pytest.raises(BundleError, match="not saved"):
        _ = foreign.golden
    saved = foreign.save(tmp_path / "saved", golden_images())
    assert Bundle.load(tmp_path / "saved") == saved
    assert dataclasses.replace(saved.spec, files={}) == foreign.spec
    with saved.backend("openvino") as backend:
        found = backend.infer(golden_images())
    assert np.allclose(found, expected_logits(golden_images()), atol=1e-4)
    with pytest.raises(ConfigError, match="saved already"):
        saved.save(tmp_path / "again", golden_images())


ONE = WEIGHTS[:, 1:] - WEIGHTS[:, :1]


@pytest.mark.parametrize("success", ["failure", "success"])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_one_output_is_for_the_second_label(tmp_path: Path, sigmoid: bool, success: str) -> None:
    """One logit that is the difference of two gives the very probabilities of the two."""
    path = network(tmp_path / "one.onnx", float_input=True, weights=ONE, sigmoid=sigmoid)
    bundle = Bundle.from_model(
        path, labels=("failure", "success"), success_label=success, mean=MEAN, std=STD
    )
    assert bundle.spec.output == ("probability" if sigmoid else "logit")
    images = golden_images()
    powers = np.exp(expected_logits(images).astype(np.float64))
    column = 0 if success == "failure" else 1
    expected = powers[:, column] / powers.sum(axis=1)
    saved = bundle.save(tmp_path / "bundle", images)
    assert saved.golden.logits.shape == (4, 1)
    for name in ("openvino", "onnxruntime"):
        with Classifier(Bundle.load(tmp_path / "bundle"), backend=name) as classifier:
            assert np.allclose(classifier.probability(images), expected, atol=1e-5)


def test_one_logit_is_divided_by_the_temperature(tmp_path: Path) -> None:
    path = network(tmp_path / "one.onnx", float_input=True, weights=ONE)
    bundle = Bundle.from_model(path, labels=("no", "yes"), success_label="yes", mean=MEAN, std=STD)
    spec = dataclasses.replace(bundle.spec, decision=Decision(temperature=2.0))
    images = golden_images()
    logits = expected_logits(images, ONE)[:, 0]
    with Classifier(dataclasses.replace(bundle, spec=spec)) as classifier:
        assert np.allclose(classifier.log_odds(images), logits / 2, atol=1e-4)


@pytest.mark.parametrize(
    ("weights", "given", "words"),
    [
        (ONE, {"labels": ("success",)}, "has one output, but there are 1 labels"),
        (ONE, {"output": "logits"}, "has 1 outputs, but there are 2 labels"),
        (WEIGHTS, {"output": "logit"}, "Expected one output for 'logit'"),
    ],
)
def test_a_head_that_does_not_fit_its_labels_is_refused(
    tmp_path: Path, weights: np.ndarray, given: dict[str, Any], words: str
) -> None:
    path = network(tmp_path / "one.onnx", float_input=True, weights=weights)
    arguments = {"labels": ("failure", "success"), "success_label": "success"} | given
    with pytest.raises(ConfigError, match=words):
        Bundle.from_model(path, mean=MEAN, std=STD, **arguments)


def test_a_logit_called_a_probability_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    path = network(tmp_path / "one.onnx", float_input=True, weights=3 * ONE)
    bundle = Bundle.from_model(
        path, labels=("failure", "success"), success_label="success", mean=MEAN, std=STD,
        output="probability",
    )  # fmt: skip
    with Classifier(bundle) as classifier, pytest.raises(OutputError, match="say output='logit'"):
        classifier.probability(golden_images())
