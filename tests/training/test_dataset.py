"""Reading labelled images: our captures and anybody's image folder."""

from __future__ import annotations

import ast
import io
import json
import os
import random
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from file_mutations import mutate_bytes
from PIL import Image

from vinoreward.errors import DatasetError, InputError
from vinoreward.images import read_image
from vinoreward_training.data.dataset import (
    find_conflicting_duplicates,
    find_label_leakage,
    load_dataset,
    load_frames,
    load_labelled,
    split_by_episode,
)
from vinoreward_training.data.dataset_files import free_memory, stack_images


def image(path: Path, value: int, size: tuple[int, int] = (16, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, dtype=np.uint8)).save(path)


def image_folder(folder: Path, names: tuple[str, str] = ("failure", "success")) -> Path:
    for number in range(4):
        image(folder / names[0] / f"{number}.png", number)
        image(folder / names[1] / f"{number}.png", 100 + number)
    return folder


def test_any_image_folder_is_a_dataset_with_one_episode_per_image(tmp_path: Path) -> None:
    dataset = load_dataset(image_folder(tmp_path / "a"))
    assert dataset.images.shape == (8, 16, 20, 3) and dataset.images.dtype == np.uint8
    assert dataset.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(set(dataset.episodes.tolist())) == 8
    # The hash is of the contents.
    image(image_folder(tmp_path / "b") / "success" / "0.png", 77)
    assert load_dataset(tmp_path / "b").sha256 != dataset.sha256


def table(folder: Path, *rows: str, columns: str = "file,label,episode") -> None:
    (folder / "metadata.csv").write_text("\n".join([columns, *rows]) + "\n", "utf-8-sig")


def test_a_table_gives_episodes_and_decides_what_belongs(tmp_path: Path) -> None:
    columns = "file,label,category,episode,distance"
    rows = "success/0.png,success,success,3,0.01", "failure/0.png,failure,near_miss,3,0.05"
    table(image_folder(tmp_path), *rows, columns=columns)
    dataset = load_dataset(tmp_path)
    assert dataset.files == ("success/0.png", "failure/0.png")
    assert dataset.episodes.tolist() == [3, 3]
    assert dataset.distances.tolist() == [0.01, 0.05]
    assert dataset.categories.tolist() == ["success", "near_miss"]
    table(tmp_path, rows[0], rows[1].replace("0.png", "gone.png"), columns=columns)
    with pytest.raises(DatasetError, match=r"failure/gone\.png"):
        load_dataset(tmp_path)


def test_one_class_and_no_images_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"vinoreward capture --out '.*/not there'$"):
        load_dataset(tmp_path / "not there")
    with pytest.raises(DatasetError, match="holds no images"):
        load_dataset(tmp_path)
    image(tmp_path / "success" / "0.png", 1)
    with pytest.raises(DatasetError, match=r"all 1 images .* are successes"):
        load_dataset(tmp_path)
    image(tmp_path / "failure" / "0.png", 2)
    with pytest.raises(DatasetError, match="add more images of either class"):
        split_by_episode(load_dataset(tmp_path))


def test_all_broken_images_are_listed_or_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_folder(tmp_path)
    for name in ("failure/0.png", "success/1.png"):
        (tmp_path / name).write_bytes(b"no image")
    with pytest.raises(DatasetError) as refused:
        load_dataset(tmp_path)
    text = str(refused.value)
    assert text.index("failure/0.png cannot be read") < text.index("success/1.png cannot be read")
    assert "(2 of 8 images). Expected whole PNG" in text
    dataset = load_dataset(tmp_path, choose_size=True, skip_broken=True)
    names = ["failure/1.png", "failure/2.png", "failure/3.png"]
    assert dataset.files == (*names, "success/0.png", "success/2.png", "success/3.png")
    assert dataset.images[:, 0, 0, 0].tolist() == [1, 2, 3, 100, 102, 103]
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert "success/1.png" in capsys.readouterr().out
    # So do the commands that follow on the same folder.
    assert len(load_labelled(tmp_path, dataset.image(), "success").files) == 6


def test_what_nobody_meant_is_skipped_and_what_is_passed_over_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_folder(tmp_path)
    hidden = ("success/.ipynb_checkpoints", "success/a/.cache/b", "__MACOSX/success", ".trash")
    for number, folder in enumerate((*hidden, "failure/@eaDir", "success/a")):
        image(tmp_path / folder / "9.png", 40 + number)
    (tmp_path / "success" / "0.png").rename(tmp_path / "success" / "0.JFIF")
    for name in ("success/1.tif", "failure/1.tif", "failure/1.HEIC", "success/notes.txt", "9.png"):
        shutil.copy(tmp_path / "failure" / "0.png", tmp_path / name)
    dataset = load_dataset(tmp_path)
    assert [file for file in dataset.files if file.startswith("success")] == [
        "success/0.JFIF", "success/1.png", "success/2.png", "success/3.png", "success/a/9.png",
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert "1 .heic, 2 .tif" in said and ".txt" not in said
    assert "1 images in" in said and "no class's folder" in said


@pytest.mark.parametrize("label", ["Success", " "])
def test_labels_that_differ_in_case_or_spaces_or_are_empty_are_refused(
    tmp_path: Path, label: str
) -> None:
    data = image_folder(tmp_path / "data")
    table(data, "success/0.png,success,0", "failure/1.png,failure,1", f"success/1.png,{label},2")
    with pytest.raises(DatasetError, match=r"an empty label|'success'.* Expected a label for each"):
        load_dataset(data)
    (data / "metadata.csv").unlink()
    if label.strip():
        (data / "failure").rename(data / label)
        with pytest.raises(DatasetError, match="always spelt alike"):
            load_dataset(data)
        data = image_folder(tmp_path / "other", ("failure", label))
        assert load_dataset(data, success_label=label).labels.sum() == 4


def test_the_most_common_size_is_chosen_and_made_smaller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual, other = (480, 720), (16, 20)
    for number, size in enumerate([other, usual, usual, other, usual]):
        for label in ("success", "failure"):
            image(tmp_path / label / f"{number}.png", number, size)
    with pytest.raises(DatasetError, match=r"has 480x720 pixels.*--image-size 16 20"):
        load_dataset(tmp_path)
    assert load_dataset(tmp_path, size=(16, 20)).images.shape == (10, 16, 20, 3)
    dataset = load_dataset(tmp_path, choose_size=True)
    assert dataset.images.shape == (10, 107, 160, 3)
    assert dataset.image().resize == "pil_bilinear"
    said = capsys.readouterr().out
    assert said.startswith("images of 480x720 and other sizes are resized to 107x160")
    assert said.count("\n") == 1 and "--image-size" in said
    # A capture has chosen already, and small images keep their size.
    for label in ("success", "failure"):
        for path in (tmp_path / label).glob("[03].png"):
            path.unlink()
    (tmp_path / "dataset.json").write_text('{"format": "vinoreward image folder 1"}')
    assert load_dataset(tmp_path, choose_size=True).images.shape[1:3] == usual
    small = load_dataset(image_folder(tmp_path / "small"), choose_size=True)
    assert small.images.shape[1:3] == (16, 20) and small.image().resize == "none"
    assert capsys.readouterr().out == ""


def episodes_folder(
    folder: Path, count: int, *, env: str = "PandaHoverRandom-v0", seed: int = 3, step: int = 3
) -> Path:
    """Write a capture of ``count`` images, ``step`` to an episode, a success in each."""
    rows = ["file,label,episode"]
    for number in range(count):
        label = "success" if number % 3 == 0 else "failure"
        image(folder / label / f"{number:03d}.png", number)
        rows.append(f"{label}/{number:03d}.png,{label},{number // step}")
    (folder / "metadata.csv").write_text("\n".join(rows))
    about = {"env": env, "seed": seed, "scene": {"scene": "panda-hover"}}
    (folder / "dataset.json").write_text(json.dumps(about))
    return folder


def test_no_episode_is_in_two_parts_and_every_part_has_both_classes(tmp_path: Path) -> None:
    dataset = load_dataset(episodes_folder(tmp_path, 90))
    parts = split_by_episode(dataset)
    assert sorted(np.concatenate(parts).tolist()) == list(range(90))
    episodes = [set(dataset.episodes[part].tolist()) for part in parts]
    assert not episodes[0] & episodes[1] and not episodes[1] & episodes[2]
    assert all(len(set(dataset.labels[part].tolist())) == 2 for part in parts)


def sides(folder: Path) -> dict[str, int]:
    dataset = load_dataset(folder)
    return {
        dataset.files[index]: side
        for side, part in enumerate(split_by_episode(dataset))
        for index in part
    }


def test_an_episode_stays_in_its_part_when_a_capture_grows(tmp_path: Path) -> None:
    small = sides(episodes_folder(tmp_path / "small", 90))
    grown = sides(episodes_folder(tmp_path / "grown", 240))
    assert {file: grown[file] for file in small} == small
    # The scene draws the same image whichever of its environments is named.
    assert sides(episodes_folder(tmp_path / "env", 90, env="PandaHover-v0")) == small
    assert sides(episodes_folder(tmp_path / "seed", 90, seed=4)) != small


def test_images_without_episodes_are_split_by_their_content(tmp_path: Path) -> None:
    for number in range(120):
        name = "success" if number % 2 else "failure"
        image(tmp_path / "a" / name / f"{number:03d}.png", number)
        image(tmp_path / "b" / name / f"{200 - number:03d}.png", number)
    moved = {
        f"{file.split('/')[0]}/{200 - int(file[-7:-4]):03d}.png": side
        for file, side in sides(tmp_path / "a").items()
    }
    assert sides(tmp_path / "b") == moved


# Folders from strangers


def png_of(width: int, height: int) -> bytes:
    """A small PNG that decodes to a black image of any size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    packer = zlib.compressobj(9)
    line = bytes(1 + width * 3)
    lines = b"".join(packer.compress(line) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", lines), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_a_small_file_with_huge_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    image_folder(tmp_path)
    target = tmp_path / "success" / "0.png"
    whole = png_of(5000, 4000)
    assert len(whole) < 100_000
    # Without its pixels too: what is found in the header is said, so nothing was decoded.
    for data in (whole, whole[:100]):
        target.write_bytes(data)
        with pytest.raises(DatasetError, match=r"0\.png.*5000x4000 pixels.*4096x4096"):
            load_dataset(tmp_path, size=(16, 20))


@pytest.mark.parametrize("kind", ["EPS", "GIF", "TIFF"])
def test_an_image_of_another_format_is_refused_whatever_its_name(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ghostscript, which PIL starts for EPS, would be found and leave a trace."""
    trace, fake = tmp_path / "ran", tmp_path / "bin" / "gs"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\ntouch {trace}\necho 10.0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # forget what was found before
    data = image_folder(tmp_path / "data")
    Image.new("RGB", (20, 16)).save(data / "success" / "0.png", format=kind)
    for call in (load_dataset, load_frames):
        with pytest.raises(DatasetError, match=r"success/0\.png cannot be read.*PNG, JPEG, BMP"):
            call(data)
    assert not trace.exists()


def test_every_image_is_opened_by_its_formats() -> None:
    """``Image.open`` alone tries all that PIL knows, programs that it starts among them."""
    calls = 0
    for package in ("vinoreward", "envs", "actors", "training", "assets"):
        for file in (Path(__file__).parents[2] / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Image.open"):
                    calls += 1
                    assert "formats" in {one.arg for one in node.keywords}, (file, node.lineno)
    assert calls >= 3


@pytest.mark.parametrize("what", ["success", "success/0.png", "metadata.csv", "dataset.json"])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, what: str) -> None:
    folder, elsewhere = image_folder(tmp_path / "data"), image_folder(tmp_path / "elsewhere")
    (elsewhere / "dataset.json").write_text("{}")
    rows = "failure/1.png,failure,0", "success/0.png,success,1"
    table(elsewhere, *rows)
    if (folder / what).is_dir():
        shutil.rmtree(folder / what)
    (folder / what).unlink(missing_ok=True)
    (folder / what).symlink_to(elsewhere / what)
    for listed in (False, True):
        if listed and what != "metadata.csv":
            table(folder, *rows)
        for call in (load_dataset, load_frames):
            with pytest.raises(DatasetError, match=rf"{what} is a link out of the folder"):
                call(folder)
    (elsewhere / "failure" / "again.png").symlink_to("0.png")  # within the folder it is followed
    (elsewhere / "metadata.csv").unlink()
    assert len(load_dataset(elsewhere).labels) == 9


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("../elsewhere.png,success,0", "relative to the folder"),
        ("success/0.png,success,0", r"line 4: success/0\.png stands in it twice"),
        ("a,b,0,more,cells", "line 4: its columns"),
        ("success/1.png,success,one", "line 4: invalid literal"),
        ("x" * 140_000 + ",success,0", "field larger than"),
        ("success/1.png," + "x" * 200 + ",0", "category is too long"),
        ("success/\ufffe\x1b[2J.png,success,0", "unprintable"),
        (b"success/\xff\xfe.png,success,0", "utf-8"),
        ("[" * 100_000 + "]" * 100_000, "nested too deep"),
        ("[]", "valid dictionary"),
        ('{"scene": {"height": [1]}}', r"scene\.height: Input should be"),
        ('{"scene": {"height": NaN}}', "NaN"),
        ('{"x": "' + "x" * 2_000_000 + '"}', "more than"),
        (b'{"env": "\xff"}', "codec"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_table_or_description_that_cannot_be_right_is_one_sentence(
    tmp_path: Path, row: str | bytes, message: str
) -> None:
    """Another row of the table, or the whole of dataset.json."""
    table(image_folder(tmp_path), "success/0.png,success,0", "failure/0.png,failure,1")
    content = row if isinstance(row, bytes) else row.encode("utf-8")
    described = content[:1] in b"[{"
    with (tmp_path / ("dataset.json" if described else "metadata.csv")).open("ab") as stream:
        stream.write(content)
    for call in (load_dataset,) if described else (load_dataset, load_frames):
        with pytest.raises(DatasetError, match=message):
            call(tmp_path)


def test_names_that_cannot_be_printed_are_refused_and_shown(tmp_path: Path) -> None:
    for name in (b"\xff.png", b"a\x1b[2Jb.png", b"line\nbreak.png"):
        folder = image_folder(tmp_path / str(len(name)))
        os.rename(folder / "success" / "0.png", os.fsencode(folder) + b"/success/" + name)
        with pytest.raises(DatasetError, match="Expected printable names") as refused:
            load_dataset(folder)
        assert str(refused.value).isprintable()
        str(refused.value).encode("utf-8")


def test_more_images_than_memory_is_said_before_they_are_read(tmp_path: Path) -> None:
    folder = image_folder(tmp_path)
    free = free_memory()
    assert free is not None and 1e6 < free < 1e14
    many = ["success/0.png"] * (free // 40_000_000 + 1)
    with pytest.raises(DatasetError, match=r"GB at 4096x4096 .*GB are free.*--image-size"):
        stack_images(folder, many, (4096, 4096))
    with pytest.raises(DatasetError, match=r"8 images .*GB are free"):
        load_dataset(folder, size=(1_000_000, 1_000_000))


@pytest.mark.parametrize("times", [40, pytest.param(300, marks=pytest.mark.full)])
def test_any_damage_of_an_image_ends_in_a_sentence_or_an_image(tmp_path: Path, times: int) -> None:
    path = tmp_path / "x"
    pixels = np.random.default_rng(0).integers(0, 256, (16, 20, 3), dtype=np.uint8)
    noise, rng = Image.fromarray(pixels), random.Random(0)
    for kind in ("PNG", "JPEG", "BMP", "WEBP"):
        noise.save(path, format=kind)
        whole = path.read_bytes()
        for _ in range(times):
            path.write_bytes(mutate_bytes(whole, rng))
            try:
                assert read_image(path).ndim == 3
            except InputError as error:
                assert "Expected a whole PNG" in str(error)


@pytest.mark.parametrize("times", [150, pytest.param(1000, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["metadata.csv", "dataset.json"])
def test_any_damage_of_a_table_or_description_ends_in_a_sentence_or_a_dataset(
    tmp_path: Path, name: str, times: int
) -> None:
    image_folder(tmp_path)
    (tmp_path / "metadata.csv").write_text(
        "file,label,category,episode,distance,object_x,object_y\n"
        "success/0.png,success,success,1,0.01,0.5,0.1\nfailure/0.png,failure,far,2,inf,,\n"
        "success/1.png,success,success,3,,0.5,0.1\nfailure/1.png,failure,near,-4,1,0.1,1e-3\n"
    )
    (tmp_path / "dataset.json").write_text(
        '{"format": "vinoreward image folder 1", "scene": {"height": 16, "mesh": "20"},'
        '"seed": 7, "counts": {"a": [1, 2.5]}, "complete": true, "env": "X-v0"}'
    )
    whole = (tmp_path / name).read_bytes()
    rng = random.Random(1)
    loaded = refused = 0
    for _ in range(times):
        (tmp_path / name).write_bytes(mutate_bytes(whole, rng))
        try:
            assert load_dataset(tmp_path).images.shape[1:] == (16, 20, 3)
            loaded += 1
        except DatasetError as error:
            assert "Expected" in str(error)
            refused += 1
    assert loaded > 3 and refused > 30


def test_a_jpeg_of_very_many_scans_is_refused(tmp_path: Path) -> None:
    """Each takes as long as drawing the image, and 33 bytes."""
    stream = io.BytesIO()
    Image.fromarray(np.full((64, 64, 3), 9, np.uint8)).save(stream, "JPEG", progressive=True)
    whole = stream.getvalue()
    last = whole.rindex(b"\xff\xda")
    (tmp_path / "few.jpg").write_bytes(whole[:last] + 50 * whole[last:-2] + whole[-2:])
    (tmp_path / "many.jpg").write_bytes(whole[:last] + 200 * whole[last:-2] + whole[-2:])
    # What lies behind the image, such as a phone's short video, is not looked at.
    (tmp_path / "more.jpg").write_bytes(whole + 200 * b"\xff\xda")
    assert read_image(tmp_path / "few.jpg").shape == (64, 64, 3)
    np.testing.assert_array_equal(
        read_image(tmp_path / "more.jpg"), np.asarray(Image.open(stream).convert("RGB"))
    )
    with pytest.raises(InputError, match=r"many\.jpg cannot be read .*: it has 2\d\d scans"):
        read_image(tmp_path / "many.jpg")


def test_the_documented_table_of_own_frames_makes_a_dataset(
    project_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (project_root / "docs" / "datasets.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n# make_table\.py\n(.*?)```", text, flags=re.DOTALL)
    won = {}
    for episode in range(60):
        name = f"{episode:03d}"
        (tmp_path / "recordings" / name).mkdir(parents=True)
        if episode % 3:
            won[name] = 2 + episode % 2
        for step in range(4):
            image = Image.new("RGB", (20, 16), (episode, 60 * step, 0))
            image.save(tmp_path / "recordings" / name / f"{step:06d}.jpg")
    lines = "".join(f"{name} {step}\n" for name, step in won.items())
    (tmp_path / "recordings" / "grasped.txt").write_text(lines, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "make_table.py", "exec"), {})
    data = load_dataset(Path("recordings"))
    assert len(data.labels) == 240 and len(np.unique(data.episodes)) == 60
    for file, label in zip(data.files, data.labels, strict=True):
        episode, step = file.removesuffix(".jpg").split("/")
        assert label == (int(step) >= won.get(episode, 9))
    parts = [set(data.episodes[part].tolist()) for part in split_by_episode(data)]
    assert sum(map(len, parts)) == 60 and not set.intersection(*parts)


def table_of(count: int, numbers: Callable[[int, bool], dict[str, float]]) -> list[dict[str, str]]:
    """Rows of episodes, each with two successes and two failures."""
    return [
        {"file": f"{e}-{k}.png", "label": "success" if k > 1 else "failure", "episode": str(e)}
        | {name: f"{value:.6g}" for name, value in numbers(e, k > 1).items()}
        for e in range(count)
        for k in range(4)
    ]


def test_a_number_that_tells_the_label_is_warned_of() -> None:
    rng = np.random.default_rng(0)

    def numbers(episode: int, success: bool) -> dict[str, float]:
        return {"goal": episode % 7, "height": success + rng.uniform(), "noise": rng.normal()}

    (warned,) = find_label_leakage(table_of(60, numbers))
    assert warned.startswith("height alone tells the label of 100% of the images; if that is not")
    # Far fewer episodes than numbers: one of them fits by chance.
    few = table_of(8, lambda episode, success: {f"n{i}": rng.normal() for i in range(200)})
    assert find_label_leakage(few) == []
    # The goal of an episode is the trap: easy goals succeed, hard ones fail.
    table = table_of(60, numbers)
    easy = [
        row
        for row in table
        if (row["label"] == "success") == (float(row["goal"]) < 4) or int(row["episode"]) % 6 == 0
    ]
    trap = next(sentence for sentence in find_label_leakage(easy) if sentence.startswith("goal"))
    assert re.search(r"goal alone tells the label of [89]\d% of the images; it is the same", trap)


def test_images_of_both_labels_are_found_before_a_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for index in range(100):
        pixels = rng.integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
        for label, one in zip(("failure", "success"), pixels, strict=True):
            path = tmp_path / label / f"{index:03d}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(one).save(path)
    assert find_conflicting_duplicates(load_dataset(tmp_path)) is None
    for index in range(70):
        shutil.copy(tmp_path / f"failure/{index:03d}.png", tmp_path / f"success/{index:03d}.png")
        if index == 39:
            said = find_conflicting_duplicates(load_dataset(tmp_path))
            assert said is not None and "80 of 200 images" in said
    with pytest.raises(DatasetError, match=r"140 of 200 .* failure/000.png and success/000"):
        find_conflicting_duplicates(load_dataset(tmp_path))
