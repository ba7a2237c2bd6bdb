"""Folders of pictures that a classifier can be trained on in a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (32, 40)


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Make noise pictures; a success has a bright red half."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = random.integers(60, 120, (count, *SIZE, 3), dtype=np.uint8)
    images[labels == 1, :, :20, 0] += 100
    return images, labels.astype(np.int64)


def write_folder(folder: Path, count: int) -> Path:
    images, labels = pictures(count)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / ("success" if label else "failure") / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)
    return folder
