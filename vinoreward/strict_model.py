"""Typed descriptions from untrusted JSON: unknown keys, wrong types and wrong values are refused.

A description is a frozen dataclass of pydantic's on top of :class:`StrictModel`. Pydantic checks
types, ranges and keys, when one is made in code as when a file is read; ``__post_init__`` checks
what contradicts itself, with :func:`wrong`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Strict, ValidationError

from vinoreward.errors import BundleError, VinorewardError
from vinoreward.files import parse_json

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""The configuration of each description's dataclass."""
_Model = TypeVar("_Model")


class _Explained(type):
    """Makes instances of named values; pydantic's errors become a BundleError."""

    def __call__(cls: type[_Model], /, *args: Any, **kwargs: Any) -> _Model:
        fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        named = dict(zip(fields, args, strict=False))
        try:
            made: _Model = type.__call__(cls, *args[len(named) :], **named, **kwargs)
            return made
        except ValidationError as error:
            raise cls._error(_sentence(error)) from error  # type: ignore[attr-defined]


class StrictModel(metaclass=_Explained):
    """Base of checked dataclasses, as of ``bundle.json``; ``_error`` for values that cannot be."""

    _error: ClassVar[type[Exception]] = BundleError


def wrong(name: str, value: object, expected: str, remedy: str = "correct the value") -> NoReturn:
    """Raise BundleError for the value of ``name``."""
    raise BundleError(f"{name:.80} is {value!r:.80}. Expected {expected}; {remedy}.")


def _sentence(error: ValidationError) -> str:
    """Return the first of pydantic's errors as a sentence."""
    first = error.errors(include_url=False)[0]
    where, kind = ".".join(map(str, first["loc"])), first["type"]
    if kind == "missing":
        return f"{where} is missing. Expected that value; add it or save the bundle again."
    if kind == "unexpected_keyword_argument":
        return (
            f"{where:.80} is an unknown key. Expected only keys of this schema version; check the "
            "spelling, or upgrade vinoreward if a newer one wrote the file."
        )
    if kind == "value_error":  # ours
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, VinorewardError):
            return str(cause)
        expected = str(cause)
    else:  # "Input should be less than 9", "Tuple should have at most 32 items, not 64"
        expected = first["msg"].removeprefix("Input should be ").replace("tuple", "list")
    return f"{where:.80} is {first['input']!r:.80}. Expected {expected}; correct the value."


def plain_number(value: Any) -> Any:
    """Return a NumPy scalar as a number of Python's, anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _table(value: Any) -> Any:
    """Return ``value`` as plain JSON: tuples as lists, NumPy scalars as Python numbers."""
    try:
        return parse_json(json.dumps(value, allow_nan=False, default=plain_number).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError("plain JSON: texts, finite numbers, lists and tables of them") from error


def _name(value: str) -> str:
    if not 1 <= len(value.strip()) <= 200 or not value.isprintable():
        raise ValueError("a printable name of 1 to 200 characters")
    return value


Flag = Annotated[bool, Strict()]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), BeforeValidator(plain_number)]
Text = Annotated[str, Strict()]
Name = Annotated[str, Strict(), AfterValidator(_name)]
"""Printable, of 1 to 200 characters."""
Table = Annotated[dict[str, Any], BeforeValidator(_table)]
"""Free JSON."""
