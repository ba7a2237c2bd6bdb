"""Child processes: starting and ending them, what they report, and what they run.

Children import this module too, so nothing heavy stands at the top.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from vinoreward.actor_learner.acting.actor import Actor, ActorConfig
from vinoreward.actor_learner.acting.environments import EnvironmentSpec
from vinoreward.actor_learner.acting.evaluation import FIRST_SEED, Evaluator, receive_policy
from vinoreward.actor_learner.compressor import Compressor, CompressorConfig
from vinoreward.actor_learner.engines.local.links import (
    Inbox,
    LocalActorLink,
    LocalCompressorLink,
    Shared,
    send,
)
from vinoreward.actor_learner.engines.supervisor import Ended, error_report, in_short
from vinoreward.actor_learner.limiter import SamplesPerInsert
from vinoreward.child_python import forget_safe_path, starting_processes
from vinoreward.interrupts import STOPS
from vinoreward.policies.backends.base import BackendOutputs

TERMINATED_GRACE = 30.0
"""Seconds after SIGTERM in which the learner may save what it has, and end this process itself."""
SIGN_EVERY = 0.5
"""Seconds between two signs of life of an evaluation."""
FAILED = 3
"""Exit status of a process that reported its error."""
JOIN_TIMEOUT = 5.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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


class Child:
    """A child process, and after it the next one of the same name.

    Args:
        name: such as ``"actor 0"``.
        entry: what it runs; its last argument is a pipe to report to.
    """

    def __init__(self, name: str, entry: Callable[..., None]) -> None:
        self.name = name
        self._entry = entry
        self._process: SpawnProcess | None = None
        self._inbox: Inbox | None = None
        self._error = ""
        """The report of the error that ended it."""

    def start(self, *arguments: Any) -> None:
        """Start a process; the one before has ended.

        Raises:
            OSError: the system has no room for one.
            ConfigError: see :func:`~vinoreward.child_python.starting_processes`.
        """
        context = multiprocessing.get_context("spawn")
        reading, writing = context.Pipe(duplex=False)
        self._inbox = Inbox(reading)
        self._error = ""
        try:
            self._process = context.Process(
                target=self._entry,
                args=(*arguments, writing),
                name=f"vinoreward {self.name}",
                daemon=True,
            )
            # They share the cores: each computes on one thread.
            with starting_processes(dict.fromkeys(THREADS, "1")), without_interrupts():
                self._process.start()
        finally:
            writing.close()

    @property
    def alive(self) -> bool:
        """Whether there is a running process."""
        return self._process is not None and self._process.is_alive()

    @property
    def handles(self) -> list[Any]:
        """What becomes ready when the process ends or says something."""
        found: list[Any] = []
        if self._process is not None:
            found.append(self._process.sentinel)
        if self._inbox is not None and self._inbox.pipe is not None:
            found.append(self._inbox.pipe)
        return found

    def messages(self) -> list[tuple[str, Any]]:
        """Return kinds and values of what it said; an error is kept for :meth:`ended`."""
        found = []
        for message in [] if self._inbox is None else self._inbox.read():
            if message["kind"] == "error":
                self._error = str(message["value"])
            else:
                found.append((str(message["kind"]), message["value"]))
        return found

    def ended(self) -> Ended:
        """Return in words how the process ended; read its messages first."""
        code = None if self._process is None else self._process.exitcode
        if self._error:
            return Ended(in_short(self._error), self._error)
        return Ended(
            f"killed by signal {-code}" if code and code < 0 else f"ended with status {code}"
        )

    def kill(self) -> None:
        """End the process, if there is one; does not wait for that."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> bool:
        """End the process now, whatever it does, also if it is stopped; return whether it is gone.

        Only a process that hangs inside the kernel is not.
        """
        if self._process is not None:
            self._process.kill()
            self._process.join(JOIN_TIMEOUT)
            if self._process.is_alive():
                return False
            self._process.close()
            self._process = None
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None
        return True


# In the child


def _end_with_parent() -> None:
    """End this process as soon as the learner's is gone: nothing is left to act for."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    wait([parent.sentinel])
    os._exit(1)


def _end_later(number: int, frame: object) -> None:
    """End this process if the learner, which has been asked to end as well, does not do it."""
    late = threading.Timer(TERMINATED_GRACE, os._exit, (1,))
    late.daemon = True
    late.start()


def _prepare() -> None:
    forget_safe_path()
    # The learner decides what Ctrl-C and SIGTERM mean; they reach all processes of a terminal, or
    # of a job, at once. Until here they were blocked (see Child.start).
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_later)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


@contextlib.contextmanager
def _reporting(pipe: Connection) -> Iterator[None]:
    """Send what is to be said of whatever goes wrong, then end; the supervisor decides."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner is told)
        with contextlib.suppress(OSError):
            send(pipe, "error", error_report(error))
        os._exit(FAILED)


def run_actor(
    config: ActorConfig,
    shared: Shared,
    limiter: SamplesPerInsert | None,
    number: int,
    generation: int,
    pipe: Connection,
) -> None:
    """Run one actor until training is over."""
    _prepare()
    with _reporting(pipe):
        link = LocalActorLink(shared, number, pipe, limiter)
        Actor(config, link, number, generation, link.rollouts).run()


def run_evaluator(
    environment: EnvironmentSpec,
    backend: str,
    episodes: int,
    requests: Connection,
    pipe: Connection,
) -> None:
    """Play each pair of policies that is asked for until this process is ended."""
    _prepare()
    with _reporting(pipe):
        told = 0.0

        def stepped() -> None:
            nonlocal told
            if time.monotonic() - told > SIGN_EVERY:
                told = time.monotonic()
                send(pipe, "alive", None)

        seeds = range(FIRST_SEED, FIRST_SEED + episodes)
        with Evaluator(environment, backend, stepped) as evaluator:
            while (full := receive_policy(requests)) is not None:
                pair = evaluator.pair(full, receive_policy(requests), seeds)
                send(pipe, "evaluated", pair.to_dict())


def run_compressor(
    config: CompressorConfig, shared: Shared, process: int, batch: int, pipe: Connection
) -> None:
    """Run the compressor until training is over."""
    _prepare()
    with _reporting(pipe):
        link = LocalCompressorLink(shared, process, pipe)
        with BackendOutputs(batch) as outputs:
            Compressor(config, link, batch, outputs).run()
