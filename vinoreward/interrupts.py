"""Ctrl-C where it does no harm."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupt_between() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Hold Ctrl-C back within the block; yield a function that lets it through.

    The function given to it is called first. A second Ctrl-C is not held back. Outside the main
    thread, where signals do not arrive, nothing is held back.
    """
    asked: list[int] = []

    def note(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    def check(before: Callable[[], None]) -> None:
        if asked:
            before()
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    previous = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, previous)
