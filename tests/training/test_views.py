"""Several cameras, and a part of each image: read, trained, quantised, run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from image_folders import SIZE, VIEWS, make_images, write_folder, write_views
from PIL import Image

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, DatasetError, ImageMismatchError
from vinoreward.files import sha256
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.panda_hover import PandaHoverEnv
from vinoreward_training.capture import command as capture
from vinoreward_training.classifier import calibrate, finetune
from vinoreward_training.cli import main
from vinoreward_training.configs import (
    CalibrateConfig,
    CaptureConfig,
    FinetuneConfig,
    MendConfig,
)
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.labelling.labels import Answer, Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of, labelled_images
from vinoreward_training.mending import command as mending
from vinoreward_training.mending.refit import Recipe
from vinoreward_training.runs.bundles import of_cut_images


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


# --- a part of each image ------------------------------------------------------------------------


TOP, LEFT, WHOLE = 10, 24, (48, 72)
RESIZED = (40, 52)


def write_whole(folder: Path, count: int, seed: int = 0) -> np.ndarray:
    """Write what a camera shows: the part that matters is at (10, 24), noise is around it."""
    parts, labels = make_images(count, seed)
    whole = np.random.default_rng(1).integers(0, 256, (count, *WHOLE, 3), dtype=np.uint8)
    whole[:, TOP : TOP + SIZE[0], LEFT : LEFT + SIZE[1]] = parts
    for index, (image, label) in enumerate(zip(whole, labels, strict=True)):
        path = folder / ("success" if label else "failure") / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)
    about = {"scene": {"env": "My-v0"}, "env": "My-v0"}  # as capture writes it
    (folder / "dataset.json").write_text(json.dumps(about))
    return whole


@pytest.mark.parametrize("size", [None, RESIZED])
def test_a_training_reads_what_somebody_else_would_have_cut(
    tmp_path: Path, size: tuple[int, int] | None
) -> None:
    cut = load_dataset(write_folder(tmp_path / "cut", 8), size=size)
    write_whole(tmp_path / "whole", 8)
    found = load_dataset(tmp_path / "whole", size=size, crop=(TOP, LEFT, *SIZE))
    np.testing.assert_array_equal(found.images, cut.images)
    assert found.images.shape[1:3] == (size or SIZE)


@pytest.mark.full
def test_the_bundle_and_the_commands_after_it_read_the_whole_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One training for all that follows it: INT8, another threshold, labels and a mending."""
    data = tmp_path / "whole"
    whole, (parts, labels) = write_whole(data, 700), make_images(700)
    config = FinetuneConfig(
        data=data, out=tmp_path / "run", image_crop=(TOP, LEFT, *SIZE), image_size=RESIZED,
        epochs=1, target_fpr=0.1, int8="on",
    )  # fmt: skip
    assert finetune.run(config) == 0
    bundle = Bundle.load(tmp_path / "run" / "bundle")
    assert bundle.spec.image.crop == (TOP, LEFT, *SIZE)
    assert (bundle.spec.image.height, bundle.spec.image.width) == RESIZED
    exact, cut = Classifier(bundle, precision="fp32"), of_cut_images(bundle)
    with exact as classifier, Classifier(cut, precision="fp32") as of_parts:
        probabilities = classifier.probability(whole[:40])
        np.testing.assert_array_equal(probabilities > 0.5, labels[:40] == 1)
        np.testing.assert_array_equal(of_parts.probability(parts[:40]), probabilities)
        with pytest.raises(ImageMismatchError, match=r"at least 42 x 64 .*crops 32 x 40 at row 10"):
            classifier.probability(parts)

    assert bundle.resolve_precision("openvino") == "int8"
    with Classifier(bundle) as classifier, Classifier(bundle, precision="fp32") as exact:
        assert classifier.band == bundle.spec.decision.int8_band is not None
        agreed = classifier.compute_reward(whole) == exact.compute_reward(whole)
        assert agreed.mean() >= 0.99
        assert 0 <= classifier.second_looks <= classifier.scored == len(whole)

    fresh = tmp_path / "fresh"
    write_whole(fresh, 160, seed=1)
    again = CalibrateConfig(bundle=bundle.path, data=fresh, target_fpr=0.2, int8="off")
    assert calibrate.run(again) == 0
    assert Bundle.load(bundle.path).spec.image.crop == (TOP, LEFT, *SIZE)

    # Labels are of whole images too.
    labelled = tmp_path / "labelled"
    labelled.mkdir()
    with LabelLog(labelled / "labels.jsonl") as log:
        images = write_whole(labelled, 40, seed=2)
        for file in sorted(labelled.glob("*/*.png")):
            image, answer = images[int(file.stem)], cast(Answer, file.parent.name)
            name = f"{file.parent.name}/{file.name}"
            log.add(Label(name, digest_of(image), answer, "ann", now(), 1.0))
    before = sha256(bundle.path / "bundle.json")
    config = MendConfig(
        bundle=str(bundle.path), data=data, labels=(labelled,), out=tmp_path / "mended"
    )
    recipe = Recipe(replay=300, epochs=1, learning_rate=1e-6)
    assert mending.run(config, recipe) == 0, capsys.readouterr().out
    better = Bundle.load(tmp_path / "mended" / "bundle").spec
    assert better.image == bundle.spec.image
    assert better.dataset["counts"]["category:labelled"] == 40
    assert sha256(bundle.path / "bundle.json") == before


def test_labelled_images_are_cut(tmp_path: Path) -> None:
    whole = write_whole(tmp_path, 4)
    labels = [
        Label("failure/0000.png", digest_of(whole[0]), "failure", "ann", now(), 1.0),
        Label("success/0001.png", digest_of(whole[1]), "success", "ann", now(), 1.0),
    ]
    parts, answers = make_images(4)
    found = labelled_images(tmp_path, labels, SIZE, crop=(TOP, LEFT, *SIZE))
    np.testing.assert_array_equal(found.images, parts[:2])
    np.testing.assert_array_equal(found.labels, answers[:2])
    with pytest.raises(DatasetError, match=r"0000.png has 48x72 .*at least 49x64"):
        labelled_images(tmp_path, labels, SIZE, crop=(TOP + 7, LEFT, *SIZE))


def test_a_crop_that_cannot_be(tmp_path: Path) -> None:
    def refused(data: Path, crop: tuple[int, int, int, int], words: str) -> None:
        config = FinetuneConfig(data=data, out=tmp_path / "run", image_crop=crop, target_fpr=0.2)
        with pytest.raises((ConfigError, DatasetError), match=words):
            finetune.run(config)
        assert not (tmp_path / "run" / "bundle").exists()

    data = write_folder(tmp_path / "data", 80)
    refused(
        data, (0, 20, 32, 21), r"0000.png has 32x40 .*at least 32x41 for --image-crop 0 20 32 21"
    )
    refused(data, (-1, 0, 8, 8), "image_crop")
    refused(data, (0, 0, 0, 8), "image_crop")
    refused(write_views(tmp_path / "views", 80), (0, 0, 40, 40), "several views below each other")
    for about, words in [
        ({"image_size": [32, 40]}, "resized as they were captured.*own size with --image-size"),
        ({"scene": dict(PandaHoverEnv().image_scene)}, "images of the hover scene"),
    ]:
        (data / "dataset.json").write_text(json.dumps(about))
        refused(data, (0, 0, 16, 16), words)
