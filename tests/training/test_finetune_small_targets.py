"""Small targets: which network is chosen, and that a training without a chance stops."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from image_folders import write_dots
from safetensors.torch import save_file

from vinoreward.backends.torch_classifiers import build
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import UselessClassifierError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier import finetune
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.policy.train import SETTINGS as TRAIN
from vinoreward_training.policy.train import train


@pytest.fixture(autouse=True)
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
