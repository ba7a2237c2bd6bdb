"""Engines with processes: calls under way, deaths, hangs, and restarts within a budget.

The learner's thread asks each actor for trajectories and the compressor for newer weights. Whatever
ends a process costs the calls that it was working on, and it has a successor.
"""

from __future__ import annotations

import abc
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from vinoreward.errors import VinorewardError
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.engines.base import (
    LOOK_EVERY,
    Engine,
    EngineError,
    Event,
    Messages,
    not_running,
)
from vinoreward_actors.actor_learner.transport.link import NONE, ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.policies.policy import Policy

Observations = npt.NDArray[np.generic]
MINUTE = 60.0
SAVE_PATIENCE = 10.0
"""Seconds that the compressor has at the end, for its work under way and to save its state."""


class Ended(NamedTuple):
    """How a process ended."""

    why: str  # in short
    report: str = ""  # its error_report(); empty if it sent none


class RestartBudget:
    """Limits the restarts of a process within a minute of its work.

    Work is the time from a start to the last trajectory, or compressed weights, that it handed
    over. Wall time would not do: hangs and failed starts are noticed too late to happen often
    within a minute. A process that works for minutes between two crashes is restarted for ever.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._since = clock()
        """Time of the last start or handover."""
        self._work = 0.0
        """Seconds of all generations."""
        self._spent: deque[float] = deque()

    def worked(self) -> None:
        """Note that the process has handed something over."""
        now = self._clock()
        self._work += now - self._since
        self._since = now

    def spend(self) -> bool:
        """Count a restart, which is to follow at once; return False if there were too many."""
        while self._spent and self._work - self._spent[0] > MINUTE:
            self._spent.popleft()
        if len(self._spent) >= self._limit:
            return False
        self._spent.append(self._work)
        self._since = self._clock()
        return True


class Worker(abc.ABC):
    """A slot for a process: the present one is replaced when it dies or hangs.

    The name is one such as ``"actor 0"``; the number counts from 0, and the compressor comes after
    all actors.
    """

    generation = 0  # number of replacements
    begun = False  # it takes calls
    calls = 0  # under way
    here = 0  # trajectories that the learner has not released yet
    resetting = False  # it resets environments, which may take as long as a start
    abandoned = False  # it is not started again
    sign = 0.0  # time of the last sign of life, of the start, or of a call of an idle process
    report = ""  # the last one of any generation

    def __init__(self, name: str, number: int, config: EngineConfig) -> None:
        self.name, self.number, self._config = name, number, config
        self.acts = number < config.run.actors
        self.budget = RestartBudget(config.run.restarts)

    @abc.abstractmethod
    def start(self) -> None:
        """Start a process of the present generation; OSError if the system has no room for one."""

    @abc.abstractmethod
    def call(self, settings: ActorSettings, observations: Observations | None) -> None:
        """Ask for a trajectory, or for the newest weights in compressed form."""

    @abc.abstractmethod
    def messages(self) -> list[tuple[str, Any]]:
        """Return kinds and values of what came since the last look; never waits.

        ``"begun"``: it takes calls. ``"resetting"``: whether it resets. ``"filled"``: the counts
        and the trajectory of a call. ``"compressed"``: whether a call gave compressed weights.
        ``"ended"``: how it :class:`Ended`; the last message. Others are for :class:`Messages`.
        """

    def release(self, trajectory: Trajectory) -> None:
        """Reuse the memory of a trajectory that the learner does not need any more."""
        self.here -= 1

    @abc.abstractmethod
    def end(self) -> bool:
        """End the process and free its resources; False if it hangs inside the kernel."""

    def hangs(self, now: float) -> str:
        """Return why the process counts as hung at a time; empty if it does not."""
        config, silence = self._config, now - self.sign
        if not self.begun:
            longest = config.start_timeout
            return f"did not start in {silence:.0f} s" if silence > longest else ""
        longest = config.longest_push
        if self.acts:
            longest = config.start_timeout if self.resetting else config.run.heartbeat
        hung = self.calls > 0 and silence > longest
        return f"gave no sign of life for {longest:g} s" if hung else ""


AnyWorker = TypeVar("AnyWorker", bound=Worker)


class WorkerEngine(Engine, Generic[AnyWorker]):
    """An engine that calls workers; a subclass opens, starts, wakes and closes them."""

    ahead = 1
    """Calls of an actor that may be under way at once."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._workers: list[AnyWorker] = []
        self._version = NONE
        self._asked = (NONE, 0)
        """Version and save request that the compressor was called for last."""
        self._failure = ""

    def _begin(self) -> None:
        for worker in self._workers:
            self._start(worker)

    def _start(self, worker: AnyWorker) -> None:
        worker.begun, worker.calls, worker.resetting = False, 0, False
        worker.sign = time.monotonic()
        worker.start()

    @abc.abstractmethod
    def _wait(self, workers: Sequence[AnyWorker], seconds: float) -> None:
        """Return as soon as one of the workers has something new, or after so many seconds."""

    # Calls

    def _call_all(self) -> None:
        """Ask processes for what is allowed; first the actors that have least to do."""
        able = [one for one in self._workers if one.begun and not one.abandoned]
        for worker in sorted(able, key=lambda one: one.calls + one.here):
            if not worker.acts:
                newest = (self._version, self._settings.save)
                if worker.calls == 0 and newest != self._asked:
                    self._asked = newest
                    self._call(worker)
                continue
            room = self._config.slots_per_actor - worker.here
            while worker.calls < min(self.ahead, room) and self._may_insert(self._under_way()):
                self._call(worker)

    def _under_way(self) -> int:
        return sum(worker.calls for worker in self._workers if worker.acts)

    def _call(self, worker: AnyWorker) -> None:
        if worker.calls == 0:
            worker.sign = time.monotonic()
        worker.calls += 1
        worker.call(self._settings, None if worker.acts else self._observations)

    def _look(self, seconds: float) -> None:
        """Take what workers have sent, waiting for so long; replace those that ended or hang."""
        if not self._workers:
            raise not_running()
        self._call_all()
        if seconds > 0:
            self._wait([one for one in self._workers if not one.abandoned], seconds)
        for worker in self._workers:
            if not worker.abandoned and not self._failure:
                self._read(worker)
        self._call_all()

    def _read(self, worker: AnyWorker) -> None:
        try:
            messages = worker.messages()
        except VinorewardError as error:  # what it sends cannot be read
            messages = [("ended", Ended(str(error)))]
        for kind, value in messages:
            worker.sign = time.monotonic()
            if kind == "ended":
                self._replace(worker, value)
                return
            self._take(worker, kind, value)
        if why := worker.hangs(time.monotonic()):
            self._replace(worker, Ended(why))

    def _take(self, worker: AnyWorker, kind: str, value: Any) -> None:
        if kind == "begun":
            worker.begun = True
        elif kind == "resetting":
            worker.resetting = value
        elif kind == "filled":
            counts, trajectory = value
            self._counters.update(counts)
            self._ready.append(trajectory)
            worker.calls -= 1
            worker.here += 1
            worker.budget.worked()
        elif kind == "compressed":
            worker.calls -= 1
            if value:
                worker.budget.worked()
        else:
            self._messages.add(worker.number, kind, value)

    def _replace(self, worker: AnyWorker, ended: Ended) -> None:
        """Start a successor, or continue without one if there were too many."""
        worker.report = ended.report or worker.report
        if not worker.end():
            self._failure = (
                f"{worker.name} {ended.why} and cannot be ended. Expected a process that SIGKILL "
                "ends; it hangs inside the system: look at its devices and file systems."
            )
            return
        worker.generation += 1
        worker.calls = 0
        if not worker.acts:
            self._asked = (NONE, self._asked[1])
        if worker.budget.spend():
            try:
                self._start(worker)
            except OSError as error:
                self._failure = (
                    f"a process could not be replaced: {error}. Expected room for it: memory, "
                    "processes and open files."
                )
            what = f"{ended.why}; replaced by generation {worker.generation}"
        else:
            worker.abandoned = True
            what = f"{ended.why}; replaced too often, training goes on without it"
        if all(each.abandoned for each in self._workers if each.acts):
            restarts, report = self._config.run.restarts, worker.report or ended.why
            self._failure = too_often(worker.name, restarts, ended.why, report)
            return
        self._messages.events.append(Event(worker.name, what))

    @property
    def _save_is_due(self) -> bool:
        """Whether the compressor was not called since the last request to save its state."""
        return self._settings.save > self._asked[1]

    # The learner's side

    def publish(self, policy: Policy) -> None:
        """See :meth:`Engine.publish`."""
        super().publish(policy)
        self._version = policy.version

    def _collect(self, count: int, deadline: float) -> bool:
        self._look(0.0)
        while len(self._ready) < count:
            left = deadline - time.monotonic()
            if self._failure:
                raise EngineError(self._failure)
            if left <= 0:
                return False
            self._look(min(left, LOOK_EVERY))
        return True

    def _release(self, trajectories: Sequence[Trajectory]) -> None:
        for one in trajectories:
            if self._workers:
                self._workers[one.actor].release(one)

    def waiting(self) -> int:
        """See :meth:`Engine.waiting`."""
        self._look(0.0)
        return super().waiting()

    def messages(self) -> Messages:
        """See :meth:`Engine.messages`."""
        self._look(0.0)
        if self._failure and not self._ready:
            raise EngineError(self._failure)
        return super().messages()


def too_often(name: str, restarts: int, why: str, report: str) -> str:
    """Return why training cannot go on without a process: it ended once more than allowed."""
    what = f"{name} ended {restarts + 1} times within a minute of work"
    if report.strip().rstrip(".") == why:  # say nothing twice
        return f"{what}. Expected it to run. What it said last:\n{report}"
    return f"{what} ({why}). Expected it to run. What it said last:\n{report}"
