"""Classes and functions found by name: in entry points of packages, in modules, in files."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from vinoreward.errors import ConfigError

Plug = TypeVar("Plug")


class Registry(Generic[Plug]):
    """The subclasses of ``base`` in one entry-point group; each is imported when it is asked for.

    Another package adds one in its ``pyproject.toml``::

        [project.entry-points."vinoreward.learners"]
        mine = "my_package.learner:MyLearner"

    Messages call one a ``noun``; an unknown name raises ``error``.
    """

    def __init__(
        self, group: str, base: type[Plug], noun: str, error: type[ConfigError] = ConfigError
    ) -> None:
        self.group = group
        self._base = base
        self._noun = noun
        self._error = error

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(entry_points(group=self.group).names))

    def find(self, name: str) -> type[Plug]:
        """Return the class of a name.

        Raises:
            ConfigError: no such name, or its entry point does not import or is no subclass.
            ModuleNotFoundError: a library that the class's module imports is not installed.
        """
        entries = entry_points(group=self.group)
        if name not in entries.names:
            raise self._error(
                f"there is no {self._noun} {name!r}. Expected one of "
                f"{', '.join(self.names()) or 'none'}; another package can add one in the "
                f"entry-point group {self.group!r}."
            )
        entry = entries[name]
        where = f"the {self._noun} {name!r} is registered in {self.group!r} as {entry.value}, which"
        try:
            plug = entry.load()
        except (ImportError, AttributeError) as error:
            missing = str(error.name or "").partition(".")[0]
            if isinstance(error, ModuleNotFoundError) and missing != entry.module.partition(".")[0]:
                raise  # a library that it needs; the caller says how to install it
            raise ConfigError(
                f"{where} does not import: {error}. Expected a class; reinstall or correct the "
                "package that registers it."
            ) from error
        if not (isinstance(plug, type) and issubclass(plug, self._base)):
            raise ConfigError(
                f"{where} is something else. Expected a subclass of {self._base.__module__}."
                f"{self._base.__qualname__}; correct the package that registers it."
            )
        return plug


def named_function(text: str, option: str, what: str = "a function") -> Callable[..., Any]:
    """Return the function that ``PACKAGE.MODULE:FUNCTION`` or ``FILE.py:FUNCTION`` names.

    This runs the module's code. ``option`` is the argument that has the text, for messages, and
    ``what`` says what the function is for.

    Raises:
        ConfigError: no such module, file or function, or its code fails when it is imported.
    """
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise ConfigError(
            field=option,
            value=text,
            expected=f"PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION, {what}",
        )
    try:
        is_file = where.endswith(".py")
        module = _from_file(str(Path(where).resolve())) if is_file else import_module(where)
        function: object = getattr(module, name)
    except (ImportError, OSError, AttributeError, SyntaxError) as error:
        raise ConfigError(
            f"--{option} {text} cannot be imported ({error}). Expected {what}; check the name, or "
            "give the path of the file."
        ) from error
    if not callable(function):
        raise ConfigError(f"--{option} {text} is a {type(function).__name__}. Expected {what}.")
    return function


@functools.cache
def _from_file(path: str) -> object:
    """Return the module of a Python file; run once, as an import would."""
    # Named by its path, so that two files of one name do not meet.
    name = f"{Path(path).stem} ({path})"
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        SourceFileLoader(name, path).exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
