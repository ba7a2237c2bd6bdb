"""OpenVINO, NNCF, ONNX Runtime and Ray without their telemetry.

Left to themselves OpenVINO and NNCF send a usage event when they are imported, write a client id
into the home folder, and do it from a process they start, which under ``spawn`` runs the
user's script a second time. The functions here put a stub in the telemetry package's place for the
length of the first import. Set ``VINOREWARD_OPENVINO_TELEMETRY=1`` to leave the telemetry on.
A program that imported OpenVINO before keeps what it chose.

ONNX Runtime writes a device id into the home folder and looks up a host from a thread. It asks the
environment first: ``import vinoreward`` sets ``ORT_DISABLE_TELEMETRY=1`` unless it is set already
(``0`` leaves the telemetry on). Ray is started with ``RAY_USAGE_STATS_ENABLED=0`` in the same way.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

from vinoreward.errors import MissingExtraError, install_command

_SWITCH = "VINOREWARD_OPENVINO_TELEMETRY"
_PACKAGE = "openvino_telemetry"

# A second thread waits until the first has imported all of it. Reentrant: NNCF needs OpenVINO.
_lock = threading.RLock()


def _renew_lock() -> None:
    # Another thread of the parent may have held it at the fork.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def import_openvino() -> ModuleType:
    """Import ``openvino`` without telemetry and return it.

    Raises:
        MissingExtraError: OpenVINO is not installed.
    """
    with _lock:
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
    with _lock:
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
