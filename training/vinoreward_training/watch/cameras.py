"""Where images come from: a camera, a stream, a video file or a folder, one image at a time."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, DatasetError, InputError, needed_for
from vinoreward.images import read_image
from vinoreward_training.data.dataset_files import images_below, inside
from vinoreward_training.data.videos import count, decoded, find_videos

HZ = 30.0
"""Images per second of a folder, and the deadline for a camera that does not tell its rate."""
MOST_HZ = 1000.0
OPEN_SECONDS = 5
"""After which a stream that does not answer is given up."""

Image = npt.NDArray[np.uint8]


class Camera(Protocol):
    """Gives images one after another; everything but :meth:`read` is called in one thread."""

    hz: float
    """Images per second."""
    live: bool
    """Whether images that nobody takes in time are lost, and come when they are made. Else they
    wait, and come at ``hz``."""

    def read(self) -> npt.NDArray[Any] | InputError | None:
        """Wait for the next image, ``(H, W, 3)`` uint8 RGB or grey ``(H, W)``, and return it.

        None if there are no more; an InputError in place of an image that cannot be read.
        """

    def close(self) -> None:
        """Free the camera."""


class OpenCVCamera:
    """A camera of this machine by its number, or a stream by its address ``rtsp://…``."""

    live = True

    def __init__(self, name: str) -> None:
        with needed_for("a camera or stream", "camera"):
            os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # what is wrong is said once
            import cv2
        log: Any = cv2.utils.logging
        log.setLogLevel(log.LOG_LEVEL_SILENT)
        if name.isdecimal():
            self._capture = cv2.VideoCapture(int(name))
            remedy = "look at its cable and number (ls /dev/video*), and close what else shows it"
        else:
            waits = (cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, cv2.CAP_PROP_READ_TIMEOUT_MSEC)
            limits = [number for wait in waits for number in (wait, 1000 * OPEN_SECONDS)]
            self._capture = cv2.VideoCapture(name, cv2.CAP_FFMPEG, limits)
            remedy = "try the address in a player of videos"
        if not self._capture.isOpened():
            raise ConfigError(
                field="camera", value=public(name), expected="a camera that answers", remedy=remedy
            )
        rate = float(self._capture.get(cv2.CAP_PROP_FPS))
        self.hz = rate if 0 < rate <= MOST_HZ else HZ
        self._in_rgb = lambda image: cv2.cvtColor(image, cv2.COLOR_BGR2RGB)

    def read(self) -> npt.NDArray[Any] | InputError | None:
        """See :class:`Camera`."""
        there, image = self._capture.read()
        if not there:
            return None
        return self._in_rgb(image) if image.ndim == 3 and image.shape[2] == 3 else image

    def close(self) -> None:
        """See :class:`Camera`."""
        self._capture.release()


class VideoCamera:
    """A video file, at its own speed or ``hz`` images per second; read by FFmpeg, bounded."""

    live = False

    def __init__(self, path: Path, hz: float | None) -> None:
        (video,) = find_videos(path)
        self.hz = hz or video.fps
        self._images: Generator[tuple[int, Image], None, None] = decoded(
            video, video.fps, range(count(video, video.fps))
        )

    def read(self) -> npt.NDArray[Any] | InputError | None:
        """See :class:`Camera`. DatasetError where the file is damaged."""
        return next(self._images, (0, None))[1]

    def close(self) -> None:
        """See :class:`Camera`."""
        self._images.close()


class FolderCamera:
    """The images of a folder in the order of their names, ``hz`` per second."""

    live = False

    def __init__(self, folder: Path, hz: float | None) -> None:
        self._folder, files = folder, images_below(folder)
        if not files:
            raise DatasetError(
                f"{folder} holds no images. Expected PNG, JPEG, BMP or WebP files; name another "
                "folder, or a video, with `camera`."
            )
        self._files = iter(files)
        self.hz = hz or HZ

    def read(self) -> npt.NDArray[Any] | InputError | None:
        """See :class:`Camera`."""
        if (file := next(self._files, None)) is None:
            return None
        try:
            return read_image(inside(self._folder, file))
        except InputError as error:
            return error

    def close(self) -> None:
        """See :class:`Camera`."""


def open_camera(name: str, hz: float | None = None) -> Camera:
    """Return the camera of a name, as ``--camera`` has it; ``hz`` is for files.

    Raises:
        ConfigError: it is not there.
        DatasetError: a video or folder that cannot be read.
        MissingExtraError: OpenCV, or FFmpeg, is not installed.
    """
    number = re.sub(r"^/dev/video(?=\d+$)", "", name)
    if number.isdecimal() or re.match(r"rtsps?://", name):
        return OpenCVCamera(number)
    path = Path(name)
    with contextlib.suppress(OSError):  # a name that is too long for one
        if path.is_dir():
            return FolderCamera(path, hz)
        if path.is_file():
            return VideoCamera(path, hz)
    raise ConfigError(
        field="camera",
        value=public(name),
        expected="a camera's number, rtsp://ADDRESS, or a video or folder of images that is there",
    )


def public(name: str) -> str:
    """Return a camera's name without the password that an address may hold."""
    return re.sub(r"(?<=//)[^/@]*@", "", name)
