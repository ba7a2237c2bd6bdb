"""Captures: balanced, labelled by the simulator, resumable, readable by anybody."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
import re
import shlex
import sys
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import tiny_network as tiny
from PIL import Image

from vinoreward import LearnedReward
from vinoreward.bundles.save import save_bundle
from vinoreward.errors import ConfigError, DatasetError, RunFolderError
from vinoreward.images import ImageSpec, prepare
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward_envs.auditing import AROUND, HEIGHTS
from vinoreward_envs.camera.spec import camera_eye
from vinoreward_envs.constants import (
    HOVER_HEIGHT,
    OBJECT_MARGIN,
    SUCCESS_DISTANCE,
    WORKSPACE_HIGH,
    WORKSPACE_LOW,
)
from vinoreward_envs.panda_hover import PandaHoverEnv
from vinoreward_training.capture import command as capture
from vinoreward_training.capture.hover import (
    CATEGORIES,
    NEAR_MISS_DISTANCE,
    category_of,
    draw,
)
from vinoreward_training.capture.play import Balance, choose
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.data.dataset_files import read_about
from vinoreward_training.runs.next_command import origin
from vinoreward_training.tasks.environments import has_own_reward


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
    names = [category_of(index) for index in range(480)]
    assert names.count("success") == names.count("near_miss") == 160
    counts = {name: names.count(name) for name in CATEGORIES[2:]}
    assert counts.pop("height") == 40 and set(counts.values()) == {20}


def test_raised_hands_are_above_the_object_or_hide_it() -> None:
    """Above it, or on the line from a place near it to the camera, farther than a success."""
    random, eye = np.random.default_rng(0), camera_eye()
    above = beyond = 0
    for _ in range(300):
        placed = draw("height", random)
        assert placed.gripper is not None and placed.object_last is not None
        assert HEIGHTS[0] <= placed.height <= HEIGHTS[1]
        share = (placed.height - HOVER_HEIGHT) / (eye[2] - HOVER_HEIGHT)
        hover = (np.array(placed.gripper) - share * eye[:2]) / (1 - share)
        straight = math.dist(placed.gripper, placed.object_last) <= SUCCESS_DISTANCE
        above += straight
        assert straight or math.dist(hover, placed.object_last) <= NEAR_MISS_DISTANCE + 1e-9
        beyond += math.dist(hover, placed.object_last) > SUCCESS_DISTANCE
        assert np.less_equal(WORKSPACE_LOW, placed.gripper).all()
        assert np.less_equal(placed.gripper, WORKSPACE_HIGH).all()
    assert 0.15 < above / 300 < 0.4
    assert beyond / 300 > 0.4


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
        outside = draw("outside", random)
        assert outside.gripper and outside.object_last
        assert within(outside.gripper, 0.0) and within(outside.object_last, AROUND)
        assert not within(outside.object_last, -OBJECT_MARGIN)


def within(point: tuple[float, float], margin: float) -> bool:
    """Whether a point is in the workspace, or that far around it."""
    low, high = np.array(WORKSPACE_LOW) - margin, np.array(WORKSPACE_HIGH) + margin
    return bool((low <= point).all() and (point <= high).all())


def test_a_hover_capture_is_labelled_by_distance_and_described(tmp_path: Path) -> None:
    out = tmp_path / "hover"
    assert capture.run(CaptureConfig(out=out, frames=63, seed=3)) == 0
    rows = rows_of(out)
    assert len(rows) == 63
    for row in rows:
        inside = float(row["distance"]) <= SUCCESS_DISTANCE
        assert (row["label"] == "success") == (inside and row["category"] != "height")
        assert (out / row["file"]).is_file()
        assert (row["object_x"] == "") == math.isinf(float(row["distance"]))
    assert {row["category"] for row in rows} == set(CATEGORIES)
    about = json.loads((out / "dataset.json").read_text())
    assert about["complete"] and about["frames"] == 63
    assert about["image"] == {"height": 96, "width": 128, "color_order": "RGB"}
    dataset = load_dataset(out)
    assert dataset.images.shape == (63, 96, 128, 3)
    assert dataset.scene == about["scene"]


def test_a_capture_that_was_stopped_goes_on_to_the_same_images(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    capture.run(CaptureConfig(out=whole, frames=12))
    capture.run(CaptureConfig(out=stopped, frames=7))
    # What a kill leaves: images the table does not list yet, and a listed one deleted.
    (stopped / rows_of(stopped)[2]["file"]).unlink()
    Image.new("RGB", (128, 96)).save(stopped / "failure" / "000011.png")
    with pytest.raises(ConfigError, match="--resume"):
        capture.run(CaptureConfig(out=stopped, frames=12))
    capture.run(CaptureConfig(out=stopped, frames=12, resume=True))
    assert load_dataset(stopped).sha256 == load_dataset(whole).sha256


def test_ctrl_c_says_how_to_go_on_and_that_command_alone_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the run alone names a package to import, the command names it too."""
    out = tmp_path / "my data"
    (tmp_path / "package_with_goals.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    env = f"package_with_goals:{registered('VinorewardTestGoals-v0', Goals)}"
    left = [10]
    draw = Goals.render

    def render(self: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return draw(self)

    monkeypatch.setattr(Goals, "render", render)
    words = ["--env", env, "--truth-key", "there", "--frames", "20", "--seed", "3"]
    assert main(["capture", *words, "--out", str(out)]) == 130
    (line,) = re.findall(r"^Continue with: vinoreward (.*)$", capsys.readouterr().out, re.M)
    assert shlex.split(line) == ["capture", "--resume", "--out", str(out), "--env", env]
    monkeypatch.delitem(sys.modules, "package_with_goals")
    assert main(["capture", "--resume", "--out", str(out)]) == 1
    assert f"--env {env}" in capsys.readouterr().err
    assert main(shlex.split(line)) == 0
    assert len(rows_of(out)) == 20 and read_about(out)["seed"] == 3


def test_a_capture_cannot_be_resumed_as_another(tmp_path: Path) -> None:
    capture.run(CaptureConfig(out=tmp_path / "a", frames=3))
    with pytest.raises(ConfigError, match=r"seed 0, now asked for seed 5"):
        capture.run(CaptureConfig(out=tmp_path / "a", frames=6, seed=5, resume=True))


def test_any_environment_with_a_truth_is_captured_balanced(
    tmp_path: Path, line_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = CaptureConfig(
        out=tmp_path / "line", env=line_id, truth_key="at_goal", frames=20, failures_per_success=1
    )
    capture.run(config)
    assert abs(int(rows_of(config.out)[0]["obs_0"])) <= 5
    assert "warning" not in capsys.readouterr().out  # too few episodes to tell
    capture.run(CaptureConfig(out=tmp_path / "b", env=line_id, truth_key="at_goal", frames=120))
    warned = "warning: obs_0 alone tells the label of 100% of the images"
    assert warned in capsys.readouterr().out
    words = ["--data", str(tmp_path / "b"), "--out", str(tmp_path / "run")]
    assert main(["finetune", *words, "--target-fpr", "0.001"]) == 1  # too few for that rate
    assert warned in capsys.readouterr().out
    dataset = load_dataset(config.out)
    assert dataset.labels.sum() == 10 and len(dataset.labels) == 20
    assert (dataset.images[dataset.labels == 1] == 103).all()
    assert (dataset.images[dataset.labels == 0] != 103).all()
    assert len(np.unique(dataset.episodes)) >= 10


def test_an_environment_without_the_truth_is_an_error(tmp_path: Path, line_id: str) -> None:
    with pytest.raises(ConfigError, match=r"it has at_goal.*--truth-key"):
        capture.run(CaptureConfig(out=tmp_path / "x", env=line_id, frames=4))


class Never(Line):
    def step(self, action: int) -> Any:
        obs, reward, _, _, _ = super().step(action)
        return obs, reward, False, True, {"at_goal": False, "is_there": self.at == 1}


def registered(name: str, entry_point: Any, **arguments: Any) -> str:
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=entry_point, **arguments)
    return name


def test_random_play_that_never_succeeds_is_said_early_and_leaves_the_folder_usable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    never, out = registered("VinorewardTestNever-v0", Never), tmp_path / "never"
    with pytest.raises(DatasetError, match=r"200 episodes.*gave no success.*Nothing is kept"):
        capture.run(CaptureConfig(out=out, env=never, truth_key="at_goal", frames=5000))
    said = capsys.readouterr().out
    assert "20 episodes" in said and "at_goal, is_there" in said and "--truth-key" in said
    # The corrected command works in the same folder, be it another key or another environment.
    capture.run(CaptureConfig(out=out, env=never, truth_key="is_there", frames=8))
    assert len(rows_of(out)) == 8
    line = registered("VinorewardTestLine-v0", Line, max_episode_steps=30)
    with pytest.raises(ConfigError, match="--resume"):
        capture.run(CaptureConfig(out=out, env=line, truth_key="at_goal", frames=8))


def test_a_truth_of_ones_own_that_never_holds_is_named_as_it_was_given(
    tmp_path: Path, line_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def never(env):\n    return False\n")
    given = CaptureConfig(
        out=tmp_path / "x", env=line_id, truth=f"{file}:never", frames=8, patience=21
    )
    with pytest.raises(
        DatasetError, match=r"gave no success \(--truth .*mine\.py:never\)"
    ) as error:
        capture.run(given)
    said = capsys.readouterr().out
    assert f"with --truth {file}:never" in said
    for text in (said, str(error.value)):
        assert "another --truth or --env" in text and "--truth-key" not in text


def test_advice_is_given_once_where_successes_are_rare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Rare(Line):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.lucky = (seed or 1) % 40 == 0
            return super().reset(seed=seed)

        def step(self, action: int) -> Any:
            obs, reward, _, _, _ = super().step(action)
            return obs, reward, False, True, {"at_goal": self.lucky}

    rare, out = registered("VinorewardTestRare-v0", Rare), tmp_path / "rare"
    capture.run(CaptureConfig(out=out, env=rare, truth_key="at_goal", frames=16, patience=2000))
    wins = sorted(int(row["episode"]) for row in rows_of(out) if row["label"] == "success")
    # Several long waits, one advice.
    assert sum(after - before > 20 for before, after in itertools.pairwise(wins)) > 1
    assert capsys.readouterr().out.count("in a row gave no success") == 1


def test_a_capture_that_gives_up_with_both_labels_goes_on_with_more_patience(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Thrice(Line):
        """Its first seeds succeed."""

        seeds: ClassVar[dict[int | None, int]] = {}

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.lucky = self.seeds.setdefault(seed, len(self.seeds)) < 3
            return super().reset(seed=seed)

        def step(self, action: int) -> Any:
            return (*super().step(action)[:3], True, {"at_goal": self.lucky})

    env, out = registered("VinorewardTestThrice-v0", Thrice), tmp_path / "thrice"
    words = ["capture", "--env", env, "--truth-key", "at_goal", "--frames", "20"]
    words += ["--patience", "20", "--out", str(out)]
    for patience in (200, 2000):
        assert main(words) == 1
        error = capsys.readouterr().err
        said = re.search(r" failures are kept; continue with: (.*) \(or", error)
        assert said is not None, error
        assert said[1] == f"vinoreward capture --resume --out {out} --patience {patience}"
        words = shlex.split(said[1])[1:]


def test_a_key_that_is_always_true_leaves_nothing_either(tmp_path: Path) -> None:
    class Always(Line):
        def step(self, action: int) -> Any:
            return (*super().step(action)[:4], {"at_goal": True, "right": self.at > 0})

    env, out = registered("VinorewardTestAlways-v0", Always, max_episode_steps=9), tmp_path / "a"
    wrong = CaptureConfig(out=out, env=env, truth_key="at_goal", frames=400, patience=30)
    with pytest.raises(DatasetError, match=r"30 episodes.*gave no failure.*Nothing is kept"):
        capture.run(wrong)
    assert not list(out.rglob("*.png"))
    assert capture.run(CaptureConfig(out=out, env=env, truth_key="right", frames=8)) == 0


def test_a_truth_that_is_none_is_an_error_that_leaves_the_folder_usable(tmp_path: Path) -> None:
    class Wordy(Line):
        def step(self, action: int) -> Any:
            info = {"state": "moving", "at_goal": self.at == 1}
            return (*super().step(action)[:4], info)

    env, out = registered("VinorewardTestWordy-v0", Wordy, max_episode_steps=9), tmp_path / "a"
    for key in ("nothing", "state"):
        with pytest.raises(ConfigError, match="--truth-key"):
            capture.run(CaptureConfig(out=out, env=env, truth_key=key, frames=8))
    assert capture.run(CaptureConfig(out=out, env=env, truth_key="at_goal", frames=8)) == 0


class Goals(Line):
    """A walk towards a goal that is drawn for each episode; far goals are reached seldom."""

    rendered = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed, options=options)
        self.goal = int(self.np_random.integers(1, 10))
        self.steps = 0
        return result

    def step(self, action: int) -> Any:
        self.at = max(-15, min(15, self.at + (1 if action else -1)))
        self.steps += 1
        there = abs(self.at - self.goal) <= 1
        return np.full(1, self.at, np.float32), 0.0, False, self.steps == 40, {"there": there}

    def render(self) -> Any:
        Goals.rendered += 1
        image = np.zeros((16, 20, 3), dtype=np.uint8)
        image[..., 0], image[..., 1] = 100 + self.at, self.goal
        image[..., 2] = self.steps
        return image


def goals_and_labels(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = load_dataset(folder)
    return data.images[:, 0, 0, 1].astype(int), data.labels, data.episodes


def told_by(place: np.ndarray, labels: np.ndarray) -> float:
    """How often the better guess of the label from the goal's place alone is right."""
    return sum(
        max((labels[place == goal] == label).sum() for label in (0, 1)) for goal in np.unique(place)
    ) / len(labels)


def test_the_goals_place_does_not_tell_the_label(tmp_path: Path) -> None:
    env = registered("VinorewardTestGoals-v0", Goals)
    Goals.rendered = 0
    config = CaptureConfig(
        out=tmp_path / "goals", env=env, truth_key="there", frames=1200, failures_per_success=1
    )
    capture.run(config)
    goals, labels, episodes = goals_and_labels(config.out)
    assert labels.sum() == 600 and len(labels) == 1200
    # Played without a choice of steps, the place tells a good deal: failures are of far goals.
    naive = gymnasium.make(env)
    seen = []
    for seed in range(100):
        naive.reset(seed=seed)
        naive.action_space.seed(seed)
        for _ in range(40):
            info = naive.step(naive.action_space.sample())[-1]
            seen.append((naive.unwrapped.goal, info["there"]))  # type: ignore[attr-defined]
    played = np.array(seen)
    won, lost = played[played[:, 1] == 1, 0], played[played[:, 1] == 0, 0][:600]
    both = min(len(won), len(lost))
    place, label = np.r_[won[:both], lost[:both]], np.r_[np.ones(both), np.zeros(both)]
    assert told_by(place, label) > 0.65
    assert told_by(goals, labels) < 0.58
    # Failures come from as many episodes as successes, and few frames from each.
    won_in, lost_in = set(episodes[labels == 1]), set(episodes[labels == 0])
    assert len(won_in) >= 150 and len(lost_in) >= len(won_in)
    assert max(np.bincount(episodes[labels == 0])) <= 4
    assert max(np.bincount(episodes[labels == 1])) <= 4
    rows = rows_of(config.out)
    near = [row for row in rows if row["category"] == "near_miss"]
    assert len(near) > 150 and {int(row["episode"]) for row in near} <= won_in
    elsewhere = sum(row["category"] == "failed_episode" for row in rows)
    assert 0.1 < elsewhere / 600 < 0.3
    # Only what is kept is drawn, and the first moment, to see that there are images.
    assert Goals.rendered == 1201


class TwoCameras(Goals):
    """Its observation has an image with the channels first; the goal may be given."""

    observation_space: Any = gymnasium.spaces.Dict(
        front=gymnasium.spaces.Box(0, 255, (3, 16, 20), np.uint8),
        place=gymnasium.spaces.Box(-15, 15, (1,), np.float32),
    )

    def __init__(
        self,
        render_mode: str | None = None,
        least: int = 1,
        lamp: dict[str, Any] | None = None,
        size: tuple[int, ...] = (16, 20),
    ) -> None:
        super().__init__(render_mode)
        assert type(size) is tuple and not isinstance(lamp, str)
        self.least = least if lamp is None else lamp["least"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        place, info = super().reset(seed=seed, options=options)
        self.goal = max(self.goal, self.least)
        return self._seen(place), info

    def step(self, action: int) -> Any:
        place, *rest = super().step(action)
        return (self._seen(place), *rest)

    def _seen(self, place: Any) -> Any:
        front = np.full((3, 16, 20), 7, np.uint8)
        front[0], front[1] = 100 + self.at, self.goal
        return {"front": front, "place": place}


def test_images_may_come_from_the_observation_and_be_resized(tmp_path: Path) -> None:
    env, out = registered("VinorewardTestTwoCameras-v0", TwoCameras), tmp_path / "two"
    config = CaptureConfig(
        out=out,
        env=env,
        truth_key="there",
        frames=24,
        image_source=("obs:front",),
        image_size=(24, 32),
        env_kwargs={"least": 3, "max_episode_steps": 30},
    )
    capture.run(config)
    data = load_dataset(out)
    assert data.images.shape == (24, 24, 32, 3)
    red, goal = data.images[:, 0, 0, 0].astype(int), data.images[:, 0, 0, 1].astype(int)
    assert goal.min() >= 3 and (data.images[..., 2] == 7).all()
    np.testing.assert_array_equal(np.abs(red - 100 - goal) <= 1, data.labels == 1)
    assert max(int(row["file"][-9:-4]) for row in rows_of(out)) < 30
    # A bundle of them resizes likewise, and says where its images are from.
    assert data.image().resize == "pil_bilinear"
    assert read_about(out)["env_kwargs"] == {"least": 3, "max_episode_steps": 30}
    assert read_about(out)["image_source"] == "obs:front"
    # It goes on as it was recorded; otherwise it would mix two kinds of images.
    capture.run(capture.SETTINGS.of(out=out, frames=30, resume=True))
    assert load_dataset(out).images.shape == (30, 24, 32, 3)
    others: list[dict[str, Any]] = [
        {"image_size": (16, 20)}, {"image_source": ("render",)}, {"env_kwargs": {"least": 2}},
    ]  # fmt: skip
    for other in others:
        (name,) = other
        with pytest.raises(ConfigError, match=f"{name}.*now asked for {name}"):
            capture.run(capture.SETTINGS.of(out=out, frames=36, resume=True, **other))


class Large(Goals):
    """Its camera draws 480 x 720, its observation 240 x 360."""

    observation_space: Any = gymnasium.spaces.Dict(
        front=gymnasium.spaces.Box(0, 255, (240, 360, 3), np.uint8)
    )

    def render(self) -> Any:
        return np.repeat(np.repeat(self._front(), 2, axis=0), 2, axis=1)

    def _front(self) -> Any:
        return np.random.default_rng(99 + self.at).integers(0, 256, (240, 360, 3), dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        _, info = super().reset(seed=seed, options=options)
        return {"front": self._front()}, info

    def step(self, action: int) -> Any:
        _, *rest = super().step(action)
        return ({"front": self._front()}, *rest)


def test_large_images_are_captured_small_and_seen_alike_by_the_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env, out = registered("VinorewardTestLarge-v0", Large), tmp_path / "large"
    words = ["capture", "--env", env, "--truth-key", "there", "--out", str(out), "--frames"]
    assert main([*words, "8"]) == 0
    assert "images of 480x720 are resized to 107x160 (height x width)" in capsys.readouterr().out
    data = load_dataset(out, choose_size=True)
    assert data.images.shape == (8, 107, 160, 3) and read_about(out)["image_size"] == [107, 160]
    # What a wrapped environment shows the network is what was captured.
    large = Large("rgb_array")
    seen = set()
    for at in range(-20, 21):
        large.at = at
        seen.add(prepare(large.render(), data.image())[0].tobytes())
    assert {image.tobytes() for image in data.images} <= seen
    assert main([*words, "12", "--resume"]) == 0 and len(load_dataset(out).images) == 12


def test_the_cameras_own_size_can_be_asked_for_and_cut(tmp_path: Path) -> None:
    env, out = registered("VinorewardTestLarge-v0", Large), tmp_path / "own"
    config = CaptureConfig(out=out, env=env, truth_key="there", frames=4, image_size=(480, 720))
    capture.run(config)
    assert "image_size" not in read_about(out)
    data = load_dataset(out, choose_size=True)
    assert data.images.shape == (4, 480, 720, 3) and data.image().resize == "none"
    assert load_dataset(out, crop=(100, 80, 90, 60)).images.shape == (4, 90, 60, 3)


def test_views_are_made_smaller_by_one_scale(tmp_path: Path) -> None:
    class Uneven(Large):
        observation_space: Any = gymnasium.spaces.Dict(
            front=gymnasium.spaces.Box(0, 255, (240, 360, 3), np.uint8),
            low=gymnasium.spaces.Box(0, 255, (90, 360, 3), np.uint8),
        )

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            seen, info = super().reset(seed=seed, options=options)
            return {**seen, "low": seen["front"][:90]}, info

        def step(self, action: int) -> Any:
            seen, *rest = super().step(action)
            return ({**seen, "low": seen["front"][:90]}, *rest)

    out = tmp_path / "views"
    sources = ("obs:front", "obs:low")
    env = registered("VinorewardTestLargeViews-v0", Uneven)
    capture.run(CaptureConfig(out=out, env=env, truth_key="there", frames=4, image_source=sources))
    data = load_dataset(out, choose_size=True)
    assert [view.height for view in data.views] == [107, 40]
    assert data.images.shape == (4, 147, 160, 3) and data.image().resize == "pil_bilinear"


def test_the_hover_scene_keeps_its_own_size(tmp_path: Path) -> None:
    capture.run(CaptureConfig(out=tmp_path, frames=4, image_size=(200, 240)))
    data = load_dataset(tmp_path, choose_size=True)
    assert data.images.shape == (4, 200, 240, 3) and data.image().resize == "none"


@pytest.mark.parametrize("source", ["obs:back", "obs:place", "camera"])
def test_a_source_without_images_is_refused_before_anything_is_played(
    tmp_path: Path, source: str
) -> None:
    env = registered("VinorewardTestTwoCameras-v0", TwoCameras)
    with pytest.raises(ConfigError) as refused:
        capture.run(CaptureConfig(out=tmp_path / "x", env=env, image_source=(source,)))
    assert refused.value.field == "image_source"
    assert not (tmp_path / "x").exists()


def test_arguments_may_be_lists_and_tables_and_are_given_again(tmp_path: Path) -> None:
    env, out = registered("VinorewardTestTwoCameras-v0", TwoCameras), tmp_path / "a"
    words = ["--env", env, "--truth-key", "there", "--frames", "12", "--out", str(out)]
    arguments = ["--env-kwargs", "lamp", "{'least': 5, 'on': True}", "size", "(16, 20)"]
    assert main(["capture", *words, *arguments]) == 0
    assert main(["capture", "--resume", "--frames", "16", "--out", str(out)]) == 0
    assert load_dataset(out).images[:, 0, 0, 1].min() >= 5
    recorded = {"lamp": {"least": 5, "on": True}, "size": [16, 20]}
    assert read_about(out)["env_kwargs"] == recorded
    assert origin(read_about(out))["env_kwargs"] == recorded


def test_an_argument_that_the_environment_does_not_take_is_named(tmp_path: Path) -> None:
    env = registered("VinorewardTestTwoCameras-v0", TwoCameras)
    with pytest.raises(ConfigError, match=r"'colour': 'red'.*--env-kwargs"):
        capture.run(CaptureConfig(out=tmp_path / "x", env=env, env_kwargs={"colour": "red"}))


def test_the_usual_names_of_the_truth_are_found(tmp_path: Path) -> None:
    class Usual(Goals):
        def step(self, action: int) -> Any:
            *rest, info = super().step(action)
            return (*rest, {"distance": 1.0, "is_success": np.float32(info["there"])})

    env = registered("VinorewardTestUsual-v0", Usual)
    capture.run(CaptureConfig(out=tmp_path / "u", env=env, frames=40, failures_per_success=1))
    about = json.loads((tmp_path / "u" / "dataset.json").read_text())
    assert about["truth_key"] == "is_success" and about["counts"]["success"] == 20


def test_near_misses_lie_close_before_a_success() -> None:
    truths = [False] * 50 + [True] * 3 + [False] * 30
    balance = Balance(frames=200, quota=4, kept_successes=8)
    for seed in range(50):
        chosen = choose(truths, balance, np.random.default_rng(seed))
        for step, category in chosen.items():
            assert (category == "success") == truths[step]
            assert (category == "near_miss") == (45 <= step < 50)
        assert list(chosen.values()).count("success") == 3
        assert list(chosen.values()).count("near_miss") >= 2
        assert len(chosen) <= 7


def test_episodes_of_one_step_give_both_labels_from_as_many_episodes(tmp_path: Path) -> None:
    class Once(Line):
        def step(self, action: int) -> Any:
            obs, reward, _, _, _ = super().step(action)
            return obs, reward, True, False, {"at_goal": self.at == 1}

    env = registered("VinorewardTestOnce-v0", Once)
    config = CaptureConfig(out=tmp_path / "o", env=env, truth_key="at_goal", frames=60)
    capture.run(config)
    data = load_dataset(config.out)
    assert data.labels.sum() == 30 and len(np.unique(data.episodes)) == 60


@pytest.mark.parametrize("stops", [[10], [40, 41, 20]])
def test_played_episodes_resumed_are_as_if_never_stopped(tmp_path: Path, stops: list[int]) -> None:
    env = registered("VinorewardTestGoals-v0", Goals)
    config = CaptureConfig(
        out=tmp_path / "whole", env=env, truth_key="there", frames=120, save_every=7
    )
    capture.run(config)
    stopped = dataclasses.replace(config, out=tmp_path / "stopped")
    for stop in stops:

        class Interrupted(Goals):
            left = stop

            def render(self) -> Any:
                Interrupted.left -= 1
                if Interrupted.left == 0:
                    raise KeyboardInterrupt
                return super().render()

        # The same id, as the capture is the same.
        gymnasium.registry[env].entry_point = Interrupted
        try:
            with pytest.raises(KeyboardInterrupt):
                capture.run(dataclasses.replace(stopped, resume=(stopped.out).exists()))
        finally:
            gymnasium.registry[env].entry_point = Goals
    # A kill may also lose images that the table lists.
    (stopped.out / rows_of(stopped.out)[-3]["file"]).unlink()
    capture.run(dataclasses.replace(stopped, resume=True))
    assert load_dataset(stopped.out).sha256 == load_dataset(config.out).sha256
    # The key is recorded, and only another one is refused.
    capture.run(dataclasses.replace(stopped, resume=True, truth_key=None))
    assert json.loads((stopped.out / "dataset.json").read_text())["truth_key"] == "there"
    with pytest.raises(ConfigError, match=r"truth_key 'there', now asked for truth_key 'other'"):
        capture.run(dataclasses.replace(stopped, resume=True, truth_key="other"))


def test_an_environment_that_does_not_repeat_itself_is_captured_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = registered("VinorewardTestUnseeded-v0", Unseeded)
    config = CaptureConfig(
        out=tmp_path / "u", env=env, truth_key="there", frames=60, failures_per_success=1
    )
    capture.run(config)
    assert "does not repeat an episode" in capsys.readouterr().out
    data = load_dataset(config.out)
    assert data.labels.sum() == 30 and len(data.labels) == 60
    red, goal = data.images[:, 0, 0, 0].astype(int), data.images[:, 0, 0, 1].astype(int)
    np.testing.assert_array_equal(np.abs(red - 100 - goal) <= 1, data.labels == 1)


class Unseeded(Goals):
    """Plays otherwise each time; ``stepped`` counts the steps."""

    stepped = 0

    def step(self, action: int) -> Any:
        Unseeded.stepped += 1
        return super().step(int(np.random.default_rng().integers(2)))


def test_an_environment_that_does_not_repeat_itself_draws_a_sample_of_its_steps(
    tmp_path: Path,
) -> None:
    env = registered("VinorewardTestUnseeded-v0", Unseeded)
    Unseeded.stepped = Goals.rendered = 0
    config = CaptureConfig(out=tmp_path / "u", env=env, truth_key="there", frames=400)
    capture.run(config)
    rows = rows_of(config.out)
    assert Goals.rendered < Unseeded.stepped / 2
    # The sample has near misses, and steps of the whole episode.
    assert sum(row["category"] == "near_miss" for row in rows) > 40
    played = np.array([int(row["step"]) for row in rows if row["category"] == "failed_episode"])
    assert played.min() < 8 and played.max() > 32 and 14 < played.mean() < 26


def test_where_successes_are_rare_their_episodes_give_more_failures(tmp_path: Path) -> None:
    class Ends(Goals):
        """Its goals are far, and an episode ends there."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            result = super().reset(seed=seed, options=options)
            self.goal = 3 + self.goal // 2
            return result

        def step(self, action: int) -> Any:
            obs, reward, _, truncated, info = super().step(action)
            return obs, reward, info["there"], truncated, info

    env = registered("VinorewardTestEnds-v0", Ends)
    played = []
    for most in (1, 3):
        out = tmp_path / str(most)
        words = ["--env", env, "--truth-key", "there", "--frames", "120", "--out", str(out)]
        assert main(["capture", *words, "--failures-per-success", str(most)]) == 0
        labels = load_dataset(out).labels
        assert len(labels) == 120
        assert len(labels) - labels.sum() <= most * labels.sum()
        failed = sum(row["category"] == "failed_episode" for row in rows_of(out))
        assert 0.1 < failed / (len(labels) - labels.sum()) < 0.35
        played.append(max(int(row["episode"]) for row in rows_of(out)))
    assert 1.8 * labels.sum() < len(labels) - labels.sum()
    assert played[1] < 0.7 * played[0]
    about = read_about(out)
    # Its failing episodes last 40 steps, the others end at their success.
    assert about["episode_steps"] == 40 and about["success_lasts"] is False
    with pytest.raises(ConfigError, match=r"failures_per_success 3, now asked for .* 2"):
        capture.run(capture.SETTINGS.of(out=out, frames=150, failures_per_success=2, resume=True))


def test_a_long_episode_shows_that_it_goes_on_and_what_would_end_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(Goals):
        render = Line.render

        def step(self, action: int) -> Any:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, False, self.steps == 1100, info

    monkeypatch.setenv("TQDM_MININTERVAL", "0")
    env = registered("VinorewardTestEndless-v0", Endless)
    capture.run(CaptureConfig(out=tmp_path / "e", env=env, truth_key="there", frames=12))
    said = capsys.readouterr()
    assert said.out.count("has lasted 1000 steps. Nothing limits them") == 1
    assert "--env-kwargs max_episode_steps" in said.out
    assert "0% of 0 episodes succeed, the next is at step 1100" in said.err
    limited = {"max_episode_steps": 1200}
    capture.run(
        CaptureConfig(out=tmp_path / "l", env=env, truth_key="there", frames=12, env_kwargs=limited)
    )
    assert "has lasted" not in capsys.readouterr().out


def test_the_error_rate_that_the_episodes_support_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = registered("VinorewardTestGoals-v0", Goals)
    capture.run(
        CaptureConfig(
            out=tmp_path / "g", env=env, truth_key="there", frames=800, failures_per_success=1
        )
    )
    said = capsys.readouterr().out
    data = load_dataset(tmp_path / "g")
    count = len(set(data.episodes[data.labels == 0]))
    deciding = round(0.15 * count)
    rate = clopper_pearson(0, deciding, 0.95, "upper")[1]
    assert f"400 failures from {count} " in said
    assert f"about {deciding} of the episodes" in said
    assert f"a false-positive rate of {rate:.1%} per episode" in said
    assert "For 1 % it takes 299" in said
    # Of 40 steps an episode shows a few.
    share = 1 - (1 - rate) ** (40 * count / 400)
    assert f"episodes of 40 steps get a false claim in up to {share:.0%}" in said
    about = read_about(tmp_path / "g")
    assert about["episode_steps"] == data.episode_steps == 40 and about["success_lasts"] is True


# --- environments derived from the hover environment --------------------------------------------


class Dim(PandaHoverEnv):
    """Another camera, and a light that differs between episodes: its own images."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**({"image_size": (48, 64), "object_position": "random"} | kwargs))
        self.light = 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed, options=options)
        self.light = float(self.np_random.uniform(0.3, 0.8))
        return result

    def render(self) -> np.ndarray | None:
        image = super().render()
        return None if image is None else (image * self.light).astype(np.uint8)


def test_a_derived_hover_environment_accepts_its_own_captures(tmp_path: Path) -> None:
    env_id = registered("MyPandaHoverDim-v0", Dim, max_episode_steps=10)
    config = CaptureConfig(out=tmp_path / "dim", env=env_id, frames=30)
    capture.run(config)
    data = load_dataset(config.out)
    assert data.images.shape == (30, 48, 64, 3)
    assert {row["category"] for row in rows_of(config.out)} == set(CATEGORIES)
    plain = tmp_path / "plain"
    capture.run(CaptureConfig(out=plain, frames=30, image_size=(48, 64)))
    # Its own images, of the same placements: darker, each by its own light.
    ratio = data.images.mean((1, 2, 3)) / load_dataset(plain).images.mean((1, 2, 3))
    assert 0.25 < ratio.min() < 0.45 and 0.65 < ratio.max() < 0.85
    # A bundle of them, as finetune describes it, is taken by wrappers.
    model = tiny.network(tmp_path / "model.onnx", size=(48, 64))
    golden = data.images[:4]
    spec = dataclasses.replace(
        tiny.SPEC,
        image=ImageSpec(48, 64, mean=tiny.MEAN, std=tiny.STD, scene=data.scene),
    )
    logits = tiny.expected_logits(golden)
    bundle = save_bundle(tmp_path / "bundle", spec, {"model.onnx": model}, golden, logits)
    inner = gymnasium.make(env_id, render_mode="rgb_array")
    wrapped = LearnedReward(inner, bundle)
    wrapped.reset(seed=0)
    assert "reward_prob" in wrapped.step(np.zeros(2, np.float32))[-1]
    wrapped.close()


class Own(PandaHoverEnv):
    """Takes none of PandaHover's arguments, and plays with a truth of its own."""

    def __init__(self, render_mode: Any = None) -> None:
        super().__init__(image_size=(48, 64), render_mode=render_mode)

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return (*rest, info | {"left": self.scene.gripper[1] < 0})


def test_a_derived_hover_environment_may_fix_its_arguments(tmp_path: Path) -> None:
    env_id = registered("MyOwnHover-v0", Own, max_episode_steps=10)
    capture.run(CaptureConfig(out=tmp_path / "placed", env=env_id, frames=9))
    assert load_dataset(tmp_path / "placed").images.shape == (9, 48, 64, 3)
    played = CaptureConfig(out=tmp_path / "played", env=env_id, frames=20, truth_key="left")
    capture.run(played)
    assert load_dataset(played.out).labels.sum() == 10
    dim = registered("MyPandaHoverDim-v0", Dim, max_episode_steps=10)
    assert not has_own_reward(dim) and not has_own_reward(env_id)
    assert has_own_reward("PandaHover-v0")


def test_a_camera_can_be_asked_of_a_derived_environment(tmp_path: Path) -> None:
    env_id = registered("MyPandaHoverDim-v0", Dim, max_episode_steps=10)
    capture.run(CaptureConfig(out=tmp_path / "d", env=env_id, frames=3, image_size=(32, 40)))
    assert load_dataset(tmp_path / "d").scene["height"] == 32
    with pytest.raises(ConfigError, match=r"scene height 32.*now asked for scene height 48"):
        capture.run(
            capture.SETTINGS.of(out=tmp_path / "d", image_size=(48, 40), frames=6, resume=True)
        )


def test_an_environments_own_description_of_its_images_is_recorded(tmp_path: Path) -> None:
    class Described(Goals):
        image_scene = {"camera": "above", "height": 16}  # noqa: RUF012

    env = registered("VinorewardTestDescribed-v0", Described)
    capture.run(CaptureConfig(out=tmp_path / "d", env=env, truth_key="there", frames=20))
    assert load_dataset(tmp_path / "d").scene == {"camera": "above", "height": 16}


def test_a_pose_of_the_scene_is_drawn_once_and_never_an_old_one() -> None:
    env = PandaHoverEnv(observation="pixels", render_mode="rgb_array")
    first = env.reset(seed=0)[0]
    env.scene.place_object(None)
    assert not np.array_equal(env.render(), first)
    env.close()


def test_an_unknown_environment_and_an_unwritable_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NoSuchEnv"):
        capture.run(CaptureConfig(out=tmp_path / "y", env="NoSuchEnv-v0"))
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="--out"):
        capture.run(CaptureConfig(out=tmp_path / "file" / "below"))


def test_the_articles_images_are_drawn_large_and_resized_as_its_environment_does(
    tmp_path: Path,
) -> None:
    from vinoreward_envs.camera.spec import resized
    from vinoreward_envs.scene import HoverScene
    from vinoreward_training.capture.command import article_camera
    from vinoreward_training.capture.hover import hover_frame

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
    # Images of two kinds in one folder would be a data set of neither.
    small = capture.SETTINGS.of(out=out, frames=6, resume=True, fidelity=None)
    with pytest.raises(ConfigError, match="drawn"):
        capture.run(small)
    capture.run(capture.SETTINGS.of(out=out, frames=6, resume=True))  # as it was recorded
    assert len(rows_of(out)) == 6


def test_the_articles_images_are_of_the_hover_task_only(tmp_path: Path, line_id: str) -> None:
    with pytest.raises(ConfigError, match="PandaHover"):
        capture.run(CaptureConfig(out=tmp_path, env=line_id, fidelity="article"))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"noise": 0.5}, "--noise, which a capture without --policy would ignore"),
        ({"labels": Path("times.csv")}, "--labels, which a capture without --from-video would"),
        ({"label_column": "done"}, "--label-column, which a capture without --from-lerobot"),
        ({"from_video": Path("v"), "truth": "a.py:f"}, "--truth, which a capture with --from-v"),
        ({"from_video": Path("v"), "mix": {"random": 1.0}}, "--mix, which a capture with"),
        ({"from_lerobot": Path("d"), "env_kwargs": {"a": 1}}, "--env-kwargs, which a capture"),
        ({"fidelity": "article", "image_source": ("obs",)}, "--image-source, which a capture with"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    tmp_path: Path, line_id: str, options: dict[str, Any], found: str
) -> None:
    played = {} if {"from_video", "from_lerobot", "fidelity"} & set(options) else {"env": line_id}
    with pytest.raises(ConfigError, match=re.escape(found.replace("line", line_id))):
        capture.run(CaptureConfig(out=tmp_path / "out", **played, **options))
    assert not (tmp_path / "out").exists()


class Guess(gymnasium.Env[Any, Any]):
    """The goal is drawn by a reset; an action is a place."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.goal, self.steps = self.np_random.uniform(-1.0, 1.0), 0
        return np.float32([self.goal]), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        near = abs(float(action[0]) - self.goal) < 0.1
        return np.float32([self.goal]), 0.0, False, self.steps >= 5, {"success": near}

    def render(self) -> Any:
        return np.zeros((16, 16, 3), np.uint8)


def test_random_play_does_not_know_what_a_reset_draws(tmp_path: Path) -> None:
    gymnasium.register("Guess-v0", entry_point=Guess)
    try:
        capture.run(CaptureConfig(out=tmp_path / "a", env="Guess-v0", frames=20))
    finally:
        del gymnasium.registry["Guess-v0"]
    wins = [row for row in rows_of(tmp_path / "a") if row["label"] == "success"]
    first = sum(row["file"].endswith("-00000.png") for row in wins)
    assert first < len({row["episode"] for row in wins})  # not the first guess of each episode
