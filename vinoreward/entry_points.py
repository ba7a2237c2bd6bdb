"""Classes found by name among the entry points of installed packages, ours included."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

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
