"""Where published weights lie in shared memory, and the right to use them for a while."""

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
"""Of a store where nothing is published, and of a reader that has nothing."""

_SLOT_BITS = 8
MAX_READERS = (1 << _SLOT_BITS) - 2
LATEST = 0
# Words of a slot's line.
VERSION, SOURCE, HEADER, PAYLOAD, CHECKSUM, PUBLISHED = range(6)
NO_CHECKSUM = -1  # a CRC-32 is not negative

Array = npt.NDArray[Any]


def word_of(version: int, slot: int) -> int:
    """Return the word that names a publication; never 0, which stands for none."""
    return (version + 1) << _SLOT_BITS | slot


def version_of(word: int) -> int:
    """Return the version in a word, -1 in 0."""
    return (word >> _SLOT_BITS) - 1


def slot_of(word: int) -> int:
    """Return the slot in a word."""
    return word & ((1 << _SLOT_BITS) - 1)


@dataclass(frozen=True)
class WeightStoreSpec:
    """What another process needs to attach a store: plain data.

    Attributes:
        segment: where it lies.
        readers: processes that may lease, numbered from 0.
        capacity: bytes of a slot, header and arrays.
    """

    segment: SegmentSpec
    readers: int
    capacity: int

    @property
    def slots(self) -> int:
        """One a reader may lease, the latest, and one to fill."""
        return self.readers + 2

    @property
    def control_bytes(self) -> int:
        """Bytes before the first slot: a line for the latest, one a reader, one a slot."""
        return ALIGNMENT * (1 + self.readers + self.slots)


class Holder(Protocol):
    """What gave a lease and takes it back."""

    def end(self, lease: Lease) -> None:
        """Give the lease back."""


class Lease(Closing):
    """Published weights that stay as they are until :meth:`close`; a context manager.

    Attributes:
        version: of this publication.
        source: the learner's version that the weights were made of.
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
        """The same memory, for libraries that take only writable arrays. Never write into it."""
        if self._view is None:
            raise SharedMemoryError(
                f"the lease of version {self.version} has ended. Expected a lease in use; pull "
                "again, and drop the views of the old one first."
            )
        return self._view

    @property
    def payload(self) -> Array:
        """The published arrays, (bytes,) uint8, read-only, each at a multiple of 64 bytes.

        Raises:
            SharedMemoryError: the lease has ended.
        """
        view = self.writable_payload.view()
        view.flags.writeable = False
        return view

    def intact(self) -> bool:
        """Whether the payload has the checksum it was published with (True if with none)."""
        if self._checksum == NO_CHECKSUM:
            return True
        return zlib.crc32(self.writable_payload.data) == self._checksum

    def invalidate(self) -> None:
        """End the lease without giving the slot back: the next pull takes its place."""
        self._view = None

    def close(self) -> None:
        """Give the slot back; views of the payload must not be used any more."""
        if self._view is not None:
            self._view = None
            self._store.end(self)
