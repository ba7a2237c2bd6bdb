"""What each process has for itself: networks, OpenVINO's Core, libraries without telemetry.

Telemetry. By default OpenVINO and NNCF send a usage event on import, write a client id into the
home folder, and do so from a process they start, which under ``spawn`` runs the user's script a
second time. :func:`import_silently` hides the telemetry package during the first import. Set
``VINOREWARD_OPENVINO_TELEMETRY=1`` to keep the telemetry; a program that imported OpenVINO before
also keeps it. ``import vinoreward`` switches off that of ONNX Runtime and ``huggingface_hub``.

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
from typing import TYPE_CHECKING, Any, ClassVar

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

TELEMETRY_SWITCH = "VINOREWARD_OPENVINO_TELEMETRY"
_TELEMETRY = "openvino_telemetry"

FORK_PATIENCE = 5.0
"""Seconds that a fork waits for a lock: its owner may itself wait for the fork."""

# Global because Python's fork hooks are.
_core: Any = None
_locks: set[weakref.ref[ForkedLock]] = set()
_inherited: list[object] = []
_forking = threading.local()
# A second thread waits for the whole import of the first. Reentrant: NNCF needs OpenVINO.
_importing = threading.RLock()


class ForkedLock:
    """A reentrant lock that is acquired before each fork; the child process gets a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(weakref.ref(self, _locks.discard))

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


BUILDING = ForkedLock()
"""Held while a network is built. The process has one, because building imports large libraries,
which threads cannot do together."""


class PerProcess(Closing):
    """What is loaded on first use, by each process for itself; base of backends and classifiers.

    It can be pickled and forked: the other process loads its own. Threads may share it: one loads,
    the others wait.

    A subclass writes :meth:`_load` and names in :attr:`resources` what that makes.
    """

    resources: ClassVar[tuple[str, ...]] = ()
    """Attributes made by ``_load`` that only this process can use; dropped in this order."""

    _closed = False

    def __init__(self) -> None:
        self._lock = ForkedLock()
        """Held by who uses the resources. Whoever needs :data:`BUILDING` takes that first."""
        self._loaded_by: int | None = None

    def load(self) -> Self:
        """Load now, in this process. Does nothing the second time.

        Raises:
            ConfigError: it is closed. See the subclass for errors of loading.
        """
        if self._loaded_by != os.getpid():
            with BUILDING:
                self._check_open()
                if self._loaded_by not in (None, os.getpid()):
                    self._drop()
                if self._loaded_by is None:
                    self._load()
                    self._loaded_by = os.getpid()
        return self

    def close(self) -> None:
        """Free all resources. May be called more than once; use is an error afterwards."""
        with BUILDING, self._lock:
            self._closed = True
            self._drop()

    def _load(self) -> None:  # without resources there is nothing to do
        """Make the resources; runs once per process."""

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError(
                f"this {type(self).__name__} is closed. Expected an open one; make a new one."
            )

    def _drop(self) -> None:
        for name in self.resources:
            resource = self.__dict__.pop(name, None)
            if self._loaded_by != os.getpid():
                _inherited.append(resource)  # to destroy what is the parent's can hang
            del resource
        self._loaded_by = None

    def __getstate__(self) -> dict[str, Any]:
        own = {"_lock", "_loaded_by", *self.resources}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        PerProcess.__init__(self)


def import_openvino() -> ModuleType:
    """Import ``openvino`` without telemetry."""
    return import_silently("openvino")


def import_silently(name: str) -> ModuleType:
    """Import a library of Intel without telemetry."""
    # Where it is in sys.modules another thread may still be importing it: import it, too.
    silenced = contextlib.nullcontext() if name in sys.modules else _silenced()
    with _importing, silenced:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            # Ctrl-C during the import of a C++ module becomes an ImportError.
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Make ``import openvino_telemetry`` fail in the block: both libraries then use a stub."""
    if os.environ.get(TELEMETRY_SWITCH) == "1":
        yield
        return
    before = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_TELEMETRY]
        if before is not None:
            sys.modules[_TELEMETRY] = before


def shared_core(openvino: Any) -> Any:
    """Return this process's ``Core``, which it keeps; a child makes its own."""
    global _core
    with BUILDING:
        if _core is None:
            _core = openvino.Core()
        return _core


def _all_locks() -> list[ForkedLock]:
    # A copy at once: another thread may add one. Builders take theirs before a network's.
    return [BUILDING, *(lock for one in _locks.copy() if (lock := one()) is not None)]


def _before_fork() -> None:
    # A fork during an inference hangs the child, so wait for those under way.
    # Each thread keeps its own: two may fork at once, and only the owner can release a lock.
    held: list[Any] = []
    _forking.locks = held
    for lock in (each._lock for each in _all_locks()):
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
    global _core, _importing
    _forking.locks.clear()
    _inherited.append(_core)
    _core = None
    # New locks: threads that do not exist in the child may have locked the old ones.
    _importing = threading.RLock()
    for lock in _all_locks():
        lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
