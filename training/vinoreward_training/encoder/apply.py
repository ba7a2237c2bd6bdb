"""Running an encoder and its decoder in torch on pictures in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Floats = npt.NDArray[np.float32]


def planes(images: npt.NDArray[np.uint8]) -> Tensor:
    """Return pictures (N, H, W, 3) uint8 as (N, 3, H, W) floats from 0 to 1, channels last."""
    owned = np.require(images, requirements=["C", "W"])
    return torch.from_numpy(owned).permute(0, 3, 1, 2).to(torch.float32) / 255.0


def normalised(pictures: Tensor) -> Tensor:
    """Return pictures from -1 to 1 for pictures from 0 to 1: mean and standard deviation 0.5."""
    return (pictures - 0.5) / 0.5


def encode(
    encoder: nn.Module, images: npt.NDArray[np.uint8], *, batch_size: int = 256
) -> tuple[Floats, Floats]:
    """Return means and log variances, (N, D) each, of uint8 pictures (N, H, W, 3)."""
    training = encoder.training
    encoder.eval()
    parts = []
    with torch.inference_mode():
        for start in range(0, len(images), batch_size):
            output = encoder(normalised(planes(images[start : start + batch_size])))
            parts.append(output.float().numpy())
    encoder.train(training)
    mean, log_variance = np.split(np.concatenate(parts).astype(np.float32), 2, axis=1)
    return mean, log_variance


def decode(decoder: nn.Module, latents: Floats) -> npt.NDArray[np.uint8]:
    """Return pictures (N, H, W, 3) uint8 for latents (N, D)."""
    training = decoder.training
    decoder.eval()
    with torch.inference_mode():
        made = decoder(torch.from_numpy(np.ascontiguousarray(latents, dtype=np.float32)))
        pictures: npt.NDArray[np.uint8] = (
            (made.float().clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        )
    decoder.train(training)
    return pictures
