"""Waits while a training is paused."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

CONTINUE = "continue"
"""File of a run that ends a pause."""
BETWEEN = 0.2
"""Seconds between two checks."""


def at_terminal() -> bool:
    """Return whether somebody can press Enter: a terminal, and this process is in front of it."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # no standard input, or a closed one
        return False


def how_to_go_on(folder: Path) -> str:
    """Return in a clause what ends a pause."""
    file = f"create the file {folder / CONTINUE}"
    return f"press Enter, or {file}" if at_terminal() else file


def wait(folder: Path, check: Callable[[], None]) -> None:
    """Return once Enter is pressed, or a file ``continue`` appears in the folder; remove it.

    ``check`` is called meanwhile, and may raise. A file that was there before does not count.
    """
    file = folder / CONTINUE
    file.unlink(missing_ok=True)
    while not file.exists():
        check()
        if at_terminal():
            if select.select([sys.stdin], [], [], BETWEEN)[0]:
                sys.stdin.readline()
                return
        else:
            time.sleep(BETWEEN)
    file.unlink()
