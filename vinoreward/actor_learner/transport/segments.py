"""Named blocks of shared memory that are gone when their maker is gone, however it ends.

The process that creates a segment owns its name and removes it: on ``close``, at the end of a
``with`` block, when the object is collected, at interpreter exit; after ``kill -9`` Python's
resource tracker does it once the children have ended too, and what even that leaves behind
(a tracker killed as well, a power cut) is removed by :func:`remove_leftovers` at the next start.

Traps that shape this module:

- Up to Python 3.12 a process that opens ``SharedMemory`` by name registers it with its resource
  tracker, which may remove the name under everybody else (cpython issue 82300). Hence only the
  creator uses ``SharedMemory``; the others map the file in ``/dev/shm``, which nobody tracks.
- ``SharedMemory.close`` fails while a NumPy view exists. Here a mapping lives exactly as long as
  the views of it, so a view never dangles and nothing has to be closed in order.
- A sparse file on a full file system kills its writer with SIGBUS, long after creation. Hence all
  pages are reserved at creation, where "no space" is an error with a sentence.
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
from dataclasses import dataclass
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.child_python import starting_processes
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, SharedMemoryError

PREFIX = "vinoreward_"
ALIGNMENT = 64
"""Bytes: a cache line, and what vector kernels read fastest."""
WORD = 8
LINE_WORDS = ALIGNMENT // WORD

_FOLDER = Path("/dev/shm")
_NAME = re.compile(re.escape(PREFIX) + r"(\d+)_[0-9a-f]{16}")


@dataclass(frozen=True)
class SegmentSpec:
    """What another process needs to find a segment: plain data.

    Attributes:
        name: file name in /dev/shm.
        size: bytes.
    """

    name: str
    size: int


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """Return ``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def _unlink(named: shared_memory.SharedMemory, pid: int) -> None:
    # A forked child inherits the finalizer, but not the right to remove the name.
    if os.getpid() == pid:
        with contextlib.suppress(FileNotFoundError):
            named.unlink()


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    # All page tables now: filling a fresh slot of 34 MB would take 23 ms of faults instead of 4.
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


def _full(size: int, error: OSError) -> SharedMemoryError:
    free = os.statvfs(_FOLDER)
    return SharedMemoryError(
        f"cannot reserve {size / 1e6:,.1f} MB of shared memory: {error.strerror or error}; "
        f"{free.f_bavail * free.f_frsize / 1e6:,.1f} MB of {_FOLDER} are free. Expected room for "
        "every slot; use fewer actors, fewer or smaller slots, free some, or give the container "
        "more (docker run --shm-size)."
    )


class Segment(Closing):
    """A block of shared memory, zeroed and reserved when it is created.

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
        """Reserve ``size`` bytes under a new random name, readable by this user only.

        Raises:
            ConfigError: the size is not positive, or this machine has no /dev/shm.
            SharedMemoryError: there is not enough room; nothing is left behind.
        """
        if size <= 0:
            raise ConfigError(f"a segment of {size} bytes was asked for. Expected 1 or more.")
        if not _FOLDER.is_dir():
            raise ConfigError(
                f"{_FOLDER} does not exist. Expected Linux with a shared-memory file system; "
                "processes that share memory need it."
            )
        name = f"{PREFIX}{os.getpid()}_{secrets.token_hex(8)}"
        try:
            # One byte: a failure inside SharedMemory confuses the tracker of Python < 3.13.
            with starting_processes():  # the tracker, if it does not run yet
                named = shared_memory.SharedMemory(name, create=True, size=1)
        except OSError as error:
            raise _full(size, error) from error
        named.close()
        try:
            mapping = cls._reserve(name, size)
        except (OSError, OverflowError) as error:
            named.unlink()
            found = error if isinstance(error, OSError) else OSError(str(error))
            raise _full(size, found) from error
        return cls(SegmentSpec(name, size), mapping, named)

    @staticmethod
    def _reserve(name: str, size: int) -> mmap.mmap:
        descriptor = os.open(_FOLDER / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # Says "in use" to processes that cannot see our pid (another container). The mapping
            # keeps a duplicate of the descriptor, and the lock with it, until we end.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, size)
            return _mapped(descriptor, size)
        finally:
            os.close(descriptor)

    @classmethod
    def attach(cls, spec: SegmentSpec) -> Segment:
        """Map a segment that another process created.

        Raises:
            SharedMemoryError: it is gone, not ours, or smaller than its spec says.
        """
        if _NAME.fullmatch(spec.name) is None:
            raise SharedMemoryError(
                f"{spec.name!r} is not the name of a segment. Expected the spec of Segment.create."
            )
        try:
            descriptor = os.open(_FOLDER / spec.name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise SharedMemoryError(
                f"shared memory {spec.name} cannot be opened: {error.strerror or error}. Expected "
                "the process that created it to be running still; start the run again."
            ) from error
        try:
            size = os.fstat(descriptor).st_size
            if size < spec.size:
                raise SharedMemoryError(
                    f"shared memory {spec.name} has {size} bytes. Expected {spec.size}; it was "
                    "changed by somebody else, start the run again."
                )
            return cls(spec, _mapped(descriptor, spec.size))
        finally:
            os.close(descriptor)

    def _open(self) -> mmap.mmap:
        if self._mapping is None:
            raise SharedMemoryError(
                f"shared memory {self.spec.name} is closed. Expected an open segment."
            )
        return self._mapping

    def array(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a writable view; ``offset`` in bytes, a multiple of 64.

        The memory stays mapped as long as the view exists, also after :meth:`close`.

        Raises:
            ConfigError: the view does not lie inside the segment, or is not aligned.
        """
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if offset % ALIGNMENT or offset < 0 or offset + size > self.spec.size:
            raise ConfigError(
                f"a view of {size} bytes at {offset} was asked for. Expected it to start at a "
                f"multiple of {ALIGNMENT} and to lie inside {self.spec.size} bytes."
            )
        return np.ndarray(shape, dtype, buffer=self._open(), offset=offset)

    def words(self, offset: int, count: int) -> memoryview:
        """Return ``count`` signed 8-byte words at ``offset`` (bytes, a multiple of 8).

        Reading or writing one is one aligned access, which other processes see whole.
        """
        return memoryview(self._open())[offset : offset + count * WORD].cast("q")

    def close(self) -> None:
        """Let go of the memory; the creator also removes the name. May be called twice."""
        self._mapping = None
        if self._finalizer is not None:
            self._finalizer()


class InSegment(Closing):
    """What lies in one segment and lives as long."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def close(self) -> None:
        """Let go of the memory; the creator also removes it from the system."""
        self._segment.close()


def _alive(pid: int) -> bool:
    with contextlib.suppress(PermissionError, OverflowError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True


def _in_use(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def leftovers() -> tuple[str, ...]:
    """Return the names of this user's segments whose creators have ended."""
    found: list[str] = []
    for path in sorted(_FOLDER.glob(PREFIX + "*")):
        match = _NAME.fullmatch(path.name)
        if match is None or _alive(int(match.group(1))):
            continue
        # Another clean-up, or the tracker, may be faster; others' files are theirs.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if path.stat().st_uid == os.geteuid() and not _in_use(path):
                found.append(path.name)
    return tuple(found)


def remove_leftovers() -> tuple[str, ...]:
    """Remove what dead processes left in shared memory; return the names."""
    names = leftovers()
    for name in names:
        (_FOLDER / name).unlink(missing_ok=True)
    return names
