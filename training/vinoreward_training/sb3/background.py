"""A thread that makes one call after another."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")


class Call(Generic[_Result]):
    """A call that another thread makes."""

    def __init__(self, call: Callable[[], _Result]) -> None:
        self._call = call
        self._results: list[_Result] = []
        self._error: BaseException | None = None
        self._over = threading.Lock()
        self._over.acquire()

    def make(self) -> None:
        """Make it; its result or error is kept."""
        try:
            self._results.append(self._call())
        except BaseException as error:  # noqa: BLE001  (who waits for the result gets it)
            self._error = error
        self._over.release()

    def wait(self) -> None:
        """Wait until it is over."""
        with self._over:
            pass

    def result(self) -> _Result:
        """Wait for what it returns; raise what it raises."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]


class Background:
    """One thread that makes one call after another; the first one starts it.

    The standard library's executor takes twice as long to hand a call over and its result back.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Call[Any] | None] | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def start(self, call: Callable[[], _Result]) -> Call[_Result]:
        """Begin a call."""
        calls = self._calls
        if calls is None or self._pid != os.getpid():  # no thread survives a fork
            calls = self._calls = queue.SimpleQueue()
            # A daemon, so that an environment that nobody closes keeps no process alive.
            self._thread = threading.Thread(
                target=_make_all, args=(calls,), name=self._name, daemon=True
            )
            self._thread.start()
            self._pid = os.getpid()
            weakref.finalize(self, calls.put, None)  # where nobody closes it
        made = Call(call)
        calls.put(made)
        return made

    def close(self) -> None:
        """Wait for the calls that were begun, and end the thread."""
        calls, thread, self._calls, self._thread = self._calls, self._thread, None, None
        if calls is not None and thread is not None and self._pid == os.getpid():
            calls.put(None)
            thread.join()


def _make_all(calls: queue.SimpleQueue[Call[Any] | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
        del call  # or its environment would live until the next one
