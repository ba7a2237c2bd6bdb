"""What tests share: one thread a process, so that several run side by side."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# A training of a classifier takes one per core all the same. A thread that waits busily for another
# takes the core on which that one, or another test, would run: several times the processor time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# How long an example takes says something of the machine, not of the code.
# A change is judged by the same examples each time; whoever works on it searches for others too.
hypothesis.settings.register_profile("vinoreward", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("vinoreward")

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """Say where the process stands when a trap ends it; pytest does so for other faults."""
    faulthandler.register(signal.SIGTRAP, file=os.dup(2), chain=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files of slow tests alone; skip what needs PyBullet on Pythons without its wheel.

    Several processes run a file each, and whoever has the last file is waited for.
    """
    quick = {item.path for item in items if item.get_closest_marker("slow") is None}
    items.sort(key=lambda item: item.path in quick)
    if sys.version_info < (3, 12) or importlib.util.find_spec("pybullet") is not None:
        return
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    skip = pytest.mark.skip(reason=f"PyBullet has no wheel for Python {version}")
    for item in items:
        if item.get_closest_marker("pybullet") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The folder of ``pyproject.toml``."""
    return ROOT


# What is started in the background ignores Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
