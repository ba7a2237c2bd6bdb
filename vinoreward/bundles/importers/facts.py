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
"""Pixels of a picture whose size nobody has said yet."""
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
class Said:
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
    said: Said,
    method: str,
    also: Mapping[str, object] | None = None,
) -> Picture:
    """Return the picture that the network takes.

    Args:
        path: the model file, for messages.
        model: what OpenVINO read from it.
        info: what the file says about itself.
        said: what the caller says.
        method: of Bundle, for messages.
        also: other facts that are needed; those that are None are listed as missing too.

    Raises:
        ConfigError: facts are missing or contradict.
    """
    in_graph = model.input(0).element_type.to_dtype().name == "uint8"
    shape = [
        None if size.is_dynamic else size.get_length() for size in model.input(0).partial_shape
    ]
    height, width, layout = said.height, said.width, said.layout or _layout(shape)
    missing: list[str] = []
    if layout is None:
        missing.append("layout")
    else:
        rows, columns = (2, 3) if layout == "NCHW" else (1, 2)
        height = height or shape[rows] or info.height
        width = width or shape[columns] or info.width
    asked: dict[str, object] = {"height": height, "width": width, **(also or {})}
    mean, std, scale = said.mean, said.std, said.scale
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
    order = said.color_order or info.color_order or "RGB"
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
            crop=said.crop,
            resize=said.resize,
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


def read_model(path: Path, said: Said, *, trusted: bool) -> Any:
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
        sides = (said.height or _SIDE, said.width or _SIDE)
        fills = [(3, *sides)] * (said.layout != "NHWC") + [(*sides, 3)] * (said.layout != "NCHW")
        found: list[ModelCorruptError] = []
        for fill in fills:
            try:
                check_network(path, content, fill, CHUNKS)
                break
            except ModelCorruptError as error:
                found.append(error)
        if len(found) == len(fills):
            if said.height is not None and said.width is not None:
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
    raw = _from_onnx(path) if path.suffix == ".onnx" else _from_ir(model)
    labels = tuple(raw["labels"].split()) if raw.get("labels") else None
    reverse = raw.get("reverse_input_channels")
    return ModelInfo(
        labels=labels,
        mean=_triple(path, raw, "mean_values", 0.0),
        std=_triple(path, raw, "scale_values", 1.0),
        scaled="mean_values" in raw or "scale_values" in raw,
        color_order=None if reverse is None else ("RGB" if _yes(path, reverse) else "BGR"),
        height=_whole(path, raw, "orig_height"),
        width=_whole(path, raw, "orig_width"),
        threshold=_one(path, raw, "confidence_threshold"),
    )


def _from_ir(model: Any) -> dict[str, str]:
    found = {}
    for key in _KEYS:
        place = ["model_info", key]
        if model.has_rt_info(place):
            found[key] = str(model.get_rt_info(place).astype(str)).strip()
    return found


def _from_onnx(path: Path) -> dict[str, str]:
    """Return the ``model_info`` entries of an ONNX file's metadata.

    OpenVINO's reader does not offer them.
    """
    found = {}
    for key, value in read_metadata(path.read_bytes()).items():
        if key.startswith("model_info"):
            found[key[len("model_info") :].strip(" ./:")] = value.strip()
    return {key: value for key, value in found.items() if key in _KEYS}


def _numbers(path: Path, raw: dict[str, str], key: str) -> tuple[float, ...]:
    try:
        values = tuple(float(item) for item in raw[key].replace(",", " ").split())
    except ValueError as error:
        raise _wrong(path, key, raw[key], "numbers") from error
    if not values or not all(math.isfinite(value) for value in values):
        raise _wrong(path, key, raw[key], "finite numbers")
    return values


def _triple(path: Path, raw: dict[str, str], key: str, default: float) -> tuple[float, ...]:
    if key not in raw:
        return (default,) * 3
    values = _numbers(path, raw, key)
    if len(values) not in (1, 3):
        raise _wrong(path, key, raw[key], "one number or three")
    return values * 3 if len(values) == 1 else values


def _one(path: Path, raw: dict[str, str], key: str) -> float | None:
    return _numbers(path, raw, key)[0] if key in raw else None


def _whole(path: Path, raw: dict[str, str], key: str) -> int | None:
    value = _one(path, raw, key)
    return None if value is None or value <= 0 else int(value)


def _yes(path: Path, text: str) -> bool:
    if text.lower() in ("true", "yes", "1"):
        return True
    if text.lower() in ("false", "no", "0", ""):
        return False
    raise _wrong(path, "reverse_input_channels", text, "True or False")


def _wrong(path: Path, key: str, found: str, expected: str) -> ConfigError:
    return ConfigError(
        f"{path} has model_info {key} = {shown(found)}. Expected {expected}; correct the file's "
        "metadata, or export the model again."
    )
