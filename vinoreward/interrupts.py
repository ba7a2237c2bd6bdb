"""Ctrl-C where it does no harm."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

STOPS = (signal.SIGINT, signal.SIGTERM)
"""Signals that ask a training to end; often they reach all of its processes."""


@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    """Give a handler of SIGTERM back that something in the block has replaced, as Ray does.

    Where there was none, what is new stays.
    """
    before = signal.getsignal(signal.SIGTERM)
    yield
    main = threading.current_thread() is threading.main_thread()
    if main and before not in (signal.SIG_DFL, None):
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM within the block do what Ctrl-C does: job schedulers and containers send it.

    Also where Ctrl-C itself is ignored, as in a background job of a shell. Left alone where
    somebody handles SIGTERM already, and outside the main thread.
    """

    owner = os.getpid()

    def interrupt(number: int, frame: object) -> None:
        if os.getpid() != owner:
            # A forked child's: whoever ends it expects that it ends.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, None)
        else:
            raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
