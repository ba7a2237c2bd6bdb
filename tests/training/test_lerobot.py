"""LeRobot: its datasets become image folders, its reward classifiers bundles."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lerobot_folders as folders
import numpy as np
import pytest
from lerobot_folders import CAMERA, change_info, moments, write_lerobot
from PIL import Image

from vinoreward.bundles.importers.modules import load_state
from vinoreward.errors import ConfigError, DatasetError, ModelRefusedError
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.capture import command as capture
from vinoreward_training.classifier.lerobot import (
    PREPROCESSOR,
    is_reward_classifier,
    read_reward_classifier,
)
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset import load_dataset, load_frames
from vinoreward_training.data.dataset_files import read_about

Rows = dict[tuple[int, int], dict[str, str]]


def take(dataset: Path, out: Path, **options: object) -> Rows:
    """Capture from a dataset; return the rows by episode and frame."""
    config = CaptureConfig(out=out, recordings=dataset, **options)  # type: ignore[arg-type]
    assert capture.run(config) == 0
    with (out / "metadata.csv").open(newline="") as stream:
        return {
            (int(row["episode"]), int(row["file"][-10:-4])): row for row in csv.DictReader(stream)
        }


@pytest.mark.parametrize(
    ("video", "columns", "frame"),
    [(True, ("next.success", "next.reward"), "next"), (False, ("next.reward",), "same")],
)
def test_images_and_labels_are_those_of_the_recording(
    tmp_path: Path, video: bool, columns: tuple[str, ...], frame: str
) -> None:
    dataset = write_lerobot(tmp_path / "pick", video=video, columns=columns, frame=frame)
    rows = take(dataset, tmp_path / "out")
    # Nothing says what the first image before an action shows; four failures a success are kept.
    failures = min(8 * (12 if frame == "same" else 11) - 18, 4 * 18)
    assert sum(row["label"] == "success" for row in rows.values()) == 6 * 3
    assert len(rows) == 18 + failures
    for (episode, index), row in rows.items():
        success = folders.shown(episode, 12, 3)[index]
        assert row["label"] == ("success" if success else "failure")
        left = list(folders.shown(episode, 12, 3)[index:])
        assert row["to_success"] == (str(left.index(True)) if True in left else "")
        expected = folders.image(success, episode, index).astype(int)
        found = np.asarray(Image.open(tmp_path / "out" / row["file"])).astype(int)
        assert np.abs(found - expected).mean() < (12 if video else 1e-9)
        assert (found - expected).max() < 255 - 60  # the dot is where it was
    assert {row["category"] for row in rows.values()} == {
        "success", "near_miss", "same_episode", "failed_episode",
    }  # fmt: skip
    data = load_dataset(tmp_path / "out")
    assert data.origin == "lerobot pick seed 0"  # so a larger capture splits its episodes alike
    about = read_about(tmp_path / "out")
    assert about["complete"] is True
    assert about["episode_steps"] == 12 and about["success_lasts"] is True


def test_fewer_frames_are_spread_over_all_episodes(tmp_path: Path) -> None:
    rows = take(write_lerobot(tmp_path / "pick", episodes=12), tmp_path / "out", frames=24)
    wins = [key for key, row in rows.items() if row["label"] == "success"]
    losses = [key for key, row in rows.items() if row["label"] == "failure"]
    assert len(wins) == len(losses) == 12
    assert len({episode for episode, _ in wins}) == 9  # all that have a success
    assert len({episode for episode, _ in losses}) == 12
    near = [key for key in losses if rows[key]["category"] == "near_miss"]
    assert near
    assert all(4 <= frame < 9 for _, frame in near)


def test_a_larger_capture_keeps_every_image_of_a_smaller_one(tmp_path: Path) -> None:
    dataset, out = write_lerobot(tmp_path / "pick", video=False), tmp_path / "out"
    before = take(dataset, out, frames=10)
    times = {row["file"]: (out / row["file"]).stat().st_mtime_ns for row in before.values()}
    assert main(["capture", "--resume", "--out", str(out), "--frames", "40"]) == 0
    after = take(dataset, tmp_path / "other", frames=40)
    with (out / "metadata.csv").open(newline="") as stream:
        resumed = {row["file"] for row in csv.DictReader(stream)}
    assert times.keys() < resumed == {row["file"] for row in after.values()}
    assert all((out / file).stat().st_mtime_ns == time for file, time in times.items())


def test_one_of_two_cameras(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = [CAMERA, "observation.images.wrist"]
    dataset = write_lerobot(tmp_path / "pick", cameras=two, episodes=4)
    asked = ["capture", "--recordings", str(dataset), "--out", str(tmp_path / "out")]
    assert main(asked) == 1
    assert f"{two[0]}, {two[1]}; name it with --camera" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*asked, "--camera", two[1]]) == 0
    assert read_about(tmp_path / "out")["scene"]["camera"] == two[1]


def test_a_depth_camera_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    depth = "observation.images.depth"
    dataset = write_lerobot(tmp_path / "pick", cameras=[CAMERA, depth], episodes=4)
    features = json.loads((dataset / "meta/info.json").read_text())["features"]
    features[depth]["info"] = {"is_depth_map": True}
    change_info(dataset, features=features)
    asked = ["capture", "--recordings", str(dataset), "--out", str(tmp_path / "out")]
    assert main([*asked, "--camera", depth]) == 1
    assert f"one of the dataset's cameras in colour: {CAMERA};" in capsys.readouterr().err
    assert main(asked) == 0
    assert f"depth and no colours: {depth}." in capsys.readouterr().out
    assert read_about(tmp_path / "out")["scene"]["camera"] == CAMERA


def test_images_of_another_size(tmp_path: Path) -> None:
    dataset, out = write_lerobot(tmp_path / "pick", video=False), tmp_path / "out"
    take(dataset, out, frames=10, image_size=(16, 24))
    data = load_dataset(out)
    assert data.images.shape[1:] == (16, 24, 3)
    assert data.image().resize == "pil_bilinear"
    # A capture goes on with its own size and labels only.
    for other in ({"image_size": (8, 8)}, {"label_column": "next.reward"}):
        with pytest.raises(ConfigError) as error:
            capture.SETTINGS.of(out=out, frames=20, resume=True, **other)
        assert [error.value.field] == list(other)


def test_images_without_labels_for_an_encoder(tmp_path: Path) -> None:
    dataset = write_lerobot(tmp_path / "pick", columns=())
    with pytest.raises(DatasetError, match=r"no column next\.success or next\.reward.*none"):
        take(dataset, tmp_path / "out")
    rows = take(dataset, tmp_path / "out", label_column="none", frames=80)
    assert len(rows) == 80
    frames = load_frames(tmp_path / "out")
    assert np.unique(frames.episodes).tolist() == list(range(8))


def test_labels_that_cannot_be_are_refused(tmp_path: Path) -> None:
    dataset = write_lerobot(tmp_path / "one", columns=("next.reward",), frame="same")
    with pytest.raises(DatasetError, match=r"from 0 to 11\. Expected 0 and 1 only.*--label-column"):
        take(dataset, tmp_path / "out", label_column="frame_index")
    # One success, at the end: beside the image after the action, as LeRobot's recorder does it.
    dataset = write_lerobot(tmp_path / "two", columns=("next.success",), frame="same", wins=1)
    with pytest.raises(DatasetError, match=r"0 successes and 88 failures.*--label-column"):
        take(dataset, tmp_path / "out")


def test_other_commands_name_the_one_that_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = tmp_path / "pick"
    (dataset / "meta").mkdir(parents=True)
    (dataset / "meta/info.json").write_text("{}")
    assert main(["finetune", "--data", str(dataset), "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert f"vinoreward capture --recordings {dataset} --out data/pick" in error


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path: Path) -> None:
    """Damage the coded images and nothing of the file's structure."""
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 8
    rng = np.random.default_rng(0)
    data[start + 200 : start + 2000] = rng.integers(0, 256, 1800, dtype=np.uint8).tobytes()
    path.write_bytes(data)


def change(path: Path, changed: Callable[[Any], Any]) -> None:
    """Replace the table in a parquet file."""
    import pyarrow.parquet as pq

    pq.write_table(changed(pq.read_table(path)), path)


def fewer_rows(path: Path) -> None:
    change(path, lambda table: table.slice(3))


def link_out(path: Path) -> None:
    path.rename(path.parents[4] / "elsewhere.mp4")
    path.symlink_to(path.parents[4] / "elsewhere.mp4")


DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
FILM = f"videos/{CAMERA}/chunk-000/file-000.mp4"


@pytest.mark.parametrize(
    ("file", "harm", "says"),
    [
        *((file, cut, "LeRobot writes it; restore it") for file in (DATA, EPISODES, FILM)),
        (FILM, garble, "LeRobot writes it; restore it"),
        (FILM, link_out, "a link out of the folder"),
        (DATA, fewer_rows, "episode 0 has 9 rows"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, file: str, harm: Callable[[Path], None], says: str
) -> None:
    dataset = write_lerobot(tmp_path / "pick", episodes=6)
    harm(dataset / file)
    with pytest.raises(DatasetError) as error:
        take(dataset, tmp_path / "out")
    assert Path(file).name in str(error.value)
    assert says in str(error.value)


def with_column(table: Any, name: str, values: Any) -> Any:
    import pyarrow as pa

    return table.set_column(table.schema.get_field_index(name), name, pa.array(values))


def edit(path: Path, changes: dict[str, Callable[[np.ndarray], Any]]) -> None:
    """Replace columns of a parquet file."""
    for name, values in changes.items():
        change(
            path,
            lambda table, name=name, values=values: with_column(
                table, name, values(table.column(name).to_numpy())
            ),
        )


FROM, TO = (f"videos/{CAMERA}/{each}_timestamp" for each in ("from", "to"))


@pytest.mark.parametrize(
    ("file", "changes", "says"),
    [
        # Rows at 11 per second beside a video of 10 per second.
        (
            DATA,
            {"timestamp": lambda times: np.float32(times * 10 / 11)},
            "episode 0, frame_index 1 has the timestamp 0.0909091 s, where frame_index / fps is "
            "0.1 s with the fps 10 of meta/info.json",
        ),
        # Less and more than half of an image's time away from its images.
        (EPISODES, {FROM: lambda t: t + 0.02, TO: lambda t: t + 0.02}, "no image at 0.02 s, "),
        # By whole images: the next episode's, or those after the video's end.
        (EPISODES, {FROM: lambda t: t + 0.1}, "episode 0 has 12 images from 0.1 s"),
        (EPISODES, {FROM: lambda t: t + 0.1, TO: lambda t: t + 0.1}, "it takes 6 s, but its epis"),
    ],
)  # fmt: skip
def test_rows_and_images_that_do_not_belong_together_are_refused(
    tmp_path: Path, file: str, changes: dict[str, Callable[[np.ndarray], Any]], says: str
) -> None:
    dataset = write_lerobot(tmp_path / "pick", episodes=5)
    edit(dataset / file, changes)
    with pytest.raises(DatasetError) as error:
        take(dataset, tmp_path / "out")
    assert says in str(error.value)


POOLS: list[Any] = []
"""What errors hold lies in them."""


@contextlib.contextmanager
def arrow_below(limit: float) -> Iterator[None]:
    """Fail if Arrow took so many bytes or more in the block."""
    import pyarrow as pa

    before = pa.default_memory_pool()
    POOLS.append(pool := pa.proxy_memory_pool(before))
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < limit


def many_lists(path: Path) -> None:
    """One cell of twenty million numbers, in 1 kB."""
    import pyarrow as pa

    def changed(table: Any) -> Any:
        ends = np.r_[0, np.full(table.num_rows, 20_000_000)].astype(np.int32)
        lists = pa.ListArray.from_arrays(ends, np.zeros(20_000_000, np.int8))
        return with_column(table, "next.success", lists)

    change(path, changed)


def large_page(path: Path) -> None:
    """Numbers of 8 MB in 5 kB."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    zeros = np.zeros(1_000_000, np.int64)
    names = ["episode_index", "frame_index", "timestamp", "next.success"]
    pq.write_table(
        pa.table(dict.fromkeys(names, zeros)), path, compression="zstd", use_dictionary=False,
        row_group_size=len(zeros),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("harm", "says"),
    [(many_lists, "holds list<element: int8> and no numbers"), (large_page, "ZSTD expands")],
)
def test_a_small_table_that_would_fill_the_memory_is_refused_unread(
    tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    dataset = write_lerobot(tmp_path / "pick", episodes=2)
    harm(dataset / DATA)
    with arrow_below(2e6), pytest.raises(DatasetError) as error:
        take(dataset, tmp_path / "out")
    assert says in str(error.value)


def test_images_of_tables_are_read_row_by_row(tmp_path: Path) -> None:
    """Each cell is the same large file, which the table holds once."""
    megabytes, says = 40, "cannot be read"
    import pyarrow as pa
    import pyarrow.parquet as pq

    dataset = write_lerobot(tmp_path / "pick", episodes=2, video=False)
    table = pq.read_table(dataset / DATA)
    cells = pa.DictionaryArray.from_arrays(
        np.zeros(table.num_rows, np.int32), pa.array([bytes(megabytes << 20)])
    )
    table = with_column(table, CAMERA, cells)
    pq.write_table(table, dataset / DATA, dictionary_pagesize_limit=1 << 30, store_schema=False)
    del table, cells
    with arrow_below(6 * megabytes * 2**20), pytest.raises(DatasetError) as error:
        take(dataset, tmp_path / "out")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"codebase_version": "v2.1"}, "Expected 'v3.0'; convert the dataset with LeRobot"),
        ({"video_path": "../../{video_key}.mp4"}, "relative to the folder"),
        ({"data_path": "data/{fps}.parquet"}, "{fps}.parquet: there is no such file"),
        ({"fps": 0}, "fps: Input should be greater than 0"),
    ],
)
def test_what_info_json_may_not_say(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    dataset = write_lerobot(tmp_path / "pick", episodes=2)
    change_info(dataset, **changes)
    with pytest.raises(DatasetError) as error:
        take(dataset, tmp_path / "out")
    assert says in str(error.value)


def test_a_playlist_is_not_opened(tmp_path: Path) -> None:
    """FFmpeg would read the files that it names, outside of the folder too."""
    dataset = write_lerobot(tmp_path / "pick", episodes=2)
    film = dataset / FILM
    shutil.move(film, tmp_path / "secret.mp4")
    film.write_text(f"ffconcat version 1.0\nfile {tmp_path / 'secret.mp4'}\n")
    with pytest.raises(DatasetError, match=r"file-000\.mp4: "):
        take(dataset, tmp_path / "out")


def test_a_capture_into_a_dataset_leaves_it_as_it_is(tmp_path: Path) -> None:
    dataset = write_lerobot(tmp_path / "pick", episodes=2)
    before = {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="holds a LeRobot dataset"):
        capture.run(CaptureConfig(out=dataset, resume=True))
    assert {path: path.read_bytes() for path in dataset.rglob("*") if path.is_file()} == before


# --- its reward classifiers ----------------------------------------------------------------------


FOLDERS = Path(__file__).parents[1] / "data" / "lerobot"


@pytest.mark.parametrize(("name", "cameras"), [("resnet10", 1), ("two-cameras", 2)])
def test_logits_are_lerobots(name: str, cameras: int) -> None:
    import torch

    found = read_reward_classifier(FOLDERS / name)
    keys = ["observation.images.front", "observation.images.wrist"][:cameras]
    assert [camera.key for camera in found.cameras] == keys
    assert found.size == (128 * cameras, 128)
    module = found.module().eval()
    inputs = torch.from_numpy(moments(cameras)).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        logits = torch.cat([module(part) for part in inputs.split(50)]).numpy()
    expected = np.load(FOLDERS / name / "logits.npy")
    assert logits.shape == (200, 1)
    assert expected.std() > 0.05  # else any number would agree
    assert np.abs(logits[:, 0] - expected).max() < 1e-4


def test_the_command_makes_a_bundle_with_lerobots_logits(tmp_path: Path) -> None:
    out, folder = tmp_path / "bundle", FOLDERS / "two-cameras"
    assert main(["import", "--model", str(folder), "--out", str(out)]) == 0
    with Classifier(out, backend="onnxruntime", precision="fp32") as classifier:
        found = classifier.predict(moments(2)[::4]).log_odds
        views = classifier.bundle.spec.image.views
    expected = np.load(folder / "logits.npy")[::4]
    assert np.abs(found - expected).max() < 1e-4
    assert [(view.name, view.height, view.source) for view in views or ()] == [
        ("front", 128, "obs:observation.images.front"),
        ("wrist", 128, "obs:observation.images.wrist"),
    ]


def changed(file: str, /, **values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def link_weights_out(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "model.safetensors")
    (folder / "model.safetensors").symlink_to(folder.parent / "model.safetensors")


def with_tensor(name: str, *shape: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        import safetensors.torch
        import torch

        path = folder / "model.safetensors"
        given = {**load_state(path), name: torch.zeros(shape, dtype=torch.float16)}
        safetensors.torch.save_file(given, path)

    return change


REMOTE = [{"registry_name": "normalizer_processor", "config": {}}, {"class": "pkg.mine.Crop"}]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (changed("config.json", name="sac"), "type is 'sac'. Expected 'reward_classifier'"),
        (changed("config.json", num_classes=3), "export others as ONNX"),
        (changed("config.json", num_cameras=2), "1 images in input_features and num_cameras 2"),
        (changed(PREPROCESSOR, steps=REMOTE), "other code is not run here"),
        (link_weights_out, "there is no such file in the folder"),
        # Shapes of megabytes that a network of gigabytes would be built from.
        (
            with_tensor("classifier_head.0.weight", 100_000, 1),
            "head.0.weight has the shape (100000, 1)",
        ),
        (
            with_tensor("encoder.encoder.stages.1000000.norm1.weight", 1),
            "no part has encoder.encoder.stages.1000000.norm1.weight",
        ),
    ],
)
def test_what_cannot_be_rebuilt_is_refused(
    tmp_path: Path, harm: Callable[[Path], None], says: str
) -> None:
    folder = shutil.copytree(FOLDERS / "resnet10", tmp_path / "classifier")
    assert is_reward_classifier(folder)
    harm(folder)
    with pytest.raises(ModelRefusedError) as error:
        read_reward_classifier(folder).module()
    assert says in str(error.value)
