"""Classes and functions found by name: in entry points of packages, in modules, in files."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
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
        return tuple(sorted(self._entries()))

    def find(self, name: str) -> type[Plug]:
        """Return the class of a name.

        Raises:
            ConfigError: no such name, or its entry point does not import or is no subclass.
            ModuleNotFoundError: a library that the class's module imports is not installed.
        """
        entries = self._entries()
        if name not in entries:
            raise self._error(
                f"there is no {self._noun} {name!r}. Expected one of "
                f"{', '.join(sorted(entries)) or 'none'}; another package can add one in the "
                f"entry-point group {self.group!r}."
            )
        plug = self._load(entries[name])
        if not (isinstance(plug, type) and issubclass(plug, self._base)):
            raise ConfigError(
                f"the entry point {name!r} of {self.group!r} is {entries[name].value}. Expected a "
                f"subclass of {self._base.__module__}.{self._base.__qualname__}; correct the "
                "package that registers it."
            )
        return plug

    def _load(self, entry: EntryPoint) -> object:
        try:
            return entry.load()
        except (ImportError, AttributeError) as error:
            own = entry.module.partition(".")[0]
            missing = str(error.name or "").partition(".")[0]
            if isinstance(error, ModuleNotFoundError) and missing != own:
                raise  # a library that it needs; the caller says how to install it
            raise ConfigError(
                f"the {self._noun} {entry.name!r} is registered as {entry.value}, which does not "
                f"import: {error}. Expected a class; reinstall or correct the package that "
                "registers it."
            ) from error

    def _entries(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=self.group)}


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
            f"--{option} is {text!r}. Expected PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION, {what}."
        )
    try:
        module: Any
        if where.endswith(".py"):
            module = _from_file(str(Path(where).resolve()))
        else:
            module = importlib.import_module(where)
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
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
