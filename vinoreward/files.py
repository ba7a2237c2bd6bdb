"""Atomic writing, never through links; reading of untrusted files; hashes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

from vinoreward.errors import RunFolderError

MAX_DEPTH = 32
"""Nesting of lists and tables in JSON."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; move it into place when the block succeeds.

    If the block raises or the process is killed, ``path`` stays as it was. A symbolic link at
    ``path`` is replaced, not followed. RunFolderError if the disk is full or the folder not
    writable.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}-", suffix=".part" + path.suffix, dir=path.parent
        )
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}. Expected a writable folder with free "
            "space; choose another folder or free some space, nothing was changed."
        ) from error
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        part.replace(path)
    except OSError as error:
        if isinstance(error, RunFolderError):
            raise
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}. Expected a writable folder with free "
            "space; the previous version, if any, is unchanged."
        ) from error
    finally:
        part.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with atomic_path(path) as part, open_plain(part, "wb") as stream:
        stream.write(data)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path`` atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON to ``path`` atomically; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def open_plain(path: Path, mode: Literal["wb", "ab", "a+b"]) -> IO[bytes]:
    """Open a file for writing and create it if needed; RunFolderError for a link, pipe or device.

    The folders above it may be links.
    """

    def opener(name: str, flags: int) -> int:
        # Windows has neither flag; without O_NONBLOCK a pipe without a reader blocks.
        safe = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        if Path(name).is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        # Truncated only after it proved to be a plain file.
        descriptor = os.open(name, (flags & ~os.O_TRUNC) | safe, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        return descriptor

    try:
        return open(path, mode, opener=opener)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        kind = "a symbolic link" if Path(path).is_symlink() else "no plain file"
        raise RunFolderError(
            f"{path} is {kind}, and would be written to. Expected a file of its own; remove it, "
            "or choose another folder."
        ) from error


@contextlib.contextmanager
def open_to_read(path: str | Path, limit: int) -> Iterator[IO[bytes]]:
    """Open an untrusted file of at most ``limit`` bytes; a link is followed, a pipe never blocks.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is no plain file, too large or unreadable, or no file can have its name.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except ValueError as error:  # a null character, or one that the file system cannot encode
        raise OSError(f"no file can have that name ({error})") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError("it is no plain file")
    with os.fdopen(descriptor, "rb") as stream:
        if status.st_size > limit:
            raise OSError(f"it has {status.st_size} bytes, more than {limit}")
        yield stream


def read_plain(path: str | Path, limit: int) -> bytes:
    """Return the content of an untrusted file; errors as :func:`open_to_read`."""
    with open_to_read(path, limit) as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(size + 1)
    if len(data) != size:
        raise OSError("it changes while it is read")
    return data


def read_json(path: str | Path, limit: int = 64 << 20) -> Any:
    """Return the value of an untrusted JSON file.

    Raises:
        FileNotFoundError, OSError: as :func:`open_to_read`.
        ValueError: it is no JSON in UTF-8, or is nested too deep.
    """
    return parse_json(read_plain(path, limit))


def parse_json(data: bytes) -> Any:
    """Return the value of JSON in UTF-8; ValueError as :func:`read_json`."""
    try:
        value = json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    check_depth(value)
    return value


def check_depth(value: object) -> None:
    """Raise ValueError for a value so deep that showing or copying it would fail."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for outer in level
            if isinstance(outer, (dict, list))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError("it is nested too deep")


def is_inside(folder: Path, path: Path) -> bool:
    """Return whether ``path``, links followed, is in ``folder``; False for a link to itself."""
    target = followed(path)
    return target is not None and target.is_relative_to(Path(folder).resolve())


def followed(path: Path) -> Path | None:
    """Return a path with links followed; None for a link to itself."""
    try:
        target = Path(path).resolve()
    except (OSError, RuntimeError):
        return None
    # Python 3.13 returns a loop; earlier versions raise.
    return None if target.is_symlink() else target


def refuse_links(folder: Path) -> None:
    """Raise RunFolderError if a link in a folder leads out of it, or a subfolder is unreadable.

    The folder itself may be a link.
    """
    root = Path(folder).resolve()
    waiting = [root]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.is_symlink():
                target = followed(Path(entry.path)) or Path("itself")
                if not target.is_relative_to(root):
                    raise RunFolderError(
                        f"{entry.path} is a link to {target}, out of the folder. Expected all of "
                        "a run's files in its own folder; remove the link, or replace it by what "
                        "it points to."
                    )
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be read: {error.strerror or error}. Expected readable folders in a "
            "run; check its permissions."
        ) from error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
