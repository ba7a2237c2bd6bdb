"""The settings of a command: command line over file over preset, or over the run it resumes."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Generic,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml

from vinoreward.errors import ConfigError, ModelNotFoundError
from vinoreward.files import MAX_DEPTH, read_plain, shown
from vinoreward_training.runs.run_folder import CONFIG, NEVER_FROM_A_FILE, plain
from vinoreward_training.tasks.environments import agree_to_import, agree_to_run

PRESETS = Path(str(files("vinoreward_training") / "presets"))
MAX_YAML = 64 << 10
"""Bytes of a file of settings; the largest preset has three thousand."""
_DECIDE_THE_BASE = (
    "out", "config", "preset", "env", "task", "algorithm", "vec_env", "learner", "device",
)  # fmt: skip
"""Options that decide what the defaults of the others are."""
YamlText = NewType("YamlText", str)
"""Text in YAML, which a file may hold as the list or table that it is."""
_WORDS: Mapping[Any, str] = {
    YamlText: "a list or a table",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a word",
    Path: "a path",
    dict: "a table of names and values",
    Any: "a value",
    object: "a value",
}
_Config = TypeVar("_Config")


@dataclass(frozen=True)
class Settings(Generic[_Config]):
    """Where the settings of a command come from.

    The command line wins over the YAML file of ``--config``, the file over the preset, and the
    preset over the defaults. With ``--resume``, the configuration that the run recorded takes the
    place of file and preset. Tables of names and values are merged key by key.
    """

    kind: type[_Config]
    """The dataclass of the command's options; all have defaults."""
    environment: str = "env"
    """The option that names an environment: a file may import its package if the user agrees."""
    functions: tuple[str, ...] = ()
    """Options that may name a function, whose code is run: a file may do so if the user agrees."""
    limits: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    """Option to its least and greatest value; None is allowed too."""
    fixed: tuple[str, ...] = ()
    """Options that a resumed run cannot change."""
    preset: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda settings: {}
    """Returns the preset for the settings of command line and file."""
    recorded: Callable[[dict[str, Any], Path], dict[str, Any]] = lambda settings, path: settings
    """Checks the settings of a run's file."""
    check: Callable[[_Config, _Config | None], _Config] = lambda config, before: config
    """Checks and completes the settings, given those that a resumed run recorded."""

    @property
    def names(self) -> list[str]:
        """Options that a file may set."""
        return [name for name in get_type_hints(self.kind) if name not in NEVER_FROM_A_FILE]

    def of(self, **named: Any) -> _Config:
        """Return the settings with those named here on top, as on the command line."""
        base, file = self._base(named)
        return self._settled(self._over(base, named), named, base, file)

    def parse(self, arguments: Sequence[str], *, prog: str) -> _Config:
        """Return the settings of a command line; raises as :meth:`of` does."""
        parser = argparse.ArgumentParser(
            prog=prog,
            usage=f"{prog} [OPTIONS]",
            add_help=False,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        for name in {*_DECIDE_THE_BASE, "truth", *self.functions} & set(self.names):
            parser.add_argument(
                f"--{name}", f"--{name.replace('_', '-')}", nargs="?"
            )  # tyro refuses one without a value
        parser.add_argument("--resume", action="store_true")
        given = vars(parser.parse_known_args(arguments)[0])
        hints = get_type_hints(self.kind)
        named = {
            # As tyro reads it where None is allowed.
            name: None if value == "None" and NoneType in get_args(hints[name]) else value
            for name, value in given.items()
        }
        base, file = self._base(named)
        # With a table as its default, tyro would take the table's own keys only.
        empty: dict[str, Any] = {n: {} for n, value in vars(base).items() if type(value) is dict}
        default = self.kind(**{**vars(base), **empty})
        config = command_line(self.kind, arguments, prog=prog, default=default)
        return self._settled(self._over(base, vars(config)), named, base, file)

    def _recorded(self, named: Mapping[str, Any]) -> Path | None:
        """Return the file of the run to resume; None if there is none."""
        path = Path(named.get("out") or vars(self.kind())["out"]) / CONFIG
        return path if named.get("resume") and path.is_file() else None

    def _base(self, named: Mapping[str, Any]) -> tuple[_Config, Path | None]:
        """Return what the named settings are put on, and the file that it is from."""
        default = self.kind()
        recorded = self._recorded(named)
        if recorded is not None:
            settings = self.recorded(read_yaml(recorded, self.names), recorded)
            # The folder may have moved since.
            return self._over(default, {**settings, "out": recorded.parent}), recorded
        file = None if named.get("config") is None else Path(named["config"])
        settings = {} if file is None else read_yaml(file, self.names)
        preset = self.preset({**vars(default), **settings, **named})
        return self._over(default, merged(preset, settings)), file

    def _over(self, base: _Config, settings: Mapping[str, Any]) -> _Config:
        return self.kind(**typed(self.kind, merged(vars(base), settings)))

    def _settled(
        self, config: _Config, named: Mapping[str, Any], base: _Config, file: Path | None
    ) -> _Config:
        values, before = vars(config), vars(base)
        resumed = self._recorded(named) is not None
        for name in self.fixed if resumed else ():
            if values[name] != before[name]:
                raise ConfigError(
                    f"found {name}={values[name]!r}, but the run in {values['out']} has "
                    f"{before[name]!r}. Expected the same; leave it out, or start another run with "
                    "--out."
                )
        for name, (least, most) in self.limits.items():
            value = values[name]
            if value is not None and not least <= value <= most:
                limit = f"at most {most}" if value > most else f"at least {least}"
                raise ConfigError(
                    f"found {name}={value}. Expected {limit}; change --{name.replace('_', '-')}."
                )
        for name in (self.environment, "truth"):
            if file is not None and values.get(name) is not None and name not in named:
                agree_to_import(
                    values[name], file, trust_run=values["trust_run"], option=f"--{name}"
                )
        for name in self.functions:
            if file is not None and values[name] is not None and name not in named:
                option = f"--{name.replace('_', '-')}"
                agree_to_run(values[name], file, trust_run=values["trust_run"], option=option)
        return self.check(config, base if resumed else None)


def command_line(
    kind: type[_Config], arguments: Sequence[str], *, prog: str, default: _Config | None = None
) -> _Config:
    """Return the options of a command line; on ``--help`` or a usage error, the process exits.

    The docstring of ``kind`` is the help text. ``default`` has the options that are not named.
    """
    import tyro

    more: dict[str, Any] = {} if default is None else {"default": default}
    config: _Config = tyro.cli(
        kind, prog=prog, description=inspect.getdoc(kind), args=list(arguments), **more
    )
    # "--env-kwargs rescale false" gives the word otherwise, which counts as true.
    tables = {
        name: {key: _literal(item) for key, item in value.items()}
        for name, value in vars(config).items()
        if isinstance(value, dict)
    }
    return kind(**{**vars(config), **tables})


def _literal(value: Any) -> Any:
    """Return a word of the command line as the flag, list or table that it is written as.

    A list or a tuple becomes a list, as YAML has it; :func:`make_env` makes it a tuple again.
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


def typed(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as the types of the fields of ``kind``: YAML has no paths or tuples."""
    hints = get_type_hints(kind)
    values = {}
    for name, value in settings.items():
        if name not in hints:
            raise ConfigError(f"found {name!r:.80}. Expected one of {', '.join(hints)}.")
        try:
            values[name] = converted(value, hints[name])
        except ValueError as error:
            raise ConfigError(
                f"found {name}={value!r:.80}. Expected {error}; change "
                f"--{name.replace('_', '-')} or the file."
            ) from error
    return values


def converted(value: Any, hint: Any) -> Any:
    """Return a plain value as the type of an annotation; ``True`` is no number.

    Lists become tuples, text a path, integers floats. The ValueError says what is allowed.
    """
    kind, kinds = get_origin(hint) or hint, get_args(hint)
    if kind in (Any, object):
        return value
    if kind in (Union, UnionType):
        for each in kinds:
            try:
                return converted(value, each)
            except ValueError:
                continue
    elif kind is Literal:
        if isinstance(value, str | bool) and value in kinds:
            return value
    elif kind is tuple and isinstance(value, list | tuple):
        each_of = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        if len(each_of) == len(value):
            return tuple(map(converted, value, each_of))
    elif kind is dict and isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            if kinds[1] is not float:  # arguments of something else, which checks them itself
                return value
            with contextlib.suppress(ValueError):
                return {key: converted(item, float) for key, item in value.items()}
    elif kind is YamlText and isinstance(value, str | list | dict):
        if isinstance(value, str):
            return value
        return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).strip()
    elif kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    elif kind in (Path, str) and isinstance(value, str | Path):
        return kind(value)
    elif kind in (bool, int, NoneType) and type(value) is kind:
        return value
    raise ValueError(allowed_by(hint))


def allowed_by(hint: Any) -> str:
    """Return what values an annotation allows, in words; empty if no plain value."""
    kind, kinds = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(filter(None, map(allowed_by, kinds)))
    if kind is Literal:
        return f"one of {', '.join(map(repr, kinds))}"
    if kind is tuple:
        count = "" if kinds[-1] is Ellipsis else f"{len(kinds)} values, each "
        return f"a list: {count}{allowed_by(kinds[0])}"
    return _WORDS.get(kind, "")


def _why(error: Exception) -> str:
    """Return the reason in one line, without the part of the file that PyYAML quotes."""
    mark = getattr(error, "problem_mark", None)
    place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    return shown(getattr(error, "problem", None) or error) + place


class _PlainLoader(yaml.SafeLoader):
    """Reads untrusted YAML: no aliases, which could expand a few lines to gigabytes.

    Depth is bounded, and values are numbers, text, flags, lists and tables.
    """

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias, which stands for another part (such as *name)")
        if self._depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        value = super().construct_object(node, deep)
        if not isinstance(value, bool | int | float | str | list | dict | None):
            raise ValueError(f"it holds a {type(value).__name__}")
        if isinstance(value, int) and abs(value) >= 1 << 64:
            raise ValueError("it holds a whole number of more than 64 bits")
        return value


def parse_yaml(text: str) -> Any:
    """Return the value that YAML text is, read as untrusted; ValueError with the reason."""
    try:
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, LookupError, TypeError) as error:
        raise ValueError(_why(error)) from error


def read_yaml(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Read a YAML file of settings, which may have the ``known`` keys."""
    # The same file serves several commands, and not all of them know the same keys.
    example = "`timesteps: 8000`" if "timesteps" in known else "`steps: 8000`"
    try:
        settings = yaml.load(read_plain(path, MAX_YAML).decode("utf-8"), _PlainLoader) or {}
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"no configuration file {path}. Expected a YAML file; check the path."
        ) from error
    except (yaml.YAMLError, OSError, ValueError, LookupError, TypeError) as error:
        # Also what PyYAML has no error of its own for, such as the date 2026-13-45.
        raise ConfigError(
            f"{path} cannot be read: {_why(error)}. Expected YAML with lines such as {example}; "
            "correct it."
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{path} holds a {type(settings).__name__}. Expected a table of settings; write lines "
            f"such as {example}."
        )
    unknown = sorted(set(map(str, settings)) - set(known))
    if unknown:
        meant = [difflib.get_close_matches(each.replace("-", "_"), known, 1) for each in unknown]
        pairs = zip(meant, unknown, strict=True)
        instead = [f"{nearest[0]} in place of {each}" for nearest, each in pairs if nearest]
        if len(instead) < len(unknown):
            instead.append(f"some of {', '.join(known)}")
        raise ConfigError(
            f"{path} has the unknown key{'s' * (len(unknown) > 1)} {', '.join(unknown)}. Expected "
            f"{'; '.join(instead)}; correct or remove what is unknown."
        )
    return settings


def refuse(command: str, config: Any, wrong: Mapping[str, bool]) -> None:
    """Raise ConfigError for the first of these options of ``vinoreward COMMAND`` that is wrong."""
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(config, name)} cannot work. Expected a "
                f"number in the usual range; see vinoreward {command} --help."
            )


def given(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return those of the fields ``names`` that differ from their defaults, by option."""
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(config)
    }
    return {
        f"--{'no-' if value is False else ''}{name.replace('_', '-')}": value
        for name in names
        if (value := getattr(config, name)) != defaults[name]
    }


def refuse_ignored(config: Any, names: Iterable[str], by: str) -> None:
    """Raise ConfigError if one of these options was given; ``by`` says what would ignore it."""
    for option in given(config, names):
        raise ConfigError(
            f"found {option}, which {by} would ignore. Expected only options that it uses; "
            f"leave {option} out."
        )
