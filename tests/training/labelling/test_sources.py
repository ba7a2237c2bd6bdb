"""Where images come from, hostile names among them, and how labels become a training set."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from label_logs import TIME, write_images
from PIL import Image

from vinoreward.errors import ConfigError, DatasetError
from vinoreward.images import read_image
from vinoreward_envs.camera.spec import resized
from vinoreward_training.data.videos import count, decoded, find_videos, frame_at, second_of
from vinoreward_training.labelling.labels import Answer, Label
from vinoreward_training.labelling.sources import (
    digest_of,
    labelled_images,
    of_folder,
    of_run,
    of_videos,
    read_named,
)

HOSTILE = (
    "<img src=x onerror=alert(1)>.png", "a\nb.png", "tab\there.png", "bell\a.png", "\x1b[31m.png",
    "\u202egnp.exe.png", "'; drop.png", "%2e%2e%2f.png", "a b&c.png",
)  # fmt: skip
PRINTABLE = {name for name in HOSTILE if name.isprintable()}


def numbered_film(path: Path, fps: float, seconds: float) -> Path:
    """Write a video whose frames show their number in stripes."""
    writer: Any = imageio_ffmpeg.write_frames(
        str(path), (80, 48), fps=fps, quality=10, macro_block_size=2
    )
    writer.send(None)
    for index in range(int(fps * seconds)):
        frame = np.zeros((48, 80, 3), np.uint8)
        for bit in range(10):
            frame[:, 8 * bit : 8 * bit + 8] = 255 * (index >> bit & 1)
        writer.send(frame)
    writer.close()
    return path


def number_of(image: np.ndarray) -> int:
    return sum(int(image[24, 8 * bit + 4, 0] > 128) << bit for bit in range(10))


def said(name: str, image: np.ndarray, answer: Answer = "success", by: str = "ann") -> Label:
    return Label(name, digest_of(image), answer, by, TIME, 1.0)


def test_a_folder_of_images(tmp_path: Path) -> None:
    write_images(tmp_path, ["b/1.png", "a.jpg", "c.bmp"])
    (tmp_path / "notes.txt").write_text("no image")
    source = of_folder(tmp_path)
    assert source.names == ["a.jpg", "b/1.png", "c.bmp"]
    assert source.episodes is None
    images = dict(source.images())
    assert np.array_equal(images[1], read_image(tmp_path / "b" / "1.png"))
    assert np.array_equal(source.read(0), images[0])


def test_what_is_not_labelled_yet_has_no_true_label(tmp_path: Path) -> None:
    write_images(tmp_path, ["a.png", "b.png", "c.png"])
    rows = "file,label,episode\na.png,success,0\nb.png,,1\nc.png,{},2\n"
    (tmp_path / "metadata.csv").write_text(rows.format("failure"), encoding="utf-8-sig")
    np.testing.assert_array_equal(of_folder(tmp_path).numbers["true"], [1, np.nan, 0])
    (tmp_path / "metadata.csv").write_text(rows.format("Success"))
    with pytest.raises(DatasetError, match="'Success' and 'success'"):
        of_folder(tmp_path)


def test_hostile_names_are_shown_or_left_out(tmp_path: Path) -> None:
    write_images(tmp_path, [*HOSTILE, "good.png"])
    source = of_folder(tmp_path)
    assert set(source.names) == PRINTABLE | {"good.png"}
    assert source.left_out == len(HOSTILE) - len(PRINTABLE) > 3
    assert len(dict(source.images())) == len(source.names)


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hostname", "a\n.png", "", ".", "x" * 1001])
def test_no_name_reaches_out_of_the_folder(tmp_path: Path, name: str) -> None:
    write_images(tmp_path, ["secret.png", "inner/a.png"])
    with pytest.raises(DatasetError):
        read_named(tmp_path / "inner", name)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    write_images(tmp_path, ["secret.png", "inner/a.png"])
    (tmp_path / "inner" / "b.png").symlink_to(tmp_path / "secret.png")
    source = of_folder(tmp_path / "inner")
    with pytest.raises(DatasetError, match="link"):
        source.read(source.names.index("b.png"))
    assert [index for index, _ in source.images()] == [0]


def test_a_capture_tells_episodes_and_labels(tmp_path: Path) -> None:
    write_images(tmp_path, ["x.png", "y.png", "unlisted.png"])
    table = "file,label,episode\nx.png,success,3\ny.png,failure,4\n"
    (tmp_path / "metadata.csv").write_text(table)
    source = of_folder(tmp_path)
    assert (source.names, source.episodes) == (["x.png", "y.png"], [3, 4])
    assert source.numbers["true"].tolist() == [1.0, 0.0]


def test_a_runs_claims(tmp_path: Path) -> None:
    claims = write_images(tmp_path / "claims", ["0.png", "1.png"])
    (claims / "claims.csv").write_text(
        "image,step,episode,probability,ood_score,true,more\n0.png,10,1,0.9,1.5,0,x\n"
        '1.png,20,,many,,,\n../../out.png,1,1,1,1,1,\n"a\nb.png",1,1,1,1,1,\n',
    )
    source = of_run(tmp_path)
    assert source.names == ["0.png", "1.png"] and source.folder == claims
    assert source.left_out == 2 and source.claimed
    assert source.episodes == [1, -2]
    assert source.numbers["ood_score"][0] == 1.5 and np.isnan(source.numbers["ood_score"][1])
    assert np.isnan(source.numbers["probability"][1])


def test_a_run_with_images_alone(tmp_path: Path) -> None:
    claims = write_images(tmp_path / "claims", ["0.png"])
    (claims / "claims.csv").write_text("image\n0.png\n")
    assert of_run(tmp_path).names == ["0.png"]


def test_a_run_without_claims_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no claims/claims.csv"):
        of_run(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        of_run(tmp_path / "none")
    claims = write_images(tmp_path / "claims", ["0.png"])
    for text in ("file\n0.png\n", "image,step\n0.png,1,2\n", "", "\xff"):
        (claims / "claims.csv").write_bytes(text.encode("latin-1"))
        with pytest.raises(DatasetError):
            of_run(tmp_path)


@pytest.mark.parametrize(("fps", "rate"), [(10, 3), (29.97, 5)])
def test_a_frame_of_a_video_by_its_moment(tmp_path: Path, fps: float, rate: float) -> None:
    (video,) = find_videos(numbered_film(tmp_path / "a.mp4", fps, 4.0))
    wanted = dict.fromkeys(range(count(video, rate)))
    for index, image in decoded(video, rate, wanted):
        second = float(second_of(index, rate))
        found = number_of(frame_at(video, second))
        # On screen at that moment; where the name rounds it, the one a millisecond away.
        assert found in {int((second + slack) * fps + 1e-9) for slack in (-6e-4, 0.0, 6e-4)}
        assert abs(found - number_of(image)) <= 1


def test_videos_are_episodes_of_frames(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    numbered_film(tmp_path / "a.mp4", 10, 2.0)
    numbered_film(tmp_path / "more" / "b.mp4", 10, 1.0)
    source = of_videos(tmp_path, 2.0)
    assert source.names == [
        "a.mp4@0.000s", "a.mp4@0.500s", "a.mp4@1.000s", "a.mp4@1.500s",
        "more/b.mp4@0.000s", "more/b.mp4@0.500s",
    ]  # fmt: skip
    assert source.episodes == [0, 0, 0, 0, 1, 1]
    assert [number_of(source.read(index)) for index in range(6)] == [0, 5, 10, 15, 0, 5]
    assert [number_of(image) for _, image in source.images()] == [0, 5, 10, 15, 0, 5]
    alone = of_videos(tmp_path / "a.mp4", 1.0)
    assert alone.folder == tmp_path and alone.names == ["a.mp4@0.000s", "a.mp4@1.000s"]
    with pytest.raises(ConfigError, match="video-fps"):
        of_videos(tmp_path, 0)
    with pytest.raises(DatasetError, match="--video"):
        of_videos(tmp_path / "none", 1)


def test_the_digest_is_of_pixels_and_shape(tmp_path: Path) -> None:
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert digest_of(image) == hashlib.sha256(b"2x3x3 " + bytes(range(18))).hexdigest()
    assert digest_of(image) != digest_of(image.reshape(3, 2, 3))
    for level in (0, 9):
        Image.fromarray(image).save(tmp_path / "a.png", compress_level=level)
        assert digest_of(read_image(tmp_path / "a.png")) == digest_of(image)


def test_labelled_images_are_those_that_were_seen(tmp_path: Path) -> None:
    write_images(tmp_path, ["a.png", "b.png", "changed.png", "gone.png", "torn.png"])
    source = of_folder(tmp_path)
    images = {source.names[index]: image for index, image in source.images()}
    labels = [
        said("a.png", images["a.png"]),
        said("b.png", images["b.png"], "failure"),
        said("changed.png", images["a.png"]),
        said("gone.png", images["gone.png"]),
        said("torn.png", images["torn.png"]),
        said("torn.png", images["torn.png"], "failure", "bob"),
    ]  # fmt: skip
    (tmp_path / "gone.png").unlink()
    with pytest.warns(UserWarning, match=r"2 of 4 labelled images.*changed\.png"):
        found = labelled_images(tmp_path, labels, (6, 8))
    assert found.names == ["a.png", "b.png"] and found.labels.tolist() == [1, 0]
    assert found.images.shape == (2, 6, 8, 3) and found.labels.dtype == np.int64
    assert np.array_equal(found.images[1], resized(images["b.png"], 6, 8))


def test_labelled_frames_of_videos(tmp_path: Path) -> None:
    numbered_film(tmp_path / "a.mp4", 10, 2.0)
    source = of_videos(tmp_path / "a.mp4", 3.0)
    labels = [said(name, source.read(index)) for index, name in enumerate(source.names)]
    found = labelled_images(tmp_path, labels, (48, 80))
    assert found.names == source.names
    assert [number_of(image) for image in found.images] == [0, 3, 6, 10, 13, 16]
