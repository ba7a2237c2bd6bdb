"""Trajectories from actors to the learner: whole, once, in order, whoever is killed."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from shared_memory_children import (
    SPEC,
    child,
    fill,
    killed,
    marked,
    number_of,
    segments_of,
    take_and_hold,
    write_many,
    write_one_and_a_half,
)

from vinoreward.actor_learner.transport.control_block import ControlBlock
from vinoreward.actor_learner.transport.ring_slots import FREE, READING, READY, WRITING
from vinoreward.actor_learner.transport.trajectory_ring import Batch, TrajectoryRing, WriteSlot
from vinoreward.errors import ConfigError, InputError, SharedMemoryError


@pytest.fixture
def ring() -> TrajectoryRing:
    with TrajectoryRing.create(SPEC, actors=2, slots_per_actor=2) as ring:
        yield ring


def actor(ring: TrajectoryRing, number: int) -> TrajectoryRing:
    return TrajectoryRing.attach(ring.spec, number)


def numbers(batch: Batch | None) -> list[int | None]:
    assert batch is not None
    return [number_of(trajectory) for trajectory in batch.trajectories]


# What a ring does


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rewards", np.nan, "NaN"),
        ("behaviour", np.inf, "NaN or infinity"),
        ("log_mu", -np.inf, "NaN or infinity"),
        ("observations", np.nan, "NaN"),
        ("actions", SPEC.outputs, "Expected 0 to 999"),
        ("actions", -1, "Expected 0 to 999"),
        ("network", 2, "Expected 0 to 1"),
        ("versions", -1, "Expected 0 to inf"),
    ],
)
def test_values_a_learner_must_not_see_are_refused(
    ring: TrajectoryRing, name: str, value: float, message: str
) -> None:
    trajectory = marked(1)
    getattr(trajectory, name)[3, 1] = value
    writer = actor(ring, 0)
    with pytest.raises(InputError, match=message):
        writer.write(trajectory)
    slot = writer.acquire()
    assert slot is not None
    with pytest.raises(InputError, match=message), slot:
        fill(slot.trajectory, 1)
        getattr(slot.trajectory, name)[3, 1] = value
        slot.commit()
    assert ring.states() == (FREE,) * 4


def test_a_trajectory_is_read_as_it_was_written_without_a_copy(ring: TrajectoryRing) -> None:
    random = np.random.default_rng(0)
    sent = SPEC.empty()
    for name in ("observations", "next_observations", "rewards", "log_mu", "behaviour"):
        array = getattr(sent, name)
        array[...] = random.normal(size=array.shape)
    sent.terminated[3, 1] = sent.truncated[5, 0] = True
    sent.versions[...] = np.arange(SPEC.transitions).reshape(sent.versions.shape)
    assert actor(ring, 1).write(sent)
    batch = ring.take()
    assert batch is not None
    with batch:
        (found,) = batch.trajectories
        SPEC.check(found)
        assert (found.actor, found.generation) == (1, 0)
        for name, array in sent.arrays().items():
            assert np.array_equal(getattr(found, name), array)
            assert not getattr(found, name).flags.writeable
            assert not getattr(found, name).flags.owndata
        kept = found.copy()
    assert kept.rewards.flags.writeable and np.array_equal(kept.rewards, sent.rewards)
    assert ring.states() == (FREE,) * 4
    batch.close()
    assert batch.trajectories == ()


def test_the_oldest_comes_first_or_evenly_by_round(ring: TrajectoryRing) -> None:
    first, second = actor(ring, 0), actor(ring, 1)
    for writer, number in ((second, 1), (second, 2), (first, 3)):
        assert writer.write(marked(number))
    assert ring.ready() == 3
    assert ring.take(4, timeout=0.01) is None
    assert ring.take(4, evenly=True, timeout=0) is None
    with ring.take(2, evenly=True) as batch:
        assert numbers(batch) == [3, 1]
    assert first.write(marked(4))
    with ring.take(2) as batch:
        assert numbers(batch) == [2, 4]
        assert [trajectory.actor for trajectory in batch.trajectories] == [1, 0]
    for message, arguments in (("1 to 4", {"count": 5}), ("multiple of 2", {"count": 1})):
        with pytest.raises(ConfigError, match=message):
            ring.take(**arguments, evenly=True)


def test_a_writer_waits_for_a_free_slot_and_can_be_stopped(ring: TrajectoryRing) -> None:
    writer = actor(ring, 0)
    assert writer.write(marked(1)) and writer.write(marked(2))
    assert not writer.write(marked(3), timeout=0.01)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 5

    assert writer.acquire(stop=stop) is None
    assert actor(ring, 1).write(marked(9), timeout=0)  # another's slots are another's
    with ring.take() as batch:
        assert numbers(batch) == [1]
        assert not writer.write(marked(3), timeout=0)
    assert writer.write(marked(3), timeout=0)
    assert ring.take(4, stop=lambda: True) is None


def test_a_slot_is_closed_once(ring: TrajectoryRing) -> None:
    writer = actor(ring, 0)
    with pytest.raises(ConfigError, match="actor=i"):
        ring.acquire()
    with pytest.raises(ConfigError, match="Expected 0 to 1"):
        actor(ring, 2)
    with writer.acquire() as slot:
        assert ring.states()[0] == WRITING
        with pytest.raises(ConfigError, match="still open"):
            writer.acquire()
    assert ring.states()[0] == FREE
    with writer.acquire() as slot:
        fill(slot.trajectory, 4)
        slot.commit()
        with pytest.raises(ConfigError, match="already closed"):
            slot.commit()
    assert ring.states()[:2] == (READY, FREE)
    with pytest.raises(ConfigError, match="at least 1 of both"):
        TrajectoryRing.create(SPEC, 1, 0)


class Slots(RuleBasedStateMachine):
    """Any order of writing, reading, dying and coming back from the dead."""

    actors, slots = 2, 2

    @initialize()
    def begin(self) -> None:
        self.ring = TrajectoryRing.create(SMALL, self.actors, self.slots)
        self.writers = [actor(self.ring, number) for number in range(self.actors)]
        self.open: list[WriteSlot | None] = [None] * self.actors
        self.zombies: list[WriteSlot] = []
        self.batch: Batch | None = None
        self.sent: dict[int, list[int]] = defaultdict(list)  # by actor, in order
        self.number = 0

    @rule(number=st.integers(0, 1))
    def acquire(self, number: int) -> None:
        if self.open[number] is None:
            free = FREE in self.states(number)
            self.open[number] = self.writers[number].acquire(timeout=0)
            assert (self.open[number] is not None) == free

    @rule(number=st.integers(0, 1), commit=st.booleans())
    def finish(self, number: int, commit: bool) -> None:
        slot, self.open[number] = self.open[number], None
        if slot is None:
            return
        if not commit:
            slot.close()
            return
        self.number += 1
        fill(slot.trajectory, self.number)
        slot.commit()
        self.sent[number].append(self.number)

    @rule(count=st.integers(1, 4), evenly=st.booleans())
    def take(self, count: int, evenly: bool) -> None:
        if self.batch is not None or (evenly and count % self.actors):
            return
        self.batch = self.ring.take(count, timeout=0, evenly=evenly)
        share = count // self.actors
        enough = (
            all(len(self.sent[number]) >= share for number in range(self.actors))
            if evenly
            else sum(map(len, self.sent.values())) >= count
        )
        assert (self.batch is not None) == enough
        if self.batch is not None:
            found = [(one.actor, number_of(one)) for one in self.batch.trajectories]
            for number, value in found:
                assert value == self.sent[number].pop(0)
            if not evenly:
                assert [value for _, value in found] == sorted(value for _, value in found)

    @rule()
    def release(self) -> None:
        if self.batch is not None:
            self.batch.close()
            self.batch = None

    @rule(number=st.integers(0, 1))
    def writer_dies(self, number: int) -> None:
        slot, self.open[number] = self.open[number], None
        if slot is not None:
            fill(slot.trajectory, 999)
            self.zombies.append(slot)
        assert self.ring.reclaim(number) == self.writers[number].generation + 1
        self.writers[number] = actor(self.ring, number)

    @rule(commit=st.booleans())
    def zombie_comes_back(self, commit: bool) -> None:
        if self.zombies:
            slot = self.zombies.pop()
            with pytest.raises(SharedMemoryError, match="was replaced"):
                slot.commit(check=False) if commit else slot.close()

    @rule()
    def reader_dies(self) -> None:
        if self.batch is not None:
            for one in self.batch.trajectories:
                number = number_of(one)
                assert number is not None
                self.sent[one.actor] = sorted([number, *self.sent[one.actor]])
            held = len(self.batch.trajectories)
            self.batch = None
        else:
            held = 0
        assert self.ring.reclaim_reader() == held

    def states(self, number: int) -> tuple[int, ...]:
        return self.ring.states()[number * self.slots : (number + 1) * self.slots]

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        if not hasattr(self, "ring"):
            return
        reading = [one.actor for one in self.batch.trajectories] if self.batch else []
        for number in range(self.actors):
            states = self.states(number)
            assert states.count(WRITING) == (self.open[number] is not None)
            assert states.count(READY) == len(self.sent[number])
            assert states.count(READING) == reading.count(number)
        assert self.ring.ready() == sum(map(len, self.sent.values()))

    def teardown(self) -> None:
        if hasattr(self, "ring"):
            self.ring.close()


SMALL = dataclasses.replace(SPEC, steps=2)
TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def test_what_a_replaced_process_marks_as_ready_is_never_read(ring: TrajectoryRing) -> None:
    """Even if it slips past its own check: between that and its store it was stopped for long."""
    old = actor(ring, 0)
    assert old.write(marked(1))
    late = old.acquire()
    assert late is not None
    fill(late.trajectory, 2)
    ring.reclaim(0)
    old._check_current = lambda: None  # type: ignore[method-assign]
    new = actor(ring, 0)
    fresh = new.acquire()
    assert fresh is not None and fresh.slot == late.slot
    line = ring.slot_line(late.slot)
    ring.words[line] = WRITING  # generation 0, as it left it
    late.commit()
    assert ring.states()[:2] == (READY, READY)
    with ring.take() as batch:
        assert numbers(batch) == [1]
    assert ring.ready() == 0
    fill(fresh.trajectory, 3)
    with pytest.raises(SharedMemoryError, match="changed its owner"):
        fresh.commit()
    assert new.write(marked(4)) and new.write(marked(5))
    with ring.take(2) as batch:
        assert numbers(batch) == [4, 5]


# Several processes


def test_two_actors_deliver_everything_whole_once_and_in_order() -> None:
    count = 200
    with (
        TrajectoryRing.create(SPEC, 2) as ring,
        ControlBlock.create(2) as control,
        child(write_many, ring.spec, control.spec, 0, count),
        child(write_many, ring.spec, control.spec, 1, count),
    ):
        got: dict[int, list[int | None]] = defaultdict(list)
        for _ in range(count):
            with ring.take(2, timeout=60) as batch:
                for trajectory in batch.trajectories:
                    got[trajectory.actor].append(number_of(trajectory))
        assert got == {0: list(range(count)), 1: list(range(count))}
        assert ring.ready() == 0
        assert control.total("inserts") >= 2 * count - 2
        assert control.silence(0) < 60
    assert ring.spec.segment.name not in segments_of(os.getpid())


def test_a_stopped_run_ends_actors_that_wait_for_a_slot() -> None:
    with (
        TrajectoryRing.create(SPEC, 1) as ring,
        ControlBlock.create(1) as control,
        child(write_many, ring.spec, control.spec, 0, 10) as (process, connection),
    ):
        batch = ring.take(2, timeout=60)
        control.stop()
        assert connection.recv() == "done"
        process.join()
        assert process.exitcode == 0
        assert numbers(batch) == [0, 1]


def test_an_actor_killed_in_mid_write_is_replaced_and_its_half_is_never_read() -> None:
    with (
        TrajectoryRing.create(SPEC, 2) as ring,
        ControlBlock.create(2) as control,
        child(write_one_and_a_half, ring.spec, 0) as (victim, connection),
        child(write_many, ring.spec, control.spec, 1, 1000),
    ):
        assert connection.recv() == "half"
        killed(victim)
        assert WRITING in ring.states()[:2]
        assert ring.reclaim(0) == 1
        assert WRITING not in ring.states()[:2]
        with child(write_many, ring.spec, control.spec, 0, 50):
            got: dict[int, list[tuple[int, int | None]]] = defaultdict(list)
            while len(got[0]) < 51 or len(got[1]) < 50:
                with ring.take(timeout=60) as batch:
                    for trajectory in batch.trajectories:
                        got[trajectory.actor].append((trajectory.generation, number_of(trajectory)))
        # What it had committed is there, what it had half written is not, its successor goes on.
        assert got[0] == [(0, 1)] + [(1, number) for number in range(50)]
        assert got[1] == [(0, number) for number in range(len(got[1]))]
    assert ring.spec.segment.name not in segments_of(os.getpid())


def test_an_actor_that_comes_back_after_it_was_replaced_is_turned_away() -> None:
    with (
        TrajectoryRing.create(SPEC, 1) as ring,
        ControlBlock.create(1) as control,
        child(write_one_and_a_half, ring.spec, 0) as (process, connection),
    ):
        assert connection.recv() == "half"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        ring.reclaim(0)
        os.kill(process.pid, signal.SIGCONT)
        connection.send("go on")
        assert "was replaced by generation 1" in connection.recv()
        with child(write_many, ring.spec, control.spec, 0, 3):
            got = []
            for _ in range(4):
                with ring.take(timeout=60) as batch:
                    got += numbers(batch)
        assert got == [1, 0, 1, 2]


def test_what_a_killed_learner_was_reading_is_read_by_the_next(ring: TrajectoryRing) -> None:
    writer = actor(ring, 0)
    assert writer.write(marked(5)) and writer.write(marked(6))
    with child(take_and_hold, ring.spec) as (process, connection):
        assert connection.recv() == 5
        killed(process)
    assert ring.states()[:2] == (READING, READY)
    assert ring.reclaim_reader() == 1
    with ring.take(2) as batch:
        assert numbers(batch) == [5, 6]
