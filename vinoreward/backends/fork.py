"""What a fork of the process means for loaded networks.

A native runtime does not survive a fork: an inherited network may hang, and so may a fresh one when
the fork happened in the middle of an inference. So forks wait for inferences to end, and a child
forgets what it inherited.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol


class Forkable(Protocol):
    """An object whose lock is held while native code runs."""

    _lock: threading.RLock


# Kept per process because that is how Python offers fork hooks.
_alive: weakref.WeakSet[Any] = weakref.WeakSet()
_inherited: list[object] = []
_held: list[Any] = []

_build = threading.RLock()


def building() -> threading.RLock:
    """Return the lock of whoever builds networks that threads may share; forks wait for it.

    One for the process: what is built imports large libraries, which threads cannot do together.
    """
    return _build


def watch(backend: Forkable) -> None:
    """Hold ``backend``'s lock during forks, and give it a new one in the child."""
    _alive.add(backend)


def keep_forever(inherited: object) -> None:
    """Keep an object of the parent process from ever being destroyed: that alone can hang."""
    _inherited.append(inherited)


def _before_fork() -> None:
    # A fork in the middle of an inference hangs the child. Wait for those under way; the limit is
    # for a thread that itself waits for this fork. This lock comes first: a thread that builds has
    # it and takes a backend's after it.
    if _build.acquire(timeout=5.0):
        _held.append(_build)
    for backend in list(_alive):
        if backend._lock.acquire(timeout=5.0):
            _held.append(backend._lock)


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    global _build
    _held.clear()
    _build = threading.RLock()
    for backend in list(_alive):
        # The lock may be held by a thread that does not exist in the child.
        backend._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
