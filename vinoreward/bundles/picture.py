"""From the pictures an environment makes to the pictures a network was trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vinoreward.bundles.schema import Picture
from vinoreward.errors import InputError, PictureMismatchError


def prepare(images: NDArray[Any], picture: Picture) -> NDArray[np.uint8]:
    """Crop and resize RGB pictures as ``picture`` says. Training and run time both call this.

    Colour order, scaling and normalising are not done here: they are part of the network.

    Args:
        images: ``(N, h, w, 3)`` or ``(h, w, 3)`` uint8 RGB.
        picture: what the network was trained on.

    Returns:
        ``(N, H, W, 3)`` uint8 RGB; the very array that was given, or a view of it, where nothing
        needs doing.

    Raises:
        InputError: not uint8, or not three channels in the last axis.
        PictureMismatchError: a size that the picture's crop and resize do not allow.
    """
    check_pictures(images)
    batch = images if images.ndim == 4 else images[None]
    if picture.crop is not None:
        top, left, height, width = picture.crop
        if batch.shape[1] < top + height or batch.shape[2] < left + width:
            raise PictureMismatchError(
                f"the picture is {_size(batch)}. Expected at least {top + height} x {left + width} "
                f"(height x width), because the bundle crops {height} x {width} at row {top}, "
                f"column {left}; render larger pictures, or use a bundle without this crop."
            )
        batch = batch[:, top : top + height, left : left + width]
    if batch.shape[1:3] == (picture.height, picture.width):
        return batch
    if picture.resize == "none":
        raise PictureMismatchError(
            f"the picture is {_size(batch)}. Expected {picture.height} x {picture.width} (height x "
            "width), the size the bundle was trained on; render at that size "
            f"(image_size=({picture.height}, {picture.width}) in our environments), or fine-tune a "
            "bundle on pictures of your size."
        )
    resized = np.empty((len(batch), picture.height, picture.width, 3), dtype=np.uint8)
    for source, target in zip(batch, resized, strict=True):
        image = Image.fromarray(np.ascontiguousarray(source))
        target[:] = np.asarray(
            image.resize((picture.width, picture.height), Image.Resampling.BILINEAR)
        )
    return resized


def check_pictures(images: NDArray[Any]) -> None:
    """Raise InputError unless ``images`` is uint8 of shape (N, h, w, 3) or (h, w, 3), N >= 1."""
    if not isinstance(images, np.ndarray):
        raise InputError(
            f"the pictures are a {type(images).__name__}. Expected a numpy array of uint8, "
            "(N, height, width, 3); use numpy.stack on a list of pictures."
        )
    if images.dtype != np.uint8:
        raise InputError(
            f"the pictures are {images.dtype}. Expected uint8 from 0 to 255; if they are floats "
            "from 0 to 1 use (pictures * 255).round().astype('uint8'), and do not normalise them: "
            "the network does."
        )
    if images.ndim not in (3, 4) or images.shape[-1] != 3 or 0 in images.shape:
        raise InputError(
            f"the pictures have shape {images.shape}. Expected (N, height, width, 3) RGB with N at "
            f"least 1, or one picture (height, width, 3); {_remedy(images)}."
        )


def _remedy(images: NDArray[Any]) -> str:
    if images.ndim in (3, 4) and images.shape[-1] == 4:
        return "drop the alpha channel with pictures[..., :3]"
    if images.ndim in (3, 4) and images.shape[-3] == 3:
        return "move the channels to the end with numpy.moveaxis(pictures, -3, -1)"
    if images.ndim in (3, 4) and images.shape[-1] == 1:
        return "repeat the grey channel with numpy.repeat(pictures, 3, axis=-1)"
    return "look at what the camera returns"


def _size(batch: NDArray[Any]) -> str:
    return f"{batch.shape[1]} x {batch.shape[2]} pixels"
