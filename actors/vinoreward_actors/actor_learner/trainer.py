"""One training: learner, engine, compressor and monitor, and the engine's settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward.processes import interrupt_between
from vinoreward.wrappers.true_success import Truth
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.acting.environments import (
    EnvironmentSpec,
    as_config_error,
    check_spaces,
    observed,
)
from vinoreward_actors.actor_learner.acting.profile import Breakdown
from vinoreward_actors.actor_learner.checkpoint import Array, ObservationBuffer, TrainingState
from vinoreward_actors.actor_learner.compressor import STATE_FILE
from vinoreward_actors.actor_learner.config import ActorLearnerConfig, SamplesPerInsert
from vinoreward_actors.actor_learner.controller import Controller
from vinoreward_actors.actor_learner.engines.base import Engine
from vinoreward_actors.actor_learner.engines.inline import InlineEngine
from vinoreward_actors.actor_learner.engines.local import LocalEngine
from vinoreward_actors.actor_learner.engines.ray.engine import RayEngine
from vinoreward_actors.actor_learner.evaluating import BackgroundEvaluations, InlineEvaluations
from vinoreward_actors.actor_learner.learners.base import Learner
from vinoreward_actors.actor_learner.progress import Progress, Summary
from vinoreward_actors.actor_learner.training_loop import Loop
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.monitoring.monitor import Monitor

__all__ = ["ActorLearner", "ActorLearnerConfig", "Progress", "Summary"]

FIRST_OBSERVATIONS = 256
ENGINES: dict[str, type[Engine]] = {
    "local": LocalEngine,
    "ray": RayEngine,
    "inline": InlineEngine,
}


class ActorLearner:
    """Trains a learner on the experience of compressed actors.

    Args:
        environment: a Gymnasium id, or a description of how to make one. Observations are a Box of
            the network's shape: float32, other numbers (converted to float32), or uint8 images.
        learner: the algorithm; actors run its policy.
        config: of actors and learner.
        compressor: the chain; with None actors run the learner's own weights.
        monitor: watches and adjusts the compression; None leaves it unchanged, unless an actor
            cannot use the compressed weights.
        evaluation: another environment for evaluations (such as a game with all its lives); None
            uses the training's.
        folder: for checkpoints; None for none.
        resume: resume from the folder's checkpoint, if there is one.

    Raises:
        ConfigError: an environment that fails or does not fit the network, or invalid settings.
        ModelCorruptError: the checkpoint or the compressor's state is damaged.
    """

    def __init__(
        self,
        environment: str | EnvironmentSpec,
        learner: Learner,
        config: ActorLearnerConfig | None = None,
        *,
        compressor: CompressorChain | None = None,
        monitor: Monitor | None = None,
        evaluation: EnvironmentSpec | None = None,
        folder: Path | None = None,
        resume: bool = False,
    ) -> None:
        self.config = config or ActorLearnerConfig()
        check_kind(
            "learner",
            learner,
            Learner,
            "a learner: Impala, DQN or D4PG",
            "for a model of Stable-Baselines3 use accelerate(model).learn(...)",
        )
        self.learner, self.monitor = learner, monitor
        if isinstance(environment, str):
            environment = EnvironmentSpec(environment)
        evaluation = evaluation or environment
        for field, value in (("environment", environment), ("evaluation", evaluation)):
            check_kind(
                field,
                value,
                EnvironmentSpec,
                "a Gymnasium id or an EnvironmentSpec, as each process makes its own",
                f'name a function that makes it: {field}=EnvironmentSpec("module:function")',
            )
        self._environment, self._evaluation = environment, evaluation
        if compressor is not None:
            compressor.check()
        controller = Controller(learner, self.config, compressor, monitor)
        rows = self._first_observations()
        recent = ObservationBuffer(rows, seed=self.config.seed)
        # Other processes have their own working directory, and this one's may change.
        folder = None if folder is None else folder.absolute()
        self._state = TrainingState(learner, self.config, controller, compressor, recent, folder)
        self._running: Loop | None = None
        self._resumed = resume and self._state.load()
        """Whether the compressor's state in the folder belongs to this training."""
        if not self._resumed:
            controller.begin()

    # For on_progress

    @property
    def steps(self) -> int:
        """Environment steps so far, including those before a resume."""
        return self._state.totals.steps

    def profile(self) -> tuple[Breakdown, float]:
        """Return the breakdown of the actors' time so far, and the learner's seconds per step.

        Raises:
            ConfigError: training is not running.
        """
        return self._loop().profile()

    def _loop(self) -> Loop:
        if self._running is None:
            raise ConfigError(
                "profile() is available only while training runs. Call it from on_progress, during "
                "learn()."
            )
        return self._running

    @property
    def recent_returns(self) -> list[float]:
        """Returns (or scores) of the last 100 behaviour episodes, oldest first."""
        return list(self._state.totals.returns)

    # Setup

    def _first_observations(self) -> Array:
        """Act at random for a moment: the first weights are compressed, too."""
        with (
            as_config_error(
                f"the environment {self._environment} failed before training began",
                "one that can be made, reset and stepped; fix it or its arguments",
            ),
            contextlib.closing(self._environment.make()) as env,
        ):
            check_spaces(env, self.learner.spec)
            env.action_space.seed(self.config.seed)
            rows = [env.reset(seed=self.config.seed)[0]]
            truth = Truth(self._environment.truth_key)
            while len(rows) < FIRST_OBSERVATIONS:
                row, _, ended, cut, info = env.step(env.action_space.sample())
                if ended or cut:
                    truth(info)  # a wrong key is refused before training
                    row = env.reset()[0]
                rows.append(row)
            return observed(np.stack(rows), self.learner.spec)

    def learn(
        self, total_steps: int, on_progress: Callable[[Progress], bool | None] | None = None
    ) -> Summary:
        """Train up to a number of environment steps, including those before a resume.

        Ctrl-C lets the update finish, saves a checkpoint and raises KeyboardInterrupt.

        Args:
            total_steps: sum over all environments.
            on_progress: called after every update; return True to end the training.

        Raises:
            EngineError: no actor can be kept running, or Ray's head is lost; a checkpoint was
                saved.
            OutputError: training diverged; the last checkpoint is from before.
            SharedMemoryError: not enough shared memory; nothing was started.
            RunFolderError: a checkpoint cannot be written.
        """
        config, state = self.config, self._state
        if state.chain is not None and state.folder is not None and not self._resumed:
            # State of another training, which a restarted compressor must not load.
            (state.folder / STATE_FILE).unlink(missing_ok=True)
        settings = engine_config(state, self._environment, resume=self._resumed)
        self._resumed = True
        evaluations = InlineEvaluations if config.engine == "inline" else BackgroundEvaluations
        with (
            make_engine(config.engine, settings) as engine,
            evaluations(self._evaluation, config) as evaluating,
            interrupt_between() as check,
        ):
            self._running = Loop(engine, settings, state, evaluating)
            try:
                return self._running.run(total_steps, on_progress, check)
            finally:
                self._running = None


def check_kind(field: str, value: object, kind: type, expected: str, remedy: str) -> None:
    """Raise ConfigError, which names the argument, unless a value is of a class."""
    if not isinstance(value, kind):
        found = type(value).__name__
        raise ConfigError(field=field, value=found, expected=expected, remedy=remedy)


def make_engine(name: str, config: EngineConfig) -> Engine:
    """Return an engine that has not been started; ConfigError if there is none of that name."""
    if name not in ENGINES:
        raise ConfigError(f"there is no engine {name!r}. Expected one of {', '.join(ENGINES)}.")
    return ENGINES[name](config)


def limiter_for(learner: Learner, config: ActorLearnerConfig) -> SamplesPerInsert | None:
    """Return the limit on samples per insert; None for a learner without a replay."""
    needs = learner.consumption
    if needs.trajectories > 0:
        return None
    return SamplesPerInsert(
        config.samples_per_insert,
        # A restored replay is full enough; counting starts over.
        1 if learner.ready else max(1, needs.minimum),
        insert_size=config.steps * config.environments * config.actors,
        sample_size=needs.sampled,
    )


def engine_config(
    state: TrainingState, environment: EnvironmentSpec, *, resume: bool
) -> EngineConfig:
    """Return an engine's settings for a training."""
    learner, config = state.learner, state.config
    needs = learner.consumption
    per_actor = -(-needs.trajectories // config.actors)
    return EngineConfig(
        config,
        environment,
        learner.spec,
        chain=state.chain,
        compressed=state.chain is not None,
        folder=state.folder,
        resume=resume,
        # A learner with a replay uses old trajectories, too.
        fresh=needs.trajectories > 0,
        first_version=state.totals.version,
        limiter=limiter_for(learner, config),
        # Enough that a large batch cannot deadlock.
        slots_per_actor=1 + max(1, per_actor),
    )
