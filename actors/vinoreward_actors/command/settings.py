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

NOT_RECORDED = ("resume", "trust_run")
FIXED_BY_A_RUN = (
    "task", "algorithm", "network", "compress", "monitor", "seed", "learner", "env_kwargs",
    "trajectory",
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
            field="preset", value=name, expected=f"one of {', '.join(known)}", remedy="name one"
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
        if str(vars(config)[name]) != str(vars(before)[name]):
            raise ConfigError(
                field=name,
                value=vars(config)[name],
                expected=f"{vars(before)[name]!r}, as the run in {config.out} recorded",
                remedy="pass single settings, such as `steps`, or start another run with `out`",
            )
    if (config.profile_only is None) != (before.profile_only is None):
        raise ConfigError(
            field="profile_only",
            value=config.profile_only,
            expected=f"{before.profile_only}, as the run in {config.out} recorded",
            remedy="choose another folder with `out`",
        )
    for name, value in config.learner.items():
        if name not in RATES and value != before.learner.get(name):
            raise ConfigError(
                field="learner",
                value={name: value},
                expected=f"{before.learner}, as the run in {config.out} has it, or another of "
                f"{', '.join(RATES)}",
                remedy="leave it out, or start another run with `out`",
            )


def _checked(config: ActorsConfig, before: ActorsConfig | None) -> ActorsConfig:
    if before is not None:
        _check_resumed(config, before)
    taken = [name for name in ("name", "seed") if name in config.env_kwargs]
    if taken:
        raise ConfigError(
            field="env_kwargs",
            value=dict.fromkeys(taken),
            expected="only the environment's own options",
            remedy="change `task` or `seed`",
        )
    return config


SETTINGS: Settings[ActorsConfig] = Settings(
    ActorsConfig,
    fixed=tuple(name for name in FIXED_BY_A_RUN if name != "learner"),
    preset=_preset,
    recorded=_recorded,
    check=_checked,
)


def recorded(config: ActorsConfig) -> dict[str, Any]:
    """Return the settings that a run folder records."""
    return {name: value for name, value in vars(config).items() if name not in NOT_RECORDED}


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
