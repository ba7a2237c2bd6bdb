"""Shared memory without a name: it disappears with the last process that has it.

Its file in ``/dev/shm`` has no name from the start, and processes inherit the descriptor. So
nothing is left after ``kill -9``, and no other user can open it.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, SharedMemoryError

ALIGNMENT = 64
"""In bytes: a cache line, and the fastest alignment for vector kernels."""
WORD = 8
_FOLDER = Path("/dev/shm")


def aligned(size: int) -> int:
    """Return ``size`` rounded up to a multiple of :data:`ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class SharedMemory(Closing):
    """A block of shared memory, made by :meth:`create`; an argument of a process that is started.

    Args:
        descriptor: of its file, which this object owns.
        size: bytes.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor: int | None = descriptor
        self.size = size
        # Populate page tables now: page faults would add 19 ms to filling a slot of 34 MB (4 ms).
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._mapping: mmap.mmap | None = mmap.mmap(descriptor, size, flags=flags)

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        """Reserve ``size`` bytes, all 0; SharedMemoryError if there is no room."""
        try:
            with tempfile.TemporaryFile(dir=_FOLDER, buffering=0) as file:
                # A sparse file on a full file system would kill its writer with SIGBUS, later.
                os.posix_fallocate(file.fileno(), 0, size)
                return cls(os.dup(file.fileno()), size)
        except (OSError, OverflowError) as error:
            raise SharedMemoryError(
                f"cannot reserve {size / 1e6:,.1f} MB of shared memory in {_FOLDER}: "
                f"{getattr(error, 'strerror', None) or error}. Expected room for every slot; use "
                "fewer actors, fewer or smaller slots, free some, or give the container more "
                "(docker run --shm-size)."
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        if self._descriptor is None:
            raise _closed()
        return _inherited, (DupFd(self._descriptor), self.size)

    def _open(self) -> mmap.mmap:
        if self._mapping is None:
            raise _closed()
        return self._mapping

    def array(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a writable view, valid even after :meth:`close`; ``offset`` in bytes."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if offset % ALIGNMENT or offset < 0 or offset + size > self.size:
            raise ConfigError(
                f"the view has {size} bytes at {offset}. Expected a start at a multiple of "
                f"{ALIGNMENT} and an end inside {self.size} bytes."
            )
        return np.ndarray(shape, dtype, buffer=self._open(), offset=offset)

    def words(self, count: int) -> memoryview:
        """Return the first ``count`` signed 8-byte words, each read and written atomically."""
        return memoryview(self._open())[: count * WORD].cast("q")

    def close(self) -> None:
        """Release the memory; may be called twice. Views stay valid."""
        descriptor, self._descriptor, self._mapping = self._descriptor, None, None
        if descriptor is not None:
            os.close(descriptor)


def _closed() -> SharedMemoryError:
    return SharedMemoryError("shared memory is closed. Expected to use it before close().")


def _inherited(descriptor: Any, size: int) -> SharedMemory:
    return SharedMemory(descriptor.detach(), size)
