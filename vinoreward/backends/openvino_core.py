"""One OpenVINO ``Core`` at a time in a process, shared by all networks that are loaded.

A Core's CPU plugin installs a signal stack of its own in the thread that loads it, and puts the
previous one back when it goes. Two Cores released in the order they were made leave the thread with
a freed stack, and the next signal (Ctrl-C, say) crashes the process. Never releasing the one Core
would not do either: its idle worker threads do not survive a fork, and a child waits for them.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_cores: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _renew_lock() -> None:
    # Another thread of the parent may have held it at the fork.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def shared_core(openvino: Any) -> Any:
    """Return this process's ``Core``; it goes with the last network that keeps it.

    A forked child makes its own.

    Args:
        openvino: the imported module.
    """
    with _lock:
        core = _cores.get(os.getpid())
        if core is None:
            core = openvino.Core()
            _cores[os.getpid()] = core
        return core
