"""What tests of trainings with real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_runs import check_nothing_left


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test, no process and no shared memory of its trainings are left."""
    yield
    check_nothing_left()
