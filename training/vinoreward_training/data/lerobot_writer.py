"""Writing a LeRobotDataset v3.0: whole episodes, numbers in parquet and images in mp4.

LeRobot itself is not needed. Each file holds some whole episodes. ``meta/info.json`` is written
last and counts the episodes: a file that a killed process left beyond them is replaced when the
recording goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, DatasetError, RunFolderError, needed_for
from vinoreward.files import open_plain, read_json, write_json
from vinoreward.processes import interrupt_between
from vinoreward_training.data.lerobot import INFO, MAX_INFO_BYTES, VERSION, is_lerobot

STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH = f"data/{FILE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{FILE}.mp4"
EPISODES_PATH = f"meta/episodes/{FILE}.parquet"
CHUNK = 1000
"""Files in a folder."""
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
LOOKED_AT = 150
"""Pixels of an image's side from which about every second one counts for the statistics."""
CODEC = "h264"
CODEC_OPTIONS = {"crf": "18", "g": "2", "preset": "fast", "tune": "zerolatency"}
"""Two images from one key frame to the next, as LeRobot writes: it reads them in any order.
Without latency an image's data are in the file before the next one is taken."""
OWN: Mapping[str, str] = {
    "timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64",
    "task_index": "int64",
}  # fmt: skip
"""Columns that the writer fills, and their types."""

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Stats = dict[str, dict[str, Floats]]


def camera_feature(shape: Sequence[int]) -> dict[str, Any]:
    """Return the description of images ``(H, W, 3)`` that become a video."""
    names = ["height", "width", "channels"]
    return {"dtype": "video", "shape": [int(size) for size in shape], "names": names}


def column_feature(dtype: str, length: int = 1) -> dict[str, Any]:
    """Return the description of a column of ``length`` numbers each row."""
    return {"dtype": dtype, "shape": [length], "names": None}


class LeRobotWriter:
    """Writes whole episodes into a folder; continues the dataset that is there.

    At the end of a ``with`` block all episodes that :meth:`end_episode` closed are saved, also
    after an exception; the one in progress is left out.

    Args:
        folder: the dataset's.
        features: of each column that :meth:`add` gets, by name: :func:`camera_feature` or
            :func:`column_feature`.
        fps: rows per second.
        task: what is done in the episodes, in words.

    Raises:
        ConfigError: another dataset is there.
        MissingExtraError: pyarrow or PyAV is not installed.
    """

    def __init__(
        self, folder: Path, features: Mapping[str, Mapping[str, Any]], fps: int, task: str
    ) -> None:
        with needed_for("writing a LeRobot dataset", "lerobot"):
            import av  # noqa: F401
            import pyarrow.parquet  # noqa: F401
        self.folder, self.fps, self.task = Path(folder), int(fps), task
        self._features = {name: dict(feature) for name, feature in features.items()}
        self._features |= {name: column_feature(dtype) for name, dtype in OWN.items()}
        for feature in self._features.values():
            if feature["dtype"] == "video":
                feature["info"] = self._video_info(*feature["shape"][:2])
        self.episodes = self.frames = 0
        """Of closed episodes, saved or not."""
        self._saved = (0, 0)
        self._files = 0
        self._stats: Stats = {}
        self._part: _Part | None = None
        if is_lerobot(self.folder):
            self._continue()

    def __enter__(self) -> LeRobotWriter:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Save the closed episodes."""
        self.save()

    def add(self, cells: Mapping[str, Any], images: Mapping[str, Images]) -> None:
        """Add a row to the episode in progress.

        Args:
            cells: a number, or ``(length,)`` numbers, for each column that is no image.
            images: ``(H, W, 3)`` uint8 RGB for each camera.

        Raises:
            RunFolderError: the disk is full or the folder not writable; what was not saved is lost.
        """
        with self._writing():
            if self._part is None:
                self._part = _Part(self.folder, self._files, self._features, self.fps)
            self._part.add(cells, images)

    def end_episode(self) -> None:
        """Close the episode in progress; it has at least one row."""
        if self._part is None or not self._part.length:
            raise ConfigError("the episode has no row. Expected one or more; call add() first.")
        self.frames += self._part.length
        self.episodes += 1
        self._part.end_episode(self.episodes - 1, self.frames, self.task)

    def save(self) -> None:
        """Write the closed episodes that are not saved yet, as a file of each kind.

        Ctrl-C waits for the end. RunFolderError as :meth:`add`.
        """
        part, self._part = self._part, None
        if part is None:
            return
        if not part.episodes:
            part.discard()
            return
        with self._writing(part), interrupt_between() as check:
            part.save()
            self._stats = merged(self._stats, part.stats)
            self._files += 1
            self._write_info()
            self._saved = self.episodes, self.frames
            check(lambda: None)

    @contextlib.contextmanager
    def _writing(self, part: _Part | None = None) -> Iterator[None]:
        """Drop what is not saved if the block cannot write, and say how to go on."""
        import av
        import pyarrow

        try:
            yield
        except (OSError, av.FFmpegError, pyarrow.ArrowException) as error:
            part, self._part = part or self._part, None
            if part is not None:
                part.discard()
            self.episodes, self.frames = self._saved
            reason = error.__cause__ if isinstance(error, RunFolderError) else error
            why = getattr(reason, "strerror", None) or reason
            raise RunFolderError(
                f"cannot write the dataset {self.folder}: {why}. Expected a writable folder with "
                f"free space; free some and continue with --resume, {self.episodes} episodes are "
                "kept."
            ) from error

    def _video_info(self, height: int, width: int) -> dict[str, Any]:
        return {
            "video.height": height,
            "video.width": width,
            "video.codec": CODEC,
            "video.pix_fmt": pixel_format(height, width),
            "video.fps": self.fps,
            "video.channels": 3,
            "has_audio": False,
            "is_depth_map": False,
        }

    def _continue(self) -> None:
        """Take over what is saved in the folder."""
        import pyarrow.parquet

        try:
            info = read_json(self.folder / INFO, MAX_INFO_BYTES)
            stats = read_json(self.folder / STATS)
            known = json.loads(json.dumps(self._features))
            same = (info["features"], info["fps"], info["codebase_version"])
            if same != (known, self.fps, VERSION):
                raise ValueError("it has other columns or another fps")
            self.episodes, self.frames = int(info["total_episodes"]), int(info["total_frames"])
            self._saved = self.episodes, self.frames
            self._stats = {
                column: {name: np.asarray(value, np.float64) for name, value in each.items()}
                for column, each in stats.items()
            }
            for path in sorted((self.folder / "meta/episodes").glob("*/*.parquet")):
                numbers = pyarrow.parquet.read_table(path, columns=["episode_index"])
                self._files += numbers["episode_index"][0].as_py() < self.episodes
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self.folder} holds another LeRobot dataset: {error}. Expected one that the same "
                "capture began; choose another folder with --out."
            ) from error

    def _write_info(self) -> None:
        import pyarrow as pa

        if not (self.folder / TASKS).is_file():
            # LeRobot reads it with pandas, the task as index.
            kinds = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
            columns = [
                {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": other}
                for name, (kind, other) in kinds.items()
            ]
            index = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
            table = pa.table({"task_index": [0], "task": [self.task]})
            table = table.replace_schema_metadata({"pandas": json.dumps(index)})
            _write_table(table, self.folder / TASKS)
        write_json(self.folder / STATS, listed(self._stats))
        info = {
            "codebase_version": VERSION,
            "robot_type": None,
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": 1,
            "chunks_size": CHUNK,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": self.fps,
            "splits": {"train": f"0:{self.episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH,
            "features": self._features,
        }
        write_json(self.folder / INFO, info)


class _Part:
    """Episodes that go into one file of each kind, under temporary names until they are saved."""

    def __init__(
        self, folder: Path, number: int, features: Mapping[str, Mapping[str, Any]], fps: int
    ) -> None:
        self._folder, self._features, self._fps = folder, features, fps
        self._place = {"chunk_index": number // CHUNK, "file_index": number % CHUNK}
        self._columns: dict[str, list[Any]] = {}
        self._seen: dict[str, npt.NDArray[np.int64]] = {}
        self._films: dict[str, _Film] = {}
        for key, feature in features.items():
            if feature["dtype"] == "video":
                path = folder / VIDEO_PATH.format(video_key=key, **self._place)
                self._films[key] = _Film(path, feature["shape"], fps)
                self._seen[key] = np.zeros((3, 256), np.int64)
            else:
                self._columns[key] = []
        self._closed = 0
        self.length = 0
        """Rows of the episode in progress."""
        self.episodes: list[dict[str, Any]] = []
        self.stats: Stats = {}

    def add(self, cells: Mapping[str, Any], images: Mapping[str, Images]) -> None:
        own = {"timestamp": self.length / self._fps, "frame_index": self.length}
        for key, film in self._films.items():
            film.add(key, images[key])
            self._seen[key] += _histogram(images[key])
        self.length += 1  # the row counts once it is whole
        for key in self._columns.keys() & {*cells, *own}:
            self._columns[key].append({**cells, **own}[key])

    def end_episode(self, number: int, end: int, task: str) -> None:
        """Close the episode; ``end`` is the number of rows of the dataset with it."""
        count, start = self.length, self._closed
        for key, values in (
            ("episode_index", np.full(count, number)),
            ("index", np.arange(end - count, end)),
            ("task_index", np.zeros(count, np.int64)),
        ):
            self._columns[key] += values.tolist()
        stats = {
            key: _statistics(np.asarray(values[start:], np.float64).reshape(count, -1))
            for key, values in self._columns.items()
        }
        stats |= {key: _of_pixels(seen, count) for key, seen in self._seen.items()}
        place = self._place
        entry: dict[str, Any] = {"episode_index": number, "tasks": [task], "length": count}
        entry |= {f"data/{name}": value for name, value in place.items()}
        entry |= {"dataset_from_index": end - count, "dataset_to_index": end}
        for key in self._films:
            entry |= {f"videos/{key}/{name}": value for name, value in place.items()}
            entry |= {
                f"videos/{key}/from_timestamp": start / self._fps,
                f"videos/{key}/to_timestamp": (start + count) / self._fps,
            }
        for key, each in listed(stats).items():
            entry |= {f"stats/{key}/{name}": value for name, value in each.items()}
        entry |= {f"meta/episodes/{name}": value for name, value in place.items()}
        self.episodes.append(entry)
        self.stats = merged(self.stats, stats)
        for seen in self._seen.values():
            seen[:] = 0
        self._closed, self.length = start + count, 0

    def save(self) -> None:
        """Write the files, images first; of an episode in progress only the images stay."""
        import pyarrow as pa

        columns = {}
        for key, values in self._columns.items():
            length = self._features[key]["shape"][0]
            kind = pa.type_for_alias(self._features[key]["dtype"])
            numbers = np.asarray(values[: self._closed], self._features[key]["dtype"]).ravel()
            column = pa.array(numbers, kind)
            columns[key] = (
                column if length == 1 else pa.FixedSizeListArray.from_arrays(column, length)
            )
        for film in self._films.values():
            film.save()
        for template, table in (
            (DATA_PATH, pa.table(columns)),
            (EPISODES_PATH, pa.Table.from_pylist(self.episodes)),
        ):
            _write_table(table, self._folder / template.format(**self._place))

    def discard(self) -> None:
        for film in self._films.values():
            film.discard()


class _Film:
    """An mp4 file in progress."""

    def __init__(self, path: Path, shape: Sequence[int], fps: int) -> None:
        import av

        self._path, self._shape = path, tuple(shape)
        self._stream = _part_of(path)
        self._container = av.open(self._stream, "w", format="mp4")
        video: Any = self._container.add_stream(CODEC, rate=fps, options=CODEC_OPTIONS)
        video.height, video.width = shape[:2]
        video.pix_fmt = pixel_format(*shape[:2])
        self._video = video

    def add(self, key: str, image: Images) -> None:
        import av

        if image.shape != self._shape or image.dtype != np.uint8:
            raise DatasetError(
                f"an image of {key} is {image.dtype} {image.shape}. Expected uint8 "
                f"{self._shape} as the first one; give --image-size HEIGHT WIDTH."
            )
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        self._container.mux(self._video.encode(frame))

    def save(self) -> None:
        self._container.mux(self._video.encode())
        self._container.close()
        _finish(self._stream, self._path)

    def discard(self) -> None:
        import av

        remove = Path(self._stream.name).unlink
        for close in (self._container.close, self._stream.close, remove):
            with contextlib.suppress(OSError, ValueError, av.FFmpegError):
                close()


def _part_of(path: Path) -> IO[bytes]:
    """Open the file in which ``path`` is written until it is whole.

    After a kill the same one is written anew, and its name is none that LeRobot would read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    return open_plain(path.with_name(f".{path.name}.part"), "wb")


def _finish(stream: IO[bytes], path: Path) -> None:
    stream.flush()
    os.fsync(stream.fileno())
    stream.close()
    os.replace(stream.name, path)


def _write_table(table: Any, path: Path) -> None:
    import pyarrow.parquet

    with _part_of(path) as stream:
        try:
            pyarrow.parquet.write_table(table, stream)
            _finish(stream, path)
        except BaseException:
            Path(stream.name).unlink(missing_ok=True)
            raise


def pixel_format(height: int, width: int) -> str:
    """Return FFmpeg's name of how an image's colours are kept: at half the size if it is even."""
    return "yuv420p" if height % 2 == width % 2 == 0 else "yuv444p"


def _histogram(image: Images) -> npt.NDArray[np.int64]:
    """Count the values of each channel, ``(3, 256)``; of a large image not of every pixel."""
    step = max(1, min(image.shape[:2]) // LOOKED_AT)
    pixels = image[::step, ::step].reshape(-1, 3)
    return np.stack([np.bincount(pixels[:, channel], minlength=256) for channel in range(3)])


def _of_pixels(seen: npt.NDArray[np.int64], count: int) -> dict[str, Floats]:
    """Return the statistics of pixels from 0 to 1, each ``(3, 1, 1)``, by their counts."""
    values = np.arange(256) / 255
    total = seen.sum(axis=1)
    mean = seen @ values / total
    ranks = seen.cumsum(axis=1)
    stats = {
        "min": np.array([values[row.nonzero()[0][0]] for row in seen]),
        "max": np.array([values[row.nonzero()[0][-1]] for row in seen]),
        "mean": mean,
        "std": np.sqrt(np.maximum(seen @ values**2 / total - mean**2, 0)),
    }
    for share in QUANTILES:
        stats[f"q{share * 100:02.0f}"] = values[(ranks < share * total[:, None]).sum(axis=1)]
    return {name: value.reshape(3, 1, 1) for name, value in stats.items()} | {
        "count": np.array([count], np.float64)
    }


def _statistics(values: Floats) -> dict[str, Floats]:
    """Return the statistics ``(D,)`` of rows ``(N, D)``; what is not finite counts as 0."""
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    stats = {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "count": np.array([len(values)], np.float64),
    }
    found = np.quantile(values, QUANTILES, axis=0)
    return stats | {
        f"q{share * 100:02.0f}": row for share, row in zip(QUANTILES, found, strict=True)
    }


def merged(one: Stats, other: Stats) -> Stats:
    """Return the statistics of two sets of rows together.

    Quantiles, which cannot be had from two parts, are the mean of both, weighted by rows.
    """
    if not one or not other:
        return one or other
    both: Stats = {}
    for key, a in one.items():
        b = other[key]
        rows = a["count"] + b["count"]
        share = b["count"] / rows
        mean = a["mean"] + share * (b["mean"] - a["mean"])
        each = {name: a[name] + share * (b[name] - a[name]) for name in a if name[0] == "q"}
        squares = (1 - share) * (a["std"] ** 2 + a["mean"] ** 2)
        squares = squares + share * (b["std"] ** 2 + b["mean"] ** 2)
        each |= {"min": np.minimum(a["min"], b["min"]), "max": np.maximum(a["max"], b["max"])}
        each |= {"mean": mean, "std": np.sqrt(np.maximum(squares - mean**2, 0)), "count": rows}
        both[key] = each
    return both


def listed(stats: Stats) -> dict[str, dict[str, Any]]:
    """Return statistics as plain lists; ``count`` of whole numbers."""
    return {
        key: {
            name: (value.astype(np.int64) if name == "count" else value).tolist()
            for name, value in each.items()
        }
        for key, each in stats.items()
    }
