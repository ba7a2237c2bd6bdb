"""Synchronisation between processes without locks, which a killed process would never release."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable


def fence() -> None:
    """Order all loads and stores before this call before those after it, for other processes.

    Locking is an atomic instruction: a full barrier on x86-64, acquire and release on ARM. Python
    offers nothing closer. About 0.1 µs.
    """
    with threading.Lock():
        pass


def wait_until(
    condition: Callable[[], bool],
    timeout: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> bool:
    """Poll until ``condition()`` holds; return whether it does.

    Polls because a killed process would never release a lock.

    Args:
        condition: cheap; called every 0.05 to 1 ms.
        timeout: seconds; None for no limit, 0 to check once.
        stop: called as often; True ends the wait. Suits heartbeats.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    pause = 50e-6
    while not condition():
        if time.monotonic() >= deadline or (stop is not None and stop()):
            return False
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    return True
