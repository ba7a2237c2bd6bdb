"""How often a process may be replaced."""

from __future__ import annotations

import time
from collections import deque

MINUTE = 60.0


class RestartBudget:
    """So many restarts within a minute.

    Args:
        limit: how many.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._spent: deque[float] = deque()

    def spend(self) -> bool:
        """Count a restart; False if there were too many."""
        now = time.monotonic()
        while self._spent and now - self._spent[0] > MINUTE:
            self._spent.popleft()
        if len(self._spent) >= self._limit:
            return False
        self._spent.append(now)
        return True
