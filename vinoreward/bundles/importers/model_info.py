"""Reading Intel model_api's ``model_info`` out of an OpenVINO IR or an ONNX file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vinoreward.backends.onnx_graph import read_metadata
from vinoreward.bundles.reader import shown
from vinoreward.errors import ConfigError

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
