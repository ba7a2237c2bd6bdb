"""Writing a torch module as ONNX with a dynamic batch."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vinoreward.errors import needed_for
from vinoreward.files import atomic_path

if TYPE_CHECKING:
    import torch
    from torch import nn


def export_onnx(module: nn.Module, path: Path, height: int, width: int) -> None:
    """Write a network with its preprocessing: ``images`` (N, H, W, 3) uint8 to ``logits``.

    Height and width, in pixels, are fixed in the file; for the rest see :func:`write_onnx`.
    """
    with needed_for("exporting", "train"):
        import torch
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    # The exporter may treat a batch of 1 as a constant.
    example = torch.zeros((2, height, width, 3), dtype=torch.uint8, device=device)
    write_onnx(module, example, path, "images", "logits")


def write_onnx(
    module: nn.Module, example: torch.Tensor, path: Path, input_name: str, output_name: str
) -> None:
    """Write a network of one input and one output as ONNX with its weights, atomically.

    It is exported in evaluation mode with a dynamic batch. ``example`` is an input on its device,
    of at least 2 rows. MissingExtraError without torch, onnx or onnxscript; RunFolderError if the
    file cannot be written.
    """
    with needed_for("exporting", "train"):
        import onnx
        import onnxscript  # noqa: F401 - the exporter needs it and would say so less clearly
        import torch
    training = module.training
    module.eval()
    try:
        silent = warnings.catch_warnings()
        with atomic_path(path) as part, quiet("torch.onnx"), silent, torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter's own deprecations
            torch.onnx.export(
                module,
                (example,),
                str(part),
                dynamo=True,
                external_data=False,
                verbose=False,
                input_names=[input_name],
                output_names=[output_name],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
            # The exporter records source files and lines: private paths, and not reproducible.
            model = onnx.load(str(part))
            for item in (*model.graph.node, *model.graph.value_info, *model.graph.initializer):
                item.ClearField("metadata_props")
                item.ClearField("doc_string")
            part.write_bytes(model.SerializeToString(deterministic=True))
    finally:
        module.train(training)


@contextlib.contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Hide progress bars, and what these loggers say below errors."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
