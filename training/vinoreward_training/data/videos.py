"""Images of videos with labels by time; each video is an episode.

Labels are a table of times, or the folders ``success`` and ``failure`` of whole videos. An image
is taken every 1 / fps seconds. FFmpeg reads plain video files only, never a playlist, whose entries
could be other files or addresses.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import subprocess
import tempfile
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from vinoreward.errors import DatasetError, needed_for
from vinoreward.files import shown
from vinoreward.images import MAX_PIXELS, shown_name
from vinoreward_envs.camera.spec import resized
from vinoreward_training.data.dataset_files import (
    Table,
    images_below,
    inside,
    make_row,
    to_success,
)
from vinoreward_training.data.recordings import Outcomes
from vinoreward_training.data.tables import Row, read_table

SUFFIXES = frozenset({".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg"})
LABELS = "labels.csv"
"""The table of times in a folder of videos, unless another is named."""
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts"
"""FFmpeg's names of what it may open."""
_COLUMNS = ("video", "start", "end", "label")
_MARKS = {"success": 1, "failure": 0}
SLACK = 1.0
"""Seconds by which a video may differ from what its header says."""
MAX_SECONDS = 24 * 3600
MAX_FPS = 1000.0
_ROUNDING = 0.0005
"""Seconds by which a moment may be off: containers round the times of images."""

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Video:
    """A video file and what its header says."""

    name: str
    """Relative to the folder."""
    path: Path
    seconds: float
    size: tuple[int, int]
    """Height and width."""
    fps: float
    """Images per second."""


def find_videos(source: Path) -> list[Video]:
    """Return a video, or those at any depth of a folder by name.

    DatasetError if there is none, or one that FFmpeg cannot open.
    """
    if source.is_file():
        if not source.name.isprintable():  # the table of the images could not be read again
            raise DatasetError(
                f"--from-video is {shown_name(source)}. Expected a printable name, as the table "
                "of the images has it; rename the video."
            )
        return [_opened(source.name, source)]
    if not source.is_dir():
        raise DatasetError(
            f"--from-video is {source}, which is not there. Expected a video or a folder of "
            "videos; check the path."
        )
    names = images_below(source, suffixes=SUFFIXES)
    if not names:
        raise DatasetError(
            f"{source} holds no videos. Expected {', '.join(sorted(SUFFIXES))} files; name their "
            "folder with --from-video."
        )
    return [_opened(name, inside(source, name)) for name in names]


def read_labels(source: Path, videos: Sequence[Video], fps: float) -> list[Outcomes]:
    """Return of each video, for each of its images, 1 for success, 0, or -1 without a label.

    Labels are in the CSV table ``LABELS`` beside the videos, with the columns video, start, end and
    label, or are the names of their folders. DatasetError for a video without labels, times that
    contradict each other, or one label only.
    """
    table = (source if source.is_dir() else source.parent) / LABELS
    every = [np.full(count(video, fps), -1, np.int8) for video in videos]
    if not table.is_file():
        for marks, video in zip(every, videos, strict=True):
            marks[:] = _MARKS.get(Path(video.name).parts[0], -1)
    else:
        by_name = {video.name: (video, marks) for video, marks in zip(videos, every, strict=True)}
        for _ in read_table(
            table,
            _COLUMNS,
            lambda row: _mark(row, by_name, fps),
            f"the columns {', '.join(_COLUMNS)}: a video of the folder, from and to in seconds "
            "(empty: its start and end), and success or failure",
        ):
            pass
    bare = [v.name for v, marks in zip(videos, every, strict=True) if not (marks >= 0).any()]
    if bare:
        raise DatasetError(
            f"{len(bare)} of {len(videos)} videos have no label, the first is {bare[0]}. Expected "
            f"a table of times with the columns {', '.join(_COLUMNS)} (seconds; success or "
            f"failure), as {table}, or the folders success and failure "
            f"with whole videos; label {'them' if len(bare) > 1 else 'it'}, or move them away."
        )
    successes, failures = (sum(int((m == mark).sum()) for m in every) for mark in (1, 0))
    if not successes or not failures:
        raise DatasetError(
            f"{source} shows {successes} successes and {failures} failures in images taken "
            f"every {1 / fps:.3g} s. Expected both, as a classifier is trained on both; label "
            "more, or take more images with --video-fps."
        )
    return every


def _mark(row: Row, by_name: Mapping[str, tuple[Video, Outcomes]], fps: float) -> None:
    """Write the label of a row of times into its video's marks."""
    if row["video"] not in by_name:
        some = ", ".join(list(by_name)[:3])
        raise ValueError(f"there is no video {row['video']!r}, but {some}")
    if row["label"] not in _MARKS:
        raise ValueError(f"the label is {row['label']!r}")
    video, marks = by_name[row["video"]]
    latest = video.seconds + SLACK
    start, end = float(row["start"] or 0), float(row["end"] or latest)
    if not 0 <= start < end <= latest:
        raise ValueError(
            f"{start:g} to {end:g} s is no time within {video.name}, which takes "
            f"{video.seconds:.4g} s"
        )
    # Frame k shows the moment k / fps.
    part = marks[math.ceil(start * fps - 1e-9) : math.ceil(end * fps - 1e-9)]
    mark = _MARKS[row["label"]]
    if (part == 1 - mark).any():
        raise ValueError(f"{start:g} to {end:g} s of {video.name} has both labels")
    part[:] = mark


def take_images(
    videos: Sequence[Video],
    marks: Sequence[Outcomes],
    plan: Sequence[dict[int, str]],
    table: Table,
    fps: float,
    size: tuple[int, int] | None,
) -> Iterator[int]:
    """Add the chosen images that are not in the table; yield how many were added."""
    done = {(row["video"], row["second"]): row["label"] for row in table.rows.values()}
    numbers = {row["video"]: int(row["episode"]) for row in table.rows.values()}
    for video, shown_by, chosen in zip(videos, marks, plan, strict=True):
        # A video that came later gets the next number: others keep theirs, and their parts.
        number = numbers.setdefault(video.name, max(numbers.values(), default=-1) + 1)
        wanted = {}
        for index, category in chosen.items():
            label = done.get((video.name, second_of(index, fps)))
            if label is None:
                wanted[index] = category
            elif (label == "success") != (category == "success"):
                raise DatasetError(
                    f"{video.name} was captured with the label {label} at "
                    f"{second_of(index, fps)} s, which is another now. Expected the labels as they "
                    "were when resuming; capture into another folder with --out."
                )
        for index, image in decoded(video, fps, wanted):
            category = wanted[index]
            row = make_row(
                f"{number:06d}-{index:06d}.png", category == "success", category, number, 0
            )
            row |= {"video": video.name, "second": second_of(index, fps)}
            row |= {"step": str(index), "to_success": to_success(shown_by == 1, index)}
            table.add([(image if size is None else resized(image, *size), row)])
            yield 1


def second_of(index: int, fps: float) -> str:
    """Return the moment that image number ``index`` shows."""
    return f"{index / fps:.3f}"


def count(video: Video, fps: float) -> int:
    """Return how many images a video has."""
    return max(1, math.ceil(video.seconds * fps - 1e-6))


def _opened(name: str, path: Path) -> Video:
    """Read a video's header and its first image."""
    if not path.is_file():  # FFmpeg would wait for a pipe
        raise _unreadable(path, "it is no plain file")
    messages = io.StringIO()
    images = list(_images(path, "-frames:v", "1", messages=messages))
    header = messages.getvalue()
    time = re.search(r"Duration: (\d+):(\d\d):(\d\d\.\d+)", header)
    if not images or time is None:
        raise _unreadable(path, "its header says no duration" if images else header)
    hours, minutes, seconds = map(float, time.groups())
    length = 3600 * hours + 60 * minutes + seconds
    if not 0 < length <= MAX_SECONDS:
        raise _unreadable(path, f"its header says {length:g} seconds")
    rate = re.search(r"([\d.]+) fps,", header)
    fps = min(max(float(rate[1]) if rate else 0.0, 1.0), MAX_FPS)
    return Video(name, path, length, images[0].shape[:2], fps)


def _images(
    path: Path, *output: str, messages: IO[str] | None = None
) -> Generator[Image, None, None]:
    """Yield the images ``(H, W, 3)`` of a video that FFmpeg makes with these options of output.

    What FFmpeg says is written to ``messages`` at the end.
    """
    with needed_for("videos", "train"):
        from imageio_ffmpeg import get_ffmpeg_exe  # type: ignore[import-untyped]
    # Nothing but a file of these formats: a playlist could name other files or addresses.
    only = ["-protocol_whitelist", "file", "-format_whitelist", _FORMATS]
    limits = ["-max_pixels", str(MAX_PIXELS)]
    before = ["-nostdin", "-hide_banner", *only, *limits, "-i", str(path.resolve())]
    # Eight bits, or a video of ten would be written with sixteen.
    after = ["-pix_fmt", "rgb24", "-f", "image2pipe", "-vcodec", "ppm", "-"]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            [get_ffmpeg_exe(), *before, *output, *after],
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )
        try:
            stream = cast(IO[bytes], process.stdout)
            while stream.readline() == b"P6\n":
                width, height = map(int, stream.readline().split())
                stream.readline()
                content = stream.read(width * height * 3)
                if len(content) < width * height * 3:
                    break
                yield np.frombuffer(content, np.uint8).reshape(height, width, 3)
            process.wait()
        finally:
            process.kill()
            process.communicate()
            if messages is not None:
                said.seek(0)
                messages.write(said.read())


def _unreadable(path: Path, error: object) -> DatasetError:
    said = str(error).rstrip().splitlines()
    return DatasetError(
        f"{shown_name(path)} cannot be read as a video: {shown(said[-1] if said else error)}. "
        "Expected a whole video file that FFmpeg can decode; record or copy it again, or move it "
        "away."
    )


def decoded(
    video: Video, fps: float, wanted: Collection[int]
) -> Generator[tuple[int, Image], None, None]:
    """Yield the wanted images ``(H, W, 3)`` of a video with their numbers."""
    if not wanted:
        return
    last, index = max(wanted), -1
    # The frame that is on screen at index / fps. By default it would be one of up to half a period
    # later, which the label may not fit. After damage it would repeat an earlier one, without
    # -xerror.
    moments = f"settb=AVTB,setpts=PTS-{1e6 * _ROUNDING + 1:.0f},fps={fps!r}:round=up"
    with contextlib.closing(_images(video.path, "-xerror", "-vf", moments)) as images:
        for index, image in enumerate(images):
            if index in wanted:
                yield index, image
            if index == last:
                return
    # A header's length may be a little wrong; a file that was cut off lacks more.
    if (last - index) / fps > SLACK:
        ends = f"it ends after {(index + 1) / fps:.3g} of {video.seconds:.3g} s"
        raise _unreadable(video.path, f"{ends}, or is damaged there")
