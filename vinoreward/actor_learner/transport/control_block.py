"""A few shared words: stop, the learner's version, heartbeats and counters of every process.

Each word has one writer, so nothing is locked and nothing is lost when a process is killed.
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
    """What another process needs to attach a control block: plain data.

    Attributes:
        segment: where it lies.
        processes: number of processes that beat and count, numbered from 0.
        counters: names of each process's counters.
    """

    segment: SegmentSpec
    processes: int
    counters: tuple[str, ...]

    @property
    def line_words(self) -> int:
        """Words a process has to itself: a heartbeat and its counters, in whole cache lines."""
        return aligned(1 + len(self.counters), LINE_WORDS)

    @property
    def words(self) -> int:
        """All words."""
        return LINE_WORDS + self.processes * self.line_words


class ControlBlock(InSegment):
    """Words that a supervisor, a learner and actors share."""

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
        """Reserve the words, all 0.

        Raises:
            ConfigError: no process, or a counter named twice.
            SharedMemoryError: not enough shared memory.
        """
        names = tuple(counters)
        if processes < 1 or len(set(names)) != len(names):
            raise ConfigError(
                f"{processes} processes with the counters {names} were asked for. Expected one "
                "process or more and every name once."
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
        """Whether all processes are asked to end."""
        return self._words[_STOP] != 0

    def stop(self) -> None:
        """Ask all processes to end; cannot be taken back."""
        self._words[_STOP] = 1

    @property
    def learner_version(self) -> int:
        """Updates the learner has made; it alone writes this."""
        return self._words[_LEARNER_VERSION]

    @learner_version.setter
    def learner_version(self, version: int) -> None:
        self._words[_LEARNER_VERSION] = version

    @property
    def samples(self) -> int:
        """Transitions the learner has sampled; it alone writes this."""
        return self._words[_SAMPLES]

    @samples.setter
    def samples(self, count: int) -> None:
        self._words[_SAMPLES] = count

    def _place(self, process: int, counter: str | None = None) -> int:
        if not 0 <= process < self.spec.processes:
            raise ConfigError(
                f"process {process} was asked for. Expected 0 to {self.spec.processes - 1}."
            )
        if counter is not None and counter not in self._places:
            raise ConfigError(
                f"the counter {counter!r} was asked for. Expected one of {self.spec.counters}."
            )
        place = LINE_WORDS + process * self.spec.line_words
        return place if counter is None else place + self._places[counter]

    def beat(self, process: int) -> None:
        """Say that a process is alive and not stuck; only that process calls this."""
        self._words[self._place(process)] = time.monotonic_ns()

    def silence(self, process: int) -> float:
        """Return the seconds since a process last beat, infinity if it never did."""
        beaten = self._words[self._place(process)]
        return (time.monotonic_ns() - beaten) / 1e9 if beaten else float("inf")

    def reset_beat(self, process: int) -> None:
        """Forget a dead process's heartbeat before its successor starts; counters stay."""
        self._words[self._place(process)] = 0

    def add(self, process: int, counter: str, count: int = 1) -> None:
        """Count; only that process calls this."""
        self._words[self._place(process, counter)] += count

    def count(self, process: int, counter: str) -> int:
        """Return one process's counter."""
        return self._words[self._place(process, counter)]

    def total(self, counter: str) -> int:
        """Return a counter's sum over all processes."""
        return sum(self.count(process, counter) for process in range(self.spec.processes))
