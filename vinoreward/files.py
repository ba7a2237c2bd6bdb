"""Files written whole or not at all, never through a link; hashes of what was written."""

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
"""Of lists and tables in each other."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; move it into place when the block succeeds.

    A block that raises, or a process that is killed, leaves ``path`` as it was. A symbolic link at
    ``path`` is replaced; what it points to stays as it is.

    Raises:
        RunFolderError: the folder cannot be written or the disk is full.
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
    """Open a file to write it, made if it is not there; never what a symbolic link points to.

    Folders above it may be links: whoever names a folder may name it by a link.

    Raises:
        RunFolderError: a link, a pipe or a device is in the file's place.
        OSError: the folder cannot be written.
    """

    def opener(name: str, flags: int) -> int:
        # Windows has neither flag; a pipe must not keep us waiting for somebody at its other end.
        safe = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        if Path(name).is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        # Emptied only once it is known to be a plain file.
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
        found = "a symbolic link" if Path(path).is_symlink() else "no plain file"
        raise RunFolderError(
            f"{path} is {found}, and would be written to. Expected a file of its own; remove it, "
            "or choose another folder."
        ) from error


@contextlib.contextmanager
def open_to_read(path: str | Path, limit: int) -> Iterator[IO[bytes]]:
    """Open a file that may be anybody's, within the block; a link is followed.

    Args:
        path: of a plain file. A pipe or a device is refused and does not keep us waiting.
        limit: bytes that it may have.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is no plain file, is larger, cannot be read, or has a name that none can have.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except ValueError as error:  # a zero in its name, or letters that the system cannot write
        raise OSError(f"no file can have that name ({error})") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError("it is no plain file")
    with os.fdopen(descriptor, "rb") as stream:
        if found.st_size > limit:
            raise OSError(f"it has {found.st_size} bytes, more than {limit}")
        yield stream


def read_plain(path: str | Path, limit: int) -> bytes:
    """Return the content of a file that may be anybody's; see :func:`open_to_read`."""
    with open_to_read(path, limit) as stream:
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(size + 1)
    if len(data) != size:
        raise OSError("it changes while it is read")
    return data


def read_json(path: str | Path, limit: int = 64 << 20) -> Any:
    """Return the value of a JSON file that may be anybody's.

    Raises:
        FileNotFoundError: there is none.
        OSError: see :func:`open_to_read`.
        ValueError: it is no JSON in UTF-8, or is nested too deep for those who use it.
    """
    return parse_json(read_plain(path, limit))


def parse_json(data: bytes) -> Any:
    """Return the value of JSON, see :func:`read_json`."""
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
            for found in level
            if isinstance(found, (dict, list))
            for item in (found.values() if isinstance(found, dict) else found)
        ]
        if not level:
            return
    raise ValueError("it is nested too deep")


def is_inside(folder: Path, path: Path) -> bool:
    """Say whether ``path``, links followed, lies within ``folder``; the folder may be a link.

    A link to itself lies nowhere.
    """
    target = followed(path)
    return target is not None and target.is_relative_to(Path(folder).resolve())


def followed(path: Path) -> Path | None:
    """Return where a path leads, links followed; None for a link to itself."""
    try:
        target = Path(path).resolve()
    except (OSError, RuntimeError):
        return None
    # Python 3.13 returns a loop where those before it raise.
    return None if target.is_symlink() else target


def refuse_links(folder: Path) -> None:
    """Refuse a folder that holds a symbolic link out of it; links that stay within are allowed.

    The folder itself may be a link.

    Raises:
        RunFolderError: there is such a link, or one to itself, or a folder cannot be read.
    """
    root = Path(folder).resolve()
    waiting = [root]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.is_symlink():
                target = followed(Path(entry.path)) or Path("itself")
                if not target.is_relative_to(root):
                    raise RunFolderError(
                        f"{entry.path} is a link to {target}, out of the folder. Expected that "
                        "a run's files lie within it, as nothing else is read or written; "
                        "remove the link, or put what it points to in its place."
                    )
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be read: {error.strerror or error}. Expected that all folders of a "
            "run can be looked into; check its permissions."
        ) from error


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
