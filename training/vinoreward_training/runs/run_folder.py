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
    is_inside,
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


def made(folder: Path) -> Path:
    """Return a folder of a run after making it if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be made: {error.strerror or error}. Expected a writable folder, as "
            "the run writes into it; remove what is in its place."
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
            "training of vinoreward writes it; restore it or make it anew."
        ) from error


def refuse_links(folder: Path) -> None:
    """Raise RunFolderError if a link in a folder leads out of it, or a subfolder is unreadable.

    The folder itself may be a link.
    """
    for here, folders, files in os.walk(folder, onerror=_unreadable):
        for path in (Path(here, name) for name in (*folders, *files)):
            if path.is_symlink() and not is_inside(folder, path):
                raise RunFolderError(
                    f"{path} is a link to {os.path.realpath(path)}, out of the folder. Expected "
                    "all of a run's files in its own folder; remove the link, or replace it by "
                    "what it points to."
                )


def _unreadable(error: OSError) -> None:
    raise RunFolderError(
        f"{error.filename} cannot be read: {error.strerror or error}. Expected readable folders in "
        "a run; check its permissions."
    ) from error


class RunFolder:
    """Locks a folder for the length of a ``with`` block; makes it if it is missing.

    Refuses a folder with links out of it: a folder from somebody else must not have us write
    elsewhere.

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
        self._made = False
        self._before: tuple[bytes, dict[str, int]] | None = None

    def __enter__(self) -> Path:
        """Take the lock and record the configuration; return the folder's path."""
        try:
            self._made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_links(self.path)
            lock = open_plain(self.path / ".lock", "a+b")
        except RunFolderError:
            raise
        except OSError as error:
            raise RunFolderError(
                f"cannot write the run folder {self.path}: {error.strerror or error}. Expected a "
                "writable folder; choose another with --out."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read(20).decode("ascii", "replace").strip() or "unknown"
            lock.close()
            raise RunFolderError(
                f"the run folder {self.path} is in use by process {holder}. Expected one writer; "
                "wait for it, stop it, or choose another folder with --out."
            ) from error
        try:
            lock.truncate(0)
            lock.write(str(os.getpid()).encode("ascii"))
            lock.flush()
        except OSError as error:
            with contextlib.suppress(OSError):  # closing tries to write it once more
                lock.close()
            raise RunFolderError(
                f"the run folder {self.path} cannot be written: {error.strerror or error}. "
                "Expected free space; make some, or choose another folder with --out."
            ) from error
        self._lock = lock
        recorded = self.path / CONFIG
        if recorded.exists() and not self._resume:
            self.__exit__(None)
            raise ConfigError(
                f"{self.path} already holds a run. Expected a new folder; add --resume to continue "
                "that run or choose another folder with --out."
            )
        settings = plain(self._config)
        for name in NEVER_FROM_A_FILE:
            settings.pop(name, None)
        try:
            if recorded.is_file():
                self._before = (recorded.read_bytes(), self._written())
            write_text(recorded, yaml.safe_dump(settings, sort_keys=False))
        except RunFolderError:
            self.__exit__(None)
            raise
        return self.path

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Give the folder back; a run that failed before it wrote anything leaves it as it was."""
        if self._lock is None:
            return
        if self._again is not None and kind is not None and issubclass(kind, KeyboardInterrupt):
            print(f"\nContinue with: {self._again}")
        elif kind is not None and self._before is not None:
            if self._written() == self._before[1]:
                write_bytes(self.path / CONFIG, self._before[0])
        elif kind is not None and self._empty():
            (self.path / CONFIG).unlink(missing_ok=True)
            if self._made:
                shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        self._lock = None

    def _written(self) -> dict[str, int]:
        """Return when each part of the folder was written, but for what is written here."""
        return {
            entry.name: entry.stat(follow_symlinks=False).st_mtime_ns
            for entry in os.scandir(self.path)
            if entry.name not in (CONFIG, ".lock")
        }

    def _empty(self) -> bool:
        files = {file.name for file in self.path.rglob("*") if not file.is_dir()}
        return files <= {CONFIG, ".lock"}
