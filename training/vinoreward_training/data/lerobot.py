"""Reading a LeRobotDataset v3.0: tables in parquet, images in mp4 or in the tables.

LeRobot itself is not needed and nothing of the folder is executed. Every refusal is a
:class:`~vinoreward.errors.DatasetError`.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field, ValidationError

from vinoreward.errors import DatasetError, InputError, needed_for
from vinoreward.files import open_to_read, read_json
from vinoreward.images import MAX_PIXELS, decode_image, shown_name
from vinoreward_training.data.dataset_files import inside

INFO = "meta/info.json"
VERSION = "v3.0"
MAX_INFO_BYTES = 4 * 2**20
MAX_TABLE_BYTES = 2 * 2**30
"""LeRobot starts a new file at 100 MB."""
MAX_VIDEO_BYTES = 8 * 2**30
"""LeRobot starts a new file at 200 MB."""
MAX_ROWS = 20_000_000
"""Maximum rows of a table; a week at 30 images a second has 18 million."""
MAX_EPISODES = 1_000_000
MAX_RATIO, SMALL_BYTES = 8, 64 * 2**20
"""A column may expand to ``MAX_RATIO`` times its compressed size plus ``SMALL_BYTES``."""
KINDS = {"numbers": ["BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE"], "images": ["BYTE_ARRAY"]}
CODECS = ("SNAPPY", "UNCOMPRESSED")
"""Those that LeRobot uses. Others expand a few bytes to gigabytes, against the declared size."""
TOLERANCE = 1e-4
"""Maximum error of a row's or an image's time in seconds, as in LeRobot's own loader."""
SEEK = 4.0
"""If two wanted images are more seconds apart, the reader seeks instead of decoding on."""
SUCCESS, REWARD = "next.success", "next.reward"
CAMERAS = ("video", "image")

Floats = npt.NDArray[np.float64]
Images = npt.NDArray[np.uint8]


def is_lerobot(folder: Path) -> bool:
    """Return whether a folder has the layout of a LeRobot dataset."""
    return (folder / INFO).is_file()


@dataclass(frozen=True)
class Episode:
    """An episode, and where its rows and images are."""

    number: int
    length: int
    """Rows, one image each."""
    table: str
    """The parquet file, relative to the dataset's folder."""
    video: str
    """The mp4 file; empty if the images are in the table."""
    begins: float
    """Seconds from the beginning of the mp4 file; frame k is shown k / fps later."""
    ends: float
    """Seconds likewise; no image of the episode is later."""


@dataclass(frozen=True)
class Rows:
    """The rows of one episode, by ``frame_index``."""

    episode: Episode
    values: Floats | None
    """``(N,)`` values of the requested column; None if there was none."""


class _Feature(BaseModel):
    dtype: str
    info: object = None

    @property
    def is_depth(self) -> bool:
        """Whether images hold distances in place of colours."""
        info = self.info if isinstance(self.info, dict) else {}
        return bool(info.get("is_depth_map") or info.get("video.is_depth_map"))


class _Info(BaseModel):
    """The keys of ``info.json`` that are read; others are not checked."""

    codebase_version: Literal["v3.0"]
    fps: Annotated[float, Field(strict=True, gt=0, lt=1e5)]
    features: dict[str, _Feature]
    data_path: Annotated[str, Field(max_length=1000)]
    video_path: Annotated[str, Field(max_length=1000)] | None = None


class LeRobotFolder:
    """A dataset's folder, with the images of one of its cameras.

    Args:
        folder: it has ``meta/info.json``.
        camera: key of the images, such as ``observation.images.front``; optional if the dataset
            has only one in colour.
    """

    def __init__(self, folder: Path, camera: str | None = None) -> None:
        with needed_for("reading a LeRobot dataset", "lerobot"):
            import av  # noqa: F401
            import pyarrow.parquet  # noqa: F401
        self.folder = Path(folder)
        self._info = self._read_info()
        self.fps = self._info.fps
        features = self._info.features
        of_images = {name for name, feature in features.items() if feature.dtype in CAMERAS}
        self.columns = sorted(features.keys() - of_images)
        """Names of the columns that contain no images."""
        self.depth_cameras = sorted(name for name in of_images if features[name].is_depth)
        """Keys of images that hold distances, which no classifier here takes."""
        cameras = sorted(of_images - set(self.depth_cameras))
        if camera is None and len(cameras) == 1:
            camera = cameras[0]
        if camera is None or camera not in cameras:
            raise DatasetError(
                field="camera",
                value=camera,
                expected="one of the dataset's cameras in colour: "
                + (", ".join(map(shown_name, cameras)) or "there is none"),
                remedy="name it with `camera`",
            )
        self.camera = camera
        self._video = features[camera].dtype == "video"
        self.episodes = self._read_episodes()

    @property
    def frames(self) -> int:
        """Number of images."""
        return sum(episode.length for episode in self.episodes)

    @property
    def skipped(self) -> str:
        """A sentence on the cameras that are left out, after a space; empty without any."""
        names = ", ".join(map(shown_name, self.depth_cameras))
        return f" Skipped, as these images hold depth and no colours: {names}." if names else ""

    @property
    def scene(self) -> dict[str, Any]:
        """What a bundle records about the origin of the images.

        Cameras of a dataset share ``scene``, because their episodes must be split in the same way.
        """
        return {"scene": f"lerobot {self.folder.resolve().name}", "camera": self.camera}

    def label_column(self, name: str | None) -> str:
        """Return the column that marks successes: ``name``, else the first default that exists."""
        wanted = (SUCCESS, REWARD) if name is None else (name,)
        column = next((each for each in wanted if each in self.columns), None)
        if column is None:
            raise DatasetError(
                f"{shown_name(self.folder)} has no column {' or '.join(wanted)}. Expected a column "
                "of truth values or numbers that says which step is a success; name it with "
                f"--label-column, or give --label-column none for images without labels. It has "
                f"{', '.join(map(shown_name, self.columns))}."
            )
        return column

    def rows(self, column: str | None) -> Iterator[Rows]:
        """Yield the rows of each episode, with the numbers in ``column`` if one is named."""
        by_table: dict[str, list[Episode]] = defaultdict(list)
        for episode in self.episodes:
            by_table[episode.table].append(episode)
        for table, episodes in by_table.items():
            names = ["episode_index", "frame_index", *([column] if column else [])]
            names += ["timestamp"] if self._video else []
            cells = self._read_table(table, names)
            numbers = cells["episode_index"].astype(np.int64)
            order = np.lexsort((cells["frame_index"], numbers))
            numbers = numbers[order]
            for episode in episodes:
                low, high = np.searchsorted(numbers, [episode.number, episode.number + 1])
                own = order[low:high]
                if not np.array_equal(cells["frame_index"][own], np.arange(episode.length)):
                    raise self._wrong(
                        table,
                        f"episode {episode.number} has {len(own)} rows, or other frame_index "
                        f"than 0 to {episode.length - 1}",
                    )
                if self._video:
                    self._check_times(table, episode, cells["timestamp"][own])
                yield Rows(episode, cells[column][own] if column else None)

    def images(
        self, wanted: Sequence[tuple[Rows, Sequence[int]]]
    ) -> Iterator[tuple[Episode, int, Images]]:
        """Yield episode, frame and image ``(H, W, 3)`` uint8 RGB, in the order of the files.

        ``wanted`` are rows of :meth:`rows`, each with its frames.
        """
        by_file: dict[str, list[tuple[Episode, int]]] = defaultdict(list)
        for rows, frames in wanted:
            file = rows.episode.video or rows.episode.table
            by_file[file] += [(rows.episode, int(frame)) for frame in frames]
        for file, pairs in by_file.items():
            pairs.sort(key=lambda pair: (pair[0].begins, pair[1]))
            yield from (self._from_video if self._video else self._from_table)(file, pairs)

    def _from_video(
        self, file: str, pairs: Sequence[tuple[Episode, int]]
    ) -> Iterator[tuple[Episode, int, Images]]:
        times = [episode.begins + frame / self.fps for episode, frame in pairs]
        end = max(episode.ends for episode in self.episodes if episode.video == file)
        with self._reading(file) as stack:
            images = _decoded(inside(self.folder, file), times, self.fps, end, stack)
            for (episode, frame), image in zip(pairs, images, strict=True):
                yield episode, frame, image

    def _from_table(
        self, file: str, pairs: Sequence[tuple[Episode, int]]
    ) -> Iterator[tuple[Episode, int, Images]]:
        remaining = {(episode.number, frame): episode for episode, frame in pairs}
        names = ["episode_index", "frame_index", self.camera]
        with self._reading(file) as stack:
            # Row by row: a file of a few bytes can repeat an image of 100 MB in all of its rows.
            for row in self._table(file, names, stack).iter_batches(1, columns=names):
                if not remaining:
                    break
                number, frame, cell = (row.column(name)[0].as_py() for name in names)
                if (episode := remaining.pop((number, frame), None)) is not None:
                    name = f"{file}, episode {number}, frame {frame}"
                    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
                    if not isinstance(data, bytes):
                        raise self._wrong(name, f"{self.camera} holds no image file")
                    yield episode, frame, decode_image(data, str(self.folder / name))

    def _check_times(self, table: str, episode: Episode, times: Floats) -> None:
        """Raise DatasetError for rows whose timestamps differ from the times of their images."""
        wanted = np.arange(episode.length) / self.fps
        if (wrong := np.abs(times - wanted) > _slack(wanted, self.fps)).any():
            frame = int(wrong.argmax())
            raise self._wrong(
                table,
                f"episode {episode.number}, frame_index {frame} has the timestamp "
                f"{times[frame]:.6g} s, where frame_index / fps is {wanted[frame]:.6g} s with the "
                f"fps {self.fps:g} of {INFO}, so rows and images do not belong together",
            )

    def _check_video_ranges(self, episodes: Sequence[Episode]) -> None:
        """Raise DatasetError for episodes that overlap the next one in their video."""
        in_video = sorted((e for e in episodes if e.video), key=lambda e: (e.video, e.begins))
        for one, other in zip_longest(in_video, in_video[1:]):
            end = one.ends
            if other is not None and other.video == one.video:
                end = min(end, other.begins)
            if one.begins + (one.length - 0.5) / self.fps > end:
                raise self._wrong(
                    one.video,
                    f"episode {one.number} has {one.length} images from {one.begins:.6g} s, its "
                    f"from_timestamp, which do not end at {end:.6g} s, where its to_timestamp or "
                    "the next episode is",
                )

    def _wrong(self, file: str, why: str) -> DatasetError:
        return DatasetError(
            f"{shown_name(self.folder / file)}: {shown_name(why).rstrip('.')}. Expected a file of "
            f"a LeRobotDataset {VERSION} as LeRobot writes it; restore it, or record it again."
        )

    def _read_info(self) -> _Info:
        try:
            return _Info.model_validate(read_json(inside(self.folder, INFO), MAX_INFO_BYTES))
        except FileNotFoundError as error:
            raise DatasetError(
                f"{shown_name(self.folder)} has no {INFO}. Expected the folder of a LeRobotDataset "
                "on this disk, with meta, data and videos; download it first, or correct the path."
            ) from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(map(str, first["loc"]))
            if name == "codebase_version":
                raise DatasetError(
                    f"{shown_name(self.folder / INFO)} has codebase_version "
                    f"{shown_name(repr(first['input']))[:80]}. Expected {VERSION!r}; convert the "
                    "dataset with LeRobot 0.5.1 or newer: python -m "
                    "lerobot.scripts.convert_dataset_v21_to_v30 --repo-id=NAME --root=FOLDER "
                    "--push-to-hub=false"
                ) from error
            raise self._wrong(INFO, f"{name}: {first['msg']}") from error
        except (OSError, ValueError) as error:
            raise self._wrong(INFO, str(error)) from error

    def _path(self, template: str | None, chunk: int, file: int) -> str:
        """Return the path from a template of ``info.json``."""
        path = template or ""  # not by str.format, which looks up attributes and pads to any width
        for place, value in (
            ("{chunk_index:03d}", f"{chunk:03d}"),
            ("{file_index:03d}", f"{file:03d}"),
            ("{video_key}", self.camera),
        ):
            path = path.replace(place, value)
        return path

    def _read_episodes(self) -> list[Episode]:
        folder = inside(self.folder, "meta/episodes")
        files = sorted(path.relative_to(self.folder) for path in folder.glob("*/*.parquet"))
        if not files:
            raise self._wrong("meta/episodes", "no table of episodes is there")
        names = ["episode_index", "length", "data/chunk_index", "data/file_index"]
        if self._video:
            columns = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
            names += [f"videos/{self.camera}/{name}" for name in columns]
        episodes: dict[int, Episode] = {}
        for path in map(Path.as_posix, files):
            cells = self._read_table(path, names, MAX_EPISODES - len(episodes))
            for row in zip(*(cells[name].tolist() for name in names), strict=True):
                number, length, chunk, file = map(int, row[:4])
                begins, ends = row[6:] if self._video else (0.0, 0.0)
                table, video = self._path(self._info.data_path, chunk, file), ""
                if self._video:
                    video = self._path(self._info.video_path, int(row[4]), int(row[5]))
                possible = 1 <= length <= MAX_ROWS and 0 <= begins <= MAX_ROWS / self.fps
                if number < 0 or number in episodes or not possible:
                    raise self._wrong(
                        path,
                        f"episode {number} has {length} rows from {begins:g} s, or occurs twice",
                    )
                episodes[number] = Episode(number, length, table, video, begins, ends)
        self._check_video_ranges(list(episodes.values()))
        # In the order of the files, so that each file is read once, from its beginning.
        return sorted(episodes.values(), key=lambda e: (e.table, e.video, e.begins, e.number))

    @contextlib.contextmanager
    def _reading(self, file: str) -> Iterator[contextlib.ExitStack]:
        """Convert exceptions of the libraries for a damaged file to DatasetError."""
        import av
        import pyarrow

        # ArrowInvalid is a ValueError, most of PyAV's errors are OSErrors or ValueErrors.
        try:
            with contextlib.ExitStack() as stack:
                yield stack
        except DatasetError:
            raise
        except InputError as error:
            raise DatasetError(str(error)) from error
        except FileNotFoundError as error:
            raise self._wrong(file, "there is no such file") from error
        except (
            OSError, ValueError, TypeError, ArithmeticError, LookupError, RuntimeError,
            pyarrow.ArrowException, av.FFmpegError,
        ) as error:  # fmt: skip
            raise self._wrong(file, str(error) or type(error).__name__) from error

    def _table(
        self, file: str, names: Sequence[str], stack: contextlib.ExitStack, most: int = MAX_ROWS
    ) -> Any:
        """Open a parquet file; it must have these columns and at most ``most`` rows."""
        import pyarrow.parquet

        stream = stack.enter_context(open_to_read(inside(self.folder, file), MAX_TABLE_BYTES))
        table = stack.enter_context(pyarrow.parquet.ParquetFile(stream))
        found = table.schema_arrow.names
        if missing := [name for name in names if name not in found]:
            raise ValueError(f"it has no column {', '.join(missing)} but {', '.join(found)}"[:1000])
        _check_columns(table, names, self.camera, most)
        return table

    def _read_table(
        self, file: str, names: Sequence[str], most: int = MAX_ROWS
    ) -> dict[str, Floats]:
        """Return columns of numbers as ``(N,)`` float64, which is exact for integers up to 2^53."""
        with self._reading(file) as stack:
            table = self._table(file, names, stack, most)
            columns = {name: table.read(columns=[name]).column(name) for name in names}
            numbers = {n: np.asarray(c.to_numpy()).astype(np.float64) for n, c in columns.items()}
            for name, column in columns.items():
                if column.null_count or not np.isfinite(numbers[name]).all():
                    raise ValueError(f"{name} has an empty cell, NaN or infinity")
            return numbers


def _check_columns(table: Any, names: Sequence[str], camera: str, most: int) -> None:
    """Raise ValueError for a parquet file with other types of columns, or too much data in them.

    Lists are refused, because their length is only known after reading them.
    """
    groups = [table.metadata.row_group(index) for index in range(table.num_row_groups)]
    if (rows := sum(group.num_rows for group in groups)) > most:
        raise ValueError(f"it has {rows} rows, more than {most}")
    for index in range(len(table.schema)):
        column = table.schema.column(index)
        # The same choice as Arrow's: the column itself, or the fields of a structure.
        name = next((n for n in names if column.path == n or column.path.startswith(f"{n}.")), None)
        if name is None:
            continue
        what = "images" if name == camera else "numbers"
        if column.physical_type not in KINDS[what] or column.max_repetition_level:
            raise ValueError(f"{name} holds {table.schema_arrow.field(name).type} and no {what}")
        for group in groups:
            chunk = group.column(index)
            packed, size = chunk.total_compressed_size, chunk.total_uncompressed_size
            large = size > MAX_RATIO * packed + SMALL_BYTES
            if chunk.num_values != group.num_rows or large or chunk.compression not in CODECS:
                raise ValueError(
                    f"{name} has {chunk.num_values} values in {group.num_rows} rows, and "
                    f"{chunk.compression} expands {packed} to {size} bytes"
                )


def _slack(seconds: Any, fps: float) -> Any:
    """Return the maximum error of times, which LeRobot stores as float32; below half a frame."""
    return np.minimum(TOLERANCE + seconds * 2.0**-23, 0.25 / fps)


def _decoded(
    path: Path, times: Sequence[float], fps: float, end: float, stack: contextlib.ExitStack
) -> Iterator[Images]:
    """Yield the image ``(H, W, 3)`` at each of these increasing times of an mp4 file.

    ``end`` is where its last episode ends, in seconds.
    """
    import av

    stream = stack.enter_context(open_to_read(path, MAX_VIDEO_BYTES))
    # The format is named: FFmpeg would also open playlists, which name other files.
    container = stack.enter_context(av.open(stream, mode="r", format="mp4"))
    video = container.streams.video[0]
    if video.codec_context is None:
        raise ValueError("no decoder here knows how its images are coded")
    video.thread_type = "AUTO"
    size = video.codec_context.width * video.codec_context.height
    if not 0 < size <= MAX_PIXELS:
        raise ValueError(f"its images have {size} pixels, more than {MAX_PIXELS}")
    length = float(video.duration * video.time_base) if video.duration and video.time_base else end
    if length < end - 0.5 / fps:
        raise ValueError(f"it takes {length:.6g} s, but its episodes end at {end:.6g} s")
    seeks = True
    frames, at, last = container.decode(video), -1.0, None
    budget = 1000 + int(4 * fps * max(times))
    for time in times:
        slack = _slack(time, fps)
        before = -1.0
        if seeks and time - at > SEEK and video.time_base:
            container.seek(int(time / video.time_base), stream=video, backward=True)
            frames, before, last = container.decode(video), at, None
        while last is None or at < time - slack:
            last = next(frames, None)
            if last is None or last.time is None:
                raise ValueError(f"it ends before {time:.6g} s, from_timestamp + frame_index / fps")
            at, budget = last.time, budget - 1
            if budget < 0:
                raise ValueError("it has far more images than its duration allows")
            seeks &= at >= before  # otherwise there are too few key frames for seeking
        if at > time + slack:
            raise ValueError(
                f"it has no image at {time:.6g} s, from_timestamp + frame_index / fps, the next "
                f"is at {at:.6g} s"
            )
        if last.is_corrupt or last.width * last.height > MAX_PIXELS:
            raise ValueError(f"its image at {time:.3f} s is damaged")
        yield np.asarray(last.to_ndarray(format="rgb24"), dtype=np.uint8)
