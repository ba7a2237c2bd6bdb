"""Strict reading of untrusted JSON: every key must be known, every value of the right type."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Literal, NoReturn

from vinoreward.errors import BundleError
from vinoreward.files import check_depth

_DEPTH = 8
_NAMES = {str: "string", int: "whole number", float: "number"}
_COUNTS = ("no", "one", "two", "three", "four")


@dataclass(frozen=True)
class Described:
    """Base of the dataclasses of ``bundle.json``: each field is checked by its annotation.

    No schema library: msgspec ignores unknown keys, duplicate keys and NaN, pydantic takes 0.06 s
    to import, and each of their errors would need rewording.
    """

    _place: ClassVar[str] = ""
    """Key of the object in ``bundle.json``."""
    _required: ClassVar[tuple[str, ...]] = ()
    """Keys that a file must have even though the field has a default."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for name in (field.name for field in dataclasses.fields(self)):
            where = f"{self._place}.{name}" if self._place else name
            object.__setattr__(self, name, _checked(getattr(self, name), hints[name], where))
        self._check()

    def _check(self) -> None:
        """Raise BundleError for values out of range, or that contradict each other."""

    @classmethod
    def arguments(cls, value: object, where: str) -> dict[str, Any]:
        """Return an object's unchecked values; BundleError for missing or unknown keys."""
        if not isinstance(value, Mapping):
            raise BundleError(
                f"{where} is {shown(value)}. Expected an object with named keys; correct the file "
                "or save the bundle again."
            )
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, field in fields.items():
            optional = field.default is not MISSING or field.default_factory is not MISSING
            if name not in value and (name in cls._required or not optional):
                raise BundleError(
                    f"{where} has no {name!r}. Expected that key; add it or save the bundle again."
                )
        if unknown := ", ".join(repr(name) for name in sorted(value.keys() - fields.keys())):
            raise BundleError(
                f"{where} has the unknown key {unknown}. Expected only keys of this schema "
                "version; check the spelling, or upgrade vinoreward if a newer one wrote the file."
            )
        return dict(value)


def _checked(value: Any, hint: Any, where: str) -> Any:
    """Return ``value`` as the annotated type: a list as tuple, an integer as float where needed."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:  # with None
        return None if value is None else _checked(value, inner[0], where)
    if origin is Literal:
        if value not in inner:
            wrong(where, value, " or ".join(inner))
        return value
    if origin is tuple and isinstance(inner[0], type) and issubclass(inner[0], Described):
        if not isinstance(value, (list, tuple)):
            wrong(where, value, "a list of objects")
        return tuple(_checked(item, inner[0], f"{where}[{n}]") for n, item in enumerate(value))
    if origin is tuple:
        count = "a list of" if inner[-1] is ... else _COUNTS[len(inner)]
        expected = f"{count} {_NAMES[inner[0]]}s"
        if not isinstance(value, (list, tuple)) or (
            inner[-1] is not ... and len(value) != len(inner)
        ):
            wrong(where, value, expected)
        return tuple(
            _scalar(item, inner[0], f"{where}[{index}]", expected)
            for index, item in enumerate(value)
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            wrong(where, value, "an object")
        table = plain(value, where)
        for key, item in table.items() if inner[1] is str else ():
            _scalar(item, str, f"{where}.{key}", "a string")
        return table
    if issubclass(hint, Described):
        return value if isinstance(value, hint) else hint(**hint.arguments(value, where))
    return _scalar(value, hint, where, f"a {_NAMES[hint]}" if hint is not bool else "true or false")


def _scalar(value: Any, kind: type, where: str, expected: str) -> Any:
    scalar = plain(value, where) if kind is float else value
    fits = isinstance(scalar, (int, float) if kind is float else kind)
    if not fits or isinstance(scalar, bool) != (kind is bool):
        wrong(where, value, expected)
    return float(scalar) if kind is float else scalar


def parse(data: bytes, where: str) -> Any:
    """Return the value of strict JSON; BundleError for NaN, duplicate keys or deep nesting."""
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


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """Return ``value`` as plain JSON: tuples as lists, NumPy scalars as Python numbers.

    Raises:
        BundleError: JSON cannot represent it, e.g. NaN, or it is nested deeper than 8.
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
        # Other programs read integers as doubles.
        if math.isfinite(number) if isinstance(number, float) else abs(number) < 1 << 1023:
            return number
        raise BundleError(
            f"{where} is {shown(number)}. Expected a finite number; leave the key out where the "
            "value is not known."
        )
    raise BundleError(
        f"{where} is a {type(value).__name__}. Expected a string, number, true, false, null, list "
        "or object; convert it."
    )


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} stands twice")
        table[key] = value
    return table


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def wrong(name: str, value: object, expected: str, remedy: str = "correct the value") -> NoReturn:
    """Raise BundleError for the value of ``name``."""
    raise BundleError(f"{name[:80]} is {shown(value)}. Expected {expected}; {remedy}.")


def shown(value: object) -> str:
    """Return a value for a message, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
