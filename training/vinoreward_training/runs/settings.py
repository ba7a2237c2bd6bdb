"""The settings of a command: command line over file over task over preset over defaults.

A field's annotation is the only place that says what its values may be: its type, and its bounds as
``annotated_types`` has them, which pydantic checks wherever a value comes from.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import yaml

from vinoreward.errors import ConfigError, ModelNotFoundError
from vinoreward.files import shown
from vinoreward_training.configs.task import RUNS_CODE
from vinoreward_training.runs.run_folder import CONFIG, NEVER_FROM_A_FILE, plain
from vinoreward_training.tasks.trust import agree_to_run

PRESETS = Path(str(files("vinoreward_training") / "presets"))
_Config = TypeVar("_Config")
_Any = TypeVar("_Any")


def _as_yaml(value: object) -> object:
    """Return a list or table as the text in YAML that it stands for."""
    if not isinstance(value, list | dict):
        return value
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).strip()


@dataclass(frozen=True)
class _YamlText:
    """Lets a field of text be a list or a table in a file."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(_as_yaml, handler(source))


YamlText = Annotated[str, _YamlText()]
"""Text in YAML, which a file may hold as the list or table that it is."""


@dataclass(frozen=True)
class Settings(Generic[_Config]):
    """Where the settings of a command come from.

    The command line wins over the YAML file of ``--config``, the file over what a bundle or dataset
    records of its task, that over the preset, and the preset over the defaults. With ``--resume``
    the configuration that the run recorded takes the place of all but the command line. Tables of
    names and values are merged key by key.
    """

    kind: type[_Config]
    """The dataclass of the command's options."""
    fixed: tuple[str, ...] = ()
    """Options that a resumed run cannot change."""
    task: Callable[[Mapping[str, Any]], tuple[Path, Mapping[str, Any]] | None] = lambda settings: (
        None
    )
    """Returns the file that records the task, and the settings that it holds."""
    preset: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda settings: {}
    """Returns the preset for all settings so far."""
    recorded: Callable[[dict[str, Any], Path], dict[str, Any]] = lambda settings, path: settings
    """Checks the settings of a run's file."""
    check: Callable[[_Config, _Config | None], _Config] = lambda config, before: config
    """Checks and completes the settings; the others are those that a resumed run recorded."""
    place: Callable[[_Config], Path | None] = lambda config: None
    """Names the folder of a new run without ``--out`` after its data or environment; None: the
    default."""

    @property
    def names(self) -> list[str]:
        """Options that a file may set."""
        return [one.name for one in fields(self._kind) if one.name not in NEVER_FROM_A_FILE]

    @property
    def _kind(self) -> Any:
        return self.kind

    def of(self, **named: Any) -> _Config:
        """Return the settings with those named here on top, as on the command line."""
        base, sources = self._base(named)
        return self._validated(merged(base, named), named, base, sources)

    def parse(self, arguments: Sequence[str], *, prog: str) -> _Config:
        """Return the settings of a command line; raises as :meth:`of` does."""
        named = self._named(arguments)
        base, sources = self._base(named)
        default = None
        if not self._required():
            # With a table as its default, tyro would take the table's own keys only.
            empty: dict[str, Any] = {
                name: {} for name, value in base.items() if isinstance(value, dict)
            }
            default = checked(self.kind, {**base, **empty})
        config = command_line(self.kind, arguments, prog=prog, default=default)
        return self._validated(merged(base, vars(config)), named, base, sources)

    def _required(self) -> list[str]:
        return [
            one.name
            for one in fields(self._kind)
            if one.default is MISSING and one.default_factory is MISSING
        ]

    def _named(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the single values that a command line names, as text; tyro reads all of them."""
        parser = argparse.ArgumentParser(
            add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
        )
        hints = get_type_hints(self.kind)
        for name, hint in hints.items():
            if get_origin(hint) not in (dict, tuple) and hint is not bool:
                option = f"--{name}", f"--{name.replace('_', '-')}"
                parser.add_argument(*option, nargs="?", dest=name)
        if "resume" in hints:
            parser.add_argument("--resume", action="store_true")
        found = vars(parser.parse_known_args(arguments)[0])
        return {
            # As tyro reads it where None is allowed.
            name: None if value == "None" and NoneType in get_args(hints[name]) else value
            for name, value in found.items()
            if value is not None  # tyro refuses an option without its value
        }

    def _base(self, named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
        """Return what the named settings are put on, and which file each of these is from."""
        defaults = default_values(self._kind)
        path = Path(named.get("out") or defaults.get("out") or "") / CONFIG
        if named.get("resume") and path.is_file():
            settings = self.recorded(read_yaml(path, self.names), path)
            # The folder may have moved since.
            return merged(defaults, settings, {"out": path.parent}), dict.fromkeys(settings, path)
        settings, sources = {}, {}
        if named.get("config") is not None:
            file = Path(named["config"])
            settings = read_yaml(file, self.names)
            sources = dict.fromkeys(settings, file)
        task: Mapping[str, Any] = {}
        if (found := self.task({**settings, **named})) is not None:
            record, task = found
            task = {name: value for name, value in task.items() if name in self.names}
            sources = {**dict.fromkeys(task, record), **sources}
        preset = self.preset({**defaults, **task, **settings, **named})
        return merged(defaults, preset, task, settings), sources

    def _validated(
        self,
        values: Mapping[str, Any],
        named: Mapping[str, Any],
        base: Mapping[str, Any],
        sources: Mapping[str, Path],
    ) -> _Config:
        config = checked(self.kind, values)
        path = Path(values.get("out") or "") / CONFIG
        before = checked(self.kind, base) if path in sources.values() else None
        for name in self.fixed if before is not None else ():
            if (value := vars(config)[name]) != vars(before)[name]:
                raise ConfigError(
                    field=name,
                    value=value,
                    expected=f"{vars(before)[name]!r}, as the run in {path.parent} has it",
                    remedy=f"leave `{name}` out, or start another run with `out`",
                )
        hints = get_type_hints(self.kind, include_extras=True)
        code = [n for n, hint in hints.items() if RUNS_CODE in getattr(hint, "__metadata__", ())]
        agreed = {_runs(named[name]) for name in code if name in named} - {""}
        for name in code:
            value, file = vars(config)[name], sources.get(name)
            if name not in named and file is not None and _runs(value) not in agreed:
                agree_to_run(value, file, trust_run=values.get("trust_run"), field=name)
        config = self.check(config, before)
        place = None if before is not None or "out" in {*named, *sources} else self.place(config)
        return config if place is None else replace(config, out=place)  # type: ignore[type-var]


def _runs(named: object) -> str:
    """Return the package, or the file, whose code is run for what is named; else ""."""
    module, colon, _ = str(named).rpartition(":")
    return (module if module.endswith(".py") else module.partition(".")[0]) if colon else ""


def default_values(kind: type[Any]) -> dict[str, Any]:
    """Return the defaults of a dataclass's fields that have one."""
    return {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(kind)
        if one.default is not MISSING or one.default_factory is not MISSING
    }


def command_line(
    kind: type[_Config], arguments: Sequence[str], *, prog: str, default: _Config | None = None
) -> _Config:
    """Return the options of a command line; on help or a usage error, the process exits.

    The docstring of ``kind`` is the help text. ``--help`` shows the options that ``kind.FIRST``
    names, ``--help-all`` every one. ``default`` has the options that are not named.
    """
    import tyro

    description = inspect.getdoc(kind) or ""
    shown_kind: Any = kind
    words = ["--help" if word == "--help-all" else word for word in arguments]
    first = getattr(kind, "FIRST", ())
    if first and {"--help", "-h"} & set(arguments):
        shown_kind, default = _first_screen(kind, first, default)
        more = len(fields(kind)) - len(first)  # type: ignore[arg-type]
        description += f"\n\n{prog} --help-all shows {more} more options."
    defaults: dict[str, Any] = {} if default is None else {"default": default}
    config = tyro.cli(shown_kind, prog=prog, description=description, args=words, **defaults)
    # "--env-kwargs rescale false" gives the word otherwise, which counts as true.
    tables = {
        name: {key: _literal(item) for key, item in value.items()}
        for name, value in vars(config).items()
        if isinstance(value, dict)
    }
    return kind(**{**vars(config), **tables})


def _first_screen(kind: Any, first: Collection[str], default: Any) -> tuple[type[Any], Any]:
    """Return the dataclass with all but the ``first`` options hidden, and its defaults."""
    import tyro

    hints = get_type_hints(kind, include_extras=True)
    names = [one.name for one in fields(kind)]
    suppress: Any = tyro.conf.Suppress
    hidden = {name: suppress[hints[name]] for name in names if name not in first}
    body = {"__annotations__": hidden, "__doc__": kind.__doc__, "__module__": kind.__module__}
    for one in fields(kind):
        if one.name in hidden and one.default is not MISSING:
            body[one.name] = one.default
        elif one.name in hidden and one.default_factory is not MISSING:
            body[one.name] = dataclasses.field(default_factory=one.default_factory)
    screen: Any = dataclass(frozen=True, kw_only=True)(type(kind.__name__, (kind,), body))
    return screen, None if default is None else screen(**vars(default))


def _literal(value: Any) -> Any:
    """Return a word of the command line as the flag, list or table that it is written as.

    A list or a tuple becomes a list, as YAML has it; :func:`make_env` turns it into a tuple again.
    """
    if not isinstance(value, str):
        return value
    if value[:1] in ("[", "(", "{"):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return plain(ast.literal_eval(value))
    return {"true": True, "false": False}.get(value.lower(), value)


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, later layers over earlier ones; tables key by key."""
    settings: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            below = settings.get(name)
            if isinstance(below, dict) and (value is None or isinstance(value, dict)):
                value = {**below, **(value or {})}
            settings[name] = value
    return settings


def checked(kind: type[_Any], values: Mapping[str, Any]) -> _Any:
    """Return the dataclass of these values: plain ones, as YAML and JSON have them.

    Lists become tuples, text a path; ``True`` is no number. Raises ConfigError with the field.
    """
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    unknown = [name for name in values if name not in names]
    if unknown:
        expected = f"some of {', '.join(names)}"
        raise ConfigError(field=str(unknown[0])[:80], expected=expected, remedy="leave it out")
    hints = get_type_hints(kind, include_extras=True)
    found = {}
    for name, value in values.items():
        try:
            found[name] = converted(value, hints[name])
        except ValueError as error:
            raise ConfigError(field=name, value=value, expected=str(error)) from error
    return kind(**found)


def converted(value: Any, hint: Any) -> Any:
    """Return a plain value as the type of an annotation; the ValueError says what is allowed."""
    from pydantic import ValidationError

    if isinstance(value, dict) and not all(isinstance(name, str) for name in value):
        raise ValueError("a table of names and values")
    try:
        # As JSON, in which strictness takes lists for tuples and text for paths.
        text = json.dumps(plain(value), allow_nan=False)
        return _adapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        said = (_in_words(one["msg"]) for one in error.errors())
        raise ValueError(" or ".join(dict.fromkeys(said))) from error
    except (TypeError, ValueError) as error:
        raise ValueError("finite numbers, text, flags, lists or tables") from error


_WORDS = {
    "greater than or equal to ": "at least ",
    "less than or equal to ": "at most ",
    "greater than ": "above ",
    "less than ": "below ",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid array": "a list",
    "a valid dictionary": "a table of names and values",
}


def _in_words(message: str) -> str:
    """Return what pydantic expects, in our words."""
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message.removeprefix("Input should be ")


@functools.lru_cache(maxsize=512)
def _adapter(hint: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


def parse_yaml(text: str) -> Any:
    """Return the value that YAML text is; ValueError with the reason."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, LookupError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ValueError(shown(getattr(error, "problem", None) or error) + place) from error


def read_yaml(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Read a YAML file of settings, which may have the ``known`` keys."""
    example = "`timesteps: 8000`" if "timesteps" in known else "`steps: 8000`"
    try:
        settings = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"no configuration file {path}. Expected a YAML file; check the path."
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. Expected YAML with lines such as {example}; "
            "correct it."
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{path} holds a {type(settings).__name__}. Expected a table of settings; write lines "
            f"such as {example}."
        )
    unknown = sorted(set(map(str, settings)) - set(known))
    if unknown:
        raise ConfigError(
            f"{path} has the unknown key{'s' * (len(unknown) > 1)} {', '.join(unknown)}. Expected "
            f"some of {', '.join(known)}; correct or remove what is unknown."
        )
    return settings


def non_default_options(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return those of the fields ``names`` that differ from their defaults, by option."""
    defaults = default_values(type(config))
    return {
        f"--{'no-' if value is False else ''}{name.replace('_', '-')}": value
        for name in names
        if (value := getattr(config, name)) != defaults.get(name, MISSING)
    }


def refuse_ignored(config: Any, names: Iterable[str], by: str) -> None:
    """Raise ConfigError if one of these options is set; ``by`` says what would ignore it."""
    defaults = default_values(type(config))
    for name in names:
        if (value := getattr(config, name)) != defaults[name]:
            raise ConfigError(
                field=name,
                value=value,
                expected=f"only options that are used, and {by} would ignore this one",
                remedy=f"leave `{name}` out",
            )
