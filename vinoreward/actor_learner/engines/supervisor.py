"""Looks after an engine's processes: deaths, hangs, restarts within a budget, messages.

The same for processes of one machine and of a cluster: both are a :class:`Worker` here.
"""

from __future__ import annotations

import abc
import contextlib
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vinoreward.actor_learner.acting.environments import Episode
from vinoreward.actor_learner.acting.network import Refused
from vinoreward.actor_learner.transport.link import NONE
from vinoreward.errors import VinorewardError

MINUTE = 60.0
WATCH_EVERY = 0.1
"""Seconds between two looks at signs of life; a death is noticed at once."""
END_PATIENCE = 3.0
SAVE_PATIENCE = 10.0
"""Seconds that processes are given to end by themselves; a compressor may be in mid-work, and has
its state to write down."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a process, in words.

    Attributes:
        who: such as ``"actor 0"``.
        what: in words.
    """

    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


@dataclass
class Messages:
    """What came in since the last look.

    Attributes:
        episodes: (actor, episode) pairs.
        compressor: its reports, see :mod:`vinoreward.actor_learner.compressor`.
        events: what happened to processes.
        refused: (actor, weights) pairs: compressed ones that it could not act with.
    """

    episodes: list[tuple[int, Episode]] = field(default_factory=list)
    compressor: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    refused: list[tuple[int, Refused]] = field(default_factory=list)


class RestartBudget:
    """So many restarts of a process within a minute of its work.

    Its work is the time from a start to the last thing that it handed over: a trajectory, or
    compressed weights. What comes after that is not counted, nor is a life in which nothing was
    handed over, however long it took to end. A process that hangs is noticed only after a
    heartbeat, one that never begins after the start timeout, and a minute of the clock would be
    over before either could happen often; here each of them brings the end nearer, whatever these
    times are. One that works for minutes between two crashes may go on for ever.

    Args:
        limit: how many.
        clock: seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._since = clock()
        """When the process was started, or handed something over."""
        self._work = 0.0
        """Seconds, of all those that have had this place."""
        self._spent: deque[float] = deque()

    def worked(self) -> None:
        """Note that the process has handed something over."""
        now = self._clock()
        self._work += now - self._since
        self._since = now

    def spend(self) -> bool:
        """Count a restart, which is to follow at once; False if there were too many."""
        while self._spent and self._work - self._spent[0] > MINUTE:
            self._spent.popleft()
        if len(self._spent) >= self._limit:
            return False
        self._spent.append(self._work)
        self._since = self._clock()
        return True


def error_report(error: BaseException) -> str:
    """Return what a process says of the error that ends it.

    An error of :mod:`vinoreward.errors` says what was found, expected and to be done, on one line;
    of anything else only the traceback says where it came from.
    """
    if isinstance(error, VinorewardError):
        return " ".join(str(error).split())
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def in_short(report: str) -> str:
    """Return the last line of a report, to be put into a sentence."""
    return report.strip().splitlines()[-1].rstrip(".")


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        why: in short.
        report: its :func:`error_report`; empty if it sent none.
    """

    why: str
    report: str = ""


class Status(NamedTuple):
    """What is seen of a worker's process.

    Attributes:
        silence: seconds since it last gave a sign of life; infinity before the first.
        handed: how much this worker's processes have handed over, ever; for the restart budget.
        messages: (kind, value) pairs that it has sent since the last look.
        ended: None while it runs. All that it sent before is in ``messages`` then.
    """

    silence: float
    handed: int
    messages: Sequence[tuple[str, Any]] = ()
    ended: Ended | None = None


class Worker(abc.ABC):
    """A place for a process, and the one that has it now.

    Three methods, as a supervisor does three things with a process that nothing else can tell it
    how to: starts it, looks at it, and kills it. What follows from a look is the supervisor's.

    Args:
        name: such as ``"actor 0"``.
        number: of the process, from 0; compressors come after all actors.

    Attributes:
        generation: how many times the process was replaced.
        started: when the present one was started.
        abandoned: it is not started again.
        waits_for: where to see what a process that could not be started yet waits for; such a
            process has not failed. Empty if there is one.
        hint: where to look if the process ended without a report.
    """

    hint = ""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.generation = 0
        self.started = 0.0
        self.abandoned = False
        self.waits_for = ""

    @abc.abstractmethod
    def start(self) -> None:
        """Start a process of the present generation.

        Raises:
            OSError: the system has no room for one.
            VinorewardError: it cannot be started for another reason.
        """

    @abc.abstractmethod
    def look(self) -> Status:
        """Return what is seen of the process; never waits."""

    @abc.abstractmethod
    def kill(self) -> bool:
        """End the process, also a stopped one, and take back what it held for the next generation.

        Returns:
            Whether it is gone. One that hangs inside the kernel is not.
        """

    @property
    def pulled(self) -> int:
        """The newest version of any weights that the present process has pulled, -1 for none."""
        return NONE


class Supervisor:
    """Looks after workers until it is closed: replaces what dies or hangs, collects messages.

    Args:
        workers: not started yet, by number.
        wait: returns as soon as one of the workers that it is given has something new, or after so
            many seconds.
        actors: how many of the workers are actors.
        heartbeat: seconds of silence after which a process counts as hung.
        start_timeout: seconds that a process may take to start.
        restarts: of each process within a minute of its work.
        all_needed: no process can be done without.
        clock: seconds.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        wait: Callable[[Sequence[Worker], float], None],
        *,
        actors: int,
        heartbeat: float,
        start_timeout: float,
        restarts: int,
        all_needed: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.workers = tuple(workers)
        self._wait = wait
        self._actors = actors
        self._heartbeat, self._start_timeout = heartbeat, start_timeout
        self._restarts = restarts
        self._all_needed = all_needed
        self._clock = clock
        self._budgets = [RestartBudget(restarts, clock) for _ in self.workers]
        self._handed = [0] * len(self.workers)
        self._reports = [""] * len(self.workers)
        """The last report that any process of a worker sent."""
        self._lock = threading.Lock()
        self._messages = Messages()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure = ""
        """Why training cannot go on, in words."""

    def start(self) -> None:
        """Start all processes, and a thread that looks after them.

        Raises:
            OSError: the system has no room for them; call :meth:`close`.
        """
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
            found, self._messages = self._messages, Messages()
        return found

    def tell(self, who: str, what: str) -> None:
        """Add an event to the messages."""
        with self._lock:
            self._messages.events.append(Event(who, what))

    def fail(self, why: str) -> None:
        """Say why training cannot go on; the first reason counts."""
        self.failure = self.failure or why

    def close(self) -> None:
        """Wait for processes that were told to stop, then end them."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        start = self._clock()
        # Messages are read to the end: a process that cannot send does not end.
        while left := [worker for worker in self.workers if self._ending(worker)]:
            saving = any(worker.number >= self._actors for worker in left)
            if self._clock() - start > (SAVE_PATIENCE if saving else END_PATIENCE):
                break
            with contextlib.suppress(VinorewardError):  # of which the learner was told already
                self._wait(left, WATCH_EVERY)
        for worker in self.workers:
            worker.kill()

    def _ending(self, worker: Worker) -> bool:
        """Whether to wait for a process's own end."""
        try:
            status = self._read(worker)
        except VinorewardError:
            return False  # what it sends cannot be read
        # One that is still importing has nothing to put in order, and does not look at what it is
        # told.
        return status.ended is None and status.silence < math.inf

    # In the thread

    def _watch(self) -> None:
        try:
            while not self._closing.is_set() and not self.failure:
                self._wait([each for each in self.workers if not each.abandoned], WATCH_EVERY)
                self.look()
        except OSError as error:
            self.fail(
                f"a process could not be replaced: {error}. Expected room for it: memory, "
                "processes and open files."
            )
        except VinorewardError as error:
            self.fail(str(error))
        except Exception:  # noqa: BLE001  (the learner's thread raises it)
            self.fail(f"the engine broke:\n{traceback.format_exc()}")

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
                self._check(worker, status.silence)

    def _read(self, worker: Worker) -> Status:
        status = worker.look()
        number = worker.number
        with self._lock:
            for kind, value in status.messages:
                if kind == "episodes":
                    self._messages.episodes += [(number, Episode(**row)) for row in value]
                elif kind == "compressor":
                    self._messages.compressor.append(value)
                elif kind == "refused":
                    self._messages.refused.append((number, Refused(**value)))
        if status.handed != self._handed[number]:
            self._handed[number] = status.handed
            self._budgets[number].worked()
        return status

    def _check(self, worker: Worker, silence: float) -> None:
        now = self._clock()
        waited = now - worker.started
        if silence < math.inf:
            if silence > self._heartbeat:
                self._replace(worker, Ended(f"gave no sign of life for {self._heartbeat:g} s"))
        elif waited > self._start_timeout:
            what = f"did not start in {waited:.0f} s"
            if worker.waits_for:
                self.tell(worker.name, f"{what} ({worker.waits_for}); it may yet")
                worker.started = now
            else:
                self._replace(worker, Ended(what))

    def _replace(self, worker: Worker, ended: Ended) -> None:
        """Start a successor, or do without if there were too many."""
        self._reports[worker.number] = ended.report or self._reports[worker.number]
        if not worker.kill():
            self.fail(
                f"{worker.name} {ended.why} and cannot be ended. Expected a process that SIGKILL "
                "ends; it hangs inside the system: look at its devices and file systems."
            )
            return
        worker.generation += 1
        if self._budgets[worker.number].spend():
            self._start(worker)
            self.tell(worker.name, f"{ended.why}; replaced by generation {worker.generation}")
            return
        worker.abandoned = True
        nobody = all(each.abandoned for each in self.workers[: self._actors])
        if nobody or self._all_needed:
            but = "" if nobody else "; with a fixed lag nothing can go on without it"
            self.fail(self._too_often(worker, ended.why, but))
        else:
            self.tell(worker.name, f"{ended.why}; replaced too often, training goes on without it")

    def _too_often(self, worker: Worker, why: str, but: str) -> str:
        times = self._restarts + 1
        what = f"{worker.name} ended {times} times within a minute of work"
        report = self._reports[worker.number] or why + worker.hint
        # Nothing is said twice: neither a sentence nor that there was none.
        if report.strip() == why:
            return f"{what} ({why}). Expected it to run{but}."
        about = "" if report.strip().rstrip(".") == why else f" ({why})"
        return f"{what}{about}. Expected it to run{but}. What it said last:\n{report}"
