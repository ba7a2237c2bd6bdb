"""The policy and environment of an actors' run, for ``vinoreward play``."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from vinoreward.actor_learner.acting.environments import as_config_error, check_spaces
from vinoreward.actor_learner.acting.evaluation import Player, evaluation_backend
from vinoreward.errors import (
    ConfigError,
    MissingDisplayError,
    MissingExtraError,
    ModelNotFoundError,
)
from vinoreward.files import read_json
from vinoreward.policies import load_policy
from vinoreward.policies.policy import Policy
from vinoreward_training.actors.build import evaluation_options
from vinoreward_training.actors.settings import SETTINGS
from vinoreward_training.configs import ActorsConfig
from vinoreward_training.policy import evaluate
from vinoreward_training.tasks.lookup import make_task

if TYPE_CHECKING:
    from vinoreward_training.configs import PlayConfig

MOST_FRAMES = 300
"""Maximum frames of a film: a game has thousands of steps, and a frame takes half a megabyte."""


@dataclass(frozen=True)
class Opened:
    """A policy with its environment.

    Attributes:
        env: the environment.
        model: chooses the actions.
        description: of the policy, plain data.
        unfilmed: why the environment cannot render; empty if it can, or need not.
        most_frames: maximum of a film; None: episodes are short, so every step is filmed.
    """

    env: gym.Env[Any, Any]
    model: evaluate.Policy
    description: dict[str, Any]
    unfilmed: str = ""
    most_frames: int | None = None


class _Greedy:
    """Gives a player the interface of ``evaluate``."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[Any, None]:
        """Return the best action for one observation."""
        return self._player.act(observation), None


def is_of_actors(folder: Path) -> bool:
    """Return whether ``vinoreward actors`` or ``save_policy`` wrote a folder."""
    try:
        found = read_json(folder / "policy.json")
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "spec" in found


def open_actors(config: PlayConfig, mode: str | None, stack: contextlib.ExitStack) -> Opened:
    """Return the policy of a run with its task; the stack closes both.

    Args:
        config: of the command.
        mode: ``"rgb_array"`` to film; an environment without it is made anyway.
        stack: closes them.

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
    task, options, backend, truth_key = _recorded(config)
    options = {**options, **config.env_kwargs}
    env, unfilmed = _made(task, options, mode)
    stack.callback(env.close)
    check_spaces(env, policy.spec)
    backend = policy.backend if config.compressed else evaluation_backend(backend)
    player = stack.enter_context(Player(policy, env.action_space, backend=backend))
    description = {
        "task": task,
        "env_kwargs": options,
        "file": f"{_name(config.compressed)}.json",
        "version": policy.version,
        "backend": backend,
        "truth_key": truth_key,
    }
    return Opened(env, _Greedy(player), description, unfilmed, MOST_FRAMES)


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


def _recorded(config: PlayConfig) -> tuple[str, dict[str, Any], str, str | None]:
    """Return task, options, backend and truth key: the run's, if the command line has no others."""
    if (config.run / "config.yaml").is_file():
        # Use the run's task only if the command line names no other.
        trusted = config.trust_run or config.env is not None
        run = SETTINGS.of(out=config.run, resume=True, trust_run=trusted)
        same = config.env is None or config.env == run.task
        options, truth_key = (evaluation_options(run), run.truth_key) if same else ({}, None)
        return config.env or run.task, options, run.backend, truth_key
    if config.env is None:
        raise ConfigError(
            f"{config.run} has a policy, but no config.yaml with its task. Expected the one that "
            "vinoreward actors writes; name the task with --env and --env-kwargs."
        )
    return config.env, {}, ActorsConfig.backend, None


def _made(
    task: str, options: dict[str, Any], render_mode: str | None
) -> tuple[gym.Env[Any, Any], str]:
    """Return an environment, and why it does not render although requested."""
    if render_mode != "rgb_array":
        return make_task(task, **{**options, "render_mode": render_mode}), ""
    env = None
    try:
        with warnings.catch_warnings(), as_config_error(f"{task} does not render", "one that does"):
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
