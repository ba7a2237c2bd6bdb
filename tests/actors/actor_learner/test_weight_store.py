"""Weights in shared memory: the latest wins, nothing tears, nobody waits for a dead process."""

import numpy as np
import pytest
from shared_memory_children import (
    child,
    delayed,
    die_while_publishing,
    pull_in_place,
    pull_versions,
)

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.transport import weight_store
from vinoreward_actors.actor_learner.transport.memory import SharedMemory
from vinoreward_actors.actor_learner.transport.weight_store import SLOTS, WeightStore
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.policies.wire import decode, encode

COUNT = 4096


def weights(version, count=COUNT):
    return [np.full(count, version, np.int64)]


@pytest.fixture
def store():
    with WeightStore(1 << 16) as store:
        yield store


def test_a_policy_travels():
    policy = random_policy(mlp(3, hidden=(16, 16), head="logits", actions=2), 0)
    encoded = encode(policy)
    parts = [part for _, part in encoded.parts]
    with WeightStore(WeightStore.capacity_for(encoded.header, parts)) as store:
        store.publish(encoded.header, parts, version=3)
        found = store.pull_if_newer()
        assert found.version == 3
        assert found.payload.ctypes.data % 64 == 0
        parameters = decode(found.header, found.payload).parameters
        for name, value in policy.parameters.items():
            assert np.array_equal(parameters[name], value)
            assert np.shares_memory(parameters[name], found.payload)


def test_arrays_of_any_layout_start_at_multiples_of_64_bytes(store):
    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.zeros((0, 3), np.int8),
        np.array(5, np.int64),
        np.arange(10, dtype=np.int8)[::2],
    ]
    store.publish(b"", arrays, version=0)
    found = store.pull_if_newer()
    assert found.header == b""
    assert np.array_equal(found.payload[:24].view(np.float32).reshape(3, 2), arrays[0])
    assert found.payload[64:72].view(np.int64)[0] == 5
    assert np.array_equal(found.payload[128:].view(np.int8), arrays[3])


def test_a_reader_keeps_the_one_before(store):
    assert store.latest_version == -1 and store.pull_if_newer() is None
    store.publish(b"h", weights(5), version=5)
    before = store.pull_if_newer(4)
    assert store.pull_if_newer(5) is None
    for version in range(6, 6 + 2 * SLOTS):
        store.publish(b"h", weights(version), version=version)
    now = store.pull_if_newer(5)
    assert now.version == store.latest_version == 5 + 2 * SLOTS
    for found in (before, now):
        assert (found.payload.view(np.int64) == found.version).all()


def test_what_cannot_be_published_is_refused_and_the_latest_stays(store):
    store.publish(b"h", weights(4), version=4)
    with pytest.raises(ConfigError, match=r"after 4.*higher"):
        store.publish(b"h", weights(4), version=4)
    with pytest.raises(ConfigError, match="larger capacity"):
        store.publish(b"h", weights(5, 1 << 16), version=5)
    assert store.pull_if_newer().version == 4


# Several processes


@pytest.mark.slow
@pytest.mark.parametrize(("count", "pulls", "most"), [(40_000, 10_000, 0.0), (400, 200, 2e-3)])
def test_nothing_is_torn_under_constant_publication(monkeypatch, count, pulls, most):
    """Nor with a delay at each point where the order of two accesses matters."""
    monkeypatch.setattr(weight_store, "fence", weight_store.fence)  # is restored afterwards
    if most:
        delayed(most)
    with (
        WeightStore(WeightStore.capacity_for(b"h", weights(0, count))) as store,
        child(pull_versions, store, pulls, most) as (_, first),
        child(pull_versions, store, pulls) as (_, second),
    ):
        array, version = np.zeros(count, np.int64), 0
        while not (first.poll() and second.poll()):
            version += 1
            array.fill(version)
            store.publish(b"h", [array], version=version)
        assert (first.recv(), second.recv()) == (0, 0)


@pytest.mark.slow
def test_a_buffer_that_is_overwritten_in_place_tears():
    """The test above can fail: the same check on a buffer without slots."""
    count = 40_000
    with (
        SharedMemory.create(64 + 8 * count) as memory,
        child(pull_in_place, memory, 200_000) as (_, connection),
    ):
        words, version = memory.words(1), 0
        payload = memory.array(64, (count,), np.int64)
        while not connection.poll():
            version += 1
            payload.fill(version)
            words[0] = version
        assert connection.recv() == 1


def test_a_writer_killed_in_mid_publication_leaves_the_version_before(store):
    with child(die_while_publishing, store, 1024) as (process, connection):
        assert connection.recv() == "one is whole"
        process.join()
        assert process.exitcode == -9
    for version in (1, 3, 4, 5, 6, 7):  # until its slot comes again
        if version > 1:
            store.publish(b"whole", weights(version), version=version)
        found = store.pull_if_newer()
        assert (found.version, found.header) == (version, b"whole")
        assert (found.payload.view(np.int64) == version).all()
