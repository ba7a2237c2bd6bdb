"""Captures: balanced, labelled by the simulator, resumable, readable by anybody."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

from vinoreward.errors import ConfigError, DatasetError, RunFolderError
from vinoreward_envs.constants import SUCCESS_DISTANCE
from vinoreward_training import capture
from vinoreward_training.capture import CaptureConfig
from vinoreward_training.capture_hover import (
    CATEGORIES,
    NEAR_MISS_DISTANCE,
    category_of,
    draw,
)
from vinoreward_training.dataset import load_dataset


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metadata.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


class Line(gymnasium.Env[np.ndarray, int]):
    """A walk on a line that ends at 3; success is being there."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space: Any = None

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Discrete(2)
        self.at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.at += 1 if action else -1
        info = {"at_goal": self.at == 3}
        return np.full(1, self.at, np.float32), 0.0, self.at == 3, abs(self.at) > 5, info

    def render(self) -> Any:
        return np.full((16, 20, 3), 100 + self.at, dtype=np.uint8)


@pytest.fixture
def line_id() -> str:
    name = "VinorewardTestLine-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=Line, max_episode_steps=30)
    return name


def test_a_third_each_is_success_near_miss_and_others() -> None:
    names = [category_of(index) for index in range(300)]
    assert names.count("success") == names.count("near_miss") == 100
    assert all(names.count(name) == 20 for name in CATEGORIES[2:])


def test_placements_are_what_their_category_says() -> None:
    for index in range(200):
        random = np.random.default_rng([1, index])
        success = draw("success", random)
        assert success.gripper is not None and success.object_last is not None
        assert math.dist(success.gripper, success.object_last) <= SUCCESS_DISTANCE
        near = draw("near_miss", random)
        assert near.gripper is not None and near.object_last is not None
        assert SUCCESS_DISTANCE <= math.dist(near.gripper, near.object_last) <= NEAR_MISS_DISTANCE
        assert draw("absent", random).object_last is None
        assert draw("home", random).gripper is None
        moved = draw("moved_after_arrival", random)
        assert moved.gripper and moved.object_first and moved.object_last
        assert math.dist(moved.gripper, moved.object_first) <= SUCCESS_DISTANCE
        assert math.dist(moved.gripper, moved.object_last) >= SUCCESS_DISTANCE


def test_a_hover_capture_is_labelled_by_distance_and_described(tmp_path: Path) -> None:
    out = tmp_path / "hover"
    assert capture.run(CaptureConfig(out=out, frames=45, seed=3)) == 0
    rows = rows_of(out)
    assert len(rows) == 45
    for row in rows:
        inside = float(row["distance"]) <= SUCCESS_DISTANCE
        assert (row["label"] == "success") == inside
        assert (out / row["file"]).is_file()
        assert (row["object_x"] == "") == math.isinf(float(row["distance"]))
    assert {row["category"] for row in rows} == set(CATEGORIES)
    about = json.loads((out / "dataset.json").read_text())
    assert about["complete"] and about["frames"] == 45
    assert about["picture"] == {"height": 96, "width": 128, "color_order": "RGB"}
    dataset = load_dataset(out)
    assert dataset.images.shape == (45, 96, 128, 3)
    assert dataset.scene == about["scene"]


def test_a_capture_that_was_stopped_goes_on_to_the_same_pictures(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    capture.run(CaptureConfig(out=whole, frames=12))
    capture.run(CaptureConfig(out=stopped, frames=7))
    # What a kill leaves: pictures the table does not list yet, and a listed one deleted.
    (stopped / rows_of(stopped)[2]["file"]).unlink()
    Image.new("RGB", (128, 96)).save(stopped / "failure" / "000011.png")
    with pytest.raises(ConfigError, match="--resume"):
        capture.run(CaptureConfig(out=stopped, frames=12))
    capture.run(CaptureConfig(out=stopped, frames=12, resume=True))
    assert load_dataset(stopped).sha256 == load_dataset(whole).sha256


def test_a_capture_cannot_be_resumed_as_another(tmp_path: Path) -> None:
    capture.run(CaptureConfig(out=tmp_path / "a", frames=3))
    with pytest.raises(ConfigError, match=r"'seed': 0.*'seed': 5"):
        capture.run(CaptureConfig(out=tmp_path / "a", frames=6, seed=5, resume=True))


def test_any_environment_with_a_truth_is_captured_balanced(tmp_path: Path, line_id: str) -> None:
    config = CaptureConfig(out=tmp_path / "line", env=line_id, truth_key="at_goal", frames=20)
    capture.run(config)
    dataset = load_dataset(config.out)
    assert dataset.labels.sum() == 10 and len(dataset.labels) == 20
    assert (dataset.images[dataset.labels == 1] == 103).all()
    assert (dataset.images[dataset.labels == 0] != 103).all()
    assert len(np.unique(dataset.episodes)) >= 10


def test_an_environment_without_the_truth_is_an_error(tmp_path: Path, line_id: str) -> None:
    with pytest.raises(ConfigError, match=r"\['at_goal'\].*--truth-key"):
        capture.run(CaptureConfig(out=tmp_path / "x", env=line_id, frames=4))


class Never(Line):
    def step(self, action: int) -> Any:
        obs, reward, _, _, _ = super().step(action)
        return obs, reward, False, True, {"at_goal": False}


def test_random_play_that_never_succeeds_is_an_error(tmp_path: Path) -> None:
    if "VinorewardTestNever-v0" not in gymnasium.registry:
        gymnasium.register("VinorewardTestNever-v0", entry_point=Never)
    with pytest.raises(DatasetError, match="gave no success"):
        capture.run(
            CaptureConfig(
                out=tmp_path / "never", env="VinorewardTestNever-v0", truth_key="at_goal", frames=4
            )
        )
    assert len(rows_of(tmp_path / "never")) == 2  # what it found is kept


def test_an_unknown_environment_and_an_unwritable_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NoSuchEnv"):
        capture.run(CaptureConfig(out=tmp_path / "y", env="NoSuchEnv-v0"))
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="--out"):
        capture.run(CaptureConfig(out=tmp_path / "file" / "below"))


def test_the_articles_pictures_are_drawn_large_and_resized_as_its_environment_does(
    tmp_path: Path,
) -> None:
    from vinoreward_envs.picture_spec import resized
    from vinoreward_envs.scene import HoverScene
    from vinoreward_training.capture import article_camera
    from vinoreward_training.capture_hover import hover_frame

    out = tmp_path / "article"
    capture.run(CaptureConfig(out=out, frames=3, fidelity="article"))
    data = load_dataset(out)
    assert data.images.shape == (3, 96, 128, 3)
    assert data.scene["drawn"] == "960x720"
    assert (data.scene["height"], data.scene["width"], data.scene["mesh"]) == (96, 128, "full")
    scene = HoverScene(camera=article_camera())
    try:
        for episode, image in zip(data.episodes, data.images, strict=True):
            drawn = hover_frame(scene, 0, int(episode)).image
            assert drawn.shape == (720, 960, 3)
            np.testing.assert_array_equal(resized(drawn, 96, 128), image)
    finally:
        scene.close()
    # Pictures of two kinds in one folder would be a data set of neither.
    with pytest.raises(ConfigError, match="drawn"):
        capture.run(CaptureConfig(out=out, frames=6, resume=True))
    capture.run(CaptureConfig(out=out, frames=6, fidelity="article", resume=True))
    assert len(rows_of(out)) == 6


def test_the_articles_pictures_are_of_the_hover_task_only(tmp_path: Path, line_id: str) -> None:
    with pytest.raises(ConfigError, match="PandaHover"):
        capture.run(CaptureConfig(out=tmp_path, env=line_id, fidelity="article"))
