"""Encoder and decoder on pictures in memory, and as ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward.backends.convert import export_onnx, quiet_exporter
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.files import atomic_path
from vinoreward_training.runs.publish import check_export

MEAN = STD = (0.5, 0.5, 0.5)
"""Of the encoder's input, in units of 0 to 1: it sees pictures from -1 to 1."""

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


def export_encoder(encoder: nn.Module, path: Path, images: npt.NDArray[np.uint8]) -> float:
    """Write the ONNX file, checked on both runtimes; return its largest difference from torch.

    Args:
        encoder: normalised float pictures to (N, 2 D).
        path: to write.
        images: (N, H, W, 3) uint8, a few to compare on.

    Raises:
        OutputError: the exported network does not compute what was trained.
    """
    expected = np.concatenate(encode(encoder, images), axis=1)
    whole = WithPreprocess(encoder.to(memory_format=torch.contiguous_format), MEAN, STD).eval()
    export_onnx(whole, path, *images.shape[1:3])
    return check_export(path, images, expected)


def export_decoder(decoder: nn.Module, path: Path, latent_size: int) -> None:
    """Write the decoder as ONNX: ``latent`` (N, D) float32 to ``pictures`` (N, 3, H, W), 0 to 1."""
    decoder = decoder.to(memory_format=torch.contiguous_format).eval()
    with atomic_path(path) as part, quiet_exporter(), torch.no_grad():
        torch.onnx.export(
            decoder,
            (torch.zeros(2, latent_size),),
            str(part),
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=["latent"],
            output_names=["pictures"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
