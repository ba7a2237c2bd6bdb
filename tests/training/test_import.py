"""Networks trained elsewhere become bundles, and what is described wrongly shows."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_network as tiny
import torch
import torchvision
from foreign_networks import (
    LABELS,
    LATENT,
    MEAN,
    SIZE,
    STD,
    Colours,
    by_hand,
    draw,
    normalised,
    to_onnx,
    write_encoders,
)
from PIL import Image
from torch import nn

from vinoreward.bundles.bundle import Bundle
from vinoreward.entry_points import named_function
from vinoreward.errors import BundleParityError, ConfigError, VinorewardError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training import importing
from vinoreward_training.cli import main
from vinoreward_training.configs import ImportConfig
from vinoreward_training.data.dataset import load_dataset

# The exporter that names inputs and axes is an old one.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
OPTIONS = [field.name for field in dataclasses.fields(ImportConfig)]


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and a network that knows them with a head of two and with one of one."""
    folder = tmp_path_factory.mktemp("classifiers")
    draw(folder / "data", 24)
    to_onnx(Colours(2), folder / "two.onnx")
    to_onnx(Colours(1), folder / "batch1.onnx", 1)
    return folder


def of_classifier(folder: Path, out: Path, model: str, **changes: Any) -> ImportConfig:
    given = {"labels": LABELS, "mean": MEAN, "std": STD, **changes}
    return ImportConfig(model=folder / model, out=out, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "output", "more"),
    [
        ("two.onnx", "logits", {}),
        ("batch1.onnx", "logit", {}),
        ("weights.pt", "logit", {"network": "squeezenet1_1", "height": SIZE[0], "width": SIZE[1]}),
    ],
)
def test_an_imported_classifier_gives_the_probabilities_of_the_original(
    classifiers: Path, tmp_path: Path, model: str, output: str, more: dict[str, Any]
) -> None:
    net: nn.Module = Colours(2 if output == "logits" else 1)
    if more:
        torch.manual_seed(0)
        net = torchvision.models.squeezenet1_1(num_classes=1)
        torch.save(net.state_dict(), classifiers / model)
    assert importing.run(of_classifier(classifiers, tmp_path / "bundle", model, **more)) == 0
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.spec.output == output
    images = load_dataset(classifiers / "data").images[::3]
    for backend in ("openvino", "onnxruntime"):
        with Classifier(bundle, backend=backend) as classifier:
            found = classifier.probability(images)
            assert found == pytest.approx(by_hand(net, images), abs=1e-4)


def test_what_a_wrapper_put_before_every_name_of_a_state_dict_is_taken_off(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    net = torchvision.models.squeezenet1_1(num_classes=2)
    state = {f"module._orig_mod.{name}": value for name, value in net.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "weights.pt")
    given = {"network": "squeezenet1_1", "height": SIZE[0], "width": SIZE[1]}
    importing.run(of_classifier(tmp_path, tmp_path / "bundle", "weights.pt", **given))
    golden = Bundle.load(tmp_path / "bundle").golden
    with torch.no_grad():
        wanted = net.eval()(torch.from_numpy(normalised(golden.images))).numpy()
    np.testing.assert_allclose(golden.logits, wanted, atol=1e-4)


class Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, ("open('was-here', 'w').close()",)


LEROBOT = Path(__file__).parents[1] / "data" / "lerobot" / "resnet10"


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        ("net.onnx", {"labels": (), "mean": None}, "labels mean"),
        ("net.onnx", {"output": "logit"}, "output labels"),
        ("net.onnx", {"outputs": ("logits",)}, "outputs"),
        ("net.onnx", {"network": "resnet18"}, "network"),
        ("net.onnx", {"data": Path("frames")}, "data"),
        ("own.onnx", {}, "mean std"),
        ("net.txt", {}, "model"),
        (LEROBOT, {}, "mean"),
        ("weights.pt", {"network": "resnet18", "height": 32, "width": 40}, ""),
        ("weights.pt", {"network": "resnet18"}, "height width network"),
        ("other.pt", {"network": "squeezenet1_1", "height": 32, "width": 40}, ""),
    ],
)
def test_what_does_not_fit_a_classifier_names_options_and_runs_no_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str | Path,
    changes: dict[str, Any],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.network(tmp_path / "net.onnx", float_input=True)
    tiny.network(tmp_path / "own.onnx")
    (tmp_path / "net.txt").write_text("")
    torch.save({"weights": Runs()}, tmp_path / "weights.pt")
    if model == "other.pt":
        torch.save(torchvision.models.resnet18().state_dict(), tmp_path / model)
    with pytest.raises(VinorewardError) as caught:
        importing.run(of_classifier(tmp_path, tmp_path / "bundle", str(model), **changes))
    said = caught.value.as_options(OPTIONS)
    assert "Expected" in said and len(said) < 700
    assert {f"--{name}" for name in named.split()} == set(re.findall(r"--[a-z-]+", said)), said
    assert not (tmp_path / "bundle").exists() and not (tmp_path / "was-here").exists()


def test_probabilities_that_a_graph_does_not_tell_from_logits_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    model = onnx.load(tiny.network(tmp_path / "net.onnx", softmax=True))
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("Abs", ["before"], ["logits"]))
    onnx.save(model, tmp_path / "net.onnx")
    words = ["import", "--model", str(tmp_path / "net.onnx"), "--labels", *LABELS]
    assert main([*words, "--out", str(tmp_path / "bundle")]) == 1
    assert "give --output probabilities or --output logits" in capsys.readouterr().err


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoders(tmp_path_factory.mktemp("encoders"))


def of_encoder(folder: Path, out: Path, model: str, **changes: Any) -> ImportConfig:
    given = {
        "data": folder / "images",
        "golden": (folder / "golden.png", folder / "latent.npy"),
        **changes,
    }
    return ImportConfig(model=folder / model, out=out, **given)


@pytest.mark.parametrize(
    ("model", "changes", "posterior"),
    [
        ("variational.onnx", {}, True),
        ("plain.onnx", {}, False),
        (
            "weights.pt",
            {"network": "nets.py:variational", "height": SIZE[0], "width": SIZE[1]},
            True,
        ),
    ],
)
def test_every_form_of_encoder_becomes_a_bundle(
    encoders: Path, tmp_path: Path, model: str, changes: dict[str, Any], posterior: bool
) -> None:
    if "network" in changes:
        changes = changes | {"network": f"{encoders}/{changes['network']}"}
    assert importing.run(of_encoder(encoders, tmp_path / "bundle", model, **changes)) == 0
    bundle = Bundle.load(tmp_path / "bundle")
    encoding = bundle.spec.encoding
    assert encoding is not None and encoding.posterior is posterior
    assert (encoding.std is not None) is posterior
    assert bundle.spec.latent_size == LATENT
    with bundle.backend("openvino") as backend:
        found = backend.infer(bundle.golden.images)[:, :LATENT]
    low, high = np.array(encoding.low), np.array(encoding.high)
    assert (found > low).all() and (found < high).all() and (high - low < 100).all()


@pytest.fixture(scope="module")
def wide(encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images with 11 columns of noise on their left and 5 rows of it above."""
    folder = tmp_path_factory.mktemp("wide")
    random = np.random.default_rng(1)
    for path in sorted((encoders / "images").glob("*.png")):
        wider = random.integers(0, 256, (SIZE[0] + 5, SIZE[1] + 11, 3), dtype=np.uint8)
        wider[5:, 11:] = np.asarray(Image.open(path))
        Image.fromarray(wider).save(folder / path.name)
    return folder


def test_a_crop_is_part_of_the_bundle(encoders: Path, wide: Path, tmp_path: Path) -> None:
    crop = (5, 11, *SIZE)
    golden = (wide / "000.png", encoders / "latent.npy")
    changes = {"data": wide, "golden": golden, "crop": crop}
    importing.run(of_encoder(encoders, tmp_path / "bundle", "variational.onnx", **changes))
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.spec.image.crop == crop
    whole = np.asarray(Image.open(wide / "003.png"))
    np.testing.assert_array_equal(bundle.prepare(whole)[0], whole[5:, 11:])
    # Measured on the same images as without a crop.
    importing.run(of_encoder(encoders, tmp_path / "plain", "variational.onnx"))
    assert Bundle.load(tmp_path / "plain").spec.encoding == bundle.spec.encoding


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        ("variational.onnx", {"outputs": ("mu", "mu")}, {"outputs"}),
        ("variational.onnx", {"color_order": "BGR"}, {"color-order"}),
        ("variational.onnx", {"scale": 1.0}, {"scale", "mean", "std"}),
        ("variational.onnx", {"data": None}, {"data"}),
        ("variational.onnx", {"golden": None}, {"golden"}),
        ("weights.pt", {}, {"network", "height", "width"}),
    ],
)
def test_what_does_not_fit_an_encoder_names_options(
    encoders: Path, tmp_path: Path, model: str, changes: dict[str, Any], named: set[str]
) -> None:
    with pytest.raises(VinorewardError) as caught:
        importing.run(of_encoder(encoders, tmp_path / "bundle", model, **changes))
    said = caught.value.as_options(OPTIONS)
    assert {f"--{name}" for name in named} == set(re.findall(r"--[a-z-]+", said)), said
    assert not (tmp_path / "bundle").exists()


def test_a_golden_image_finds_out_what_is_wrong(encoders: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleParityError, match="with color_order=RGB it is right"):
        importing.run(
            of_encoder(encoders, tmp_path / "bundle", "variational.onnx", color_order="BGR")
        )


@pytest.mark.parametrize("text", ["nets", "nowhere_at_all:make", "json:nothing", "math:pi"])
def test_what_names_no_function_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        named_function(text, "network", importing.BUILDER)
