"""LeRobot's reward classifiers, rebuilt: the same logits, and no code from elsewhere.

The folders in tests/data/lerobot were written by LeRobot 0.4.4, with random weights: HIL-SERL's
ResNet-10 with one camera, and Transformers' ResNet with two. ``logits.npy`` is what LeRobot's own
classifier returned, after its normaliser, for the images below.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_folders import moments

from vinoreward.bundles.importers.modules import load_state
from vinoreward.errors import ModelRefusedError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier.lerobot import (
    PREPROCESSOR,
    is_reward_classifier,
    read_reward_classifier,
)
from vinoreward_training.cli import main

FOLDERS = Path(__file__).parents[1] / "data" / "lerobot"


@pytest.mark.parametrize(("name", "cameras"), [("resnet10", 1), ("two-cameras", 2)])
def test_logits_are_lerobots(name: str, cameras: int) -> None:
    import torch

    found = read_reward_classifier(FOLDERS / name)
    keys = ["observation.images.front", "observation.images.wrist"][:cameras]
    assert [camera.key for camera in found.cameras] == keys
    assert found.size == (128 * cameras, 128)
    module = found.module().eval()
    inputs = torch.from_numpy(moments(cameras)).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        logits = torch.cat([module(part) for part in inputs.split(50)]).numpy()
    expected = np.load(FOLDERS / name / "logits.npy")
    assert logits.shape == (200, 1)
    assert expected.std() > 0.05  # else any number would agree
    assert np.abs(logits[:, 0] - expected).max() < 1e-4


def test_the_command_makes_a_bundle_with_lerobots_logits(tmp_path: Path) -> None:
    out, folder = tmp_path / "bundle", FOLDERS / "two-cameras"
    assert main(["import", "--model", str(folder), "--out", str(out)]) == 0
    with Classifier(out, backend="onnxruntime", precision="fp32") as classifier:
        found = classifier.predict(moments(2)[::4]).log_odds
        views = classifier.bundle.spec.image.views
    expected = np.load(folder / "logits.npy")[::4]
    assert np.abs(found - expected).max() < 1e-4
    assert [(view.name, view.height, view.source) for view in views or ()] == [
        ("front", 128, "obs:observation.images.front"),
        ("wrist", 128, "obs:observation.images.wrist"),
    ]


def changed(file: str, /, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def link_out(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "model.safetensors")
    (folder / "model.safetensors").symlink_to(folder.parent / "model.safetensors")


def with_tensor(name: str, *shape: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        import safetensors.torch
        import torch

        path = folder / "model.safetensors"
        given = {**load_state(path), name: torch.zeros(shape, dtype=torch.float16)}
        safetensors.torch.save_file(given, path)

    return change


REMOTE = [{"registry_name": "normalizer_processor", "config": {}}, {"class": "pkg.mine.Crop"}]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (changed("config.json", name="sac"), "type is 'sac'. Expected 'reward_classifier'"),
        (changed("config.json", num_classes=3), "export others as ONNX"),
        (changed("config.json", num_cameras=2), "1 images in input_features and num_cameras 2"),
        (changed(PREPROCESSOR, steps=REMOTE), "other code is not run here"),
        (link_out, "there is no such file in the folder"),
        # Shapes of megabytes that a network of gigabytes would be built from.
        (
            with_tensor("classifier_head.0.weight", 100_000, 1),
            "head.0.weight has the shape (100000, 1)",
        ),
        (
            with_tensor("encoder.encoder.stages.1000000.norm1.weight", 1),
            "no part has encoder.encoder.stages.1000000.norm1.weight",
        ),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(
    tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    folder = shutil.copytree(FOLDERS / "resnet10", tmp_path / "classifier")
    assert is_reward_classifier(folder)
    harm(folder)
    with pytest.raises(ModelRefusedError) as error:
        read_reward_classifier(folder).module()
    assert says in str(error.value)
