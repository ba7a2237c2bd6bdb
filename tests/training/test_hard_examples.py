"""The example that trains the hover classifier on what it gets most wrong."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vinoreward.bundles.locate import find
from vinoreward_envs.scene import HoverScene
from vinoreward_training.capture.hover import draw, take

WEIGHTS = find("panda-hover-classifier") / "model.safetensors"


@pytest.fixture(scope="module")
def example(project_root: Path) -> dict[str, Any]:
    pytest.importorskip("torch")
    return runpy.run_path(str(project_root / "examples" / "panda_hover" / "hard_examples.py"))


@pytest.mark.parametrize("category", ["success", "absent", "outside"])
def test_its_scenes_are_those_of_a_capture(example: dict[str, Any], category: str) -> None:
    """The capture's arm, truth and image are the oracle."""
    found = example["Scenes"]().frames(example["of_category"](category), 12, 5)
    random, scene = np.random.default_rng((5, 0)), HoverScene()
    for index in range(12):
        frame = take(scene, draw(category, random), category)
        assert found.labels[index] == frame.success
        np.testing.assert_allclose(found.distances[index], frame.distance, atol=1e-4)
        assert np.abs(found.images[index].astype(int) - frame.image).mean() < 0.5
    scene.close()


def test_the_hardest_are_failures_and_no_close_calls(example: dict[str, Any]) -> None:
    """The worst last; the network's own answers are the oracle."""
    from vinoreward_training.classifier.networks import build_for
    from vinoreward_training.configs import FinetuneConfig

    net = build_for(FinetuneConfig(weights=WEIGHTS), 96, 128)
    module = example["Training"](net, 1e-3, 0).module
    scenes, join = example["Scenes"](), example["Frames"].join
    kinds = ("at_the_rim", "raised_anywhere", "any_other")
    drawn = join([scenes.frames(example[kind], 24, 3, index) for index, kind in enumerate(kinds)])
    hard = example["hardest"](module, drawn, 20 / example["MOST"])
    score = example["log_odds"](module, hard.images)
    assert 0 < len(score) <= 20 and (np.diff(score) >= 0).all()
    hovering = np.abs(hard.places[:, 2] - example["HOVER_HEIGHT"]) <= 0.01
    limit = example["SUCCESS_DISTANCE"] + example["RIM"]
    assert not hard.labels.any() and not (hovering & (hard.distances <= limit)).any()
    far = (drawn.labels == 0) & (drawn.distances > limit)
    assert score[-1] == pytest.approx(example["log_odds"](module, drawn.images)[far].max(), 1e-4)


@pytest.mark.slow
def test_a_training_writes_weights_that_load(
    example: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.numpy import load_file

    out = tmp_path / "new.safetensors"
    words = ["--weights", str(WEIGHTS), "--out", str(out), "--rounds", "2", "--frames", "64"]
    monkeypatch.setattr(sys, "argv", ["hard_examples.py", *words, "--threads", "1"])
    example["main"]()
    before, after = load_file(WEIGHTS), load_file(out)
    assert {name: one.shape for name, one in after.items()} == {
        name: one.shape for name, one in before.items()
    }
    assert all(np.isfinite(one).all() for one in after.values())
    assert any(not np.array_equal(one, before[name]) for name, one in after.items())
