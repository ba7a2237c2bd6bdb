"""Images for encoders, and what a bare network takes of them, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

HEIGHT, WIDTH, SIZE = 32, 40, 5
BACKENDS = ("openvino", "onnxruntime", "torch")
MEAN, STD = (0.5, 0.4, 0.3), (0.5, 0.6, 0.7)


def make_images(count: int, seed: int = 0) -> np.ndarray:
    """Smooth colourful images, so that a colour swap matters."""
    small = np.random.default_rng(seed).integers(0, 256, (count, 4, 5, 3))
    return small.repeat(8, axis=1).repeat(8, axis=2).astype(np.uint8)


def planes(images: np.ndarray, mean: Any = MEAN, std: Any = STD) -> Tensor:
    """What the bare network takes, by numpy."""
    floats = (images.astype(np.float64) / 255 - np.array(mean)) / np.array(std)
    return torch.from_numpy(floats.transpose(0, 3, 1, 2).astype(np.float32))
