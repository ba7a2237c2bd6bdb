"""Audits in a process of its own, beside one in this process.

The child is a new Python, not one of ``multiprocessing``: that would run a user's script again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from vinoreward.processes import python_command, thread_limits
from vinoreward_training.interrupts import terminated_like_interrupted

GRACE = 10.0
"""Seconds in which a child may close its environment."""
PATIENCE = 60.0
"""Minimum timeout in seconds."""
TIMES = 4.0
"""Maximum total time, as a multiple of the caller's own."""
SAID_AFTER = 5.0
"""Seconds of waiting until that is said."""
_CHUNK = 1 << 20
_SCRIPT = "from vinoreward_training.mending.child import main\nmain()\n"

T = TypeVar("T")


@contextlib.contextmanager
def in_child(work: Callable[[], T]) -> Iterator[Callable[[], T | None]]:
    """Call ``work``, which can be pickled, in a child process while this block runs.

    Yields a function that waits for the result. It returns None if there will be none: the child
    cannot be started, failed, was killed, or takes much longer than this block has taken. At its
    end the block ends the child.
    """
    began = time.monotonic()
    reading, writing = os.pipe()
    child: subprocess.Popen[bytes] | None = None
    try:
        with contextlib.closing(os.fdopen(writing, "wb")), contextlib.suppress(OSError):
            # OSError: no room for another process.
            child = subprocess.Popen(
                python_command(_SCRIPT, str(writing)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # the caller meets the error itself
                pass_fds=(writing,),
                env={**os.environ, **thread_limits()},
                start_new_session=True,  # Ctrl-C reaches this process alone
            )
            _send(child, work)
        yield lambda: _result(reading, began + max(PATIENCE, TIMES * (time.monotonic() - began)))
    finally:
        os.close(reading)
        if child is not None:
            _end(child)


def _send(child: subprocess.Popen[bytes], work: Callable[[], Any]) -> None:
    if child.stdin is None:
        raise RuntimeError("the child was started without a pipe")
    child.stdin.write(pickle.dumps(work))
    child.stdin.flush()  # left open: the child ends when it closes, also by our death


def _result(reading: int, deadline: float) -> Any:
    """Read until the child closes the pipe; None without a whole result in time."""
    parts: list[bytes] = []
    if not select.select([reading], [], [], SAID_AFTER)[0]:
        print("waiting for the other process ...", flush=True)
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(reading, _CHUNK)
        if part:
            parts.append(part)
            continue
        try:
            return pickle.loads(b"".join(parts))  # of our own child, through our own pipe
        except (pickle.UnpicklingError, EOFError):
            return None
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let the child close its environment; kill it if it does not."""
    with contextlib.suppress(OSError):
        if child.stdin is not None:
            child.stdin.close()
    try:
        child.wait(GRACE)
    except BaseException as error:
        child.kill()
        child.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


# In the child


def main() -> None:
    """Do what the standard input asks for; write the result to the pipe of ``sys.argv[1]``."""
    writing = int(sys.argv.pop(1))
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # an environment that reads gets nothing
    with terminated_like_interrupted(), contextlib.suppress(KeyboardInterrupt):
        work = pickle.load(source)
        threading.Thread(target=_end_with_parent, args=(source,), daemon=True).start()
        answer = pickle.dumps(work())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)


def _end_with_parent(source: Any) -> None:
    """Interrupt this process once its parent closes the pipe, and end it if that does not help."""
    source.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE / 2)
    os._exit(1)
