"""Sampling in proportion to priorities, in logarithmic time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


class SumTree:
    """A tree of sums over non-negative numbers, for sampling in proportion to them.

    Args:
        capacity: number of values; all start at 0.
    """

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(capacity - 1, 1).bit_length()
        self._capacity = capacity
        # Node 1 is the root, the children of node i are 2 i and 2 i + 1, the leaves come last.
        self._sums = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        """Sum of all numbers."""
        return float(self._sums[1])

    @property
    def values(self) -> Doubles:
        """(capacity,), the numbers; a view."""
        return self._sums[self._leaves : self._leaves + self._capacity]

    def set(self, places: Places, values: npt.ArrayLike) -> None:
        """Set numbers; if a place occurs several times, the last one counts."""
        nodes = places + self._leaves
        self._sums[nodes] = values
        nodes = np.unique(nodes >> 1)
        # Always sum both children instead of adding differences: rounding does not accumulate, and
        # a tree rebuilt from the same numbers is the same.
        while nodes.size and nodes[0] >= 1:
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]
            nodes = np.unique(nodes >> 1)

    def find(self, masses: Doubles) -> Places:
        """Return the places where the running sum passes ``masses`` (N,), below the total.

        Rounding may lead to a value of 0; callers then sample again.
        """
        nodes = np.ones(masses.shape, dtype=np.int64)
        left = masses.astype(np.float64)
        while nodes.size and nodes[0] < self._leaves:
            nodes = 2 * nodes
            below = self._sums[nodes]
            right = left >= below
            left = np.where(right, left - below, left)
            nodes = nodes + right
        return np.minimum(nodes - self._leaves, self._capacity - 1)
