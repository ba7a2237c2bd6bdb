"""The libraries that run networks: imported without telemetry, one OpenVINO Core, safe in forks.

Telemetry. By default OpenVINO and NNCF send a usage event on import, write a client id into the
home folder, and do so from a process they start, which under ``spawn`` runs the user's script a
second time. The functions here hide the telemetry package during the first import. Set
``VINOREWARD_OPENVINO_TELEMETRY=1`` to keep the telemetry; a program that imported OpenVINO before
also keeps it.

ONNX Runtime writes a device id into the home folder and looks up a host. ``import vinoreward`` sets
``ORT_DISABLE_TELEMETRY=1`` unless it is set (``0`` keeps the telemetry), and for Ray likewise
``RAY_USAGE_STATS_ENABLED=0``; for ``huggingface_hub``, which downloads only what is asked for but
tells the versions of other packages, ``HF_HUB_DISABLE_TELEMETRY=1``.

One Core. On processors with AMX a Core's CPU plugin installs its own signal stack in the thread
that loads it, and puts the previous one back when it and its last network are released. Two Cores
released in the order of their creation leave the thread with a freed stack, and the next signal
(e.g. Ctrl-C) kills the process. So vinoreward has one, and the process keeps it: another one, of
the caller or of NNCF, may come and go meanwhile. Two of the caller's must not go in that order.

Forks. After a fork an inherited network may hang, and so may a new one if the fork happened during
an inference, or while threads of closed networks wait for the next one. So forks wait for
inferences to end, and drop such threads; a child drops what it inherited.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Protocol

from vinoreward.errors import MissingExtraError, install_command

_SWITCH = "VINOREWARD_OPENVINO_TELEMETRY"
_PACKAGE = "openvino_telemetry"

FORK_PATIENCE = 5.0
"""Seconds that a fork waits for a lock: its owner may itself wait for the fork."""


class Locked(Protocol):
    """What has a lock."""

    _lock: threading.RLock


# A second thread waits for the whole import of the first. Reentrant: NNCF needs OpenVINO.
_importing = threading.RLock()

# Global because Python's fork hooks are.
_core: Any = None
_making = threading.Lock()
_locked: set[weakref.ref[Locked]] = set()
_inherited: list[object] = []
_forking = threading.local()
_build = threading.RLock()


def import_openvino() -> ModuleType:
    """Import ``openvino`` without telemetry; MissingExtraError if it is not installed."""
    with _importing:
        if "openvino" in sys.modules:
            # Not from sys.modules: another thread may be importing it.
            return _import("openvino")
        with _silenced():
            openvino = _import("openvino")
            # Converting a model would import this later, with the real telemetry.
            with contextlib.suppress(ImportError):
                importlib.import_module("openvino.tools.ovc")
        return openvino


def import_nncf() -> ModuleType:
    """Import ``nncf`` and torch without telemetry; MissingExtraError if it is not installed."""
    with _importing:
        import_openvino()
        if "nncf" in sys.modules:
            return _import("nncf", "train")
        with _silenced():
            return _import("nncf", "train")


def telemetry_switches() -> dict[str, str | None]:
    """Return each library with telemetry and the setting that keeps it on, None if it is off."""
    intel = f"{_SWITCH}=1" if os.environ.get(_SWITCH) == "1" else None
    onnxruntime = os.environ.get("ORT_DISABLE_TELEMETRY", "").lower()
    ray = os.environ.get("RAY_USAGE_STATS_ENABLED", "0")
    hub = os.environ.get("HF_HUB_DISABLE_TELEMETRY", "").lower()
    return {
        "OpenVINO": intel,
        "NNCF": intel,
        "ONNX Runtime": None
        if onnxruntime in ("1", "true", "yes")
        else f"ORT_DISABLE_TELEMETRY={onnxruntime}",
        "Ray": None if ray == "0" else f"RAY_USAGE_STATS_ENABLED={ray}",
        "huggingface_hub": None
        if hub in ("1", "true", "yes", "on")
        else f"HF_HUB_DISABLE_TELEMETRY={hub}",
    }


def _import(name: str, extra: str | None = None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        command = install_command(extra) if extra else f"pip install {name}"
        raise MissingExtraError(f"{name} is not installed. Install it with: {command}") from error
    except ImportError as error:
        # Ctrl-C during the import of a C++ module becomes an ImportError.
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Make ``import openvino_telemetry`` fail in the block: both libraries then use a stub."""
    if os.environ.get(_SWITCH) == "1":
        yield
        return
    missing = object()
    before = sys.modules.get(_PACKAGE, missing)
    sys.modules[_PACKAGE] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.modules.pop(_PACKAGE, None)
        if isinstance(before, ModuleType):
            sys.modules[_PACKAGE] = before


def shared_core(openvino: Any) -> Any:
    """Return this process's ``Core``, which it keeps; a child makes its own."""
    global _core
    with _making:
        if _core is None:
            _core = openvino.Core()
        return _core


def building() -> threading.RLock:
    """Return the process's lock for building networks that threads share; forks wait for it.

    There is one, because building imports large libraries, which threads cannot do together.
    """
    return _build


class ForkedLock:
    """A reentrant lock that forks hold; a child has a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        watch(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def watch(owner: Locked) -> None:
    """Hold ``owner._lock`` during forks, and make a new one in the child."""
    _locked.add(weakref.ref(owner, _locked.discard))


def _owners() -> list[Locked]:
    # A copy at once: another thread may add one.
    return [owner for one in _locked.copy() if (owner := one()) is not None]


def keep_forever(inherited: object) -> None:
    """Never destroy an object inherited from the parent process: that can hang."""
    _inherited.append(inherited)


def _before_fork() -> None:
    # A fork during an inference hangs the child, so wait for those under way. Builders take this
    # lock before a backend's.
    # Each thread keeps its own: two may fork at once, and only the owner can release a lock.
    held: list[Any] = []
    _forking.locks = held
    for lock in (_build, *(owner._lock for owner in _owners())):
        if lock.acquire(timeout=FORK_PATIENCE):
            held.append(lock)
    # Not import_openvino: a thread that imports may wait for a lock that this fork has.
    make_core = getattr(sys.modules.get("openvino"), "Core", None)
    if make_core is not None:
        # Any CPU plugin that is unloaded drops the threads of closed networks, of all Cores. Where
        # there is no such plugin there are no threads.
        with contextlib.suppress(RuntimeError):
            make_core().get_property("CPU", "FULL_DEVICE_NAME")


def _after_fork_in_parent() -> None:
    held: list[Any] = _forking.locks
    while held:
        held.pop().release()


def _after_fork_in_child() -> None:
    global _build, _core, _importing, _making
    _forking.locks.clear()
    keep_forever(_core)
    _core = None
    # New locks: threads that do not exist in the child may have locked the old ones.
    _build, _importing, _making = threading.RLock(), threading.RLock(), threading.Lock()
    for owner in _owners():
        owner._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
