"""The libraries that run networks, in this process: imported without telemetry, safe in a fork.

Telemetry. Left to themselves OpenVINO and NNCF send a usage event when they are imported, write a
client id into the home folder, and do it from a process they start, which under ``spawn`` runs the
user's script a second time. The functions here put a stub in the telemetry package's place for the
length of the first import. Set ``VINOREWARD_OPENVINO_TELEMETRY=1`` to leave the telemetry on.
A program that imported OpenVINO before keeps what it chose.

ONNX Runtime writes a device id into the home folder and looks up a host from a thread. It asks the
environment first: ``import vinoreward`` sets ``ORT_DISABLE_TELEMETRY=1`` unless it is set already
(``0`` leaves the telemetry on). Ray is started with ``RAY_USAGE_STATS_ENABLED=0`` in the same way.

One Core. A Core's CPU plugin installs a signal stack of its own in the thread that loads it, and
puts the previous one back when it goes. Two Cores released in the order they were made leave the
thread with a freed stack, and the next signal (Ctrl-C, say) crashes the process. Never releasing
the one Core would not do either: its idle worker threads do not survive a fork, and a child waits
for them.

Forks. A native runtime does not survive a fork: an inherited network may hang, and so may a fresh
one when the fork happened in the middle of an inference. So forks wait for inferences to end, and a
child forgets what it inherited.
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
from typing import Any

from vinoreward.errors import MissingExtraError, install_command

_SWITCH = "VINOREWARD_OPENVINO_TELEMETRY"
_PACKAGE = "openvino_telemetry"

# A second thread waits until the first has imported all of it. Reentrant: NNCF needs OpenVINO.
_importing = threading.RLock()

_cores: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_making = threading.Lock()

# Kept per process because that is how Python offers fork hooks.
_alive: weakref.WeakSet[Any] = weakref.WeakSet()
_inherited: list[object] = []
_held: list[Any] = []
_build = threading.RLock()


def import_openvino() -> ModuleType:
    """Import ``openvino`` without telemetry and return it.

    Raises:
        MissingExtraError: OpenVINO is not installed.
    """
    with _importing:
        if "openvino" in sys.modules:
            # Not from sys.modules: somebody else's thread may be in the middle of importing it.
            return _import("openvino")
        with _silenced():
            found = _import("openvino")
            # Converting a model would import this later, with the real telemetry.
            with contextlib.suppress(ImportError):
                importlib.import_module("openvino.tools.ovc")
        return found


def import_nncf() -> ModuleType:
    """Import ``nncf`` (and with it torch) without telemetry and return it.

    Raises:
        MissingExtraError: NNCF is not installed.
    """
    with _importing:
        import_openvino()
        if "nncf" in sys.modules:
            return _import("nncf", "train")
        with _silenced():
            return _import("nncf", "train")


def telemetry_switches() -> dict[str, str | None]:
    """Return each library that has telemetry with the setting that leaves it on, None if off."""
    intel = f"{_SWITCH}=1" if os.environ.get(_SWITCH) == "1" else None
    onnxruntime = os.environ.get("ORT_DISABLE_TELEMETRY", "").lower()
    ray = os.environ.get("RAY_USAGE_STATS_ENABLED", "0")
    return {
        "OpenVINO": intel,
        "NNCF": intel,
        "ONNX Runtime": None
        if onnxruntime in ("1", "true", "yes")
        else f"ORT_DISABLE_TELEMETRY={onnxruntime}",
        "Ray": None if ray == "0" else f"RAY_USAGE_STATS_ENABLED={ray}",
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
        # Ctrl-C in the middle of a module of C++ comes out as one that could not be initialised.
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Make ``import openvino_telemetry`` fail inside the block: both packages have a stub then."""
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
    """Return this process's ``Core``; it goes with the last network that keeps it.

    A forked child makes its own.
    """
    with _making:
        core = _cores.get(os.getpid())
        if core is None:
            core = openvino.Core()
            _cores[os.getpid()] = core
        return core


def building() -> threading.RLock:
    """Return the lock of whoever builds networks that threads may share; forks wait for it.

    One for the process: what is built imports large libraries, which threads cannot do together.
    """
    return _build


def watch(backend: Any) -> None:
    """Hold ``backend._lock`` during forks, and give it a new one in the child."""
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
    global _build, _importing, _making
    _held.clear()
    # Another thread of the parent may have held them at the fork.
    _build, _importing, _making = threading.RLock(), threading.RLock(), threading.Lock()
    for backend in list(_alive):
        # The lock may be held by a thread that does not exist in the child.
        backend._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
