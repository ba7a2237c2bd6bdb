"""Child processes: starting and ending them, what they report, and the one of evaluations.

Children import this module too, so nothing heavy is imported at the top.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from vinoreward.processes import STOPS, THREADS, forget_safe_path, starting_processes
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.acting.evaluation import FIRST_SEED, Evaluator
from vinoreward_actors.actor_learner.engines.base import error_report, in_short
from vinoreward_actors.actor_learner.engines.workers import Ended
from vinoreward_actors.policies.wire import load_policy

TERMINATED_GRACE = 30.0
"""Seconds after SIGTERM in which the learner may save its state and end this process."""
SIGN_EVERY = 0.1
"""Seconds between two signs of life."""
FAILED = 3
"""Exit status of a process that reported its error."""
JOIN_TIMEOUT = 5.0
CHUNK = 1 << 16


def send(pipe: Connection, kind: str, value: Any) -> None:
    """Write a message, plain data, as a line of JSON; waits while the pipe is full.

    Not with ``Connection.send_bytes``: the learner would wait for the rest of a message of a
    stopped child, and would not notice that the child hangs.
    """
    data = memoryview(json.dumps({"kind": kind, "value": value}).encode() + b"\n")
    while data:
        data = data[os.write(pipe.fileno(), data) :]


class Inbox:
    """Reads messages from a pipe; never waits."""

    def __init__(self, pipe: Connection) -> None:
        os.set_blocking(pipe.fileno(), False)
        self.pipe: Connection | None = pipe
        """None, and closed, when there can be no more messages."""
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the complete messages; half a message of a dead child is dropped."""
        while self.pipe is not None:
            try:
                data = os.read(self.pipe.fileno(), CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the pipe."""
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None


class Child:
    """A child process, and after it the next one of the same name.

    It runs ``entry``, whose last argument is a pipe to report to.
    """

    def __init__(self, name: str, entry: Callable[..., None]) -> None:
        self.name = name
        self._entry = entry
        self._process: SpawnProcess | None = None
        self._inbox: Inbox | None = None
        self._error = ""
        """The report of the error that ended it."""

    def start(self, *arguments: Any) -> None:
        """Start a process; the one before has ended. OSError if the system has no room."""
        with starting_processes():
            resource_tracker.ensure_running()  # before: its start unblocks signals
        context = multiprocessing.get_context("spawn")
        reading, writing = context.Pipe(duplex=False)
        process = context.Process(
            target=self._entry,
            args=(*arguments, writing),
            name=f"vinoreward {self.name}",
            daemon=True,
        )
        # Ctrl-C and SIGTERM often reach all processes of a terminal or of a job. The child unblocks
        # them when it handles them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            # They share the cores: each computes on one thread.
            with starting_processes(dict.fromkeys(THREADS, "1")):
                process.start()
        except BaseException:
            reading.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            writing.close()
        self._process, self._inbox, self._error = process, Inbox(reading), ""

    @property
    def alive(self) -> bool:
        """Whether there is a running process."""
        return self._process is not None and self._process.is_alive()

    @property
    def handles(self) -> list[Any]:
        """What becomes ready when the process ends or sends something."""
        pipe = None if self._inbox is None else self._inbox.pipe
        sentinel = None if self._process is None else self._process.sentinel
        return [handle for handle in (sentinel, pipe) if handle is not None]

    def messages(self) -> list[tuple[str, Any]]:
        """Return kinds and values of what it sent; its error report goes to :meth:`ended`."""
        messages = []
        for message in [] if self._inbox is None else self._inbox.read():
            if message["kind"] == "error":
                self._error = str(message["value"])
            else:
                messages.append((str(message["kind"]), message["value"]))
        return messages

    def ended(self) -> Ended:
        """Return how the process ended; read its messages first."""
        code = None if self._process is None else self._process.exitcode
        if self._error:
            return Ended(in_short(self._error), self._error)
        return Ended(
            f"killed by signal {-code}" if code and code < 0 else f"ended with status {code}"
        )

    def kill(self) -> None:
        """Kill the process, if there is one; does not wait for its end."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> bool:
        """Kill the process, also a stopped one; False if it hangs inside the kernel."""
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
    """End this process with the learner's."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _end_later(number: int, frame: object) -> None:
    """End this process if the learner, which got SIGTERM as well, does not do so in time."""
    late = threading.Timer(TERMINATED_GRACE, os._exit, (1,))
    late.daemon = True
    late.start()


@contextlib.contextmanager
def reporting(pipe: Connection) -> Iterator[None]:
    """Run a child's work in this block; on an error, send its report and end the process."""
    forget_safe_path()
    # The learner handles Ctrl-C and SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_later)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        yield
    except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner gets it)
        with contextlib.suppress(OSError):
            send(pipe, "error", error_report(error))
        os._exit(FAILED)


def run_evaluator(
    environment: EnvironmentSpec,
    backend: str,
    episodes: int,
    requests: Connection,
    pipe: Connection,
) -> None:
    """Evaluate each pair of policies that arrives, until this process is ended."""
    with reporting(pipe):
        last_sign = 0.0

        def on_step() -> None:
            nonlocal last_sign
            if time.monotonic() - last_sign > SIGN_EVERY:
                last_sign = time.monotonic()
                send(pipe, "alive", None)

        seeds = range(FIRST_SEED, FIRST_SEED + episodes)
        with Evaluator(environment, backend, on_step) as evaluator:
            while True:
                folder, paired = requests.recv()
                full = load_policy(f"{folder}/full.json")
                compressed = load_policy(f"{folder}/compressed.json") if paired else None
                pair = evaluator.pair(full, compressed, seeds)
                send(pipe, "evaluated", pair.to_dict())
