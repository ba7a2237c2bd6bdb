"""The example that trains the hover classifier on what it gets most wrong."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("category", ["success", "near_miss", "absent", "home", "outside"])
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


def test_places_near_one_stay_where_the_gripper_can_be(example: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    drawn = example["near"](np.array([[0.4, 0.4, 0.24, 0.7, -0.4], [0.5, 0.0, 0.1, 0.5, 0.0]]))
    placed = [drawn(random) for _ in range(200)]
    gripper = np.array([one.gripper for one in placed])
    assert (gripper >= example["WORKSPACE_LOW"]).all()
    assert (gripper <= example["WORKSPACE_HIGH"]).all()
    heights = {round(one.height, 9) == example["HOVER_HEIGHT"] for one in placed}
    assert heights == {True, False}, "one place hovers and the other does not"


def test_objects_at_the_edge_are_there(example: dict[str, Any]) -> None:
    """On both sides of it, in the corners too, with the gripper raised and inside."""
    random = np.random.default_rng(0)
    placed = [example["raised_at_the_edge"](random) for _ in range(400)]
    objects, gripper = np.array([(one.object_last, one.gripper) for one in placed]).swapaxes(0, 1)
    inside = np.minimum(objects - example["WORKSPACE_LOW"], example["WORKSPACE_HIGH"] - objects)
    away = inside.min(axis=1)
    assert (away < example["EDGE"]).all() and away.min() < 0 < away.max()
    assert (np.sort(inside, axis=1)[:, 1] < 0.02).any(), "a corner"
    assert (gripper >= example["WORKSPACE_LOW"]).all()
    assert (gripper <= example["WORKSPACE_HIGH"]).all()
    assert min(one.height for one in placed) > example["HOVER_HEIGHT"] + 0.01


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weights", "none.safetensors"], "weights at none.safetensors"),
        (["--weights", str(WEIGHTS), "--frames", "3"], "--frames 3.*Expected at least 1, 64"),
        (["--weights", str(WEIGHTS), "--rounds", "0"], "--rounds 0"),
    ],
    ids=["weights", "frames", "rounds"],
)
def test_what_it_refuses(
    example: dict[str, Any],
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "new.safetensors"
    monkeypatch.setattr(sys, "argv", ["hard_examples.py", *words, "--out", str(out)])
    with pytest.raises(SystemExit):
        example["main"]()
    assert re.search(said, " ".join(capsys.readouterr().err.split())) and not out.exists()


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
