"""``calibrate``: threshold, rates and OOD detector of a bundle on new images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_network as tiny
from foreign_networks import LABELS, MEAN, STD, Colours, to_onnx
from foreign_networks import draw as draw_colours
from PIL import Image
from toy_environments import HEIGHT, WIDTH, save_column_bundle

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import TooFewNegativesError
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.ood import guard_of
from vinoreward_training import importing
from vinoreward_training.classifier import calibrate
from vinoreward_training.classifier.camera_failure import logits_by_family
from vinoreward_training.classifier.finetune import USELESS
from vinoreward_training.cli import main
from vinoreward_training.configs import CalibrateConfig, ImportConfig
from vinoreward_training.data.dataset import load_dataset, split_by_episode


def draw(folder: Path, noise: float, seed: int = 1) -> Path:
    """Write images whose columns are redder in a success, each with noise of its own."""
    random = np.random.default_rng(seed)
    for index in range(1200):
        label = ("failure", "success")[index % 2]
        image = random.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        columns = random.normal(150 if index % 2 else 110, noise, WIDTH)
        image[..., 0] = np.clip(columns, 0, 255).astype(np.uint8)
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{index:04d}.png")
    return folder


@pytest.mark.slow
def test_what_is_reported_is_what_the_classifier_does(tmp_path: Path) -> None:
    path = save_column_bundle(tmp_path / "bundle").path
    data = draw(tmp_path / "data", noise=22.0, seed=0)
    words = ["--data", str(data), "--target-fpr", "0.02", "--int8", "off"]
    assert main(["calibrate", "--bundle", str(path), *words]) == 0
    bundle, dataset = Bundle.load(path), load_dataset(data)
    metrics, decision = bundle.spec.metrics, bundle.spec.decision
    train, validation, test = split_by_episode(dataset)
    choosing = np.sort(np.concatenate([train, validation]))  # the network has seen none of them
    with Classifier(bundle, guarded=False) as classifier:
        claims = classifier.compute_reward
        truth = dataset.labels[test] == 1
        claimed = claims(dataset.images[test]) > 0
        assert (claimed & truth).sum() == metrics["test"]["true_positives"]
        assert (claimed & ~truth).sum() == metrics["test"]["false_positives"]
        dead = logits_by_family(claims, dataset, test, 2, 0)
        counts = {family: int(each.sum()) for family, each in dead.items()}
        assert counts == metrics["dead_camera"]["by_family"]
        chosen_for = decision.chosen_for
        first = claims(dataset.images[choosing]) > 0
        wrong = dataset.labels[choosing] == 0
        assert (first & wrong).sum() == chosen_for.get("at_raised", chosen_for)["false_positives"]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and a network that knows them."""
    folder = tmp_path_factory.mktemp("foreign")
    draw_colours(folder / "data", 240)
    to_onnx(Colours(2), folder / "two.onnx")
    return folder


def imported(foreign: Path, out: Path, **changes: Any) -> CalibrateConfig:
    """Import the network; return the command that calibrates it."""
    given = {"labels": LABELS, "mean": MEAN, "std": STD, **changes}
    importing.run(ImportConfig(model=foreign / "two.onnx", out=out, **given))
    return CalibrateConfig(bundle=out, data=foreign / "data", target_fpr=0.05, int8="off")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_inverted_label_shows_as_a_useless_classifier(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = imported(foreign, tmp_path / "bundle", success_label="failure")
    assert calibrate.run(config) == USELESS
    said = capsys.readouterr().out
    assert "verdict: useless" in said and "INT8" not in said
    assert Bundle.load(tmp_path / "bundle").spec.metrics["verdict"]["level"] == "useless"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_calibrated_bundle_has_a_detector_of_its_images(foreign: Path, tmp_path: Path) -> None:
    config = imported(foreign, tmp_path / "bundle")
    assert calibrate.run(config) == 0
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.spec.decision.chosen_for["target_fpr"] == 0.05
    assert bundle.spec.metrics["test"]["recall"] > 0.9 and len(bundle.golden.images) == 8
    assert "clean test frames are out of distribution" in (bundle.path / "README.md").read_text()
    images, detector = load_dataset(foreign / "data").images, guard_of(bundle)
    assert detector is not None and (detector.ood_score(images) > 1).mean() < 0.05
    assert (detector.ood_score(np.zeros_like(images)) > 1).all()
    # A new calibration on too few episodes for one leaves none, and says why.
    few = dataclasses.replace(config, data=draw_colours(tmp_path / "few", 110), target_fpr=0.3)
    assert calibrate.run(few) in (0, USELESS)
    after = Bundle.load(tmp_path / "bundle")
    assert guard_of(after) is None
    assert "it takes 20 episodes" in after.spec.metrics["guard"]["why"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_data_that_do_not_fit_change_nothing(foreign: Path, tmp_path: Path) -> None:
    config = imported(foreign, tmp_path / "bundle")
    before = tiny.snapshot(tmp_path / "bundle")
    few = dataclasses.replace(config, target_fpr=0.02)
    with pytest.raises(TooFewNegativesError, match="Expected at least 149") as caught:
        calibrate.run(few)
    assert caught.value.field == "target_fpr"
    assert tiny.snapshot(tmp_path / "bundle") == before
