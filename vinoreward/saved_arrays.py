"""NumPy's files and zip archives from anybody: plain numbers, in no more memory than is stated."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ModelCorruptError

MAX_DIRECTORY = 8 << 20
"""Bytes of an archive's table of members, of which Python makes about ten times as many."""
MAX_ARRAY_HEADER = 10_000

DAMAGED = (
    OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, TypeError, LookupError,
    AttributeError, NotImplementedError, RuntimeError, MemoryError, ArithmeticError, SyntaxError,
    struct.error, tokenize.TokenError,
)  # fmt: skip
"""What Python's readers raise; which of them depends on the bytes that are wrong."""


def open_archive(stream: IO[bytes], limit: int, *, packed: bool = True) -> zipfile.ZipFile:
    """Open a zip archive whose members, unpacked, have at most ``limit`` bytes together.

    Read members with :func:`member_bytes`, or in parts of bounded size.

    Args:
        stream: of the archive.
        limit: in bytes.
        packed: whether members may be deflated. Python unpacks BZ2 and LZMA without any bound.

    Raises:
        ValueError, zipfile.BadZipFile, NotImplementedError: it is larger, or no such archive.
    """
    _check_directory(stream)
    archive = zipfile.ZipFile(stream)
    allowed = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} if packed else {zipfile.ZIP_STORED}
    for member in archive.infolist():
        if member.compress_type not in allowed or member.flag_bits & 1:
            raise ValueError(
                f"{shown(member.filename)} is packed by method {member.compress_type}"
                f"{' and encrypted' * (member.flag_bits & 1)}, which is not read"
            )
    size = sum(member.file_size for member in archive.infolist())
    if size > limit:
        raise ValueError(f"it unpacks to {size} bytes, more than {limit}")
    return archive


def _check_directory(stream: IO[bytes]) -> None:
    """Raise ValueError if the table of members, which zipfile reads as a whole, is too large."""
    end = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, end - 98))
    tail = stream.read(98)
    if len(tail) < 22 or tail[-22:-18] != b"PK\5\6" or tail[-2:] != b"\0\0":
        raise ValueError("it is no zip archive, or has something behind its end")
    size = int.from_bytes(tail[-10:-6], "little")
    if tail[-42:-38] == b"PK\6\7":  # larger than 4 GiB: the record before the end has its sizes
        if int.from_bytes(tail[-34:-26], "little") != end - 98:
            raise ValueError("it is no zip archive")
        size = max(size % 0xFFFFFFFF, int.from_bytes(tail[-58:-50], "little"))
    if size > MAX_DIRECTORY:
        raise ValueError(f"its table of members has {size} bytes")


def member_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return a member's content, unpacked to no more than its stated size.

    Raises:
        ValueError, zipfile.BadZipFile, zlib.error: it has another size, or is damaged.
    """
    with archive.open(member) as stream:
        # One more than there should be: data that are packed may be more than is stated.
        data = stream.read(member.file_size + 1)
    if len(data) != member.file_size:
        raise ValueError(f"{shown(member.filename)} does not have its {member.file_size} bytes")
    return data


def read_npz(data: bytes, limit: int, *, packed: bool = True) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name.

    Args:
        data: content of the file.
        limit: bytes of all arrays together.
        packed: whether it may be of ``numpy.savez_compressed``.

    Raises:
        ModelCorruptError: it holds anything but arrays of numbers, flags and text, or is damaged;
            the message says why and nothing else.
    """
    try:
        with open_archive(io.BytesIO(data), limit, packed=packed) as archive:
            return {
                member.filename.removesuffix(".npy"): _array(member_bytes(archive, member))
                for member in archive.infolist()
            }
    except DAMAGED as error:
        raise ModelCorruptError(reason_of(error)) from error


def read_npy(data: bytes) -> NDArray[Any]:
    """Return the array of an ``.npy`` file, see :func:`read_npz`."""
    try:
        return _array(data)
    except DAMAGED as error:
        raise ModelCorruptError(reason_of(error)) from error


def _array(data: bytes) -> NDArray[Any]:
    """Return the array of an ``.npy`` file; it must be as long as its header says."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(stream, MAX_ARRAY_HEADER)
    elif version == (2, 0):
        header = np.lib.format.read_array_header_2_0(stream, MAX_ARRAY_HEADER)
    else:
        raise ValueError(f"an array of format {version}")
    shape, by_columns, dtype = header
    if dtype.kind not in "biufU" or dtype.itemsize == 0:
        raise ValueError(f"an array of {shown(dtype)}, where numbers, flags and text are known")
    if math.prod(shape) * dtype.itemsize != len(data) - stream.tell() or min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape} in {len(data)} bytes")
    flat = np.frombuffer(data, dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if by_columns else "C").copy()


def reason_of(error: BaseException) -> str:
    """Return what a message says of an error: short, in one line, never empty."""
    text = shown(error).rstrip(".")
    if not text or isinstance(error, LookupError):  # whose text is what was looked for
        return f"{type(error).__name__} {text}".strip()
    return text


def shown(value: object, most: int = 200) -> str:
    """Return a text from a file as a message shows it: short, printable, in one line."""
    text = " ".join(str(value).split())[:most]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
