"""What goes into somebody else's network, from its file and from what the caller adds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from vinoreward.backends.base import CHUNKS
from vinoreward.backends.network_file import NetworkFile, check_network, read_bytes
from vinoreward.backends.openvino_core import shared_core
from vinoreward.backends.telemetry import import_openvino
from vinoreward.bundles.importers.model_info import ModelInfo
from vinoreward.bundles.schema import Picture
from vinoreward.errors import BundleError, ConfigError, ModelCorruptError, ModelNotFoundError

_SIDE = 224
"""Pixels of a picture whose size nobody has said yet."""


def read_picture_facts(
    path: Path,
    model: Any,
    info: ModelInfo,
    *,
    height: int | None,
    width: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    scale: float | None,
    color_order: Literal["RGB", "BGR"] | None,
    layout: Literal["NCHW", "NHWC"] | None,
    crop: tuple[int, int, int, int] | None,
    resize: Literal["none", "pil_bilinear"],
    also: Mapping[str, object],
    method: str,
) -> Picture:
    """Return the picture that the network takes; arguments as ``Bundle.from_model`` has them.

    Args:
        path: the model file, for messages.
        model: what OpenVINO read from it.
        info: what the file says about itself.
        height, width, mean, std, scale, color_order, layout, crop, resize: what the caller says.
        also: other facts that are needed; those that are None are listed as missing too.
        method: of Bundle, for messages.

    Raises:
        ConfigError: facts are missing or contradict.
    """
    in_graph = model.input(0).element_type.to_dtype().name == "uint8"
    shape = [
        None if size.is_dynamic else size.get_length() for size in model.input(0).partial_shape
    ]
    layout = layout or _layout(shape)
    missing: list[str] = []
    if layout is None:
        missing.append("layout")
    else:
        rows, columns = (2, 3) if layout == "NCHW" else (1, 2)
        height = height or shape[rows] or info.height
        width = width or shape[columns] or info.width
    asked: dict[str, object] = {"height": height, "width": width, **also}
    if not in_graph:
        # model_api counts in grey levels; arguments count in pixel / scale.
        if mean is None and std is None and scale is None and info.scaled:
            mean, std, scale = info.mean, info.std, 1.0
        asked |= {"mean": mean, "std": std}
    missing += [key for key, value in asked.items() if value is None]
    if missing:
        raise ConfigError(
            f"{path} does not say {', '.join(missing)}. Expected these facts, which cannot be "
            f"guessed; give Bundle.{method} the arguments {', '.join(f'{m}=' for m in missing)}."
        )
    order = color_order or info.color_order or "RGB"
    if in_graph and (layout != "NHWC" or order != "RGB"):
        raise ConfigError(
            f"{path} takes uint8 pictures in {layout} and {order}. Expected NHWC and RGB where the "
            "graph converts pictures itself; export it without its preprocessing, or with a "
            "transposition and channel reversal inside the graph (pass color_order='RGB' then)."
        )
    try:
        return Picture(
            height=cast("int", height),
            width=cast("int", width),
            color_order=order,
            mean=_three(mean or (0.0, 0.0, 0.0)),
            std=_three(std or (1.0, 1.0, 1.0)),
            crop=crop,
            resize=resize,
            in_graph=in_graph,
            layout=cast('Literal["NCHW", "NHWC"]', layout),
            scale=255.0 if scale is None else scale,
        )
    except BundleError as error:
        raise ConfigError(f"{path} cannot be described with these arguments: {error}") from error


def read_model(
    path: Path,
    *,
    height: int | None,
    width: int | None,
    layout: Literal["NCHW", "NHWC"] | None,
    trusted: bool,
) -> Any:
    """Return the OpenVINO model of an ``.onnx`` or ``.xml`` file; errors as ``from_model``."""
    if path.suffix not in (".onnx", ".xml"):
        raise ConfigError(
            f"{path} is no .onnx and no .xml file. Expected one of these; export the network as "
            "ONNX."
        )
    wanted = [path, path.with_suffix(".bin")] if path.suffix == ".xml" else [path]
    for file in wanted:
        if not os.path.isfile(file):
            raise ModelNotFoundError(
                f"there is no model file {file}. Expected an existing file; check the path."
            )
    content = [read_bytes(file, None) for file in wanted]
    if not trusted:
        # Sizes that the file leaves open are checked again once they are known.
        sides = (height or _SIDE, width or _SIDE)
        fills = [(3, *sides)] * (layout != "NHWC") + [(*sides, 3)] * (layout != "NCHW")
        found: list[ModelCorruptError] = []
        for fill in fills:
            try:
                check_network(path, NetworkFile(*content), fill, CHUNKS)
                break
            except ModelCorruptError as error:
                found.append(error)
        if len(found) == len(fills):
            if height is not None and width is not None:
                raise found[0]
            raise ModelCorruptError(
                f"{found[0]} If the file leaves the size of pictures open, give height=, width=."
            ) from found[0]
    ov = import_openvino()
    try:
        return shared_core(ov).read_model(*content)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise ModelCorruptError(
            f"{path} cannot be read as a network. Expected an ONNX file or an OpenVINO .xml with "
            "its .bin; the file is damaged or of another kind, export it again."
        ) from error


def check_shape(path: Path, model: Any, output_index: int) -> None:
    """Raise ConfigError unless pictures go in and rows of numbers come out."""
    if len(model.inputs) != 1 or output_index >= len(model.outputs):
        raise ConfigError(
            f"{path} has {len(model.inputs)} inputs and {len(model.outputs)} outputs. Expected one "
            f"input and an output number {output_index}; give another model or output_index."
        )
    source, target = model.input(0).partial_shape, model.output(output_index).partial_shape
    if source.rank.is_dynamic or len(source) != 4 or target.rank.is_dynamic or len(target) != 2:
        raise ConfigError(
            f"{path} turns {source} into {target}. Expected pictures (N, 3, H, W) or (N, H, W, 3) "
            "to (N, columns); give a network of that form, flattened at its end."
        )


def _layout(shape: list[int | None]) -> Literal["NCHW", "NHWC"] | None:
    """Return where the three channels are, or None where that is not certain."""
    first, last = shape[1] == 3, shape[3] == 3
    if first == last:
        return None
    return "NCHW" if first else "NHWC"


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) != 3:
        raise BundleError(f"mean or std has {len(values)} numbers. Expected 3, one per channel.")
    return float(values[0]), float(values[1]), float(values[2])
