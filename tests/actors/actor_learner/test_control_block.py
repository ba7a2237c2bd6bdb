"""Words that processes share: stop, versions, heartbeats, counters."""

from __future__ import annotations

import re

import pytest

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.transport.shared_memory import ControlBlock


def test_control_words_are_shared() -> None:
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


def test_control_words_that_do_not_exist_are_refused() -> None:
    with ControlBlock.create(1, [f"c{number}" for number in range(20)]) as block:
        block.add(0, "c19")
        assert block.total("c19") == 1
        with pytest.raises(ConfigError, match=re.escape("Expected 0 to 0")):
            block.beat(1)
        with pytest.raises(ConfigError, match="no counter 'nothing'"):
            block.count(0, "nothing")
    with pytest.raises(ConfigError, match="every name once"):
        ControlBlock.create(1, ("a", "a"))
