"""How much memory Python's objects may take."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator


@contextlib.contextmanager
def memory_below(limit: float) -> Iterator[None]:
    """Fail if Python's objects took so many bytes or more at any time in the block."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit
