"""Whole episodes recorded as a LeRobot dataset: what was played, and what is read back of it.

That LeRobot itself loads such a dataset is held by ``make test-lerobot``.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from full_disk import nearly_full_disk
from gymnasium.spaces import Box, Discrete
from lerobot_folders import RENDER, TOP, WALK_FPS, Lamp, registered, scene, write_lerobot

from vinoreward.errors import ConfigError, DatasetError, MissingExtraError, RunFolderError
from vinoreward_training.capture import command as capture
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.data.dataset_files import read_about
from vinoreward_training.data.lerobot import LeRobotFolder
from vinoreward_training.data.lerobot_writer import LeRobotWriter, camera_feature, column_feature
from vinoreward_training.data.recordings import labels_of, shown_by


def config(out: Path, **more: Any) -> CaptureConfig:
    options: dict[str, Any] = {"env": registered(), "frames": 150, "seed": 3, **more}
    return CaptureConfig(out=out, format="lerobot", **options)


def table_of(folder: Path) -> dict[str, list[Any]]:
    files = sorted((folder / "data").glob("*/*.parquet"))
    parts = [pq.read_table(file).to_pydict() for file in files]
    return {key: [value for part in parts for value in part[key]] for key in parts[0]}


def places(folder: Path, camera: str) -> list[int]:
    """Where the walker is in each image."""
    source = LeRobotFolder(folder, camera)
    every = [(rows, range(rows.episode.length)) for rows in source.rows(None)]
    images = [image for _, _, image in source.images(every)]
    half = [image[:, : image.shape[1] // 2 - 2].astype(float) for image in images]
    assert max(each.std() for each in half) < 2
    return [round((each.mean() - 128) / 20) for each in half]


def test_rows_and_images_are_the_episodes(tmp_path: Path) -> None:
    out = tmp_path / "lamp"
    assert capture.run(config(out, image_source=("render", "obs:pixels.top"), save_every=50)) == 0
    rows = table_of(out)
    info = json.loads((out / "meta/info.json").read_text())
    count = len(rows["index"])
    assert 150 <= count == info["total_frames"] < 150 + 31
    assert len(list((out / "data").glob("*/*"))) == 3  # of at least 50 rows each
    # A row: what is seen, what is done, what it led to; the last one shows the end.
    at = [state[0] for state in rows["observation.state"]]
    assert [state[1] for state in rows["observation.state"]] == [-place for place in at]
    assert places(out, RENDER) == places(out, TOP) == at
    assert not {"observation.many", "observation.pixels.top"} & rows.keys()
    ends = [i for i in range(count) if i + 1 == count or rows["frame_index"][i + 1] == 0]
    assert len(ends) == info["total_episodes"]
    for i in range(count):
        if i in ends:
            assert rows["next.done"][i]
            assert at[i] in (-6, 3) or rows["frame_index"][i] == 30
            same = ("action", "next.reward", "next.success", "next.done")
            assert [rows[key][i] for key in same] == [rows[key][i - 1] for key in same]
        else:
            assert at[i + 1] - at[i] == (1 if rows["action"][i] > 0 else -1)
            assert rows["next.reward"][i] == at[i + 1] / 2
            assert rows["next.success"][i] == (at[i + 1] == 3)
            assert rows["next.done"][i] == (i + 1 in ends)
            assert rows["timestamp"][i] == np.float32(rows["frame_index"][i] / WALK_FPS)
    assert rows["index"] == list(range(count))
    assert any(rows["next.success"]) and not all(rows["next.done"])
    # Each image's label is what it shows.
    source = LeRobotFolder(out, RENDER)
    reading = CaptureConfig(from_lerobot=out)
    every, shown = shown_by(reading, source, labels_of(reading, source))
    for episode, labels in zip(every, shown, strict=True):
        start = rows["episode_index"].index(episode.episode.number)
        truths = [place == 3 for place in at[start : start + episode.episode.length]]
        assert labels[0] == -1 and labels[1:].tolist() == truths[1:]


def test_statistics_are_those_of_all_rows(tmp_path: Path) -> None:
    out = tmp_path / "lamp"
    capture.run(config(out, save_every=50))
    stats = json.loads((out / "meta/stats.json").read_text())
    rows = table_of(out)
    for key in ("observation.state", "action", "next.reward", "next.success", "index"):
        values = np.asarray(rows[key], np.float64).reshape(len(rows["index"]), -1)
        assert stats[key]["count"] == [len(values)]
        for name in ("min", "max", "mean", "std"):
            assert np.allclose(stats[key][name], getattr(values, name)(axis=0)), (key, name)
        assert np.all(
            np.diff([stats[key][q] for q in ("q01", "q10", "q50", "q90", "q99")], axis=0) >= 0
        )
    pixels = np.stack([scene(int(state[0]), (32, 48)) for state in rows["observation.state"]]) / 255
    for name in ("min", "max", "mean", "std"):
        expected = getattr(pixels, name)(axis=(0, 1, 2)).reshape(3, 1, 1)
        assert np.allclose(stats[RENDER][name], expected)


def test_an_interrupted_recording_goes_on_to_the_same_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "my lamp"
    capture.run(config(whole, save_every=50))
    draw, left = Lamp.render, [100]

    def render(self: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return draw(self)

    monkeypatch.setattr(Lamp, "render", render)
    words = ["--env", registered(), "--frames", "150", "--seed", "3", "--save-every", "50"]
    assert main(["capture", "--format", "lerobot", *words, "--out", str(out)]) == 130
    saved = json.loads((out / "meta/info.json").read_text())
    rows = table_of(out)
    assert saved["total_frames"] == len(rows["index"]) > 50  # whole episodes, also unsaved ones
    assert places(out, RENDER) == [state[0] for state in rows["observation.state"]]
    assert read_about(out)["complete"] is False
    # A kill leaves files beyond what info.json counts, and one in progress.
    files = len(list((out / "data").glob("*/*.parquet")))
    for path in [*out.glob("data/*/*"), *out.glob("meta/episodes/*/*"), *out.glob("videos/*/*/*")]:
        if path.stem == "file-000":
            beyond = path.with_stem(f"file-{files:03d}")
            beyond.write_bytes(b"half")
            path.with_name(f".{beyond.name}.part").write_bytes(b"half")
    (out / f"meta/episodes/chunk-000/file-{files:03d}.parquet").write_bytes(
        (whole / "meta/episodes/chunk-000/file-002.parquet").read_bytes()
    )
    (line,) = re.findall(r"^Continue with: vinoreward (.*)$", capsys.readouterr().out, re.M)
    assert main(shlex.split(line)) == 0
    assert table_of(out) == table_of(whole)
    assert places(out, RENDER) == places(whole, RENDER)
    assert read_about(out)["complete"] is True
    assert not list(out.rglob("*.part"))
    # More episodes are added in the same way.
    assert main([*shlex.split(line), "--frames", "220"]) == 0
    longer = table_of(out)
    assert len(longer["index"]) >= 220
    assert longer["action"][: len(rows["action"])] == rows["action"]


def test_what_is_printed_leads_to_a_classifiers_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "lamp"
    words = ["--env-kwargs", "max_episode_steps", "25", "--frames", "600"]
    words = ["--format", "lerobot", "--env", registered(), *words, "--truth-key", "is_success"]
    assert main(["capture", *words, "--out", str(out)]) == 0
    (line,) = re.findall(r"^next: vinoreward (.*)$", capsys.readouterr().out, re.M)
    assert main(shlex.split(line)) == 0
    images = tmp_path / "lamp-images"
    data = load_dataset(images)
    assert (data.labels == (data.images[:, 16, 40, 1] > 100)).all()
    assert data.labels.sum() > 5
    # The environment travels along, to the commands that are printed next.
    about = read_about(images)
    assert about["env"] == registered() and about["truth_key"] == "is_success"
    assert about["env_kwargs"] == {"max_episode_steps": 25}
    assert about["image_source"] == "render"


class Counted(Lamp):
    """Whole numbers as action, a plain vector as observation."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Discrete(2)
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def step(self, action: Any) -> Any:
        return super().step([2 * action - 1])

    def _seen(self) -> Any:
        return np.array([np.inf if self.at == 2 else self.at], np.float32)


def test_discrete_actions_and_numbers_that_are_not_finite(tmp_path: Path) -> None:
    env, out = registered("VinorewardTestCounted-v0", Counted), tmp_path / "counted"
    capture.run(config(out, env=env))
    info = json.loads((out / "meta/info.json").read_text())
    assert info["fps"] == 30
    assert info["features"]["action"] == {"dtype": "int64", "shape": [1], "names": None}
    rows = table_of(out)
    assert set(rows["action"]) == {0, 1}
    assert any(map(np.isinf, rows["observation.state"]))
    stats = json.loads((out / "meta/stats.json").read_text())
    assert stats["observation.state"]["max"] == [3.0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stack": 2}, "--stack, which a capture with --format would ignore"),
        ({"patience": 9}, "--patience, which a capture with --format would ignore"),
        ({"from_lerobot": Path("x")}, "--format lerobot and --from-lerobot"),
        ({"from_video": Path("x")}, "--format lerobot and --from-video"),
        ({"fidelity": "article"}, "--format lerobot and --fidelity"),
        ({"per_episode": 2}, "--per-episode, which a capture with --format would ignore"),
        ({"image_source": ("obs:top",)}, "Expected the name of one that is an image"),
        ({"image_source": ("obs:agent_pos",)}, "Expected a uint8 image"),
        ({"env_kwargs": {"render_mode": None}}, "Expected 'rgb_array'"),
    ],
)
def test_what_cannot_be_recorded_leaves_nothing(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError) as error:
        capture.run(config(out, **options))
    assert says in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize("options", [{"stack": 2}, {"patience": 9}, {"per_episode": 2}])
def test_a_capture_of_images_takes_them(tmp_path: Path, options: dict[str, Any]) -> None:
    out = tmp_path / "out"
    assert capture.run(CaptureConfig(out=out, env=registered(), frames=8, **options)) == 0
    assert len(list(out.glob("*/*.png"))) == 8


@pytest.mark.parametrize("format", ["lerobot", "images"])
def test_somebody_elses_dataset_stays_as_it_is(tmp_path: Path, format: str) -> None:
    dataset = write_lerobot(tmp_path / "pick", episodes=2)
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    for resume in (False, True):
        options: Any = {"env": registered(), "format": format, "resume": resume}
        with pytest.raises(ConfigError, match="that capture did not write"):
            capture.run(CaptureConfig(out=dataset, **options))
    assert {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()} == before


def test_a_recording_goes_on_as_what_it_was(tmp_path: Path) -> None:
    out = tmp_path / "lamp"
    capture.run(config(out, frames=40))
    with pytest.raises(ConfigError, match="already holds a run"):
        capture.run(config(out, frames=80))
    for options, says in (
        ({"format": "images"}, "format 'vinoreward lerobot folder 1', now asked for"),
        ({"image_source": ("obs:pixels.top",)}, "image_source 'render', now"),
        ({"seed": 4}, "seed 3, now asked for seed 4"),
    ):
        later: Any = {"env": registered(), "seed": 3, "format": "lerobot", "frames": 80}
        with pytest.raises(ConfigError, match=says):
            capture.run(CaptureConfig(out=out, resume=True, **{**later, **options}))
    info = json.loads((out / "meta/info.json").read_text())
    (out / "meta/info.json").write_text(json.dumps({**info, "fps": 99}))
    with pytest.raises(ConfigError, match=r"another LeRobot dataset: .*another fps.*--out"):
        capture.run(config(out, frames=80, resume=True))


def test_a_full_disk_keeps_the_files_before(tmp_path: Path) -> None:
    out = tmp_path / "lamp"
    capture.run(config(out, frames=60))
    before = table_of(out)
    with nearly_full_disk(2048), pytest.raises(RunFolderError) as error:
        capture.run(config(out, frames=3000, save_every=3000, resume=True))
    assert "free some and continue with --resume" in str(error.value)
    assert "File too large" in str(error.value)
    assert table_of(out) == before
    assert not list(out.rglob("*.part"))
    capture.run(config(out, resume=True))
    assert len(table_of(out)["index"]) >= 150


@pytest.mark.parametrize("library", ["av", "pyarrow.parquet"])
def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"writing.*needs {library}.*\[lerobot\]"):
        capture.run(config(tmp_path / "lamp"))
    assert not (tmp_path / "lamp").exists()


def test_an_image_that_changes_its_size_is_refused(tmp_path: Path) -> None:
    features = {RENDER: camera_feature((32, 48, 3)), "action": column_feature("float32")}
    with LeRobotWriter(tmp_path, features, 10, "walk") as writer:
        for value in (0.0, 1.0):
            writer.add({"action": value}, {RENDER: scene(0, (32, 48))})
        writer.end_episode()
        with pytest.raises(DatasetError, match=r"\(32, 50, 3\)\. Expected uint8 \(32, 48, 3\)"):
            writer.add({"action": 0.0}, {RENDER: scene(0, (32, 50))})
    assert places(tmp_path, RENDER) == [0, 0]
    with pytest.raises(ConfigError, match="the episode has no row"):
        LeRobotWriter(tmp_path, features, 10, "walk").end_episode()
