"""How often a process may be replaced."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

MINUTE = 60.0


class RestartBudget:
    """So many restarts of a process within a minute of its work.

    Its work is the time from a start to the last thing that it handed over: a trajectory, or
    compressed weights. What comes after that is not counted, nor is a life in which nothing was
    handed over, however long it took to end. A process that hangs is noticed only after a
    heartbeat, one that never begins after the start timeout, and a minute of the clock would be
    over before either could happen often; here each of them brings the end nearer, whatever these
    times are. One that works for minutes between two crashes may go on for ever.

    Args:
        limit: how many.
        clock: seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._since = clock()
        """When the process was started, or handed something over."""
        self._work = 0.0
        """Seconds, of all those that have had this place."""
        self._spent: deque[float] = deque()

    def worked(self) -> None:
        """Note that the process has handed something over."""
        now = self._clock()
        self._work += now - self._since
        self._since = now

    def spend(self) -> bool:
        """Count a restart, which is to follow at once; False if there were too many."""
        while self._spent and self._work - self._spent[0] > MINUTE:
            self._spent.popleft()
        if len(self._spent) >= self._limit:
            return False
        self._spent.append(self._work)
        self._since = self._clock()
        return True
