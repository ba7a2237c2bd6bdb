"""Parser of ``--compress``, ``--correctors`` and ``--monitor``, such as ``name 0.5 key=value``.

Parts are separated by ``|``. A part is a name, then values, then ``key=value`` pairs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from vinoreward.errors import ConfigError

Value = bool | int | float | str
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
"""At most 18 digits; longer numbers become floats, and are refused if too large."""
_EXAMPLES: Mapping[str, Value] = {"sparsity": 0.5, "rank": 8, "low": 0.05, "high": 0.3}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


@dataclass(frozen=True)
class Part:
    """One part of an expression.

    Attributes:
        name: in lower case, with ``-`` for ``_``.
        values: without a key.
        options: with a key.
    """

    name: str
    values: tuple[Value, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        pairs = (f"{key}={_written(value)}" for key, value in self.options.items())
        return " ".join([self.name, *map(_written, self.values), *pairs])


def _written(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(word: str) -> Value:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if _WHOLE.fullmatch(word):
        return int(word)
    try:
        return float(word)
    except ValueError:
        return word


def parse(text: str, what: str) -> list[Part]:
    """Parse an expression; empty, ``none`` and ``off`` give no parts.

    Args:
        text: such as ``"prune 0.5 | distill | int8 | openvino"``.
        what: the option, for messages.

    Raises:
        ConfigError: an empty part, an invalid name, a value after a pair, or a repeated key.
    """
    if text.strip().lower() in ("", "none", "off"):
        return []
    return [_part(piece, text, what) for piece in text.split("|")]


def _part(piece: str, text: str, what: str) -> Part:
    words = piece.split()
    if not words or not _NAME.fullmatch(words[0]):
        raise ConfigError(
            f"{what} has the part {piece.strip()!r} in {text!r}. Expected a name, then values such "
            "as 0.5 or key=value, with | between parts."
        )
    values: list[Value] = []
    options: dict[str, Value] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals and not options:
            values.append(_read(word))
        elif equals and _NAME.fullmatch(key) and value and "=" not in value and key not in options:
            options[key] = _read(value)
        else:
            raise ConfigError(
                f"{what} has {word!r} in {piece.strip()!r}. Expected values first, then each "
                "key=value once."
            )
    return Part(words[0].lower().replace("_", "-"), tuple(values), options)


def call(part: Part, kind: Any, what: str, positional: Sequence[str] = (), also: Any = None) -> Any:
    """Call ``kind`` with a part's values, named by ``positional``, and its options.

    Args:
        part: as parsed.
        kind: a class or function; its annotations define the allowed types.
        what: the option, for messages.
        positional: names of the values without a key.
        also: a callable to which ``kind`` passes further options on.

    Raises:
        ConfigError: more values than names, an unknown option, or an invalid value.
    """
    if len(part.values) > len(positional):
        takes = f"at most {', '.join(positional)}" if positional else "none"
        raise ConfigError(
            f"{what} has the part {str(part)!r} with {len(part.values)} values. Expected {takes}; "
            "write further settings as key=value."
        )
    given = dict(zip(positional, part.values, strict=False))
    twice = sorted(set(given) & set(part.options))
    if twice:
        raise ConfigError(
            f"{what} has the part {str(part)!r}, which sets {', '.join(twice)} twice. Expected "
            "each once."
        )
    given |= part.options
    taken = {**({} if also is None else _taken(also)), **_taken(kind)}
    for name, value in given.items():
        if name not in taken:
            known = ", ".join(taken) or "none"
            raise ConfigError(
                f"{what} has the part {str(part)!r} with the setting {name!r}. Expected some of: "
                f"{known}."
            )
        if not any(_fits(value, each) for each in taken[name]):
            kinds = " or ".join(_WORDS[each] for each in taken[name])
            raise ConfigError(
                f"{what} has the part {str(part)!r} with {name}={_written(value)}. Expected "
                f"{kinds}."
            )
    check_needed(part, what, [name for name in _needed(kind) if name not in given], positional)
    try:
        return kind(**given)
    except TypeError as error:
        raise ConfigError(
            f"{what} has the invalid part {str(part)!r}: {error}. Expected other values of its "
            "settings."
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{what} has the part {str(part)!r}: {error}") from error


def check_needed(part: Part, what: str, missing: Sequence[str], positional: Sequence[str]) -> None:
    """Refuse a part that lacks required settings.

    Args:
        part: as parsed.
        what: the option, for messages.
        missing: names of those settings.
        positional: names of the values without a key.

    Raises:
        ConfigError: some are missing; the message shows how to write them.
    """
    if not missing:
        return
    more = {name: _EXAMPLES.get(name, name.upper()) for name in missing}
    whole = Part(part.name, part.values, {**part.options, **more})
    if list(positional[len(part.values) :][: len(missing)]) == list(missing):
        whole = Part(part.name, (*part.values, *more.values()), part.options)
    raise ConfigError(
        f"{what} has the part {str(part)!r}, and {part.name} needs its {' and '.join(missing)}. "
        f"Expected such a value, as in {whole}."
    )


def _needed(kind: Any) -> list[str]:
    """Return the parameters without a default."""
    return [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]


def _taken(kind: Any) -> dict[str, list[type]]:
    """Return the parameters that an expression can set, with their types."""
    try:
        parameters = inspect.signature(kind, eval_str=True).parameters
    except NameError:  # a name imported only for type checkers
        parameters = inspect.signature(kind).parameters
    found = {
        name: [each for each in _types(parameter.annotation) if each in (*_WORDS, object)]
        for name, parameter in parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    return {name: types for name, types in found.items() if types}


def _types(hint: Any) -> Iterator[Any]:
    if hint is inspect.Parameter.empty or isinstance(hint, str) or hint is Any:
        yield object
    elif get_origin(hint) is Literal:
        yield from {type(each) for each in get_args(hint)}
    elif get_origin(hint) in (Union, UnionType):
        for each in get_args(hint):
            yield from _types(each)
    else:
        yield hint


def _fits(value: Value, kind: type) -> bool:
    return kind is object or type(value) is kind or (kind is float and type(value) is int)
