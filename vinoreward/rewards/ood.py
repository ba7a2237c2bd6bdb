"""The guard: whether an image is like those that a classifier was trained on.

It knows which colours were seen in each place, and how rough each place is (blur, noise,
compression). Both are cheaper and told more shifts apart than distances between the network's own
features: less light, another camera pose or an object in the way bring colours to places that never
had them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.network import read_bytes
from vinoreward.bundles import locate
from vinoreward.errors import BundleError, InputError, ModelCorruptError
from vinoreward.files import read_npz, reason_of

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle

Floats = NDArray[np.float32]
Images = NDArray[np.uint8]

GUARD_FILE = "guard.npz"
MAX_GUARD_BYTES = 8 << 20
FALSE_ALARMS = 0.002
"""Share of clean episodes that may have an out-of-distribution frame, where there are enough to
tell."""
MARGIN = 1.25
"""The limit is this times what the clean episodes ask for: a policy sees what no capture saw."""
LEAST_EPISODES = 20
"""Fewest episodes to choose a limit on."""

_CELLS = (12, 16)
"""Places, down and across."""
_LEVELS = 8
"""Of each colour channel."""
_COLOURS = _LEVELS**3
_SIDE = 48
"""About as many pixels of the shorter side are looked at, and of large images every second row
of these."""
_TOLERATED = 6
"""Grey levels by which a colour may differ from one that was seen."""
_RARE = 5e-4
"""A colour was seen in a place if this share of the images had a pixel of it there."""
_ROUGH_CELLS = (6, 8)
_PARTS = 12
"""Directions in which the roughness of the training images differs."""
_FLOORS = (0.002, 0.02, 1.0)
"""Least scale of each measure: share of all pixels, of a place's pixels, roughness."""
_ROUGH_FLOOR = 0.05
_BATCH = 256
_LIMITS = {
    "rough_mean": (0.0, 10.0),
    "rough_parts": (-1.01, 1.01),
    "rough_scale": (1e-6, np.inf),
    "scales": (1e-6, np.inf),
    "limit": (1e-6, np.inf),
}
"""What a fitted guard may have: with others its multiples might not be numbers."""
# A colour's number from its bytes: three bits of each channel, side by side from bit 21. (Arrays:
# a number would be converted in each call.)
_TOP_BITS, _SIDE_BY_SIDE, _FIRST_BIT = (np.array(n, np.uint32) for n in (0xE0E0E0, 0x400801, 21))


@dataclass(frozen=True)
class OodDetector:
    """Tells how strange an image is to a classifier; plain arrays.

    Example::

        guard = OodDetector.fit(images, held_out, episodes)
        unlike = detector.ood_score(images) > 1.0
    """

    size: NDArray[np.int64]
    """(2,) Height and width of the images."""
    seen: NDArray[np.uint8]
    """Bits, one for each colour in each place: 1 if it was seen there."""
    rough_mean: Floats
    """(P,) Mean roughness of each place."""
    rough_parts: Floats
    """(K, P) Orthonormal directions in which it differs."""
    rough_scale: Floats
    """(P,) Root mean square of what these leave."""
    scales: Floats
    """(3,) Of the measures, whose largest multiple counts."""
    limit: Floats
    """(1,) The multiple from which an image is out of distribution."""

    @classmethod
    def fit(
        cls,
        images: Images,
        held_out: Images,
        episodes: NDArray[Any],
        *,
        alarms: float | None = None,
    ) -> OodDetector:
        """Learn what clean images are like.

        The limit is split conformal by episode (Vovk, Gammerman & Shafer 2005; an episode's frames
        are not exchangeable, episodes are): a new one of the same kind has an out-of-distribution
        frame with a probability of at most ``alarms``, or ``1 / (n + 1)`` of n episodes if that is
        more.

        Args:
            images: ``(N, H, W, 3)`` uint8, images that the network was trained on.
            held_out: ``(M, H, W, 3)`` uint8, others of the same kind.
            episodes: ``(M,)`` which episode each is of; at least ``LEAST_EPISODES``.
            alarms: see above; None is ``FALSE_ALARMS``.

        Raises:
            InputError: other shapes, or too few episodes.
        """
        names, of_frame = np.unique(np.asarray(episodes), return_inverse=True)
        if len(names) < LEAST_EPISODES or len(episodes) != len(held_out) or not len(images):
            raise InputError(
                f"the guard was given {len(images)} images, and {len(held_out)} held-out ones of "
                f"{len(names)} episodes. Expected images of both kinds, the held-out ones of at "
                f"least {LEAST_EPISODES} episodes; give more."
            )
        height, width = images.shape[1:3]
        places = Places(height, width)
        rough = np.concatenate([places.rough(part) for part in _batches(images)])
        mean = rough.mean(axis=0)
        kept = min(_PARTS, len(rough) // 20, rough.shape[1] - 1)
        parts = np.linalg.svd(rough - mean, full_matrices=False)[2][: max(0, kept)]
        left = (rough - mean) - (rough - mean) @ parts.T @ parts
        guard = cls(
            size=np.array([height, width]),
            seen=np.packbits(_seen(places, images)),
            rough_mean=mean,
            rough_parts=parts,
            rough_scale=np.sqrt((left**2).mean(axis=0) + np.float32(_ROUGH_FLOOR**2)),
            scales=np.ones(3, np.float32),
            limit=np.ones(1, np.float32),
        )
        # With scales and a limit of 1 the multiples are the measures themselves.
        measures = np.concatenate([guard._multiples(part) for part in _batches(held_out)])
        # Some episodes choose the scales and others the limit, or that would be too low.
        choosing = of_frame % 2 == 0
        scales = np.maximum(np.quantile(measures[choosing], 0.999, axis=0), _FLOORS)
        largest = np.zeros(len(names))
        np.maximum.at(largest, of_frame, (measures / scales).max(axis=1))
        ordered = np.sort(largest[1::2])
        wanted = FALSE_ALARMS if alarms is None else alarms
        rank = min(len(ordered), int(np.ceil((len(ordered) + 1) * (1 - wanted))))
        limit = MARGIN * max(1.0, float(ordered[rank - 1]))
        return replace(guard, scales=scales.astype(np.float32), limit=np.array([limit], np.float32))

    def ood_score(self, images: Images) -> Floats:
        """Return how strange images are: ``(N,)`` float32 of at least 0, out of distribution above
        1.

        ``images`` are ``(N, H, W, 3)`` uint8 as the network gets them
        (:meth:`~vinoreward.Bundle.prepare`); InputError for another size.
        """
        if images.ndim != 4 or images.shape[1:] != self.shape:
            raise InputError(
                f"the guard was given images {images.shape}. Expected (N, {self.size[0]}, "
                f"{self.size[1]}, 3), as Bundle.prepare returns them."
            )
        # In a step each call of NumPy's takes about three microseconds, whatever it does: camera
        # and network have taken the processor's caches.
        ood_score = self._roughness(images)
        novel = self.novel.take(self.places.colours(images))
        if np.count_nonzero(novel):  # images without an unseen colour are the rule
            for multiple in self._novelty(novel):
                np.maximum(ood_score, multiple, out=ood_score)
        return ood_score

    def to_bytes(self) -> bytes:
        """Return the content of ``guard.npz``."""
        stream = io.BytesIO()
        arrays: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        np.savez_compressed(stream, **arrays)
        return stream.getvalue()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], size: tuple[int, int]) -> OodDetector:
        """Return a guard of images of that size; BundleError unless the arrays are one's."""
        places = Places(*size)
        bits, rough = places.count * _COLOURS, places.rough_count
        parts = arrays.get("rough_parts")
        kept = 0 if parts is None or parts.ndim != 2 else len(parts)
        expected: dict[str, tuple[tuple[int, ...], type]] = {
            "size": ((2,), np.int64),
            "seen": ((-(-bits // 8),), np.uint8),
            "rough_mean": ((rough,), np.float32),
            "rough_parts": ((min(kept, _PARTS), rough), np.float32),
            "rough_scale": ((rough,), np.float32),
            "scales": ((3,), np.float32),
            "limit": ((1,), np.float32),
        }
        wrong = sorted(set(arrays) ^ set(expected)) or [
            name
            for name, (shape, dtype) in expected.items()
            if arrays[name].shape != shape
            or arrays[name].dtype != dtype
            or not np.isfinite(arrays[name]).all()
        ]
        if not wrong:
            wrong = [
                name
                for name, (low, high) in _LIMITS.items()
                if not ((low <= arrays[name]) & (arrays[name] <= high)).all()
            ]
        if wrong or tuple(arrays["size"].tolist()) != size:
            raise BundleError(
                f"the guard has {', '.join(name[:40] for name in wrong[:5]) or 'a size'} that "
                f"cannot be right. Expected one fitted for images of {size[0]} x {size[1]}; fit "
                "it again: vinoreward calibrate."
            )
        return cls(**arrays)

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Of an image: height, width, 3."""
        height, width = self.size.tolist()
        return height, width, 3

    @cached_property
    def places(self) -> Places:
        """Where the pixels of its images are."""
        return Places(*self.size.tolist())

    @cached_property
    def novel(self) -> NDArray[np.bool_]:
        """``(places * 512,)`` whether a colour was not seen in a place."""
        count = self.places.count * _COLOURS
        return np.asarray(np.unpackbits(self.seen, count=count) == 0)

    @cached_property
    def left(self) -> Floats:
        """(P, P) Takes the known directions out of roughness and scales the rest.

        The norm of what it makes of a difference is the multiple of what that measure may be.
        """
        parts = self.rough_parts
        scale = self.rough_scale * np.sqrt(len(self.rough_mean)) * self.limits[2]
        return np.asarray((np.eye(len(self.rough_mean)) - parts.T @ parts) / scale).astype(
            np.float32
        )

    @cached_property
    def usual(self) -> Floats:
        """(P,) What :attr:`left` makes of the mean roughness."""
        return np.asarray(self.rough_mean @ self.left)

    @cached_property
    def limits(self) -> Floats:
        """(3,) What each measure may be."""
        return np.asarray(self.scales * self.limit)

    def _multiples(self, images: Images) -> Floats:
        """Return the three measures (N, 3), as multiples of what each may be."""
        novel = self.novel.take(self.places.colours(images))
        return np.stack([*self._novelty(novel), self._roughness(images)], axis=1)

    def _novelty(self, novel: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return such multiples (N,): novel pixels of all; of those in the worst place."""
        shares = self.places.shares(novel)
        return shares.mean(axis=1) / self.limits[0], shares.max(axis=1) / self.limits[1]

    def _roughness(self, images: Images) -> Floats:
        """Return such multiples (N,): how far the roughness is off."""
        off = self.places.rough(images) @ self.left
        off -= self.usual
        off *= off
        return np.asarray(np.sqrt(np.add.reduce(off, axis=1)))


def guard_of(bundle: Bundle) -> OodDetector | None:
    """Return a bundle's guard; None if it has none.

    BundleError if its file cannot be right; nothing in it is executed.
    """
    spec = bundle.spec
    if GUARD_FILE not in spec.files:
        return None
    path = locate.inside(bundle.path, GUARD_FILE)
    try:
        data = read_bytes(path, spec.files[GUARD_FILE], MAX_GUARD_BYTES)
        arrays = read_npz(data, MAX_GUARD_BYTES)
    except ModelCorruptError as error:
        raise BundleError(
            f"{path} cannot be read: {reason_of(error)}. Expected arrays as vinoreward finetune "
            "writes them; fit the guard again with vinoreward calibrate."
        ) from error
    return OodDetector.from_arrays(arrays, (spec.image.height, spec.image.width))


class Places:
    """Where the pixels of an image are.

    Colours are looked at in every ``rows``-th row and ``step``-th column; ``offset`` is the number
    of each such pixel's place, times 512. ``down`` and ``across`` are the matrices around which
    means in each place are taken, ``rough_down`` and ``rough_across`` those of the roughness.
    """

    def __init__(self, height: int, width: int) -> None:
        # Every pixel of some rows for the roughness: what blurs or adds noise does so between
        # neighbours.
        self.rows = 1 if height < 2 * _SIDE else 2 * (height // _SIDE)
        self.step = max(1, min(height, width) // _SIDE)
        rows, columns = -(-height // self.rows), -(-width // self.step)
        down, across = min(_CELLS[0], rows), min(_CELLS[1], columns)
        self.count = down * across
        place = _cell(down, rows)[:, None] * across + _cell(across, columns)
        self.offset = (place * _COLOURS).astype(np.uint32)
        self.down, self.across = _means(down, rows), _means(across, columns).T.copy()
        columns = max(0, width - 2)
        down, across = min(_ROUGH_CELLS[0], rows), min(_ROUGH_CELLS[1], columns)
        self.rough_count = down * across
        self.rough_down = _means(down, rows)
        self.rough_across = _means(across, columns).T.copy()

    def colours(self, images: Images) -> NDArray[np.uint32]:
        """Return the number of each looked-at pixel's colour and place, ``(N, rows, columns)``."""
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

    def shares(self, flags: NDArray[np.bool_]) -> Floats:
        """Return the share of flagged pixels in each place, ``(N, places)``."""
        found = np.matmul(np.matmul(self.down, flags.astype(np.float32)), self.across)
        return np.asarray(found.reshape(len(flags), self.count))

    def rough(self, images: Images) -> Floats:
        """Return the logarithm of the mean second difference in each place, ``(N, places)``."""
        if not self.rough_count:
            return np.zeros((len(images), 0), np.float32)
        green = images[:, :: self.rows, :, 1].astype(np.float32)
        # All rows as one, which takes less time; differences across a row's end are left out.
        count, rows, width = green.shape
        bend = green.reshape(-1)
        bend = bend[1:] - bend[:-1]
        bend = bend[1:] - bend[:-1]
        np.abs(bend, out=bend)
        within = np.ndarray(
            (count, rows, width - 2), np.float32, bend, 0, (4 * rows * width, 4 * width, 4)
        )
        means = np.matmul(np.matmul(self.rough_down, within), self.rough_across)
        return np.asarray(np.log1p(means.reshape(count, self.rough_count)))


def _cell(cells: int, side: int) -> NDArray[np.int64]:
    """Return the cell of each of ``side`` pixels."""
    return np.asarray(np.arange(side) * cells // side)


def _means(cells: int, side: int) -> Floats:
    """Return the matrix (cells, side) that takes the mean in each cell."""
    matrix = np.zeros((cells, side), np.float32)
    if cells:
        matrix[_cell(cells, side), np.arange(side)] = 1.0
        matrix /= matrix.sum(axis=1, keepdims=True)
    return matrix


def _seen(places: Places, images: Images) -> NDArray[np.bool_]:
    """Return which colours were seen in which places, flat."""
    counts = np.zeros(places.count * _COLOURS, np.int64)
    for part in _batches(images):
        for off in (-_TOLERATED, 0, _TOLERATED):
            moved = np.clip(part.astype(np.int16) + off, 0, 255).astype(np.uint8)
            counts += np.bincount(places.colours(moved).ravel(), minlength=len(counts))
    return np.asarray(counts >= max(2.0, _RARE * len(images)))


def _batches(images: Images) -> list[Images]:
    return [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]
