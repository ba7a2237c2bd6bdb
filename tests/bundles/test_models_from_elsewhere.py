"""Foreign networks run with explicit arguments, and what is missing is listed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_network import HEIGHT, MEAN, STD, WEIGHTS, WIDTH, expected_logits, golden_images, network

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import (
    BundleError,
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
    OutputError,
    VinorewardError,
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


# Trusted, or each network is tried in a child; the first test is of one that is not.
ARGUMENTS: dict[str, Any] = {
    "labels": ("failure", "success"), "success_label": "success", "mean": MEAN, "std": STD,
    "trusted": True,
}  # fmt: skip


def check(bundle: Bundle, near: float = 1e-4) -> None:
    """Compare what both runtimes give with the network's own logits."""
    images = golden_images()
    for name in ("openvino", "onnxruntime"):
        with bundle.backend(name) as backend:
            found = backend.infer(bundle.prepare(images))
            np.testing.assert_allclose(found, expected_logits(images), atol=near)


@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_a_foreign_network_runs_with_explicit_arguments(tmp_path: Path, order: Any) -> None:
    way = -1 if order == "BGR" else 1
    path = network(tmp_path / "foreign.onnx", float_input=True, weights=WEIGHTS[::way])
    facts = {
        **ARGUMENTS,
        "trusted": False,
        "color_order": order,
        "mean": MEAN[::way],
        "std": STD[::way],
    }
    bundle = Bundle.from_model(path, **facts)
    assert (bundle.spec.image.height, bundle.spec.image.width) == (HEIGHT, WIDTH)
    assert bundle.spec.image.layout == "NCHW"
    assert bundle.spec.output == "logits"
    check(bundle)


def test_model_info_is_read(tmp_path: Path) -> None:
    path = network(tmp_path / "info.onnx", float_input=True, metadata=INFO, softmax=True)
    bundle = Bundle.from_model(path, success_label="success")
    spec = bundle.spec
    assert spec.labels == ("failure", "success")
    assert spec.decision.threshold == 0.7
    assert spec.output == "probabilities"
    assert spec.image.color_order == "RGB"
    assert spec.image.scale == 1.0
    with bundle.backend("openvino") as backend:
        found = backend.infer(golden_images())
    powers = np.exp(expected_logits(golden_images()))
    assert np.allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=1e-4)


def test_missing_facts_are_listed(tmp_path: Path) -> None:
    path = network(tmp_path / "bare.onnx", float_input=True, size=("H", "W"))
    with pytest.raises(ConfigError, match="height, width, labels, success_label, mean, std"):
        Bundle.from_model(path)


@pytest.mark.parametrize(
    ("outputs", "arguments", "message"),
    [
        (2, {"labels": ("a", "b", "c")}, "2 outputs"),
        (2, {"success_label": "won"}, "one of failure, success"),
        (2, {"threshold": 3.0}, "threshold is 3.0.*less than or equal to 1"),
        (2, {"output": "logit"}, "Expected one output for 'logit'"),
        (1, {"labels": ("success",)}, "has one output, but there are 1 labels"),
    ],
)
def test_contradicting_arguments_are_refused(
    tmp_path: Path, outputs: int, arguments: dict[str, Any], message: str
) -> None:
    path = network(tmp_path / "foreign.onnx", float_input=True, weights=WEIGHTS[:, :outputs])
    with pytest.raises(ConfigError, match=message):
        Bundle.from_model(path, **(ARGUMENTS | arguments))


def test_what_a_uint8_network_would_not_apply_is_refused(model: Path) -> None:
    facts: dict[str, Any] = {"labels": ("a", "b"), "success_label": "b", "trusted": True}
    for given, message in (
        ({"color_order": "BGR"}, "channel reversal inside the graph"),
        ({"mean": MEAN, "std": STD}, "uint8 images, so mean, std would never be applied"),
        ({"scale": 1.0}, "uint8 images, so scale would never be applied"),
    ):
        with pytest.raises(ConfigError, match=message):
            Bundle.from_model(model, **facts, **given)
    assert Bundle.from_model(model, **facts).spec.image.in_graph


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
    check(saved)
    with pytest.raises(ConfigError, match="saved already"):
        saved.save(tmp_path / "again", golden_images())


ONE = WEIGHTS[:, 1:] - WEIGHTS[:, :1]


@pytest.mark.parametrize(("sigmoid", "success"), [(False, "failure"), (True, "success")])
def test_one_output_is_for_the_second_label(tmp_path: Path, sigmoid: bool, success: str) -> None:
    """One logit that is the difference of two gives the very probabilities of the two."""
    path = network(tmp_path / "one.onnx", float_input=True, weights=ONE, sigmoid=sigmoid)
    bundle = Bundle.from_model(path, **{**ARGUMENTS, "success_label": success})
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


def test_a_logit_called_a_probability_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    path = network(tmp_path / "one.onnx", float_input=True, weights=3 * ONE)
    bundle = Bundle.from_model(path, **ARGUMENTS, output="probability")
    with Classifier(bundle) as classifier, pytest.raises(OutputError, match="say output='logit'"):
        classifier.probability(golden_images())


def changed(path: Path, change: Callable[[Any], object], **network_options: Any) -> Path:
    """Write the tiny float network and change its parsed model."""
    import onnx

    model = onnx.load(network(path, float_input=True, **network_options))
    change(model)
    onnx.save(model, path)
    return path


def behind(*nodes: tuple[Any, ...], **constants: Any) -> Callable[[Any], None]:
    """Put nodes behind a network's last: operator, inputs, outputs, attributes; ``p`` to ``y``."""
    from onnx import helper, numpy_helper

    def change(model: Any) -> None:
        model.graph.node[-1].output[0] = "p"
        model.graph.output[0].name = "y"
        model.graph.node.extend(
            helper.make_node(op, list(takes), list(gives), **more)
            for op, takes, gives, more in nodes
        )
        model.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
        )

    return change


LAST: dict[str, Callable[[Any], None]] = {
    "Identity": behind(("Identity", "p", "y", {})),
    "Clip": behind(("Clip", "plh", "y", {}), l=np.float32(0), h=np.float32(1)),
    "Concat": behind(("Split", "p", "ab", {"axis": 1}), ("Concat", "ba", "y", {"axis": 1})),
    "1 - p": behind(("Sub", "op", "y", {}), o=np.float32(1)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sigmoid"),
    [("Identity", True), ("Clip", False), ("Concat", False), ("Concat", True), ("1 - p", True)],
)
def test_probabilities_are_recognised_behind_operators_that_pass_them_on(
    tmp_path: Path, name: str, sigmoid: bool
) -> None:
    if sigmoid and name == "Concat":  # it has one column: the usual [1 - p, p]
        last = behind(("Sub", "op", "r", {}), ("Concat", "rp", "y", {"axis": 1}), o=np.float32(1))
    else:
        last = LAST[name]
    head = {"sigmoid": True, "weights": ONE} if sigmoid else {"softmax": True}
    bundle = Bundle.from_model(changed(tmp_path / "net.onnx", last, **head), **ARGUMENTS)
    one = sigmoid and name != "Concat"
    assert bundle.spec.output == ("probability" if one else "probabilities")


ODDS = [("Exp", "p", "e", {}), ("ReduceSum", "ea", "t", {"keepdims": 1}), ("Div", "et", "y", {})]


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (behind(*ODDS, a=np.array([1])), {}, "from 0 to 1 that sum to 1 in every row"),
        (
            behind(("Neg", "p", "n", {}), ("Exp", "n", "e", {}), ("Add", "eo", "d", {}),
                   ("Reciprocal", "d", "y", {}), o=np.float32(1)),
            {"weights": ONE}, "numbers from 0 to 1. .*output=probability or output=logit",
        ),
        (
            behind(("Mul", "pk", "y", {}), k=np.float32(9)), {"sigmoid": True, "weights": ONE},
            r"behind a sigmoid.*output=probability or output=logit",
        ),
    ],
    ids=["softmax by hand", "sigmoid by hand", "scaled"],
)  # fmt: skip
def test_what_may_be_probabilities_is_asked_for(
    tmp_path: Path, change: Callable[[Any], None], options: dict[str, Any], words: str
) -> None:
    path = changed(tmp_path / "net.onnx", change, **options)
    with pytest.raises(ConfigError, match=words):
        Bundle.from_model(path, **ARGUMENTS)
    kind = "logit" if options else "logits"
    assert Bundle.from_model(path, **ARGUMENTS, output=kind).spec.output == kind


def of_type(kind: int) -> Callable[[Any], None]:
    """Make the network take numbers of another type, which it converts to float32."""
    from onnx import helper

    def change(model: Any) -> None:
        first = model.graph.node[0]
        first.input[0] = "float"
        model.graph.node.insert(0, helper.make_node("Cast", ["images"], ["float"], to=1))
        model.graph.input[0].type.tensor_type.elem_type = kind

    return change


@pytest.mark.parametrize("kind", ["INT8", "DOUBLE", "STRING"])
def test_an_input_of_another_type_is_refused(tmp_path: Path, kind: str) -> None:
    import onnx

    path = changed(tmp_path / "net.onnx", of_type(getattr(onnx.TensorProto, kind)))
    with pytest.raises(VinorewardError, match=r"float32"):
        Bundle.from_model(path, **ARGUMENTS)


def test_a_description_of_another_type_is_refused_by_both_runtimes(
    tmp_path: Path, bundle: Bundle
) -> None:
    """A stranger's description can say of whole numbers that they are normalised floats."""
    import onnx
    from tiny_network import forge, rewrite

    path = changed(tmp_path / "net.onnx", of_type(onnx.TensorProto.INT8))
    forge(bundle, "model.onnx", path.read_bytes())
    rewrite(bundle, lambda spec: spec["image"].update({"in_graph": False, "layout": "NCHW"}))
    for name in ("openvino", "onnxruntime"):
        with pytest.raises(ConfigError, match="its description says"):
            Bundle.load(bundle.path).backend(name, verify=False).load()


def test_a_float16_network_gives_the_same_on_both_runtimes(tmp_path: Path) -> None:
    import onnx

    path = changed(tmp_path / "half.onnx", of_type(onnx.TensorProto.FLOAT16))
    check(Bundle.from_model(path, **ARGUMENTS), 2e-2)


def unsort(model: Any) -> None:
    first = model.graph.node.pop(0)
    model.graph.node.append(first)


def older(model: Any) -> None:
    model.opset_import[0].version = 9


@pytest.mark.parametrize("change", [unsort, older])
def test_an_unusual_export_runs_where_the_runtimes_run_it(
    tmp_path: Path, change: Callable[[Any], None]
) -> None:
    check(Bundle.from_model(changed(tmp_path / "net.onnx", change), **ARGUMENTS))
