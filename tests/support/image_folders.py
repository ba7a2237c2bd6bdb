"""Folders of images that a classifier can be trained on in a test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (32, 40)


def make_images(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Make noise images; a success has a bright red half."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = random.integers(60, 120, (count, *SIZE, 3), dtype=np.uint8)
    images[labels == 1, :, :20, 0] += 100
    return images, labels.astype(np.int64)


VIEWS = [
    {"name": "front", "height": 40, "source": "obs:front"},
    {"name": "wrist", "height": 32, "source": "obs:wrist"},
]


def write_views(folder: Path, count: int, views: object = VIEWS) -> Path:
    """Write images of two cameras, one below the other; a success is red in both.

    A failure is red in neither, or in one alone, so that no camera knows it by itself.
    """
    random = np.random.default_rng(0)
    rows = ["file,label,episode"]
    for index in range(count):
        image = random.integers(60, 120, (72, 48, 3), dtype=np.uint8)
        success = index % 2 == 1
        front, wrist = (True, True) if success else [(0, 0), (1, 0), (0, 1)][index // 2 % 3]
        image[:40, :24, 0] += np.uint8(100 * front)
        image[40:, :24, 0] += np.uint8(100 * wrist)
        label = "success" if success else "failure"
        path = folder / label / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)
        rows.append(f"{label}/{path.name},{label},{index}")
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "dataset.json").write_text(json.dumps({"views": views}), encoding="utf-8")
    return folder


def write_folder(folder: Path, count: int) -> Path:
    images, labels = make_images(count)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / ("success" if label else "failure") / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)
    return folder


def write_dots(folder: Path, count: int, *, told: bool = True) -> Path:
    """Write noisy images of a red and a blue dot of 3 pixels; in a success they touch.

    With ``told=False`` chance decides whether they do, and there is nothing to learn.
    """
    random = np.random.default_rng(0)
    for index in range(count):
        image = random.integers(60, 120, (48, 48, 3), dtype=np.uint8)
        success = index % 2 == 1
        apart = 3 if (success if told else random.random() < 0.5) else 10
        near, angle = random.integers(11, 34, 2), random.uniform(0, 2 * np.pi)
        far = near + np.rint(apart * np.array([np.sin(angle), np.cos(angle)])).astype(int)
        for (row, column), colour in zip((near, far), ((250, 0, 0), (0, 0, 250)), strict=True):
            image[row : row + 3, column : column + 3] = colour
        path = folder / ("success" if success else "failure") / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)
    return folder
