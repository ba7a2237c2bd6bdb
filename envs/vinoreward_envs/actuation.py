"""What an arm makes of the moves that it is asked for: late, and not exactly."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vinoreward_envs.arrays import Array, Arrays
from vinoreward_envs.randomization import MAX_DELAY, normals

_TABLE: Final = 1 << 16
"""Normal numbers from which the noise of moves is read."""


class Actuation:
    """Delays and disturbs the moves of N arms, as their episodes drew.

    Args:
        arrays: of which kind moves are, and where.
        count: N.
    """

    def __init__(self, arrays: Arrays, count: int) -> None:
        self._arrays = arrays
        self._every = arrays.of(np.arange(count))
        # Of each arm its last moves, by number of the step; what an earlier episode asked for is
        # never read.
        self._asked = arrays.of(np.zeros((MAX_DELAY + 1, count, 2)))
        self._pair = arrays.of(np.arange(2))
        self._noise: Array | None = None

    def late(self, moves: Array, steps: Array, drawn: Any) -> Array:
        """Return the ``(N, 2)`` moves to make now; zeros until the first one is due.

        Args:
            moves: ``(N, 2)`` that are asked for now.
            steps: ``(N,)`` int64 steps that were made in each episode before this one.
            drawn: gives what the N episodes drew, by name.
        """
        xp, slots = self._arrays.xp, MAX_DELAY + 1
        delays = xp.asarray(drawn["action_delay"], dtype=xp.int64)
        if self._none(delays):
            return moves
        self._asked[steps % slots, self._every] = moves
        due = self._asked[(steps - delays) % slots, self._every]
        return xp.where((steps >= delays)[:, None], due, 0.0)

    def error(self, steps: Array, drawn: Any) -> Array | None:
        """Return by how many metres ``(N, 2)`` each move misses its end; None: by none."""
        xp, deviation = self._arrays.xp, drawn["action_noise"]
        if self._none(deviation):
            return None
        if self._noise is None:
            self._noise = self._arrays.of(normals(_TABLE))
        at = xp.asarray(_TABLE * drawn["action_noise_at"], dtype=xp.int64) + 2 * steps
        return deviation[:, None] * self._noise[(at[:, None] + self._pair) % _TABLE]

    def _none(self, values: Array) -> bool:
        """Return whether all are known to be 0; False on a device (no waiting)."""
        return self._arrays.kind == "numpy" and not values.any()
