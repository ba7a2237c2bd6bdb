"""Writing encoder and decoder as ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from vinoreward.backends.base import load_backend
from vinoreward.backends.convert import export_onnx, quiet_exporter
from vinoreward.backends.network import NetworkSpec, TensorSpec
from vinoreward.errors import OutputError
from vinoreward.files import atomic_path

MEAN = STD = (0.5, 0.5, 0.5)
"""Of the encoder's input, in units of 0 to 1: it sees pictures from -1 to 1."""
EXPORT_TOLERANCE = 2e-3
"""Largest difference that the exported network may show, in units of the largest number."""


def export_encoder(encoder: nn.Module, path: Path, images: npt.NDArray[np.uint8]) -> float:
    """Write the ONNX file, checked on both runtimes; return its largest difference from torch.

    Args:
        encoder: normalised float pictures to (N, 2 D).
        path: to write.
        images: (N, H, W, 3) uint8, a few to compare on.

    Raises:
        OutputError: the exported network does not compute what was trained.
    """
    from vinoreward_training.encoder.apply import encode

    expected = np.concatenate(encode(encoder, images), axis=1)
    export_onnx(_with_preprocess(encoder), path, *images.shape[1:3])
    spec = NetworkSpec(
        path,
        TensorSpec((None, *images.shape[1:]), "uint8"),
        TensorSpec((None, expected.shape[1]), "float32"),
    )
    worst, limit = 0.0, EXPORT_TOLERANCE * max(1.0, float(np.abs(expected).max()))
    for name in ("openvino", "onnxruntime"):
        with load_backend(name, spec) as backend:
            difference = float(np.abs(backend.infer(images) - expected).max())
        if not difference <= limit:
            raise OutputError(
                f"the exported encoder gives numbers {difference:.4g} away from torch's on {name}. "
                f"Expected at most {limit:.4g}; export with other versions of torch or onnx "
                "(vinoreward doctor lists them)."
            )
        worst = max(worst, difference)
    return worst


def _with_preprocess(encoder: nn.Module) -> nn.Module:
    from vinoreward.backends.torch_networks import WithPreprocess

    return WithPreprocess(encoder.to(memory_format=torch.contiguous_format), MEAN, STD).eval()


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
