"""The guard: whether an image is like those that a classifier was trained on.

It knows which colours were seen in each place, and how rough each place is (blur, noise,
compression). Both are cheaper and told more shifts apart than distances between network features.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays
from vinoreward.backends.network import read_bytes
from vinoreward.bundles import locate
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.errors import BundleError, ModelCorruptError
from vinoreward.files import read_npz, reason_of

Floats = NDArray[np.float32]
Images = NDArray[np.uint8]

MAX_GUARD_BYTES = 8 << 20

_CELLS = (12, 16)
"""Places, down and across."""
COLOURS = 8**3
"""Eight levels of each channel."""
_SIDE = 48
"""About as many pixels of the shorter side are compared, of large images half as many rows."""
_ROUGH_CELLS = (6, 8)
PARTS = 12
"""Directions in which the roughness of the training images differs."""
# A colour's number from its bytes: three bits of each channel, side by side from bit 21. (Arrays:
# a number would be converted in each call.)
_TOP_BITS, _SIDE_BY_SIDE, _FIRST_BIT = (np.array(n, np.uint32) for n in (0xE0E0E0, 0x400801, 21))


@dataclass(frozen=True)
class OodDetector:
    """Tells how unlike the training images an image is; the arrays of ``guard.npz``.

    ``size`` is the images' height and width. ``seen`` has a bit for each colour in each place.
    ``rough_mean`` (P,) is the roughness of each place, ``rough_parts`` (K, P) are orthonormal
    directions in which it differs, and ``rough_scale`` (P,) is the root mean square of what these
    leave. ``scales`` (3,) are of the measures, whose largest multiple counts, and ``limit`` (1,) is
    the multiple from which an image is out of distribution.

    Training fits one (``vinoreward_training.classifier.fit_detector``)::

        guard = fit_detector(images, held_out, episodes)
        ood_mask = guard.ood_score(images) > 1.0
    """

    size: NDArray[np.int64]
    seen: NDArray[np.uint8]
    rough_mean: Floats
    rough_parts: Floats
    rough_scale: Floats
    scales: Floats
    limit: Floats

    def ood_score(self, images: Array) -> Array:
        """Return ``(N,)`` float32 of at least 0; above 1 an image is out of distribution.

        ``images`` are ``(N, H, W, 3)`` uint8 as the network gets them
        (:meth:`~vinoreward.Bundle.prepare`), NumPy's or tensors on any device.
        """
        arrays = Arrays.like(images)
        measures = self._measures.get(arrays)
        if measures is None:
            height, width = self.size.tolist()
            measures = self._measures[arrays] = Measures(height, width, arrays).fitted(self)
        return measures.ood_score(images)

    def to_bytes(self) -> bytes:
        """Return the content of ``guard.npz``."""
        stream = io.BytesIO()
        np.savez_compressed(stream, **self.__getstate__())
        return stream.getvalue()

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], size: tuple[int, int]) -> OodDetector:
        """Return a guard of images of that size; BundleError unless the arrays are one's."""
        measures, most = Measures(*size), np.finfo(np.float32).max
        bits, rough = measures.count * COLOURS, measures.rough_count
        kept = min(PARTS, len(np.atleast_1d(arrays.get("rough_parts", 0))))
        # With other numbers the multiples might be none.
        expected: dict[str, tuple[tuple[int, ...], type, Any, Any]] = {
            "size": ((2,), np.int64, size, size),
            "seen": ((-(-bits // 8),), np.uint8, 0, 255),
            "rough_mean": ((rough,), np.float32, 0.0, 10.0),
            "rough_parts": ((kept, rough), np.float32, -1.01, 1.01),
            "rough_scale": ((rough,), np.float32, 1e-6, most),
            "scales": ((3,), np.float32, 1e-6, most),
            "limit": ((1,), np.float32, 1e-6, most),
        }
        wrong = sorted(set(arrays) ^ set(expected)) or [
            name
            for name, (shape, dtype, low, high) in expected.items()
            if arrays[name].shape != shape
            or arrays[name].dtype != dtype
            or not ((low <= arrays[name]) & (arrays[name] <= high)).all()
        ]
        if wrong:
            raise BundleError(
                f"the guard has {', '.join(name[:40] for name in wrong[:5])} that cannot be right. "
                f"Expected one fitted for images of {size[0]} x {size[1]}; fit it again: "
                "vinoreward calibrate."
            )
        return cls(**arrays)

    @cached_property
    def _measures(self) -> dict[Arrays, Measures]:
        return {}


def guard_of(bundle: Bundle) -> OodDetector | None:
    """Return a bundle's guard; None if it has none. BundleError if its file cannot be right."""
    spec = bundle.spec
    if GUARD_FILE not in spec.files:
        return None
    path = locate.inside(bundle.path, GUARD_FILE)
    return read_guard(path, spec.files[GUARD_FILE], (spec.image.height, spec.image.width))


def read_guard(path: Path, sha256: str, size: tuple[int, int] | None = None) -> OodDetector:
    """Return the guard in a file of this hash, for images of that size; None: of its own.

    BundleError if the file cannot be right.
    """
    try:
        arrays = read_npz(read_bytes(path, sha256, MAX_GUARD_BYTES), MAX_GUARD_BYTES)
        height, width = arrays["size"].tolist() if size is None else size
    except (ModelCorruptError, LookupError, ValueError) as error:
        raise BundleError(
            f"{path} cannot be read: {reason_of(error)}. Expected arrays as vinoreward finetune "
            "writes them; fit the guard again with vinoreward calibrate."
        ) from error
    return OodDetector.from_arrays(arrays, (height, width))


class Measures:
    """Measures images of one size, on the arrays of one library and device.

    Colours are compared in every ``rows``-th row and ``step``-th column; ``offset`` is the number
    of each such pixel's place, times 512. Means in each place are taken by a matrix from the left,
    ``down``, and one from the right, ``across``.
    """

    def __init__(self, height: int, width: int, arrays: Arrays = Arrays()) -> None:  # noqa: B008
        self._arrays = arrays
        # Every pixel of some rows for the roughness: what blurs or adds noise does so between
        # neighbours.
        self.rows = 1 if height < 2 * _SIDE else 2 * (height // _SIDE)
        self.step = max(1, min(height, width) // _SIDE)
        rows, columns = -(-height // self.rows), -(-width // self.step)
        down, across = min(_CELLS[0], rows), min(_CELLS[1], columns)
        self.count = down * across
        place = _cell(down, rows)[:, None] * across + _cell(across, columns)
        self.offset = arrays.cast(place * COLOURS, "uint32" if arrays.on_host else "int32")
        self._down = arrays.cast(_means(down, rows), "float32")
        self._across = arrays.cast(_means(across, columns).T.copy(), "float32")
        columns = max(0, width - 2)
        down, across = min(_ROUGH_CELLS[0], rows), min(_ROUGH_CELLS[1], columns)
        self.rough_count = down * across
        self._rough_down = arrays.cast(_means(down, rows), "float32")
        self._rough_across = arrays.cast(_means(across, columns).T.copy(), "float32")

    def fitted(self, detector: OodDetector) -> Measures:
        """Take a detector's numbers, for all but :meth:`rough` and :meth:`colours`."""
        cast = self._arrays.cast
        seen = np.unpackbits(detector.seen, count=self.count * COLOURS)
        limits = detector.scales * detector.limit
        self._novel, self._limits = cast(seen == 0, "bool"), limits.tolist()
        # Takes the known directions out of roughness and scales the rest: the norm of what it
        # makes of a difference is the multiple.
        parts, mean = detector.rough_parts, detector.rough_mean
        scale = detector.rough_scale * np.sqrt(len(mean)) * limits[2]
        left = ((np.eye(len(mean)) - parts.T @ parts) / scale).astype(np.float32)
        self._left, self._usual = cast(left, "float32"), cast(mean @ left, "float32")
        return self

    def ood_score(self, images: Array) -> Array:
        """Return the largest multiple of what a measure may be, ``(N,)``."""
        # In a step each call of NumPy's takes about three microseconds, whatever it does.
        ood_score, novel = self._roughness(images), self._novel_in(images)
        if not self._arrays.on_host or np.count_nonzero(novel):  # no unseen colour is the rule
            for multiple in self._novelty(novel):
                ood_score = self._arrays.xp.maximum(ood_score, multiple)
        return ood_score

    def multiples(self, images: Images) -> Floats:
        """Return all three measures, ``(N, 3)``."""
        return np.stack([*self._novelty(self._novel_in(images)), self._roughness(images)], axis=1)

    def _novel_in(self, images: Array) -> Array:
        """Return which compared pixels have a colour that was not seen there."""
        number = self.colours(images)
        return self._novel.take(number) if self._arrays.on_host else self._novel[number]

    def _novelty(self, novel: Array) -> tuple[Array, Array]:
        """Return (N,) shares of novel pixels over their limits: in the image, in its worst cell."""
        shares = self._down @ self._arrays.cast(novel, "float32") @ self._across
        shares = shares.reshape(len(novel), self.count)
        worst = self._arrays.xp.amax(shares, 1)
        return shares.mean(1) / self._limits[0], worst / self._limits[1]

    def _roughness(self, images: Array) -> Array:
        """Return (N,) distances of the roughness from the usual, over their limit."""
        off = self.rough(images) @ self._left
        off -= self._usual
        off *= off
        return self._arrays.xp.sqrt(off.sum(1))

    def colours(self, images: Array) -> Array:
        """Return the number of each compared pixel's colour and place, ``(N, rows, columns)``."""
        if not self._arrays.on_host:
            levels = self._arrays.cast(images[:, :: self.rows, :: self.step], "int32") >> 5
            return (levels[..., 0] << 6 | levels[..., 1] << 3 | levels[..., 2]) + self.offset
        count, height, width, channels = images.shape
        # Four bytes from each pixel on are one number: three times as fast as channel by channel.
        # The fourth, which the last pixel of all lacks, is masked.
        flat = images.reshape(-1)
        if (height - 1) % self.rows == 0 and (width - 1) % self.step == 0:
            flat = np.append(flat, np.uint8(0))
        strides = (channels * height * width, channels * width * self.rows, channels * self.step)
        pixels = np.ndarray((count, *self.offset.shape), "<u4", flat, 0, strides)
        number: NDArray[np.uint32] = pixels & _TOP_BITS
        number *= _SIDE_BY_SIDE
        number >>= _FIRST_BIT
        number += self.offset
        return number

    def rough(self, images: Array) -> Array:
        """Return the logarithm of the mean second difference in each place, ``(N, places)``."""
        if not self.rough_count:
            return self._arrays.cast(np.zeros((len(images), 0)), "float32")
        green = self._arrays.cast(images[:, :: self.rows, :, 1], "float32")
        # All rows as one, which takes less time; differences across a row's end are left out.
        (count, rows, width), bend = green.shape, green.reshape(-1)
        bend = bend[1:] - bend[:-1]
        bend = bend[1:] - bend[:-1]
        self._arrays.xp.abs(bend, out=bend)
        shape = count, rows, width - 2
        if self._arrays.on_host:
            bend = np.ndarray(shape, np.float32, bend, 0, (4 * rows * width, 4 * width, 4))
        else:
            bend = bend.as_strided(shape, (rows * width, width, 1))
        means = self._rough_down @ bend @ self._rough_across
        return self._arrays.xp.log1p(means.reshape(len(images), self.rough_count))


def _cell(cells: int, side: int) -> NDArray[np.int64]:
    """Return the number of the cell that each of ``side`` pixels in a row is in."""
    return np.asarray(np.arange(side) * cells // side)


def _means(cells: int, side: int) -> Floats:
    """Return the matrix (cells, side) that takes the mean in each cell."""
    matrix = np.zeros((cells, side), np.float32)
    if cells:
        matrix[_cell(cells, side), np.arange(side)] = 1.0
        matrix /= matrix.sum(axis=1, keepdims=True)
    return matrix
