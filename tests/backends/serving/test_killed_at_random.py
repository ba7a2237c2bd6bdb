"""Under load, service and workers are killed at random; every answer is checked."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from service_children import ask_forever, child, kill, nothing_left, services

from vinoreward.backends.network import NetworkSpec
from vinoreward.backends.serving.client import SharedBackend

WORKERS, CALLS = 3, 800


@pytest.mark.slow
def test_no_answer_is_wrong_or_lost(folder: Path, spec: NetworkSpec, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tally = tmp_path / "tally"
    np.zeros((WORKERS, 3), np.int64).tofile(tally)
    killed = 0
    with ExitStack() as stack:
        steady = [
            stack.enter_context(
                child("spawn", ask_forever, SharedBackend(spec), tally, number, CALLS)
            )[1]
            for number in range(WORKERS - 1)
        ]
        deadline = time.monotonic() + 120
        # The last worker is killed, too, and another takes its place and its numbers.
        while not all(connection.poll() for connection in steady) and time.monotonic() < deadline:
            with child("spawn", ask_forever, SharedBackend(spec), tally, WORKERS - 1, 10**9) as (
                victim,
                _,
            ):
                for _ in range(int(random.integers(1, 4))):
                    time.sleep(float(random.uniform(0.3, 1.5)))
                    for pid in services(folder):
                        kill(pid)
                        killed += 1
                kill(victim.pid or 0)
        assert [connection.recv() for connection in steady] == ["done"] * (WORKERS - 1)
    counts = np.fromfile(tally, np.int64).reshape(WORKERS, 3)
    assert killed > 0
    assert counts[:-1].tolist() == [[CALLS, CALLS, 0]] * (WORKERS - 1)
    assert counts[-1, 2] == 0
    # The service that was killed last left its socket; the next one's end leaves nothing.
    with SharedBackend(spec) as last:
        last.load()
    assert nothing_left(folder)
    assert not any("vinoreward-slot" in path.name for path in Path("/dev/shm").iterdir())
