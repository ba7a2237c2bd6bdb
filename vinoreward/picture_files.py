"""Reading picture files, which may be anybody's: plain files of few formats and of bounded size."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vinoreward.errors import InputError
from vinoreward.files import open_to_read

FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
"""PIL opens many more, some by starting other programs."""
MAX_PIXELS = 4096 * 4096
"""Checked in the header, before a pixel is decoded."""
MAX_BYTES = 128 * 2**20
"""Of the file; a BMP of so many pixels has fewer."""

MAX_SCANS = 100
"""Of a JPEG; those that a program writes have a dozen."""
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
_END, _SCAN = 0xD9, 0xDA

# What PIL's readers raise for damaged files.
_DAMAGED = (
    OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, ArithmeticError,
    AttributeError, struct.error, zlib.error,
)  # fmt: skip


def read_picture(path: str | Path) -> NDArray[np.uint8]:
    """Read a PNG, JPEG, BMP or WebP file of at most 4096 x 4096 pixels and 128 MiB.

    Returns:
        ``(H, W, 3)`` uint8 RGB.

    Raises:
        InputError: no plain file, another format, too large, or damaged.
    """
    try:
        with open_to_read(path, MAX_BYTES) as stream:
            _check_scans(stream)
            with Image.open(stream, formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > MAX_PIXELS:
                    raise InputError(f"it has {width}x{height} pixels (width x height)")
                return np.asarray(opened.convert("RGB"), dtype=np.uint8)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise _unreadable(path, "it has far too many pixels") from error
    except _DAMAGED as error:
        raise _unreadable(path, str(error) or type(error).__name__) from error


def _check_scans(stream: IO[bytes]) -> None:
    """Refuse a JPEG that draws its pixels over and over: each scan of 33 bytes takes 12 ms."""
    if stream.read(2) == b"\xff\xd8":
        data, at, scans = stream.read(), 0, 0
        while found := _MARKER.search(data, at):
            kind, at = data[found.start() + 1], found.end()
            if kind == _END:
                break
            scans += kind == _SCAN
            at += int.from_bytes(data[at : at + 2], "big")  # its header; data hold no marker
        if scans > MAX_SCANS:
            raise InputError(f"it has {scans} scans")
    stream.seek(0)


def shown_name(path: str | Path) -> str:
    """Return a file's name as it can be printed, whatever characters are in it."""
    return "".join(
        part if part.isprintable() else part.encode("unicode_escape").decode("ascii")
        for part in str(path)
    )


def _unreadable(path: str | Path, why: str) -> InputError:
    return InputError(
        f"{shown_name(path)} cannot be read as a picture: {why}. Expected a whole PNG, JPEG, BMP "
        "or WebP file of at most 4096x4096 pixels and 128 MiB; delete or replace that file."
    )
