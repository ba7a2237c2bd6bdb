"""Import PyBullet, or say what is missing and what works without it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from vinoreward.errors import MissingExtraError


def import_pybullet(purpose: str) -> ModuleType:
    """Return the ``pybullet`` module.

    Args:
        purpose: the argument that asked for it, for the error's message: ``'camera="tiny"'``.

    Raises:
        MissingExtraError: PyBullet is not installed; on Python 3.12 and later the message says
            that it cannot be.
    """
    try:
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
            f"3.11 and pip install 'vinoreward[panda]', or note that {instead}."
        )
    return (
        f"{purpose} needs PyBullet, which is not installed. Run: "
        f"pip install 'vinoreward[panda]'. Or note that {instead}."
    )


def pybullet_data_folder() -> Path:
    """Return the folder of PyBullet's models (it comes with PyBullet)."""
    return Path(importlib.import_module("pybullet_data").getDataPath())
