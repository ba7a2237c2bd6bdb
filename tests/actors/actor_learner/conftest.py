"""What tests of trainings with real processes share."""

import pytest
from engine_runs import check_nothing_left


@pytest.fixture
def nothing_left():
    """After the test, no process and no shared memory of its trainings are left."""
    yield
    check_nothing_left()
