"""How often a process may be replaced: whatever it dies of, not for ever without any work."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
from engine_runs import check_nothing_left, config, event, started, until
from hypothesis import given
from hypothesis import strategies as st

from vinoreward_actors.actor_learner.engines import supervisor
from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.engines.supervisor import MINUTE, RestartBudget


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lives(budget: RestartBudget, clock: Clock, work: list[float], dying: list[float]) -> list[bool]:
    """Live until a successor is refused: work in two parts, die slowly. Say what came of each."""
    answers = []
    for seconds, slowly in zip(work, dying, strict=True):
        for _ in range(2 if seconds else 0):
            clock.now += seconds / 2
            budget.worked()
        clock.now += slowly
        answers.append(budget.spend())
        if not answers[-1]:
            break
    return answers


seconds = st.integers(1, 1000).map(float)


class TestRestartBudget:
    @given(limit=st.integers(0, 5), dying=st.lists(seconds, min_size=6, max_size=20))
    def test_lives_without_work_end_whatever_they_take(
        self, limit: int, dying: list[float]
    ) -> None:
        """A hang is noticed after a heartbeat, a start that fails after minutes."""
        clock = Clock()
        found = lives(RestartBudget(limit, clock), clock, [0.0] * len(dying), dying)
        assert found == [True] * limit + [False]

    @given(limit=st.integers(1, 5), dying=st.lists(seconds, min_size=6, max_size=20))
    def test_enough_work_between_crashes_is_never_refused(
        self, limit: int, dying: list[float]
    ) -> None:
        clock = Clock()
        work = [MINUTE / limit + 1.0] * len(dying)
        assert all(lives(RestartBudget(limit, clock), clock, work, dying))

    @given(
        limit=st.integers(0, 5),
        each=st.lists(st.tuples(st.integers(0, 90).map(float), seconds), max_size=40),
    )
    def test_restarts_in_any_minute_of_work_and_all_in_all(
        self, limit: int, each: list[tuple[float, float]]
    ) -> None:
        clock = Clock()
        work = [w for w, _ in each]
        found = lives(RestartBudget(limit, clock), clock, work, [d for _, d in each])
        # Work that is over at each death: what a death takes is in none of it.
        over = list(accumulate(work[: len(found)]))
        for index, (now, granted) in enumerate(zip(over, found, strict=True)):
            before = sum(now - MINUTE <= earlier for earlier in over[:index])
            assert granted == (before < limit)
        assert sum(found) <= limit * (1 + sum(work) / MINUTE)


@pytest.fixture
def brief_minute(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hang takes longer to be noticed than a budget takes to be earned back by the clock."""
    monkeypatch.setattr(supervisor, "MINUTE", 0.5)
    yield
    check_nothing_left()


class TestHangs:
    @pytest.mark.slow
    @pytest.mark.usefixtures("brief_minute")
    def test_an_environment_that_hangs_at_its_first_step(self) -> None:
        kwargs = {"fault": "sleep", "at": 1}
        with started(config(kwargs=kwargs, heartbeat=1.0, restarts=1)) as engine:
            assert event(engine).what.endswith("for 1 s; replaced by generation 1")
            said = "actor 0 ended 2 times within a minute of work .gave no sign of life for 1 s"
            with pytest.raises(EngineError, match=said):
                until(lambda: engine.messages().events)

    @pytest.mark.slow
    @pytest.mark.usefixtures("brief_minute")
    def test_one_that_hangs_in_the_middle_of_its_work(self) -> None:
        """Work earns restarts: a successor has always done something when it hangs."""
        kwargs = {"fault": "sleep", "at": 9 * 300 + 1}
        with started(config(kwargs=kwargs, heartbeat=1.0, restarts=1)) as engine:
            for generation in (1, 2):
                found = event(engine).what
                assert found.endswith(f"replaced by generation {generation}")
