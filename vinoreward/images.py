"""Images: what a network was trained on, what a camera gives, and files of untrusted origin.

An image is ``(H, W, 3)`` uint8 RGB. :func:`as_image` makes one of what an environment gives;
:func:`prepare` checks dtype and shape, once, and makes the network's input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from vinoreward.arrays import is_tensor, to_numpy
from vinoreward.errors import ConfigError, ImageMismatchError, InputError
from vinoreward.files import read_plain
from vinoreward.strict_model import (
    STRICT,
    Flag,
    Name,
    Number,
    StrictModel,
    Table,
    Text,
    Whole,
    wrong,
)

Layout = Literal["HWC", "CHW", "HW"]
"""Where an image has its channels: last, first, or none as it is grey."""
MAX_SIDE = 4096
MAX_VIEWS = 32
MAX_AGE = 100
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
"""PIL opens many more, some by starting other programs."""
MAX_PIXELS = 4096 * 4096
"""Checked in the header, before a pixel is decoded."""
MAX_BYTES = 128 * 2**20
"""Of a file; a BMP of 4096 x 4096 pixels is smaller."""
MAX_SCANS = 100
"""Of a JPEG; ordinary ones have a dozen."""
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
_END, _SCAN = 0xD9, 0xDA

# What PIL's readers raise for damaged files.
_DAMAGED = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError,
    AttributeError, struct.error, zlib.error,
)  # fmt: skip

Side = Annotated[Whole, Field(ge=1, le=MAX_SIDE)]
Corner = Annotated[Whole, Field(ge=0, le=MAX_SIDE)]
Positive = Annotated[Number, Field(gt=0)]


@dataclass(frozen=True, config=STRICT)
class View(StrictModel):
    """One of several images that the network takes together; a row of ``image.views``.

    Views of one camera have its name, source and height, and different ages.
    """

    name: Name
    """Of the camera."""
    height: Side
    """Pixels; the width is the image's."""
    source: Annotated[Text, Field(pattern="^(render|obs|obs:.+)$")] = "render"
    """Where it comes from: ``render``, ``obs`` or ``obs:<key>``, as ``image_source`` names it."""
    age: Annotated[Whole, Field(ge=0, le=MAX_AGE)] = 0
    """How many steps old: 0 is the newest. In an episode's first steps its first image."""

    def __str__(self) -> str:
        age = f", {self.age} steps ago" if self.age else ""
        return f"{self.name}{age} ({self.source}, {self.height} pixels high)"


@dataclass(frozen=True, config=STRICT)
class ImageSpec(StrictModel):
    """The image that the network was trained on, and how it becomes the network's input.

    Callers always give RGB. Order of steps: crop, resize (both in :func:`prepare`), then in the
    network ``(pixel / scale - mean) / std`` per channel.

    Several cameras, or the last images of one, are *views* below each other in one image; see
    :func:`tiled`. The network takes them apart again.
    """

    height: Side
    """Pixels, 1 to 4096."""
    width: Side
    """Pixels, 1 to 4096."""
    color_order: Literal["RGB", "BGR"] = "RGB"
    """Order that the bare network takes. The graph or the backend reverses it, never the caller."""
    mean: tuple[Number, Number, Number] = (0.485, 0.456, 0.406)
    """Per channel of the bare network, in units of ``pixel / scale``."""
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    """As ``mean``."""
    crop: tuple[Corner, Corner, Side, Side] | None = None
    """``(top, left, height, width)`` in pixels of the image given."""
    resize: Literal["none", "pil_bilinear"] = "none"
    """``none``: any other size is an error. ``pil_bilinear``: antialiased, as Pillow does it."""
    scene: Table = dataclasses.field(default_factory=dict)
    """What drew the training images (a camera's ``as_dict``); empty when unknown."""
    in_graph: Flag = True
    """Whether the graph takes RGB uint8 (N, H, W, 3) itself. False: a float network, the backend
    puts the conversion in front."""
    layout: Literal["NHWC", "NCHW"] = "NHWC"
    """Layout of the graph's input; always NHWC where ``in_graph``."""
    scale: Positive = 255.0
    """What a pixel is divided by."""
    views: Annotated[tuple[View, ...], Field(max_length=MAX_VIEWS)] = ()
    """From top to bottom; empty for one image. ``resize`` is of each one."""

    def __post_init__(self) -> None:
        if self.in_graph and self.layout != "NHWC":
            wrong("image.layout", self.layout, "NHWC where the graph takes uint8 (in_graph)")
        size = (self.height, self.width)
        if self.crop and self.resize == "none" and self.crop[2:] != size:
            expected = f"a crop of {self.height} x {self.width} pixels, or a resize"
            wrong("image.crop", self.crop, expected)
        for key, item in self.scene.items():
            if isinstance(item, (dict, list)) or item is None:
                wrong(f"image.scene.{key}", item, "a string, number, true or false")
        if self.views:
            self._check_views()

    def _check_views(self) -> None:
        heights = [view.height for view in self.views]
        if sum(heights) != self.height:
            wrong("image.views", heights, f"heights that add up to {self.height}, the image's")
        if self.crop is not None:
            wrong("image.crop", self.crop, "null in an image of several views")
        kinds = {(view.name, view.source, view.height) for view in self.views}
        if len(kinds) > len(self.cameras):
            wrong("image.views", kinds, "one source and height for all views of a camera")
        pairs = [(view.name, view.age) for view in self.views]
        if len(set(pairs)) < len(pairs):
            wrong("image.views", pairs, "different names, or different ages of one name")

    @property
    def cameras(self) -> dict[str, View]:
        """The first view of each camera, by name, in order; empty for one image."""
        cameras: dict[str, View] = {}
        for view in self.views:
            cameras.setdefault(view.name, view)
        return cameras

    def of_view(self, view: View) -> ImageSpec:
        """Return what a single image for a view is like."""
        return dataclasses.replace(self, height=view.height, views=())


def as_image(value: Any, where: str) -> NDArray[Any]:
    """Return what an environment gives as one image, ``(H, W, 3)``.

    It may be an array or a tensor on any device, grey, and in a stack or batch of one. Its dtype
    and shape are checked by :func:`prepare`. ``where`` it comes from goes into the error.

    Raises:
        InputError: no array.
    """
    image = to_numpy(value) if is_tensor(value) else value
    if not isinstance(image, np.ndarray):
        raise InputError(
            f"{where} gave {type(image).__name__}. Expected one image, (height, width, 3) uint8 "
            "RGB; look at the environment's render_mode or at the function."
        )
    image = image[0] if image.ndim == 4 and len(image) == 1 else image
    ends = image.shape[::2] if image.ndim == 3 else ()
    if image.ndim == 2 or (1 in ends and 3 not in ends):
        return in_color(image, layout_of(image.shape, where))
    return image


def prepare(images: NDArray[Any], spec: ImageSpec) -> NDArray[np.uint8]:
    """Crop and resize ``(N, h, w, 3)`` or ``(h, w, 3)`` uint8 RGB for training and inference.

    Stacks of one, ``(N, 1, h, w, 3)``, are images. Returns ``(N, H, W, 3)``, a view of ``images``
    where possible. Colour order and normalising are part of the network.

    Raises:
        InputError: not uint8, or not three channels in the last axis.
        ImageMismatchError: a size that the spec's crop and resize do not allow.
    """
    batch = as_batch(images)
    if spec.crop is not None:
        top, left, height, width = spec.crop
        if batch.shape[1] < top + height or batch.shape[2] < left + width:
            raise ImageMismatchError(
                f"the image is {_size(batch)}. Expected at least {top + height} x {left + width} "
                f"(height x width), because the bundle crops {height} x {width} at row {top}, "
                f"column {left}; render larger images, or use a bundle without this crop."
            )
        batch = batch[:, top : top + height, left : left + width]
    if batch.shape[1:3] == (spec.height, spec.width):
        return batch
    if spec.views or spec.resize == "none":
        remedy = (
            "the size the bundle was trained on; render at that size "
            f"(image_size=({spec.height}, {spec.width}) in our environments), or fine-tune a "
            "bundle on images of your size"
        )
        if spec.views:
            heights = ", ".join(f"{view.height} ({view.name})" for view in spec.views)
            remedy = (
                f"{len(spec.views)} views below each other, of heights {heights}; put them "
                "together with vinoreward.images.tiled, or name the cameras with image_source"
            )
        raise ImageMismatchError(
            f"the image is {_size(batch)}. Expected {spec.height} x {spec.width} (height x "
            f"width): {remedy}."
        )
    size = (spec.width, spec.height)
    resized = np.empty((len(batch), spec.height, spec.width, 3), dtype=np.uint8)
    for source, target in zip(batch, resized, strict=True):
        image = PIL.Image.fromarray(np.ascontiguousarray(source))
        target[:] = np.asarray(image.resize(size, PIL.Image.Resampling.BILINEAR))
    return resized


def as_batch(images: NDArray[Any]) -> NDArray[np.uint8]:
    """Return ``(N, h, w, 3)`` uint8 of one image, several, or stacks of one; else InputError."""
    if not isinstance(images, np.ndarray):
        raise InputError(
            f"the images are a {type(images).__name__}. Expected a numpy array of uint8, "
            "(N, height, width, 3); use numpy.stack on a list of images."
        )
    if images.dtype != np.uint8:
        raise InputError(
            f"the images are {images.dtype}. Expected uint8 from 0 to 255; if they are floats "
            "from 0 to 1 use (images * 255).round().astype('uint8'), and do not normalise them: "
            "the network does."
        )
    batch = images[None] if images.ndim == 3 else images
    batch = batch[:, 0] if batch.ndim == 5 and batch.shape[1] == 1 else batch
    if batch.ndim != 4 or batch.shape[-1] != 3 or 0 in batch.shape:
        raise InputError(
            f"the images have shape {images.shape}. Expected (N, height, width, 3) RGB with N at "
            f"least 1, or one image (height, width, 3); {_remedy(batch)}."
        )
    return batch


def _remedy(batch: NDArray[Any]) -> str:
    if batch.ndim == 4 and batch.shape[-1] == 4:
        return "drop the alpha channel with images[..., :3]"
    if batch.ndim == 4 and batch.shape[1] == 3:
        return "move the channels to the end with numpy.moveaxis(images, -3, -1)"
    if batch.ndim == 4 and batch.shape[-1] == 1:
        return "repeat the grey channel with numpy.repeat(images, 3, axis=-1)"
    return "look at what the camera returns"


def _size(batch: NDArray[Any]) -> str:
    return f"{batch.shape[1]} x {batch.shape[2]} pixels"


def tiled(views: Sequence[NDArray[np.uint8]], names: Sequence[str]) -> NDArray[np.uint8]:
    """Put several views of a moment below each other: the one image that a network takes.

    Args:
        views: ``(N, height, width, 3)`` or ``(height, width, 3)`` uint8 RGB each, of one width and
            one N, from top to bottom.
        names: of the views, for errors.

    Returns:
        ``(N, sum of heights, width, 3)``, or without the N.

    Raises:
        InputError: views of different widths or numbers of images.
    """
    first = views[0].shape
    for name, view in zip(names, views, strict=True):
        if (view.shape[:-3], view.shape[-2:]) != (first[:-3], first[-2:]):
            raise InputError(
                f"the view {name!r} has shape {view.shape} and the view {names[0]!r} {first}. "
                "Expected one width and as many images of each, as they go below each other; "
                "render them at one width, and give the same moments of both."
            )
    return np.concatenate(list(views), axis=-3)


def layout_of(shape: tuple[int, ...], where: str) -> Layout:
    """Return where an image of ``shape`` has its three channels, or the one of a grey image.

    The shape may be that of a batch of one.
    """
    shape = shape[1:] if len(shape) == 4 and shape[0] == 1 else shape
    if len(shape) == 2:
        return "HW"
    channels = next((count for count in (3, 1) if len(shape) == 3 and count in shape[::2]), None)
    if channels is None:
        raise ConfigError(
            f"{where} has shape {shape}. Expected one image, in colour with 3 channels first or "
            "last, or grey; choose another image_source, or give a callable that makes the image. "
            "Of several give the newest: a bundle of the last images keeps them itself, and for "
            "an encoder give frame_stack."
        )
    if shape[0] == shape[2]:
        raise ConfigError(
            f"{where} has shape {shape}, where the channels may be first or last. Expected an "
            "unambiguous shape; give a callable as image_source that returns (height, width, 3)."
        )
    return "HWC" if shape[2] == channels else "CHW"


def in_color(images: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return images of a layout as ``(..., H, W, 3)``; grey is repeated in all three channels.

    The result is a view of images in colour, new memory for grey ones.
    """
    if layout == "HW":
        images = images[..., None]
    elif layout == "CHW":
        images = np.moveaxis(images, -3, -1)
    return np.repeat(images, 3, axis=-1) if images.shape[-1] == 1 else images


def check_scene(
    found: Mapping[str, object], expected: Mapping[str, object], bundle: str, remedy: str
) -> None:
    """Raise ImageMismatchError, with a remedy, unless an environment's scene is a bundle's."""
    names = sorted({*found, *expected}, key=str)
    differing = [name for name in names if found.get(name) != expected.get(name)]
    if differing:
        ours, theirs = (
            ", ".join(f"{name}={scene.get(name)!r}" for name in differing)
            for scene in (found, expected)
        )
        raise ImageMismatchError(
            f"the environment's image has {ours}. Expected {theirs}, on which the bundle "
            f"{bundle!r} was trained; {remedy}, or capture and fine-tune at this image."
        )


def read_image(path: str | Path) -> NDArray[np.uint8]:
    """Read a PNG, JPEG, BMP or WebP file as ``(H, W, 3)`` uint8 RGB, upright as EXIF says.

    Raises:
        InputError: no plain file, another format, damaged, transparent, or more than 4096 x 4096
            pixels or 128 MiB.
    """
    try:
        data = read_plain(path, MAX_BYTES)
    except OSError as error:
        raise _unreadable(path, str(error)) from error
    return decode_image(data, str(path))


def decode_image(data: bytes, name: str) -> NDArray[np.uint8]:
    """Return the image in the content of a file, as :func:`read_image`; errors say ``name``."""
    try:
        if len(data) > MAX_BYTES:
            raise InputError(f"it has {len(data)} bytes")
        _check_scans(data)
        with PIL.Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > MAX_PIXELS:
                raise InputError(f"it has {width}x{height} pixels (width x height)")
            return _upright(_in_rgb(opened), opened.info.get("exif", b""))
    except (PIL.Image.DecompressionBombWarning, PIL.Image.DecompressionBombError) as error:
        raise _unreadable(name, "it has far too many pixels") from error
    except _DAMAGED as error:
        raise _unreadable(name, str(error) or type(error).__name__) from error


def _in_rgb(opened: PIL.Image.Image) -> NDArray[np.uint8]:
    """Return an open image as ``(H, W, 3)``; InputError if that would change what is seen."""
    sixteen_bits = opened.mode.startswith("I")  # of grey; no format here has more
    if opened.has_transparency_data and (
        sixteen_bits or np.asarray(opened.convert("RGBA").getchannel("A")).min() < 255
    ):
        raise InputError("it is transparent in places, which hide colours; save it without")
    if sixteen_bits:
        return in_color((np.asarray(opened) >> 8).astype(np.uint8), "HW")
    return np.asarray(opened.convert("RGB"), dtype=np.uint8)


def _upright(image: NDArray[np.uint8], exif: bytes) -> NDArray[np.uint8]:
    """Return an image ``(H, W, 3)`` turned and mirrored as its EXIF says, if that is readable."""
    exif = exif.removeprefix(b"Exif\0\0")
    order = "<" if exif.startswith(b"II") else ">"
    orientation = 1
    # PIL's reader would copy what all entries point to, and warn of each unknown one.
    with contextlib.suppress(struct.error):
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, start)
        for at in range(start + 2, start + 2 + 12 * count, 12):
            tag, value = struct.unpack_from(f"{order}H6xH", exif, at)
            orientation = value if tag == 0x0112 else orientation
    if orientation in (5, 6, 7, 8):
        image = image.swapaxes(0, 1)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(image[::rows, ::columns])


def _check_scans(data: bytes) -> None:
    """Refuse a JPEG of many scans: each takes 33 bytes in the file and 12 ms to decode."""
    at, scans = 2 if data.startswith(b"\xff\xd8") else len(data), 0
    while marker := _MARKER.search(data, at):
        kind, at = data[marker.start() + 1], marker.end()
        if kind == _END:
            break
        scans += kind == _SCAN
        at += int.from_bytes(data[at : at + 2], "big")  # skip the header; data have no markers
    if scans > MAX_SCANS:
        raise InputError(f"it has {scans} scans")


def shown_name(path: str | Path) -> str:
    """Return a file's name with unprintable characters escaped."""
    return "".join(
        part if part.isprintable() else part.encode("unicode_escape").decode("ascii")
        for part in str(path)
    )


def _unreadable(path: str | Path, why: str) -> InputError:
    return InputError(
        f"{shown_name(path)} cannot be read as an image: {why}. Expected a whole PNG, JPEG, BMP "
        "or WebP file of at most 4096x4096 pixels and 128 MiB; delete or replace that file."
    )
