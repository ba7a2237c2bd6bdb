"""Shared memory: reserved when it is made, private, and gone when its maker is gone."""

import os
import subprocess
import sys

import numpy as np
import pytest
from full_disk import nearly_full_disk
from shared_memory_children import SHARED_MEMORY, segments_of

from vinoreward.errors import ConfigError, SharedMemoryError
from vinoreward_actors.actor_learner.transport.shared_memory import (
    ControlBlock,
    Segment,
    SegmentSpec,
    wait_until,
)
from vinoreward_actors.actor_learner.transport.weight_store import WeightStore


def python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_segment_is_zeroed_private_reserved_and_removed():
    with Segment.create(1 << 20) as segment:
        path = SHARED_MEMORY / segment.spec.name
        found = path.stat()
        assert found.st_mode & 0o777 == 0o600
        assert found.st_blocks * 512 >= 1 << 20  # pages are there: no SIGBUS later
        view = segment.array(64, (4,), np.float32)
        assert view.ctypes.data % 64 == 0 and not view.any()
        with Segment.attach(segment.spec) as other:
            segment.words(0, 1)[0] = 5
            assert other.words(0, 1)[0] == 5
            with pytest.raises(ConfigError, match="multiple of 64"):
                other.array(8, (1,), np.float32)
            with pytest.raises(ConfigError, match="inside"):
                other.array(0, (1 << 20,), np.float32)
        assert path.exists()
    assert not path.exists()
    view[0] = 1.0  # a view outlives its segment
    segment.close()
    with pytest.raises(SharedMemoryError, match="closed"):
        segment.array(0, (1,), np.uint8)
    with pytest.raises(SharedMemoryError, match="cannot open"):
        Segment.attach(segment.spec)


def test_what_cannot_be_attached_or_reserved_is_refused():
    before = segments_of(os.getpid())
    expected = pytest.raises(SharedMemoryError, match=r"64 bytes\. Expected 128")
    with Segment.create(64) as segment, expected:
        Segment.attach(SegmentSpec(segment.spec.name, 128))
    for size in (1 << 50, 1 << 80):
        with pytest.raises(SharedMemoryError, match=r"cannot reserve .* MB .*are free.*shm-size"):
            Segment.create(size)
    with pytest.raises(SharedMemoryError, match="cannot reserve"):
        WeightStore.create(1 << 50)
    with pytest.raises(ConfigError, match="at least 1"):
        Segment.create(0)
    # A full file system is an error at creation, too.
    with nearly_full_disk(4096), pytest.raises(SharedMemoryError, match="cannot reserve"):
        Segment.create(1 << 20)
    assert segments_of(os.getpid()) == before


CREATE = """
import os, sys
from vinoreward_actors.actor_learner.transport.shared_memory import Segment
segment = Segment.create(4096)
print(os.getpid(), segment.spec.name, flush=True)
"""
KILL = "import signal; os.kill(os.getpid(), signal.SIGKILL)"


def test_a_creator_that_forgets_to_close_leaves_nothing_and_says_nothing():
    done = python(CREATE)
    pid, name = done.stdout.split()
    assert done.returncode == 0 and done.stderr == ""
    assert segments_of(int(pid)) == []
    assert name.startswith(f"vinoreward_{pid}_")


def test_a_process_that_attaches_and_ends_does_not_remove_the_segment():
    attach = (
        "import sys; from vinoreward_actors.actor_learner.transport.shared_memory import *;"
        "s = Segment.attach(SegmentSpec(sys.argv[1], 64)); s.words(0, 1)[0] = 7"
    )
    with Segment.create(64) as segment:
        done = python(attach, segment.spec.name)
        assert (done.returncode, done.stderr) == (0, "")
        assert (SHARED_MEMORY / segment.spec.name).exists()
        assert segment.words(0, 1)[0] == 7


def test_a_killed_creator_is_cleaned_up_after():
    done = python(CREATE + KILL)
    assert done.returncode == -9
    pid = int(done.stdout.split()[0])
    assert wait_until(lambda: segments_of(pid) == [], timeout=30)


# Words that processes share


def test_control_words_are_shared():
    with ControlBlock.create(2, ("steps", "inserts")) as mine:
        theirs = ControlBlock.attach(mine.spec)
        assert not theirs.stopped
        mine.learner_version, mine.samples = 12, 34
        theirs.add(1, "steps", 5)
        theirs.add(1, "steps")
        mine.add(0, "steps", 2)
        assert (theirs.learner_version, theirs.samples) == (12, 34)
        assert (mine.count(1, "steps"), mine.total("steps"), mine.total("inserts")) == (6, 8, 0)
        assert mine.silence(1) == float("inf")
        theirs.beat(1)
        assert 0 <= mine.silence(1) < 60
        mine.reset_beat(1)
        assert mine.silence(1) == float("inf") and mine.count(1, "steps") == 6
        mine.stop()
        assert theirs.stopped
