"""What a child process does in the tests of work beside other work."""

from __future__ import annotations

import os
import time
from pathlib import Path


def double(value: object) -> object:
    """Return more than a pipe holds."""
    print("an environment may print", input if value is None else "")
    return [value] * 2, bytes(1 << 20)


def fails(folder: Path) -> None:
    (folder / "pid").write_text(str(os.getpid()))
    raise ZeroDivisionError


def reads(folder: Path) -> str:
    (folder / "pid").write_text(str(os.getpid()))
    try:
        return input()
    except EOFError:
        return "nothing to read"


def waits(folder: Path) -> None:
    """Wait as an environment does that is to be closed."""
    (folder / "pid").write_text(str(os.getpid()))
    try:
        time.sleep(600)
    finally:
        (folder / "closed").touch()


def dies(folder: Path) -> None:
    (folder / "pid").write_text(str(os.getpid()))
    os.kill(os.getpid(), 9)
