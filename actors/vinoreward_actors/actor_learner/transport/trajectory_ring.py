"""Sends trajectories from actors to the learner through fixed slots of shared memory.

::

    FREE -> WRITING -> READY -> READING -> FREE
      actor ---------------^      learner ---^

Every actor has its own slots, and a slot's state says which process may access it. An actor is
replaced once it is dead; what it had committed stays, its half-written slots are free again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.transport import shared_memory as memory
from vinoreward_actors.actor_learner.transport.trajectory import (
    Batch,
    Trajectory,
    TrajectorySpec,
)

FREE, WRITING, READY, READING = range(4)
# Words of a slot's control line.
_STATE, _GENERATION, _COMMITTED_AT = range(3)


@dataclass(frozen=True)
class RingSpec:
    """What a process needs to attach to a ring; plain data."""

    segment: memory.SegmentSpec
    trajectories: TrajectorySpec  # contents of a slot
    actors: int  # processes that may write, numbered from 0
    slots_per_actor: int

    @property
    def slots(self) -> int:
        """Total number of slots."""
        return self.actors * self.slots_per_actor

    @property
    def control_bytes(self) -> int:
        """Bytes before the first slot: a line per slot."""
        return memory.ALIGNMENT * self.slots


class TrajectoryRing(memory.InSegment):
    """Fixed slots of trajectories with several writing processes and one reading process.

    ``create`` it in the parent, which reads, and ``attach`` it in spawned children, as an actor of
    a generation, which writes.
    """

    def __init__(
        self, segment: memory.Segment, spec: RingSpec, actor: int | None = None, generation: int = 0
    ) -> None:
        super().__init__(segment)
        self.spec = spec
        self._words = segment.words(0, spec.control_bytes // memory.WORD)
        self._actor, self._generation = actor, generation
        self._writing: int | None = None
        self._views: dict[int, Trajectory] = {}

    @classmethod
    def create(
        cls, trajectories: TrajectorySpec, actors: int, slots_per_actor: int = 2
    ) -> TrajectoryRing:
        """Reserve the memory, actors · slots_per_actor · trajectories.nbytes.

        Two slots let an actor fill one while the learner reads the other.
        """
        shape = RingSpec(memory.SegmentSpec("", 0), trajectories, actors, slots_per_actor)
        segment = memory.Segment.create(shape.control_bytes + shape.slots * trajectories.nbytes)
        return cls(segment, RingSpec(segment.spec, trajectories, actors, slots_per_actor))

    @classmethod
    def attach(cls, spec: RingSpec, actor: int, generation: int = 0) -> TrajectoryRing:
        """Open a ring that another process created, to write into this actor's slots."""
        return cls(memory.Segment.attach(spec.segment), spec, actor, generation)

    def _line(self, slot: int) -> int:
        return memory.LINE_WORDS * slot

    def _state(self, slot: int) -> int:
        return self._words[self._line(slot) + _STATE]

    def _own(self, actor: int) -> range:
        count = self.spec.slots_per_actor
        return range(actor * count, (actor + 1) * count)

    def _view(self, slot: int) -> Trajectory:
        trajectory, generation = self._views.get(slot), self._words[self._line(slot) + _GENERATION]
        if trajectory is None or trajectory.generation != generation:
            spec = self.spec.trajectories
            start = self.spec.control_bytes + slot * spec.nbytes
            buffer = self._segment.array(start, (spec.nbytes,), np.uint8)
            buffer.flags.writeable = self._actor is not None
            trajectory = spec.view(buffer, slot // self.spec.slots_per_actor, generation)
            self._views[slot] = trajectory
        return trajectory

    # An actor writes

    def acquire(
        self, timeout: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Trajectory | None:
        """Wait for a free slot of this actor; None after ``timeout`` seconds or a stop.

        The slot has old contents: write every element, then :meth:`commit`.
        """
        if self._actor is None or self._writing is not None:
            raise ConfigError(
                "this ring cannot give a slot to write. Expected one that an actor has attached, "
                "and commit() after each acquire()."
            )
        own = self._own(self._actor)
        free: list[int] = []

        def any_free() -> bool:
            free[:] = [slot for slot in own if self._state(slot) == FREE]
            return bool(free)

        if not memory.wait_until(any_free, timeout, stop):
            return None
        memory.fence()  # the learner's last access to the slot is over
        slot = self._writing = free[0]
        self._words[self._line(slot) + _STATE] = WRITING
        self._words[self._line(slot) + _GENERATION] = self._generation
        return self._view(slot)

    def commit(self) -> None:
        """Check the trajectory of :meth:`acquire` and hand it to the learner."""
        slot = self._writing
        if slot is None:
            raise ConfigError("no slot is open. Expected one commit() after each acquire().")
        self.spec.trajectories.check(self._view(slot))
        self._writing = None
        line = self._line(slot)
        self._words[line + _COMMITTED_AT] = time.monotonic_ns()
        memory.fence()  # a process that sees READY sees the whole trajectory
        self._words[line + _STATE] = READY

    # The learner reads

    def _look(self) -> list[tuple[int, int]]:
        """Return (time, slot) of all READY slots."""
        ready = [slot for slot in range(self.spec.slots) if self._state(slot) == READY]
        memory.fence()
        return [(self._words[self._line(slot) + _COMMITTED_AT], slot) for slot in ready]

    def _ready(self) -> list[int]:
        """Return the READY slots, oldest first."""
        found = self._look()
        if not found:
            return []
        # An actor may commit to a slot that was just passed and then to a later one: look again for
        # whatever is older than the newest.
        newest = max(found)[0]
        return [slot for time, slot in sorted(self._look()) if time <= newest]

    def ready(self) -> int:
        """Return the number of READY trajectories; called only by the learner."""
        return len(self._ready())

    def take(
        self,
        count: int = 1,
        *,
        timeout: float | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Batch | None:
        """Take the oldest trajectories, once there are ``count``.

        None after ``timeout`` seconds or a stop.
        """
        if not 1 <= count <= self.spec.slots:
            raise ConfigError(field="count", value=count, expected=f"1 to {self.spec.slots}")
        chosen: list[int] = []

        def enough() -> bool:
            chosen[:] = self._ready()[:count]
            return len(chosen) == count

        if not memory.wait_until(enough, timeout, stop):
            return None
        for slot in chosen:
            self._words[self._line(slot) + _STATE] = READING
        return Batch([self._view(slot) for slot in chosen], lambda: self._release(chosen))

    def _release(self, slots: list[int]) -> None:
        memory.fence()  # the learner's last access ends before an actor may write
        for slot in slots:
            self._words[self._line(slot) + _STATE] = FREE

    # The supervisor replaces

    def reclaim(self, actor: int) -> None:
        """Free the half-written slots of an actor whose process is dead (joined).

        Committed slots stay. Kill a process that is merely silent first.
        """
        for slot in self._own(actor):
            if self._state(slot) == WRITING:
                self._words[self._line(slot) + _STATE] = FREE
