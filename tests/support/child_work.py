"""What a child process does in the tests of work beside other work."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from vinoreward.processes import THREADS
from vinoreward_training.mending import child


def double(value: object) -> object:
    """Return more than a pipe holds."""
    print("an environment may print", input if value is None else "")
    return [value] * 2, bytes(1 << 20)


def situation(folder: Path) -> object:
    """Return whether it leads a session, and its limits of threads."""
    begins(folder)
    return os.getsid(0) == os.getpid(), [os.environ.get(name) for name in THREADS]


def begins(folder: Path) -> None:
    (folder / "pid").write_text(str(os.getpid()))


def fails(folder: Path) -> None:
    begins(folder)
    raise ZeroDivisionError


def dies(folder: Path) -> None:
    begins(folder)
    os.kill(os.getpid(), signal.SIGKILL)


def dies_as_it_answers(folder: Path) -> object:
    """Return more than a pipe holds, and do not live until somebody reads it."""
    begins(folder)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return bytes(1 << 20)


def reads(folder: Path) -> str:
    begins(folder)
    try:
        return input()
    except EOFError:
        return "nothing to read"


def takes_a_moment(folder: Path) -> str:
    begins(folder)
    time.sleep(0.2)
    return "done"


def waits(folder: Path) -> None:
    """Wait as an environment does that is to be closed."""
    begins(folder)
    try:
        time.sleep(600)
    finally:
        (folder / "closed").touch()


def stubborn(folder: Path, grace: float = 600.0) -> None:
    """Go on when it is to end; ``grace`` is the child's own time to close."""
    child.GRACE = grace
    begins(folder)
    for _ in range(3):
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(60)


def impatient(folder: Path) -> None:
    """When it is to end, press Ctrl-C in the parent that waits for it, and go on."""
    child.GRACE = 600.0
    begins(folder)
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(600)
    time.sleep(0.1)
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)
