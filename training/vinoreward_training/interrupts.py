"""SIGTERM handled as Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM, which job schedulers send, do what Ctrl-C does within the block.

    Also where Ctrl-C is ignored, as in a background job of a shell. Does nothing if SIGTERM has a
    handler already, and outside the main thread.
    """
    owner = os.getpid()

    def interrupt(number: int, frame: object) -> None:
        if os.getpid() != owner:
            # A forked child ends, as its parent expects.
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
