"""LeRobot itself: it loads what we write, we read what it writes, and its classifiers agree.

Run by ``make test-lerobot``, in an environment of its own.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_folders import RENDER, TOP, WALK_FPS, moments, registered, scene
from PIL import Image

pytest.importorskip("lerobot", reason="LeRobot's own Python: make test-lerobot")

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.rewards.classifier.configuration_classifier import RewardClassifierConfig
from lerobot.rewards.classifier.modeling_classifier import Classifier as LeRobotClassifier
from lerobot.rewards.classifier.processor_classifier import make_classifier_processor

from vinoreward.rewards.classifier import Classifier
from vinoreward_training.cli import main

SIZES = {RENDER: (32, 48), TOP: (17, 25)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of 11 episodes in several files."""
    out = tmp_path_factory.mktemp("data") / "lamp"
    words = ["capture", "--format", "lerobot", "--env", registered(), "--save-every", "60"]
    words += ["--image-source", "render", "obs:pixels.top", "--frames", "150", "--seed", "3"]
    assert main([*words, "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("decoder", ["torchcodec", "pyav"])
def test_lerobot_loads_a_capture(recorded: Path, decoder: str) -> None:
    data = LeRobotDataset("local/lamp", root=recorded, video_backend=decoder)
    info = json.loads((recorded / "meta/info.json").read_text())
    assert len(data) == info["total_frames"] >= 150
    assert data.num_episodes == info["total_episodes"] > 5
    assert data.fps == WALK_FPS
    assert set(data.meta.camera_keys) == {RENDER, TOP}
    differences: dict[str, list[float]] = {key: [] for key in SIZES}
    wins = 0
    for i in range(len(data)):
        item = data[i]
        at = int(item["observation.state"][0])
        assert item["task"] == registered()
        assert item["index"] == i
        last = i + 1 == len(data) or data.hf_dataset[i + 1]["frame_index"] == 0
        if not last:
            after = int(data.hf_dataset[i + 1]["observation.state"][0])
            assert bool(item["next.success"]) == (after == 3)
            assert float(item["next.reward"]) == after / 2
            assert after - at == (1 if item["action"] > 0 else -1)
            wins += bool(item["next.success"])
        for key, size in SIZES.items():
            image = 255 * item[key].permute(1, 2, 0).numpy()
            differences[key].append(float(np.abs(image - scene(at, size)).mean()))
    assert wins > 3
    for key, each in differences.items():
        assert max(each) < 4  # of 255; a step along the walk is 20 on half of the image
        print(
            f"{decoder}, {key}: mean difference {np.mean(each):.2f} of 255, largest {max(each):.2f}"
        )


def test_lerobot_trains_on_batches_of_it(recorded: Path) -> None:
    data = LeRobotDataset(
        "local/lamp", root=recorded, delta_timestamps={"action": [0.0, 1 / WALK_FPS]}
    )
    batch = next(iter(torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)))
    assert batch["action"].shape[:2] == (16, 2)
    assert batch[RENDER].shape == (16, 3, 32, 48)
    statistics = data.meta.stats
    assert set(statistics) == set(data.features)
    assert statistics[RENDER]["q99"].shape == (3, 1, 1)


def test_lerobot_goes_on_with_a_capture_and_we_read_both(recorded: Path, tmp_path: Path) -> None:
    """LeRobot's own recorder appends to the dataset; images and labels are read of all."""
    import shutil

    root = shutil.copytree(recorded, tmp_path / "lamp")
    data = LeRobotDataset.resume("local/lamp", root=root)
    before = data.num_episodes
    for at in range(4):
        data.add_frame(
            {
                "observation.state": np.array([at, -at], np.float32),
                "action": np.array([1], np.float32),
                "next.reward": np.array([(at + 1) / 2], np.float32),
                "next.success": np.array([at >= 2]),
                "next.done": np.array([at >= 2]),
                **{key: scene(at, size) for key, size in SIZES.items()},
                "task": registered(),
            }
        )
    data.save_episode()
    data.finalize()
    out = tmp_path / "images"
    words = ["capture", "--from-lerobot", str(root), "--camera", RENDER, "--out", str(out)]
    assert main([*words, "--frames", "2000"]) == 0
    with (out / "metadata.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {int(row["episode"]) for row in rows} >= {before, before - 1}
    for row in rows:
        green = np.asarray(Image.open(out / row["file"]))[16, 40, 1] > 100
        assert (row["label"] == "success") == green


def classifier(folder: Path, cameras: int) -> tuple[LeRobotClassifier, Any]:
    """Train a classifier of LeRobot's for some steps and save it as LeRobot does."""
    import transformers

    torch.manual_seed(cameras)
    # The encoder comes from a folder, as the Hub may not be reached; its weights are random.
    encoder = transformers.ResNetConfig(
        embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    )
    transformers.ResNetModel(encoder).save_pretrained(folder / "encoder")
    keys = ["observation.images.front", "observation.images.wrist"][:cameras]
    config = RewardClassifierConfig(
        input_features={key: PolicyFeature(FeatureType.VISUAL, (3, 128, 128)) for key in keys},
        output_features={"next.reward": PolicyFeature(FeatureType.REWARD, (1,))},
        model_name=str(folder / "encoder"),
        num_cameras=cameras,
        device="cpu",
    )
    model = LeRobotClassifier(config)
    stats = {
        key: {"mean": torch.full((3, 1, 1), 0.45 + 0.05 * i), "std": torch.full((3, 1, 1), 0.3)}
        for i, key in enumerate(keys)
    }
    before, _ = make_classifier_processor(config, dataset_stats=stats)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    batch = batch_of(moments(cameras)[:32], keys)
    batch["next.reward"] = (torch.arange(32) % 2).float()
    model.train()
    for _ in range(5):
        optimizer.zero_grad()
        model.forward(before(batch))[0].backward()
        optimizer.step()
    model.eval()
    model.save_pretrained(folder / "classifier")
    before.save_pretrained(folder / "classifier")
    return model, before


def batch_of(images: np.ndarray, keys: list[str]) -> dict[str, torch.Tensor]:
    parts = np.split(images, len(keys), axis=1)
    return {
        key: torch.from_numpy(part.copy()).permute(0, 3, 1, 2).float() / 255
        for key, part in zip(keys, parts, strict=True)
    }


@pytest.mark.parametrize("cameras", [1, 2])
def test_an_imported_classifier_has_lerobots_logits(tmp_path: Path, cameras: int) -> None:
    model, before = classifier(tmp_path, cameras)
    keys = list(model.config.input_features)
    images = moments(cameras)
    with torch.no_grad():
        batches = [before(batch_of(part, keys)) for part in np.split(images, 4)]
        parts = [model.predict([batch[key] for key in keys]).logits for batch in batches]
    expected = torch.cat(parts).numpy()
    assert expected.shape == (200,)
    assert expected.std() > 0.05  # else any number would agree
    out = tmp_path / "bundle"
    words = ["import-classifier", "--model", str(tmp_path / "classifier"), "--out", str(out)]
    assert main(words) == 0
    for backend in ("onnxruntime", "openvino"):
        with Classifier(out, backend=backend, precision="fp32") as ours:
            found = ours.log_odds(images)
        difference = float(np.abs(found - expected).max())
        spread = f"logits from {expected.min():.2f} to {expected.max():.2f}"
        print(f"{cameras} camera(s), {backend}: largest difference {difference:.1e}, {spread}")
        assert difference < 1e-4
