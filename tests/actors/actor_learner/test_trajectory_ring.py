"""Trajectories from actors to the learner: whole, once, in order, whoever is killed."""

import dataclasses
import os
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
    write,
    write_many,
    write_one_and_a_half,
)

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.actor_learner.transport.shared_memory import ControlBlock
from vinoreward_actors.actor_learner.transport.trajectory import ARRAYS, TrajectorySpec
from vinoreward_actors.actor_learner.transport.trajectory_ring import TrajectoryRing


@pytest.fixture
def ring():
    with TrajectoryRing.create(SPEC, actors=2, slots_per_actor=2) as ring:
        yield ring


def actor(ring, number):
    return TrajectoryRing.attach(ring.spec, number)


def numbers(batch):
    assert batch is not None
    return [number_of(trajectory) for trajectory in batch]


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
def test_values_a_learner_must_not_see_are_refused(ring, name, value, message):
    writer = actor(ring, 0)
    trajectory = writer.acquire()
    assert trajectory is not None
    fill(trajectory, 1)
    getattr(trajectory, name)[3, 1] = value
    with pytest.raises(InputError, match=message):
        writer.commit()
    assert ring.ready() == 0
    fill(trajectory, 1)
    writer.commit()
    with ring.take() as batch:
        assert numbers(batch) == [1]


def test_a_trajectory_is_read_as_it_was_written_without_a_copy(ring):
    random = np.random.default_rng(0)
    sent = SPEC.empty()
    for name in ("observations", "next_observations", "rewards", "log_mu", "behaviour"):
        array = getattr(sent, name)
        array[...] = random.normal(size=array.shape)
    sent.terminated[3, 1] = sent.truncated[5, 0] = True
    sent.versions[...] = np.arange(SPEC.transitions).reshape(sent.versions.shape)
    assert write(actor(ring, 1), sent)
    batch = ring.take()
    with batch:
        (found,) = batch
        SPEC.check(found)
        assert (found.actor, found.generation) == (1, 0)
        for name, array in sent.arrays().items():
            assert np.array_equal(getattr(found, name), array)
            assert not getattr(found, name).flags.writeable
            assert not getattr(found, name).flags.owndata
        kept = found.copy()
    assert kept.rewards.flags.writeable and np.array_equal(kept.rewards, sent.rewards)
    batch.close()
    assert list(batch) == []


def test_a_writer_waits_for_a_free_slot_and_can_be_stopped(ring):
    writer = actor(ring, 0)
    assert write(writer, marked(1)) and write(writer, marked(2))
    assert not write(writer, marked(3), timeout=0.01)
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 5

    assert writer.acquire(stop=stop) is None
    assert write(actor(ring, 1), marked(9), timeout=0)  # another's slots are another's
    with ring.take() as batch:
        assert numbers(batch) == [1]
        assert not write(writer, marked(3), timeout=0)
    assert write(writer, marked(3), timeout=0)
    assert ring.take(4, stop=lambda: True) is None


def test_a_slot_is_closed_once(ring):
    writer = actor(ring, 0)
    slot = writer.acquire()
    with pytest.raises(ConfigError, match="after each acquire"):
        writer.acquire()
    fill(slot, 4)
    writer.commit()
    with pytest.raises(ConfigError, match="no slot is open"):
        writer.commit()
    assert ring.ready() == 1


def test_what_only_an_actor_or_never_can_be_done_is_refused(ring):
    with pytest.raises(ConfigError, match="that an actor has attached"):
        ring.acquire()
    with pytest.raises(ConfigError) as caught:
        ring.take(5)
    assert caught.value.field == "count"


class Slots(RuleBasedStateMachine):
    """Any order of writing, reading and dying."""

    actors, slots = 2, 2

    @initialize()
    def begin(self):
        self.ring = TrajectoryRing.create(SMALL, self.actors, self.slots)
        self.writers = [actor(self.ring, number) for number in range(self.actors)]
        self.open = [None] * self.actors
        self.generations = [0] * self.actors
        self.batch = None
        self.sent = []  # (actor, generation, number) in order
        self.number = 0

    def _used(self, number):
        reading = [one.actor for one in self.batch] if self.batch else []
        ready = [sent[0] for sent in self.sent]
        return (reading + ready).count(number) + (self.open[number] is not None)

    @rule(number=st.integers(0, 1))
    def acquire(self, number):
        if self.open[number] is None:
            free = self._used(number) < self.slots
            self.open[number] = self.writers[number].acquire(timeout=0)
            assert (self.open[number] is not None) == free

    @rule(number=st.integers(0, 1))
    def finish(self, number):
        slot, self.open[number] = self.open[number], None
        if slot is None:
            return
        self.number += 1
        fill(slot, self.number)
        self.writers[number].commit()
        self.sent.append((number, self.generations[number], self.number))

    @rule(count=st.integers(1, 4))
    def take(self, count):
        if self.batch is not None:
            return
        self.batch = self.ring.take(count, timeout=0)
        assert (self.batch is not None) == (len(self.sent) >= count)
        if self.batch is not None:
            found = [(one.actor, one.generation, number_of(one)) for one in self.batch]
            assert found == self.sent[:count]
            del self.sent[:count]

    @rule()
    def release(self):
        if self.batch is not None:
            self.batch.close()
            self.batch = None

    @rule(number=st.integers(0, 1))
    def writer_dies(self, number):
        self.open[number] = None
        self.ring.reclaim(number)
        self.generations[number] += 1
        generation = self.generations[number]
        self.writers[number] = TrajectoryRing.attach(self.ring.spec, number, generation)

    @invariant()
    def every_trajectory_is_accounted_for(self):
        if hasattr(self, "ring"):
            assert self.ring.ready() == len(self.sent)

    def teardown(self):
        if hasattr(self, "ring"):
            self.ring.close()


SMALL = dataclasses.replace(SPEC, steps=2)
TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


# Several processes


def test_an_actor_killed_in_mid_write_is_replaced_and_its_half_is_never_read():
    with (
        TrajectoryRing.create(SPEC, 2) as ring,
        ControlBlock.create(2, ("inserts",)) as control,
        child(write_one_and_a_half, ring.spec, 0) as (victim, connection),
        child(write_many, ring.spec, control.spec, 1, 1000),
    ):
        assert connection.recv() == "half"
        killed(victim)
        ring.reclaim(0)
        with child(write_many, ring.spec, control.spec, 0, 50, 1):
            got = defaultdict(list)
            while len(got[0]) < 51 or len(got[1]) < 50:
                with ring.take(timeout=60) as batch:
                    for trajectory in batch:
                        got[trajectory.actor].append((trajectory.generation, number_of(trajectory)))
        # What it had committed is there, what it had half written is not, its successor goes on.
        assert got[0] == [(0, 1)] + [(1, number) for number in range(50)]
        assert got[1] == [(0, number) for number in range(len(got[1]))]
    assert ring.spec.segment.name not in segments_of(os.getpid())


# What a trajectory is


def test_the_layout_is_aligned_and_does_not_overlap():
    spec = TrajectorySpec(5, 3, (7, 2), "uint8", (2,), 4)
    end = 0
    for name, at in spec.fields().items():
        assert at.offset % 64 == 0 and at.offset >= end, name
        end = at.offset + at.nbytes
    assert tuple(spec.fields()) == ARRAYS
    assert spec.nbytes >= end and spec.nbytes % 64 == 0
    assert spec.transitions == 15
    empty = spec.empty(actor=3, generation=1)
    spec.check(empty)
    assert empty.observations.shape == empty.next_observations.shape == (5, 3, 7, 2)
    assert empty.actions.shape == (5, 3, 2) and empty.actions.dtype == np.float32
    assert (empty.actor, empty.generation) == (3, 1)


def test_sizes_shapes_dtypes_and_continuous_actions_are_checked():
    spec = dataclasses.replace(SPEC, action_shape=(2,))
    good = spec.empty()
    spec.check(good)
    with pytest.raises(InputError, match="the same version of vinoreward"):
        spec.view(np.zeros(spec.nbytes - 1, np.uint8))
    with pytest.raises(InputError, match=r"rewards .*float64.*Expected float32"):
        spec.check(dataclasses.replace(good, rewards=good.rewards.astype(np.float64)))
    with pytest.raises(InputError, match=r"actions .*\(16, 2, 3\).*Expected"):
        spec.check(dataclasses.replace(good, actions=np.zeros((16, 2, 3), np.float32)))
    good.actions[0, 0, 0] = 1.01
    with pytest.raises(InputError, match=r"Expected -1\.0 to 1\.0"):
        spec.check(good)
