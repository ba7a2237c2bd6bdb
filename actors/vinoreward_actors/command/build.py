"""Builds the parts of a training from settings: environment, network, learner, chain, monitor."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from vinoreward.errors import ConfigError, VinorewardError
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.stages import chain_of, correctors_of, monitor_of
from vinoreward_actors.policies.backends.base import BACKENDS
from vinoreward_actors.tasks.lookup import Task, find_task, make_task
from vinoreward_actors.tasks.networks import dense_layers, network
from vinoreward_training.policy.checkpoint import algorithm_class, build_model
from vinoreward_training.runs.settings import converted
from vinoreward_training.tasks.trust import names_function

if TYPE_CHECKING:
    from vinoreward_actors.actor_learner.learners.base import Learner
    from vinoreward_actors.actor_learner.trainer import ActorLearner, ActorLearnerConfig, Progress
    from vinoreward_actors.compression.chain import CompressorChain
    from vinoreward_actors.monitoring import Monitor

FACTORY = "vinoreward_actors.tasks.lookup:make_task"
SB3 = {"sac": "SAC", "td3": "TD3"}
"""Algorithms whose learner is Stable-Baselines3's."""
_SB3_AT_LEAST_ONE = (
    "batch_size", "buffer_size", "n_steps", "policy_delay", "target_update_interval", "train_freq",
)  # fmt: skip
_POWER = re.compile(r"[+-]?[0-9]+[eE][+-]?[0-9]{1,3}")
"""A number such as 1e-3, which YAML reads as text; it needs 1.0e-3."""
TRAINING_ONLY = ("terminal_on_life_loss", "clip_reward")
"""Options that make a game easier to learn; evaluations play the original game."""


@dataclass(frozen=True)
class Parts:
    """The parts of a training."""

    task: Task
    learner: Learner
    chain: CompressorChain | None
    """None if actors run the learner's own network."""
    monitor: Monitor | None
    """None if nothing adjusts the compression."""
    environment: EnvironmentSpec
    """Of actors."""
    settings: ActorLearnerConfig
    close: Callable[[], None]
    """Releases what the learner opened."""

    def warm(self, progress: Progress) -> bool:
        """Return whether actors act with their final kind of weights: profiles start there."""
        return self.chain is None or progress.metrics.get("compressed_share", 0.0) > 0.5

    def trainer(self, config: ActorsConfig, folder: Path | None) -> ActorLearner:
        """Create the training without starting it; ``folder`` is for checkpoints."""
        from vinoreward_actors.actor_learner.trainer import ActorLearner

        return ActorLearner(
            self.environment,
            self.learner,
            self.settings,
            compressor=self.chain,
            monitor=self.monitor,
            evaluation=evaluation_environment(config),
            folder=folder,
            resume=config.resume,
        )


def build(config: ActorsConfig) -> Parts:
    """Build all parts of a training; starts no process."""
    from vinoreward_actors.actor_learner.learners.base import LEARNERS
    from vinoreward_actors.actor_learner.trainer import ENGINES, ActorLearnerConfig

    for name, known in (("engine", ENGINES), ("backend", BACKENDS.names())):
        if getattr(config, name) not in known:
            raise ConfigError(
                f"found {name}={getattr(config, name)!r}. Expected one of {', '.join(known)}."
            )
    algorithms = (*LEARNERS.names(), *SB3)
    if config.algorithm not in algorithms:
        raise ConfigError(
            f"found algorithm={config.algorithm!r}. Expected one of {', '.join(algorithms)}."
        )
    task = find_task(config.task, config.env_kwargs)
    names = {field.name for field in dataclasses.fields(ActorLearnerConfig)} & set(vars(config))
    shared = {name: getattr(config, name) for name in names}
    settings = ActorLearnerConfig(**{**shared, "steps": config.trajectory})
    chain = chain_of(
        config.compress, config.backend, lambda name: network(task, name, config.algorithm)
    )
    learner, close = learner_of(config, task)
    monitor = monitor_of(config.monitor, learner.spec.head, chain, config.pull_period, config.bits)
    environment = _environment(config, config.env_kwargs)
    return Parts(task, learner, chain, monitor, environment, settings, close)


def learner_of(config: ActorsConfig, task: Task) -> tuple[Learner, Callable[[], None]]:
    """Return the learner, and a function that releases what it opened."""
    if config.algorithm in SB3:
        return _sb3(config, task)
    kind, settings = settings_of(config)
    spec = network(task, config.network, config.algorithm)
    try:
        made: Learner = kind(spec, settings)
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, VinorewardError):
            raise
        raise ConfigError(_refused(config, "PyTorch", error)) from error
    return made, lambda: None


def _refused(config: ActorsConfig, by: str, error: BaseException) -> str:
    # Only the first line: PyTorch's further lines describe its own calls.
    first = (str(error) or type(error).__name__).splitlines()[0]
    return (
        f"{by} refused {config.algorithm} with --learner {config.learner}: {first}. Expected "
        "settings and a task that it supports, of a size that fits this machine; change --learner "
        "or --network."
    )


def settings_of(config: ActorsConfig) -> tuple[Any, Any]:
    """Return the class and configuration of a learner of this library."""
    from vinoreward_actors.actor_learner.learners.base import LEARNERS

    learner = LEARNERS.find(config.algorithm)
    kind = learner.config_class
    settings = _settings(config.learner, kind, config.algorithm)
    settings["seed"] = config.seed
    correctors = correctors_of(config.correctors)
    if correctors is not None:
        settings["correctors"] = correctors
    return learner, kind(**settings)


def _settings(given: Mapping[str, Any], kind: Any, algorithm: str) -> dict[str, Any]:
    """Convert an algorithm's settings to the types of its configuration."""
    kinds = get_type_hints(kind)
    known = [
        field.name for field in dataclasses.fields(kind) if field.name not in ("correctors", "seed")
    ]
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            hint = "; --correctors names those" if name == "correctors" else ""
            raise ConfigError(
                f"--learner has {name!r}, which {algorithm} does not have{hint}. Expected some of "
                f"{', '.join(known)}."
            )
        try:
            settings[name] = _converted(name, value, kinds[name])
        except ValueError as error:
            raise ConfigError(f"--learner has {name}={value!r}. Expected {error}.") from error
    return settings


def _converted(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        value = converted([value] if isinstance(value, int) else value, hint)
        if min(value, default=1) < 1:
            raise ValueError("whole numbers from 1")
    elif isinstance(value, str) and _POWER.fullmatch(value) and hint in (float, float | None):
        value = float(value)
    return converted(value, hint)


def _sb3(config: ActorsConfig, task: Task) -> tuple[Learner, Callable[[], None]]:
    """Return a Stable-Baselines3 model as learner."""
    from torch import nn

    from vinoreward_actors.actor_learner.learners.sb3 import SB3Config, SB3Learner

    if config.correctors is not None:
        raise ConfigError(
            f"{config.algorithm} does not support --correctors {config.correctors!r}: its targets "
            "are Stable-Baselines3's own. Expected none; impala, dqn and d4pg support them."
        )
    algorithm = SB3[config.algorithm]
    arguments = _sb3_settings(config, algorithm_class(algorithm))
    if len(task.observation_shape) != 3:  # an image's network is CnnPolicy's
        name = config.network or ("2x256" if task.network == "original" else task.network)
        dense = dense_layers(name)
        if dense is None:
            raise ConfigError(
                f"found network={name!r} with {config.algorithm}. Expected DEPTHxWIDTH, or no "
                "network for images, which Stable-Baselines3's CnnPolicy handles."
            )
        arguments["policy_kwargs"] = {
            "net_arch": list(dense[0]),
            "activation_fn": nn.Tanh if dense[1] == "tanh" else nn.ReLU,
        }
    options: dict[str, Any] = dict(config.env_kwargs)
    env = make_task(config.task, config.seed, **options)
    size = max(1000, config.steps)
    try:
        model: Any = build_model(algorithm, env, arguments, seed=config.seed, replay_size=size)
    except ConfigError as error:
        env.close()
        raise ConfigError(
            _refused(config, "Stable-Baselines3", error.__cause__ or error)
        ) from error
    # Without noise, TD3 stops exploring after its first steps.
    sigma = 0.1 if config.algorithm == "td3" else None
    settings = SB3Config(total_steps=config.steps, sigma=sigma, seed=config.seed)
    return SB3Learner(model, settings), env.close


def _sb3_settings(config: ActorsConfig, kind: Any) -> dict[str, Any]:
    """Return ``--learner`` after checking it, because SB3 checks most of it only during training.

    A setting must have the type of its default.
    """
    taken = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if isinstance(parameter.default, bool | int | float | str)
        and name not in ("device", "_init_setup_model")
    }
    for name, value in config.learner.items():
        if name not in taken:
            raise ConfigError(
                f"--learner has {name!r}, which {config.algorithm} does not have. Expected some of "
                f"{', '.join(taken)}; use --seed and --network for those."
            )
        default = taken[name]
        least = 1 if name in _SB3_AT_LEAST_ONE else 0
        whole = isinstance(default, int) and name != "max_grad_norm"
        expected = f"a {'whole ' if whole else ''}number from {least}"
        if isinstance(default, bool):
            fits, expected = isinstance(value, bool), "true or false"
        elif isinstance(default, str):
            fits, expected = not isinstance(value, bool), "a word or a number"
        elif isinstance(value, bool | str) or (whole and not isinstance(value, int)):
            fits = False
        elif name == "gradient_steps":
            fits = value == -1 or value >= 1
            expected = "a whole number from 1, or -1 for as many as environment steps"
        else:
            fits = least <= value < math.inf
        if not fits:
            raise ConfigError(f"--learner has {name}={value!r}. Expected {expected}.")
    return dict(config.learner)


def evaluation_options(config: ActorsConfig) -> dict[str, Any]:
    """Return the arguments of the evaluation environment."""
    return {key: value for key, value in config.env_kwargs.items() if key not in TRAINING_ONLY}


def evaluation_environment(config: ActorsConfig) -> EnvironmentSpec:
    """Return the evaluation environment."""
    return _environment(config, evaluation_options(config))


def _environment(config: ActorsConfig, options: Mapping[str, Any]) -> EnvironmentSpec:
    kwargs = {"name": config.task, **options}
    function = config.truth is not None and names_function(config.truth)
    named = {"truth" if function else "truth_key": config.truth}
    return EnvironmentSpec(FACTORY, kwargs, **named)
