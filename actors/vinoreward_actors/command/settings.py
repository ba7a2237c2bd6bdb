"""The settings of ``vinoreward actors``: presets, limits, and what a resumed run allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from vinoreward.errors import ConfigError
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_training.runs import next_command
from vinoreward_training.runs.settings import Settings, checked, merged, read_yaml

NOT_RECORDED = ("resume", "progress", "list_presets")
FIXED_BY_A_RUN = (
    "task", "algorithm", "network", "compress", "correctors", "monitor", "seed", "learner",
    "env_kwargs", "trajectory",
)  # fmt: skip
"""Settings that a checkpoint depends on."""
RATES = ("learning_rate", "critic_learning_rate", "max_grad_norm", "entropy_coef")
"""Learner settings that may change on a resume, for example after a divergence."""


def presets() -> dict[str, dict[str, Any]]:
    """Return all presets by name, such as ``actorq/cartpole-int8``.

    A file has common settings, and tables ``tasks`` and ``arms`` with the differences: each
    combination of a task and an arm is a preset.
    """
    settings = {}
    root = Path(str(files("vinoreward_actors") / "presets"))
    for path in sorted(root.rglob("*.yaml")):
        common = read_yaml(path, [*SETTINGS.names, "tasks", "arms"])
        tasks, arms = common.pop("tasks", {}), common.pop("arms", {})
        folder = path.parent.relative_to(root).as_posix()
        for task, of_task in tasks.items():
            for arm, of_arm in arms.items():
                whole = merged(common, of_task, of_arm)
                settings[f"{folder}/{task}-{arm}"] = vars(checked(ActorsConfig, whole))
    return settings


def _preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    name = settings["preset"]
    if name is None:
        return {}
    known = presets()
    if name not in known:
        raise ConfigError(
            f"there is no preset {name!r}. Expected one of {', '.join(known)}; vinoreward actors "
            "--list-presets describes them."
        )
    return known[name]


def _recorded(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a run's settings; ConfigError if some that a checkpoint depends on are missing."""
    missing = [name for name in FIXED_BY_A_RUN if name not in settings]
    if missing:  # cut off: they would silently become defaults
        raise ConfigError(
            f"{path} lacks the run's {', '.join(missing)}. Expected the configuration that the run "
            "recorded; restore the file or add the lines."
        )
    return settings


def _check_resumed(config: ActorsConfig, before: ActorsConfig) -> None:
    """Refuse what the files and the checkpoint of a run do not allow; rates may change."""
    for name in ("config", "preset"):
        now, was = (str(vars(each)[name]) for each in (config, before))
        if now != was:
            raise ConfigError(
                f"found {name}={now!r}, but the run in {config.out} resumes with what it "
                f"recorded, from {name}={was!r}. Expected single settings, such as "
                "--steps; pass those, or start another run with --out."
            )
    for name in ("pull_study", "profile_only"):
        if bool(vars(config)[name]) != bool(vars(before)[name]):
            option = f"--{name.replace('_', '-')}"
            found, other = ("without", "with") if vars(config)[name] else ("with", "without")
            raise ConfigError(
                f"{config.out} has a run {found} {option}, whose files one {other} would "
                "overwrite. Expected a separate folder; choose one with --out."
            )
    for name, value in config.learner.items():
        if name not in RATES and value != before.learner.get(name):
            raise ConfigError(
                f"found learner={{{name!r}: {value!r}}}, but the run in {config.out} has "
                f"{before.learner}. Expected the same, or another of {', '.join(RATES)}; leave it "
                "out, or start another run with --out."
            )


def _checked(config: ActorsConfig, before: ActorsConfig | None) -> ActorsConfig:
    if before is not None:
        _check_resumed(config, before)
    taken = [name for name in ("name", "seed") if name in config.env_kwargs]
    if taken:
        raise ConfigError(
            f"found env_kwargs with {' and '.join(taken)}, which other options set. Expected only "
            "the environment's own options; change --task or --seed."
        )
    periods = config.pull_study
    if len(set(periods)) != len(periods):
        raise ConfigError(field="pull_study", value=periods, expected="different periods")
    if periods and config.lag is not None:
        raise ConfigError(
            f"found --pull-study with lag={config.lag}. Expected no lag: with a fixed lag, actors "
            "pull a given version, whatever the period."
        )
    if periods and config.profile_only is not None:
        raise ConfigError("found --pull-study and --profile-only. Expected one of them.")
    if config.algorithm not in ("sac", "td3"):
        return config
    if config.samples_per_insert != ActorsConfig.samples_per_insert:
        raise ConfigError(
            f"found samples_per_insert={config.samples_per_insert} with {config.algorithm}. "
            "Expected Stable-Baselines3's own settings, such as --learner train_freq 1 "
            "gradient_steps 2."
        )
    # Recorded, because a replay in a checkpoint keeps its size when --steps grows.
    learner = {"buffer_size": max(1000, config.steps), **config.learner}
    return dataclasses.replace(config, learner=learner)


SETTINGS: Settings[ActorsConfig] = Settings(
    ActorsConfig,
    fixed=tuple(name for name in FIXED_BY_A_RUN if name != "learner"),
    preset=_preset,
    recorded=_recorded,
    check=_checked,
)


def recorded(config: ActorsConfig) -> dict[str, Any]:
    """Return the settings that a run folder records."""
    names = (*NOT_RECORDED, "trust_run")
    return {name: value for name, value in vars(config).items() if name not in names}


def command(config: ActorsConfig, **changes: Any) -> str:
    """Return the command line for this configuration, with some settings changed."""
    config = dataclasses.replace(config, **changes)
    base = merged(vars(ActorsConfig()), _preset(vars(config)))
    given: dict[str, object] = {}
    for name, value in recorded(config).items():
        if name == "config" or value == base[name]:
            continue
        if isinstance(value, dict):
            value = dict(pair for pair in value.items() if pair not in base[name].items())
        given[f"--{name.replace('_', '-')}"] = value
    words = next_command.option_words(given)
    return next_command.command("actors", *words, *["--resume"] * config.resume)
