"""A thread that watches child processes: death, silence, restarts within a budget, messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

from vinoreward.actor_learner.acting.environments import Episode
from vinoreward.actor_learner.acting.network import Refused
from vinoreward.actor_learner.engines.base import Event, Messages
from vinoreward.actor_learner.engines.budget import RestartBudget
from vinoreward.actor_learner.engines.error_report import ended_too_often
from vinoreward.actor_learner.engines.local.children import Child

WATCH_EVERY = 0.1
"""Seconds between two looks at heartbeats; a death is noticed at once."""
END_PATIENCE = 3.0
SAVE_PATIENCE = 10.0
"""Seconds that children are given to end by themselves; a compressor may be in mid-work, and has
its state to write down."""


class Supervisor:
    """Looks after actors, and a compressor, until it is closed.

    Args:
        children: not started yet, in the order of their numbers; from ``actors`` on no actors.
        actors: how many there are.
        silence: seconds since a number's process gave a sign of life, infinite before the first.
        handed: how much a number's processes have handed over, ever; for the budget of restarts.
        release: takes back what a dead process held and prepares the next generation.
        heartbeat: seconds of silence after which a process counts as hung.
        start_timeout: seconds that a process may take to start.
        restarts: of each process within a minute of its work.
        all_needed: no process can be done without.
    """

    def __init__(
        self,
        children: Sequence[Child],
        *,
        actors: int,
        silence: Callable[[int], float],
        handed: Callable[[int], int],
        release: Callable[[Child], None],
        heartbeat: float,
        start_timeout: float,
        restarts: int,
        all_needed: bool,
    ) -> None:
        self._children = list(children)
        self._actors = actors
        self._silence = silence
        self._handed = handed
        self._had = [handed(child.number) for child in self._children]
        self._release = release
        self._heartbeat = heartbeat
        self._start_timeout = start_timeout
        self._restarts = restarts
        self._budgets = [RestartBudget(restarts) for _ in self._children]
        self._all_needed = all_needed
        self._lock = threading.Lock()
        self._messages = Messages()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure = ""
        """Why training cannot go on, in words."""

    def start(self) -> None:
        """Start all processes, and watch.

        Raises:
            OSError: the system has no room for them; call :meth:`close`.
        """
        for child in self._children:
            child.start()
        self._thread = threading.Thread(target=self._watch, name="vinoreward watch", daemon=True)
        self._thread.start()

    def messages(self) -> Messages:
        """Return what came in since the last call."""
        with self._lock:
            found, self._messages = self._messages, Messages()
        return found

    def close(self) -> None:
        """Wait for processes that were told to stop, then end them."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        start = time.monotonic()
        while True:
            self._read_all()
            left = [child for child in self._children if child.alive and self._began(child)]
            saving = any(child.number >= self._actors for child in left)
            patience = SAVE_PATIENCE if saving else END_PATIENCE
            if not left or time.monotonic() - start > patience:
                break
            # Messages are read to the end: a process that cannot send does not end.
            wait([handle for child in left for handle in child.handles], WATCH_EVERY)
        for child in self._children:
            child.end()
        self._children = []

    # In the thread

    def _watch(self) -> None:
        ended = "the thread that looks after processes ended. See the traceback it left above."
        try:
            while not self._closing.is_set() and not self.failure:
                self._look()
            ended = ""
        except OSError as error:
            ended = (
                f"a process could not be replaced: {error}. Expected room for it: memory, "
                "processes and open files."
            )
        finally:
            self.failure = self.failure or ended

    def _look(self) -> None:
        watched = [child for child in self._children if not child.abandoned]
        wait([handle for child in watched for handle in child.handles], WATCH_EVERY)
        for child in watched:
            # Before its messages: the last of them are there when it is gone.
            alive = child.alive
            self._read(child)
            self._count(child.number)
            if self._closing.is_set():
                return
            if not alive:
                self._replace(child, child.why())
            elif self._hung(child):
                self._replace(child, f"gave no sign of life for {self._heartbeat:g} s")

    def _count(self, number: int) -> None:
        handed = self._handed(number)
        if handed != self._had[number]:
            self._had[number] = handed
            self._budgets[number].worked()

    def _began(self, child: Child) -> bool:
        # One that is still importing has nothing to put in order, and does not look at what it is
        # told.
        return self._silence(child.number) != float("inf")

    def _hung(self, child: Child) -> bool:
        silence = self._silence(child.number)
        if silence == float("inf"):
            return time.monotonic() - child.started > self._start_timeout
        return silence > self._heartbeat

    def _replace(self, child: Child, why: str) -> None:
        """Start a successor, or do without if there were too many."""
        if not child.end():
            self.failure = (
                f"{child.name} {why} and cannot be ended. Expected a process that SIGKILL ends; "
                "it hangs inside the system: look at its devices and file systems."
            )
            return
        self._release(child)
        if self._budgets[child.number].spend():
            child.start()
            self._tell(child, f"{why}; replaced by generation {child.generation}")
            return
        child.abandoned = True
        nobody = all(each.abandoned for each in self._children if each.number < self._actors)
        if nobody or self._all_needed:
            but = "" if nobody else "; with a fixed lag nothing can go on without it"
            words = child.said or why + _HINT
            self.failure = ended_too_often(child.name, self._restarts + 1, why, but, words)
        else:
            self._tell(child, f"{why}; replaced too often, training goes on without it")

    def _tell(self, child: Child, what: str) -> None:
        with self._lock:
            self._messages.events.append(Event(child.name, what))

    def _read_all(self) -> None:
        for child in self._children:
            self._read(child)

    def _read(self, child: Child) -> None:
        for kind, value in child.messages():
            self._take(child.number, kind, value)

    def _take(self, number: int, kind: str, value: Any) -> None:
        with self._lock:
            if kind == "episodes":
                self._messages.episodes += [(number, Episode(**row)) for row in value]
            elif kind == "compressor":
                self._messages.compressor.append(value)
            elif kind == "refused":
                self._messages.refused.append((number, Refused(**value)))


_HINT = (
    ". Nothing: see what it wrote to the terminal. A script that starts a training needs its "
    'code below `if __name__ == "__main__":`, as processes that are started import it.'
)
