"""What a process on Ray has for the learner, handed over when it asks: from a thread to a loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Message = tuple[bytes, "npt.NDArray[np.uint8] | None"]
"""JSON, and the bytes of a trajectory if there is one."""

_LOOK_EVERY = 0.05
_Asked = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


def _answer(asked: _Asked, value: Any) -> None:
    loop, future = asked

    def resolve() -> None:
        if not future.done():
            future.set_result(value)

    loop.call_soon_threadsafe(resolve)


class MessageQueue:
    """Between one working thread, which puts, and any number of coroutines, which ask."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._asked: deque[_Asked] = deque()
        self._kept: deque[Message] = deque()
        self._watching: list[_Asked] = []
        self._ended: str | None = None

    @staticmethod
    def _question() -> _Asked:
        loop = asyncio.get_running_loop()
        return loop, loop.create_future()

    async def next(self) -> Message:
        """Return the next message, in the order of asking."""
        asked = self._question()
        with self._lock:
            if self._kept:
                return self._kept.popleft()
            self._asked.append(asked)
            self._lock.notify_all()
        message: Message = await asked[1]
        return message

    async def ended(self) -> str:
        """Wait for the working thread's end; return its traceback, empty if it had none."""
        asked = self._question()
        with self._lock:
            if self._ended is not None:
                return self._ended
            self._watching.append(asked)
        text: str = await asked[1]
        return text

    def wait_asked(self, stop: Callable[[], bool]) -> bool:
        """Wait until somebody asks; False as soon as ``stop()``, which is called often."""
        with self._lock:
            while not self._asked:
                if stop():
                    return False
                self._lock.wait(_LOOK_EVERY)
        return True

    def put(self, message: Message) -> None:
        """Hand a message to who asked first, or keep it for who asks next."""
        with self._lock:
            if not self._asked:
                self._kept.append(message)
                return
            asked = self._asked.popleft()
        _answer(asked, message)

    def end(self, text: str) -> None:
        """Say that the working thread has ended."""
        with self._lock:
            self._ended = text
            watching, self._watching = self._watching, []
        for asked in watching:
            _answer(asked, text)
