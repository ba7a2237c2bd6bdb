"""Synchronisation of processes without locks, which a killed process would never release.

Memory fences, polling, and a block of shared words: stop flag, the learner's version, heartbeats
and counters. Each word has one writer, so a killed process loses nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vinoreward.actor_learner.transport.segments import (
    LINE_WORDS,
    WORD,
    InSegment,
    Segment,
    SegmentSpec,
    aligned,
)
from vinoreward.errors import ConfigError

_STOP, _LEARNER_VERSION, _SAMPLES = range(3)


def fence() -> None:
    """Order all loads and stores before this call before those after it, for other processes.

    Locking is an atomic instruction: a full barrier on x86-64, acquire and release on ARM. Python
    offers nothing closer. About 0.1 µs.
    """
    with threading.Lock():
        pass


def wait_until(
    condition: Callable[[], bool],
    timeout: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> bool:
    """Poll until ``condition()`` holds; return whether it does.

    Args:
        condition: cheap; called every 0.05 to 1 ms.
        timeout: seconds; None for no limit, 0 to check once.
        stop: called as often; True ends the wait. Suits heartbeats.
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
    """The information needed to attach to a control block; plain data."""

    segment: SegmentSpec
    processes: int  # with heartbeat and counters, numbered from 0
    counters: tuple[str, ...]  # names of each process's counters


class ControlBlock(InSegment):
    """Words shared by a supervisor, a learner and actors.

    A line of words for all, then for each process its heartbeat and its counters.
    """

    def __init__(self, segment: Segment, spec: ControlSpec) -> None:
        super().__init__(segment)
        self.spec = spec
        self._words = segment.words(0, segment.spec.size // WORD)
        self._line = aligned(1 + len(spec.counters), LINE_WORDS)
        self._places = {name: 1 + place for place, name in enumerate(spec.counters)}

    @classmethod
    def create(cls, processes: int, counters: Sequence[str]) -> ControlBlock:
        """Allocate the words, all 0.

        Raises:
            ConfigError: no process, or a counter named twice.
            SharedMemoryError: not enough shared memory.
        """
        names = tuple(counters)
        if processes < 1 or len(set(names)) != len(names):
            raise ConfigError(
                f"the control block is for {processes} processes with counters {names}. Expected "
                "at least one process, and every name once."
            )
        words = LINE_WORDS + processes * aligned(1 + len(names), LINE_WORDS)
        segment = Segment.create(words * WORD)
        return cls(segment, ControlSpec(segment.spec, processes, names))

    @classmethod
    def attach(cls, spec: ControlSpec) -> ControlBlock:
        """Open a block that another process created; see :meth:`Segment.attach`."""
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
        """Number of the learner's updates; written only by the learner."""
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

    def _place(self, process: int, counter: str | None = None) -> int:
        if not 0 <= process < self.spec.processes:
            raise ConfigError(
                f"the control block has no process {process}. Expected 0 to "
                f"{self.spec.processes - 1}."
            )
        if counter is not None and counter not in self._places:
            raise ConfigError(
                f"the control block has no counter {counter!r}. Expected one of "
                f"{self.spec.counters}."
            )
        place = LINE_WORDS + process * self._line
        return place if counter is None else place + self._places[counter]

    def beat(self, process: int) -> None:
        """Record a heartbeat; called only by that process."""
        self._words[self._place(process)] = time.monotonic_ns()

    def silence(self, process: int) -> float:
        """Return the seconds since a process's last heartbeat; infinity if there is none."""
        last = self._words[self._place(process)]
        return (time.monotonic_ns() - last) / 1e9 if last else math.inf

    def reset_beat(self, process: int) -> None:
        """Clear a dead process's heartbeat before its successor starts; counters stay."""
        self._words[self._place(process)] = 0

    def add(self, process: int, counter: str, count: int = 1) -> None:
        """Increase a counter; called only by that process."""
        self._words[self._place(process, counter)] += count

    def count(self, process: int, counter: str) -> int:
        """Return one process's counter."""
        return self._words[self._place(process, counter)]

    def total(self, counter: str) -> int:
        """Return a counter's sum over all processes."""
        return sum(self.count(process, counter) for process in range(self.spec.processes))
