"""Where a training's settings come from: command line, file, preset, or the run it continues."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, get_args, get_type_hints

import yaml

from vinoreward.bundles.reader import shown
from vinoreward.errors import ConfigError, ModelNotFoundError
from vinoreward.files import MAX_DEPTH, read_plain
from vinoreward_training.runs.run_folder import CONFIG, NEVER_FROM_A_FILE
from vinoreward_training.tasks.environments import agree_to_import, load_encoder, network_sha256

if TYPE_CHECKING:
    from vinoreward_training.configs.train import TrainConfig

DEFAULT_TIMESTEPS = 8000
MAX_YAML = 64 << 10
"""Bytes of a file of settings; the largest preset has three thousand."""
_POSITIVE = (
    "timesteps",
    "eval_every",
    "eval_episodes",
    "final_episodes",
    "checkpoint_every",
    "threads",
    "frame_stack",
)
MOST_THREADS = 1000
_FIXED_BY_A_RUN = ("env", "algorithm", "seed", "frame_stack")
_Config = TypeVar("_Config", bound="TrainConfig")
_Run = TypeVar("_Run", bound="Settings")


class Settings(Protocol):
    """What is needed of a configuration to settle it."""

    @property
    def out(self) -> Path:
        """The run's folder."""

    @property
    def resume(self) -> bool:
        """Whether to go on with the run that is there."""

    @property
    def explicit(self) -> tuple[str, ...]:
        """What was named on the command line."""


def refuse(command: str, config: Any, wrong: Mapping[str, bool]) -> None:
    """Raise ConfigError for the first of these options of ``vinoreward COMMAND`` that is wrong."""
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(config, name)} cannot work. Expected a "
                f"number in the usual range; see vinoreward {command} --help."
            )


def resolve(config: _Config) -> _Config:
    """Return the configuration with every value settled.

    A value that was named on the command line (``explicit``) or differs from the default wins;
    then the YAML file's (``config``); then the preset of the environment, if there is one. When a
    run is resumed, its recorded configuration takes the place of file and preset. Of the two
    ``kwargs`` each key is settled by itself. An environment's package is imported for a file only
    if the user agrees.

    Raises:
        ConfigError: an unknown key, a value of the wrong kind or range, another environment,
            algorithm or seed than the run that is to be resumed has, or no agreement.
        ModelNotFoundError: the YAML file is not there.
    """
    defaults = defaults_of(type(config))
    given = named(config, defaults)
    base = read_recorded(config, given, defaults, _FIXED_BY_A_RUN)
    if base is not None:
        if "encoder" in given and base.get("encoder") is None:
            raise ConfigError(
                f"found encoder={given['encoder']!r}, but the run in {config.out} has none. "
                "Expected none; leave it out, or start another run with --out."
            )
    else:
        file = read_yaml(Path(config.config), defaults) if config.config is not None else {}
        env = str(given.get("env", file.get("env", defaults["env"])))
        algorithm = given.get("algorithm", file.get("algorithm", defaults["algorithm"]))
        base = _merged(preset(env, defaults, str(algorithm)), file)
    settled = {**defaults, **_merged(base, given)}
    if "env" not in given:
        agree_to_import(settled["env"], source_of(config, config.config), trusted=config.trust_run)
    settled = typed(type(config), settled)
    if settled["timesteps"] is None:
        settled["timesteps"] = DEFAULT_TIMESTEPS
    _check(settled)
    return dataclasses.replace(config, explicit=(), **settled)


def resumed(config: _Run) -> _Run:
    """Return the configuration of a run to go on with: what it recorded, but for what is named.

    Where there is no such run it is returned as it is.

    Raises:
        ConfigError: an unknown key, a value of the wrong kind, or no agreement to the import of an
            environment's package that only the run names.
    """
    defaults = defaults_of(type(config))
    given = named(config, defaults)
    recorded = read_recorded(config, given, defaults, ())
    if recorded is None:
        return config
    settled = typed(type(config), {**defaults, **recorded, **given})
    if settled.get("env") is not None and "env" not in given:
        trusted = bool(getattr(config, "trust_run", False))
        agree_to_import(settled["env"], Path(config.out) / CONFIG, trusted=trusted)
    return dataclasses.replace(config, **settled)  # type: ignore[type-var]


def defaults_of(kind: type[Any]) -> dict[str, Any]:
    """Return the default of each setting that a file may hold."""
    return {name: value for name, value in vars(kind()).items() if name not in NEVER_FROM_A_FILE}


def typed(kind: type[Any], settled: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as the types that the fields of ``kind`` have: YAML has no paths and tuples.

    Raises:
        ConfigError: a value of another type, or of no field.
    """
    hints = get_type_hints(kind)
    found = {}
    for name, value in settled.items():
        if name not in hints:
            raise ConfigError(f"found {shown(name)}. Expected one of {', '.join(hints)}.")
        hint = str(hints[name])
        if value is None:
            fits = type(None) in get_args(hints[name])
        elif "Literal" in hint:
            fits = isinstance(value, str) and repr(value) in hint
        elif "Path" in hint:
            fits, value = isinstance(value, str | Path), Path(str(value))
        elif "tuple" in hint:
            fits = isinstance(value, list | tuple) and all(_whole(item) for item in value)
            fits = fits and ("..." in hint or len(value) == hint.count("int"))
            value = tuple(value) if fits else value
        elif "dict" in hint:
            fits = isinstance(value, dict) and all(isinstance(key, str) for key in value)
        elif "bool" in hint:
            fits = isinstance(value, bool)
        elif "float" in hint:
            fits = isinstance(value, int | float) and not isinstance(value, bool)
            value = float(value) if fits else value
        elif "int" in hint:
            fits = _whole(value)
        else:
            fits, value = isinstance(value, str | Path), str(value)
        if not fits:
            kinds = hints[name].__name__ if isinstance(hints[name], type) else hint
            raise ConfigError(
                f"found {name}={shown(settled[name])}. Expected {kinds}; "
                f"change --{name.replace('_', '-')} or the file."
            )
        found[name] = value
    return found


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def named(config: Settings, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was named on the command line or differs from the default."""
    return {
        name: getattr(config, name)
        for name, value in defaults.items()
        if name in config.explicit or getattr(config, name) != value
    }


def read_recorded(
    config: Settings, given: Mapping[str, Any], defaults: dict[str, Any], fixed: Iterable[str]
) -> dict[str, Any] | None:
    """Return what the run that is to be resumed recorded; None if there is none.

    Args:
        config: where the run is, and whether to resume it.
        given: see :func:`named`.
        defaults: of all keys.
        fixed: keys that a run cannot change.

    Raises:
        ConfigError: one of them was given otherwise, or a key is not known.
    """
    path = Path(config.out) / CONFIG
    if not (config.resume and path.is_file()):
        return None
    found = read_yaml(path, defaults)
    found["out"] = str(config.out)  # where the run is now, and nowhere else
    for name in fixed:
        if name in given and given[name] != found.get(name, defaults[name]):
            raise ConfigError(
                f"found {name}={given[name]!r}, but the run in {config.out} has "
                f"{found.get(name)!r}. Expected the same; leave it out, or start another run "
                "with --out."
            )
    return found


def source_of(config: Settings, file: Path | None) -> Path:
    """Return the file whose settings count: that of the run to be resumed, else ``file``."""
    recorded = Path(config.out) / CONFIG
    return recorded if file is None or (config.resume and recorded.is_file()) else Path(file)


def settle_encoder(config: _Config) -> _Config:
    """Return the configuration with the hash of the encoder's network, checked if recorded.

    Raises:
        ModelNotFoundError: no such bundle.
        BundleError: it is damaged.
        ConfigError: another encoder than the run that is to be resumed has.
    """
    if config.encoder is None:
        return config

    bundle = load_encoder(config.encoder, config.encoder_sha256)
    return dataclasses.replace(config, encoder_sha256=network_sha256(bundle))


def preset(env: str, defaults: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """Return the preset of an environment id; empty if there is none.

    The presets' algorithm arguments are SAC's and are left out for other algorithms.
    """
    folder, name = Path(str(files("vinoreward_training"))) / "presets", env.rsplit(":", 1)[-1]
    paths = [path for path in folder.glob("*.yaml") if path.stem == name]
    found = read_yaml(paths[0], defaults) if paths else {}
    if algorithm != "SAC":
        found.pop("algorithm_kwargs", None)
    return found


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML that may be anybody's: no part stands for another, as few lines could make many.

    Depth is bounded too, and values are numbers, text, flags, lists and tables.
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
        found = super().construct_object(node, deep)
        if not isinstance(found, bool | int | float | str | list | dict | None):
            raise ValueError(f"it holds a {type(found).__name__}")
        if isinstance(found, int) and abs(found) >= 1 << 64:
            raise ValueError("it holds a whole number of more than 64 bits")
        return found


def read_yaml(path: Path, defaults: dict[str, Any]) -> dict[str, Any]:
    """Read a YAML file whose keys are those of ``defaults``.

    Raises:
        ModelNotFoundError: no such file.
        ConfigError: not YAML, not a table, or a key that is not known.
    """
    # The same file serves several commands, and not all of them know the same keys.
    example = "`timesteps: 8000`" if "timesteps" in defaults else "`steps: 8000`"
    try:
        found = yaml.load(read_plain(path, MAX_YAML).decode("utf-8"), _PlainLoader) or {}
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"no configuration file {path}. Expected a YAML file; check the path."
        ) from error
    except (yaml.YAMLError, OSError, ValueError, LookupError, TypeError) as error:
        # Also what PyYAML has no error of its own for, such as the date 2026-13-45.
        raise ConfigError(
            f"{path} cannot be read: {error}. Expected YAML with lines such as {example}; correct "
            "it."
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"{path} holds a {type(found).__name__}. Expected a table of settings; write lines "
            f"such as {example}."
        )
    unknown = sorted(set(map(str, found)) - set(defaults))
    if unknown:
        keys = f"key{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}"
        raise ConfigError(
            f"{path} has the unknown {keys}. Expected {_instead(unknown, list(defaults))}; correct "
            "or remove what is unknown."
        )
    return found


def _instead(unknown: Sequence[str], known: Sequence[str]) -> str:
    """Say which keys are meant; all there are only where that is not clear."""
    meant = [difflib.get_close_matches(each.replace("-", "_"), known, 1) for each in unknown]
    pairs = zip(meant, unknown, strict=True)
    nearest = [f"{found[0]} in place of {each}" for found, each in pairs if found]
    if len(nearest) < len(unknown):
        nearest.append(f"some of {', '.join(known)}")
    return "; ".join(nearest)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for name in ("env_kwargs", "algorithm_kwargs"):
        parts = [part.get(name) or {} for part in (below, above)]
        for part in parts:
            if not isinstance(part, dict):
                raise ConfigError(
                    f"found {name}={part!r}. Expected a table of names and values; write it as one."
                )
        merged[name] = {**parts[0], **parts[1]}
    return merged


def _check(settled: dict[str, Any]) -> None:
    for name in _POSITIVE:
        value = settled[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                f"found {name}={value!r}. Expected a whole number, at least 1; change "
                f"--{name.replace('_', '-')}."
            )
    if settled["threads"] > MOST_THREADS:
        raise ConfigError(
            f"found threads={settled['threads']}. Expected at most {MOST_THREADS}; change "
            "--threads."
        )
    goal = settled["stop_when_solved"]
    if goal is not None and not (isinstance(goal, int | float) and 0 < goal <= 1):
        raise ConfigError(
            f"found stop_when_solved={goal!r}. Expected a share of episodes above 0 and up to 1, "
            "or None to use every step; change --stop-when-solved."
        )
