"""A run folder: one process writes it, its configuration is recorded, it can be resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import yaml

from vinoreward.errors import ConfigError, ModelCorruptError, ModelNotFoundError, RunFolderError
from vinoreward.files import (
    open_plain,
    read_state,
    reason_of,
    write_bytes,
    write_text,
)

CONFIG = "config.yaml"
NEVER_FROM_A_FILE = ("trust_run",)
"""No file says how far it is to be trusted."""


def plain(value: Any) -> Any:
    """Turn dataclasses, paths and tuples into what YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def plain_numbers(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinity become null, arrays become lists."""
    if isinstance(value, Mapping):
        return {str(key): plain_numbers(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [plain_numbers(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def ensure_dir(folder: Path) -> Path:
    """Return a folder of a run after making it if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be created: {error.strerror or error}. Expected a writable folder; "
            "remove what is in its place, or choose another with --out."
        ) from error
    return folder


@contextlib.contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Raise a RunFolderError that says what is ``expected`` if the block cannot read a file."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {reason_of(error)}. Expected {expected}."
        ) from error


def read_tensors(path: Path) -> dict[str, Any]:
    """Read what a training wrote with :func:`~vinoreward.files.save_state`."""
    try:
        return read_state(path)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"no file {path}. Expected what a training of vinoreward writes; check the folder, or "
            "train first."
        ) from error
    except (ModelCorruptError, OSError) as error:
        raise ModelCorruptError(
            f"{path} cannot be read as plain tensors: {error}. Expected a whole file, as a "
            "training of vinoreward writes it; restore it or train again."
        ) from error


class RunFolder:
    """Locks a folder for the length of a ``with`` block; creates it if it is missing.

    Args:
        path: the folder.
        config: recorded as ``config.yaml`` (a dataclass or a mapping of plain data).
        resume: continue the run that is there; otherwise a folder with a run is refused.
        again: the command that continues the run, printed after Ctrl-C.
    """

    def __init__(
        self, path: Path, config: Any, *, resume: bool = False, again: str | None = None
    ) -> None:
        self.path = Path(path)
        self._config, self._resume, self._again = config, resume, again
        self._lock: IO[bytes] | None = None
        self._new = False
        self._before: bytes | None = None

    def __enter__(self) -> Path:
        """Lock the folder and record the configuration; return the folder's path."""
        recorded = self.path / CONFIG
        self._new = not self.path.exists()
        self._lock = lock_folder(ensure_dir(self.path))
        if recorded.exists() and not self._resume:
            self._unlock()
            raise ConfigError(
                f"{self.path} already holds a run. Expected a new folder; add --resume to continue "
                "that run or choose another folder with --out."
            )
        settings = plain(self._config)
        for name in NEVER_FROM_A_FILE:
            settings.pop(name, None)
        try:
            self._before = recorded.read_bytes() if recorded.is_file() else None
            write_text(recorded, yaml.safe_dump(settings, sort_keys=False))
        except RunFolderError:
            self._unlock()
            raise
        return self.path

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Unlock the folder; a run that failed leaves the configuration that was there.

        A new one that failed before it wrote anything leaves nothing.
        """
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            if self._again is not None:
                print(f"\nContinue with: {self._again}")
        elif kind is not None and self._before is not None:
            write_bytes(self.path / CONFIG, self._before)
        elif kind is not None and self._empty():
            (self.path / CONFIG).unlink(missing_ok=True)
            if self._new:
                shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):  # of a full disk
                self._lock.close()
        self._lock = None

    def _empty(self) -> bool:
        files = {file.name for file in self.path.rglob("*") if not file.is_dir()}
        return files <= {CONFIG, ".lock"}


def lock_folder(folder: Path) -> IO[bytes]:
    """Return the lock of a folder, which names this process; RunFolderError if another has it."""
    try:
        lock = open_plain(folder / ".lock", "a+b")
    except OSError as error:
        raise RunFolderError(
            f"cannot write the run folder {folder}: {error.strerror or error}. Expected a "
            "writable folder; choose another with --out."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read(20).decode("ascii", "replace").strip() or "unknown"
        lock.close()
        raise RunFolderError(
            f"the run folder {folder} is in use by process {holder}. Expected one writer; "
            "wait for it, stop it, or choose another folder with --out."
        ) from error
    with contextlib.suppress(OSError):  # a full disk, of which the first real file will tell
        lock.truncate(0)
        lock.write(str(os.getpid()).encode("ascii"))
        lock.flush()
    return lock
