"""Shared words: stop flag, the learner's version, heartbeats and counters of every process.

Each word has one writer. So there are no locks, and a killed process loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from vinoreward.actor_learner.transport.segments import (
    ALIGNMENT,
    LINE_WORDS,
    InSegment,
    Segment,
    SegmentSpec,
    aligned,
)
from vinoreward.errors import ConfigError

_STOP, _LEARNER_VERSION, _SAMPLES = range(3)


@dataclass(frozen=True)
class ControlSpec:
    """The information needed to attach to a control block; plain data.

    Attributes:
        segment: its memory.
        processes: number of processes with heartbeat and counters, numbered from 0.
        counters: names of each process's counters.
    """

    segment: SegmentSpec
    processes: int
    counters: tuple[str, ...]

    @property
    def line_words(self) -> int:
        """Words per process: a heartbeat and its counters, in whole cache lines."""
        return aligned(1 + len(self.counters), LINE_WORDS)

    @property
    def words(self) -> int:
        """Total number of words."""
        return LINE_WORDS + self.processes * self.line_words


class ControlBlock(InSegment):
    """Words shared by a supervisor, a learner and actors."""

    def __init__(self, segment: Segment, spec: ControlSpec) -> None:
        super().__init__(segment)
        self.spec = spec
        self._words = segment.words(0, spec.words)
        self._places = {name: 1 + place for place, name in enumerate(spec.counters)}

    @classmethod
    def create(
        cls,
        processes: int,
        counters: Sequence[str] = ("steps", "episodes", "inserts", "pulls"),
    ) -> ControlBlock:
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
        words = ControlSpec(SegmentSpec("", 0), processes, names).words
        segment = Segment.create(words * (ALIGNMENT // LINE_WORDS))
        return cls(segment, ControlSpec(segment.spec, processes, names))

    @classmethod
    def attach(cls, spec: ControlSpec) -> ControlBlock:
        """Open a block that another process created.

        Raises:
            SharedMemoryError: it is gone.
        """
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
        place = LINE_WORDS + process * self.spec.line_words
        return place if counter is None else place + self._places[counter]

    def beat(self, process: int) -> None:
        """Record a heartbeat; called only by that process."""
        self._words[self._place(process)] = time.monotonic_ns()

    def silence(self, process: int) -> float:
        """Return the seconds since a process's last heartbeat; infinity if there is none."""
        beaten = self._words[self._place(process)]
        return (time.monotonic_ns() - beaten) / 1e9 if beaten else float("inf")

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
