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
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier import finetune
from vinoreward_training.classifier.training import ClassifierFit
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import load_dataset, split_by_episode


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


def test_a_training_at_chance_stops_after_three_epochs_and_says_what_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dots(tmp_path / "data", 380, told=False)
    config = config_of(tmp_path, epochs=12, network="fine_resnet")
    assert finetune.run(config) == 3
    said = capsys.readouterr().out
    assert "stopped: fine_resnet has learnt nothing in 3 epochs" in said
    assert "verdict: useless: it has not learnt even its training frames" in said
    assert "larger images, captured with --image-size 96 96" in said
    spec = Bundle.load(tmp_path / "run" / "bundle").spec
    assert len(spec.metrics["history"]) == 3


@pytest.mark.parametrize("options", [{"network": "resnet18"}, {"epochs": 3}, {"weights": "w"}])
def test_a_network_that_was_asked_for_or_has_no_time_is_not_replaced(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    write_dots(tmp_path / "data", 60)
    if "weights" in options:
        options = {"weights": tmp_path / "w.safetensors"}
        save_file(build("squeezenet1_1").state_dict(), tmp_path / "w.safetensors")
    config = config_of(tmp_path, **options)
    dataset = load_dataset(config.data)
    chosen, fit = finetune._choose_network(config, dataset, split_by_episode(dataset), tmp_path)
    assert chosen is config and fit.step == 0


def test_weights_are_chosen_by_average_precision_before_certainty(tmp_path: Path) -> None:
    """A network that ranks better is kept though it is surer of its mistakes."""
    write_dots(tmp_path / "data", 60)
    dataset = load_dataset(tmp_path / "data")
    train, validation, _ = split_by_episode(dataset)
    labels = torch.from_numpy(dataset.labels)

    class Fixed(torch.nn.Module):
        """Returns log-odds for the validation frames, and certain failure for all others."""

        def __init__(self, scale: float, wrong: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            odds = torch.where(labels[validation] == 1, scale, -scale)
            odds[:wrong] *= -1
            self.known = {
                dataset.images[index].tobytes(): float(each)
                for index, each in zip(validation, odds, strict=True)
            }

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            odds = [self.known.get(each.numpy().tobytes(), -9.0) for each in images]
            return torch.stack([torch.zeros(len(odds)), torch.tensor(odds)], dim=1)

    def score_of(scale: float, wrong: int) -> float:
        config, module = config_of(tmp_path), Fixed(scale, wrong)
        fit = ClassifierFit(module, dataset, train, validation, config, tmp_path, corrupted=0.0)
        score = fit._evaluate([{"loss": 1.0}])[1]
        assert score is not None
        return score

    assert score_of(3.0, 1) < score_of(0.3, 4)  # ranks better
    assert score_of(3.0, 0) < score_of(0.3, 0)  # separated: the surer one
    assert score_of(1000.0, 0) > 1e-9  # and no score is beyond comparison
