"""Atomic writing, never through links; reading of untrusted files, archives and arrays; hashes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ModelCorruptError, RunFolderError

MAX_DEPTH = 32
"""Nesting of lists and tables in JSON."""
MAX_STATE = 64 << 30
"""Bytes of a checkpoint, which may hold a replay of images."""
MAX_DIRECTORY = 8 << 20
"""Bytes of an archive's table of members; in Python it takes about ten times as many."""
MAX_HEADER = 1 << 20
"""Bytes of the table of tensors in a safetensors file; one of 10,000 tensors needs as many."""

DAMAGED = (
    OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, TypeError, LookupError,
    AttributeError, NotImplementedError, RuntimeError, MemoryError, ArithmeticError, SyntaxError,
    struct.error, tokenize.TokenError,
)  # fmt: skip
"""What Python's readers raise for damaged files."""


def cache_folder(kind: str) -> Path:
    """Return the user's folder for what can be computed again; it need not be there."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "vinoreward" / kind


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to ``path`` when the block succeeds.

    Otherwise ``path`` stays as it was. A symbolic link at ``path`` is replaced, not followed.
    RunFolderError if the disk is full or the folder not writable.
    """
    path = Path(path)
    part = path.with_name(f".{path.stem}-{os.urandom(4).hex()}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch(exist_ok=False)
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    except OSError as error:
        if isinstance(error, RunFolderError):
            raise
        raise RunFolderError(
            f"cannot write {path}: {error.strerror or error}. Expected a writable folder with free "
            "space; choose another one or free some space, the previous version is unchanged."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically."""
    with atomic_path(path) as part:
        part.write_bytes(data)


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

    path = Path(path)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a symbolic link" if path.is_symlink() else "no plain file"
        raise RunFolderError(
            f"{path} is {kind}, and would be written to. Expected a file of its own; remove it, "
            "or choose another folder."
        )
    return open(path, mode)


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
    """Return the value of an untrusted JSON file; errors of both functions that it calls."""
    return parse_json(read_plain(path, limit))


def parse_json(data: bytes) -> Any:
    """Return the value of JSON in UTF-8.

    ValueError for anything else: also for NaN, a key twice, and what is nested so deep that
    copying it would fail.
    """
    try:
        value = json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_table
        )
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    level = [value]
    for _ in range(MAX_DEPTH):
        tables = [list(each.values()) if isinstance(each, dict) else each for each in level]
        level = [item for each in tables if isinstance(each, list) for item in each]
    if level:
        raise ValueError("it is nested too deep")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that JSON knows")


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {shown(twice)!r} stands twice")
    return table


def is_inside(folder: Path, path: Path) -> bool:
    """Return whether ``path``, links followed, is in ``folder``; False for a link to itself."""
    target = os.path.realpath(path)
    return not os.path.islink(target) and Path(target).is_relative_to(os.path.realpath(folder))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a dict of tensors and plain data for :func:`read_state`, atomically.

    Memory holds it twice meanwhile. RunFolderError if the disk is full or the folder not writable.
    """
    import torch

    # torch.save reports a full disk as an unclear RuntimeError; writing bytes names it.
    stream = io.BytesIO()
    torch.save(state, stream)
    write_bytes(path, stream.getvalue())


def read_state(path: Path) -> dict[str, Any]:
    """Read a dict that :func:`save_state` wrote: your own, its size and cost are not limited.

    ``torch.load`` runs no code of it. Values are CPU tensors and plain data.

    Raises:
        FileNotFoundError: there is no such file.
        ModelCorruptError: it holds anything else or is damaged; the message has only the reason.
    """
    try:
        with open_to_read(path, MAX_STATE) as stream:
            state = load_tensors(stream)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ModelCorruptError(reason_of(error)) from error
    if not isinstance(state, dict):
        raise ModelCorruptError(f"it holds a {type(state).__name__}, where a table is expected")
    return state


def load_tensors(stream: IO[bytes]) -> Any:
    """Return what ``torch.load`` reads without running code; ModelCorruptError, only the reason."""
    import torch

    try:
        return torch.load(stream, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, *DAMAGED) as error:
        # Without PyTorch's advice to trust the file.
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].split(". ")[0]
        raise ModelCorruptError(reason_of(ValueError(reason or type(error).__name__))) from error


def check_names(state: Mapping[str, Any], **known: Collection[str]) -> None:
    """Raise ModelCorruptError, with only the reason, unless parts are dicts of known names."""
    for part, names in known.items():
        table = state.get(part)
        if not isinstance(table, dict) or not set(table) <= set(names):
            raise ModelCorruptError(f"its {part} are {shown(list(table) if table else table)}")


def check_counts(counts: Mapping[str, object]) -> None:
    """Raise ModelCorruptError, as :func:`check_names` does, unless these are numbers from 0 on."""
    for name, count in counts.items():
        if type(count) not in (int, float) or not 0 <= count < 1 << 63:  # type: ignore[operator]
            raise ModelCorruptError(f"{shown(name)} is {shown(count)}")


def check_header(content: bytes) -> None:
    """Raise ValueError if a safetensors header is too large; the first 8 bytes are enough."""
    if (size := int.from_bytes(content[:8], "little")) > MAX_HEADER:
        raise ValueError(f"its table of tensors has {size} bytes, more than {MAX_HEADER}")


def open_archive(stream: IO[bytes], limit: int) -> zipfile.ZipFile:
    """Open a zip archive whose members, unpacked, have at most ``limit`` bytes together.

    Raises one of ``DAMAGED`` otherwise. Read members in bounded parts: ``stream.read(size)``.
    """
    end = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, end - 42))
    tail = stream.read(42)
    if tail[-22:-18] != b"PK\5\6" or tail[-2:] != b"\0\0" or tail[:4] == b"PK\6\7":
        raise ValueError("it is no zip archive of less than 4 GiB, or continues after its end")
    # zipfile reads it as a whole.
    if (size := int.from_bytes(tail[-10:-6], "little")) > MAX_DIRECTORY:
        raise ValueError(f"its table of members has {size} bytes")
    archive = zipfile.ZipFile(stream)
    for member in archive.infolist():  # Python unpacks BZ2 and LZMA without any bound
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"it is packed by method {member.compress_type}, which is not read")
    if (size := sum(member.file_size for member in archive.infolist())) > limit:
        raise ValueError(f"it unpacks to {size} bytes, more than {limit}")
    return archive


def read_npz(data: bytes, limit: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file, of at most ``limit`` bytes together, by name.

    ModelCorruptError, with only the reason, if it holds anything but numbers, flags and text, or is
    damaged.
    """
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with open_archive(io.BytesIO(data), limit) as archive:
            for member in archive.infolist():
                with archive.open(member) as stream:
                    array = np.lib.format.read_array(stream, allow_pickle=False)
                if array.dtype.kind not in "biufU":
                    kind = shown(array.dtype)
                    raise ValueError(f"an array of {kind}, where numbers and text are known")
                arrays[member.filename.removesuffix(".npy")] = array
    except DAMAGED as error:
        raise ModelCorruptError(reason_of(error)) from error
    return arrays


def reason_of(error: BaseException) -> str:
    """Return an error's text for a message: short, in one line, never empty."""
    text = shown(error).rstrip(".")
    if not text or isinstance(error, LookupError):  # whose text is only the key
        return f"{type(error).__name__} {text}".strip()
    return text


def shown(value: object, most: int = 200) -> str:
    """Return a text from a file for a message: short, printable, in one line."""
    text = " ".join(str(value).split())[:most]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
