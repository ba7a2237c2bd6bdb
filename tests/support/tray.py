"""A toy scene, and a tiny network with weights that nobody trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from vinoreward.backends.torch_classifiers import build

NETWORK = "timm:test_resnet"


def tray_images(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return images (N, 48, 64, 3) of a ball in a tray where the label is 1, else beside it."""
    random = np.random.default_rng(seed)
    images = random.integers(60, 90, (len(labels), 48, 64, 3), dtype=np.uint8)
    for image, inside in zip(images, labels, strict=True):
        top, left = random.integers(4, 24), random.integers(4, 34)
        image[top : top + 20, left : left + 26] = (40, 190, 90)
        row, column = top + random.integers(1, 9), left + random.integers(1, 15)
        while not inside and top - 12 < row < top + 22 and left - 12 < column < left + 28:
            row, column = random.integers(0, 38), random.integers(0, 54)
        image[row : row + 10, column : column + 10] = (220, 30, 30)
    return images


def write_tray(folder: Path, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Write images, each an episode of its own; return images and labels."""
    labels = np.arange(count) % 2
    images = tray_images(labels, 0)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / ("success" if label else "failure") / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return images, labels


def tiny_weights(folder: Path, seed: int = 0) -> Path:
    """Write seeded weights of ``NETWORK``, and return their file."""
    torch.manual_seed(seed)
    path = folder / f"weights-{seed}.safetensors"
    save_file(build(NETWORK).state_dict(), path)
    return path
