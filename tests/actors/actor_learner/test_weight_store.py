"""Weights in shared memory: the latest wins, nothing tears, nobody waits for a dead process."""

import os

import numpy as np
import pytest
from shared_memory_children import (
    child,
    delayed,
    die_while_publishing,
    pull_in_place,
    pull_versions,
    segments_of,
)

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.transport import shared_memory
from vinoreward_actors.actor_learner.transport.shared_memory import Segment
from vinoreward_actors.actor_learner.transport.weight_store import SLOTS, WeightStore
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.policies.wire import decode, encode

COUNT = 4096


def weights(version, count=COUNT):
    return [np.full(count, version, np.int64)]


@pytest.fixture
def store():
    with WeightStore.create(1 << 16) as store:
        yield store


def test_a_policy_travels():
    policy = random_policy(mlp(3, hidden=(16, 16), head="logits", actions=2), 0)
    encoded = encode(policy)
    parts = [part for _, part in encoded.parts]
    with WeightStore.create(WeightStore.capacity_for(encoded.header, parts)) as store:
        store.publish(encoded.header, parts, version=3)
        found = WeightStore.attach(store.spec).pull_if_newer()
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


def test_a_reader_waits_for_what_is_newer_and_keeps_the_one_before(store):
    mine = WeightStore.attach(store.spec)
    assert store.latest_version == -1 and mine.pull_if_newer() is None
    store.publish(b"h", weights(5), version=5)
    before = mine.wait_newer(4, timeout=1)
    assert mine.wait_newer(5, timeout=0.01) is None
    assert mine.wait_newer(5, stop=lambda: True) is None
    for version in range(6, 6 + 2 * SLOTS):
        store.publish(b"h", weights(version), version=version)
    now = mine.wait_newer(5, timeout=1)
    assert now.version == 5 + 2 * SLOTS
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
    monkeypatch.setattr(shared_memory, "fence", shared_memory.fence)  # is restored afterwards
    if most:
        delayed(most)
    with (
        WeightStore.create(WeightStore.capacity_for(b"h", weights(0, count))) as store,
        child(pull_versions, store.spec, pulls, most) as (_, first),
        child(pull_versions, store.spec, pulls) as (_, second),
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
        Segment.create(64 + 8 * count) as segment,
        child(pull_in_place, segment.spec, 200_000) as (_, connection),
    ):
        words, version = segment.words(0, 1), 0
        payload = segment.array(64, (count,), np.int64)
        while not connection.poll():
            version += 1
            payload.fill(version)
            words[0] = version
        assert connection.recv() == 1


def test_a_writer_killed_in_mid_publication_leaves_the_version_before(store):
    with child(die_while_publishing, store.spec, 1024) as (process, connection):
        assert connection.recv() == "one is whole"
        process.join()
        assert process.exitcode == -9
    for version in (1, 3, 4, 5, 6, 7):  # until its slot comes again
        if version > 1:
            store.publish(b"whole", weights(version), version=version)
        found = store.pull_if_newer()
        assert (found.version, found.header) == (version, b"whole")
        assert (found.payload.view(np.int64) == version).all()
    store.close()
    assert store.spec.segment.name not in segments_of(os.getpid())
