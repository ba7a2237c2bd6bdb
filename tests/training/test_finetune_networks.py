"""Which networks ``finetune`` takes, the weights they begin with, and what they become."""

from __future__ import annotations

import dataclasses
import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_folders import write_dots, write_folder
from safetensors.torch import save_file
from torch import Tensor
from torchvision import models

from vinoreward.backends.torch_classifiers import build
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import (
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
    UselessClassifierError,
)
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier import finetune
from vinoreward_training.classifier.networks import (
    build_for,
    check_size,
    load_weights,
    normalization,
    pretrained_weights,
    read_weights,
)
from vinoreward_training.classifier.training import ChannelsLast, ClassifierFit
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import load_dataset, split_by_episode
from vinoreward_training.policy.train import SETTINGS as TRAIN
from vinoreward_training.policy.train import train


def test_a_network_that_is_not_there_is_refused_before_the_data_are_read(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    # timm would fetch the last one.
    for name in ("resnet81", "fasterrcnn_resnet50_fpn", "timm:resnet10", "timm:hf-hub:me/resnet18"):
        with pytest.raises(ConfigError, match="no network"):
            finetune.run(FinetuneConfig(data=tmp_path / "none", out=tmp_path / "o", network=name))
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(("network", "height"), [("alexnet", 32), ("squeezenet1_1", 24)])
def test_a_size_that_a_network_does_not_take_is_refused(network: str, height: int) -> None:
    net = build(network).train()
    with pytest.raises(ConfigError) as caught:
        check_size(network, net, height, 32)
    assert caught.value.field == "image_size" and net.training


# --- weights to begin with -----------------------------------------------------------------------


def test_weights_of_another_head_are_taken_without_it(tmp_path: Path) -> None:
    network, head = "mobilenet_v3_small", "classifier.3"
    other = build(network, classes=5).state_dict()
    save_file(other, tmp_path / "w.safetensors")
    theirs = models.get_model(network, num_classes=5).state_dict()
    torch.save({"state_dict": theirs}, tmp_path / "torchvision.pth")
    for file, state in (("w.safetensors", other), ("torchvision.pth", theirs)):
        net = build(network)
        fresh = load_weights(network, net, read_weights(tmp_path / file), tmp_path / file)
        assert fresh == [f"{head}.bias", f"{head}.weight"]
        own = net.state_dict()
        assert all(torch.equal(own[name], state[name]) for name in own if name not in fresh)


def test_weights_that_cannot_be_used_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="correct weights"):
        read_weights(tmp_path / "none.pt")
    (tmp_path / "bad.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(ModelCorruptError, match="safetensors"):
        read_weights(tmp_path / "bad.safetensors")
    torch.save(build("squeezenet1_1"), tmp_path / "pickled.pt")  # a whole module: needs code
    with pytest.raises(ModelCorruptError, match="cannot be read as a state dict"):
        read_weights(tmp_path / "pickled.pt")
    torch.save({"a": torch.zeros(1)}, tmp_path / "foreign.pt")
    config = FinetuneConfig(weights=tmp_path / "foreign.pt")
    with pytest.raises(ModelCorruptError, match=r"nothing in it fits.*with network"):
        build_for(config, 64, 64)
    wide = models.mobilenet_v3_small(width_mult=0.5).state_dict()
    torch.save(wide, tmp_path / "narrow.pt")
    config = FinetuneConfig(weights=tmp_path / "narrow.pt", network="mobilenet_v3_small")
    with pytest.raises(ModelCorruptError, match=r"layers have other shapes, .*with network"):
        build_for(config, 64, 64)


def test_published_weights_are_taken_from_where_the_libraries_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(ModelNotFoundError, match=r"download https:.*pth elsewhere"):
        pretrained_weights("squeezenet1_1")
    theirs = models.squeezenet1_1().state_dict()
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    path = tmp_path / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
    torch.save(theirs, path, _use_new_zipfile_serialization=False)  # as many of theirs are
    own = build_for(FinetuneConfig(pretrained=True), 64, 64).state_dict()
    assert all(torch.equal(own[name], theirs[name]) for name in own if name.startswith("features"))
    path.write_bytes(b"<html>")
    with pytest.raises(ModelNotFoundError, match="squeezenet1_1"):
        pretrained_weights("squeezenet1_1")


def test_timms_weights_are_taken_from_the_cache_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for network in ("timm:test_resnet", "timm:resnet200"):  # of the second none are published
        with pytest.raises(ModelNotFoundError, match=network):
            pretrained_weights(network)
    folder = tmp_path / "models--timm--test_resnet.r160_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    theirs = build("timm:test_resnet", classes=1000).state_dict()
    save_file(theirs, folder / "snapshots" / ("0" * 40) / "model.safetensors")
    config = FinetuneConfig(network="timm:test_resnet", pretrained=True)
    own = build_for(config, 64, 64).state_dict()
    same = [name for name in own if torch.equal(own[name], theirs[name])]
    assert len(own) - len(same) == 2  # the last layer's weight and bias


def test_images_are_normalised_as_for_the_published_weights() -> None:
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
        torch.testing.assert_close(normalised(*normalization(name)), expected)
    if importlib.util.find_spec("timm"):
        assert normalization("timm:test_vit") == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_only_the_last_layer_is_trained_with_freeze(tmp_path: Path) -> None:
    data, weights = load_dataset(write_folder(tmp_path / "data", 64)), tmp_path / "w.safetensors"
    before = build("mobilenet_v3_small", 7).state_dict()
    save_file(before, weights)
    config = FinetuneConfig(network="mobilenet_v3_small", weights=weights, freeze=True, epochs=1)
    net = WithPreprocess(build_for(config, 32, 40), *normalization(config.network))
    train, validation, _ = split_by_episode(data)
    module = ChannelsLast(net, frozen=True)
    ClassifierFit(module, data, train, validation, config, tmp_path).run("freeze")
    found = net.net.state_dict()
    changed = {name for name in before if not torch.equal(found[name], before[name])}
    assert changed == {"classifier.3.weight", "classifier.3.bias"}  # no statistics either


@pytest.mark.full
def test_another_network_becomes_a_bundle_that_runs_everywhere(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    network = "timm:test_resnet"
    data, out = write_folder(tmp_path / "data", 700), tmp_path / "run"
    config = FinetuneConfig(
        data=data, out=out, network=network, epochs=2, target_fpr=0.1, int8="on"
    )
    assert finetune.run(config) == 0
    bundle = Bundle.load(out / "bundle")
    assert bundle.spec.architecture == network
    assert bundle.spec.metrics["test"]["recall"] > 0.9
    passed = bundle.spec.quantization
    assert passed is not None and passed.passed and passed.flips <= 0.005 * passed.frames
    dataset = load_dataset(data)
    images, labels = dataset.images[:8], dataset.labels[:8]
    found = {}
    for name in ("torch", "openvino", "onnxruntime"):
        with bundle.backend(name, precision="fp32") as backend:  # golden frames are checked
            found[name] = backend.infer(images)
    for name in ("openvino", "onnxruntime"):
        assert found[name] == pytest.approx(found["torch"], rel=1e-3, abs=2e-3)
        assert bundle.resolve_precision(name) == "int8"
        with Classifier(bundle, backend=name) as classifier:
            np.testing.assert_array_equal(classifier.compute_reward(images) == 1, labels == 1)


# --- small targets -----------------------------------------------------------------------------


@pytest.fixture
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train alike on every processor."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)


def config_of(folder: Path, **more: Any) -> FinetuneConfig:
    config = FinetuneConfig(
        data=folder / "data",
        out=folder / "run",
        epochs=4,
        target_fpr=0.2,
        seed=2,
    )
    return dataclasses.replace(config, **more)


@pytest.mark.full
@pytest.mark.usefixtures("in_float32")
def test_where_the_usual_network_learns_nothing_finer_cells_are_tried_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dots(tmp_path / "data", 380)
    assert finetune.run(config_of(tmp_path)) == 0
    said = capsys.readouterr().out
    assert "squeezenet1_1 has learnt little in 3 epochs" in said
    assert "fine_resnet goes on for 8 epochs" in said and "stopped" not in said
    bundle = Bundle.load(tmp_path / "run" / "bundle")
    assert bundle.spec.architecture == "fine_resnet"
    assert bundle.spec.metrics["test"]["recall"] > 0.8
    dataset = load_dataset(tmp_path / "data")
    found = {}
    for name in ("torch", "openvino", "onnxruntime"):
        with Classifier(bundle, backend=name, guarded=False) as classifier:
            found[name] = classifier.probability(dataset.images[:8])
    assert found["openvino"] == pytest.approx(found["torch"], abs=2e-3)
    assert found["onnxruntime"] == pytest.approx(found["torch"], abs=2e-3)
    # A run that is continued comes to the same choice, and trains nothing anew.
    assert finetune.run(config_of(tmp_path, resume=True)) == 0
    again = Bundle.load(tmp_path / "run" / "bundle")
    assert again.spec.architecture == "fine_resnet"
    assert again.spec.metrics["history"] == bundle.spec.metrics["history"]


@pytest.mark.usefixtures("in_float32")
def test_a_training_at_chance_stops_says_what_helps_and_is_refused_as_a_reward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dots(tmp_path / "data", 380, told=False)
    weights = tmp_path / "foreign.safetensors"
    save_file(build("fine_resnet").state_dict(), weights)
    config = config_of(tmp_path, epochs=12, network="fine_resnet", weights=weights)
    assert finetune.run(config) == 3
    said = capsys.readouterr().out
    assert "stopped: fine_resnet has learnt nothing in 3 epochs" in said
    assert "verdict: useless: it has not learnt even its training frames" in said
    assert "larger images, captured with --image-size 96 96" in said
    assert "next:" not in said and "INT8" not in said
    bundle = Bundle.load(tmp_path / "run" / "bundle")
    assert len(bundle.spec.metrics["history"]) == 3
    assert "foreign.safetensors carries no record" in (bundle.path / "README.md").read_text()
    with pytest.raises(UselessClassifierError, match="--force"):
        train(TRAIN.of(out=tmp_path / "policy", bundle=str(bundle.path)))
