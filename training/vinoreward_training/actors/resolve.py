"""Resolves the settings of ``vinoreward actors``: command line, file, preset, or resumed run."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from vinoreward.errors import ConfigError
from vinoreward_training.configs.actors import ActorsConfig
from vinoreward_training.runs.run_folder import NEVER_FROM_A_FILE
from vinoreward_training.runs.settings import (
    defaults_of,
    named,
    read_recorded,
    read_yaml,
    source_of,
    typed,
)
from vinoreward_training.tasks.environments import agree_to_import

TABLES = ("learner", "env_kwargs")
NOT_RECORDED = (*NEVER_FROM_A_FILE, "resume", "progress", "list_presets")
FIXED_BY_A_RUN = (
    "task", "algorithm", "network", "compress", "correctors", "monitor", "seed", "learner",
    "env_kwargs", "trajectory",
)  # fmt: skip
"""Settings that a checkpoint depends on."""
RATES = ("learning_rate", "critic_learning_rate", "max_grad_norm", "entropy_coef")
"""Learner settings that may change on a resume, for example after a divergence."""
_RENAMED = {
    "atoms": "num_atoms", "batch": "batch_size", "capacity": "buffer_size",
    "clip_norm": "max_grad_norm", "entropy": "entropy_coef", "epsilon": "optimizer_epsilon",
    "epsilon_first": "epsilon_start", "epsilon_last": "epsilon_end",
    "epsilon_steps": "epsilon_decay_steps", "high": "v_max", "low": "v_min",
    "minimum": "learning_starts", "normalise": "normalize_advantage",
    "prioritised": "prioritized", "share": "tau", "target_period": "target_update_interval",
    "value": "value_coef",
}  # fmt: skip
"""Old names of learner settings in recorded runs."""
_LEAST = {
    "actors": 1, "environments": 1, "steps": 1, "trajectory": 1, "pull_period": 1, "push_period": 1,
    "max_lag": 1, "max_staleness": 0, "evaluate_every": 0, "evaluation_episodes": 2,
    "final_episodes": 2, "threads": 1, "study_seeds": 1, "seed": 0,
}  # fmt: skip
_MOST = {"actors": 1000, "threads": 1000, "seed": 2**32 - 1}
"""Upper limits; NumPy and Stable-Baselines3 accept no larger seeds."""
LIMIT = 10**12
"""Upper limit of all integers: more is a typo, and overflows counters."""
_BITS = (2, 3, 4, 5, 6, 7, 8, 16, 32)


def presets() -> dict[str, dict[str, Any]]:
    """Return all presets by name, such as ``actorq/cartpole-int8``.

    A file has common settings, and tables ``tasks`` and ``arms`` with the differences: each
    combination of a task and an arm is a preset.

    Raises:
        ConfigError: a file with unknown keys.
    """
    found = {}
    root = Path(str(files("vinoreward_training") / "presets" / "actors"))
    for path in sorted(root.rglob("*.yaml")):
        allowed = {**defaults_of(ActorsConfig), "tasks": {}, "arms": {}}
        common = read_yaml(path, allowed)
        tasks, arms = common.pop("tasks", {}), common.pop("arms", {})
        folder = path.parent.relative_to(root).as_posix()
        for task, of_task in tasks.items():
            for arm, of_arm in arms.items():
                found[f"{folder}/{task}-{arm}"] = _merged(_merged(common, of_task), of_arm)
    return found


def resolve(config: ActorsConfig) -> ActorsConfig:
    """Return the configuration with all values resolved.

    Priority: values named on the command line or different from the default, then the YAML file,
    then the preset. A resumed run's recorded configuration replaces file and preset.

    Raises:
        ConfigError: an unknown preset or key, a value of the wrong type or range, a conflict with
            the run to be resumed, or a package that a file names and the user does not want
            imported.
        ModelNotFoundError: the YAML file does not exist.
    """
    defaults = defaults_of(ActorsConfig)
    given = named(config, defaults)
    fixed = [name for name in FIXED_BY_A_RUN if name != "learner"]
    base = read_recorded(config, given, {**defaults, "executor": None}, fixed)
    if base is not None:
        base = _renamed(base)
        _check_whole(base, config.out)
        _check_kind(base, given, config.out)
        _check_learner(base, given, config.out)
    else:
        file = {}
        if config.config is not None:
            file = read_yaml(Path(config.config), defaults)
        base = _merged(_preset(given.get("preset", file.get("preset"))), file)
    settled = typed(ActorsConfig, {**defaults, **_merged(base, given)})
    _check(settled)
    if "task" not in given:
        named_by = source_of(config, config.config)
        agree_to_import(settled["task"], named_by, trusted=config.trust_run, option="--task")
    if str(settled["algorithm"]).startswith("sb3-"):
        # Recorded, because a replay in a checkpoint keeps its size when --steps grows.
        size = {"buffer_size": max(1000, settled["steps"])}
        settled["learner"] = {**size, **settled["learner"]}
    return ActorsConfig(
        **{
            **settled,
            "resume": config.resume,
            "progress": config.progress,
            "trust_run": config.trust_run,
        }
    )


def _renamed(base: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a run's settings to the current names, so that old runs can be resumed."""
    found = dict(base)
    if "executor" in found:
        found["backend"] = found.pop("executor")
    learner = found.get("learner")
    if isinstance(learner, dict):
        learner = {_RENAMED.get(str(name), name): value for name, value in learner.items()}
        start, learned = learner.pop("temperature", None), learner.pop("automatic", True)
        if not learned:
            learner["ent_coef"] = 1.0 if start is None else start
        elif start is not None:
            learner["ent_coef"] = f"auto_{start}"
        found["learner"] = learner
    return found


def _check_whole(base: Mapping[str, Any], folder: Path) -> None:
    """Refuse a truncated file: missing settings would silently become defaults."""
    missing = [name for name in FIXED_BY_A_RUN if name not in base]
    if missing:
        raise ConfigError(
            f"{folder / 'config.yaml'} lacks the run's {', '.join(missing)}. Expected the "
            "configuration that the run recorded; restore the file or add the lines."
        )


def _check_learner(base: Mapping[str, Any], given: Mapping[str, Any], folder: Path) -> None:
    """Refuse settings that do not fit the learner's checkpoint; rates may change."""
    before = base.get("learner") or {}
    for name, value in (given.get("learner") or {}).items():
        if name not in RATES and value != before.get(name):
            raise ConfigError(
                f"found learner={{{name!r}: {value!r}}}, but the run in {folder} has {before}. "
                f"Expected the same, or another of {', '.join(RATES)}; leave it out, or start "
                "another run with --out."
            )


def _check_kind(base: Mapping[str, Any], given: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume a training as a study or profile, or with another file or preset."""
    for name in ("config", "preset"):
        if name in given and str(given[name]) != str(base.get(name)):
            raise ConfigError(
                f"found {name}={str(given[name])!r}, but the run in {folder} resumes with what it "
                f"recorded, from {name}={str(base.get(name))!r}. Expected single settings, such as "
                "--steps; pass those, or start another run with --out."
            )
    for name in ("pull_study", "profile_only"):
        if name in given and bool(given[name]) != bool(base.get(name)):
            option = f"--{name.replace('_', '-')}"
            found, other = ("without", "with") if given[name] else ("with", "without")
            raise ConfigError(
                f"{folder} has a run {found} {option}, whose files one {other} would overwrite. "
                "Expected a separate folder; choose one with --out."
            )


def _preset(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    known = presets()
    if name not in known:
        raise ConfigError(
            f"there is no preset {name!r}. Expected one of {', '.join(known)}; vinoreward actors "
            "--list-presets describes them."
        )
    return known[name]


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**below, **above}
    for name in TABLES:
        parts = [part.get(name) or {} for part in (below, above)]
        for part in parts:
            if not isinstance(part, dict):
                raise ConfigError(f"found {name}={part!r}. Expected a table of names and values.")
        if name in merged:
            merged[name] = {**parts[0], **parts[1]}
    return merged


def _check(settled: Mapping[str, Any]) -> None:
    for name, least in _LEAST.items():
        if settled[name] < least:
            raise ConfigError(
                f"found {name}={settled[name]}. Expected at least {least}; change "
                f"--{name.replace('_', '-')}."
            )
        if settled[name] > _MOST.get(name, LIMIT):
            raise ConfigError(
                f"found {name}={settled[name]}. Expected at most {_MOST.get(name, LIMIT)}; change "
                f"--{name.replace('_', '-')}."
            )
    if settled["bits"] not in _BITS:
        raise ConfigError(f"found bits={settled['bits']}. Expected 32, 16, or 2 to 8.")
    lag, target = settled["lag"], settled["target"]
    if lag is not None and not 0 <= lag <= LIMIT:
        raise ConfigError(f"found lag={lag}. Expected 0 updates or more, or no lag.")
    if target is not None and not math.isfinite(target):
        raise ConfigError(f"found target={target}. Expected a return; leave it out for none.")
    if settled["profile_only"] is not None and not 1 <= settled["profile_only"] <= LIMIT:
        raise ConfigError(
            f"found profile_only={settled['profile_only']}. Expected at least 1 step; use a few "
            "thousand for a reliable result."
        )
    taken = [name for name in ("name", "seed") if name in settled["env_kwargs"]]
    if taken:
        raise ConfigError(
            f"found env_kwargs with {' and '.join(taken)}, which other options set. Expected only "
            "the environment's own options; change --task or --seed."
        )
    periods = settled["pull_study"]
    if any(not 1 <= period <= LIMIT for period in periods) or len(set(periods)) != len(periods):
        raise ConfigError(
            f"found pull_study={list(periods)}. Expected different periods of at least 1 step, "
            "such as --pull-study 10 40 160 640."
        )
    if periods and lag is not None:
        raise ConfigError(
            f"found --pull-study with lag={lag}. Expected no lag: with a fixed lag, actors pull a "
            "given version, whatever the period."
        )
    replays = str(settled["algorithm"]).startswith("sb3-")
    if replays and settled["samples_per_insert"] != ActorsConfig.samples_per_insert:
        raise ConfigError(
            f"found samples_per_insert={settled['samples_per_insert']} with "
            f"{settled['algorithm']}. Expected Stable-Baselines3's own settings, such as --learner "
            "train_freq 1 gradient_steps 2."
        )
    if periods and settled["profile_only"] is not None:
        raise ConfigError("found --pull-study and --profile-only. Expected one of them.")
    for name in ("checkpoint_seconds", "samples_per_insert"):
        if not 0 < settled[name] < math.inf:
            raise ConfigError(f"found {name}={settled[name]}. Expected a positive number.")


def recorded(config: ActorsConfig) -> dict[str, Any]:
    """Return the settings that a run folder records."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in NOT_RECORDED
    }


def command(config: ActorsConfig, **changes: Any) -> str:
    """Return the command line for this configuration, with some settings changed."""
    return " ".join(["vinoreward actors", *_words(dataclasses.replace(config, **changes))])


def _words(config: ActorsConfig) -> Iterator[str]:
    base = {**defaults_of(ActorsConfig), **_preset(config.preset)}
    for name, default in base.items():
        value = getattr(config, name)
        if name in ("resume", "progress", "list_presets", "config") or value == default:
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            pairs = [item for pair in value.items() for item in pair if pair not in _pairs(default)]
            if pairs:
                yield " ".join([option, *(shlex.quote(str(item)) for item in pairs)])
        elif isinstance(value, tuple):
            yield " ".join([option, *map(str, value)])
        else:
            yield f"{option} {shlex.quote(str(value))}"
    if config.resume:
        yield "--resume"


def _pairs(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(table.items())
