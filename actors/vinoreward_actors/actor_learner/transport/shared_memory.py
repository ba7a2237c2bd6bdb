"""Shared memory that disappears with its creator, and synchronisation without locks.

The process that creates a segment owns its name and removes it: on ``close``, on garbage
collection, at interpreter exit. After ``kill -9``, Python's resource tracker removes it once the
children have ended.

Processes wait by polling and share single words, each with one writer: a killed process would never
release a lock.

Pitfalls that shape this module:

- Up to Python 3.12, a process that opens ``SharedMemory`` by name registers it with its resource
  tracker, which may remove the name for all others (cpython issue 82300). So only the creator uses
  ``SharedMemory``; the others map the file in ``/dev/shm``.
- ``SharedMemory.close`` fails while a NumPy view exists. Here a mapping lives as long as its views.
- A sparse file on a full file system kills its writer with SIGBUS, long after creation. So all
  pages are reserved at creation, where a lack of space raises an error.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
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
_STOP, _LEARNER_VERSION, _SAMPLES = range(3)


@dataclass(frozen=True)
class SegmentSpec:
    """What a process needs to attach to a segment; plain data."""

    name: str  # of the file in /dev/shm
    size: int  # bytes


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """Return ``size`` rounded up to a multiple of ``alignment``."""
    return -(-size // alignment) * alignment


def _unlink(named: SharedMemory, pid: int) -> None:
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
    """A block of shared memory; :meth:`create` it in one process, :meth:`attach` in others."""

    _finalizer: Callable[[], object] | None = None

    def __init__(
        self, spec: SegmentSpec, mapping: mmap.mmap, named: SharedMemory | None = None
    ) -> None:
        self.spec = spec
        self._mapping: mmap.mmap | None = mapping
        if named is not None:
            self._finalizer = weakref.finalize(self, _unlink, named, os.getpid())

    @classmethod
    def create(cls, size: int) -> Segment:
        """Reserve ``size`` bytes under a new random name, readable only by this user."""
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
                named = SharedMemory(name, create=True, size=1)
        except OSError as error:
            raise _full(size, error) from error
        named.close()
        try:
            with _opened(name) as descriptor:
                os.posix_fallocate(descriptor, 0, size)
                mapping = _mapped(descriptor, size)
        except (OSError, OverflowError) as error:
            named.unlink()
            raise _full(size, error) from error
        return cls(SegmentSpec(name, size), mapping, named)

    @classmethod
    def attach(cls, spec: SegmentSpec) -> Segment:
        """Map a segment that another process created.

        Raises:
            SharedMemoryError: it is gone, not ours, or smaller than its spec.
        """
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
        """Return a writable view, valid even after :meth:`close`; ``offset`` in bytes."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if offset % ALIGNMENT or offset < 0 or offset + size > self.spec.size:
            raise ConfigError(
                f"the view has {size} bytes at {offset}. Expected a start at a multiple of "
                f"{ALIGNMENT} and an end inside {self.spec.size} bytes."
            )
        return np.ndarray(shape, dtype, buffer=self._open(), offset=offset)

    def words(self, offset: int, count: int) -> memoryview:
        """Return ``count`` signed 8-byte words, each read and written atomically."""
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


# Synchronisation without locks, which a killed process would never release.


def fence() -> None:
    """Order the loads and stores before this call before those after it, for other processes."""
    # On x86-64 one locking is a full barrier. On ARM it acquires, then releases, and accesses from
    # both sides may move in between. So twice: what was before the first release stays before the
    # second acquisition. Python offers nothing closer. About 0.2 µs.
    lock = threading.Lock()
    for _ in range(2):
        lock.acquire()
        lock.release()


def wait_until(
    condition: Callable[[], bool],
    timeout: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> bool:
    """Poll every 0.05 to 1 ms until ``condition()`` holds; return whether it does.

    The wait ends early after ``timeout`` seconds (0: check once), or if ``stop()``, called as
    often, is true.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    pause = 50e-6
    while not condition():
        if time.monotonic() >= deadline or (stop is not None and stop()):
            return False
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    return True


@dataclass(frozen=True)
class ControlSpec:
    """What a process needs to attach to a control block; plain data."""

    segment: SegmentSpec
    processes: int  # with heartbeat and counters, numbered from 0
    counters: tuple[str, ...]  # names of each process's counters


class ControlBlock(InSegment):
    """Words shared by a supervisor, a learner and actors: stop flag, version, and samples.

    Each process has its own line with heartbeat and counters.
    """

    def __init__(self, segment: Segment, spec: ControlSpec) -> None:
        super().__init__(segment)
        self.spec = spec
        self._words = segment.words(0, segment.spec.size // WORD)
        self._line = aligned(1 + len(spec.counters), LINE_WORDS)

    @classmethod
    def create(cls, processes: int, counters: Sequence[str]) -> ControlBlock:
        """Allocate the words, all 0."""
        words = LINE_WORDS + processes * aligned(1 + len(counters), LINE_WORDS)
        segment = Segment.create(words * WORD)
        return cls(segment, ControlSpec(segment.spec, processes, tuple(counters)))

    @classmethod
    def attach(cls, spec: ControlSpec) -> ControlBlock:
        """Open a block that another process created."""
        return cls(Segment.attach(spec.segment), spec)

    @property
    def stopped(self) -> bool:
        """Whether all processes should end."""
        return self._words[_STOP] != 0

    def stop(self) -> None:
        """Tell all processes to end; irreversible."""
        self._words[_STOP] = 1

    @property
    def learner_version(self) -> int:
        """The newest published version of the weights; written only by the learner."""
        return self._words[_LEARNER_VERSION]

    @learner_version.setter
    def learner_version(self, version: int) -> None:
        self._words[_LEARNER_VERSION] = version

    @property
    def samples(self) -> int:
        """Number of transitions the learner has sampled; written only by the learner."""
        return self._words[_SAMPLES]

    @samples.setter
    def samples(self, count: int) -> None:
        self._words[_SAMPLES] = count

    def _beat(self, process: int) -> int:
        return LINE_WORDS + process * self._line

    def _counter(self, process: int, name: str) -> int:
        return self._beat(process) + 1 + self.spec.counters.index(name)

    def beat(self, process: int) -> None:
        """Record a heartbeat; called only by that process."""
        self._words[self._beat(process)] = time.monotonic_ns()

    def silence(self, process: int) -> float:
        """Return the seconds since a process's last heartbeat; infinity if there is none."""
        last = self._words[self._beat(process)]
        return (time.monotonic_ns() - last) / 1e9 if last else math.inf

    def reset_beat(self, process: int) -> None:
        """Clear a dead process's heartbeat before its successor starts; counters stay."""
        self._words[self._beat(process)] = 0

    def add(self, process: int, counter: str, count: int = 1) -> None:
        """Increase a counter; called only by that process."""
        self._words[self._counter(process, counter)] += count

    def count(self, process: int, counter: str) -> int:
        """Return one process's counter."""
        return self._words[self._counter(process, counter)]

    def total(self, counter: str) -> int:
        """Return a counter's sum over all processes."""
        return sum(self.count(process, counter) for process in range(self.spec.processes))
