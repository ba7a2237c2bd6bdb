"""Weights in shared memory: the latest wins, a lease holds, nothing tears."""

import os

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from shared_memory_children import (
    InPlace,
    child,
    die_while_publishing,
    hold_a_lease,
    killed,
    pull_in_place,
    pull_versions,
    segments_of,
)

from vinoreward.errors import ConfigError, SharedMemoryError
from vinoreward_actors.actor_learner.transport.shared_memory import Segment
from vinoreward_actors.actor_learner.transport.weight_store import WeightStore
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.policies.wire import decode, encode

COUNT = 4096


def weights(version, count=COUNT):
    return [np.full(count, version, np.int64)]


@pytest.fixture
def store():
    with WeightStore.create(readers=2, capacity=1 << 16) as store:
        yield store


def reader(store, number=0):
    return WeightStore.attach(store.spec, number)


# What a store does


def test_a_policy_travels_without_a_copy():
    policy = random_policy(mlp(3, hidden=(16, 16), head="logits", actions=2), 0)
    encoded = encode(policy)
    parts = [part for _, part in encoded.parts]
    with WeightStore.create(1, WeightStore.capacity_for(encoded.header, parts)) as store:
        store.publish(encoded.header, parts, version=3)
        lease = reader(store).pull_if_newer()
        with lease:
            assert lease.version == 3
            assert lease.payload.ctypes.data % 64 == 0
            assert not lease.payload.flags.writeable
            found = decode(lease.header, lease.payload)
            for name, value in policy.parameters.items():
                assert np.array_equal(found.parameters[name], value)
                assert np.shares_memory(found.parameters[name], lease.payload)


def test_arrays_of_any_layout_start_at_multiples_of_64_bytes(store):
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.zeros((0, 3), np.int8),
        np.array(5, np.int64),
        np.arange(10, dtype=np.int8)[::2],
    ]
    store.publish(b"", arrays, version=0)
    lease = reader(store).pull_if_newer()
    assert lease.header == b""
    assert np.array_equal(lease.payload[:24].view(np.float32).reshape(3, 2), arrays[0])
    assert lease.payload[64:72].view(np.int64)[0] == 5
    assert np.array_equal(lease.payload[128:].view(np.int8), arrays[3])


def test_a_reader_waits_for_what_is_newer(store):
    mine = reader(store)
    assert store.latest_version == -1
    store.publish(b"h", weights(5), version=5)
    assert mine.wait_newer(5, timeout=0.01) is None
    assert mine.wait_newer(5, stop=lambda: True) is None
    again = mine.wait_newer(4, timeout=1)
    assert again.version == 5


def test_a_pull_ends_the_lease_before_it_and_a_release_ends_only_its_own(store):
    mine = reader(store)
    store.publish(b"h", weights(1), version=1)
    old = mine.pull_if_newer()
    new = mine.pull_if_newer()
    assert old is not None and new is not None
    with pytest.raises(SharedMemoryError, match="ended"):
        _ = old.payload
    old.close()
    assert store.leased(0) == 1
    new.close()
    new.close()
    assert store.leased(0) == -1


def test_what_cannot_be_published_is_refused_and_the_latest_stays(store):
    store.publish(b"h", weights(4), version=4)
    with pytest.raises(ConfigError, match=r"after 4.*higher"):
        store.publish(b"h", weights(4), version=4)
    with pytest.raises(ConfigError, match="larger capacity"):
        store.publish(b"h", weights(5, 1 << 16), version=5)
    with pytest.raises(ConfigError, match="Expected numbers"):
        store.publish(b"h", [np.array([None])], version=5)
    with pytest.raises(ConfigError, match="reader=i"):
        store.pull_if_newer()
    with pytest.raises(ConfigError, match="Expected 0 to 1"):
        reader(store, 2)
    with pytest.raises(ConfigError, match="254"):
        WeightStore.create(255, 64)
    lease = reader(store).pull_if_newer()
    assert lease.version == 4


class Leases(RuleBasedStateMachine):
    """Any order of publications, pulls, releases and deaths: what is leased stays as it was."""

    readers = 3

    @initialize()
    def begin(self):
        self.store = WeightStore.create(self.readers, 1024)
        self.mine = [reader(self.store, number) for number in range(self.readers)]
        self.held = [None] * self.readers
        self.version = -1

    @rule(step=st.integers(1, 3))
    def publish(self, step):
        self.version += step
        self.store.publish(b"h", weights(self.version, 64), version=self.version)

    @rule(number=st.integers(0, 2), behind=st.integers(0, 2))
    def pull(self, number, behind):
        lease = self.mine[number].pull_if_newer(self.version - behind)
        if behind == 0 or self.version < 0:
            assert lease is None
        else:
            assert lease.version == self.version
            self.held[number] = lease

    @rule(number=st.integers(0, 2))
    def release(self, number):
        lease = self.held[number]
        if lease is not None:
            lease.close()
        self.held[number] = None

    @rule(number=st.integers(0, 2))
    def die_and_be_replaced(self, number):
        self.held[number] = None
        self.store.reclaim(number)
        self.mine[number] = reader(self.store, number)

    @invariant()
    def leases_hold(self):
        for number, lease in enumerate(getattr(self, "held", [])):
            if lease is None:
                assert self.store.leased(number) == -1
            else:
                assert self.store.leased(number) == lease.version
                assert (lease.payload.view(np.int64) == lease.version).all()

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# Several processes


@pytest.mark.slow
def test_no_pull_of_100_000_is_torn_under_constant_publication():
    count, pulls = 40_000, 50_000  # 320 kB
    with (
        WeightStore.create(2, WeightStore.capacity_for(b"h", weights(0, count))) as store,
        child(pull_versions, store.spec, 0, pulls) as (_, first),
        child(pull_versions, store.spec, 1, pulls) as (_, second),
    ):
        array, version = np.zeros(count, np.int64), 0
        while not (first.poll() and second.poll()):
            version += 1
            array.fill(version)
            store.publish(b"h", [array], version=version)
        for connection in (first, second):
            torn, done = connection.recv()
            assert torn == 0 and done >= pulls


@pytest.mark.slow
def test_a_buffer_that_is_overwritten_in_place_tears():
    """The test above can fail: the same readers, with the same check, on a buffer without slots."""
    count = 40_000
    with (
        Segment.create(64 + 8 * count) as segment,
        child(pull_in_place, segment.spec, 200_000) as (_, connection),
    ):
        buffer, array, version = InPlace(segment), np.zeros(count, np.int64), 0
        while not connection.poll():
            version += 1
            array.fill(version)
            buffer.publish(array, version)
        torn, _ = connection.recv()
    assert torn == 1


def test_a_killed_reader_holds_nobody_up_and_its_lease_is_reclaimed(store):
    store.publish(b"h", weights(1), version=1)
    with child(hold_a_lease, store.spec, 0) as (process, connection):
        assert connection.recv() == 1
        other = reader(store, 1)
        lease = other.pull_if_newer()
        killed(process)
        for version in range(2, 20):
            store.publish(b"h", weights(version), version=version)
        assert store.leased(0) == 1
        assert lease is not None and (lease.payload.view(np.int64) == 1).all()
        store.reclaim(0)
        assert store.leased(0) == -1
        lease = reader(store, 0).pull_if_newer(1)
        assert lease.version == 19
    store.close()
    assert store.spec.segment.name not in segments_of(os.getpid())


def test_a_writer_killed_in_mid_publication_leaves_the_version_before(store):
    with child(die_while_publishing, store.spec, 1024) as (process, connection):
        assert connection.recv() == "one is whole"
        process.join()
        assert process.exitcode == -9
    mine = reader(store)
    lease = mine.pull_if_newer()
    assert lease is not None and (lease.version, lease.header) == (1, b"whole")
    assert (lease.payload.view(np.int64) == 1).all()
    store.publish(b"h", weights(3), version=3)
    assert (lease.payload.view(np.int64) == 1).all()
    lease = mine.pull_if_newer(1)
    assert lease is not None and (lease.payload.view(np.int64) == 3).all()
