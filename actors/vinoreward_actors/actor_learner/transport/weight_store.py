"""Versioned weights in shared memory: one process publishes, others copy, none waits for another.

There are :data:`SLOTS` slots of fixed size. The writer fills the slot after the latest one, and
then stores one word with version and slot. Each slot has a sequence number, which is odd while it
is written. A reader copies the latest slot and keeps the copy if the number was even and is still
the same; otherwise it tries again. It would have to be overtaken by three publications for that.

Order matters only between two stores of the writer and between two loads of a reader, which
:func:`~vinoreward_actors.actor_learner.transport.shared_memory.fence` keeps on every processor. A
reader writes nothing, so one that is killed leaves nothing behind; a writer that is killed leaves a
slot that nobody reads and its successor fills first.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.transport import shared_memory as memory
from vinoreward_actors.actor_learner.transport.link import Weights

SLOTS = 4
_SLOT_BITS = 8
_LATEST = 0
# Words of a slot's control line.
_SEQUENCE, _VERSION, _HEADER, _PAYLOAD = range(4)
_CONTROL_BYTES = memory.ALIGNMENT * (1 + SLOTS)

Array = npt.NDArray[Any]
_HEADER_SLACK = 4096  # bytes; later headers contain longer numbers


@dataclass(frozen=True)
class WeightStoreSpec:
    """What a process needs to attach to a store; plain data."""

    segment: memory.SegmentSpec
    capacity: int  # bytes per slot, for header and arrays


class WeightStore(memory.InSegment):
    """The latest weights, for one writing process and any number of reading processes.

    ``create`` it in the parent and ``attach`` it in spawned children.
    """

    def __init__(self, segment: memory.Segment, spec: WeightStoreSpec) -> None:
        super().__init__(segment)
        self.spec = spec
        self._words = segment.words(0, _CONTROL_BYTES // memory.WORD)
        self._slots = [
            segment.array(_CONTROL_BYTES + slot * spec.capacity, (spec.capacity,), np.uint8)
            for slot in range(SLOTS)
        ]
        self._copies: list[npt.NDArray[np.uint8]] = []
        """Two, filled in turn: whoever takes newer weights may still hold the ones before."""

    @classmethod
    def create(cls, capacity: int) -> WeightStore:
        """Reserve the memory, :data:`SLOTS` · capacity bytes; see :meth:`capacity_for`."""
        capacity = memory.aligned(max(1, capacity))
        segment = memory.Segment.create(_CONTROL_BYTES + SLOTS * capacity)
        return cls(segment, WeightStoreSpec(segment.spec, capacity))

    @classmethod
    def attach(cls, spec: WeightStoreSpec) -> WeightStore:
        """Open a store that another process created."""
        return cls(memory.Segment.attach(spec.segment), spec)

    @staticmethod
    def capacity_for(header: bytes, arrays: Sequence[Array]) -> int:
        """Return the bytes per slot for such weights, with room for longer headers."""
        end = 0
        for array in arrays:
            end = memory.aligned(end) + array.nbytes
        return memory.aligned(memory.aligned(len(header) + _HEADER_SLACK) + end)

    @property
    def latest_version(self) -> int:
        """The newest published version; -1 before the first."""
        return (self._words[_LATEST] >> _SLOT_BITS) - 1

    def _latest(self) -> tuple[int, int]:
        """Return the newest version and its slot."""
        word = self._words[_LATEST]
        return (word >> _SLOT_BITS) - 1, word & ((1 << _SLOT_BITS) - 1)

    def _line(self, slot: int) -> int:
        return memory.LINE_WORDS * (1 + slot)

    def publish(self, header: bytes, arrays: Sequence[Array], *, version: int) -> None:
        """Copy header and arrays into a slot and make it the latest; does not wait.

        Each array starts at a multiple of 64 bytes. The version must be above every published one.
        """
        latest, slot = self._latest()
        if version <= latest or version < 0:
            raise ConfigError(
                f"cannot publish version {version} after {latest}. Expected a higher one; after a "
                "resume, continue from latest_version."
            )
        start = memory.aligned(len(header))
        offsets, end = [], 0
        for array in arrays:
            offsets.append(memory.aligned(end))
            end = offsets[-1] + array.nbytes
        if start + end > self.spec.capacity:
            raise ConfigError(
                f"cannot publish weights of {start + end} bytes. Expected at most "
                f"{self.spec.capacity}; create the store with a larger capacity."
            )
        slot = (slot + 1) % SLOTS
        words, line, data = self._words, self._line(slot), self._slots[slot]
        writing = (words[line + _SEQUENCE] + 1) | 1  # odd, and new after a killed writer as well
        words[line + _SEQUENCE] = writing
        memory.fence()  # readers see the odd number before anything else changes
        data.data[: len(header)] = header
        for offset, array in zip(offsets, arrays, strict=True):
            part = data[start + offset : start + offset + array.nbytes]
            part.view(array.dtype).reshape(array.shape)[...] = array
        words[line + _VERSION] = version
        words[line + _HEADER], words[line + _PAYLOAD] = len(header), end
        memory.fence()  # the slot is complete before its number says so
        words[line + _SEQUENCE] = writing + 1
        memory.fence()  # and before readers can find it
        words[_LATEST] = (version + 1) << _SLOT_BITS | slot

    def pull_if_newer(self, have: int = -1) -> Weights | None:
        """Return a copy of the latest weights if their version is above ``have``.

        It is valid until the second pull after this one.
        """
        while True:
            version, slot = self._latest()
            if version <= have:
                return None
            copied = self._copied(slot)
            if copied is not None:
                self._copies.reverse()
                return copied

    def _copied(self, slot: int) -> Weights | None:
        """Return a copy of what is in a slot by now; None if it changed meanwhile."""
        words, line, data = self._words, self._line(slot), self._slots[slot]
        if not self._copies:
            sizes = (self.spec.capacity,) * 2
            self._copies = [np.frombuffer(mmap.mmap(-1, size), np.uint8) for size in sizes]
        before = words[line + _SEQUENCE]
        memory.fence()  # the number is read before what it stands for
        version, length, size = (words[line + at] for at in (_VERSION, _HEADER, _PAYLOAD))
        start = memory.aligned(length)
        if before % 2 or start + size > self.spec.capacity:
            return None
        header, payload = data[:length].tobytes(), self._copies[0][:size]
        payload[...] = data[start : start + size]
        memory.fence()  # the copy is complete before the number is read again
        return Weights(header, payload, version) if words[line + _SEQUENCE] == before else None

    def wait_newer(
        self, have: int, timeout: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Weights | None:
        """Wait for a version above ``have`` and return it; None after ``timeout`` s or a stop."""
        if memory.wait_until(lambda: self.latest_version > max(have, -1), timeout, stop):
            return self.pull_if_newer(have)
        return None
