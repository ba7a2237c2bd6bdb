"""LeRobot itself: we read what it records, and its classifiers agree.

Run by ``make test-lerobot``, in an environment of its own.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_folders import moments
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

RENDER, TOP = "observation.images.render", "observation.images.top"
SIZES = {RENDER: (64, 96), TOP: (72, 64)}


def scene(at: int, size: tuple[int, int]) -> np.ndarray:
    """The right half of an image is green at the goal, the left half tells the place."""
    image = np.full((*size, 3), (20, 200, 20) if at == 3 else (200, 20, 20), np.uint8)
    image[:, : size[1] // 2] = 128 + 20 * at
    return image


@pytest.mark.parametrize("kind", ["video", "image"])
def test_what_lerobot_records_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Two cameras beside one of depth, with columns of language, by LeRobot's own writers."""
    root, depth = tmp_path / "lamp", "observation.images.depth"
    names = ["height", "width", "channels"]
    features: dict[str, Any] = {
        "action": {"dtype": "float32", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
        depth: {
            "dtype": kind,
            "shape": (64, 96, 1),
            "names": names,
            "info": {"is_depth_map": True},
        },
    }
    for key, size in SIZES.items():
        features[key] = {"dtype": kind, "shape": (*size, 3), "names": names}
    data = LeRobotDataset.create("local/lamp", fps=12, features=features, root=root)
    for _ in range(6):
        for at in range(4):
            images = {key: scene(at, size) for key, size in SIZES.items()}
            images[depth] = np.full((64, 96, 1), 500 + at, np.uint16)
            outcome = {"action": np.ones(1, np.float32), "next.success": np.array([at >= 2])}
            data.add_frame({**outcome, **images, "task": "walk to the lamp"})
        data.save_episode()
    data.finalize()
    annotate(root)
    for camera, (height, width) in SIZES.items():
        out = tmp_path / camera
        words = ["capture", "--recordings", str(root), "--camera", camera, "--out", str(out)]
        assert main([*words, "--frames", "2000"]) == 0
        assert f"depth and no colours: {depth}." in capsys.readouterr().out
        with (out / "metadata.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert {int(row["episode"]) for row in rows} == set(range(6))
        assert {row["label"] for row in rows} == {"success", "failure"}
        for row in rows:
            image = np.asarray(Image.open(out / row["file"]))
            green = image[height // 2, 5 * width // 6, 1] > 100
            assert (row["label"] == "success") == green


def annotate(root: Path) -> None:
    """Add both columns of language; each episode of a table is a row group then."""
    import pyarrow.parquet as pq
    from lerobot.annotations.steerable_pipeline.executor import Executor
    from lerobot.annotations.steerable_pipeline.reader import iter_episodes
    from lerobot.annotations.steerable_pipeline.staging import EpisodeStaging
    from lerobot.annotations.steerable_pipeline.writer import LanguageColumnsWriter, speech_atom

    records = list(iter_episodes(root))
    for record in records:
        staging = EpisodeStaging(root / "staging", record.episode_index)
        subtask = {"role": "assistant", "content": "walk", "style": "subtask", "timestamp": 0.0}
        staging.write("plan", [subtask])
        staging.write("interjections", [speech_atom(float(record.frame_timestamps[1]), "go")])
    (path,) = LanguageColumnsWriter().write_all(records, root / "staging", root)
    Executor._ensure_annotation_metadata_in_info(root)
    table = pq.ParquetFile(path)
    assert {"language_persistent", "language_events"} <= set(table.schema_arrow.names)
    assert table.num_row_groups == 6


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
    words = ["import", "--model", str(tmp_path / "classifier"), "--out", str(out)]
    assert main(words) == 0
    for backend in ("onnxruntime", "openvino"):
        with Classifier(out, backend=backend, precision="fp32") as ours:
            found = ours.predict(images).log_odds
        difference = float(np.abs(found - expected).max())
        spread = f"logits from {expected.min():.2f} to {expected.max():.2f}"
        print(f"{cameras} camera(s), {backend}: largest difference {difference:.1e}, {spread}")
        assert difference < 1e-4
