"""What a process may use of the machine."""

from __future__ import annotations

import platform
import resource

import numpy as np
import pytest
import torch

from vinoreward.machine import usable_cores
from vinoreward_training.runs.fit import prepare_torch
from vinoreward_training.runs.machine import freed_memory_kept, threads


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
    assert threads() == 3
    before = torch.get_num_threads()
    prepare_torch(0)
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)
    for nothing in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert threads() == usable_cores()
