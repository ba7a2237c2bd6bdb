"""A ring buffer for the last rows of a stream."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError

Doubles = npt.NDArray[np.float64]


class Window:
    """The last ``size`` rows.

    Args:
        size: capacity in rows.
        columns: numbers per row.

    Raises:
        ConfigError: a size below 1.
    """

    def __init__(self, size: int, columns: int = 1) -> None:
        if size < 1:
            raise ConfigError(f"the window has {size} rows. Expected at least 1.")
        self._rows = np.zeros((size, columns))
        self._next = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: Doubles) -> None:
        """Add rows (n,) or (n, columns), oldest first."""
        size, columns = self._rows.shape
        new = rows.reshape(len(rows), columns)[-size:]
        self._rows[(self._next + np.arange(len(new))) % size] = new
        self._next = (self._next + len(new)) % size
        self._count = min(size, self._count + len(new))

    def rows(self) -> Doubles:
        """Return a view of the rows (n, columns), unordered."""
        return self._rows[: self._count]

    def clear(self) -> None:
        """Forget all rows."""
        self._next = self._count = 0
