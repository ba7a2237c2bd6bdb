"""Slots of the trajectory ring: memory layout, states, and recovery after a process dies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from vinoreward.actor_learner.transport.segments import (
    ALIGNMENT,
    LINE_WORDS,
    InSegment,
    Segment,
    SegmentSpec,
)
from vinoreward.actor_learner.transport.sync import fence
from vinoreward.actor_learner.transport.trajectory import Trajectory, TrajectorySpec

FREE, WRITING, READY, READING = range(4)
# Words of a slot's control line.
WORD, SEQUENCE, COMMITTED_AT = range(3)
# Words of an actor's control line.
GENERATION, NEXT_SEQUENCE, ACCEPTED_BELOW = range(3)

_STATE_BITS = 8


def word_of(state: int, generation: int) -> int:
    """Return a slot's word."""
    return generation << _STATE_BITS | state


def state_of(word: int) -> int:
    """Return the state in a slot's word."""
    return word & ((1 << _STATE_BITS) - 1)


def generation_of(word: int) -> int:
    """Return the writer's generation in a slot's word."""
    return word >> _STATE_BITS


@dataclass(frozen=True)
class RingSpec:
    """The information needed to attach to a ring; plain data.

    Attributes:
        segment: its memory.
        trajectories: contents of a slot.
        actors: processes that may write, numbered from 0.
        slots_per_actor: number of each actor's own slots.
    """

    segment: SegmentSpec
    trajectories: TrajectorySpec
    actors: int
    slots_per_actor: int

    @property
    def slots(self) -> int:
        """Total number of slots."""
        return self.actors * self.slots_per_actor

    @property
    def control_bytes(self) -> int:
        """Bytes before the first slot: a line per actor and a line per slot."""
        return ALIGNMENT * (self.actors + self.slots)


class RingSlots(InSegment):
    """The memory of a trajectory ring, seen from any process."""

    def __init__(self, segment: Segment, spec: RingSpec) -> None:
        super().__init__(segment)
        self.spec = spec
        self.words = segment.words(0, spec.control_bytes // 8)
        self._views: dict[tuple[int, bool], dict[str, npt.NDArray[Any]]] = {}

    def actor_line(self, actor: int) -> int:
        """Return the index of an actor's first word."""
        return LINE_WORDS * actor

    def slot_line(self, slot: int) -> int:
        """Return the index of a slot's first word."""
        return LINE_WORDS * (self.spec.actors + slot)

    def own(self, actor: int) -> range:
        """Return the slots of an actor."""
        count = self.spec.slots_per_actor
        return range(actor * count, (actor + 1) * count)

    def trajectory(self, slot: int, actor: int, generation: int, writable: bool) -> Trajectory:
        """Return views on a slot."""
        arrays = self._views.get((slot, writable))
        if arrays is None:
            arrays = {}
            start = self.spec.control_bytes + slot * self.spec.trajectories.nbytes
            for name, at in self.spec.trajectories.fields().items():
                arrays[name] = self._segment.array(start + at.offset, at.shape, at.dtype)
                arrays[name].flags.writeable = writable
            self._views[slot, writable] = arrays
        return Trajectory(**arrays, actor=actor, generation=generation)

    def accepts(self, line: int, actor: int) -> bool:
        """Return whether a READY slot may be read: not if a replaced process marked it later."""
        # Of an older generation, accept only what was committed before the replacement. SEQUENCE
        # is incremented after READY is stored, so a late READY always has too high a number.
        generation = generation_of(self.words[line + WORD])
        actor_line = self.actor_line(actor)
        return (
            generation == self.words[actor_line + GENERATION]
            or self.words[line + SEQUENCE] < self.words[actor_line + ACCEPTED_BELOW]
        )

    def waiting(self) -> list[tuple[int, int, int, int]]:
        """Return (committed at, actor, sequence, slot) of all READY slots, oldest first."""
        found = []
        for slot in range(self.spec.slots):
            line = self.slot_line(slot)
            word = self.words[line + WORD]
            if state_of(word) != READY:
                continue
            fence()
            actor = slot // self.spec.slots_per_actor
            if self.accepts(line, actor):
                committed = self.words[line + COMMITTED_AT]
                found.append((committed, actor, self.words[line + SEQUENCE], slot))
            else:
                self.words[line + WORD] = word_of(FREE, generation_of(word))
        return sorted(found)

    def reclaim(self, actor: int) -> int:
        """Free a dead actor's half-written slots; return its successor's generation.

        Committed slots stay. Call this after the process is dead (joined) and before its successor
        attaches; kill a process that is merely silent first.
        """
        line = self.actor_line(actor)
        generation = self.words[line + GENERATION] + 1
        self.words[line + ACCEPTED_BELOW] = self.words[line + NEXT_SEQUENCE]
        self.words[line + GENERATION] = generation
        fence()
        for slot in self.own(actor):
            place = self.slot_line(slot) + WORD
            if state_of(self.words[place]) == WRITING:
                self.words[place] = word_of(FREE, generation)
        return generation

    def reclaim_reader(self) -> int:
        """Make a dead learner's READING slots READY again; return their number."""
        count = 0
        for slot in range(self.spec.slots):
            place = self.slot_line(slot) + WORD
            if state_of(self.words[place]) == READING:
                self.words[place] = word_of(READY, generation_of(self.words[place]))
                count += 1
        return count

    def states(self) -> tuple[int, ...]:
        """Return the state of every slot: FREE, WRITING, READY or READING."""
        return tuple(
            state_of(self.words[self.slot_line(slot) + WORD]) for slot in range(self.spec.slots)
        )
