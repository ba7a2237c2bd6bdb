"""Reading JSON from strangers: every key is asked for by name and type, what is left is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from vinoreward.errors import BundleError
from vinoreward.files import check_depth

_DEPTH = 8


class Fields:
    """The keys of one JSON object, taken one by one; :meth:`done` refuses what nobody took.

    Args:
        value: what the JSON holds at this place.
        where: name of the place for messages, e.g. ``bundle.json: picture``.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise BundleError(
                f"{where} is {shown(value)}. Expected an object with named keys; correct the file "
                "or save the bundle again."
            )
        self._left = dict(value)
        self._where = where

    def wrong(self, key: str, found: object, expected: str) -> NoReturn:
        """Raise BundleError for the value of ``key``."""
        raise BundleError(
            f"{self._where}: {key} is {shown(found)}. Expected {expected}; correct the file or "
            "save the bundle again."
        )

    def take(self, key: str, *default: Any) -> Any:
        """Return the raw value of ``key``; without it the default, or BundleError if none."""
        if key in self._left:
            return self._left.pop(key)
        if default:
            return default[0]
        raise BundleError(
            f"{self._where} has no {key!r}. Expected that key; add it or save the bundle again."
        )

    def text(self, key: str, *default: Any) -> Any:
        """Return a string; a default is returned as it is."""
        return self._typed(key, (str,), "a string", default)

    def flag(self, key: str, *default: Any) -> Any:
        """Return true or false."""
        return self._typed(key, (bool,), "true or false", default)

    def integer(self, key: str, *default: Any) -> Any:
        """Return a whole number; true and false are none."""
        return self._typed(key, (int,), "a whole number", default)

    def number(self, key: str, *default: Any) -> Any:
        """Return a finite float; whole numbers are converted."""
        if key not in self._left:
            return self.take(key, *default)
        return self._number(key, self.take(key))

    def numbers(self, key: str, *default: Any) -> Any:
        """Return a tuple of finite floats."""
        return tuple(self._number(key, item) for item in self._items(key, default))

    def integers(self, key: str, *default: Any) -> Any:
        """Return a tuple of whole numbers, or None where the default is None."""
        found = self.take(key, *default)
        if found is None and default and default[0] is None:
            return None
        if not isinstance(found, (list, tuple)) or any(type(item) is not int for item in found):
            self.wrong(key, found, "a list of whole numbers")
        return tuple(found)

    def texts(self, key: str, *default: Any) -> Any:
        """Return a tuple of strings."""
        found = self._items(key, default)
        if any(not isinstance(item, str) for item in found):
            self.wrong(key, found, "a list of strings")
        return tuple(found)

    def mapping(self, key: str, *default: Any) -> Any:
        """Return an object whose content is free."""
        return self._typed(key, (dict,), "an object", default)

    def done(self) -> None:
        """Raise BundleError if a key is left that this version does not know."""
        if self._left:
            names = ", ".join(repr(name) for name in sorted(self._left))
            raise BundleError(
                f"{self._where} has the unknown key {names}. Expected only keys of this schema "
                "version; check the spelling, or upgrade vinoreward if a newer one wrote the file."
            )

    def _typed(self, key: str, types: tuple[type, ...], name: str, default: tuple[Any, ...]) -> Any:
        if default and key not in self._left:
            return default[0]
        found = self.take(key)
        if default and default[0] is None and found is None:
            return None
        if type(found) not in types:
            self.wrong(key, found, name)
        return found

    def _items(self, key: str, default: tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
        found = self.take(key, *default)
        if not isinstance(found, (list, tuple)):
            self.wrong(key, found, "a list")
        return found

    def _number(self, key: str, found: object) -> float:
        if type(found) not in (int, float):
            self.wrong(key, found, "a number")
        try:
            value = float(found)  # type: ignore[arg-type]
        except OverflowError:
            self.wrong(key, "too large", "a finite number")
        if not math.isfinite(value):
            self.wrong(key, found, "a finite number")
        return value


def parse(data: bytes, where: str) -> Any:
    """Return the value of strict JSON: no NaN, no infinity, no key twice.

    Raises:
        BundleError: the bytes are not such JSON, or nested deeper than any bundle's.
    """
    try:
        value = json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_once
        )
        check_depth(value)
        return value
    except (ValueError, RecursionError) as error:
        raise BundleError(
            f"{where} is not valid JSON: {error}. Expected an unbroken file; restore it or save "
            "the bundle again."
        ) from error


def plain(value: object, where: str, depth: int = 0) -> Any:
    """Return ``value`` as JSON holds it: tuples as lists, numpy numbers as Python's.

    Raises:
        BundleError: something that JSON cannot hold, e.g. NaN, or nesting deeper than 8.
    """
    if depth > _DEPTH:
        raise BundleError(
            f"{where} is nested deeper than {_DEPTH} levels. Expected a few; flatten it."
        )
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise BundleError(
                    f"{where} has the key {shown(key)}. Expected strings as keys; convert it."
                )
        return {key: plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where, depth + 1) for item in value]
    number = value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
    if isinstance(number, (int, float)):
        # A whole number beyond the range of a double would be read differently by other programs.
        if math.isfinite(number) if isinstance(number, float) else abs(number) < 1 << 1023:
            return number
        raise BundleError(
            f"{where} is {number}. Expected a finite number; leave the key out where the value is "
            "not known."
        )
    raise BundleError(
        f"{where} is a {type(value).__name__}. Expected a string, number, true, false, null, list "
        "or object; convert it."
    )


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def shown(value: object) -> str:
    """Return a value as a message shows it: never long, whatever is in the file."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
