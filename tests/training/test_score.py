"""Scores of a dataset, and which of its episodes are new to a bundle."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import lerobot_folders as folders
import numpy as np
import pytest
import tiny_network as tiny
from lerobot_folders import write_lerobot
from PIL import Image

from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import Decision
from vinoreward.errors import DatasetError
from vinoreward.images import ImageSpec
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.capture import command as capture
from vinoreward_training.classifier import score
from vinoreward_training.classifier.evaluation import episode_rates, roc_area
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig, ScoreConfig
from vinoreward_training.data.dataset import load_dataset, split_by_episode
from vinoreward_training.data.dataset_files import images_below
from vinoreward_training.data.provenance import MOST_DATASETS, find_new_frames, origin_of, split_of

GREEN = np.array([[0.0, -4.0], [0.0, 4.0], [0.0, 0.0]], np.float32)
"""Green less red is success."""


def bundle_of(folder: Path, *, weights: np.ndarray = GREEN, **changes: Any) -> Path:
    """Save a bundle that claims a green lamp."""
    height, width = folders.SIZE
    images = np.stack([folders.image(bool(n % 2), n, n) for n in range(4)])
    spec = dataclasses.replace(
        tiny.SPEC,
        image=ImageSpec(height, width, mean=tiny.MEAN, std=tiny.STD, **changes.pop("image", {})),
        decision=Decision(threshold=0.5),
        **changes,
    )
    model = folder.with_suffix(".onnx")
    tiny.network(model, weights=weights, size=folders.SIZE)
    outputs = tiny.expected_logits(images, weights)
    return save_bundle(folder, spec, {"model.onnx": model}, images, outputs, "# tiny")


def scored(folder: Path) -> dict[tuple[str, str, str], dict[str, str]]:
    with (folder / "scores.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {(row["file"], row["episode"], row["frame"]): row for row in rows}


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    return write_lerobot(tmp_path / "pick", video=False)


def test_every_image_of_a_lerobot_dataset_gets_a_row(tmp_path: Path, recordings: Path) -> None:
    bundle = bundle_of(tmp_path / "bundle")
    assert score.run(ScoreConfig(data=recordings, bundle=str(bundle))) == 0
    out = recordings / "scores/tiny"
    rows = scored(out)
    assert len(rows) == 8 * 12
    with Classifier(bundle, precision="fp32") as classifier:
        for episode in range(8):
            won = folders.shown(episode, 12, 3)
            images = np.stack([folders.image(won[n], episode, n) for n in range(12)])
            expected = classifier.probability(images)
            for n in range(12):
                row = rows["", str(episode), str(n)]
                assert float(row["probability"]) == pytest.approx(float(expected[n]), rel=1e-6)
                assert row["success"] == str(int(won[n]))
                assert row["label"] == ("" if n == 0 else "success" if won[n] else "failure")
    about = json.loads((out / "scores.json").read_text())
    by_episode = about["figures"]["by episode"]
    assert (by_episode["true_positives"], by_episode["false_negatives"]) == (6, 0)
    assert (by_episode["false_positives"], by_episode["true_negatives"]) == (0, 8)
    assert by_episode["fpr_high"] == pytest.approx(1 - 0.05 ** (1 / 8))
    assert about["figures"]["area under ROC"] == 1.0
    assert images_below(recordings) == []  # or they would count as images of the dataset


def test_an_image_folder_stays_the_same_dataset(tmp_path: Path) -> None:
    data = tmp_path / "mine"
    for name, won in (("good", True), ("bad", False)):
        (data / name).mkdir(parents=True)
        for n in range(6):
            Image.fromarray(folders.image(won, n, n)).save(data / name / f"{n}.png")
    before = load_dataset(data, success_label="good")
    bundle = str(bundle_of(tmp_path / "bundle"))
    for name in ("overview.png", ".trash/old.png"):  # of no class
        (data / name).parent.mkdir(exist_ok=True)
        Image.fromarray(folders.image(True, 0, 99)).save(data / name)
    score.run(ScoreConfig(data=data, bundle=bundle, success_label="good"))
    rows = scored(data / "scores/tiny")
    for loose in [key for key in rows if key[0] in ("overview.png", ".trash/old.png")]:
        assert rows.pop(loose)["label"] not in ("success", "failure")
    assert {key[0] for key in rows} == set(before.files)
    assert all((row["success"] == "1") == key[0].startswith("good") for key, row in rows.items())
    assert load_dataset(data, success_label="good").sha256 == before.sha256


def test_episodes_that_the_bundle_was_trained_on_are_left_out(tmp_path: Path) -> None:
    dataset = write_lerobot(tmp_path / "pick", episodes=40, length=6, video=False)
    capture.run(CaptureConfig(out=tmp_path / "data", recordings=dataset))
    data = load_dataset(tmp_path / "data")
    test = np.unique(data.episodes[split_by_episode(data)[2]])

    def trained(seed: int) -> dict[str, Any]:
        captures = [origin_of({"scene": data.scene, "seed": seed})]
        return {"seed": seed, "trained_on": {"captures": captures}}

    bundle = bundle_of(tmp_path / "bundle", dataset=trained(0))
    for folder in (dataset, tmp_path / "data"):
        score.run(ScoreConfig(data=folder, bundle=str(bundle)))
        labelled = json.loads((folder / "scores/tiny/scores.json").read_text())["figures"][
            "labelled"
        ]
        assert labelled["episodes"] == len(test) < 40
        assert f"only the {len(test)} that were kept for the test" in labelled["note"]


def test_the_area_under_roc_is_the_chance_that_a_success_scores_higher() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 8, 60) / 8  # with ties
    labels = rng.integers(0, 2, 60)
    wins, losses = scores[labels == 1][:, None], scores[labels == 0][None]
    assert roc_area(scores, labels) == pytest.approx(
        float(np.mean((wins > losses) + 0.5 * (wins == losses)))
    )


def test_an_episode_counts_once() -> None:
    claims = np.array([True, True, False, True, False, False])
    labels = np.array([1, 1, 0, 0, 0, 1])
    found = episode_rates(claims, labels, np.array([0, 0, 0, 1, 1, 2]))
    assert (found.successes, found.true_positives) == (2, 1)
    assert (found.failures, found.false_positives) == (2, 1)


def test_a_link_in_a_dataset_has_no_scores_written_elsewhere(
    tmp_path: Path, recordings: Path
) -> None:
    bundle, outside = bundle_of(tmp_path / "bundle", name="bundle"), tmp_path / "outside"
    outside.mkdir()
    (recordings / "scores").symlink_to(outside)
    with pytest.raises(DatasetError, match=r"is a link out of the folder"):
        score.run(ScoreConfig(str(bundle), recordings))
    assert not any(outside.iterdir())


def test_what_is_ood_to_the_guard_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "camera"
    assert main(["capture", "--frames", "9", "--seed", "3", "--out", str(folder)]) == 0
    (folder / "metadata.csv").unlink()
    (folder / "dataset.json").unlink()
    lit = sorted((folder / "success").iterdir())
    for path in lit:
        bright = np.asarray(Image.open(path)).astype(np.float32) * 1.9
        Image.fromarray(bright.clip(0, 255).astype(np.uint8)).save(
            folder / "success" / f"b{path.name}"
        )
    asked = ["score", "--data", str(folder), "--bundle", "panda-hover-classifier"]

    def rows(*words: str) -> dict[str, dict[str, str]]:
        assert main([*asked, *words]) == 0
        with (folder / "scores/panda-hover-classifier/scores.csv").open(newline="") as stream:
            return {row["file"]: row for row in csv.DictReader(stream)}

    found = rows()
    strange = {name for name, row in found.items() if float(row["ood_score"]) > 1}
    assert strange == {name for name in found if name.startswith("success/b")} != set()
    assert f"{len(lit)} images are out of distribution" in capsys.readouterr().out
    assert all(found[name]["success"] == "0" for name in strange)
    assert sum(row["success"] == "1" for row in found.values()) > 0
    assert main(asked) == 1
    assert "--overwrite" in capsys.readouterr().err


def test_files_that_cannot_be_scored_are_named(tmp_path: Path) -> None:
    bundle, data = str(bundle_of(tmp_path / "bundle")), tmp_path / "mine"
    data.mkdir()
    Image.fromarray(np.zeros((20, 20, 3), np.uint8)).save(data / "small.png")
    with pytest.raises(DatasetError, match=r"mine, small\.png: the image is 20 x 20 pixels"):
        score.run(ScoreConfig(bundle, data))


# --- what a bundle has seen ----------------------------------------------------------------------


EPISODES = np.arange(400) // 2
SIM, REAL, OTHER = ({"env": f"{name}-v0", "seed": 0} for name in ("Sim", "Real", "Other"))
ORIGINS = {str(origin_of(about)): number for number, about in enumerate((SIM, REAL, OTHER))}
HASHES = [digit * 64 for digit in "012"]
NEW, UNKNOWN = "other episodes", "Nothing says"


def trained_on(*captures: int, datasets: int, **more: Any) -> dict[str, Any]:
    names = [list(ORIGINS)[number] for number in captures]
    return {"trained_on": {"captures": names, "datasets": HASHES[:datasets], **more}}


CALIBRATED = {"calibrated_on": {"sha256": HASHES[1], "capture": list(ORIGINS)[1]}}
"""On the second capture."""


@pytest.mark.parametrize(
    ("says", "said"),
    [
        ({}, (UNKNOWN, UNKNOWN, UNKNOWN)),
        ({**SIM, "sha256": HASHES[0]}, ("trained", UNKNOWN, UNKNOWN)),
        ({**SIM, **trained_on(0, datasets=1)}, ("trained", NEW, NEW)),
        ({**REAL, **trained_on(0, 1, datasets=2)}, ("trained", "trained", NEW)),
        # Calibration takes the place of a training's environment, not of its record.
        ({**REAL, **trained_on(0, datasets=1), **CALIBRATED}, ("trained", "calibrated", NEW)),
        # It began with weights without a record, or on images that no capture is named of.
        ({**SIM, **trained_on(0, datasets=1, complete=False)}, ("trained", UNKNOWN, UNKNOWN)),
        ({**REAL, **trained_on(1, datasets=2)}, ("trained", "trained", UNKNOWN)),
        # A stranger's file.
        ({"trained_on": 3, "calibrated_on": [None]}, (UNKNOWN, UNKNOWN, UNKNOWN)),
        ({"trained_on": {"captures": "Sim-v0 seed 0", "datasets": [[]]}}, (UNKNOWN,) * 3),
    ],
)
def test_a_bundle_s_records_say_what_is_new_to_it(
    says: dict[str, Any], said: tuple[str, ...]
) -> None:
    """Where they name a capture, its test part alone is new; where they are not whole, nothing is
    called new."""
    spec = dataclasses.replace(tiny.SPEC, dataset=says)
    for origin, number in ORIGINS.items():
        new, note = find_new_frames(spec, EPISODES, origin, HASHES[number])
        assert said[number] in note
        assert new.all() == (said[number] in (NEW, UNKNOWN))
        if not new.all():
            kept = np.unique(EPISODES[new])
            assert np.array_equal(new, np.isin(EPISODES, kept)), "whole episodes"
            assert 15 < len(kept) < 45 and f"only the {len(kept)} that" in note  # 15 % of 200
        assert UNKNOWN in find_new_frames(tiny.SPEC, EPISODES, origin)[1]


def test_of_images_without_a_capture_a_hash_tells_that_they_were_seen() -> None:
    """Their content says which ones a training kept for the test."""
    contents = [f"content {number}".encode() for number in range(200)]
    for says, said in (
        ({"sha256": HASHES[0]}, "was trained on episodes of these"),
        (CALIBRATED, UNKNOWN),
        ({"calibrated_on": {"sha256": HASHES[0]}}, "was calibrated on episodes of these"),
        ({**SIM, **trained_on(0, datasets=0)}, UNKNOWN),
    ):
        spec = dataclasses.replace(tiny.SPEC, dataset=says)
        new, note = find_new_frames(spec, EPISODES, None, HASHES[0], contents)
        assert said in note
        expected = np.ones(200, np.bool_) if said == UNKNOWN else split_of(contents) == 1
        assert np.array_equal(new, expected[EPISODES])


def test_of_a_long_record_the_last_count() -> None:
    names = [f"Sim-v0 seed {seed}" for seed in range(MOST_DATASETS + 1)]
    spec = dataclasses.replace(tiny.SPEC, dataset={"trained_on": {"captures": names}})
    assert "trained on episodes of these" in find_new_frames(spec, EPISODES, names[-1])[1]
    assert "Nothing says" in find_new_frames(spec, EPISODES, names[0])[1]
