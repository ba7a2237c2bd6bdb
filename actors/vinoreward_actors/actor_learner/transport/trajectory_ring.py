"""Sends trajectories from actors to the learner through fixed slots of shared memory.

::

    FREE -> WRITING -> READY -> READING -> FREE
      actor ---------------^      learner ---^

Every actor has its own slots, and a slot's state says which process may access it. A slot's word
contains its state and the generation of the actor that wrote it. Replacing a dead actor increments
its generation and frees its half-written slots; the learner ignores a slot that a process of an
older generation marks READY later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from vinoreward.errors import ConfigError, SharedMemoryError
from vinoreward_actors.actor_learner.transport import shared_memory as memory
from vinoreward_actors.actor_learner.transport.trajectory import (
    Batch,
    Trajectory,
    TrajectorySpec,
    check_count,
    choose,
)

FREE, WRITING, READY, READING = range(4)
# Words of a slot's control line.
_STATE, _SEQUENCE, _COMMITTED_AT = range(3)
# Words of an actor's control line.
_GENERATION, _NEXT_SEQUENCE, _ACCEPTED_BELOW = range(3)

_STATE_BITS = 8


def word_of(state: int, generation: int) -> int:
    """Return a slot's word."""
    return generation << _STATE_BITS | state


def state_of(word: int) -> int:
    """Return the state in a slot's word."""
    return word & ((1 << _STATE_BITS) - 1)


def _generation_of(word: int) -> int:
    return word >> _STATE_BITS


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
        """Bytes before the first slot: a line per actor and a line per slot."""
        return memory.ALIGNMENT * (self.actors + self.slots)


class TrajectoryRing(memory.InSegment):
    """Fixed slots of trajectories with several writing processes and one reading process.

    ``create`` it in the parent and ``attach`` it in spawned children: as actor ``i``, which writes
    as its present generation, or without an actor's number as the learner, which reads.
    """

    def __init__(self, segment: memory.Segment, spec: RingSpec, actor: int | None = None) -> None:
        if actor is not None and not 0 <= actor < spec.actors:
            raise ConfigError(f"the ring has no actor {actor}. Expected 0 to {spec.actors - 1}.")
        super().__init__(segment)
        self.spec = spec
        self.words = segment.words(0, spec.control_bytes // memory.WORD)
        self.generation = (
            0 if actor is None else self.words[memory.LINE_WORDS * actor + _GENERATION]
        )
        self._actor = actor
        self._writing: int | None = None
        self._views: dict[int, Trajectory] = {}

    @classmethod
    def create(
        cls, trajectories: TrajectorySpec, actors: int, slots_per_actor: int = 2
    ) -> TrajectoryRing:
        """Reserve the memory, actors · slots_per_actor · trajectories.nbytes.

        Two slots let an actor fill one while the learner reads the other.
        """
        if actors < 1 or slots_per_actor < 1:
            raise ConfigError(
                f"the ring has {actors} actors with {slots_per_actor} slots each. Expected at "
                "least 1 of both."
            )
        shape = RingSpec(memory.SegmentSpec("", 0), trajectories, actors, slots_per_actor)
        segment = memory.Segment.create(shape.control_bytes + shape.slots * trajectories.nbytes)
        return cls(segment, RingSpec(segment.spec, trajectories, actors, slots_per_actor))

    @classmethod
    def attach(cls, spec: RingSpec, actor: int | None = None) -> TrajectoryRing:
        """Open a ring that another process created."""
        return cls(memory.Segment.attach(spec.segment), spec, actor)

    def slot_line(self, slot: int) -> int:
        """Return the index of a slot's first word."""
        return memory.LINE_WORDS * (self.spec.actors + slot)

    def _own(self, actor: int) -> range:
        count = self.spec.slots_per_actor
        return range(actor * count, (actor + 1) * count)

    def _view(self, slot: int, generation: int) -> Trajectory:
        trajectory = self._views.get(slot)
        if trajectory is None or trajectory.generation != generation:
            spec = self.spec.trajectories
            start = self.spec.control_bytes + slot * spec.nbytes
            buffer = self._segment.array(start, (spec.nbytes,), np.uint8)
            buffer.flags.writeable = self._actor is not None
            trajectory = spec.view(buffer, slot // self.spec.slots_per_actor, generation)
            self._views[slot] = trajectory
        return trajectory

    # An actor writes

    def _writer(self) -> int:
        """Return this actor's number; raise SharedMemoryError if it was replaced."""
        actor = self._actor
        if actor is None:
            raise ConfigError(
                "a ring without an actor's number cannot write. Expected TrajectoryRing.attach("
                "spec, actor=i)."
            )
        current = self.words[memory.LINE_WORDS * actor + _GENERATION]
        if current != self.generation:
            raise SharedMemoryError(
                f"actor {actor} of generation {self.generation} was replaced by generation "
                f"{current}. Expected the older process to be dead; it must end now."
            )
        return actor

    @property
    def committed(self) -> int:
        """Number of trajectories that this actor and its predecessors have committed."""
        return self.words[memory.LINE_WORDS * self._writer() + _NEXT_SEQUENCE]

    def acquire(
        self, timeout: float | None = None, stop: Callable[[], bool] | None = None
    ) -> Trajectory | None:
        """Wait for a free slot of this actor; None after ``timeout`` seconds or a stop.

        The slot has old contents: write every element, then :meth:`commit`.
        """
        own = self._own(self._writer())
        if self._writing is not None:
            raise ConfigError(
                "a slot of this actor is still open. Expected commit() before the next acquire()."
            )
        free: list[int] = []

        def any_free() -> bool:
            words = ((slot, self.words[self.slot_line(slot) + _STATE]) for slot in own)
            free[:] = [slot for slot, word in words if state_of(word) == FREE]
            return bool(free)

        if not memory.wait_until(any_free, timeout, stop):
            return None
        self._writer()
        memory.fence()  # the learner's last access to the slot is over
        slot = self._writing = free[0]
        self.words[self.slot_line(slot) + _STATE] = word_of(WRITING, self.generation)
        return self._view(slot, self.generation)

    def commit(self) -> None:
        """Check the trajectory of :meth:`acquire` and hand it to the learner."""
        slot = self._writing
        if slot is None:
            raise ConfigError("no slot is open. Expected one commit() after each acquire().")
        self.spec.trajectories.check(self._view(slot, self.generation))
        self._writing = None
        actor = self._writer()
        line = self.slot_line(slot)
        if self.words[line + _STATE] != word_of(WRITING, self.generation):
            raise SharedMemoryError(
                f"slot {slot} of actor {actor} changed its owner during the write. "
                "Expected one process per actor; the trajectory is dropped."
            )
        following = memory.LINE_WORDS * actor + _NEXT_SEQUENCE
        sequence = self.words[following]
        self.words[line + _SEQUENCE] = sequence
        self.words[line + _COMMITTED_AT] = time.monotonic_ns()
        memory.fence()  # a process that sees READY sees the whole trajectory
        self.words[line + _STATE] = word_of(READY, self.generation)
        self.words[following] = sequence + 1  # after the state: see _accepts()

    # The learner reads

    def _accepts(self, line: int, actor: int) -> bool:
        """Return whether a READY slot may be read: not if a replaced process marked it later."""
        # Of an older generation, accept only what was committed before the replacement. commit()
        # counts after it stores READY, so a late READY always has too high a number.
        own = memory.LINE_WORDS * actor
        return (
            _generation_of(self.words[line + _STATE]) == self.words[own + _GENERATION]
            or self.words[line + _SEQUENCE] < self.words[own + _ACCEPTED_BELOW]
        )

    def _ready(self) -> list[tuple[int, int, int]]:
        """Return (actor, sequence, slot) of all READY slots, oldest first."""
        ready = self._look(range(self.spec.slots))
        if ready:
            # An actor may commit to a slot that was just passed and then to a later one: look at
            # the others again for whatever is older than the newest.
            newest, seen = max(ready)[0], {item[-1] for item in ready}
            others = self._look(slot for slot in range(self.spec.slots) if slot not in seen)
            ready += [item for item in others if item[0] <= newest]
        return [item[1:] for item in sorted(ready)]

    def _look(self, slots: Iterable[int]) -> list[tuple[int, int, int, int]]:
        """Return (time, actor, sequence, slot) of the READY slots among some."""
        ready = []
        for slot in slots:
            line = self.slot_line(slot)
            word = self.words[line + _STATE]
            if state_of(word) != READY:
                continue
            memory.fence()
            actor = slot // self.spec.slots_per_actor
            if self._accepts(line, actor):
                committed = self.words[line + _COMMITTED_AT]
                ready.append((committed, actor, self.words[line + _SEQUENCE], slot))
            else:
                self.words[line + _STATE] = word_of(FREE, _generation_of(word))
        return ready

    def ready(self) -> int:
        """Return the number of READY trajectories; called only by the learner."""
        return len(self._ready())

    def take(
        self,
        count: int = 1,
        *,
        timeout: float | None = None,
        stop: Callable[[], bool] | None = None,
        evenly: bool = False,
    ) -> Batch | None:
        """Wait for ``count`` trajectories and take the oldest; None after ``timeout`` s or a stop.

        For ``evenly`` see :func:`~vinoreward_actors.actor_learner.transport.trajectory.choose`.
        """
        actors = self.spec.actors
        check_count(count, self.spec.slots, actors, evenly)
        chosen: list[int] = []

        def enough() -> bool:
            chosen[:] = choose(self._ready(), count, actors, evenly)
            return bool(chosen)

        if not memory.wait_until(enough, timeout, stop):
            return None
        taken = []
        for slot in chosen:
            place = self.slot_line(slot) + _STATE
            generation = _generation_of(self.words[place])
            self.words[place] = word_of(READING, generation)
            taken.append(self._view(slot, generation))
        return Batch(taken, lambda: self._release(chosen))

    def _release(self, slots: list[int]) -> None:
        memory.fence()  # the learner's last access ends before an actor may write
        for slot in slots:
            place = self.slot_line(slot) + _STATE
            self.words[place] = word_of(FREE, _generation_of(self.words[place]))

    # The supervisor replaces

    def reclaim(self, actor: int) -> int:
        """Free a dead actor's half-written slots; return its successor's generation.

        Committed slots stay. Call this after the process is dead (joined) and before its successor
        attaches; kill a process that is merely silent first.
        """
        line = memory.LINE_WORDS * actor
        generation = self.words[line + _GENERATION] + 1
        self.words[line + _ACCEPTED_BELOW] = self.words[line + _NEXT_SEQUENCE]
        self.words[line + _GENERATION] = generation
        memory.fence()
        for slot in self._own(actor):
            place = self.slot_line(slot) + _STATE
            if state_of(self.words[place]) == WRITING:
                self.words[place] = word_of(FREE, generation)
        return generation
