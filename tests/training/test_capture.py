"""Captures: balanced, labelled by the simulator, resumable, readable by anybody."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tiny_network as tiny
from PIL import Image

from vinoreward import LearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import save_bundle
from vinoreward.errors import ConfigError, DatasetError
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
    draw,
)
from vinoreward_training.cli import main
from vinoreward_training.data.dataset import Dataset, load_dataset
from vinoreward_training.data.dataset_files import read_about
from vinoreward_training.judges import judge_hash
from vinoreward_training.tasks.recorded import recorded_task


def captured(out: Path, **options: Any) -> Dataset:
    capture.run(capture.SETTINGS.of(out=out, **options))
    return load_dataset(out)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metadata.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


class Line(gymnasium.Env[np.ndarray, int]):
    """A walk on a line that ends at 3; success is being there."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space: Any = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
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


class TwoCameras(Goals):
    """Its observation has an image with the channels first; the goal may be given."""

    observation_space: Any = gymnasium.spaces.Dict(
        front=gymnasium.spaces.Box(0, 255, (3, 16, 20), np.uint8),
        place=gymnasium.spaces.Box(-15, 15, (1,), np.float32),
    )

    def __init__(
        self,
        render_mode: str | None = None,
        goals: dict[str, int] | None = None,
        size: tuple[int, ...] = (16, 20),
    ) -> None:
        super().__init__(render_mode)
        assert type(size) is tuple
        self.least = (goals or {"least": 1})["least"]

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


class Large(Goals):
    """Its camera draws 480 x 720, its observation 240 x 360 and a lower view of it."""

    observation_space: Any = gymnasium.spaces.Dict(
        front=gymnasium.spaces.Box(0, 255, (240, 360, 3), np.uint8),
        low=gymnasium.spaces.Box(0, 255, (90, 360, 3), np.uint8),
    )

    def render(self) -> Any:
        return np.repeat(np.repeat(self._seen()["front"], 2, axis=0), 2, axis=1)

    def _seen(self) -> Any:
        drawn = np.random.default_rng(99 + self.at)
        front = drawn.integers(0, 256, (240, 360, 3), dtype=np.uint8)
        return {"front": front, "low": front[:90]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._seen(), super().reset(seed=seed, options=options)[1]

    def step(self, action: int) -> Any:
        _, *rest = super().step(action)
        return (self._seen(), *rest)


class Unseeded(Goals):
    """Plays otherwise each time; ``stepped`` counts the steps."""

    stepped = 0

    def step(self, action: int) -> Any:
        Unseeded.stepped += 1
        return super().step(int(np.random.default_rng(Unseeded.stepped).integers(2)))


class Guess(Line):
    """The goal is drawn by a reset; an action is a place."""

    observation_space: Any = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.action_space = self.observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.goal, self.steps = self.np_random.uniform(-1.0, 1.0), 0
        return np.float32([self.goal]), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        near = abs(float(action[0]) - self.goal) < 0.1
        return np.float32([self.goal]), 0.0, False, self.steps >= 5, {"success": near}


def registered(kind: Any, **arguments: Any) -> str:
    """Return the id of an environment's class, of the name that it has."""
    gymnasium.registry.pop(name := f"VinorewardTest{kind.__name__}-v0", None)
    gymnasium.register(name, entry_point=kind, **arguments)
    return name


LINE = registered(Line, max_episode_steps=30)
GOALS, TWO, LARGE, UNSEEDED = map(registered, (Goals, TwoCameras, Large, Unseeded))


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
        assert within(placed.gripper, 0.0)
    assert 0.15 < above / 300 < 0.4 and beyond / 300 > 0.4


def test_placements_are_what_their_category_says() -> None:
    for index in range(200):
        random = np.random.default_rng([1, index])
        success, near = draw("success", random), draw("near_miss", random)
        assert success.gripper is not None and success.object_last is not None
        assert math.dist(success.gripper, success.object_last) <= SUCCESS_DISTANCE
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
    dataset = captured(tmp_path, frames=63, seed=3)
    rows = rows_of(tmp_path)
    for row in rows:
        inside = float(row["distance"]) <= SUCCESS_DISTANCE
        assert (row["label"] == "success") == (inside and row["category"] != "height")
        assert (row["object_x"] == "") == math.isinf(float(row["distance"]))
    counts = Counter(row["category"] for row in rows)
    assert counts.keys() == set(CATEGORIES) and counts["success"] == counts["near_miss"] == 21
    about = json.loads((tmp_path / "dataset.json").read_text())
    assert about["complete"] and about["frames"] == 63
    assert dataset.images.shape == (63, 96, 128, 3) and dataset.scene == about["scene"]


def test_a_capture_that_was_stopped_goes_on_to_the_same_images(tmp_path: Path) -> None:
    whole = captured(tmp_path / "whole", frames=12)
    stopped = tmp_path / "stopped"
    captured(stopped, frames=7)
    # What a kill leaves: images the table does not list yet, and a listed one deleted.
    (stopped / rows_of(stopped)[2]["file"]).unlink()
    Image.new("RGB", (128, 96)).save(stopped / "failure" / "000011.png")
    with pytest.raises(ConfigError, match="--resume"):
        captured(stopped, frames=12)
    assert captured(stopped, frames=12, resume=True).sha256 == whole.sha256


def test_any_environment_with_a_truth_is_captured_balanced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"env": LINE, "truth": "at_goal"}
    dataset = captured(tmp_path / "a", **given, frames=20)
    captured(tmp_path / "b", **given, frames=120)
    warned = "warning: obs_0 alone tells the label of 100% of the images"
    assert warned in capsys.readouterr().out
    words = ["--data", str(tmp_path / "b"), "--out", str(tmp_path / "run")]
    assert main(["finetune", *words, "--target-fpr", "0.001"]) == 1  # too few for that rate
    assert warned in capsys.readouterr().out
    assert 8 <= dataset.labels.sum() <= 10 and len(dataset.labels) == 20
    np.testing.assert_array_equal((dataset.images == 103).all(axis=(1, 2, 3)), dataset.labels == 1)


@pytest.mark.parametrize("missing", ["success", "failure"])
def test_play_without_one_of_the_labels_is_said_early_and_leaves_the_folder_usable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    class One(Line):
        def step(self, action: int) -> Any:
            info = {"at_goal": missing == "failure", "is_there": self.at == 1}
            return (*super().step(action)[:4], info)

    env, out = registered(One, max_episode_steps=9), tmp_path / "a"
    with pytest.raises(DatasetError, match=rf"200 episodes.*gave no {missing}.*Nothing is kept"):
        captured(out, env=env, truth="at_goal", frames=5000)
    said = capsys.readouterr().out
    assert "20 episodes" in said and "at_goal, is_there" in said and "--truth" in said
    assert not list(out.rglob("*.png"))
    # The corrected command works in the same folder.
    assert len(captured(out, env=env, truth="is_there", frames=8).labels) == 8
    with pytest.raises(ConfigError, match=r"it has at_goal.*truth"):
        captured(tmp_path / "x", env=LINE, frames=4)


def told_by(place: np.ndarray, labels: np.ndarray) -> float:
    """How often the better guess of the label from the goal's place alone is right."""
    return sum(
        max((labels[place == goal] == label).sum() for label in (0, 1)) for goal in np.unique(place)
    ) / len(labels)


def test_the_goals_place_does_not_tell_the_label(tmp_path: Path) -> None:
    Goals.rendered = 0
    data = captured(tmp_path, env=GOALS, truth="there", frames=1200)
    # Only what is kept is drawn, and the first step, to see that there are images.
    assert Goals.rendered == 1201
    goals, labels, episodes = data.images[:, 0, 0, 1].astype(int), data.labels, data.episodes
    assert labels.sum() == 600 and len(labels) == 1200
    # Played without a choice of steps, the place tells a good deal: failures are of far goals.
    naive = gymnasium.make(GOALS)
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
    # Failures come from as many episodes as successes, and few images from each.
    won_in, lost_in = set(episodes[labels == 1]), set(episodes[labels == 0])
    assert len(won_in) >= 150 and len(lost_in) >= len(won_in)
    assert max(np.bincount(episodes[labels == 0])) <= 4
    near = [row for row in rows_of(tmp_path) if row["category"] == "near_miss"]
    assert len(near) > 150 and {int(row["episode"]) for row in near} <= won_in


def test_images_may_come_from_the_observation_and_be_resized(tmp_path: Path) -> None:
    given: dict[str, Any] = {"env": TWO, "truth": "there", "image_source": ("obs:front",)}
    kwargs = {"goals": {"least": 3}, "size": [16, 20], "max_episode_steps": 30}
    given |= {"image_size": (24, 32), "env_kwargs": kwargs}
    data = captured(tmp_path, **given, frames=24)
    assert data.images.shape == (24, 24, 32, 3)
    red, goal = data.images[:, 0, 0, 0].astype(int), data.images[:, 0, 0, 1].astype(int)
    assert goal.min() >= 3 and (data.images[..., 2] == 7).all()
    np.testing.assert_array_equal(np.abs(red - 100 - goal) <= 1, data.labels == 1)
    # A bundle of them resizes likewise, and says where its images are from.
    assert data.image().resize == "pil_bilinear"
    about = read_about(tmp_path)
    assert about["env_kwargs"] == recorded_task(about)["env_kwargs"] == kwargs
    assert about["image_source"] == "obs:front"
    # It goes on as it was recorded; otherwise it would mix two kinds of images.
    assert captured(tmp_path, frames=30, resume=True).images.shape == (30, 24, 32, 3)
    for other in ({"image_size": (16, 20)}, {"image_source": ("render",)}, {"per_episode": 2}):
        with pytest.raises(ConfigError) as error:
            captured(tmp_path, frames=36, resume=True, **other)
        assert [error.value.field] == list(other)


def test_large_images_are_captured_small_and_seen_alike_by_the_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "large"
    words = ["capture", "--env", LARGE, "--truth", "there", "--out", str(out), "--frames"]
    assert main([*words, "8"]) == 0
    assert "images of 480x720 are resized to 107x160 (height x width)" in capsys.readouterr().out
    data = load_dataset(out, choose_size=True)
    assert data.images.shape == (8, 107, 160, 3) and read_about(out)["image_size"] == [107, 160]
    # What a wrapped environment shows the network is what was captured.
    large, seen = Large("rgb_array"), set()
    for at in range(-20, 21):
        large.at = at
        seen.add(prepare(large.render(), data.image())[0].tobytes())
    assert {image.tobytes() for image in data.images} <= seen
    assert main([*words, "12", "--resume"]) == 0 and len(load_dataset(out).images) == 12
    # One scale for all views; and the hover scene draws the size that is asked for.
    given: dict[str, Any] = {"env": LARGE, "truth": "there", "frames": 4}
    captured(tmp_path / "views", **given, image_source=("obs:front", "obs:low"))
    data = load_dataset(tmp_path / "views", choose_size=True)
    assert [view.height for view in data.views] == [107, 40]
    assert data.images.shape == (4, 147, 160, 3) and data.image().resize == "pil_bilinear"
    hover = captured(tmp_path / "hover", frames=4, image_size=(200, 240))
    assert hover.images.shape == (4, 200, 240, 3) and hover.image().resize == "none"


def test_played_episodes_resumed_are_as_if_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"env": GOALS, "truth": "there", "frames": 120}
    monkeypatch.setattr(capture, "SAVE_EVERY", 7)
    whole, out = captured(tmp_path / "whole", **given), tmp_path / "a"
    left, draw = [0], Goals.render

    def render(self: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return draw(self)

    monkeypatch.setattr(Goals, "render", render)
    for left[0] in (40, 41, 20):
        with pytest.raises(KeyboardInterrupt):
            captured(out, **given, resume=out.exists())
    # A kill may also lose images that the table lists.
    (out / rows_of(out)[-3]["file"]).unlink()
    assert captured(out, resume=True).sha256 == whole.sha256


def test_an_environment_that_does_not_repeat_itself_is_captured_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Unseeded.stepped = Goals.rendered = 0
    data = captured(tmp_path, env=UNSEEDED, truth="there", frames=400)
    assert "does not repeat an episode" in capsys.readouterr().out
    red, goal = data.images[:, 0, 0, 0].astype(int), data.images[:, 0, 0, 1].astype(int)
    np.testing.assert_array_equal(np.abs(red - 100 - goal) <= 1, data.labels == 1)
    assert sum(row["category"] == "near_miss" for row in rows_of(tmp_path)) > 40


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

    labels = captured(tmp_path, env=registered(Ends), truth="there", frames=120).labels
    assert len(labels) == 120
    assert 1.8 * labels.sum() < len(labels) - labels.sum() <= 4 * labels.sum()
    about = read_about(tmp_path)
    # Its failing episodes last 40 steps, the others end at their success.
    assert about["episode_steps"] == 40 and about["success_lasts"] is False


def test_the_error_rate_that_the_episodes_support_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = captured(tmp_path, env=GOALS, truth="there", frames=800)
    said = capsys.readouterr().out
    count = len(set(data.episodes[data.labels == 0]))
    deciding = round(0.15 * count)
    rate = clopper_pearson(0, deciding, 0.95, "upper")[1]
    assert f"400 failures from {count} " in said
    assert f"about {deciding} of the episodes" in said
    assert f"a false-positive rate of {rate:.1%} per episode" in said
    assert "For 1 % it takes 299" in said
    about = read_about(tmp_path)
    assert about["episode_steps"] == data.episode_steps == 40 and about["success_lasts"] is True


def test_random_play_does_not_know_what_a_reset_draws(tmp_path: Path) -> None:
    captured(tmp_path, env=registered(Guess), frames=20)
    wins = [row for row in rows_of(tmp_path) if row["label"] == "success"]
    first = sum(row["file"].endswith("-00000.png") for row in wins)
    assert first < len({row["episode"] for row in wins})  # not the first guess of each episode


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


DIM = registered(Dim, max_episode_steps=10)


def test_a_derived_hover_environment_accepts_its_own_captures(tmp_path: Path) -> None:
    data = captured(tmp_path / "dim", env=DIM, frames=30)
    assert data.images.shape == (30, 48, 64, 3)
    assert {row["category"] for row in rows_of(tmp_path / "dim")} == set(CATEGORIES)
    plain = captured(tmp_path / "plain", frames=30, image_size=(48, 64))
    # Its own images, of the same placements: darker, each by its own light.
    ratio = data.images.mean((1, 2, 3)) / plain.images.mean((1, 2, 3))
    assert 0.25 < ratio.min() < 0.45 and 0.65 < ratio.max() < 0.85
    # A bundle of them, as finetune describes it, is taken by wrappers.
    model, golden = tiny.network(tmp_path / "model.onnx", size=(48, 64)), data.images[:4]
    image = ImageSpec(48, 64, mean=tiny.MEAN, std=tiny.STD, scene=data.scene)
    spec, logits = dataclasses.replace(tiny.SPEC, image=image), tiny.expected_logits(golden)
    bundle = save_bundle(tmp_path / "bundle", spec, {"model.onnx": model}, golden, logits)
    with LearnedReward(gymnasium.make(DIM, render_mode="rgb_array"), bundle) as wrapped:
        wrapped.reset(seed=0)
        assert "reward_prob" in wrapped.step(np.zeros(2, np.float32))[-1]
    # A camera can be asked of it.
    other = captured(tmp_path / "other", env=DIM, frames=3, image_size=(32, 40))
    assert other.scene["height"] == 32


# --- labels of a judge ---------------------------------------------------------------------------

JUDGE = """
import pathlib
import numpy as np


def near(images):
    with pathlib.Path(__file__).with_name("calls.txt").open("a") as stream:
        stream.write(f"{len(images)}\\n")
    place, goal, steps = (images[:, 0, 0, number].astype(float) for number in range(3))
    return np.where(steps % 5 == 0, np.nan, np.clip(0.9 - abs(place - 100 - goal) / 4, 0, 1))


def nothing(images):
    return np.full(len(images), np.nan)
"""


class Silent(Goals):
    """Nothing in it tells the truth."""

    def step(self, action: int) -> Any:
        return (*super().step(action)[:4], {})


SILENT = registered(Silent)


@pytest.fixture
def judge(tmp_path: Path) -> str:
    (tmp_path / "judge.py").write_text(JUDGE)
    return f"{tmp_path / 'judge.py'}:near"


def calls(folder: Path) -> int:
    """How many images the judge was asked about."""
    return sum(map(int, (folder / "calls.txt").read_text().split()))


@pytest.mark.parametrize("env", [SILENT, GOALS])
def test_a_judge_labels_what_is_played_and_what_it_abstains_from_is_not_taken(
    tmp_path: Path, judge: str, capsys: pytest.CaptureFixture[str], env: str
) -> None:
    Goals.rendered = 0
    data = captured(tmp_path / "data", env=env, labels_from=judge, frames=200)
    place, goal, steps = (data.images[:, 0, 0, number].astype(int) for number in range(3))
    np.testing.assert_array_equal(abs(place - 100 - goal) <= 1, data.labels == 1)
    assert (steps % 5 != 0).all() and data.labels.sum() == 100
    near = [row for row in rows_of(tmp_path / "data") if row["category"] == "near_miss"]
    assert len(near) > 20 and max(np.bincount(data.episodes)) <= 8
    # The next success is none that it abstains from.
    assert all((int(row["step"]) + 1 + int(row["to_success"])) % 5 for row in near)
    about, said = read_about(tmp_path / "data"), capsys.readouterr().out
    assert "truth" not in about and about["labels_from"] == {
        "judge": judge, "judge_sha256": judge_hash(judge), "threshold": 0.5,
    }  # fmt: skip
    (labelled, abstained) = map(int, *re.findall(r"labels (\d+) images, abstains from (\d+)", said))
    assert abstained * 4 == labelled and labelled + abstained == Goals.rendered - 1


def test_a_spent_budget_keeps_episodes_and_resume_ends_with_the_same_images(
    tmp_path: Path, judge: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "stopped"
    expected = captured(whole, env=SILENT, labels_from=judge, frames=120).sha256
    once = calls(tmp_path)
    shutil.rmtree(tmp_path / "judge.near")
    third = once // 3 + 1
    words = ["--env", SILENT, "--frames", "120", "--max-calls", str(third)]
    assert main(["capture", *words, "--labels-from", judge, "--out", str(out)]) == 1
    said = capsys.readouterr().err.replace("\n", " ")
    assert f"as --max-calls {third} allows" in said
    (line,) = re.findall(r"run vinoreward (capture .*), which goes on", said)
    assert 0 < len(rows_of(out)) < 120 and not read_about(out)["complete"]
    # A run's file runs no code that the user has not named.
    assert main(["capture", "--resume", "--out", str(out)]) == 1
    assert "as --labels-from" in capsys.readouterr().err
    assert [main(shlex.split(line)) for _ in range(2)] == [1, 0]
    assert calls(tmp_path) == 2 * once, "no image was scored twice"
    assert (out / "metadata.csv").read_text() == (whole / "metadata.csv").read_text()
    assert load_dataset(out).sha256 == expected
    (tmp_path / "judge.py").write_text(JUDGE + "# mended\n")
    with pytest.raises(ConfigError, match=r"another version of .*near"):
        captured(out, env=SILENT, labels_from=judge, frames=140, resume=True)


def test_a_judge_that_claims_nothing_is_said_early_and_leaves_the_folder_usable(
    tmp_path: Path, judge: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing, out = judge.replace("near", "nothing"), tmp_path / "a"
    with pytest.raises(DatasetError, match=r"--labels-from .*nothing labels 0 images, abstains"):
        captured(out, env=LINE, labels_from=nothing, frames=8)
    assert "another --labels-from or --env" in capsys.readouterr().out
    assert captured(out, env=SILENT, labels_from=judge, frames=8).labels.sum() == 4


@pytest.mark.slow
def test_a_bundle_says_that_a_judge_labelled_its_images(tmp_path: Path, judge: str) -> None:
    captured(tmp_path / "data", env=SILENT, labels_from=judge, frames=400)
    words = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--epochs", "1"]
    main(["finetune", *words, "--image-size", "32", "40", "--int8", "off", "--target-fpr", "0.3"])
    labels_from = Bundle.load(tmp_path / "run" / "bundle").spec.dataset["labels_from"]
    assert labels_from["judge_sha256"] == judge_hash(judge)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("--image-size 4096 4097", "image_size"),
        (f"--env {GOALS} --image-size 4096 2049 --stack 2", "image_size"),
        ("--mix random 1", "mix"),
        ("--policy p.py:act --mix expert 1", "mix"),
        ("--policy p.py:act --mix policy -1 random 2", "mix"),
        ("--policy p.py:act --recordings v", "policy"),
        ("--recordings d --stack 2", "stack"),
        ("--label-column done", "label_column"),
        ("--recordings v --truth a.py:f", "truth"),
        ("--recordings v --labels-from a.py:f", "labels_from"),
        (f"--env {GOALS} --labels-from a.py:f --truth there", "truth"),
        (f"--env {GOALS} --labels-from module:f", "judge"),
        (f"--env {GOALS} --max-calls 3", "max_calls"),
        ("--labels-from a.py:f", "labels_from"),
        ("--recordings d --env-kwargs a 1", "env_kwargs"),
        (f"--env {TWO} --image-source obs:back", "image_source"),
        (f"--env {TWO} --image-source obs:place", "image_source"),
        (f"--env {TWO} --image-source obs:front obs:front", "image_source"),
        (f"--env {TWO} --env-kwargs colour red", None),
    ],
)
def test_what_is_refused_before_anything_is_written(
    tmp_path: Path, arguments: str, field: str | None
) -> None:
    with pytest.raises(ConfigError) as error:
        words = [*arguments.split(), "--out", str(tmp_path / "out")]
        capture.run(capture.SETTINGS.parse(words, prog="vinoreward capture"))
    assert error.value.field == field
    assert not (tmp_path / "out").exists()
