"""Which networks ``finetune`` takes, the weights they begin with, and what they become."""

from __future__ import annotations

import dataclasses
import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
from image_folders import write_folder
from safetensors.torch import save_file
from torch import Tensor
from torchvision import models

from vinoreward.backends import torch_classifiers
from vinoreward.backends.convert import export_onnx
from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.backends.torch_classifiers import backbone, build, rebuild
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ModelCorruptError, ModelNotFoundError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier import finetune
from vinoreward_training.classifier.evaluation import Verdict
from vinoreward_training.classifier.networks import (
    build_for,
    check_network,
    check_size,
    load_weights,
    normalization,
    pretrained_weights,
    read_weights,
)
from vinoreward_training.configs import FinetuneConfig, QuantizeConfig
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.quantize import command as quantize


@pytest.mark.slow
def test_another_network_becomes_a_bundle_that_runs_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm")
    network = "timm:test_resnet"
    data, out = write_folder(tmp_path / "data", 240), tmp_path / "run"
    config = FinetuneConfig(
        data=data, out=out, network=network, epochs=4, batch_size=16, target_fpr=0.2, threads=1
    )
    assert finetune.run(config) == 0
    bundle = Bundle.load(out / "bundle")
    assert bundle.spec.architecture == network
    assert bundle.spec.metrics["test"]["recall"] > 0.9
    dataset = load_dataset(data)
    images, labels = dataset.images[:8], dataset.labels[:8]
    found = {}
    for name in ("torch", "openvino", "onnxruntime"):
        with bundle.backend(name, precision="fp32") as backend:  # golden frames are checked
            found[name] = backend.infer(images)
    assert found["openvino"] == pytest.approx(found["torch"], rel=1e-3, abs=2e-3)
    assert found["onnxruntime"] == pytest.approx(found["torch"], rel=1e-3, abs=2e-3)
    # The gate lets it pass where it decides as FP32 does, on both runtimes.
    monkeypatch.setitem(quantize.LEAST_HELD_OUT, "classifier", 50)
    gated = QuantizeConfig(bundle=bundle.path, data=data, max_second_looks=1.0, calibration=8)
    assert quantize.run(gated) == 0
    bundle = Bundle.load(bundle.path)
    passed = bundle.spec.quantization
    assert passed is not None and passed.passed and passed.flips <= 0.005 * passed.frames
    for name in ("openvino", "onnxruntime"):
        assert bundle.resolve_precision(name) == "int8"
        with Classifier(bundle, backend=name) as classifier:
            np.testing.assert_array_equal(classifier.compute_reward(images) == 1, labels == 1)


def test_a_network_that_is_not_there_is_refused_before_the_data_are_read(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    for name, words in [
        ("resnet81", "choose for example resnet18"),
        ("fasterrcnn_resnet50_fpn", "torchvision's classifiers"),
        ("timm:resnet10", "timm:resnet10t"),
        ("timm:hf-hub:somebody/resnet18", "timm's"),  # timm would fetch it
        ("timm:resnet10t.nobody", "timm's"),
    ]:
        with pytest.raises(ConfigError, match=f"no network.*{words}"):
            finetune.run(FinetuneConfig(data=tmp_path / "none", out=tmp_path / "o", network=name))
    with pytest.raises(ConfigError, match="--freeze trains the last layer only"):
        check_network(FinetuneConfig(freeze=True))
    with pytest.raises(ConfigError, match="--weights and --pretrained"):
        check_network(FinetuneConfig(weights=tmp_path / "w.pt", pretrained=True))
    assert not (tmp_path / "o").exists()


def test_a_size_that_a_network_does_not_take_is_refused_with_the_one_it_does() -> None:
    vit = models.VisionTransformer(224, 32, 1, 2, 32, 64, num_classes=2)
    with pytest.raises(ConfigError, match=r"64 x 48 pixels.*224 x 224.*--image-size 224 224"):
        check_size("vit_b_16", vit, 64, 48)
    check_size("vit_b_16", vit, 224, 224)
    alexnet = build("alexnet").train()
    with pytest.raises(ConfigError, match="larger ones"):
        check_size("alexnet", alexnet, 32, 32)
    assert alexnet.training
    with pytest.raises(ConfigError, match=r"24 x 32 pixels \(a pool .*2 x 3\)"):
        check_size("squeezenet1_1", build("squeezenet1_1"), 24, 32)
    pytest.importorskip("timm")
    name = "timm:vit_tiny_patch16_224"
    with pytest.raises(ConfigError, match="--image-size 224 224"):
        check_size(name, build(name), 64, 64)


@pytest.mark.parametrize("height", [24, 25])  # 23 comes to the same as 24, 26 as 25
def test_an_image_too_small_for_openvino_is_refused_first(tmp_path: Path, height: int) -> None:
    """The oracle is OpenVINO on what a training would export. PyTorch fills up a pool's input."""
    net, path = build("squeezenet1_1").eval(), tmp_path / "model.onnx"
    export_onnx(WithPreprocess(net, IMAGENET_MEAN, IMAGENET_STD).eval(), path, height, 40)
    try:
        openvino.Core().compile_model(path, "CPU")
    except RuntimeError:
        with pytest.raises(ConfigError, match="a pool is larger"):
            check_size("squeezenet1_1", net, height, 40)
    else:
        check_size("squeezenet1_1", net, height, 40)
        assert height > 24  # the oracle refuses some


def test_batch_statistics_follow_within_a_short_training() -> None:
    net = build_for(FinetuneConfig(network="mobilenet_v3_small"), 64, 64)
    found = {each.momentum for each in net.modules() if isinstance(each, torch.nn.BatchNorm2d)}
    assert found == {0.1}


def test_a_backbone_gives_features() -> None:
    names = ["squeezenet1_1", "mobilenet_v3_small"]
    if importlib.util.find_spec("timm"):
        names.append("timm:test_resnet")
    for name in names:
        features, channels = backbone(name)
        maps = features.eval()(torch.zeros(2, 3, 64, 64))
        assert maps.ndim == 4 and maps.shape[:2] == (2, channels)
        net = build(name, 2, [("front", 64), ("wrist", 32)]).eval()
        assert net(torch.zeros(2, 3, 96, 64)).shape == (2, 2)


# --- weights to begin with ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "head"), [("squeezenet1_1", "classifier.0"), ("mobilenet_v3_small", "classifier.3")]
)
def test_weights_of_another_head_are_taken_without_it(
    network: str, head: str, tmp_path: Path
) -> None:
    other = build(network, classes=5).state_dict()
    save_file(other, tmp_path / "w.safetensors")
    torch.save(other, tmp_path / "w.pt")
    theirs = models.get_model(network, num_classes=5).state_dict()
    torch.save({"state_dict": theirs}, tmp_path / "torchvision.pth")
    for file, state in (
        ("w.safetensors", other),
        ("w.pt", other),
        ("torchvision.pth", theirs),
    ):
        net = build(network)
        fresh = load_weights(network, net, read_weights(tmp_path / file), tmp_path / file)
        assert fresh == [f"{head}.bias", f"{head}.weight"]
        own = net.state_dict()
        assert all(torch.equal(own[name], state[name]) for name in own if name not in fresh)


def test_weights_that_cannot_be_used_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="--weights"):
        read_weights(tmp_path / "none.pt")
    (tmp_path / "bad.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(ModelCorruptError, match="safetensors"):
        read_weights(tmp_path / "bad.safetensors")
    torch.save(build("squeezenet1_1"), tmp_path / "pickled.pt")  # a whole module: needs code
    with pytest.raises(ModelCorruptError, match="cannot be read as a state dict"):
        read_weights(tmp_path / "pickled.pt")
    torch.save({"a": torch.zeros(1)}, tmp_path / "foreign.pt")
    config = FinetuneConfig(weights=tmp_path / "foreign.pt")
    with pytest.raises(ModelCorruptError, match=r"nothing in it fits.*--network"):
        build_for(config, 64, 64)
    wide = models.mobilenet_v3_small(width_mult=0.5).state_dict()
    torch.save(wide, tmp_path / "narrow.pt")
    config = FinetuneConfig(weights=tmp_path / "narrow.pt", network="mobilenet_v3_small")
    with pytest.raises(
        ModelCorruptError, match=r"layers have other shapes: \S+ is [\dx]+ and not .*--network"
    ):
        build_for(config, 64, 64)


def test_published_weights_are_taken_from_where_the_libraries_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(ModelNotFoundError, match=r"pytorch\.org/models/squeezenet1_1.*checkpoints"):
        pretrained_weights("squeezenet1_1")
    theirs = models.squeezenet1_1().state_dict()
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    path = tmp_path / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
    torch.save(theirs, path, _use_new_zipfile_serialization=False)  # as many of theirs are
    net = build_for(FinetuneConfig(pretrained=True, freeze=True), 64, 64)
    own = net.state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in own if name.startswith("features"))
    trained = [name for name, one in net.named_parameters() if one.requires_grad]
    assert trained == ["classifier.0.weight", "classifier.0.bias"]
    path.write_bytes(b"<html>")
    with pytest.raises(ModelCorruptError, match="squeezenet1_1-b8a52dc0"):
        pretrained_weights("squeezenet1_1")


@pytest.mark.parametrize("given", [{"pretrained": True}, {"weights": Path("downloaded")}])
def test_images_are_normalised_as_for_the_published_weights(given: dict[str, Any]) -> None:
    pixels = torch.rand(1, 3, 4, 4)

    def normalised(mean: Any, std: Any) -> Tensor:
        return (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]

    for name in ("squeezenet1_1", "resnet18", "googlenet", "inception_v3"):
        published: Any = models.get_model_weights(name).DEFAULT
        theirs = published.transforms()
        expected = normalised(theirs.mean, theirs.std)
        if name in ("googlenet", "inception_v3"):  # with these weights it is the first layer
            first = types.SimpleNamespace(transform_input=True)
            expected = models.GoogLeNet._transform_input(first, expected)  # type: ignore[arg-type]
        found = normalised(*normalization(FinetuneConfig(network=name, **given)))
        torch.testing.assert_close(found, expected)
    if importlib.util.find_spec("timm"):
        config = FinetuneConfig(network="timm:test_vit", **given)
        assert normalization(config) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_timms_weights_are_taken_from_the_cache_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    config = FinetuneConfig(network="timm:test_resnet", pretrained=True)
    url = r"huggingface\.co/timm/test_resnet\.r160_in1k/resolve/main/model\.safetensors"
    with pytest.raises(ModelNotFoundError, match=f"{url}.*--weights"):
        build_for(config, 64, 64)
    with pytest.raises(ModelNotFoundError, match="publishes no weights"):
        pretrained_weights("timm:resnet200")
    folder = tmp_path / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    theirs = build("timm:test_resnet", classes=1000).state_dict()
    save_file(theirs, folder / "snapshots" / ("0" * 40) / "model.safetensors")
    own = build_for(config, 64, 64).state_dict()
    same = [name for name in own if torch.equal(own[name], theirs[name])]
    assert len(own) - len(same) == 2  # the last layer's weight and bias


def test_only_the_last_layer_is_trained_with_freeze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[torch.nn.Module] = []

    def kept(config: Any, dataset: Any, parts: Any, folder: Any, module: Any, *more: Any) -> Any:
        trained.append(module)
        return Verdict("usable")

    monkeypatch.setattr("vinoreward_training.classifier.bundle.make_bundle", kept)
    monkeypatch.setattr("vinoreward_training.classifier.finetune.following", lambda *_: "")
    data, weights = write_folder(tmp_path / "data", 64), tmp_path / "w.safetensors"
    before = build("mobilenet_v3_small", 7).state_dict()
    save_file(before, weights)
    config = FinetuneConfig(
        data=data,
        out=tmp_path / "run",
        network="mobilenet_v3_small",
        weights=weights,
        freeze=True,
        epochs=1,
        batch_size=16,
        target_fpr=0.6,
        threads=1,
    )
    assert finetune.run(config) == 0
    found = trained[0].state_dict()
    after = {name: found[next(one for one in found if one.endswith(name))] for name in before}
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"classifier.3.weight", "classifier.3.bias"}  # no statistics either


# --- from a state dict to a network ---------------------------------------------------------------


def test_a_state_dict_is_compared_before_a_network_takes_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = build("squeezenet1_1").state_dict()
    devices = []
    monkeypatch.setattr(torch_classifiers, "build", _noting(devices))
    with pytest.raises(RuntimeError, match="conv1"):
        rebuild("resnet18", 2, state)
    assert devices == ["meta"]
    rebuilt = rebuild("squeezenet1_1", 2, state).state_dict()
    assert all(torch.equal(rebuilt[name], state[name]) for name in state)


def _noting(devices: list[str]) -> object:
    def noting(architecture: str, classes: int, views: object) -> torch.nn.Module:
        network = build(architecture, classes)
        devices.append(next(network.parameters()).device.type)
        return network

    return noting


def test_an_unknown_architecture_still_runs_as_onnx(tmp_path: Path) -> None:
    shipped = Bundle.load("panda-hover-classifier")
    unknown = dataclasses.replace(shipped.spec, architecture="mynet", metrics={})
    bundle = dataclasses.replace(shipped, spec=unknown)
    with pytest.raises(ConfigError, match=r"'mynet'.*backend='openvino'"):
        bundle.backend("torch")
    with bundle.backend("openvino", precision="fp32") as backend:
        assert backend.infer(shipped.golden.images[:1]).shape == (1, 2)
