"""Positions of published weights in shared memory, and leases on them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from vinoreward.actor_learner.transport.segments import ALIGNMENT, SegmentSpec, aligned
from vinoreward.closing import Closing
from vinoreward.errors import SharedMemoryError

NO_VERSION = -1
"""Version of an empty store, and of a reader without weights."""

_SLOT_BITS = 8
MAX_READERS = (1 << _SLOT_BITS) - 2
LATEST = 0
# Words of a slot's control line.
VERSION, SOURCE, HEADER, PAYLOAD, CHECKSUM, PUBLISHED = range(6)
NO_CHECKSUM = -1  # a CRC-32 is not negative

Array = npt.NDArray[Any]


def word_of(version: int, slot: int) -> int:
    """Return the word for a publication; never 0, which means none."""
    return (version + 1) << _SLOT_BITS | slot


def version_of(word: int) -> int:
    """Return the version in a word; -1 for 0."""
    return (word >> _SLOT_BITS) - 1


def slot_of(word: int) -> int:
    """Return the slot in a word."""
    return word & ((1 << _SLOT_BITS) - 1)


@dataclass(frozen=True)
class WeightStoreSpec:
    """The information needed to attach to a store; plain data.

    Attributes:
        segment: its memory.
        readers: processes that may lease, numbered from 0.
        capacity: bytes per slot, for header and arrays.
    """

    segment: SegmentSpec
    readers: int
    capacity: int

    @property
    def slots(self) -> int:
        """One lease per reader, the latest, and one to fill."""
        return self.readers + 2

    @property
    def control_bytes(self) -> int:
        """Bytes before the first slot: a line for the latest, one per reader, one per slot."""
        return ALIGNMENT * (1 + self.readers + self.slots)


class Holder(Protocol):
    """The store of a lease."""

    def end(self, lease: Lease) -> None:
        """End the lease."""


class Lease(Closing):
    """Published weights that do not change until :meth:`close`; a context manager.

    Attributes:
        version: of this publication.
        source: the learner's version from which the weights were made.
        published_at: seconds of ``time.monotonic()``, comparable between processes.
        header: as published.
    """

    def __init__(self, store: Holder, words: Sequence[int], slot: Array) -> None:
        self.version = words[VERSION] - 1
        self.source = words[SOURCE]
        self.published_at = words[PUBLISHED] / 1e9
        self.header = slot[: words[HEADER]].tobytes()
        start = aligned(words[HEADER])
        self._checksum = words[CHECKSUM]
        self._store = store
        self._view: Array | None = slot[start : start + words[PAYLOAD]]

    @property
    def writable_payload(self) -> Array:
        """The same memory, for libraries that require writable arrays. Never write to it."""
        if self._view is None:
            raise SharedMemoryError(
                f"the lease of version {self.version} has ended. Pull again; drop views of the old "
                "one first."
            )
        return self._view

    @property
    def payload(self) -> Array:
        """The published arrays, (bytes,) uint8, read-only, each aligned to 64 bytes.

        Raises:
            SharedMemoryError: the lease has ended.
        """
        view = self.writable_payload.view()
        view.flags.writeable = False
        return view

    def intact(self) -> bool:
        """Return whether the payload matches its checksum (True if it has none)."""
        if self._checksum == NO_CHECKSUM:
            return True
        return zlib.crc32(self.writable_payload.data) == self._checksum

    def invalidate(self) -> None:
        """End the lease without releasing the slot: the next pull replaces it."""
        self._view = None

    def close(self) -> None:
        """Release the slot; views of the payload become invalid."""
        if self._view is not None:
            self._view = None
            self._store.end(self)
