"""Named blocks of shared memory that disappear with their creator, however it ends.

The process that creates a segment owns its name and removes it: on ``close``, at the end of a
``with`` block, on garbage collection, at interpreter exit. After ``kill -9``, Python's resource
tracker removes it once the children have ended. :func:`remove_leftovers` removes what even that
leaves behind (a killed tracker, a power cut) at the next start.

Pitfalls that shape this module:

- Up to Python 3.12, a process that opens ``SharedMemory`` by name registers it with its resource
  tracker, which may remove the name for all others (cpython issue 82300). So only the creator uses
  ``SharedMemory``; the others map the file in ``/dev/shm``, which has no tracker.
- ``SharedMemory.close`` fails while a NumPy view exists. Here a mapping lives exactly as long as
  its views, so no view dangles and the order of closing does not matter.
- A sparse file on a full file system kills its writer with SIGBUS, long after creation. So all
  pages are reserved at creation, where a lack of space raises an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import re
import secrets
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, SharedMemoryError
from vinoreward.processes import starting_processes

PREFIX = "vinoreward_"
ALIGNMENT = 64
"""In bytes: a cache line, and the fastest alignment for vector kernels."""
WORD = 8
LINE_WORDS = ALIGNMENT // WORD

_FOLDER = Path("/dev/shm")
_NAME = re.compile(re.escape(PREFIX) + r"(\d+)_[0-9a-f]{16}")


@dataclass(frozen=True)
class SegmentSpec:
    """The information needed to attach to a segment; plain data."""

    name: str  # of the file in /dev/shm
    size: int  # bytes


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """Return ``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def _unlink(named: shared_memory.SharedMemory, pid: int) -> None:
    # A forked child inherits the finalizer but must not remove the name.
    if os.getpid() == pid:
        with contextlib.suppress(FileNotFoundError):
            named.unlink()


@contextlib.contextmanager
def _opened(name: str) -> Iterator[int]:
    descriptor = os.open(_FOLDER / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    # Populate page tables now: page faults would add 19 ms to filling a fresh slot of 34 MB (4 ms).
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _full(size: int, error: Exception) -> SharedMemoryError:
    free = os.statvfs(_FOLDER)
    reason = getattr(error, "strerror", None) or error
    return SharedMemoryError(
        f"cannot reserve {size / 1e6:,.1f} MB of shared memory: {reason}; "
        f"{free.f_bavail * free.f_frsize / 1e6:,.1f} MB of {_FOLDER} are free. Expected room for "
        "every slot; use fewer actors, fewer or smaller slots, free some, or give the container "
        "more (docker run --shm-size)."
    )


class Segment(Closing):
    """A block of shared memory, zeroed and reserved at creation.

    Use :meth:`create` in one process and :meth:`attach` in the others.
    """

    def __init__(
        self,
        spec: SegmentSpec,
        mapping: mmap.mmap,
        named: shared_memory.SharedMemory | None = None,
    ) -> None:
        self.spec = spec
        self._mapping: mmap.mmap | None = mapping
        self._finalizer = (
            weakref.finalize(self, _unlink, named, os.getpid()) if named is not None else None
        )

    @classmethod
    def create(cls, size: int) -> Segment:
        """Reserve ``size`` bytes under a new random name, readable only by this user.

        Raises:
            ConfigError: the size is not positive, or this machine has no /dev/shm.
            SharedMemoryError: not enough memory; nothing is left behind.
        """
        if size <= 0:
            raise ConfigError(f"the segment has {size} bytes. Expected at least 1.")
        if not _FOLDER.is_dir():
            raise ConfigError(
                f"{_FOLDER} does not exist. Expected Linux with a shared-memory file system, which "
                "the actor-learner needs."
            )
        name = f"{PREFIX}{os.getpid()}_{secrets.token_hex(8)}"
        try:
            # One byte: a failure inside SharedMemory confuses the tracker of Python < 3.13.
            with starting_processes():  # the tracker, unless it runs already
                named = shared_memory.SharedMemory(name, create=True, size=1)
        except OSError as error:
            raise _full(size, error) from error
        named.close()
        try:
            mapping = cls._reserve(name, size)
        except (OSError, OverflowError) as error:
            named.unlink()
            raise _full(size, error) from error
        return cls(SegmentSpec(name, size), mapping, named)

    @staticmethod
    def _reserve(name: str, size: int) -> mmap.mmap:
        with _opened(name) as descriptor:
            # Marks the file as in use for processes that cannot see our pid (another container).
            # The mapping duplicates the descriptor, so the lock lasts until this process ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, size)
            return _mapped(descriptor, size)

    @classmethod
    def attach(cls, spec: SegmentSpec) -> Segment:
        """Map a segment that another process created.

        Raises:
            SharedMemoryError: it is gone, not ours, or smaller than its spec.
        """
        if _NAME.fullmatch(spec.name) is None:
            raise SharedMemoryError(
                f"{spec.name!r} is not a segment's name. Expected the spec of Segment.create."
            )
        try:
            with _opened(spec.name) as descriptor:
                size = os.fstat(descriptor).st_size
                if size >= spec.size:
                    return cls(spec, _mapped(descriptor, spec.size))
        except OSError as error:
            raise SharedMemoryError(
                f"cannot open shared memory {spec.name}: {error.strerror or error}. Expected its "
                "creator to be still running; start the run again."
            ) from error
        raise SharedMemoryError(
            f"shared memory {spec.name} has {size} bytes. Expected {spec.size}; another program "
            "changed it. Start the run again."
        )

    def _open(self) -> mmap.mmap:
        if self._mapping is None:
            raise SharedMemoryError(
                f"shared memory {self.spec.name} is closed. Expected an open segment."
            )
        return self._mapping

    def array(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a writable view; ``offset`` in bytes, a multiple of 64.

        The memory stays mapped as long as the view exists, even after :meth:`close`.

        Raises:
            ConfigError: the view exceeds the segment, or is not aligned.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if offset % ALIGNMENT or offset < 0 or offset + size > self.spec.size:
            raise ConfigError(
                f"the view has {size} bytes at {offset}. Expected a start at a multiple of "
                f"{ALIGNMENT} and an end inside {self.spec.size} bytes."
            )
        return np.ndarray(shape, dtype, buffer=self._open(), offset=offset)

    def words(self, offset: int, count: int) -> memoryview:
        """Return ``count`` signed 8-byte words at ``offset`` (bytes, a multiple of 8).

        Reading or writing one word is atomic for other processes.
        """
        return memoryview(self._open())[offset : offset + count * WORD].cast("q")

    def close(self) -> None:
        """Release the memory; the creator also removes the name. May be called twice."""
        self._mapping = None
        if self._finalizer is not None:
            self._finalizer()


class InSegment(Closing):
    """Base of objects that lie in one segment and live as long."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def close(self) -> None:
        """Release the memory; the creator also removes it from the system."""
        self._segment.close()


def _alive(pid: int) -> bool:
    with contextlib.suppress(PermissionError, OverflowError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _in_use(path: Path) -> bool:
    with _opened(path.name) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def remove_leftovers() -> tuple[str, ...]:
    """Remove this user's segments whose creators have ended; return their names."""
    removed: list[str] = []
    for path in sorted(_FOLDER.glob(PREFIX + "*")):
        match = _NAME.fullmatch(path.name)
        if match is None or _alive(int(match.group(1))):
            continue
        # Another clean-up or the tracker may be faster; leave other users' files alone.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if path.stat().st_uid == os.geteuid() and not _in_use(path):
                path.unlink()
                removed.append(path.name)
    return tuple(removed)
