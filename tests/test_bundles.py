"""Bundles: what is saved is what is loaded, and whatever is not right is refused by name."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.bundles import save as save_module
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import previous_of
from vinoreward.bundles.save import add_int8, save_bundle
from vinoreward.bundles.schema import BundleSpec, Decision, Picture, Quantization
from vinoreward.errors import (
    BundleEditedError,
    BundleError,
    BundleParityError,
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
    RunFolderError,
)

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

HEIGHT, WIDTH = 6, 8
MEAN = (0.4, 0.5, 0.3)
STD = (0.2, 0.25, 0.3)
WEIGHTS = np.array([[3.0, -2.0], [0.5, 1.0], [-2.5, 3.0]], dtype=np.float32)


def network(
    path: Path,
    *,
    swap: bool = False,
    mean: tuple[float, ...] = MEAN,
    weights: np.ndarray = WEIGHTS,
    metadata: dict[str, str] | None = None,
    float_input: bool = False,
    softmax: bool = False,
    size: tuple[Any, Any] = (HEIGHT, WIDTH),
) -> Path:
    """Write a real network: mean colour of the picture, times ``weights``."""
    from onnx import TensorProto, helper, numpy_helper

    grey = np.asarray(mean, np.float32).reshape(1, 3, 1, 1)
    spread = np.asarray(STD, np.float32).reshape(1, 3, 1, 1)
    constants = {
        "weights": weights.astype(np.float32),
        "mean": grey,
        "spread": spread,
        "full": np.float32(255.0),
        "order": np.array([2, 1, 0] if swap else [0, 1, 2], np.int64),
    }
    nodes = []
    source = "pictures"
    if not float_input:
        nodes = [
            helper.make_node("Cast", ["pictures"], ["float"], to=TensorProto.FLOAT),
            helper.make_node("Transpose", ["float"], ["planes"], perm=[0, 3, 1, 2]),
            helper.make_node("Gather", ["planes", "order"], ["ordered"], axis=1),
            helper.make_node("Div", ["ordered", "full"], ["unit"]),
            helper.make_node("Sub", ["unit", "mean"], ["centred"]),
            helper.make_node("Div", ["centred", "spread"], ["normal"]),
        ]
        source = "normal"
    last = "scores" if softmax else "logits"
    nodes += [
        helper.make_node("GlobalAveragePool", [source], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], [last]),
    ]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["scores"], ["logits"], axis=1))
    shape = ["N", 3, *size] if float_input else ["N", *size, 3]
    kind = TensorProto.FLOAT if float_input else TensorProto.UINT8
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("pictures", kind, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", weights.shape[1]])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items() if k in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if metadata:
        helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def expected_logits(images: np.ndarray, weights: np.ndarray = WEIGHTS) -> np.ndarray:
    """What the network must give, restated with numpy."""
    normal = (images.astype(np.float64) / 255.0 - np.array(MEAN)) / np.array(STD)
    return (normal.mean(axis=(1, 2)) @ weights.astype(np.float64)).astype(np.float32)


def golden_images(count: int = 4) -> np.ndarray:
    """Colourful frames: each has its own tint."""
    generator = np.random.default_rng(3)
    tints = generator.integers(20, 236, (count, 1, 1, 3))
    noise = generator.integers(-20, 20, (count, HEIGHT, WIDTH, 3))
    return (tints + noise).astype(np.uint8)


SPEC = BundleSpec(
    name="tiny",
    picture=Picture(HEIGHT, WIDTH, mean=MEAN, std=STD, scene={"renderer": "fast", "height": 6}),
    decision=Decision(threshold=0.8, temperature=1.5, chosen_for={"target_fpr": 0.01}),
    metrics={"recall": {"value": 0.98, "count": 200, "interval": [0.95, 0.99]}},
    dataset={"sha256": "ab" * 32, "counts": {"success": 100, "failure": 300}, "seed": 0},
    versions={"vinoreward": "0.1.0"},
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return network(tmp_path / "source.onnx")


@pytest.fixture
def bundle(tmp_path: Path, model: Path) -> Bundle:
    images = golden_images()
    return save_bundle(
        tmp_path / "tiny", SPEC, {"model.onnx": model}, images, expected_logits(images)
    )


def forge(bundle: Bundle, name: str, content: bytes) -> None:
    """Replace a file and its recorded hash, as somebody who means it would."""
    (bundle.path / name).write_bytes(content)
    rewrite(bundle, lambda spec: spec["files"].update({name: hashlib.sha256(content).hexdigest()}))


def rewrite(bundle: Bundle, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the parsed ``bundle.json`` in place."""
    path = bundle.path / "bundle.json"
    value = json.loads(path.read_text())
    change(value)
    text = json.dumps(value)
    path.write_text(text)
    (bundle.path / "bundle.sha256").write_text(hashlib.sha256(text.encode()).hexdigest())


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(item.relative_to(folder)): item.read_bytes()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }


# --- the description ---------------------------------------------------------------------------

finite = st.floats(-1e6, 1e6, allow_nan=False)
positive = st.floats(1e-3, 1e3)
words = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=12)
free = st.dictionaries(
    words,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | finite | words,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)
triples = st.tuples(finite, finite, finite)
specs = st.builds(
    BundleSpec,
    name=words,
    picture=st.builds(
        Picture,
        height=st.integers(1, 4096),
        width=st.integers(1, 4096),
        color_order=st.sampled_from(["RGB", "BGR"]),
        mean=triples,
        std=st.tuples(positive, positive, positive),
        crop=st.none() | st.tuples(*[st.integers(1, 4096)] * 4),
        resize=st.just("pil_bilinear"),
        scene=st.dictionaries(words, words | st.integers(0, 10) | st.booleans(), max_size=3),
        in_graph=st.just(False),
        layout=st.sampled_from(["NHWC", "NCHW"]),
        scale=positive,
    ),
    decision=st.builds(
        Decision,
        threshold=st.floats(0, 1),
        temperature=positive,
        chosen_for=free,
        int8_band=st.none() | st.floats(0, 20),
    ),
    quantization=st.none()
    | st.builds(
        Quantization,
        passed=st.booleans(),
        flips=st.integers(0, 5),
        frames=st.integers(5, 100),
        method=words,
        max_flip_rate=st.floats(0, 1),
        detail=free,
    ),
    labels=st.lists(words, max_size=3, unique=True).map(lambda more: ("success", *more, "no one")),
    output=st.sampled_from(["logits", "probabilities"]),
    output_index=st.integers(0, 9),
    metrics=free,
    dataset=free,
    versions=st.dictionaries(words, words, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(spec=specs)
def test_a_spec_survives_json(spec: BundleSpec) -> None:
    text = json.dumps(spec.to_dict(), allow_nan=False)
    assert BundleSpec.from_dict(json.loads(text)) == spec


def changed(**changes: Any) -> dict[str, Any]:
    """The JSON of SPEC with nested keys changed: ``picture__height=3``."""
    value = SPEC.to_dict()
    for path, item in changes.items():
        *folders, key = path.split("__")
        place = value
        for folder in folders:
            place = place[folder]
        place[key] = item
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "Expected an object"),
        (changed(colour="red"), "unknown key 'colour'"),
        (changed(picture__gamma=1), "picture has the unknown key 'gamma'"),
        (changed(schema_version=2), "upgrade vinoreward"),
        (changed(schema_version=True), "schema_version is True"),
        (changed(schema_version=0), "schema_version"),
        (changed(picture__height=4097), "1 to 4096"),
        (changed(picture__height=0), "1 to 4096"),
        (changed(picture__height=6.0), "whole number"),
        (changed(picture__height="6"), "whole number"),
        (changed(picture__mean=[0.1, 0.2]), "three numbers"),
        (changed(picture__mean=[0.1, 0.2, float("nan")]), "finite"),
        (changed(picture__mean=[0.1, 0.2, 10**400]), "finite"),
        (changed(picture__std=[0.1, 0.0, 0.1]), "positive"),
        (changed(picture__color_order="RBG"), "RGB or BGR"),
        (changed(picture__crop=[0, 0, 5, 5]), "crop"),
        (changed(picture__crop=[-1, 0, 6, 8]), "crop"),
        (changed(picture__scene={"a": [1]}), "scene"),
        (changed(decision__threshold=1.5), "0 to 1"),
        (changed(decision__threshold=None), "a number"),
        (changed(decision__threshold=float("inf")), "finite"),
        (changed(decision__temperature=0), "positive"),
        (changed(decision__int8_band=-1), "at least 0"),
        (changed(decision__int8_band="wide"), "a number"),
        (changed(decision__int8_threshold=0.7), "no threshold of its own"),
        (changed(kind="policy"), "classifier or encoder"),
        (changed(labels=["success"]), "2 to 1000"),
        (changed(labels=["success", "success"]), "different"),
        (changed(labels=["good", "bad"]), "success_label"),
        (changed(labels="success"), "a list"),
        (changed(labels=[1, 2]), "list of strings"),
        (changed(kind="encoder"), "latent_size"),
        (changed(metrics={"recall": float("nan")}), "finite"),
        (changed(versions={"torch": 2}), "string"),
        (changed(files={"../model.onnx": "0" * 64}), "plain relative name"),
        (changed(files={"/etc/passwd": "0" * 64}), "plain relative name"),
        (changed(files={"a/../../b": "0" * 64}), "plain relative name"),
        (changed(files={"a\\b": "0" * 64}), "plain relative name"),
        (changed(files={"model.onnx": "xyz"}), "SHA-256"),
        (changed(quantization={"passed": 1, "flips": 0, "frames": 1, "method": "m"}), "true or"),
        (
            changed(quantization={"passed": True, "flips": 2, "frames": 1, "method": "m"}),
            "0 to 1",
        ),
    ],
)
def test_a_wrong_description_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        BundleSpec.from_dict(value)


def test_a_missing_key_is_named() -> None:
    value = SPEC.to_dict()
    del value["picture"]["height"]
    with pytest.raises(BundleError, match="picture has no 'height'"):
        BundleSpec.from_dict(value)


def test_tuples_and_numpy_numbers_become_json() -> None:
    spec = dataclasses.replace(SPEC, metrics={"rate": np.float32(0.5), "interval": (0, 1)})
    assert spec.metrics == {"rate": 0.5, "interval": [0, 1]}


# --- save and load -----------------------------------------------------------------------------


def test_what_is_saved_is_loaded(bundle: Bundle) -> None:
    loaded = Bundle.load(bundle.path)
    assert loaded == bundle
    assert dataclasses.replace(loaded.spec, files={}) == SPEC
    assert sorted(loaded.spec.files) == ["golden.npz", "model.onnx"]
    assert np.array_equal(loaded.golden.images, golden_images())
    assert pickle.loads(pickle.dumps(loaded)) == loaded


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_a_loaded_bundle_runs(bundle: Bundle, name: str) -> None:
    images = golden_images(7)
    with bundle.backend(name) as backend:
        assert backend.precision == "fp32"
        assert np.allclose(
            backend.infer(bundle.prepare(images)), expected_logits(images), atol=1e-4
        )


def test_no_pickle_in_the_folder(bundle: Bundle) -> None:
    with zipfile.ZipFile(bundle.path / "golden.npz") as archive:
        assert sorted(archive.namelist()) == ["images.npy", "logits.npy"]
    assert sorted(item.name for item in bundle.path.iterdir()) == [
        "README.md",
        "bundle.json",
        "bundle.sha256",
        "golden.npz",
        "model.onnx",
        "pictures",
    ]


def test_a_threshold_changed_by_hand_is_noticed(bundle: Bundle) -> None:
    path = bundle.path / "bundle.json"
    value = json.loads(path.read_text())
    value["decision"]["threshold"] = 0.01
    path.write_text(json.dumps(value))
    with pytest.raises(BundleEditedError, match="success_threshold"):
        Bundle.load(bundle.path)
    (bundle.path / "bundle.sha256").unlink()
    with pytest.raises(BundleEditedError, match="no recorded hash"):
        Bundle.load(bundle.path)


def test_the_card_tells_what_a_reader_needs(bundle: Bundle) -> None:
    card = (bundle.path / "README.md").read_text(encoding="utf-8")
    for fact in ("failure", "success", "6 x 8", "0.8", "target_fpr", "recall", "0.95, 0.99"):
        assert fact in card
    for fact in ("ab" * 32, "vinoreward.Classifier", "renderer", "pictures/golden.png", "quantize"):
        assert fact in card
    assert (bundle.path / "pictures" / "golden.png").is_file()


def test_own_card_and_pictures_are_kept(tmp_path: Path, model: Path) -> None:
    plot = tmp_path / "roc.png"
    plot.write_bytes(b"png")
    images = golden_images()
    saved = save_bundle(
        tmp_path / "b", SPEC, {"model.onnx": model.read_bytes()}, images, expected_logits(images),
        "# mine", {"roc.png": plot},
    )  # fmt: skip
    assert (saved.path / "README.md").read_text() == "# mine"
    assert (saved.path / "pictures" / "roc.png").read_bytes() == b"png"


def test_a_person_may_edit_the_card(bundle: Bundle) -> None:
    (bundle.path / "README.md").write_text("notes")
    assert Bundle.load(bundle.path) == bundle


def test_an_edited_file_is_named_with_both_hashes(bundle: Bundle) -> None:
    old = bundle.spec.files["model.onnx"]
    path = bundle.path / "model.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    new = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(BundleEditedError, match=rf"model\.onnx.*{new}.*{old}.*restore"):
        Bundle.load(bundle.path)


def test_a_file_edited_after_loading_is_noticed(bundle: Bundle, tmp_path: Path) -> None:
    shutil.copyfile(network(tmp_path / "other.onnx", swap=True), bundle.path / "model.onnx")
    with pytest.raises(BundleEditedError, match=r"model\.onnx"):
        bundle.backend("openvino", verify=False).load()


def test_a_missing_file_is_named(bundle: Bundle) -> None:
    (bundle.path / "model.onnx").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no model\.onnx"):
        Bundle.load(bundle.path)


def test_a_relative_path_works_from_another_folder(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = Bundle.load("tiny")
    monkeypatch.chdir("/")
    assert loaded == bundle
    loaded.backend().close()


def test_no_bundle_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"installed bundles.*panda-hover-classifier"):
        Bundle.load(tmp_path / "nothing")
    with pytest.raises(BundleError, match=r"no bundle\.json"):
        Bundle.load(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(BundleError, match="from_model"):
        Bundle.load(file)


def test_a_registered_name_is_found(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package as anyone may install it: a module and its entry point.
    site = tmp_path / "site"
    (site / "acme-1.0.dist-info").mkdir(parents=True)
    (site / "acme-1.0.dist-info" / "METADATA").write_text("Name: acme\nVersion: 1.0\n")
    (site / "acme-1.0.dist-info" / "entry_points.txt").write_text(
        "[vinoreward.bundles]\nacme = acme_rewards:where\nlost = acme_rewards:lost\n"
        "text = acme_rewards:text\nbroken = acme_rewards:missing\n"
    )
    (site / "acme_rewards.py").write_text(
        "from pathlib import Path\n"
        f"def where(): return Path({str(bundle.path)!r})\n"
        "def lost(): return Path('/nowhere')\n"
        "def text(): return 'somewhere'\n"
    )
    monkeypatch.syspath_prepend(str(site))
    assert Bundle.load("acme") == bundle
    with pytest.raises(ModelNotFoundError, match="reinstall"):
        Bundle.load("lost")
    with pytest.raises(BundleError, match=r"pathlib\.Path"):
        Bundle.load("text")
    with pytest.raises(BundleError, match="does not import"):
        Bundle.load("broken")


def test_a_link_out_of_the_folder_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    outside = tmp_path / "outside.onnx"
    (bundle.path / "model.onnx").rename(outside)
    (bundle.path / "model.onnx").symlink_to(outside)
    with pytest.raises(BundleError, match="is a link"):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"schema_version": 1, "schema_version": 1}', "stands twice"),
        (b'{"schema_version": NaN}', "NaN"),
        (b"[" * 100_000, "not valid JSON"),
        (b" " * (1 << 20) + b"{}", "larger than"),
        (b'{"schema_version": 9}', "upgrade vinoreward"),
    ],
)
def test_a_broken_bundle_json_is_refused(bundle: Bundle, text: bytes, message: str) -> None:
    (bundle.path / "bundle.json").write_bytes(text)
    with pytest.raises(BundleError, match=message):
        Bundle.load(bundle.path)


def test_a_bundle_without_a_model_is_refused(bundle: Bundle) -> None:
    rewrite(bundle, lambda spec: spec["files"].pop("model.onnx"))
    with pytest.raises(BundleError, match=r"Expected model\.onnx"):
        Bundle.load(bundle.path)


# --- golden frames -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_a_colour_swap_is_found_and_named(bundle: Bundle, tmp_path: Path, name: str) -> None:
    forge(bundle, "model.onnx", network(tmp_path / "swapped.onnx", swap=True).read_bytes())
    forged = Bundle.load(bundle.path)
    with pytest.raises(BundleParityError, match=r"golden frame \d.*Expected.*red and blue"):
        forged.backend(name)


def test_a_wrong_mean_is_found(bundle: Bundle, tmp_path: Path) -> None:
    other = network(tmp_path / "mean.onnx", mean=(0.45, 0.5, 0.3))
    forge(bundle, "model.onnx", other.read_bytes())
    with pytest.raises(BundleParityError, match="mean"):
        Bundle.load(bundle.path).backend("openvino")


def test_verification_can_be_left_out(bundle: Bundle, tmp_path: Path) -> None:
    forge(bundle, "model.onnx", network(tmp_path / "swapped.onnx", swap=True).read_bytes())
    with Bundle.load(bundle.path).backend("openvino", verify=False) as backend:
        assert backend.infer(golden_images()).shape == (4, 2)


def test_golden_frames_with_objects_inside_are_not_unpickled(bundle: Bundle) -> None:
    import io

    stream = io.BytesIO()
    np.savez(stream, images=np.array([object()], dtype=object), logits=np.zeros((1, 2)))
    forge(bundle, "golden.npz", stream.getvalue())
    with pytest.raises(BundleError, match="without pickled objects"):
        Bundle.load(bundle.path).backend()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"\x80\x04."])
def test_unreadable_golden_frames_are_refused(bundle: Bundle, content: bytes) -> None:
    forge(bundle, "golden.npz", content)
    with pytest.raises(BundleError, match="cannot be read"):
        Bundle.load(bundle.path).backend()


def test_golden_frames_that_unpack_to_too_much_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", bytes(65 << 20))
    forge(bundle, "golden.npz", bomb.read_bytes())
    with pytest.raises(BundleError, match="unpacks to"):
        Bundle.load(bundle.path).backend()


@pytest.mark.parametrize(
    ("images", "logits"),
    [
        (np.zeros((2, 6, 9, 3), np.uint8), np.zeros((2, 2))),
        (np.zeros((2, 6, 8, 3), np.float32), np.zeros((2, 2))),
        (np.zeros((0, 6, 8, 3), np.uint8), np.zeros((0, 2))),
        (np.zeros((2, 6, 8, 3), np.uint8), np.zeros((3, 2))),
        (np.zeros((2, 6, 8, 3), np.uint8), np.zeros((2, 3))),
        (np.zeros((2, 6, 8, 3), np.uint8), np.full((2, 2), np.nan)),
    ],
)
def test_unfit_golden_frames_are_not_saved(
    tmp_path: Path, model: Path, images: np.ndarray, logits: np.ndarray
) -> None:
    with pytest.raises(BundleError, match="golden"):
        save_bundle(tmp_path / "b", SPEC, {"model.onnx": model}, images, logits)
    assert not (tmp_path / "b").exists()


# --- INT8 --------------------------------------------------------------------------------------

# The gate and the choice do not look into the file, so a coarser network stands for INT8 here.
COARSE = np.round(WEIGHTS * 8) / 8 + 0.02
PASSED = Quantization(passed=True, flips=1, frames=400, method="nncf-ptq")


def with_int8(bundle: Bundle, tmp_path: Path, quantization: Quantization = PASSED) -> Bundle:
    coarse = network(tmp_path / "coarse.onnx", weights=COARSE)
    logits = expected_logits(golden_images(), COARSE)
    return add_int8(bundle, coarse, quantization, logits, int8_band=0.75)


def test_auto_takes_int8_where_the_gate_passed(bundle: Bundle, tmp_path: Path) -> None:
    assert bundle.resolve_precision("openvino") == "fp32"
    quantized = with_int8(bundle, tmp_path)
    assert quantized.resolve_precision("openvino", "auto") == "int8"
    assert quantized.resolve_precision("onnxruntime", "auto") == "int8"
    assert quantized.resolve_precision("torch", "auto") == "fp32"
    assert quantized.resolve_precision("somebody-elses", "auto") == "fp32"
    assert quantized.resolve_precision("openvino", "fp32") == "fp32"
    assert quantized.network().path.name == "model.int8.onnx"
    assert quantized.network("fp32").path.name == "model.onnx"
    assert quantized.spec.decision.int8_band == quantized.second_look_band("int8") == 0.75
    assert quantized.second_look_band("fp32") is bundle.second_look_band("int8") is None
    for name in ("openvino", "onnxruntime"):
        with quantized.backend(name) as backend:
            assert backend.precision == "int8"
            found = backend.infer(golden_images())
            assert np.allclose(found, expected_logits(golden_images(), COARSE), atol=1e-3)


def test_a_bundle_from_before_the_second_look_loads(bundle: Bundle, tmp_path: Path) -> None:
    quantized = with_int8(bundle, tmp_path)
    for old in ({}, {"int8_threshold": None}):
        rewrite(quantized, lambda spec, old=old: (spec["decision"].pop("int8_band", 0),
                                                  spec["decision"].update(old)))  # fmt: skip
        again = Bundle.load(quantized.path)
        assert again.spec.decision.int8_band is None and again.second_look_band("int8") is None
        assert again.resolve_precision("openvino") == "int8"


def test_a_failed_gate_keeps_int8_out(bundle: Bundle, tmp_path: Path) -> None:
    failed = Quantization(passed=False, flips=9, frames=400, method="nncf-ptq")
    quantized = with_int8(bundle, tmp_path, failed)
    assert quantized.resolve_precision("openvino", "auto") == "fp32"
    with pytest.raises(ConfigError, match=r"9 of 400.*vinoreward quantize"):
        quantized.backend("openvino", precision="int8")


def test_int8_that_is_not_there_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no INT8 network.*vinoreward quantize"):
        bundle.network("int8")
    with pytest.raises(ConfigError, match="torch"):
        with_int8(bundle, tmp_path).resolve_precision("torch", "int8")
    with pytest.raises(ConfigError, match="auto, fp32, bf16 or int8"):
        bundle.resolve_precision("openvino", "fp16")


def test_a_broken_quantization_is_found(bundle: Bundle, tmp_path: Path) -> None:
    quantized = with_int8(bundle, tmp_path)
    broken = network(tmp_path / "broken.onnx", weights=np.zeros_like(WEIGHTS))
    forge(quantized, "model.int8.onnx", broken.read_bytes())
    forged = Bundle.load(bundle.path)
    with pytest.raises(BundleParityError, match=r"in probability.*broken quantization"):
        forged.backend("openvino")
    forged.backend("openvino", precision="fp32").close()


def test_another_processors_int8_is_tolerated(bundle: Bundle, tmp_path: Path) -> None:
    # A probability may move by 0.1: these weights move it by less on the golden frames.
    quantized = with_int8(bundle, tmp_path)
    near = network(tmp_path / "near.onnx", weights=COARSE * 1.03)
    forge(quantized, "model.int8.onnx", near.read_bytes())
    Bundle.load(bundle.path).backend("openvino").close()


def test_adding_int8_keeps_everything_else(bundle: Bundle, tmp_path: Path) -> None:
    before = snapshot(bundle.path)
    quantized = with_int8(bundle, tmp_path)
    after = snapshot(quantized.path)
    for name in ("model.onnx", "pictures/golden.png"):
        assert after[name] == before[name]
    assert b"1 of 400" in after["README.md"]
    assert np.array_equal(quantized.golden.logits, bundle.golden.logits)
    assert sorted(os.listdir(tmp_path)) == ["coarse.onnx", "source.onnx", "tiny"]
    again = with_int8(quantized, tmp_path)
    assert again == quantized


def test_a_card_written_by_hand_survives_int8(bundle: Bundle, tmp_path: Path) -> None:
    (bundle.path / "README.md").write_text("# mine")
    assert (with_int8(bundle, tmp_path).path / "README.md").read_text() == "# mine"


# --- whole or not at all -----------------------------------------------------------------------


def test_an_existing_bundle_is_not_replaced_unasked(bundle: Bundle, model: Path) -> None:
    images = golden_images()
    arguments = (bundle.path, SPEC, {"model.onnx": model}, images, expected_logits(images))
    with pytest.raises(ConfigError, match="overwrite=True"):
        save_bundle(*arguments)
    assert save_bundle(*arguments, overwrite=True) == bundle


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path: Path, model: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    images = golden_images()
    with pytest.raises(ConfigError, match="something else"):
        save_bundle(
            home, SPEC, {"model.onnx": model}, images, expected_logits(images), overwrite=True
        )
    assert (home / "thesis.tex").read_text() == "years of work"


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("where", ["write_json", "_settle", "model_card", "_sheet"])
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), RunFolderError),
        (Interrupted(), Interrupted),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failed_save_leaves_the_old_bundle_and_nothing_else(
    bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    raised: BaseException,
    expected: type[BaseException],
) -> None:
    before = snapshot(tmp_path)
    images = golden_images()

    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(save_module, where, fail)
    arguments = (SPEC, {"model.onnx": tmp_path / "source.onnx"}, images, expected_logits(images))
    with pytest.raises(expected):
        save_bundle(bundle.path, *arguments, overwrite=True)
    with pytest.raises(expected):
        save_bundle(tmp_path / "new", *arguments)
    assert snapshot(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == ["source.onnx", "tiny"]
    assert Bundle.load(bundle.path) == bundle


def test_a_failed_rename_puts_the_old_bundle_back(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(tmp_path)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    coarse = network(tmp_path / "coarse.onnx", weights=COARSE)
    before = snapshot(tmp_path)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(RunFolderError, match="nothing was changed"):
        add_int8(bundle, coarse, PASSED, expected_logits(golden_images(), COARSE))
    assert snapshot(tmp_path) == before


def test_a_process_killed_while_saving_leaves_the_old_bundle(
    bundle: Bundle, tmp_path: Path
) -> None:
    before = snapshot(bundle.path)
    script = (
        "import os, sys\n"
        "from vinoreward.bundles import save\n"
        "from vinoreward.bundles.bundle import Bundle\n"
        "from vinoreward.bundles.schema import Quantization\n"
        "save.write_json = lambda *_: os._exit(9)\n"
        "bundle = Bundle.load(sys.argv[1])\n"
        "quantization = Quantization(passed=True, flips=0, frames=1, method='m')\n"
        "save.add_int8(bundle, sys.argv[2], quantization, bundle.golden.logits)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(bundle.path), str(tmp_path / "source.onnx")],
        check=False,
    )
    assert done.returncode == 9
    assert snapshot(bundle.path) == before
    assert Bundle.load(bundle.path) == bundle


def test_a_kill_between_the_two_renames_is_repaired(bundle: Bundle, tmp_path: Path) -> None:
    previous = previous_of(bundle.path)
    bundle.path.rename(previous)
    with pytest.raises(ModelNotFoundError, match=r"rename \.tiny\.previous to tiny"):
        Bundle.load(bundle.path)
    images = golden_images()
    with pytest.raises(ConfigError, match="already"):
        save_bundle(
            bundle.path, SPEC, {"model.onnx": tmp_path / "source.onnx"}, images,
            expected_logits(images),
        )  # fmt: skip
    assert Bundle.load(bundle.path) == bundle


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, model: Path) -> None:
    # A file where a folder should be: refused for every user, root included.
    (tmp_path / "file").write_text("")
    images = golden_images()
    with pytest.raises(RunFolderError, match="cannot write the bundle"):
        save_bundle(
            tmp_path / "file" / "b", SPEC, {"model.onnx": model}, images, expected_logits(images)
        )


def test_names_of_files_and_pictures_are_checked(tmp_path: Path, model: Path) -> None:
    images = golden_images()
    logits = expected_logits(images)
    with pytest.raises(ConfigError, match=r"code\.py"):
        save_bundle(tmp_path / "b", SPEC, {"model.onnx": model, "code.py": b""}, images, logits)
    with pytest.raises(BundleError, match="card picture"):
        save_bundle(
            tmp_path / "b", SPEC, {"model.onnx": model}, images, logits, None, {"a.svg": model}
        )
    with pytest.raises(ModelNotFoundError, match=r"absent\.onnx"):
        save_bundle(tmp_path / "b", SPEC, {"model.onnx": tmp_path / "absent.onnx"}, images, logits)
    with pytest.raises(ConfigError, match="no model"):
        save_bundle(tmp_path / "b", SPEC, {"model.safetensors": b"x"}, images, logits)
    assert os.listdir(tmp_path) == ["source.onnx"]


# --- models from elsewhere ---------------------------------------------------------------------

INFO = {
    "model_info labels": "failure success",
    "model_info mean_values": " ".join(str(255 * value) for value in MEAN),
    "model_info scale_values": " ".join(str(255 * value) for value in STD),
    "model_info reverse_input_channels": "True",
    "model_info confidence_threshold": "0.7",
}


def to_ir(source: Path, info: dict[str, str]) -> Path:
    import openvino as ov

    read = ov.Core().read_model(source)
    for key, value in info.items():
        read.set_rt_info(value, key.split(" "))
    target = source.with_suffix(".xml")
    ov.save_model(read, target, compress_to_fp16=False)
    return target


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


@pytest.mark.parametrize("kind", ["onnx", "xml"])
def test_model_info_is_read(tmp_path: Path, kind: str) -> None:
    path = network(tmp_path / "info.onnx", float_input=True, metadata=INFO, softmax=True)
    if kind == "xml":
        path = to_ir(network(tmp_path / "ir.onnx", float_input=True, softmax=True), INFO)
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
        ({"mean": (0.5,)}, "Expected 3"),
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
    with pytest.raises(ConfigError, match="no \\.onnx and no \\.xml"):
        Bundle.from_model(tmp_path / "weights.pt")
    (tmp_path / "alone.xml").write_text("<net/>")
    with pytest.raises(ModelNotFoundError, match=r"alone\.bin"):
        Bundle.from_model(tmp_path / "alone.xml")


@pytest.mark.parametrize("kind", ["onnx", "xml"])
def test_a_foreign_network_becomes_a_bundle(tmp_path: Path, kind: str) -> None:
    path = network(tmp_path / "foreign.onnx", float_input=True, metadata=INFO)
    if kind == "xml":
        path = to_ir(path, INFO)
    foreign = Bundle.from_model(path, success_label="success")
    with pytest.raises(BundleError, match="not saved"):
        _ = foreign.golden
    saved = foreign.save(tmp_path / "saved", golden_images())
    assert Bundle.load(tmp_path / "saved") == saved
    assert dataclasses.replace(saved.spec, files={}) == foreign.spec
    assert ("model.bin" in saved.spec.files) == (kind == "xml")
    with saved.backend("openvino") as backend:
        found = backend.infer(golden_images())
    assert np.allclose(found, expected_logits(golden_images()), atol=1e-4)
    with pytest.raises(ConfigError, match="saved already"):
        saved.save(tmp_path / "again", golden_images())


def test_importing_bundles_is_light() -> None:
    heavy = "torch, openvino, onnx, onnxruntime, nncf, pybullet, warp"
    script = (
        "import sys, vinoreward.bundles.bundle, vinoreward.bundles.save\n"
        f"print([name for name in {heavy!r}.split(', ') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
