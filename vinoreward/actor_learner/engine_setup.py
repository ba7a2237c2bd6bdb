"""Engines by name, and their settings for a learner and a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vinoreward.actor_learner.acting.actor import ActorConfig
from vinoreward.actor_learner.acting.environments import EnvironmentSpec
from vinoreward.actor_learner.checkpoint import TrainingState
from vinoreward.actor_learner.compressor import CompressorConfig
from vinoreward.actor_learner.config import ActorLearnerConfig, SamplesPerInsert
from vinoreward.actor_learner.engines.base import Engine, EngineConfig
from vinoreward.actor_learner.engines.local.engine import LocalEngine
from vinoreward.actor_learner.engines.ray.engine import RayEngine
from vinoreward.actor_learner.transport.trajectory import TrajectorySpec
from vinoreward.errors import ConfigError

if TYPE_CHECKING:  # importing it imports torch
    from vinoreward.actor_learner.learners.base import Learner

ENGINES: dict[str, type[Engine]] = {"local": LocalEngine, "ray": RayEngine}


def make_engine(name: str, config: EngineConfig) -> Engine:
    """Return an engine that has not been started.

    Raises:
        ConfigError: no engine of that name.
        MissingExtraError: what it needs is not installed.
    """
    if name not in ENGINES:
        raise ConfigError(f"there is no engine {name!r}. Expected one of {', '.join(ENGINES)}.")
    return ENGINES[name](config)


def limiter_for(learner: Learner, config: ActorLearnerConfig) -> SamplesPerInsert | None:
    """Return the limit on samples per insert; None for a learner without a replay."""
    needs = learner.consumption
    if needs.trajectories > 0:
        return None
    together = config.steps * config.environments * config.actors
    smallest = SamplesPerInsert.smallest_buffer(config.samples_per_insert, together, needs.sampled)
    return SamplesPerInsert(
        config.samples_per_insert,
        # A restored replay is full enough; counting starts over.
        1 if learner.ready else max(1, needs.minimum),
        2.0 * smallest,
        insert_size=together,
        sample_size=needs.sampled,
    )


def engine_config(
    state: TrainingState, environment: EnvironmentSpec, compressor: CompressorConfig | None
) -> EngineConfig:
    """Return an engine's settings for a training.

    Raises:
        ConfigError: a fixed lag with a learner that cannot have one.
    """
    learner, config = state.learner, state.config
    spec, needs = learner.spec, learner.consumption
    if config.lag is not None and (needs.trajectories == 0 or needs.trajectories % config.actors):
        raise ConfigError(
            f"a fixed lag needs a learner that takes a multiple of the {config.actors} actors, but "
            f"this one takes {needs.trajectories or 'any number of'} trajectories. Expected a "
            "multiple: each actor contributes equally to every update."
        )
    per_actor = -(-needs.trajectories // config.actors)
    # A learner with a replay uses old trajectories, too.
    fresh = needs.trajectories > 0 and not needs.any_age
    return EngineConfig(
        actor=ActorConfig(
            environment=environment,
            policy=spec,
            backend=config.backend,
            environments=config.environments,
            steps=config.steps,
            actors=config.actors,
            seed=config.seed,
            lag=config.lag,
            compressed=compressor is not None,
            max_staleness=min(config.max_staleness, config.max_lag)
            if fresh
            else config.max_staleness,
            max_lag=config.max_lag if fresh else None,
            rollouts_per_update=max(1, per_actor),
            first_version=state.totals.version,
        ),
        trajectory=TrajectorySpec.of(spec, config.steps, config.environments),
        compressor=compressor,
        limiter=limiter_for(learner, config),
        # Enough that neither a fixed lag nor a large batch can deadlock.
        slots_per_actor=max(2, (1 + per_actor) * (1 + (config.lag or 0))),
        bits=config.bits,
        observations=config.observations,
        heartbeat=config.heartbeat,
        restarts=config.restarts,
    )
