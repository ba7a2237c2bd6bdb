"""``finetune --image-crop``: a part of each image, in training as in use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from image_folders import SIZE, make_images, write_folder, write_views
from PIL import Image

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, DatasetError, ImageMismatchError
from vinoreward.files import sha256
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.interventions import Axis, SearchSpace
from vinoreward_envs.panda_hover import PandaHoverEnv
from vinoreward_training.audit.command import audit
from vinoreward_training.audit.report import AuditReport
from vinoreward_training.classifier import calibrate, finetune
from vinoreward_training.configs import (
    CalibrateConfig,
    FinetuneConfig,
    MendConfig,
)
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.labelling.labels import Answer, Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of, labelled_images
from vinoreward_training.mending import command as mending
from vinoreward_training.mending import refit
from vinoreward_training.mending.examples import FILE as EXAMPLES_FILE
from vinoreward_training.mending.examples import Examples
from vinoreward_training.mending.refit import LEAST_SHARE
from vinoreward_training.runs.bundles import of_cut_images

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


class Red(gym.Env[Any, Any]):
    """A camera at a wall whose left half may be lit; a search space has the strength of the light.

    Actions: less light, more light.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    opened = 0

    def __init__(self, render_mode: str | None = None) -> None:
        Red.opened += 1
        self.render_mode, self.light, self.steps = render_mode, 0, 0
        self.observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def close(self) -> None:
        Red.opened -= 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.light, self.steps = 20 * int(self.np_random.integers(3)), 0
        return np.array([self.light], np.float32), {"is_success": False}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.light = int(np.clip(self.light + (20 if action else -20), 0, 100))
        self.steps += 1
        # What the search space leaves out is no failure here either.
        over, truth = self.steps >= 20, {"is_success": self.light >= 20}
        return np.array([self.light], np.float32), 0.0, False, over, truth

    def render(self) -> Any:
        random = np.random.default_rng(self.light)
        whole = random.integers(0, 256, (*WHOLE, 3), dtype=np.uint8)
        part = random.integers(60, 120, (*SIZE, 3), dtype=np.uint8)
        part[:, :20, 0] += np.uint8(self.light)
        whole[TOP : TOP + SIZE[0], LEFT : LEFT + SIZE[1]] = part
        return whole

    def audit_spaces(self) -> list[SearchSpace]:
        def lit(state: np.ndarray) -> bool | None:
            self.light = int(state[0])
            return True if self.light >= 90 else None if self.light >= 20 else False

        return [SearchSpace("light", (Axis("light", 0.0, 100.0),), lit)]


gym.register("RedForCrop-v0", entry_point=Red)


@pytest.mark.parametrize("size", [None, RESIZED])
def test_a_training_reads_what_somebody_else_would_have_cut(
    tmp_path: Path, size: tuple[int, int] | None
) -> None:
    cut = load_dataset(write_folder(tmp_path / "cut", 8), size=size)
    write_whole(tmp_path / "whole", 8)
    found = load_dataset(tmp_path / "whole", size=size, crop=(TOP, LEFT, *SIZE))
    np.testing.assert_array_equal(found.images, cut.images)
    assert found.images.shape[1:3] == (size or SIZE)


@pytest.mark.slow
def test_the_bundle_and_the_commands_after_it_read_the_whole_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    few = {"frames": 30, "dead": 220}
    examples = tmp_path / "mended" / "candidate" / "part3" / EXAMPLES_FILE
    drawn: list[Examples] = []
    opened: list[int] = []
    shares: list[float] = []
    given = refit.shares_of
    monkeypatch.setattr(
        refit, "shares_of", lambda kinds, share: shares.append(share) or given(kinds, share)
    )

    def shortly(*given: Any, **how: Any) -> AuditReport:
        drawn.append(Examples.load(examples, 1))
        opened.append(Red.opened)
        return audit(*given, **{**how, **few})

    monkeypatch.setattr(mending, "audit", shortly)
    mended = mending.run(
        MendConfig(
            bundle=bundle.path, data=data, labels=(labelled,), out=tmp_path / "mended",
            learning_rate=1e-6, replay=300, epochs=1, threads=1, env="RedForCrop-v0",
        )
    )  # fmt: skip
    said = capsys.readouterr().out
    assert mended == 0, said
    # The environment's examples are cut too, and it labels them.
    assert opened == [1, 1], "an audit has an environment for itself"
    assert shares == [LEAST_SHARE / 2] * 3, "the bundle gets none of the labels wrong"
    shown, true = drawn[0].images, drawn[0].labels
    assert shown.shape[1:] == (*RESIZED, 3) and 20 < true.sum() < len(true)
    halves = shown[..., 0].mean(axis=1).reshape(len(shown), 2, -1).mean(axis=2)
    np.testing.assert_array_equal(halves[:, 0] - halves[:, 1] > 60, true == 1)
    assert not examples.exists(), "what the training no longer needs takes no room"
    assert said.count("that look like successes to the network: light 0") == 3
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
