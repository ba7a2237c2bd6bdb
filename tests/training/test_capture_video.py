"""Images of videos: labels by time, and videos that are not what they seem."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from label_logs import write_film

from vinoreward.errors import ConfigError, DatasetError
from vinoreward_training.capture import command as capture
from vinoreward_training.classifier.progress import read_targets
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.data.dataset_files import read_about

HEAD = "video,start,end,label"


def film(
    path: Path, seconds: float = 4.0, size: tuple[int, int] = (32, 48), *, noise: bool = False
) -> Path:
    """Write a video whose red grows by 20 each half second, or is noise."""
    images = np.full((round(10 * seconds), *size, 3), 40, np.uint8)
    images[..., 0] += (20 * (2 * np.arange(len(images)) // 10)[:, None, None]).astype(np.uint8)
    if noise:
        images = np.random.default_rng(0).integers(0, 256, images.shape, dtype=np.uint8)
    return write_film(path, images)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metadata.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def labelled(folder: Path, lines: Sequence[str]) -> Path:
    path = folder / "labels.csv"
    path.write_text("\n".join([HEAD, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Two videos; one succeeds after two seconds, the other in its middle."""
    folder = tmp_path / "videos"
    film(folder / "a.mp4")
    film(folder / "b" / "c.mp4")
    labelled(folder, ["a.mp4,,2,failure", "a.mp4,2,,success",
                      "b/c.mp4,0,1,failure", "b/c.mp4,1,3,success"])  # fmt: skip
    return folder


def test_videos_become_episodes_with_labels_by_time(
    tmp_path: Path, videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "data"
    words = ["--recordings", str(videos), "--video-fps", "4", "--image-size", "16", "24"]
    assert main(["capture", *words, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "28 images of 2 videos of 8 seconds" in said
    assert f"next: vinoreward finetune --data {out}" in said
    rows = rows_of(out)
    assert [row["video"] for row in rows if row["episode"] == "1"] == ["b/c.mp4"] * 12
    times = {(row["video"], float(row["second"])): row["label"] for row in rows}
    for second in np.arange(0, 4, 0.25):
        assert times["a.mp4", second] == ("success" if second >= 2 else "failure")
        wanted = None if second >= 3 else "success" if second >= 1 else "failure"
        assert times.get(("b/c.mp4", second)) == wanted
    left = {(row["video"], float(row["second"])): row["to_success"] for row in rows}
    assert [left["a.mp4", second] for second in (0, 1.5, 2, 3.75)] == ["8", "2", "0", "0"]
    # Success comes after 8 images of the one and 4 of the other, and lasts.
    found = read_targets(load_dataset(out), np.arange(len(rows)))
    assert found.horizon == pytest.approx(np.quantile([8, 4], 0.9))
    # The images show the moments that they are said to.
    data = load_dataset(out)
    assert data.images.shape == (28, 16, 24, 3) and data.image().resize == "pil_bilinear"
    seconds = np.array([float(row["second"]) for row in rows])
    red = data.images[..., 0].mean((1, 2))
    assert abs(red - 20 * (2 * seconds // 1) - 40).max() < 6
    assert read_about(out)["scene"] == {"videos": "videos"} and read_about(out)["complete"]
    assert load_dataset(out).origin is None  # an episode is known by its first image


def test_an_image_is_what_the_screen_shows_at_its_moment(tmp_path: Path) -> None:
    """Few images a second must not show what comes up to half a period later."""
    folder, out, name = tmp_path / "videos", tmp_path / "data", "a.mkv"
    film(folder / name, seconds=5)
    labelled(folder, [f"{name},0,0.4,failure", f"{name},2,,success"])
    for fps in (0.5, 10.0):
        run = out / str(fps)
        capture.run(CaptureConfig(out=run, recordings=folder, video_fps=fps))
        red = {row["second"]: image[..., 0].mean() for row, image in
               zip(rows_of(run), load_dataset(run).images, strict=True)}  # fmt: skip
        assert len(red) == (3 if fps == 0.5 else 34)
        for second, value in red.items():
            assert abs(value - 20 * (2 * float(second) // 1) - 40) < 6


def test_a_conversion_goes_on_and_a_new_video_is_added(
    tmp_path: Path, videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    capture.run(CaptureConfig(out=whole, recordings=videos))
    capture.run(CaptureConfig(out=out, recordings=videos, frames=12))
    assert len(rows_of(out)) == 12
    words = ["capture", "--resume", "--out", str(out), "--frames", "6000"]
    assert main(words) == 0
    assert load_dataset(out).sha256 == load_dataset(whole).sha256
    # A video whose name comes first gets the next number.
    film(videos / "0.mp4", seconds=2)
    with (videos / "labels.csv").open("a", encoding="utf-8") as stream:
        stream.write("0.mp4,,1,failure\n0.mp4,1,,success\n")
    assert main(words) == 0
    numbers = {row["video"]: row["episode"] for row in rows_of(out)}
    assert numbers == {"a.mp4": "0", "b/c.mp4": "1", "0.mp4": "2"}
    # Other labels, or other moments, are another dataset.
    labelled(videos, ["a.mp4,,2,success", "a.mp4,2,,failure", "b/c.mp4,,,success",
                      "0.mp4,,,failure"])  # fmt: skip
    assert main(words) == 1
    assert "mp4 was captured with the label success at" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"video_fps"):
        capture.run(capture.SETTINGS.of(out=out, resume=True, video_fps=2.0))


def test_folders_label_whole_videos_and_a_table_one_alone(tmp_path: Path) -> None:
    folder, out = tmp_path / "v", tmp_path / "out"
    film(folder / "success" / "a.mp4", seconds=1)
    film(folder / "failure" / "a.mp4", seconds=2)
    capture.run(CaptureConfig(out=out, recordings=folder))
    labels = [row["label"] for row in rows_of(out)]
    assert (labels.count("success"), labels.count("failure")) == (5, 10)
    table = folder / "success" / "labels.csv"
    table.write_text(f"{HEAD}\na.mp4,0,0.5,failure\na.mp4,0.5,1,success\n")
    one = CaptureConfig(out=tmp_path / "one", recordings=folder / "success" / "a.mp4")
    capture.run(one)
    assert len(rows_of(tmp_path / "one")) == 5


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["a.mp4,0,1,success"], r"1 of 2 videos have no label, the first is b/c.mp4"),
        (["x.mp4,0,1,success"], r"line 2: there is no video 'x.mp4', but a.mp4, b/c.mp4"),
        (["a.mp4,,,failure", "a.mp4,0,300,success"], r"line 3: 0 to 300 s is no time within a.mp4"),
        (["a.mp4,0,2,failure", "a.mp4,1,3,success"], r"line 3: 1 to 3 s of a.mp4 has both labels"),
        (["a.mp4,,,success", "b/c.mp4,,,success"], r"40 successes and 0 failures"),
    ],
)
def test_labels_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path: Path, videos: Path, lines: list[str], found: str
) -> None:
    labelled(videos, lines)
    with pytest.raises(DatasetError, match=found):
        capture.run(CaptureConfig(out=tmp_path / "out", recordings=videos))
    assert not (tmp_path / "out").exists()


def test_videos_of_several_sizes_are_taken_at_the_most_common_made_smaller(
    tmp_path: Path, videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film(videos / "d.mp4", size=(48, 48))
    shutil.copytree(videos / "b", videos / "__MACOSX")
    shutil.copytree(videos / "b", videos / "b" / ".ipynb_checkpoints")
    (videos / "d.wmv").write_bytes(b"no video that is read")
    with (videos / "labels.csv").open("a") as stream:
        stream.write("d.mp4,,,failure\n")
    capture.run(CaptureConfig(out=tmp_path / "out", recordings=videos))
    said = capsys.readouterr().out
    assert "1 .wmv" in said and "images of 32x48 and other sizes are resized to 32x48" in said
    data = load_dataset(tmp_path / "out")
    assert data.images.shape[1:3] == (32, 48) and data.image().resize == "pil_bilinear"


def test_broken_and_absent_videos_are_told_in_a_sentence(tmp_path: Path, videos: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DatasetError, match=r"is not there\. Expected a video or a folder"):
        capture.run(CaptureConfig(out=out, recordings=tmp_path / "none"))
    content = (videos / "a.mp4").read_bytes()
    (videos / "a.mp4").write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetError, match=r"a.mp4 cannot be read as a video.*Expected a whole"):
        capture.run(CaptureConfig(out=out, recordings=videos))
    assert not out.exists()
    # A file that was cut off: its header still says four seconds.
    (videos / "a.mp4").unlink()
    content = film(videos / "e.mkv", noise=True).read_bytes()
    (videos / "e.mkv").write_bytes(content[: len(content) // 2])
    labelled(videos, ["e.mkv,,2,failure", "e.mkv,2,,success", "b/c.mp4,,,success"])
    with pytest.raises(DatasetError, match=r"e.mkv cannot be read.*it ends after 0?\.?\d.* of 4 s"):
        capture.run(CaptureConfig(out=out, recordings=videos, image_size=(32, 48)))


def test_a_damaged_video_does_not_repeat_earlier_images(tmp_path: Path) -> None:
    videos = tmp_path / "videos"
    content = bytearray(film(videos / "a.mp4", noise=True).read_bytes())
    start = content.index(b"mdat") + len(content) // 3
    content[start : start + 3000] = np.random.default_rng(0).bytes(3000)
    (videos / "a.mp4").write_bytes(content)
    labelled(videos, ["a.mp4,,2,failure", "a.mp4,2,,success"])
    with pytest.raises(
        DatasetError, match=r"a.mp4 cannot be read.*ends after 1\.\d* of 4 s, or is damaged"
    ):
        capture.run(CaptureConfig(out=tmp_path / "out", recordings=videos))


def test_a_playlist_in_a_videos_clothes_opens_no_other_file(tmp_path: Path, videos: Path) -> None:
    film(tmp_path / "beside.mp4")
    for content in (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n{videos / 'a.mp4'}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile beside.mp4\nduration 4\n",  # FFmpeg itself would open this one
    ):
        (tmp_path / "list.mp4").write_text(content)
        with pytest.raises(DatasetError, match=r"list.mp4 cannot be read as a video"):
            capture.run(CaptureConfig(out=tmp_path / "out", recordings=tmp_path / "list.mp4"))


def test_a_pipe_is_not_waited_for_and_a_name_that_no_table_takes_is_refused(
    tmp_path: Path, videos: Path
) -> None:
    strange = film(tmp_path / "e\x1b[31mX.mp4")
    with pytest.raises(DatasetError, match=r"x1b.* Expected a printable name"):
        capture.run(CaptureConfig(recordings=strange, out=tmp_path / "out"))
    os.mkfifo(videos / "pipe.mp4")
    with pytest.raises(DatasetError, match=r"pipe\.mp4 .* it is no plain file"):
        capture.run(CaptureConfig(recordings=videos, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()
