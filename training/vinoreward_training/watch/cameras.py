"""Where images come from: a camera, a stream, a video file or a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, DatasetError, InputError, needed_for
from vinoreward.images import read_image
from vinoreward_training.data.dataset_files import images_below, inside
from vinoreward_training.data.videos import count, decoded, find_videos

HZ = 30.0
"""Images per second of a folder, and of a camera that does not tell its rate."""

Image = npt.NDArray[np.uint8]
Images = Generator[npt.NDArray[Any] | InputError, None, None]


@dataclass(frozen=True)
class Camera:
    """A source of images; any generator will do."""

    images: Images
    """Waits for each image and yields it, a new array ``(H, W, 3)`` uint8 RGB or grey ``(H, W)``,
    or what is wrong with it. Runs in a thread of its own, and is closed at the end."""
    hz: float = HZ
    """Images per second."""
    live: bool = True
    """Whether images come when they are made, and are lost if nobody takes them. Else they wait,
    and come at ``hz``."""


def open_camera(name: str, hz: float | None = None) -> Camera:
    """Return the camera of a name, as ``--camera`` has it; ``hz`` is for files.

    Raises:
        ConfigError: it is not there.
        DatasetError: a video or folder that cannot be read.
        MissingExtraError: OpenCV, or FFmpeg, is not installed.
    """
    number = re.sub(r"^/dev/video(?=\d+$)", "", name)
    if number.isdecimal() or re.match(r"rtsps?://", name):
        return _device(number)
    if os.path.isdir(name):
        return _folder(Path(name), hz)
    if os.path.isfile(name):
        (video,) = find_videos(Path(name))
        played = decoded(video, video.fps, range(count(video, video.fps)))
        return Camera((image for _, image in played), hz or video.fps, live=False)
    raise ConfigError(
        field="camera",
        value=public(name),
        expected="a camera's number, rtsp://ADDRESS, or a video or folder of images that is there",
    )


def public(name: str) -> str:
    """Return a camera's name without the password that an address may hold."""
    return re.sub(r"(?<=//)[^/@]*@", "", name)


def _device(name: str) -> Camera:
    """Open a camera by its number, or a stream by its address, with OpenCV."""
    with needed_for("a camera or stream", "camera"):
        os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # what is wrong is said once
        import cv2
    log: Any = cv2.utils.logging
    log.setLogLevel(log.LOG_LEVEL_SILENT)
    if name.isdecimal():
        capture = cv2.VideoCapture(int(name))
        remedy = "look at its cable and number (ls /dev/video*), and close what else shows it"
    else:
        waits = (cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, cv2.CAP_PROP_READ_TIMEOUT_MSEC)
        limits = [number for wait in waits for number in (wait, 5000)]
        capture = cv2.VideoCapture(name, cv2.CAP_FFMPEG, limits)
        remedy = "try the address in a player of videos"
    if not capture.isOpened():
        raise ConfigError(
            field="camera", value=public(name), expected="a camera that answers", remedy=remedy
        )
    rate = float(capture.get(cv2.CAP_PROP_FPS))

    def images() -> Images:
        try:
            while (read := capture.read())[0]:
                image = read[1]
                colour = image.ndim == 3 and image.shape[2] == 3
                yield cv2.cvtColor(image, cv2.COLOR_BGR2RGB) if colour else image
        finally:
            capture.release()

    return Camera(images(), rate if 0 < rate <= 1000 else HZ)


def _folder(folder: Path, hz: float | None) -> Camera:
    """Return the images of a folder in the order of their names."""
    if not (files := images_below(folder)):
        raise DatasetError(
            f"{folder} holds no images. Expected PNG, JPEG, BMP or WebP files; name another "
            "folder, or a video, with `camera`."
        )

    def images() -> Images:
        for file in files:
            try:
                yield read_image(inside(folder, file))
            except InputError as error:
                yield error

    return Camera(images(), hz or HZ, live=False)
