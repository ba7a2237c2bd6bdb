"""Reading picture files, which may be anybody's: plain files of few formats and of bounded size."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

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
        with (
            open_to_read(path, MAX_BYTES) as stream,
            Image.open(stream, formats=FORMATS) as opened,
        ):
            width, height = opened.size
            if width * height > MAX_PIXELS:
                raise _unreadable(path, f"it has {width}x{height} pixels (width x height)")
            return np.asarray(opened.convert("RGB"), dtype=np.uint8)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise _unreadable(path, "it has far too many pixels") from error
    except InputError:
        raise
    except _DAMAGED as error:
        raise _unreadable(path, str(error) or type(error).__name__) from error


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
