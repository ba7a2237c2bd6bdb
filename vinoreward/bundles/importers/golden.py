"""One picture with its known vector tells whether a foreign encoder was described rightly."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.bundles.golden import means
from vinoreward.bundles.schema import BundleSpec, Encoding
from vinoreward.errors import BundleError, BundleParityError, InputError, ModelCorruptError
from vinoreward.files import read_plain
from vinoreward.picture_files import read_picture
from vinoreward.saved_arrays import read_npy

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle

MAX_VECTOR_BYTES = 1 << 20
TOLERANCE = 1e-2
"""Of the largest number of the vector: exporters and backends round, wrong colours do more."""


def check_golden(bundle: Bundle, golden: tuple[Any, Any]) -> None:
    """Run one picture and compare with the vector that it must give.

    Args:
        bundle: of one model file, described as an encoder.
        golden: the picture, ``(h, w, 3)`` uint8 RGB or a file, and the vector, (D,) or an ``.npy``.

    Raises:
        PictureMismatchError: the picture has another size.
        InputError: no picture, or no vector of that length.
        BundleParityError: another vector; the message says which description would give this one.
    """
    path, spec = bundle.path, bundle.spec
    encoding = spec.encoding
    if encoding is None:
        raise BundleError(f"{path} is described without an encoding. Expected an encoder.")
    picture = golden[0] if isinstance(golden[0], np.ndarray) else read_picture(golden[0])
    expected = _vector(golden[1], encoding)

    def run(described: BundleSpec, frame: NDArray[np.uint8]) -> NDArray[np.float64]:
        own = dataclasses.replace(bundle, spec=described)
        with own.backend("openvino", precision="fp32", verify=False) as backend:
            outputs = backend.infer(np.ascontiguousarray(own.prepare(frame[None])))
        return np.asarray(means(outputs, encoding)[0], np.float64)

    found = run(spec, picture)
    if _same(found, expected):
        return
    rights = [said for said, other in _others(spec) if _same(run(other, picture), expected)]
    if spec.picture.in_graph and _same(run(spec, picture[..., ::-1]), expected):
        rights.append("red and blue swapped in the graph (export it with the other colour order)")
    cause = (
        f"with {rights[0]} it is right"
        if rights
        else "no other colour order, range or usual normalisation is right either: look at mean, "
        "std and scale, at the picture's file format, and whether the vector is the mean"
    )
    raise BundleParityError(
        f"the golden picture gives {_row(found)} in {path}. Expected {_row(expected)}; {cause}."
    )


def _others(spec: BundleSpec) -> Iterator[tuple[str, BundleSpec]]:
    """Yield other descriptions of a float network that people get wrong, and how to say them."""
    picture = spec.picture
    if picture.in_graph:
        return
    ranges: dict[str, dict[str, Any]] = {
        "": {},
        "scale=255, mean 0 and std 1": {"scale": 255.0, "mean": (0, 0, 0), "std": (1, 1, 1)},
        "scale=255, mean 0.5 and std 0.5": {"scale": 255.0, "mean": (0.5,) * 3, "std": (0.5,) * 3},
        "scale=1, mean 0 and std 1": {"scale": 1.0, "mean": (0, 0, 0), "std": (1, 1, 1)},
        "scale=255 and ImageNet's mean and std": {
            "scale": 255.0,
            "mean": IMAGENET_MEAN,
            "std": IMAGENET_STD,
        },
    }
    orders: tuple[Literal["RGB", "BGR"], ...] = ("RGB", "BGR")
    for said, changes in ranges.items():
        for order in orders:
            other = order != picture.color_order
            told = [said] * bool(said) + [f"color_order={order!r}"] * other
            if told:
                changed = dataclasses.replace(picture, **changes, color_order=order)
                yield " and ".join(told), dataclasses.replace(spec, picture=changed)


def _same(found: NDArray[np.float64], expected: NDArray[np.float64]) -> bool:
    limit = TOLERANCE * float(np.abs(expected).max()) + 1e-4
    return bool(np.abs(found - expected).max() <= limit)


def _vector(given: Any, encoding: Encoding) -> NDArray[np.float64]:
    if isinstance(given, (str, Path)):
        try:
            given = read_npy(read_plain(given, MAX_VECTOR_BYTES))
        except (OSError, ModelCorruptError) as error:
            raise InputError(
                f"the golden vector {given} cannot be read: {error}. Expected an .npy file of "
                "numbers; write it with numpy.save."
            ) from error
    try:
        vector = np.asarray(given, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the golden vector holds no numbers: {error}. Expected the means of one picture."
        ) from error
    size = len(encoding.low)
    if vector.size not in ((size, 2 * size) if encoding.posterior else (size,)):
        raise InputError(
            f"the golden vector has {vector.size} numbers. Expected {size}, the latent size; give "
            "the means of one picture."
        )
    return vector[:size]


def _row(values: NDArray[np.float64]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:6])
    return f"[{shown}{', …' if len(values) > 6 else ''}]"
