"""Other people's networks in torch: their weights, read as tensors only, and the export."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vinoreward.backends.convert import export_onnx
from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.backends.probe import read_weights
from vinoreward.bundles.importers.facts import describing
from vinoreward.errors import ConfigError, ModelCorruptError, ModelNotFoundError, needed_for
from vinoreward.images import ImageSpec

if TYPE_CHECKING:
    from torch import nn

_OF_MODULES = ("height", "width", "mean", "std", "scale", "color_order")


def export_module(
    module: nn.Module,
    weights: str | Path | None,
    path: Path,
    facts: Mapping[str, Any],
    *,
    encoder: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load the weights into the module and write it as ONNX: uint8 RGB ``(N, H, W, 3)`` to rows.

    Return the facts for the file, and those of the image that its graph takes care of. Errors are
    those of ``Bundle.from_model``; only an encoder may return two tensors, which become one.
    """
    known = {key: value for key, value in facts.items() if value is not None}
    given: dict[str, Any] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    if encoder:
        given = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    in_graph = {**given, **{key: known.pop(key) for key in _OF_MODULES if key in known}}
    with describing(path):
        image = ImageSpec(**in_graph)
    with needed_for("exporting a module", "train"):
        import torch

        from vinoreward.backends.torch_networks import WithPreprocess
    if path.suffix != ".onnx":
        raise ConfigError(f"the export is named {path}. Expected a name that ends in .onnx.")
    name = type(module).__name__
    module = copy.deepcopy(module).eval().to("cpu")
    if weights is not None:
        try:
            module.load_state_dict(without_prefix(load_state(Path(weights)), module.state_dict()))
        except RuntimeError as error:
            raise ModelCorruptError(
                f"{weights} does not hold the weights of {name}. Expected its complete state dict; "
                f"give the module that the file belongs to. {str(error)[:300]}"
            ) from error
    shape = (2, 3, image.height, image.width)
    try:
        with torch.no_grad():
            output = module(torch.zeros(shape))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{name} does not run on floats of shape {shape}: {error} Expected a module from "
            "images to vectors; correct `height` and `width`, or give the encoder alone.",
            field="height",
        ) from error
    parts = list(output) if isinstance(output, (tuple, list)) else [output]
    kinds = [tuple(getattr(part, "shape", ())) or type(part).__name__ for part in parts]
    if len(parts) > 1 + encoder or any(len(kind) != 2 or kind[0] != 2 for kind in kinds):
        raise ConfigError(
            f"{name} returns {', '.join(map(str, kinds))} for two images. Expected (2, D)"
            f"{' or two of them, (mu, logvar)' if encoder else ''}; give the "
            f"{'encoder' if encoder else 'classifier'} alone, wrapped in a module if necessary."
        )

    class SideBySide(torch.nn.Module):
        """The foreign module for RGB images, with one output."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, planes: torch.Tensor) -> torch.Tensor:
            if image.color_order == "BGR":
                planes = planes.flip(1)
            output = self.module(planes)
            return torch.cat(list(output) if isinstance(output, (tuple, list)) else [output], 1)

    # WithPreprocess divides by 255 and takes RGB; mean and std are in the network's channel order.
    step = -1 if image.color_order == "BGR" else 1
    mean, std = (
        [value * image.scale / 255.0 for value in list(values)[::step]]
        for values in (image.mean, image.std)
    )
    export_onnx(WithPreprocess(SideBySide(), mean, std), path, image.height, image.width)
    pair = {"posterior": True} if len(parts) == 2 else {}
    return {**known, **pair, "height": image.height, "width": image.width}, in_graph


def load_state(path: Path) -> Mapping[str, Any]:
    """Return a state dict, read without executing anything in the file.

    Raises:
        ModelNotFoundError, ModelCorruptError: no such file, or it holds something else.
        MissingExtraError: safetensors is not installed.
    """
    try:
        with needed_for(f"reading {path}", "train"):
            return read_weights(path)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"there are no weights at {path}. Expected a state dict; check the path."
        ) from error
    except ModelCorruptError as error:
        raise ModelCorruptError(
            f"{path} cannot be read as a state dict: {error}. Expected names and tensors; save it "
            "with torch.save(module.state_dict(), path) of PyTorch 1.6 or newer, or as safetensors."
        ) from error


def without_prefix(state: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """Return a state dict without a wrapper's prefixes; unchanged if others than ``names`` remain.

    DataParallel puts ``module.`` there, torch.compile ``_orig_mod.``, Lightning often ``model.``.
    """
    bare = state
    while bare and bare.keys() != set(names):
        prefix = next(iter(bare)).partition(".")[0] + "."
        if not all(name.startswith(prefix) for name in bare):
            return state
        bare = {name.removeprefix(prefix): value for name, value in bare.items()}
    return bare
