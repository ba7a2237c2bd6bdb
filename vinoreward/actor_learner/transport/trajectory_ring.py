"""Sends trajectories from actors to the learner through fixed slots of shared memory.

::

    FREE -> WRITING -> READY -> READING -> FREE
      actor ---------------^      learner ---^

Every actor has its own slots, and a slot's state says which process may access it. So there is no
lock that a killed process could keep, and no race for a slot.

A slot's word contains its state and the generation of the actor that wrote it. Replacing a dead
actor increments its generation and frees its half-written slots; a slot that a process of an older
generation marks READY later is ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vinoreward.actor_learner.transport.ring_slots import (
    COMMITTED_AT,
    FREE,
    GENERATION,
    NEXT_SEQUENCE,
    READING,
    READY,
    SEQUENCE,
    WORD,
    WRITING,
    RingSlots,
    RingSpec,
    generation_of,
    state_of,
    word_of,
)
from vinoreward.actor_learner.transport.segments import Segment, SegmentSpec
from vinoreward.actor_learner.transport.sync import fence, wait_until
from vinoreward.actor_learner.transport.trajectory import Trajectory, TrajectorySpec
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, SharedMemoryError


class TrajectoryRing(RingSlots):
    """Fixed slots of trajectories with several writing processes and one reading process.

    ``create`` it in the parent and ``attach`` it in spawned children: as actor ``i``, which writes,
    or without an actor's number as the learner, which reads.
    """

    def __init__(self, segment: Segment, spec: RingSpec, actor: int | None = None) -> None:
        if actor is not None and not 0 <= actor < spec.actors:
            raise ConfigError(f"the ring has no actor {actor}. Expected 0 to {spec.actors - 1}.")
        super().__init__(segment, spec)
        self._actor = actor
        self._writing: WriteSlot | None = None
        self.generation = 0 if actor is None else self.words[self.actor_line(actor) + GENERATION]

    @classmethod
    def create(
        cls, trajectories: TrajectorySpec, actors: int, slots_per_actor: int = 2
    ) -> TrajectoryRing:
        """Reserve the memory, actors · slots_per_actor · trajectories.nbytes.

        Two slots let an actor fill one while the learner reads the other.

        Raises:
            ConfigError: no actor or no slot.
            SharedMemoryError: not enough shared memory.
        """
        if actors < 1 or slots_per_actor < 1:
            raise ConfigError(
                f"the ring has {actors} actors with {slots_per_actor} slots each. Expected at "
                "least 1 of both."
            )
        shape = RingSpec(SegmentSpec("", 0), trajectories, actors, slots_per_actor)
        segment = Segment.create(shape.control_bytes + shape.slots * trajectories.nbytes)
        return cls(segment, RingSpec(segment.spec, trajectories, actors, slots_per_actor))

    @classmethod
    def attach(cls, spec: RingSpec, actor: int | None = None) -> TrajectoryRing:
        """Open a ring that another process created; an actor gets its current generation.

        Raises:
            SharedMemoryError: it is gone.
        """
        return cls(Segment.attach(spec.segment), spec, actor)

    def acquire(
        self, timeout: float | None = None, stop: Callable[[], bool] | None = None
    ) -> WriteSlot | None:
        """Wait for a free slot of this actor; None after ``timeout`` seconds or a stop.

        Raises:
            ConfigError: attached without an actor's number, or the last slot is still open.
            SharedMemoryError: this actor was replaced and must end.
        """
        if self._actor is None:
            raise ConfigError(
                "a ring without an actor's number cannot write. Expected TrajectoryRing.attach("
                "spec, actor=i)."
            )
        if self._writing is not None:
            raise ConfigError(
                "a slot of this actor is still open. Expected commit() or close() before the next "
                "acquire()."
            )
        own = self.own(self._actor)
        if not wait_until(lambda: self._first_free(own) is not None, timeout, stop):
            return None
        self._check_current()
        slot = self._first_free(own)
        if slot is None:  # only if another process writes as this actor
            return None
        fence()  # the learner's last access to the slot is over
        self.words[self.slot_line(slot) + WORD] = word_of(WRITING, self.generation)
        trajectory = self.trajectory(slot, self._actor, self.generation, writable=True)
        self._writing = WriteSlot(self, slot, trajectory)
        return self._writing

    def _first_free(self, own: range) -> int | None:
        for slot in own:
            if state_of(self.words[self.slot_line(slot) + WORD]) == FREE:
                return slot
        return None

    def _check_current(self) -> None:
        if self._actor is None:
            return
        current = self.words[self.actor_line(self._actor) + GENERATION]
        if current != self.generation:
            raise SharedMemoryError(
                f"actor {self._actor} of generation {self.generation} was replaced by generation "
                f"{current}. Expected the older process to be dead; it must end now."
            )

    def finish(self, written: WriteSlot, *, ready: bool) -> None:
        """Close the open slot; :class:`WriteSlot` calls this."""
        if self._writing is not written or self._actor is None:
            raise ConfigError("this slot is already closed. Expected one commit() or close().")
        self._writing = None
        self._check_current()
        line = self.slot_line(written.slot)
        if self.words[line + WORD] != word_of(WRITING, self.generation):
            raise SharedMemoryError(
                f"slot {written.slot} of actor {self._actor} changed its owner during the write. "
                "Expected one process per actor; the trajectory is dropped."
            )
        if not ready:
            self.words[line + WORD] = word_of(FREE, self.generation)
            return
        actor_line = self.actor_line(self._actor)
        sequence = self.words[actor_line + NEXT_SEQUENCE]
        self.words[line + SEQUENCE] = sequence
        self.words[line + COMMITTED_AT] = time.monotonic_ns()
        fence()  # a process that sees READY sees the whole trajectory
        self.words[line + WORD] = word_of(READY, self.generation)
        # After the state: see accepts().
        self.words[actor_line + NEXT_SEQUENCE] = sequence + 1

    def write(
        self,
        trajectory: Trajectory,
        timeout: float | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> bool:
        """Copy a trajectory into a free slot; False after ``timeout`` seconds or a stop.

        Raises:
            InputError: the spec refuses it (:meth:`TrajectorySpec.check`); the slot stays free.
            SharedMemoryError: this actor has been replaced and must end.
        """
        self.spec.trajectories.check(trajectory)
        slot = self.acquire(timeout, stop)
        if slot is None:
            return False
        with slot:
            slots = slot.trajectory.arrays()
            for name, array in trajectory.arrays().items():
                slots[name][...] = array
            slot.commit(check=False)
        return True

    def ready(self) -> int:
        """Return the number of READY trajectories; called only by the learner."""
        return len(self.waiting())

    def take(
        self,
        count: int = 1,
        *,
        timeout: float | None = None,
        stop: Callable[[], bool] | None = None,
        evenly: bool = False,
    ) -> Batch | None:
        """Wait for ``count`` trajectories and take the oldest; None after ``timeout`` s or a stop.

        Args:
            count: at most the number of slots.
            timeout: seconds; None for no limit.
            stop: called about every millisecond while waiting.
            evenly: take equally many from every actor, ordered by (round, actor) instead of time,
                so that the result does not depend on the actors' speed.

        Raises:
            ConfigError: more than the ring has, or not a multiple of the actors.
        """
        if not 1 <= count <= self.spec.slots or (evenly and count % self.spec.actors):
            raise ConfigError(
                f"cannot take {count} trajectories at once{' evenly' if evenly else ''}. Expected "
                f"1 to {self.spec.slots}; evenly, a multiple of {self.spec.actors}."
            )
        chosen: list[int] = []

        def enough() -> bool:
            chosen[:] = self._choose(count, evenly)
            return len(chosen) == count

        if not wait_until(enough, timeout, stop):
            return None
        taken = []
        for slot in chosen:
            line = self.slot_line(slot)
            generation = generation_of(self.words[line + WORD])
            self.words[line + WORD] = word_of(READING, generation)
            actor = slot // self.spec.slots_per_actor
            taken.append(self.trajectory(slot, actor, generation, writable=False))
        return Batch(self, tuple(chosen), tuple(taken))

    def _choose(self, count: int, evenly: bool) -> list[int]:
        ready = self.waiting()
        if evenly:
            share = count // self.spec.actors
            lines = [
                sorted(found[2:] for found in ready if found[1] == actor)[:share]
                for actor in range(self.spec.actors)
            ]
            if any(len(line) < share for line in lines):
                return []
            return [line[turn][1] for turn in range(share) for line in lines]
        return [slot for _, _, _, slot in ready[:count]]

    def give_back(self, slots: tuple[int, ...]) -> None:
        """Release slots; called by :class:`Batch`."""
        fence()  # the learner's last access ends before an actor may write
        for slot in slots:
            line = self.slot_line(slot)
            self.words[line + WORD] = word_of(FREE, generation_of(self.words[line + WORD]))


class WriteSlot(Closing):
    """A slot that one actor fills in place; a ``with`` block abandons it unless committed.

    Attributes:
        slot: its number.
        trajectory: writable views with old contents: write every element.
    """

    def __init__(self, ring: TrajectoryRing, slot: int, trajectory: Trajectory) -> None:
        self.slot = slot
        self.trajectory = trajectory
        self._ring = ring
        self._open = True

    def commit(self, *, check: bool = True) -> None:
        """Hand the trajectory to the learner.

        Args:
            check: first check for NaN and values out of range; the slot stays open on an error.

        Raises:
            InputError: the spec refuses the trajectory.
            SharedMemoryError: this actor was replaced and must end.
            ConfigError: the slot is already closed.
        """
        if check:
            self._ring.spec.trajectories.check(self.trajectory)
        self._open = False
        self._ring.finish(self, ready=True)

    def close(self) -> None:
        """Abandon the slot if it was not committed."""
        if self._open:
            self._open = False
            self._ring.finish(self, ready=False)


class Batch(Closing):
    """Trajectories taken by the learner; a context manager that releases their slots.

    Attributes:
        trajectories: read-only views, oldest first; invalid after :meth:`close`.
    """

    def __init__(
        self, ring: TrajectoryRing, slots: tuple[int, ...], trajectories: tuple[Trajectory, ...]
    ) -> None:
        self.trajectories = trajectories
        self._slots = slots
        self._ring = ring

    def close(self) -> None:
        """Release the slots to their actors."""
        slots, self._slots, self.trajectories = self._slots, (), ()
        if slots:
            self._ring.give_back(slots)
