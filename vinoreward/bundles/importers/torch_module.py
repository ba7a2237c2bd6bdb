"""Exporting somebody else's torch encoder together with its preprocessing."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vinoreward.backends.convert import export_onnx
from vinoreward.errors import (
    ConfigError,
    MissingExtraError,
    ModelCorruptError,
    ModelNotFoundError,
    install_command,
    needed_for,
)
from vinoreward.saved_arrays import shown
from vinoreward.saved_state import read_state

if TYPE_CHECKING:
    from torch import nn


def export_module(
    module: nn.Module,
    weights: Path,
    path: Path,
    *,
    height: int,
    width: int,
    mean: Sequence[float],
    std: Sequence[float],
    scale: float,
    color_order: Literal["RGB", "BGR"],
) -> bool:
    """Load the weights into the module and write it as ONNX: uint8 RGB ``(N, H, W, 3)`` to rows.

    Returns:
        Whether the module gave means and log variances apart, now side by side in one output.

    Raises:
        As ``Bundle.from_encoder_module``.
    """
    with needed_for("exporting a module", "train"):
        import torch

        from vinoreward.backends.torch_networks import WithPreprocess
    if len(mean) != 3 or len(std) != 3 or min(std) <= 0 or scale <= 0:
        raise ConfigError(
            f"mean is {mean}, std {std} and scale {scale}. Expected three means and three positive "
            "standard deviations, one per channel, and a positive scale."
        )
    if path.suffix != ".onnx":
        raise ConfigError(f"the export was to become {path}. Expected a name that ends in .onnx.")
    state = load_state(weights)
    module = copy.deepcopy(module).eval().to("cpu")
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ModelCorruptError(
            f"{weights} does not hold the weights of {type(module).__name__}. Expected its complete"
            f" state dict; give the module that the file belongs to. {error}"
        ) from error
    shape = (2, 3, height, width)
    try:
        with torch.no_grad():
            output = module(torch.zeros(shape))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{type(module).__name__} does not run on floats of shape {shape}: {error} Expected a "
            "module from pictures to vectors; correct height and width, or give the encoder alone."
        ) from error
    parts = list(output) if isinstance(output, (tuple, list)) else [output]
    if len(parts) > 2 or any(
        not isinstance(part, torch.Tensor) or part.ndim != 2 or len(part) != 2 for part in parts
    ):
        shown = ", ".join(
            str(tuple(part.shape)) if isinstance(part, torch.Tensor) else type(part).__name__
            for part in parts
        )
        raise ConfigError(
            f"{type(module).__name__} returns {shown} for two pictures. Expected (2, D) or two of "
            "them, (mu, logvar); give the encoder alone, in a small module if need be."
        )

    class SideBySide(torch.nn.Module):
        """The foreign module with its channels in order and its outputs in one."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, planes: torch.Tensor) -> torch.Tensor:
            if color_order == "BGR":
                planes = planes.flip(1)
            found = self.module(planes)
            parts = list(found) if isinstance(found, (tuple, list)) else [found]
            return torch.cat(parts, 1)

    # WithPreprocess divides by 255 and sees RGB; mean and std are of the network's channels.
    order = slice(None, None, -1) if color_order == "BGR" else slice(None)
    wrapped = WithPreprocess(
        SideBySide(),
        [value * scale / 255.0 for value in list(mean)[order]],
        [value * scale / 255.0 for value in list(std)[order]],
    )
    export_onnx(wrapped, path, height, width)
    return len(parts) == 2


def load_state(path: Path) -> Mapping[str, Any]:
    """Return a state dict, read without executing anything in the file.

    Raises:
        ModelNotFoundError: no such file.
        ModelCorruptError: it holds something else.
        MissingExtraError: safetensors is not installed.
    """
    try:
        import torch

        found: Mapping[str, Any] = read_state(path)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"there are no weights at {path}. Expected a state dict; check the path."
        ) from error
    except ImportError as error:
        raise MissingExtraError(
            f"{path} needs {error.name}, which is not installed. Install it with: "
            f"{install_command('train')}"
        ) from error
    except ModelCorruptError as error:
        raise _corrupt(path, error) from error
    for key in ("state_dict", "model_state_dict"):
        if isinstance(found.get(key), Mapping):
            found = found[key]
    other = [name for name, value in found.items() if not isinstance(value, torch.Tensor)]
    if other:
        raise _corrupt(path, f"{shown(other[0])} is no tensor")
    return found


def _corrupt(path: Path, reason: object) -> ModelCorruptError:
    return ModelCorruptError(
        f"{path} cannot be read as a state dict: {reason}. Expected names and tensors only; save "
        "it with torch.save(module.state_dict(), path) of PyTorch 1.6 or newer, or as safetensors."
    )
