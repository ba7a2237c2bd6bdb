"""Bounds of numbers in a command's options, as their types annotate them."""

from __future__ import annotations

import operator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from vinoreward.errors import ConfigError

_CHECKS = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "more than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}


def check_bounds(config: Any) -> None:
    """Raise ConfigError for the first number of a dataclass that is out of its bounds."""
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        kinds = [hint, *get_args(hint)] if get_origin(hint) is not Annotated else [hint]
        bounds = [one for kind in kinds for one in getattr(kind, "__metadata__", ())]
        for key, (compare, words) in _CHECKS.items() if value is not None else ():
            for limit in (getattr(bound, key) for bound in bounds if hasattr(bound, key)):
                if not compare(value, limit):
                    raise ConfigError(field=name, value=value, expected=f"{words} {limit}")
