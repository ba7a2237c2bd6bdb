"""Versioned weights in shared memory: one process publishes, others lease, none waits.

There are ``readers + 2`` slots of fixed size. The writer fills a slot that is neither the latest
nor leased, and then stores one word with version and slot. Such a slot always exists, so the writer
never waits. A reader reads that word, stores it as its own lease and reads it again. If it is
unchanged, the writer will see the lease before it chooses its next slot, so the slot does not
change until the lease ends.

A double buffer with a version check only shows afterwards that the data changed, but a reader with
pointers into the slot reads continuously.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, SharedMemoryError
from vinoreward_actors.actor_learner.transport import shared_memory as memory

_SLOT_BITS = 8
MAX_READERS = (1 << _SLOT_BITS) - 2
LATEST = 0
# Words of a slot's control line.
VERSION, HEADER, PAYLOAD = range(3)

Array = npt.NDArray[Any]
_HEADER_SLACK = 4096  # bytes; later headers contain longer numbers


def _word_of(version: int, slot: int) -> int:
    """Return the word for a publication; never 0, which means none."""
    return (version + 1) << _SLOT_BITS | slot


def _version_of(word: int) -> int:
    """Return the version in a word; -1 for 0."""
    return (word >> _SLOT_BITS) - 1


def _slot_of(word: int) -> int:
    return word & ((1 << _SLOT_BITS) - 1)


@dataclass(frozen=True)
class WeightStoreSpec:
    """What a process needs to attach to a store; plain data."""

    segment: memory.SegmentSpec
    readers: int  # processes that may lease, numbered from 0
    capacity: int  # bytes per slot, for header and arrays

    @property
    def slots(self) -> int:
        """One lease per reader, the latest, and one to fill."""
        return self.readers + 2

    @property
    def control_bytes(self) -> int:
        """Bytes before the first slot: a line for the latest, one per reader, one per slot."""
        return memory.ALIGNMENT * (1 + self.readers + self.slots)


class WeightStore(memory.InSegment):
    """The latest weights, for one writing process and a fixed number of reading processes.

    ``create`` it in the parent and ``attach`` it in spawned children: as reader ``i``, or without a
    reader's number as the publisher.
    """

    def __init__(
        self, segment: memory.Segment, spec: WeightStoreSpec, reader: int | None = None
    ) -> None:
        if reader is not None and not 0 <= reader < spec.readers:
            raise ConfigError(
                f"the store has no reader {reader}. Expected 0 to {spec.readers - 1}."
            )
        super().__init__(segment)
        self.spec = spec
        self._reader = reader
        self._words = segment.words(0, spec.control_bytes // memory.WORD)
        self._slots = [
            segment.array(spec.control_bytes + slot * spec.capacity, (spec.capacity,), np.uint8)
            for slot in range(spec.slots)
        ]
        self._lease: Lease | None = None

    @classmethod
    def create(cls, readers: int, capacity: int) -> WeightStore:
        """Reserve the memory, (readers + 2) · capacity bytes; see :meth:`capacity_for`."""
        if not 1 <= readers <= MAX_READERS or capacity < 1:
            raise ConfigError(
                f"the weight store is for {readers} readers and {capacity} bytes. Expected 1 to "
                f"{MAX_READERS} readers and a positive capacity."
            )
        capacity = memory.aligned(capacity)
        shape = WeightStoreSpec(memory.SegmentSpec("", 0), readers, capacity)
        segment = memory.Segment.create(shape.control_bytes + shape.slots * capacity)
        return cls(segment, WeightStoreSpec(segment.spec, readers, capacity))

    @classmethod
    def attach(cls, spec: WeightStoreSpec, reader: int | None = None) -> WeightStore:
        """Open a store that another process created."""
        return cls(memory.Segment.attach(spec.segment), spec, reader)

    @staticmethod
    def capacity_for(header: bytes, arrays: Sequence[Array]) -> int:
        """Return the required bytes per slot, with slack for a longer header."""
        payload = sum(memory.aligned(array.nbytes) for array in arrays)
        return memory.aligned(len(header) + _HEADER_SLACK) + payload

    @property
    def latest_version(self) -> int:
        """The newest published version, -1 if none. Costs one load."""
        return _version_of(self._words[LATEST])

    def publish(self, header: bytes, arrays: Sequence[Array], *, version: int) -> None:
        """Publish weights as the latest; never waits. Only one process may publish.

        Stores the arrays, of any numeric dtype and strides, one after the other, each aligned to 64
        bytes. ``version`` must be above every published version.
        """
        latest = self._words[LATEST]
        if version <= _version_of(latest) or version < 0:
            raise ConfigError(
                f"cannot publish version {version} after {_version_of(latest)}. Expected a higher "
                "one; after a resume, continue from latest_version."
            )
        start = memory.aligned(len(header))
        offsets, end = [], 0
        for array in arrays:
            if array.dtype.hasobject:
                raise ConfigError(f"cannot publish an array of {array.dtype}. Expected numbers.")
            offsets.append(memory.aligned(end))
            end = offsets[-1] + array.nbytes
        if start + end > self.spec.capacity:
            raise ConfigError(
                f"cannot publish weights of {start + end} bytes. Expected at most "
                f"{self.spec.capacity}; create the store with a larger capacity."
            )
        slot = self._free_slot(latest)
        line = self._line(slot)
        # 0 first: if this writer is killed from here on, its successor reuses the slot first.
        self._words[line + VERSION] = 0
        data = self._slots[slot]
        data.data[: len(header)] = header
        payload = data[start : start + end]
        for offset, array in zip(offsets, arrays, strict=True):
            part = payload[offset : offset + array.nbytes]
            part.view(array.dtype).reshape(array.shape)[...] = array
        self._words[line + HEADER] = len(header)
        self._words[line + PAYLOAD] = end
        self._words[line + VERSION] = version + 1
        memory.fence()  # the slot is complete before readers can find it
        self._words[LATEST] = _word_of(version, slot)
        memory.fence()  # the next publication reads leases after readers could see this one

    def _line(self, slot: int) -> int:
        return memory.LINE_WORDS * (1 + self.spec.readers + slot)

    def _lease_place(self, reader: int) -> int:
        return memory.LINE_WORDS * (1 + reader)

    def _free_slot(self, latest: int) -> int:
        words = (self._words[self._lease_place(reader)] for reader in range(self.spec.readers))
        taken = {_slot_of(word) for word in (latest, *words) if word}
        free = [slot for slot in range(self.spec.slots) if slot not in taken]
        return min(free, key=lambda slot: self._words[self._line(slot) + VERSION])

    def pull_if_newer(self, have: int = -1) -> Lease | None:
        """Lease the latest weights if their version is above ``have``; about 0.1 µs if not.

        A reader has one lease: a successful pull ends the previous one and invalidates its views. A
        pull that returns None keeps it.
        """
        if self._reader is None:
            raise ConfigError(
                "a store without a reader's number cannot lease. Expected WeightStore.attach(spec, "
                "reader=i)."
            )
        words = self._words
        word = words[LATEST]
        if word == 0 or _version_of(word) <= have:
            return None
        place = self._lease_place(self._reader)
        if self._lease is not None:
            self._lease.view = None  # not released: the new lease replaces it
        while True:
            words[place] = word
            memory.fence()  # publish the lease before reading the latest again
            again = words[LATEST]
            if again == word:
                break
            word = again
        slot = _slot_of(word)
        line, data = self._line(slot), self._slots[slot]
        header = data[: words[line + HEADER]].tobytes()
        start = memory.aligned(len(header))
        payload = data[start : start + words[line + PAYLOAD]]
        self._lease = Lease(self, words[line + VERSION] - 1, header, payload)
        return self._lease

    def wait_newer(
        self, have: int, timeout: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Lease | None:
        """Wait for a version above ``have`` and lease it; None after ``timeout`` s or a stop."""
        if memory.wait_until(lambda: self.latest_version > max(have, -1), timeout, stop):
            return self.pull_if_newer(have)
        return None

    def end(self, lease: Lease) -> None:
        """End a lease; called by :meth:`Lease.close`."""
        if self._lease is lease and self._reader is not None:
            memory.fence()  # the last use is over before others may see the slot free
            self._words[self._lease_place(self._reader)] = 0
            self._lease = None

    def leased(self, reader: int) -> int:
        """Return the version that a reader leases; -1 if none."""
        return _version_of(self._words[self._lease_place(reader)])

    def reclaim(self, reader: int) -> None:
        """Free the lease of a reader whose process is dead (joined, not merely silent)."""
        self._words[self._lease_place(reader)] = 0


class Lease(Closing):
    """Published weights that do not change until :meth:`close`; a context manager."""

    def __init__(self, store: WeightStore, version: int, header: bytes, view: Array) -> None:
        self.version, self.header = version, header
        self.view: Array | None = view
        """The published arrays; None after the end of the lease."""
        self._store = store

    @property
    def writable_payload(self) -> Array:
        """The same memory, for libraries that require writable arrays. Never write to it."""
        if self.view is None:
            raise SharedMemoryError(
                f"the lease of version {self.version} has ended. Pull again; drop views of the old "
                "one first."
            )
        return self.view

    @property
    def payload(self) -> Array:
        """The published arrays, (bytes,) uint8, read-only, each aligned to 64 bytes."""
        view = self.writable_payload.view()
        view.flags.writeable = False
        return view

    def close(self) -> None:
        """Release the slot; views of the payload become invalid."""
        if self.view is not None:
            self.view = None
            self._store.end(self)
