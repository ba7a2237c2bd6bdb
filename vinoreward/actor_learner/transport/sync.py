"""What processes that share memory need in place of locks, which outlive whoever holds them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable


def fence() -> None:
    """Keep loads and stores before this call before those after it, seen from other processes.

    Locking is an atomic instruction, hence a full barrier on x86-64 and acquire and release on
    ARM; Python offers nothing closer. About 0.1 µs.
    """
    with threading.Lock():
        pass


def wait_until(
    condition: Callable[[], bool],
    timeout: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> bool:
    """Poll until ``condition()`` holds; return whether it does.

    Polling, because a lock held by a process that is killed is held for ever.

    Args:
        condition: cheap; called every 0.05 to 1 ms.
        timeout: seconds; None for no limit, 0 to look once.
        stop: called as often; True ends the wait. The place for a heartbeat.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    pause = 50e-6
    while not condition():
        if time.monotonic() >= deadline or (stop is not None and stop()):
            return False
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    return True
