"""What an arm makes of the moves that it is asked for: late, and not exactly."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from vinoreward_envs.arrays import Array, Arrays
from vinoreward_envs.randomization import MAX_DELAY, Drawn, normals

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

    def late(self, moves: Array, steps: NDArray[np.int64], drawn: Drawn) -> Array:
        """Return the ``(N, 2)`` moves to make now; zeros until the first one is due.

        Args:
            moves: ``(N, 2)`` that are asked for now.
            steps: ``(N,)`` steps that were made in each episode before this one.
            drawn: ``(N,)`` of the episodes.
        """
        delays = drawn["action_delay"].astype(np.int64)
        if not delays.any():
            return moves
        arrays, slots = self._arrays, MAX_DELAY + 1
        self._asked[arrays.of(steps % slots), self._every] = moves
        due = self._asked[arrays.of((steps - delays) % slots), self._every]
        return arrays.xp.where(arrays.of(steps >= delays)[:, None], due, 0.0)

    def error(self, steps: NDArray[np.int64], drawn: Drawn) -> Array | None:
        """Return by how many metres ``(N, 2)`` each move misses its end; None: by none."""
        deviation = drawn["action_noise"]
        if not deviation.any():
            return None
        at = (_TABLE * drawn["action_noise_at"]).astype(np.int64) + 2 * steps
        noise = normals(_TABLE)[(at[:, None] + np.arange(2)) % _TABLE]
        return self._arrays.of(deviation[:, None] * noise)
