"""``calibrate --average-shifts``: near the threshold a score is a mean over shifted pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy_environments import HEIGHT, WIDTH, save_column_bundle

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.cli import main
from vinoreward_training.data.dataset import load_dataset, split_by_episode


def draw(folder: Path, noise: float) -> Path:
    """Write pictures whose columns are redder in a success, each with noise of its own."""
    random = np.random.default_rng(1)
    for index in range(1200):
        label = ("failure", "success")[index % 2]
        image = random.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        columns = random.normal(150 if index % 2 else 110, noise, WIDTH)
        image[..., 0] = np.clip(columns, 0, 255).astype(np.uint8)
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{index:04d}.png")
    return folder


@pytest.mark.slow
def test_the_means_better_the_rates_and_the_bundle_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, recalls = draw(tmp_path / "data", noise=20.0), {}
    for name, options in {"own": [], "means": ["--average-shifts"]}.items():
        path = save_column_bundle(tmp_path / name).path
        words = ["calibrate", "--bundle", str(path), "--data", str(data), "--target-fpr", "0.05"]
        assert main([*words, *options]) == 0
        said = capsys.readouterr().out
        bundle = Bundle.load(path)
        band = bundle.spec.decision.shift_band
        card = (path / "README.md").read_text()
        if name == "own":
            assert band is None and "shifts" not in said and "means over shifts: none" in card
        else:
            assert band is not None and band > 0 and "for the better" in said
            assert f"within {band:.3g} log-odds of the threshold" in card
        # What it reports is what the classifier does.
        dataset = load_dataset(data)
        test = split_by_episode(dataset)[2]
        with Classifier(bundle, guarded=False) as classifier:
            claimed = classifier.compute_reward(dataset.images[test]) > 0
        found, truth = bundle.spec.metrics["test"], dataset.labels[test] == 1
        assert (claimed & truth).sum() == found["true_positives"]
        assert (claimed & ~truth).sum() == found["false_positives"]
        recalls[name] = found["recall"]
    assert recalls["means"] > recalls["own"] + 0.1


@pytest.mark.slow
def test_means_that_change_nothing_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_column_bundle(tmp_path / "bundle").path
    data = draw(tmp_path / "data", noise=0.0)
    words = ["--data", str(data), "--target-fpr", "0.05", "--average-shifts"]
    assert main(["calibrate", "--bundle", str(path), *words]) == 0
    assert "change no decision" in capsys.readouterr().out
    assert Bundle.load(path).spec.decision.shift_band is None
