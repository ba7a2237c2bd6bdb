"""How often a process that dies is replaced: no process is needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vinoreward_actors.actor_learner.engines.workers import MINUTE, RestartBudget, too_often

seconds = st.integers(1, 1000).map(float)


@given(
    limit=st.integers(0, 5),
    lives=st.lists(st.tuples(st.integers(0, 90).map(float), seconds), max_size=40),
)
def test_restarts_are_limited_in_any_minute_of_work(limit, lives):
    """However long a death takes to be noticed: that is no work, and earns nothing."""
    now, over = 1000.0, 0.0
    budget = RestartBudget(limit, lambda: now)
    deaths = []  # by the work that was over
    for work, dying in lives:
        for _ in range(2 if work else 0):
            now += work / 2
            budget.worked()
        now += dying
        over += work
        granted = budget.spend()
        assert granted == (sum(over - MINUTE <= earlier for earlier in deaths) < limit)
        deaths.append(over)
        if not granted:
            break
    assert len(deaths) - 1 <= limit * (1 + over / MINUTE)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("no room.", "of work. Expected it to run. What it said last:\nno room."),
        (
            "Traceback\nE: no",
            "of work (no room). Expected it to run. What it said last:\nTraceback",
        ),
    ],
)
def test_a_sentence_is_said_once(report, said):
    found = too_often("actor 0", 1, "no room", report)
    assert found.startswith(f"actor 0 ended 2 times within a minute {said}")
