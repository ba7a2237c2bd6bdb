"""What describes a bundle survives JSON, and whatever is not right is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_network import SPEC

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import BundleSpec, Decision, Encoding, Quantization
from vinoreward.errors import BundleError
from vinoreward.images import ImageSpec, View

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


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
    image=st.builds(
        ImageSpec,
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
        translation_band=st.none() | st.floats(0, 20),
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


@settings(max_examples=25, deadline=None)
@given(spec=specs)
def test_a_spec_survives_json(spec: BundleSpec) -> None:
    text = json.dumps(spec.to_dict(), allow_nan=False)
    assert BundleSpec.from_dict(json.loads(text)) == spec


def changed(**changes: Any) -> dict[str, Any]:
    """The JSON of SPEC with nested keys changed: ``image__height=3``."""
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
        ({}, "is missing"),
        (changed(colour="red"), "colour is an unknown key"),
        (changed(image__gamma=1), r"image\.gamma is an unknown key"),
        (changed(schema_version=2), "upgrade vinoreward"),
        (changed(image__height=4097), "height is 4097"),
        (changed(image__height="6"), "height is '6'.*integer"),
        (changed(image__mean=[0.1, 0.2, float("nan")]), "finite"),
        (changed(image__std=[0.1, 0.0, 0.1]), r"std\.1 is 0.0.*greater than 0"),
        (changed(image__crop=[0, 0, 5, 5]), "crop"),
        (changed(decision__threshold=1.5), "threshold is 1.5"),
        (changed(decision__temperature=0), "temperature is 0"),
        (changed(labels=["success", "success"]), "different"),
        (changed(labels=["good", "bad"]), "success_label"),
        (changed(kind="encoder"), "latent_size"),
        (changed(metrics={"recall": float("nan")}), "finite"),
        (changed(files={"a/../../b": "0" * 64}), "plain relative name"),
        (changed(files={"model.onnx": "xyz"}), r"files.model.onnx is 'xyz'"),
        (changed(quantization={"passed": True, "flips": 2, "frames": 1, "method": "m"}), "0 to 1"),
    ],
)
def test_a_wrong_description_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        BundleSpec.from_dict(value)


def test_views_survive_json_and_an_image_of_one_view_does_not_name_them() -> None:
    views = (
        View("front", 30, "obs:front", age=1),
        View("front", 30, "obs:front"),
        View("wrist", 4),
    )
    spec = BundleSpec("two", ImageSpec(height=64, width=16, views=views))
    assert BundleSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert list(spec.image.cameras) == ["front", "wrist"]
    assert "views" not in BundleSpec("one", ImageSpec(64, 16)).to_dict()["image"]


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ([View("front", 30)], "add up to 64"),
        ([View("a", 32), View("a", 32)], "different ages"),
        ([View("a", 32), View("a", 32, "obs", age=1)], "one source and height"),
        ([{"name": "a", "height": 64, "source": "obs:"}], "source is 'obs:'.*obs:.+"),
        ([View("a", 1, age=age) for age in range(64)], "at most 32"),
    ],
    ids=str,
)
def test_views_that_cannot_be_right_are_refused(views: Any, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        ImageSpec(height=64, width=16, views=views)


def test_an_encoding_has_the_dimensions_of_the_latent() -> None:
    image, encoding = ImageSpec(8, 8), Encoding(low=(-1.0,) * 3, high=(1.0,) * 3)
    with pytest.raises(BundleError, match="Expected an encoding of 2 dimensions"):
        BundleSpec("toy", image, kind="encoder", labels=(), latent_size=2, encoding=encoding)


def test_the_folder_of_a_training_is_answered_with_its_bundle(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "bundle.json").write_text("{}")
    with pytest.raises(BundleError) as caught:
        Bundle.load(tmp_path)
    assert f"give {tmp_path / 'bundle'}, or" in str(caught.value)
