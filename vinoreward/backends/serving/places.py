"""The private folder in which services are found, and locks that end with their process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vinoreward.errors import ServiceError
from vinoreward.files import read_json, write_json

FOLDER = "VINOREWARD_RUNTIME_DIR"
"""Variable that names the folder."""
_LONGEST = 100
"""Bytes of a socket's path; the system takes 107."""


def runtime_folder() -> Path:
    """Return the folder of this user's services; made if needed.

    ServiceError unless it is this user's own, and nobody else can enter it.
    """
    named, session = os.environ.get(FOLDER), os.environ.get("XDG_RUNTIME_DIR")
    user = os.geteuid()
    if named:
        folder = Path(os.path.abspath(named))
    elif session and os.path.isabs(session) and _private(Path(session), user) is None:
        folder = Path(session) / "vinoreward"
    else:
        folder = Path(tempfile.gettempdir()) / f"vinoreward-{user}"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        problem = _private(folder, user)
    except OSError as error:
        problem = error.strerror or str(error)
    if problem is not None:
        raise ServiceError(
            f"the service's folder {folder} cannot be used: {problem}. Expected a folder of this "
            f"user with the permissions 700; correct it (chmod 700), or set {FOLDER} to another."
        )
    return folder


def _private(folder: Path, user: int) -> str | None:
    """Return why a folder is not private; None if it is."""
    try:
        status = folder.lstat()
    except OSError as error:
        return error.strerror or str(error)
    if not stat.S_ISDIR(status.st_mode):
        return "it is no folder"
    if status.st_uid != user:
        return f"it belongs to user {status.st_uid}, not to {user}"
    if status.st_mode & 0o077:
        return f"others can enter it (permissions {stat.S_IMODE(status.st_mode):o})"
    return None if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"


class Lock:
    """A lock on a file, which ends with its process at the latest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self, *, shared: bool = False, wait: bool = False) -> bool:
        """Lock, making the file if needed; return whether it worked. Also changes a lock held."""
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        while True:
            if self._descriptor is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self.path, flags, 0o600)
            try:
                fcntl.flock(self._descriptor, how)
            except BlockingIOError:
                self.release()
                return False
            # Its holder may have removed the file while we waited: then it locks nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._descriptor), os.stat(self.path)):
                    return True
            self.release()

    def release(self) -> None:
        """Unlock; the file stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        self.release()  # of a caller that was never closed

    def remove(self) -> None:
        """Remove the file, while the lock is held, and unlock."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self.release()


class Place:
    """The files of one service in a runtime folder."""

    def __init__(self, folder: Path, stem: str) -> None:
        self.folder = folder
        self.stem = stem
        self.socket = folder / f"{self.stem}.sock"
        self.lock = Lock(folder / f"{self.stem}.lock")
        """Held by the service as long as it lives."""
        self.members = Lock(folder / f"{self.stem}.members")
        """Shared by the callers of a named service as long as they live."""
        self.swapped = folder / f"{self.stem}.swapped.json"
        """The latest networks of a named service."""

    @contextlib.contextmanager
    def address(self) -> Iterator[str]:
        """Yield the socket's path, short enough for the system."""
        if len(os.fsencode(self.socket)) <= _LONGEST:
            yield str(self.socket)
            return
        descriptor = os.open(self.folder, os.O_PATH | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/{self.socket.name}"
        finally:
            os.close(descriptor)

    def connect(self) -> socket.socket | None:
        """Return a connection to the service; None if there is none."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with self.address() as address:
                connection.connect(address)
        except (FileNotFoundError, ConnectionError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        return connection

    def listen(self) -> socket.socket:
        """Return the service's socket; the caller holds the lock."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        before = os.umask(0o177)
        try:
            with self.address() as address:
                listener.bind(address)
        finally:
            os.umask(before)
        listener.listen(1024)
        return listener

    @contextlib.contextmanager
    def starting(self) -> Iterator[bool]:
        """Yield whether this caller, and no other, starts a service now."""
        # The folder itself is locked, so that no file is left.
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            mine = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                mine = False
            yield mine
        finally:
            os.close(descriptor)

    def join(self) -> bool:
        """Become a caller of a named service; return whether there is no other."""
        alone = self.members.take()
        if alone:
            # What is left of callers that were all killed does not concern this one.
            with contextlib.suppress(FileNotFoundError):
                self.swapped.unlink()
        self.members.take(shared=True, wait=True)
        return alone

    def leave(self) -> None:
        """Stop being a caller."""
        self.members.release()

    def read_swapped(self) -> dict[str, Any] | None:
        """Return what :meth:`write_swapped` wrote; None if there is nothing."""
        try:
            return dict(read_json(self.swapped))
        except FileNotFoundError:
            return None

    def write_swapped(self, state: dict[str, Any]) -> None:
        """Write the latest networks for the service's successors."""
        write_json(self.swapped, state)

    def clear(self) -> None:
        """Remove the files, as a service that holds its lock does at its end."""
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()
        if self.members.path.exists() and self.members.take():
            with contextlib.suppress(FileNotFoundError):
                self.swapped.unlink()
            self.members.remove()
        self.lock.remove()

    def sweep(self) -> None:
        """Remove what killed services left."""
        left = [*self.folder.glob("*.lock"), *self.folder.glob("*.members")]
        for stem in {path.stem for path in left} - {self.stem}:
            other = Place(self.folder, stem)
            if other.lock.take():
                other.clear()
