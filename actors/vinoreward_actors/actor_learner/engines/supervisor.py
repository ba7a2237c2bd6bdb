"""Supervises an engine's processes: deaths, hangs, restarts within a budget, messages."""

from __future__ import annotations

import abc
import contextlib
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vinoreward.errors import VinorewardError
from vinoreward_actors.actor_learner.engines.base import Event, Messages

if TYPE_CHECKING:
    from vinoreward_actors.actor_learner.engines.config import EngineConfig

MINUTE = 60.0
WATCH_EVERY = 0.1
"""Seconds between two checks for signs of life; a death is noticed at once."""
END_PATIENCE = 3.0
SAVE_PATIENCE = 10.0
"""Seconds that processes have to end by themselves; longer for a compressor, which may be in the
middle of its work and has a state to save."""


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


def too_often(name: str, restarts: int, why: str, report: str) -> str:
    """Return why training cannot go on without a process: it ended once more than allowed."""
    what = f"{name} ended {restarts + 1} times within a minute of work"
    if report.strip().rstrip(".") == why:  # say nothing twice
        return f"{what}. Expected it to run. What it said last:\n{report}"
    return f"{what} ({why}). Expected it to run. What it said last:\n{report}"


class Ended(NamedTuple):
    """How a process ended."""

    why: str  # in short
    report: str = ""  # its error_report(); empty if it sent none


class Status(NamedTuple):
    """State of a worker's process."""

    silence: float  # seconds since its last sign of life; infinity before the first
    handed: int  # things that this worker's processes have handed over, in all generations
    messages: Sequence[tuple[str, Any]] = ()  # (kind, value) since the last look
    ended: Ended | None = None  # None while it runs; the messages include its last ones
    resetting: bool = False  # it resets environments, which may take as long as a start


class Worker(abc.ABC):
    """A slot for a process: the present one is replaced when it dies or hangs.

    The name is one such as ``"actor 0"``; the number counts from 0, and the compressor comes after
    all actors.
    """

    generation = 0  # number of replacements
    started = 0.0  # time of the last start
    abandoned = False  # it is not started again

    def __init__(self, name: str, number: int, config: EngineConfig) -> None:
        self.name, self.number, self._config = name, number, config
        self.acts = number < config.actor.actors

    @abc.abstractmethod
    def start(self) -> None:
        """Start a process of the present generation; OSError if the system has no room for one."""

    @abc.abstractmethod
    def look(self) -> Status:
        """Return the state of the process; never waits."""

    @abc.abstractmethod
    def kill(self) -> bool:
        """End the process and free its resources; False if it hangs inside the kernel."""


class Supervisor:
    """Supervises workers until it is closed: replaces what dies or hangs, collects messages.

    ``wait`` returns as soon as one of the given workers has something new, or after so many
    seconds. ``failure`` says why training cannot continue.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        wait: Callable[[Sequence[Worker], float], None],
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.workers = tuple(workers)
        self.failure = ""
        self._wait = wait
        self._config = config
        self._clock = clock
        self._budgets = [RestartBudget(config.restarts, clock) for _ in self.workers]
        self._handed = [0] * len(self.workers)
        self._reports = [""] * len(self.workers)
        """The last report of each worker's processes."""
        self._lock = threading.Lock()
        self._messages = Messages()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start all processes, and a thread that supervises them; after an error, call close()."""
        for worker in self.workers:
            self._start(worker)
        self._thread = threading.Thread(target=self._watch, name="vinoreward watch", daemon=True)
        self._thread.start()

    def _start(self, worker: Worker) -> None:
        worker.start()
        worker.started = self._clock()

    def messages(self) -> Messages:
        """Return what came in since the last call."""
        with self._lock:
            messages, self._messages = self._messages, Messages()
        return messages

    def close(self) -> None:
        """Wait for processes that were asked to stop, then kill them."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        start = self._clock()
        # Messages are read to the end: a process that cannot send does not end.
        while left := [worker for worker in self.workers if self._ending(worker)]:
            saving = not all(worker.acts for worker in left)
            if self._clock() - start > (SAVE_PATIENCE if saving else END_PATIENCE):
                break
            with contextlib.suppress(VinorewardError):  # the learner has it already
                self._wait(left, WATCH_EVERY)
        for worker in self.workers:
            worker.kill()

    def _ending(self, worker: Worker) -> bool:
        """Return whether the process may still end by itself."""
        try:
            status = self._read(worker)
        except VinorewardError:
            return False  # what it sends cannot be read
        # A process that is still importing has nothing to save, and does not see the stop flag.
        return status.ended is None and status.silence < math.inf

    # In the thread

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why

    def _watch(self) -> None:
        try:
            while not self._closing.is_set() and not self.failure:
                self._wait([each for each in self.workers if not each.abandoned], WATCH_EVERY)
                self.look()
        except OSError as error:
            self._fail(
                f"a process could not be replaced: {error}. Expected room for it: memory, "
                "processes and open files."
            )
        except VinorewardError as error:
            self._fail(str(error))
        except Exception:  # noqa: BLE001  (the learner's thread raises it)
            self._fail(f"the engine broke:\n{traceback.format_exc()}")

    def look(self) -> None:
        """Look at all processes once; replace those that have ended or hang."""
        for worker in self.workers:
            if worker.abandoned:
                continue
            status = self._read(worker)
            if self._closing.is_set():
                return
            if status.ended is not None:
                self._replace(worker, status.ended)
            else:
                self._check(worker, status)

    def _read(self, worker: Worker) -> Status:
        status = worker.look()
        number = worker.number
        with self._lock:
            for kind, value in status.messages:
                self._messages.add(number, kind, value)
        if status.handed != self._handed[number]:
            self._handed[number] = status.handed
            self._budgets[number].worked()
        return status

    def _check(self, worker: Worker, status: Status) -> None:
        config, waited = self._config, self._clock() - worker.started
        longest = config.start_timeout if status.resetting else config.heartbeat
        if not worker.acts:
            longest = config.longest_push
        if status.silence < math.inf:
            if status.silence > longest:
                self._replace(worker, Ended(f"gave no sign of life for {longest:g} s"))
        elif waited > config.start_timeout:
            self._replace(worker, Ended(f"did not start in {waited:.0f} s"))

    def _replace(self, worker: Worker, ended: Ended) -> None:
        """Start a successor, or continue without one if there were too many."""
        report = self._reports[worker.number] = ended.report or self._reports[worker.number]
        if not worker.kill():
            self._fail(
                f"{worker.name} {ended.why} and cannot be ended. Expected a process that SIGKILL "
                "ends; it hangs inside the system: look at its devices and file systems."
            )
            return
        worker.generation += 1
        if self._budgets[worker.number].spend():
            self._start(worker)
            what = f"{ended.why}; replaced by generation {worker.generation}"
        else:
            worker.abandoned = True
            what = f"{ended.why}; replaced too often, training goes on without it"
        if all(each.abandoned for each in self.workers if each.acts):
            restarts = self._config.restarts
            self._fail(too_often(worker.name, restarts, ended.why, report or ended.why))
            return
        with self._lock:
            self._messages.events.append(Event(worker.name, what))
