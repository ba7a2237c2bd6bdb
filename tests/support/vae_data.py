"""Images to train encoders on, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vinoreward_training.data.dataset import Frames

SIZE = (32, 40)
BLUE = (20, 20, 230)


def make_images(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a small blue square on a plain table, and its place in metres."""
    random = np.random.default_rng(seed)
    images = np.full((count, *SIZE, 3), (200, 180, 150), dtype=np.uint8)
    corners = np.stack([random.integers(0, 28, count), random.integers(0, 36, count)], axis=1)
    for image, (top, left) in zip(images, corners, strict=True):
        image[top : top + 4, left : left + 4] = BLUE
    return images, corners[:, ::-1] * 0.01


def frames_of(count: int) -> Frames:
    images, places = make_images(count)
    return Frames(
        images=images,
        episodes=np.arange(count) // 2,
        places={"object": places.astype(np.float64)},
        scene={},
        sha256="0" * 64,
        source="toy",
    )


def write_capture(folder: Path, count: int = 160) -> Path:
    images, places = make_images(count)
    (folder / "frames").mkdir(parents=True)
    lines = ["file,label,category,episode,object_x,object_y,distance"]
    for index, (image, place) in enumerate(zip(images, places, strict=True)):
        Image.fromarray(image).save(folder / "frames" / f"{index:04}.png")
        where = ",,inf" if index % 10 == 9 else f"{place[0]},{place[1]},0.1"
        lines.append(f"frames/{index:04}.png,success,success,{index // 2},{where}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_folder(folder: Path, count: int = 80) -> Path:
    (folder / "deep" / "er").mkdir(parents=True)
    for index, image in enumerate(make_images(count)[0]):
        Image.fromarray(image).save(folder / "deep" / "er" / f"{index:04}.png")
    return folder
