"""Checks of single values that the dataclasses of ``bundle.json`` share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

from vinoreward.bundles.reader import plain, shown
from vinoreward.errors import BundleError

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def wrong(name: str, found: object, expected: str, remedy: str = "correct the value") -> NoReturn:
    """Raise BundleError for the value called ``name``."""
    raise BundleError(f"{name[:80]} is {shown(found)}. Expected {expected}; {remedy}.")


def check_file_name(name: str) -> None:
    """Raise BundleError unless ``name`` is a plain relative name that stays within the folder."""
    if len(name) > 200 or not _FILE_NAME.fullmatch(name) or ".." in name.split("/"):
        wrong(
            "a file name in the bundle",
            name,
            "a plain relative name like pictures/roc.png, of letters, digits, '.', '_' and '-'",
            "do not use this bundle unless you trust where it comes from",
        )


def finite(name: str, value: object) -> float:
    """Return ``value`` as a float, or raise BundleError unless it is a finite number."""
    found = plain(value, name)
    if type(found) not in (int, float):
        wrong(name, found, "a number")
    return float(found)


def one_of(name: str, found: object, allowed: tuple[str, ...]) -> None:
    """Raise BundleError unless ``found`` is one of ``allowed``."""
    if found not in allowed:
        wrong(name, found, " or ".join(allowed))


def printable(name: str, found: object) -> None:
    """Raise BundleError unless ``found`` is a short text on one line."""
    if not isinstance(found, str) or not 1 <= len(found.strip()) <= 200 or not found.isprintable():
        wrong(name, found, "a printable name of 1 to 200 characters")


def texts(name: str, found: Mapping[str, str]) -> dict[str, str]:
    """Return ``found`` as a plain dict, or raise BundleError unless all values are strings."""
    values = plain(found, name)
    for key, item in values.items():
        if not isinstance(item, str):
            wrong(f"{name}.{key}", item, "a string")
    return dict(values)
