"""Builds the parts of a training from settings: environment, network, learner, chain, monitor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from vinoreward.errors import ConfigError, VinorewardError
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.stages import chain_of, correctors_of, monitor_of
from vinoreward_actors.compression import Compile, Quantize
from vinoreward_actors.policies.backends.base import BACKENDS
from vinoreward_actors.policies.backends.choice import AUTO, fastest
from vinoreward_actors.tasks.lookup import Task, find_task
from vinoreward_actors.tasks.networks import network
from vinoreward_training.runs.settings import converted
from vinoreward_training.tasks.trust import names_function

if TYPE_CHECKING:
    from vinoreward_actors.actor_learner.learners.base import Learner
    from vinoreward_actors.actor_learner.trainer import ActorLearner, ActorLearnerConfig, Progress
    from vinoreward_actors.compression.chain import CompressorChain
    from vinoreward_actors.monitoring import Monitor
    from vinoreward_actors.policies.spec import PolicySpec

FACTORY = "vinoreward_actors.tasks.lookup:make_task"
SAMPLES_PER_INSERT = 8.0
"""Default of ``--learner samples_per_insert`` for algorithms with a replay."""
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

    allowed = {
        "engine": tuple(ENGINES),
        "backend": (AUTO, *BACKENDS.names()),
        "algorithm": tuple(LEARNERS.names()),
    }
    for name, known in allowed.items():
        if getattr(config, name) not in known:
            raise ConfigError(
                field=name,
                value=getattr(config, name),
                expected=f"one of {', '.join(known)}",
            )
    task = find_task(config.task, config.env_kwargs)
    names = {field.name for field in dataclasses.fields(ActorLearnerConfig)} & set(vars(config))
    shared = {name: getattr(config, name) for name in names}
    ratio = _learner_value("samples_per_insert", config, float, SAMPLES_PER_INSERT)
    chain = chain_of(
        config.compress, config.backend, lambda name: network(task, name, config.algorithm)
    )
    learner = learner_of(config, task)
    if config.backend == AUTO:
        shared["backend"] = fastest(learner.spec, config.environments)
        _choose(chain, learner.spec, config.environments)
    settings = ActorLearnerConfig(
        **{**shared, "steps": config.trajectory, "samples_per_insert": ratio}
    )
    monitor = monitor_of(config.monitor, learner.spec.head, chain)
    environment = _environment(config, config.env_kwargs)
    return Parts(task, learner, chain, monitor, environment, settings)


def _choose(chain: CompressorChain | None, spec: PolicySpec, batch: int) -> None:
    """Compile for the fastest backend, unless the chain names one."""
    if chain is None or any(isinstance(stage, Compile) for stage in chain.stages):
        return
    int8 = any(isinstance(stage, Quantize) and stage.precision == "int8" for stage in chain.stages)
    chain.add(Compile(fastest(chain.largest(spec), batch, int8=int8)))


def learner_of(config: ActorsConfig, task: Task) -> Learner:
    """Return the learner."""
    kind, settings = settings_of(config)
    spec = network(task, config.network, config.algorithm)
    try:
        made: Learner = kind(spec, settings)
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, VinorewardError):
            raise
        # Only the first line: PyTorch's further lines describe its own calls.
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(
            field="learner",
            value=config.learner,
            expected=f"settings that PyTorch accepts for {config.algorithm}, and a network that "
            f"fits this machine; it says: {first}",
        ) from error
    return made


def settings_of(config: ActorsConfig) -> tuple[Any, Any]:
    """Return the class and configuration of a learner of this library."""
    from vinoreward_actors.actor_learner.learners.base import LEARNERS

    learner = LEARNERS.find(config.algorithm)
    hints = get_type_hints(learner.config_class)
    own = [name for name in hints if name != "seed"]
    if "buffer_size" in own:
        own.append("samples_per_insert")
    settings: dict[str, Any] = {"seed": config.seed}
    for name in config.learner:
        if name not in own:
            raise ConfigError(
                field="learner",
                value={name: config.learner[name]},
                expected=f"some of {', '.join(own)}",
                remedy="leave it out",
            )
        if name == "correctors":
            settings[name] = correctors_of(str(config.learner[name]))
        elif name != "samples_per_insert":
            settings[name] = _learner_value(name, config, hints[name])
    return learner, learner.config_class(**settings)


def _learner_value(name: str, config: ActorsConfig, hint: Any, default: Any = None) -> Any:
    """Return a value of ``--learner`` as the type of an annotation."""
    value = config.learner.get(name, default)
    try:
        return converted(value, hint)
    except ValueError as error:
        raise ConfigError(field="learner", value={name: value}, expected=str(error)) from error


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
