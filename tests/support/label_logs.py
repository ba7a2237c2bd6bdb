"""Labels and logs of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
from PIL import Image

from vinoreward_training.labelling.labels import Answer, Label

DIGEST = "0123456789abcdef" * 4
TIME = "2026-01-02T03:04:05.678+00:00"


def label(
    image: str = "a.png", answer: Answer = "success", by: str = "ann", again: bool = False
) -> Label:
    return Label(image, DIGEST, answer, by, TIME, 1.2, again)


def write_images(folder: Path, names: list[str], size: tuple[int, int] = (12, 16)) -> Path:
    """Write an image of noise, each another one, under each name."""
    random = np.random.default_rng(len(names))
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = random.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(image).save(path, format="PNG", compress_level=1)
    return folder


def write_film(path: Path, images: Iterable[np.ndarray], fps: float = 10) -> Path:
    """Write images ``(H, W, 3)`` of one size as a video."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = None
    for image in images:
        if writer is None:
            size = (image.shape[1], image.shape[0])
            writer = imageio_ffmpeg.write_frames(
                str(path), size, fps=fps, quality=10, macro_block_size=2
            )
            writer.send(None)
        writer.send(np.ascontiguousarray(image))
    writer.close()
    return path
