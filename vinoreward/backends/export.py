"""Writing a torch network as one ONNX file with a dynamic batch."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vinoreward.errors import MissingExtraError, install_command
from vinoreward.files import atomic_path

if TYPE_CHECKING:
    from torch import nn


def export_onnx(module: nn.Module, path: Path, height: int, width: int) -> None:
    """Write ``module`` as ``path``: input ``pictures`` (N, H, W, 3) uint8, output ``logits``.

    Args:
        module: network with its preprocessing, see
            :class:`vinoreward.backends.torch_networks.WithPreprocess`. It is exported in evaluation
            mode and left in the mode it was in.
        path: the ``.onnx`` file, written whole or not at all. Weights are inside it.
        height: picture height in pixels, fixed in the file.
        width: picture width in pixels, fixed in the file.

    Raises:
        MissingExtraError: torch or onnxscript is not installed.
        RunFolderError: the file cannot be written.
    """
    try:
        import onnxscript  # noqa: F401 - the exporter needs it and would say so less clearly
        import torch
    except ImportError as error:
        raise MissingExtraError(
            f"exporting needs {error.name}, which is not installed. Install it with: "
            f"{install_command('train')}"
        ) from error
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    # A batch of 2: with 1 the exporter may take the batch for a constant.
    example = torch.zeros((2, height, width, 3), dtype=torch.uint8, device=device)
    training = module.training
    module.eval()
    try:
        with atomic_path(path) as part, quiet_exporter(), torch.no_grad():
            torch.onnx.export(
                module,
                (example,),
                str(part),
                dynamo=True,
                external_data=False,
                optimize=True,
                verbose=False,
                input_names=["pictures"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    finally:
        module.train(training)


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Keep the exporter's progress lines and its own deprecation warnings from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
