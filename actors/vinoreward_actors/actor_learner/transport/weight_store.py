"""Versioned weights in shared memory: one process publishes, others copy, none waits for another.

There are :data:`SLOTS` slots of fixed size. The writer fills the slot after the latest one, and
then stores one word with version and slot. Each slot has a sequence number, which is odd while it
is written. A reader copies the latest slot and keeps the copy if the number was even and is still
the same; otherwise it tries again. It would have to be overtaken by three publications for that.

Order matters only between two stores of the writer and between two loads of a reader, which
:func:`fence` keeps on every processor. A reader writes nothing, so one that is killed leaves
nothing behind; a writer that is killed leaves a slot that nobody reads and its successor fills
first.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.transport.link import NONE, Weights
from vinoreward_actors.actor_learner.transport.memory import ALIGNMENT, WORD, SharedMemory, aligned

SLOTS = 4
_SLOT_BITS = 8
_LINE_WORDS = ALIGNMENT // WORD
_LATEST = 0
# Words of a slot's control line.
_SEQUENCE, _VERSION, _HEADER, _PAYLOAD = range(4)
_CONTROL_BYTES = ALIGNMENT * (1 + SLOTS)

Array = npt.NDArray[Any]
_HEADER_SLACK = 4096  # bytes; later headers contain longer numbers


def fence() -> None:
    """Order the loads and stores before this call before those after it, for other processes."""
    # On x86-64 one locking is a full barrier. On ARM it acquires, then releases, and accesses from
    # both sides may move in between. So twice: what was before the first release stays before the
    # second acquisition. Python offers nothing closer. About 0.2 µs.
    lock = threading.Lock()
    for _ in range(2):
        lock.acquire()
        lock.release()


class WeightStore(Closing):
    """The latest weights, for one writing process and any number of reading processes.

    An argument of processes that are started.

    Args:
        capacity: bytes per slot, see :meth:`capacity_for`; it takes :data:`SLOTS` times as many.
        memory: of the store, in a process that inherits it.
    """

    def __init__(self, capacity: int, memory: SharedMemory | None = None) -> None:
        self.capacity = capacity = aligned(max(1, capacity))
        self._memory = memory or SharedMemory.create(_CONTROL_BYTES + SLOTS * capacity)
        self._words = self._memory.words(_CONTROL_BYTES // WORD)
        self._slots = [
            self._memory.array(_CONTROL_BYTES + slot * capacity, (capacity,), np.uint8)
            for slot in range(SLOTS)
        ]
        self._copies: list[npt.NDArray[np.uint8]] = []
        """Two, filled in turn: whoever takes newer weights may still hold the ones before."""

    def __reduce__(self) -> tuple[Any, ...]:
        return WeightStore, (self.capacity, self._memory)

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()

    @staticmethod
    def capacity_for(header: bytes, arrays: Sequence[Array]) -> int:
        """Return the bytes per slot for such weights, with room for longer headers."""
        end = 0
        for array in arrays:
            end = aligned(end) + array.nbytes
        return aligned(aligned(len(header) + _HEADER_SLACK) + end)

    @property
    def latest_version(self) -> int:
        """The newest published version; -1 before the first."""
        return (self._words[_LATEST] >> _SLOT_BITS) - 1

    def _latest(self) -> tuple[int, int]:
        """Return the newest version and its slot."""
        word = self._words[_LATEST]
        return (word >> _SLOT_BITS) - 1, word & ((1 << _SLOT_BITS) - 1)

    def _line(self, slot: int) -> int:
        return _LINE_WORDS * (1 + slot)

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
        start = aligned(len(header))
        offsets, end = [], 0
        for array in arrays:
            offsets.append(aligned(end))
            end = offsets[-1] + array.nbytes
        if start + end > self.capacity:
            raise ConfigError(
                f"cannot publish weights of {start + end} bytes. Expected at most "
                f"{self.capacity}; create the store with a larger capacity."
            )
        slot = (slot + 1) % SLOTS
        words, line, data = self._words, self._line(slot), self._slots[slot]
        writing = (words[line + _SEQUENCE] + 1) | 1  # odd, and new after a killed writer as well
        words[line + _SEQUENCE] = writing
        fence()  # readers see the odd number before anything else changes
        data.data[: len(header)] = header
        for offset, array in zip(offsets, arrays, strict=True):
            part = data[start + offset : start + offset + array.nbytes]
            part.view(array.dtype).reshape(array.shape)[...] = array
        words[line + _VERSION] = version
        words[line + _HEADER], words[line + _PAYLOAD] = len(header), end
        fence()  # the slot is complete before its number says so
        words[line + _SEQUENCE] = writing + 1
        fence()  # and before readers can find it
        words[_LATEST] = (version + 1) << _SLOT_BITS | slot

    def pull_if_newer(self, have: int = NONE) -> Weights | None:
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
            sizes = (self.capacity,) * 2
            self._copies = [np.frombuffer(mmap.mmap(-1, size), np.uint8) for size in sizes]
        before = words[line + _SEQUENCE]
        fence()  # the number is read before what it stands for
        version, length, size = (words[line + at] for at in (_VERSION, _HEADER, _PAYLOAD))
        start = aligned(length)
        if before % 2 or start + size > self.capacity:
            return None
        header, payload = data[:length].tobytes(), self._copies[0][:size]
        payload[...] = data[start : start + size]
        fence()  # the copy is complete before the number is read again
        return Weights(header, payload, version) if words[line + _SEQUENCE] == before else None
