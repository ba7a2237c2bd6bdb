"""What callers say of other people's networks, and what an ``.onnx`` file says of itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.network import check_ends, openvino_model, read_bytes
from vinoreward.backends.probe import try_network
from vinoreward.backends.runtime import import_openvino
from vinoreward.bundles.schema import BundleSpec, Output
from vinoreward.errors import BundleError, ConfigError
from vinoreward.images import ImageSpec

_SCALING = ("mean", "std", "scale")
_OF_IMAGE = ("height", "width", "color_order", "layout", "crop", "resize", *_SCALING)
_ORDERS = {
    **dict.fromkeys(("true", "yes", "1"), "RGB"),
    **dict.fromkeys(("false", "no", "0", ""), "BGR"),
}
"""Of a network's channels, by what ``reverse_input_channels`` says."""

GoldenFrame = tuple[str | Path | NDArray[np.uint8], str | Path | NDArray[np.floating[Any]]]
Run = Callable[[BundleSpec, NDArray[np.uint8]], NDArray[np.float32]]
"""Returns a network's outputs ``(N, K)`` for images, if a specification describes it."""


class ImageFacts(TypedDict, total=False):
    """What a caller may say of a network's images; what is left out is read from the file."""

    height: int | None
    """Pixels of the network's input."""
    width: int | None
    """Pixels of the network's input."""
    mean: Sequence[float] | None
    """Per channel, in the network's channel order, in units of ``pixel / scale``."""
    std: Sequence[float] | None
    """As ``mean``."""
    scale: float | None
    """What pixels are divided by first; 255 unless given."""
    color_order: Literal["RGB", "BGR"] | None
    """Of the training images; RGB unless given here or in the file."""
    layout: Literal["NCHW", "NHWC"] | None
    """Of the network's input."""
    crop: tuple[int, int, int, int] | None
    """``(top, left, height, width)`` cut out of the given image first."""
    resize: Literal["none", "pil_bilinear"]
    """How other sizes are brought to ``height`` and ``width``; ``"none"`` unless given."""
    name: str | None
    """The bundle's name; the file's name unless given."""


class ClassifierFacts(ImageFacts, total=False):
    """What a caller may say of a classifier."""

    labels: Sequence[str] | None
    """One per output, in order. Of one output: two, of which it gives the second."""
    success_label: str | None
    """Which label means success."""
    output: Output | None
    """Whether the graph returns ``"logits"`` or ``"probabilities"``, one per label; or one
    ``"logit"`` or ``"probability"`` (of a sigmoid) for the second of two labels."""
    output_index: int
    """Which output of the graph; 0 unless given."""
    threshold: float | None
    """Lowest probability of success; 0.5 unless given."""


class EncoderFacts(ImageFacts, total=False):
    """What a caller may say of an encoder."""

    latent_size: int | None
    """D, the length of the vectors."""
    posterior: bool | None
    """Whether one output of 2 D columns holds means and log variances (True) or the vector itself
    (False). Not needed with ``latent_size`` or two outputs."""
    outputs: Sequence[str | int] | str | int | None
    """Names or numbers of the outputs: the vector, or means then log variances. None: the only
    output, or two with names like ``mu`` and ``logvar``."""
    low: Sequence[float] | float | None
    """Lower bounds of the vectors, (D,) or one for all, to which they are clipped. None is -1e6:
    nothing is clipped."""
    high: Sequence[float] | float | None
    """Upper bounds, likewise."""
    latent_std: Sequence[float] | None
    """(D,) mean posterior standard deviation, if known; backends are compared in this unit."""
    golden: GoldenFrame | None
    """An image, ``(h, w, 3)`` uint8 RGB or a file, and its expected vector, (D,) or an ``.npy``
    file. Checks size, colour order and value range."""


@contextlib.contextmanager
def describing(path: Path) -> Iterator[None]:
    """Turn a BundleError about a value into a ConfigError about the arguments."""
    try:
        yield
    except BundleError as error:
        raise ConfigError(f"{path} cannot be described with these arguments: {error}") from error


class NetworkFile:
    """An ``.onnx`` file as OpenVINO reads it, tried in a child unless it is trusted.

    Errors are those of ``Bundle.from_model``.
    """

    def __init__(self, path: Path, *, trusted: bool) -> None:
        if path.suffix != ".onnx":
            raise ConfigError(
                f"{path} is no .onnx file. Expected one, as an OpenVINO IR cannot be checked well "
                "enough; export the network as ONNX, with torch.onnx.export or tf2onnx."
            )
        content = read_bytes(path, None)
        if not trusted:
            try_network(path, content)
        self.path = path
        self.model = openvino_model(import_openvino(), path, content)
        self.info = _model_info(path, self.model)
        """What Intel's ``model_info`` says: ``labels``, ``threshold`` and :class:`ImageFacts`."""

    def columns(self, index: int) -> int | None:
        """Return how many numbers an output has for each image; None where that is open.

        ConfigError unless it has rows of numbers, one for each image.
        """
        check_ends(self.path, len(self.model.inputs), len(self.model.outputs), index)
        source = self.model.input(0).partial_shape
        target = self.model.output(index).partial_shape
        if source.rank.is_dynamic or len(source) != 4 or target.rank.is_dynamic or len(target) != 2:
            raise ConfigError(
                f"{self.path} turns {source} into {target}. Expected images (N, 3, H, W) or "
                "(N, H, W, 3) to (N, columns); give a network of that form, flattened at its end."
            )
        return None if target[1].is_dynamic else int(target[1].get_length())

    def image_spec(self, given: ImageFacts, **also: object) -> ImageSpec:
        """Return the network's image specification, from its file and the caller's arguments.

        Values of ``also`` that are None are missing too.
        """
        path, info = self.path, self.info
        kind = self.model.input(0).element_type.get_type_name()
        if kind not in ("u8", "f16", "f32"):
            raise ConfigError(
                f"{path} takes numbers of the type {kind}. Expected float32, float16 or, where the "
                "graph converts images itself, uint8; export it with an input of float32."
            )
        in_graph = kind == "u8"
        said = {key: value for key, value in given.items() if value is not None}
        scaling = [key for key in _SCALING if key in said]
        if in_graph or scaling:
            info = {key: value for key, value in info.items() if key not in _SCALING}
        facts = {"color_order": "RGB", **info, **self._sizes(given.get("layout")), **said}
        if in_graph:
            fixed = {"layout": "NHWC", "color_order": "RGB"}
            unlike = [key for key, value in fixed.items() if facts.get(key, value) != value]
            if useless := [*scaling, *unlike]:
                raise ConfigError(
                    f"{path} takes uint8 images, so {', '.join(f'`{key}`' for key in useless)} "
                    "would never be applied. Expected RGB in NHWC where the graph converts images "
                    "itself; leave out the argument, or export the network with an input of "
                    "float32, or with a transposition and channel reversal inside the graph.",
                    field=useless[0],
                )
            facts |= {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
        needed = {key: facts.get(key) for key in ("layout", "height", "width")} | also
        needed |= {key: facts.get(key) for key in ("mean", "std")}
        if missing := [key for key, value in needed.items() if value is None]:
            raise ConfigError(
                f"{path} does not say {', '.join(missing)}. Expected these facts, which cannot be "
                f"guessed; give {', '.join(f'`{name}`' for name in missing)}.",
                field=missing[0],
            )
        with describing(path):
            known: dict[str, Any] = {key: facts[key] for key in _OF_IMAGE if key in facts}
            return ImageSpec(in_graph=in_graph, **known)

    def _sizes(self, layout: str | None) -> dict[str, Any]:
        """Return the known ones of layout, height and width."""
        sizes = self.model.input(0).partial_shape
        shape = [None if size.is_dynamic else size.get_length() for size in sizes]
        axes = {"NCHW": (1,), "NHWC": (3,)}.get(layout or "", (1, 3))
        if not {shape[axis] for axis in axes} & {3, None}:
            raise ConfigError(
                f"{self.path} takes inputs of shape {sizes}, no images of 3 channels. Expected RGB "
                "or BGR; export it with the conversion from colour in its graph."
            )
        if layout is None and (shape[1] == 3) != (shape[3] == 3):
            layout = "NCHW" if shape[1] == 3 else "NHWC"
        height, width = shape[2:] if layout == "NCHW" else shape[1:3]
        known = {"layout": layout, "height": height, "width": width} if layout else {}
        return {key: value for key, value in known.items() if value is not None}


def _model_info(path: Path, model: Any) -> dict[str, Any]:
    """Return what ``model_info`` in the metadata of an ``.onnx`` file says, as OpenVINO read them.

    model_api gives networks BGR images: ``reverse_input_channels`` is true for one that takes RGB.
    ``resize_type`` is ignored: OpenCV's resizing is not the antialiased one of bundles.
    """
    metadata = model.rt_info["framework"] if model.has_rt_info("framework") else {}
    raw = {
        key.removeprefix("model_info").strip(" ./:"): metadata[key].value.strip()
        for key in metadata
        if key.startswith("model_info")
    }

    def numbers(key: str) -> tuple[float, ...]:
        try:
            values = tuple(float(item) for item in raw.get(key, "").replace(",", " ").split())
        except ValueError:
            values = (math.nan,)
        if len(values) not in (0, 1, 3) or not all(map(math.isfinite, values)):
            raise _wrong(path, key, raw[key], "one finite number or three")
        return values

    info: dict[str, Any] = {}
    if raw.get("labels"):
        info["labels"] = tuple(raw["labels"].split())
    mean, std = numbers("mean_values"), numbers("scale_values")
    if mean or std:  # in grey levels, and in the network's channel order
        info |= {"mean": ((mean or (0.0,)) * 3)[:3], "std": ((std or (1.0,)) * 3)[:3], "scale": 1.0}
    if (reverse := raw.get("reverse_input_channels")) is not None:
        if reverse.lower() not in _ORDERS:
            raise _wrong(path, "reverse_input_channels", reverse, "True or False")
        info["color_order"] = _ORDERS[reverse.lower()]
    for key, name in (("height", "orig_height"), ("width", "orig_width")):
        if (size := numbers(name)) and size[0] > 0:
            info[key] = int(size[0])
    if threshold := numbers("confidence_threshold"):
        info["threshold"] = threshold[0]
    return info


def _wrong(path: Path, key: str, value: str, expected: str) -> ConfigError:
    return ConfigError(
        f"{path} has model_info {key} = {value!r:.80}. Expected {expected}; correct the file's "
        "metadata, or export the model again."
    )
