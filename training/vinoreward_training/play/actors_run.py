"""The policy and environment of an actors' run, for ``vinoreward play``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from vinoreward.actor_learner.acting.environments import check_spaces, failures_told
from vinoreward.actor_learner.acting.evaluation import Player, evaluation_backend
from vinoreward.closing import Closing
from vinoreward.errors import (
    ConfigError,
    MissingDisplayError,
    MissingExtraError,
    ModelNotFoundError,
)
from vinoreward.files import read_json
from vinoreward.policies.files import load_policy
from vinoreward.policies.policy import Policy
from vinoreward_training.actors.build import evaluation_options
from vinoreward_training.actors.settings import SETTINGS
from vinoreward_training.configs import ActorsConfig
from vinoreward_training.tasks.lookup import make_task

if TYPE_CHECKING:
    from vinoreward_training.configs import PlayConfig

MOST_FRAMES = 300
"""Maximum frames of a film: a game has thousands of steps, and a frame takes half a megabyte."""


@dataclass(frozen=True)
class ActorsModel(Closing):
    """Adapter of a player to the interface of ``evaluate``.

    Attributes:
        env: the environment.
        player: chooses the actions.
        description: of the policy, plain data.
        unfilmed: why the environment cannot render; empty if it can, or need not.
    """

    env: gym.Env[Any, Any]
    player: Player
    description: Mapping[str, Any] = field(default_factory=dict)
    unfilmed: str = ""

    def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[Any, None]:
        """Return the best action for one observation."""
        return self.player.act(observation), None

    def close(self) -> None:
        """Close player and environment."""
        self.player.close()
        self.env.close()


def is_of_actors(folder: Path) -> bool:
    """Return whether ``vinoreward actors`` or ``save_policy`` wrote a folder."""
    try:
        found = read_json(folder / "policy.json")
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "spec" in found


def open_model(config: PlayConfig, render_mode: str | None) -> ActorsModel:
    """Return the policy of a run with its task; close both.

    Args:
        config: of the command.
        render_mode: ``"rgb_array"`` to film; an environment without it is made anyway.

    Raises:
        ConfigError: an invalid setting, or an environment that does not match the policy.
        MissingExtraError: a package is missing.
        ModelNotFoundError: there is no such policy.
        ModelCorruptError: it cannot be read.
    """
    for name in ("backend", "bundle", "encoder"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"found --{name} with a run of vinoreward actors, whose environment has its own "
                f"options. Expected those; leave it out, or try --env-kwargs {name} "
                f"{getattr(config, name)}."
            )
    policy = _policy(config.run, config.compressed)
    task, options, backend = _recorded(config)
    options = {**options, **config.env_kwargs}
    env, unfilmed = _made(task, options, render_mode)
    try:
        check_spaces(env, policy.spec)
        backend = policy.backend if config.compressed else evaluation_backend(backend)
        description = {
            "task": task,
            "env_kwargs": options,
            "file": f"{_name(config.compressed)}.json",
            "version": policy.version,
            "backend": backend,
        }
        return ActorsModel(
            env, Player(policy, env.action_space, backend=backend), description, unfilmed
        )
    except BaseException:
        env.close()
        raise


def _name(compressed: bool) -> str:
    return "compressed" if compressed else "policy"


def _policy(folder: Path, compressed: bool) -> Policy:
    path = folder / f"{_name(compressed)}.json"
    if compressed and not path.is_file():
        raise ModelNotFoundError(
            f"there is no compressed policy in {folder}. Expected a run of vinoreward actors with "
            "--compress, which had one at its end; leave --compressed out to play the full one."
        )
    return load_policy(path)


def _recorded(config: PlayConfig) -> tuple[str, dict[str, Any], str]:
    """Return task, options and backend: the run's, unless the command line overrides them."""
    if (config.run / "config.yaml").is_file():
        # Use the run's task only if the command line names no other.
        trusted = config.trust_run or config.env is not None
        run = SETTINGS.of(out=config.run, resume=True, trust_run=trusted)
        same = config.env is None or config.env == run.task
        return config.env or run.task, evaluation_options(run) if same else {}, run.backend
    if config.env is None:
        raise ConfigError(
            f"{config.run} has a policy, but no config.yaml with its task. Expected the one that "
            "vinoreward actors writes; name the task with --env and --env-kwargs."
        )
    return config.env, {}, ActorsConfig.backend


def _made(
    task: str, options: dict[str, Any], render_mode: str | None
) -> tuple[gym.Env[Any, Any], str]:
    """Return an environment, and why it does not render although requested."""
    if render_mode != "rgb_array":
        return make_task(task, **{**options, "render_mode": render_mode}), ""
    env = None
    try:
        with warnings.catch_warnings(), failures_told(f"{task} does not render", "one that does"):
            # Gymnasium warns of missing render modes; the code below reports them.
            warnings.simplefilter("ignore")
            env = make_task(task, **{**options, "render_mode": render_mode})
            env.reset(seed=0)
            if env.render() is not None:
                return env, ""
        why = "the environment has no rgb_array rendering"
    except (ConfigError, MissingDisplayError, MissingExtraError) as error:
        # Invalid options raise again below, with their own message.
        why = str(error).split(" Expected ")[0].rstrip(". ")
    if env is not None:
        env.close()
    return make_task(task, **options), why
