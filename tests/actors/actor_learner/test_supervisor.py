"""What becomes of a worker whose process dies, hangs or does not start: no process is needed."""

import dataclasses
import math

import pytest
from engine_runs import config
from hypothesis import given
from hypothesis import strategies as st

from vinoreward.errors import InputError
from vinoreward_actors.actor_learner.engines.supervisor import (
    END_PATIENCE,
    MINUTE,
    SAVE_PATIENCE,
    Ended,
    RestartBudget,
    Status,
    Supervisor,
    Worker,
)

HEARTBEAT, START_TIMEOUT = 5.0, 30.0


class Scripted(Worker):
    """A worker whose next look says what the test wants."""

    def __init__(self, name, number, settings):
        super().__init__(name, number, settings)
        self.calls = []
        self.sees = Status(math.inf, 0)
        self.dies = True
        self.broken = False

    def start(self):
        self.calls.append(f"start {self.generation}")
        self.sees = Status(math.inf, self.sees.handed)

    def look(self):
        if self.broken:
            raise InputError("what it sent cannot be read")
        found = self.sees
        self.sees = found._replace(messages=())
        return found

    def kill(self):
        self.calls.append("kill")
        if self.dies:
            self.sees = self.sees._replace(ended=Ended("killed"))
        return self.dies


class House:
    """Two actors and a compressor on a clock of the test's own; waiting lets time pass."""

    def __init__(self, restarts=1):
        self.now = 1000.0
        settings = dataclasses.replace(
            config(actors=2, heartbeat=HEARTBEAT, restarts=restarts),
            start_timeout=START_TIMEOUT,
        )
        names = enumerate(["actor 0", "actor 1", "compressor"])
        self.workers = [Scripted(name, number, settings) for number, name in names]
        self.supervisor = Supervisor(self.workers, self.wait, settings, clock=lambda: self.now)
        for worker in self.workers:
            worker.started = self.now
            worker.sees = Status(0.0, 0)

    def wait(self, workers, seconds):
        self.now += seconds

    def see(self, number, silence=0.0, **rest):
        """Let the supervisor look; return what it tells."""
        worker = self.workers[number]
        worker.sees = Status(silence, rest.pop("handed", worker.sees.handed), **rest)
        self.supervisor.look()
        return [str(event) for event in self.supervisor.messages().events]


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ({"ended": Ended("killed by signal 9")}, "killed by signal 9"),
        ({"silence": HEARTBEAT + 0.1}, "gave no sign of life for 5 s"),
    ],
)
def test_who_is_dead_or_silent_is_replaced(rest, why):
    house = House()
    assert house.see(1, silence=HEARTBEAT - 0.1) == []
    assert house.see(1, **rest) == [f"actor 1: {why}; replaced by generation 1"]
    assert house.workers[1].calls == ["kill", "start 1"]
    assert house.workers[0].calls == house.workers[2].calls == []
    # The successor has given no sign yet, and time to start.
    house.now += START_TIMEOUT - 1
    assert house.see(1, silence=math.inf) == []
    assert house.see(1) == []  # it has begun
    house.now += 2
    told = house.see(0, silence=math.inf)
    assert told == ["actor 0: did not start in 31 s; replaced by generation 1"]


def test_one_that_cannot_be_killed():
    house = House()
    house.workers[1].dies = False
    assert house.see(1, silence=HEARTBEAT + 1) == []
    assert house.workers[1].calls == ["kill"]
    failure = house.supervisor.failure
    assert "actor 1 gave no sign of life for 5 s and cannot be ended" in failure


def test_work_earns_restarts():
    house = House(restarts=1)
    for handed in range(1, 6):
        house.now += 61.0
        house.see(0, handed=handed)
        assert house.see(0, ended=Ended("over"))[0].endswith(f"generation {handed}")


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


def test_no_actor_left():
    """The last report of any of its processes is told, and a sentence once."""
    house = House(restarts=1)
    for number in (1, 1, 0):
        house.see(number, ended=Ended("it fell over", "Traceback\nRuntimeError: it fell over"))
    assert house.supervisor.failure == ""
    house.see(0, ended=Ended("killed by signal 9"))
    assert house.supervisor.failure == (
        "actor 0 ended 2 times within a minute of work (killed by signal 9). Expected it to "
        "run. What it said last:\nTraceback\nRuntimeError: it fell over"
    )
    house = House(restarts=0)
    for number in (0, 1):
        house.see(number, ended=Ended("no room", "no room."))
    assert house.supervisor.failure.count("no room") == 1


def test_a_reset_may_take_as_long_as_a_start():
    house = House()
    assert house.see(1, silence=START_TIMEOUT - 1, resetting=True) == []
    (told,) = house.see(1, silence=START_TIMEOUT + 1, resetting=True)
    assert told == "actor 1: gave no sign of life for 30 s; replaced by generation 1"


def test_messages_are_sorted_by_kind_and_read_before_a_death_counts():
    house = House()
    episode = {"env": 0, "reward": 3.0, "length": 4, "score": None}
    refused = {"version": 2, "why": "infinity"}
    sent = [("episodes", [episode]), ("refused", refused), ("alive", None)]
    house.workers[1].sees = Status(0.0, 1, sent, Ended("over"))
    house.workers[2].sees = Status(0.0, 1, [("compressor", {"version": 2})])
    house.supervisor.look()
    found = house.supervisor.messages()
    assert [(actor, each.length) for actor, each in found.episodes] == [(1, 4)]
    assert [(actor, each.version) for actor, each in found.refused] == [(1, 2)]
    assert found.compressor == [{"version": 2}]
    assert len(found.events) == 1


@pytest.mark.parametrize(("number", "patience"), [(0, END_PATIENCE), (2, SAVE_PATIENCE)])
def test_closing_waits_for_who_has_begun(number, patience):
    """A compressor is given longer: it may have its state to write."""
    house = House()
    for worker in house.workers:
        worker.sees = Status(math.inf, 0)  # still importing
    house.workers[number].sees = Status(0.1, 0)
    began = house.now
    house.supervisor.close()
    assert patience < house.now - began < patience + 0.3
    assert [worker.calls for worker in house.workers] == [["kill"]] * 3


def test_closing_waits_no_longer_than_needed_and_ends_everybody_whatever_they_sent():
    house = House()
    for worker in house.workers:
        worker.sees = Status(0.1, 0, (), Ended("ended with status 0"))
    began = house.now
    house.supervisor.close()
    assert house.now == began
    house = House()
    house.workers[1].broken = True
    house.supervisor.close()
    assert [worker.calls for worker in house.workers] == [["kill"]] * 3
