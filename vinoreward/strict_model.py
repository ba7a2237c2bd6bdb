"""Typed descriptions from untrusted JSON: unknown keys, wrong types and wrong values are refused.

A description is a frozen dataclass of pydantic's on top of :class:`StrictModel`. Pydantic checks
types, ranges and keys, when one is made in code as when a file is read; ``__post_init__`` checks
what contradicts itself, with :func:`wrong`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

from pydantic import BeforeValidator, ConfigDict, Strict, ValidationError, ValidationInfo

from vinoreward.errors import BundleError
from vinoreward.files import check_depth

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
"""The configuration of each description's dataclass."""
_DEPTH = 8
_Model = TypeVar("_Model")


class _Explained(type):
    """Makes instances of named values; pydantic's errors become a BundleError."""

    def __call__(cls: type[_Model], *args: Any, **kwargs: Any) -> _Model:
        fields = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        named = dict(zip(fields, args, strict=False))
        try:
            made: _Model = type.__call__(cls, *args[len(named) :], **named, **kwargs)
            return made
        except ValidationError as error:
            raise BundleError(_sentence(error, cls._place)) from error  # type: ignore[attr-defined]


class StrictModel(metaclass=_Explained):
    """Base of the dataclasses of ``bundle.json``; BundleError for values that cannot be right."""

    _place: ClassVar[str] = ""
    """Key of the object in ``bundle.json``."""


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
        wrong(where, "nested deeper", f"at most {_DEPTH} levels", "flatten it")
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, Mapping):
        if ood_score := [key for key in value if not isinstance(key, str)]:
            wrong(f"a key of {where}", ood_score[0], "a string", "convert it")
        return {key: plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where, depth + 1) for item in value]
    number = _number(value)
    # Other programs read integers as doubles.
    if isinstance(number, int) and abs(number) < 1 << 1023:
        return number
    if isinstance(number, float) and math.isfinite(number):
        return number
    return wrong(
        where, value, "a finite number, string, true, false, null, list or object", "convert it"
    )


def wrong(name: str, value: object, expected: str, remedy: str = "correct the value") -> NoReturn:
    """Raise BundleError for the value of ``name``."""
    raise BundleError(f"{name[:80]} is {shown(value)}. Expected {expected}; {remedy}.")


def shown(value: object) -> str:
    """Return a value for a message, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _number(value: Any) -> Any:
    """Return a NumPy scalar as a number of Python's."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _table(value: Any, info: ValidationInfo) -> Any:
    return plain(value, str(info.field_name))


def _name(value: Any) -> Any:
    if isinstance(value, str) and (not 1 <= len(value.strip()) <= 200 or not value.isprintable()):
        raise ValueError("a printable name of 1 to 200 characters")
    return value


Flag = Annotated[bool, Strict()]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), BeforeValidator(_number)]
Text = Annotated[str, Strict()]
Name = Annotated[str, Strict(), BeforeValidator(_name)]
"""Printable, of 1 to 200 characters."""
Table = Annotated[dict[str, Any], BeforeValidator(_table)]
"""Free JSON."""


def _sentence(error: ValidationError, place: str) -> str:
    """Return the first of pydantic's errors as a sentence; ``place`` is the model's."""
    first = error.errors(include_url=False)[0]
    path, kind, value = [place] * bool(place) + [*first["loc"]], first["type"], first["input"]
    context = first.get("ctx", {})
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
    if kind == "value_error":
        cause = context["error"]  # ours, a whole sentence or what is expected
        words = str(cause)
        return words if isinstance(cause, BundleError) else _wrong(where, value, words)
    key = path[-1] if path else ""
    inside = where.rpartition(".")[0] or "the description"
    if kind == "missing" and isinstance(key, str):
        return f"{inside} has no {key!r}. Expected that key; add it or save the bundle again."
    if kind == "unexpected_keyword_argument":
        return (
            f"{inside} has the unknown key {key!r}. Expected only keys of this schema version; "
            "check the spelling, or upgrade vinoreward if a newer one wrote the file."
        )
    if kind == "missing" and isinstance(key, int):
        return _wrong(where.rpartition("[")[0], value, f"{key + 1} items or more")
    if kind == "string_pattern_mismatch":
        return _wrong(where, value, f"text that matches {context['pattern']}")
    # "Input should be less than 9", "Tuple should have at most 32 items after validation, not 64"
    subject, _, rest = first["msg"].replace("tuple", "list").partition(" should ")
    expected = f"it to {rest}" if rest else subject
    if rest.startswith("be "):
        expected = rest.removeprefix("be ")
        expected = f"a number {expected}" if kind.startswith(("greater", "less")) else expected
    return _wrong(where, value, expected)


def _wrong(where: str, value: object, expected: str) -> str:
    return f"{where[:80]} is {shown(value)}. Expected {expected}; correct the value."


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} stands twice")
        table[key] = value
    return table


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")
