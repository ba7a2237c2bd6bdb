"""Shared memory: reserved when it is made, without a name, and gone with its last process."""

import os

import numpy as np
import pytest
from full_disk import nearly_full_disk
from shared_memory_children import child

from vinoreward.errors import ConfigError, SharedMemoryError
from vinoreward_actors.actor_learner.transport.memory import SharedMemory
from vinoreward_actors.actor_learner.transport.weight_store import WeightStore


def add_one(connection, memory):
    memory.words(1)[0] += 1
    connection.send(memory.size)


def test_it_is_zeroed_reserved_nameless_and_shared_with_children():
    names = sorted(os.listdir("/dev/shm"))
    with SharedMemory.create(1 << 20) as memory:
        assert sorted(os.listdir("/dev/shm")) == names
        view = memory.array(64, (4,), np.float32)
        assert view.ctypes.data % 64 == 0 and not view.any()
        memory.words(1)[0] = 5
        for found in (6, 7):  # also those that are started later
            with child(add_one, memory) as (_, connection):
                assert connection.recv() == 1 << 20
            assert memory.words(1)[0] == found
        with pytest.raises(ConfigError, match="multiple of 64"):
            memory.array(8, (1,), np.float32)
        with pytest.raises(ConfigError, match="inside"):
            memory.array(0, (1 << 20,), np.float32)
    view[0] = 1.0  # a view outlives it
    memory.close()
    with pytest.raises(SharedMemoryError, match="closed"):
        memory.array(0, (1,), np.uint8)


def test_what_cannot_be_reserved_is_refused():
    before = len(os.listdir("/proc/self/fd"))
    for size in (1 << 50, 1 << 80):
        with pytest.raises(SharedMemoryError, match=r"cannot reserve .* MB .*shm-size"):
            SharedMemory.create(size)
    with pytest.raises(SharedMemoryError, match="cannot reserve"):
        WeightStore(1 << 50)
    # A full file system is an error at once, too.
    with nearly_full_disk(4096), pytest.raises(SharedMemoryError, match="cannot reserve"):
        SharedMemory.create(1 << 20)
    assert len(os.listdir("/proc/self/fd")) == before
