"""The row of the shared service, with few workers and calls."""

from __future__ import annotations

import sys

import pytest

from vinoreward_training.bench import services
from vinoreward_training.bench.services import service_rows
from vinoreward_training.configs import BenchConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the service needs Linux")


@pytest.mark.slow
def test_the_row_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("warp")
    for name, value in {"TURN": 0.2, "ATTACKED": 2, "PICTURES": 16}.items():
        monkeypatch.setattr(services, name, value)
    config = BenchConfig(service_workers=1, service_calls=100, rounds=1)
    overhead, memory, *rates, wrong, lost, left = service_rows(config)
    assert (overhead.unit, memory.unit) == ("ms", "MB")
    assert memory.value is not None and memory.value < memory.details["own"]
    assert [row.target for row in rates] == [">= 1.5 x", "", "", ""]
    assert all(row.value and row.value > 0 for row in rates)
    assert [row.value for row in (wrong, lost, left)] == [0, 0, 0]
    assert [row.met for row in (wrong, lost, left)] == [True] * 3
    assert "100 calls" in wrong.what
