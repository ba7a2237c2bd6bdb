"""What a process may use of the machine."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

from vinoreward.machine import usable_cores
from vinoreward_training.runs.fit import prepare_torch
from vinoreward_training.runs.machine import free_cores, freed_memory_kept


def page_faults(size: int, times: int) -> int:
    """Those of ``times`` arrays of ``size`` bytes, each freed before the next."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        np.empty(size, np.uint8)[:: resource.getpagesize()] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's")
def test_freed_memory_is_kept_only_where_asked() -> None:
    size = 50 * 2**20
    pages = size // resource.getpagesize()
    with freed_memory_kept():
        page_faults(size, 1)
        kept = page_faults(size, 10)
    after = page_faults(size, 10)
    assert kept < pages, "the kernel gave them once"
    assert after > 2 * kept, "each is given back to the kernel"


def test_threads_are_as_many_as_the_user_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert free_cores() == 3
    before = torch.get_num_threads()
    prepare_torch(0)
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)
    for nothing in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert 1 <= free_cores() <= usable_cores()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counters")
def test_busy_cores_get_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(usable_cores())
    ]
    try:
        for one in busy:
            assert one.poll() is None
        assert free_cores(1.0) < max(2, usable_cores())
    finally:
        for one in busy:
            one.kill()
            one.wait()
