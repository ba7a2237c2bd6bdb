"""From images of two cameras to a bundle of several views: read, trained, quantized, run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from image_folders import VIEWS, write_views

from vinoreward.backends.torch_classifiers import build
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.capture import command as capture
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset import load_dataset, load_frames
from vinoreward_training.runs.fit import predict
from vinoreward_training.runs.next_command import to_train


def test_a_dataset_says_what_its_images_are_views_of(tmp_path: Path) -> None:
    image = load_dataset(write_views(tmp_path, 8)).image()
    assert (image.height, image.width, image.resize) == (72, 48, "none")
    assert [(view.name, view.height, view.source) for view in image.views] == [
        ("front", 40, "obs:front"),
        ("wrist", 32, "obs:wrist"),
    ]


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


def test_several_views_are_not_resized_as_one_nor_encoded(tmp_path: Path) -> None:
    data = write_views(tmp_path, 80)
    with pytest.raises(DatasetError, match=r"32x24.*own size"):
        load_dataset(data, size=(32, 24))
    with pytest.raises(DatasetError, match="one view"):
        load_frames(data)


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


def test_the_example_of_two_cameras_is_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples" / "two_cameras")
    config = CaptureConfig(
        out=tmp_path / "two",
        env="two_cameras:TwoCameras-v0",
        frames=16,
        image_source=("obs:front", "obs:top"),
    )
    capture.run(config)
    assert load_dataset(config.out).images.shape == (16, 2 * 48, 64, 3)


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


def test_two_cameras_of_different_widths_are_refused_with_the_remedy(tmp_path: Path) -> None:
    class Uneven(Cart):
        observation_space = gym.spaces.Dict(
            {**Cart.observation_space.spaces, "wrist": gym.spaces.Box(0, 255, (16, 30), np.uint8)}
        )

        def _observe(self) -> dict[str, Any]:
            return {**super()._observe(), "wrist": np.zeros((16, 30), np.uint8)}

    gym.register("VinorewardTestUneven-v0", entry_point=Uneven)
    config = CaptureConfig(
        out=tmp_path / "x",
        env="VinorewardTestUneven-v0",
        frames=8,
        image_source=("obs:front", "obs:wrist"),
    )
    with pytest.raises(ConfigError, match=r"'obs:wrist' has shape .*30.*one width.*--image-size"):
        capture.run(config)
    sized = dataclasses.replace(config, image_size=(16, 20), out=tmp_path / "y")
    capture.run(sized)
    assert load_dataset(sized.out).image().resize == "pil_bilinear"
    assert load_dataset(sized.out).images.shape == (8, 32, 20, 3)


def test_the_network_takes_the_views_apart_in_its_graph() -> None:
    views = [("front", 32), ("wrist", 40), ("front", 32)]
    torch.manual_seed(0)
    net = build("squeezenet1_1", 2, views)
    module = WithPreprocess(net, (0.5,) * 3, (0.25,) * 3).eval()
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (3, 104, 48, 3), dtype=np.uint8)
    outputs = predict(module, images)
    assert outputs.shape == (3, 2)
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


class Lamps(gym.Env[Any, Any]):
    """In each of two cameras a lamp is on where one of two actions was taken last.

    Where the other was taken, it is on in neither or in one alone, so that no camera knows it by
    itself.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    observation_space = gym.spaces.Dict(
        {name: gym.spaces.Box(0, 255, (40, 40, 3), np.uint8) for name in ("front", "wrist")}
    )
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe((False, False)), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        on = bool(action[0] > 0)
        lit = (on, on) if on else ((0, 0), (1, 0), (0, 1))[int(self.np_random.integers(3))]
        return self._observe(lit), 0.0, False, self.steps >= 4, {"success": on}

    def render(self) -> Any:
        return self.seen["front"]

    def _observe(self, lit: tuple[int, int]) -> dict[str, Any]:
        self.seen = {
            name: self.np_random.integers(40, 80, (40, 40, 3), dtype=np.uint8)
            for name in ("front", "wrist")
        }
        for image, on in zip(self.seen.values(), lit, strict=True):
            image[:, :20, 0] += np.uint8(150 * on)
        return self.seen


gym.register("VinorewardTestLamps-v0", entry_point=Lamps)


@pytest.mark.slow
def test_two_cameras_from_images_to_a_policy_by_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the bundle needs both cameras, in whatever runs it."""
    monkeypatch.chdir(tmp_path)
    data = Path("data/lamps")
    more = {
        "capture": "--frames 720 --per-episode 2",
        "finetune": "--epochs 1 --batch-size 16 --threads 1",
        "quantize": "--calibration 96 --max-second-looks 1",
        "train": "--num-envs 2 --vec-env dummy --timesteps 104 --final-episodes 2 --no-progress",
        "play": "--episodes 2 --film 1 --no-progress",
    }
    said = "next: vinoreward capture --env VinorewardTestLamps-v0 --out data/lamps "
    said += "--image-source obs:front obs:wrist"
    for name in more:
        (line,) = re.findall(r"^next: +vinoreward (.*)$", said, flags=re.MULTILINE)
        assert line.split()[0] == name
        assert main([*line.split(), *more[name].split()]) == 0, line
        said = capsys.readouterr().out
        if name == "quantize":
            assert "next: vinoreward audit --bundle runs/lamps-classifier/bundle" in said
            bundle, dataset = Bundle.load("runs/lamps-classifier/bundle"), load_dataset(data)
            assert bundle.spec.image.views == dataset.views and len(dataset.views) == 2
            assert "front (obs:front, 40 pixels high)" in (bundle.path / "README.md").read_text()
            assert bundle.resolve_precision("openvino") == "int8"
            for backend in ("openvino", "onnxruntime", "torch"):  # each checked by golden frames
                with Classifier(bundle, backend=backend) as classifier:
                    claimed = classifier.compute_reward(dataset.images) == 1.0
                    assert (claimed == (dataset.labels == 1)).mean() > 0.95
            said = f"next: {to_train(bundle.path, bundle.spec)}"
        if name == "train":  # after 104 steps it asks for the same training on the truth
            assert "train --config runs/lamps-policy/config.yaml --backend oracle" in said
            said = "next: vinoreward play --run runs/lamps-policy --env VinorewardTestLamps-v0"
        if name == "play":
            (claimed,), (true,) = (
                re.findall(rf"{what} success: +(\d)/2", said) for what in ("claimed", "true")
            )
            assert claimed == true  # one environment claims what it is paid for, from both cameras
    profile = "profile --env VinorewardTestLamps-v0 --bundle runs/lamps-classifier/bundle"
    assert main([*profile.split(), "--steps", "2", "--no-learner"]) == 0
    assert "infer" in capsys.readouterr().out
