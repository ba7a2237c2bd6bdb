"""Reading labelled pictures: our captures and anybody's image folder."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vinoreward.errors import DatasetError
from vinoreward_training.dataset import load_dataset, split_by_episode


def picture(path: Path, value: int, size: tuple[int, int] = (16, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, dtype=np.uint8)).save(path)


def image_folder(folder: Path, names: tuple[str, str] = ("failure", "success")) -> Path:
    for number in range(4):
        picture(folder / names[0] / f"{number}.png", number)
        picture(folder / names[1] / f"{number}.png", 100 + number)
    return folder


def test_any_image_folder_is_a_dataset_with_one_episode_per_picture(tmp_path: Path) -> None:
    dataset = load_dataset(image_folder(tmp_path))
    assert dataset.images.shape == (8, 16, 20, 3)
    assert dataset.images.dtype == np.uint8
    assert dataset.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len(set(dataset.episodes.tolist())) == 8
    assert np.isnan(dataset.distances).all()
    assert dataset.counts["success"] == 4


def test_the_success_class_can_have_another_name(tmp_path: Path) -> None:
    dataset = load_dataset(image_folder(tmp_path, ("good", "bad")), success_label="good")
    assert dataset.labels.sum() == 4
    assert dataset.images[dataset.labels == 1].max() < 100


def test_classes_that_do_not_have_the_success_name_are_listed(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"bad, good.*--success-label"):
        load_dataset(image_folder(tmp_path, ("good", "bad")))


def test_a_table_gives_episodes_and_decides_what_belongs(tmp_path: Path) -> None:
    image_folder(tmp_path)
    with (tmp_path / "metadata.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["file", "label", "category", "episode", "distance"])
        writer.writerow(["success/0.png", "success", "success", 3, 0.01])
        writer.writerow(["failure/0.png", "failure", "near_miss", 3, 0.05])
    dataset = load_dataset(tmp_path)
    assert dataset.files == ("success/0.png", "failure/0.png")
    assert dataset.episodes.tolist() == [3, 3]
    assert dataset.distances.tolist() == [0.01, 0.05]
    assert dataset.categories.tolist() == ["success", "near_miss"]


def test_the_hash_is_of_the_contents(tmp_path: Path) -> None:
    first = load_dataset(image_folder(tmp_path / "a")).sha256
    assert load_dataset(image_folder(tmp_path / "b")).sha256 == first
    picture(tmp_path / "b" / "success" / "0.png", 77)
    assert load_dataset(tmp_path / "b").sha256 != first


def test_one_class_is_an_error(tmp_path: Path) -> None:
    picture(tmp_path / "success" / "0.png", 1)
    with pytest.raises(DatasetError, match=r"all 1 pictures .* are successes"):
        load_dataset(tmp_path)


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    image_folder(tmp_path)
    broken = tmp_path / "success" / "2.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(DatasetError, match=r"success/2\.png cannot be read"):
        load_dataset(tmp_path)


def test_several_sizes_are_an_error_unless_a_size_is_asked_for(tmp_path: Path) -> None:
    image_folder(tmp_path)
    picture(tmp_path / "success" / "9.png", 5, size=(30, 20))
    with pytest.raises(DatasetError, match=r"9\.png has 30x20 pixels.*--image-size 16 20"):
        load_dataset(tmp_path)
    dataset = load_dataset(tmp_path, size=(16, 20))
    assert dataset.images.shape == (9, 16, 20, 3)
    assert dataset.resized


def test_no_pictures_and_no_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="holds no pictures"):
        load_dataset(tmp_path)
    with pytest.raises(DatasetError, match="vinoreward capture"):
        load_dataset(tmp_path / "nothing")


def test_a_listed_picture_that_is_gone_is_an_error(tmp_path: Path) -> None:
    image_folder(tmp_path)
    (tmp_path / "metadata.csv").write_text(
        "file,label,episode\nsuccess/0.png,success,0\nfailure/gone.png,failure,1\n"
    )
    with pytest.raises(DatasetError, match=r"failure/gone\.png"):
        load_dataset(tmp_path)


def test_no_episode_is_in_two_parts_and_every_part_has_both_classes(tmp_path: Path) -> None:
    rows = ["file,label,episode"]
    for number in range(60):
        label = "success" if number % 3 == 0 else "failure"
        picture(tmp_path / label / f"{number}.png", number)
        rows.append(f"{label}/{number}.png,{label},{number // 3}")
    (tmp_path / "metadata.csv").write_text("\n".join(rows))
    dataset = load_dataset(tmp_path)
    parts = split_by_episode(dataset, seed=1)
    assert sorted(np.concatenate(parts).tolist()) == list(range(60))
    episodes = [set(dataset.episodes[part].tolist()) for part in parts]
    assert not episodes[0] & episodes[1] and not episodes[1] & episodes[2]
    assert all(len(set(dataset.labels[part].tolist())) == 2 for part in parts)
    again = split_by_episode(dataset, seed=1)
    assert all((one == two).all() for one, two in zip(parts, again, strict=True))


def test_too_few_episodes_to_split_is_an_error(tmp_path: Path) -> None:
    picture(tmp_path / "success" / "0.png", 1)
    picture(tmp_path / "failure" / "0.png", 2)
    with pytest.raises(DatasetError, match="capture more episodes"):
        split_by_episode(load_dataset(tmp_path), seed=0)
