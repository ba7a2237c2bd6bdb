"""From images of two cameras to a bundle of several views: read, trained, quantized, run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from image_folders import VIEWS, write_views

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.capture import command as capture
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset import load_dataset


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (VIEWS[:1], r"dataset.json: views is \[40\]. Expected heights that add up to 72"),
        ([{"name": "front"}], "height is missing"),
        ("two", "a valid list"),
    ],
)
def test_views_that_are_not_the_images_are_refused(
    tmp_path: Path, views: Any, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        load_dataset(write_views(tmp_path, 8, views))


class Cart(gym.Env[Any, Any]):
    """Its place is green in one camera, its step blue in the other, its episode red in both."""

    observation_space = gym.spaces.Dict(
        {
            "front": gym.spaces.Box(0, 255, (20, 24, 3), np.uint8),
            "wrist": gym.spaces.Box(0, 255, (16, 24), np.uint8),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.red, self.place, self.steps = int(self.np_random.integers(256)), 50, 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.place += 10 if action else -10
        self.steps += 1
        return self._observe(), 0.0, False, self.steps >= 8, {"success": self.place > 60}

    def _observe(self) -> dict[str, Any]:
        front = np.full((20, 24, 3), (self.red, self.place, 0), np.uint8)
        return {"front": front, "wrist": np.full((16, 24), 20 * self.steps, np.uint8)}


gym.register("VinorewardTestCart-v0", entry_point=Cart)


def test_a_capture_of_two_cameras_and_their_last_images(tmp_path: Path) -> None:
    config = CaptureConfig(
        out=tmp_path / "cart",
        env="VinorewardTestCart-v0",
        frames=24,
        image_source=("obs:front", "obs:wrist"),
        stack=3,
    )
    capture.run(config)
    dataset = load_dataset(config.out)
    assert [(view.name, view.age, view.source) for view in dataset.views] == [
        *(("front", age, "obs:front") for age in (2, 1, 0)),
        *(("wrist", age, "obs:wrist") for age in (2, 1, 0)),
    ]
    tops = np.cumsum([0, *(view.height for view in dataset.views)][:-1])
    assert dataset.images.shape == (24, 3 * 20 + 3 * 16, 24, 3)
    first = dataset.images[:, tops, 0].astype(int)  # (frame, view, channel)
    assert (np.ptp(first[:, :3, 0], axis=1) == 0).all(), "all are of one episode"
    steps = first[:, 3:, 0] // 20
    now = np.array([int(Path(file).stem.split("-")[1]) + 1 for file in dataset.files])
    np.testing.assert_array_equal(
        steps, np.stack([np.maximum(now - age, 0) for age in (2, 1, 0)], 1)
    )
    moved = np.diff(first[:, :3, 1], axis=1)
    np.testing.assert_array_equal(np.abs(moved) == 10, np.diff(steps, axis=1) == 1)
    np.testing.assert_array_equal(first[:, 2, 1] > 60, dataset.labels == 1)
    # It goes on as it was begun, and is not mixed with other images.
    capture.run(capture.SETTINGS.of(out=config.out, frames=30, resume=True))
    assert load_dataset(config.out).images.shape[0] == 30
    with pytest.raises(ConfigError, match="found stack=2"):
        capture.run(capture.SETTINGS.of(out=config.out, frames=36, resume=True, stack=2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_source": ("obs:front", "obs:front")}, "each camera once.*--stack"),
        ({"image_source": ("obs:front", "obs:side")}, "has front, wrist"),
    ],
)
def test_views_that_cannot_be_captured_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    config = CaptureConfig(out=tmp_path / "x", env="VinorewardTestCart-v0", **options)
    with pytest.raises(ConfigError, match=message):
        capture.run(config)


@pytest.mark.full
def test_a_classifier_of_two_cameras_needs_both_on_every_backend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = write_views(tmp_path / "lamps", 720), tmp_path / "run"
    words = ["finetune", "--data", str(data), "--out", str(out), "--target-fpr", "0.1"]
    assert main([*words, "--epochs", "2", "--int8", "on"]) == 0
    assert f"next: vinoreward audit --bundle {out}" in capsys.readouterr().out
    bundle, dataset = Bundle.load(out / "bundle"), load_dataset(data)
    assert bundle.spec.image.views == dataset.views and len(dataset.views) == 2
    assert "front (obs:front, 40 pixels high)" in (bundle.path / "README.md").read_text()
    assert bundle.resolve_precision("openvino") == "int8"
    for backend in ("openvino", "onnxruntime", "torch"):  # each checked by golden frames
        with Classifier(bundle, backend=backend) as classifier:
            claimed = classifier.compute_reward(dataset.images) == 1.0
            assert (claimed == (dataset.labels == 1)).mean() > 0.95
