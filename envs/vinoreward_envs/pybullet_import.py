"""Import PyBullet quietly, or say what is missing and what works without it."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from vinoreward.errors import MissingExtraError, install_command

_STDERR = 2
_BANNER = re.compile(rb"pybullet build time: [^\n]*\n")


def import_pybullet(purpose: str) -> ModuleType:
    """Return the ``pybullet`` module.

    Args:
        purpose: the argument that asked for it, for the error's message: ``'camera="tiny"'``.

    Raises:
        MissingExtraError: PyBullet is not installed; on Python 3.12 and later the message says
            that there is no wheel.
    """
    if "pybullet" in sys.modules and sys.modules["pybullet"] is not None:
        return sys.modules["pybullet"]
    try:
        with _without_banner():
            return importlib.import_module("pybullet")
    except ImportError as error:
        raise MissingExtraError(missing_pybullet(purpose, sys.version_info[:2])) from error


def missing_pybullet(purpose: str, python: tuple[int, int]) -> str:
    """Return the message for an absent PyBullet on that version of Python."""
    instead = 'motion="kinematic" with camera="fast" (the defaults) works without it'
    if python >= (3, 12):
        return (
            f"{purpose} needs PyBullet, which is not installed: PyBullet has wheels for Python "
            f"3.10 and 3.11 only and this is Python {python[0]}.{python[1]}. Use Python 3.10 or "
            f"3.11 and {install_command('panda')}, or build it here (pip install pybullet; "
            f"needs a C++ compiler), or note that {instead}."
        )
    return (
        f"{purpose} needs PyBullet, which is not installed. Run: "
        f"{install_command('panda')}. Or note that {instead}."
    )


def pybullet_data_folder() -> Path:
    """Return the folder of PyBullet's models (it comes with PyBullet)."""
    return Path(importlib.import_module("pybullet_data").getDataPath())


@contextlib.contextmanager
def _without_banner() -> Iterator[None]:
    """Keep PyBullet's build time off the terminal; pass everything else on.

    The C code writes it to the file descriptor, past ``sys.stderr``.
    """
    try:
        kept = os.dup(_STDERR)
    except OSError:  # No standard error: nothing can be printed there.
        yield
        return
    with tempfile.TemporaryFile() as written:
        try:
            os.dup2(written.fileno(), _STDERR)
            try:
                yield
            finally:
                os.dup2(kept, _STDERR)
        finally:
            os.close(kept)
        written.seek(0)
        rest = _BANNER.sub(b"", written.read())
    if rest:
        os.write(_STDERR, rest)
