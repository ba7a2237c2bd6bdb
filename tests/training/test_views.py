"""From pictures of two cameras to a bundle of several views: read, trained, quantized, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from picture_folders import VIEWS, write_views

from vinoreward.backends.torch_networks import WithPreprocess, build
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier import finetune
from vinoreward_training.configs import FinetuneConfig, QuantizeConfig
from vinoreward_training.data.dataset import load_dataset, load_frames
from vinoreward_training.quantize import command as quantize
from vinoreward_training.runs.fit import export_checked, predict


def test_a_dataset_says_what_its_pictures_are_views_of(tmp_path: Path) -> None:
    picture = load_dataset(write_views(tmp_path, 8)).picture()
    assert (picture.height, picture.width, picture.resize) == (72, 48, "none")
    assert [(view.name, view.height, view.source) for view in picture.views] == [
        ("front", 40, "obs:front"),
        ("wrist", 32, "obs:wrist"),
    ]


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (VIEWS[:1], r"dataset.json: views is \[40\]. Expected heights that add up to 72"),
        ([{"name": "front"}], "no 'height'"),
        ("two", "a list of objects"),
    ],
)
def test_views_that_are_not_the_pictures_are_refused(
    tmp_path: Path, views: Any, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        load_dataset(write_views(tmp_path, 8, views))


def test_several_views_are_not_resized_as_one_nor_encoded(tmp_path: Path) -> None:
    data = write_views(tmp_path, 80)
    with pytest.raises(DatasetError, match=r"32x24.*own size"):
        load_dataset(data, size=(32, 24))
    with pytest.raises(DatasetError, match="one view"):
        load_frames(data)


@pytest.mark.slow
def test_the_network_takes_the_views_apart_in_its_graph(tmp_path: Path) -> None:
    views = [("front", 32), ("wrist", 40), ("front", 32)]
    torch.manual_seed(0)
    net = build("squeezenet1_1", 2, views)
    module = WithPreprocess(net, (0.5,) * 3, (0.25,) * 3).eval()
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (3, 104, 48, 3), dtype=np.uint8)
    outputs = predict(module, images)
    assert outputs.shape == (3, 2)
    # One file for both runtimes, which take the picture as it is.
    assert export_checked(module, tmp_path / "model.onnx", images, outputs) < 1e-3
    # Each view counts, and is not what the others are: exchanged, they say something else.
    top = 0
    for _, height in views:
        other = images.copy()
        other[:, top : top + height] = 0
        assert (np.abs(predict(module, other) - outputs) > 1e-6).all()
        top += height
    exchanged = np.concatenate([images[:, 72:], images[:, 32:72], images[:, :32]], axis=1)
    assert np.abs(predict(module, exchanged) - outputs).max() > 1e-6


def test_a_view_too_small_for_the_network_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"'wrist' is 24 pixels high.*at least 32"):
        build("squeezenet1_1", 2, [("front", 40), ("wrist", 24)])


@pytest.mark.slow
def test_two_cameras_become_a_bundle_that_needs_both(tmp_path: Path) -> None:
    data = write_views(tmp_path / "data", 700)
    config = FinetuneConfig(
        data=data, out=tmp_path / "run", epochs=1, batch_size=16, target_fpr=0.2, threads=1
    )
    assert finetune.run(config) == 0
    path = tmp_path / "run" / "bundle"
    assert (
        quantize.run(QuantizeConfig(bundle=path, data=data, max_second_looks=1.0, calibration=32))
        == 0
    )
    bundle, dataset = Bundle.load(path), load_dataset(data)
    assert bundle.spec.picture.views == dataset.views
    assert "front (obs:front, 40 pixels high)" in (path / "README.md").read_text(encoding="utf-8")
    assert bundle.resolve_precision("openvino") == "int8"
    for backend in ("openvino", "onnxruntime", "torch"):  # each checked by the golden frames
        with Classifier(bundle, backend=backend) as classifier:
            claimed = classifier.compute_reward(dataset.images) == 1.0
            assert (claimed == (dataset.labels == 1)).mean() > 0.95
