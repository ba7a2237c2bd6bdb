"""Labels and logs of them."""

from __future__ import annotations

from pathlib import Path

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
