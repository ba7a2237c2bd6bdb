"""Child processes, one after another in the same place: starting, ending, what they report."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from typing import Any

from vinoreward.actor_learner.engines.error_report import in_short
from vinoreward.actor_learner.engines.local.messages import Inbox
from vinoreward.child_python import starting_processes
from vinoreward.interrupts import STOPS

JOIN_TIMEOUT = 5.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Entry = Callable[..., None]
Arguments = Callable[[int], tuple[Any, ...]]
"""Arguments of a child's function, without the pipe, for a generation of it."""


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Let children started in this block not be interrupted before they say what they want of it.

    Ctrl-C reaches all processes of a terminal, SIGTERM often all of a job: also those that are
    still importing.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class Child:
    """One place for a process, and the process that has it now.

    Attributes:
        name: such as ``"actor 0"``.
        number: in the control block.
        entry: what it runs.
        arguments: of that, but for the pipe, which comes last.
        generation: how many times it was replaced.
        abandoned: it is not started again.
        error: the sentence or traceback that the process sent.
        said: the last one that any process here sent.
    """

    name: str
    number: int
    entry: Entry
    arguments: Arguments
    generation: int = 0
    abandoned: bool = False
    error: str = ""
    said: str = ""
    process: SpawnProcess | None = None
    started: float = 0.0
    _inbox: Inbox | None = None

    def start(self) -> None:
        """Start a process of the present generation.

        Raises:
            OSError: the system has no room for one.
            ConfigError: see :func:`~vinoreward.child_python.starting_processes`.
        """
        context = multiprocessing.get_context("spawn")
        reading, writing = context.Pipe(duplex=False)
        self._inbox = Inbox(reading)
        try:
            arguments = (*self.arguments(self.generation), writing)
            self.process = context.Process(
                target=self.entry, args=arguments, name=f"vinoreward {self.name}", daemon=True
            )
            # They share the cores: each computes on one thread.
            with starting_processes(dict.fromkeys(THREADS, "1")), without_interrupts():
                self.process.start()
        finally:
            writing.close()
        self.error = ""
        self.started = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether there is a running process."""
        return self.process is not None and self.process.is_alive()

    @property
    def handles(self) -> list[Any]:
        """What becomes ready when the process ends or says something."""
        found: list[Any] = []
        if self.process is not None:
            found.append(self.process.sentinel)
        if self._inbox is not None and self._inbox.pipe is not None:
            found.append(self._inbox.pipe)
        return found

    def messages(self) -> list[tuple[str, Any]]:
        """Return kinds and values of what it said; keeps its last words in :attr:`error`."""
        found = []
        for message in [] if self._inbox is None else self._inbox.read():
            if message["kind"] == "error":
                self.error = self.said = str(message["value"])
            else:
                found.append((str(message["kind"]), message["value"]))
        return found

    def why(self) -> str:
        """Return in words how the process ended."""
        code = None if self.process is None else self.process.exitcode
        if self.error:
            return in_short(self.error)
        if code is not None and code < 0:
            return f"killed by signal {-code}"
        return f"ended with status {code}"

    def end(self) -> bool:
        """End the process now, whatever it does, also if it is stopped; return whether it is gone.

        Only a process that hangs inside the kernel is not.
        """
        if self.process is not None:
            self.process.kill()
            self.process.join(JOIN_TIMEOUT)
            if self.process.is_alive():
                return False
            self.process.close()
            self.process = None
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None
        return True
