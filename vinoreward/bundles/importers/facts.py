"""What goes into somebody else's network, from its file and from what the caller adds."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from vinoreward.backends.base import CHUNKS
from vinoreward.backends.network import check_ends, check_network, openvino_model, read_files
from vinoreward.backends.onnx_graph import read_metadata
from vinoreward.backends.runtime import import_openvino, shared_core
from vinoreward.bundles.reader import shown
from vinoreward.bundles.schema import Picture
from vinoreward.errors import BundleError, ConfigError, ModelCorruptError, ModelNotFoundError

_SIDE = 224
"""Pixels of a picture whose size nobody has given yet."""
_KEYS = (
    "labels",
    "mean_values",
    "scale_values",
    "reverse_input_channels",
    "orig_width",
    "orig_height",
    "confidence_threshold",
)


@dataclass(frozen=True)
class GivenPicture:
    """What the caller says of the picture, as ``Bundle.from_model`` has it; None: nothing."""

    height: int | None
    width: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    scale: float | None
    color_order: Literal["RGB", "BGR"] | None
    layout: Literal["NCHW", "NHWC"] | None
    crop: tuple[int, int, int, int] | None
    resize: Literal["none", "pil_bilinear"]


def read_picture_facts(
    path: Path,
    model: Any,
    info: ModelInfo,
    given: GivenPicture,
    method: str,
    also: Mapping[str, object] | None = None,
) -> Picture:
    """Return the picture that the network takes, from its file and the caller's words.

    ``method`` of Bundle is named in messages; facts of ``also`` that are None are missing too.

    Raises:
        ConfigError: facts are missing or contradict.
    """
    in_graph = model.input(0).element_type.to_dtype().name == "uint8"
    shape = [
        None if size.is_dynamic else size.get_length() for size in model.input(0).partial_shape
    ]
    height, width, layout = given.height, given.width, given.layout or _layout(shape)
    missing: list[str] = []
    if layout is None:
        missing.append("layout")
    else:
        rows, columns = (2, 3) if layout == "NCHW" else (1, 2)
        height = height or shape[rows] or info.height
        width = width or shape[columns] or info.width
    asked: dict[str, object] = {"height": height, "width": width, **(also or {})}
    mean, std, scale = given.mean, given.std, given.scale
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
    order = given.color_order or info.color_order or "RGB"
    if in_graph and (layout != "NHWC" or order != "RGB"):
        raise ConfigError(
            f"{path} takes uint8 pictures in {layout} and {order}. Expected NHWC and RGB where the "
            "graph converts pictures itself; export it without its preprocessing, or with a "
            "transposition and channel reversal inside the graph (pass color_order='RGB' then)."
        )
    with describing(path):
        return Picture(
            height=cast("int", height),
            width=cast("int", width),
            color_order=order,
            mean=cast("tuple[float, float, float]", tuple(mean or (0.0, 0.0, 0.0))),
            std=cast("tuple[float, float, float]", tuple(std or (1.0, 1.0, 1.0))),
            crop=given.crop,
            resize=given.resize,
            in_graph=in_graph,
            layout=cast('Literal["NCHW", "NHWC"]', layout),
            scale=255.0 if scale is None else scale,
        )


@contextlib.contextmanager
def describing(path: Path) -> Iterator[None]:
    """Say of a value that a description refuses that an argument is to be corrected."""
    try:
        yield
    except BundleError as error:
        raise ConfigError(f"{path} cannot be described with these arguments: {error}") from error


def read_model(path: Path, given: GivenPicture, *, trusted: bool) -> Any:
    """Return the OpenVINO model of an ``.onnx`` or ``.xml`` file; errors as ``from_model``."""
    if path.suffix not in (".onnx", ".xml"):
        raise ConfigError(
            f"{path} is no .onnx and no .xml file. Expected one of these; export the network as "
            "ONNX."
        )
    if not os.path.isfile(path):
        raise ModelNotFoundError(
            f"there is no model file {path}. Expected an existing file; check the path."
        )
    content = read_files(path)
    if not trusted:
        # Sizes that the file leaves open are checked again once they are known.
        sides = (given.height or _SIDE, given.width or _SIDE)
        fills = [(3, *sides)] * (given.layout != "NHWC") + [(*sides, 3)] * (given.layout != "NCHW")
        found: list[ModelCorruptError] = []
        for fill in fills:
            try:
                check_network(path, content, fill, CHUNKS)
                break
            except ModelCorruptError as error:
                found.append(error)
        if len(found) == len(fills):
            if given.height is not None and given.width is not None:
                raise found[0]
            raise ModelCorruptError(
                f"{found[0]} If the file leaves the size of pictures open, give height=, width=."
            ) from found[0]
    return openvino_model(shared_core(import_openvino()), path, content)


def check_shape(path: Path, model: Any, output_index: int) -> None:
    """Raise ConfigError unless pictures go in and rows of numbers come out."""
    check_ends(path, len(model.inputs), len(model.outputs), output_index)
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


@dataclass(frozen=True)
class ModelInfo:
    """What the file says about itself; ``None`` where it is silent.

    ``mean`` and ``std`` are in grey levels (0 to 255), in the network's channel order.
    """

    labels: tuple[str, ...] | None = None
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    scaled: bool = False
    color_order: Literal["RGB", "BGR"] | None = None
    height: int | None = None
    width: int | None = None
    threshold: float | None = None


def read_model_info(path: Path, model: Any) -> ModelInfo:
    """Return what ``model_info`` says in a model that OpenVINO has read from ``path``.

    model_api gives networks BGR pictures, so ``reverse_input_channels`` true means that this
    network wants RGB, and false that it wants BGR. ``resize_type`` is not taken over: it means
    OpenCV's resizing, which is not the antialiased one a bundle has; pictures must have the
    network's size, or the caller says how to resize.

    Raises:
        ConfigError: a value that does not mean anything.
    """
    raw = _read_info(path, model)
    mean, std = (_numbers(path, raw, key) for key in ("mean_values", "scale_values"))
    height, width, threshold = (
        next(iter(_numbers(path, raw, key) or ()), None)
        for key in ("orig_height", "orig_width", "confidence_threshold")
    )
    reverse = raw.get("reverse_input_channels")
    order: Literal["RGB", "BGR"] | None = None
    if reverse is not None and reverse.lower() in ("true", "yes", "1"):
        order = "RGB"
    elif reverse is not None and reverse.lower() in ("false", "no", "0", ""):
        order = "BGR"
    elif reverse is not None:
        raise _wrong(path, "reverse_input_channels", reverse, "True or False")
    return ModelInfo(
        labels=tuple(raw["labels"].split()) if raw.get("labels") else None,
        mean=((mean or (0.0,)) * 3)[:3],
        std=((std or (1.0,)) * 3)[:3],
        scaled=mean is not None or std is not None,
        color_order=order,
        height=int(height) if height is not None and height > 0 else None,
        width=int(width) if width is not None and width > 0 else None,
        threshold=threshold,
    )


def _read_info(path: Path, model: Any) -> dict[str, str]:
    """Return the ``model_info`` entries of a file; OpenVINO does not offer those of ONNX."""
    if path.suffix == ".onnx":
        found = {
            key.removeprefix("model_info").strip(" ./:"): value.strip()
            for key, value in read_metadata(path.read_bytes()).items()
            if key.startswith("model_info")
        }
        return {key: value for key, value in found.items() if key in _KEYS}
    places = {key: ["model_info", key] for key in _KEYS if model.has_rt_info(["model_info", key])}
    return {key: str(model.get_rt_info(place).astype(str)).strip() for key, place in places.items()}


def _numbers(path: Path, raw: dict[str, str], key: str) -> tuple[float, ...] | None:
    """Return one number or three; None where the file is silent."""
    if key not in raw:
        return None
    try:
        values = tuple(float(item) for item in raw[key].replace(",", " ").split())
    except ValueError:
        values = ()
    if len(values) not in (1, 3) or not all(map(math.isfinite, values)):
        raise _wrong(path, key, raw[key], "one finite number or three")
    return values


def _wrong(path: Path, key: str, found: str, expected: str) -> ConfigError:
    return ConfigError(
        f"{path} has model_info {key} = {shown(found)}. Expected {expected}; correct the file's "
        "metadata, or export the model again."
    )
