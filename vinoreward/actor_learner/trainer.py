"""One training: learner, engine, compressor and monitor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.actor_learner.acting.environments import EnvironmentSpec, failures_told
from vinoreward.actor_learner.acting.profile import Breakdown
from vinoreward.actor_learner.acting.spaces import check_spaces, observed
from vinoreward.actor_learner.checkpoint import load_checkpoint, save_checkpoint
from vinoreward.actor_learner.compressor import STATE_FILE, CompressorConfig, check_state
from vinoreward.actor_learner.config import EVALUATE_EVERY, ActorLearnerConfig
from vinoreward.actor_learner.controller import Controller
from vinoreward.actor_learner.engine_setup import engine_config, limiter_for, make_engine
from vinoreward.actor_learner.evaluating import BackgroundEvaluator
from vinoreward.actor_learner.learners.base import Learner
from vinoreward.actor_learner.observation_buffer import Array, ObservationBuffer, Totals
from vinoreward.actor_learner.progress import Progress, Summary
from vinoreward.actor_learner.training_loop import Loop
from vinoreward.actor_learner.transport.trajectory import Trajectory
from vinoreward.compression.chain import CompressorChain
from vinoreward.errors import ConfigError, ModelCorruptError
from vinoreward.monitoring.monitor import Monitor
from vinoreward.policies.policy import Policy
from vinoreward.processes import interrupt_between
from vinoreward.saved_arrays import reason_of

__all__ = ["ActorLearner", "ActorLearnerConfig", "Progress", "Summary"]

FIRST_OBSERVATIONS = 256


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
        self.learner = learner
        self.monitor = monitor
        self._environment = (
            EnvironmentSpec(environment) if isinstance(environment, str) else environment
        )
        self._evaluation = evaluation or self._environment
        if compressor is not None:
            compressor.check()
        self._chain = compressor
        # Other processes have their own working directory, and this one's may change.
        folder = None if folder is None else folder.absolute()
        self._folder = folder
        self._controller = Controller(learner, self.config, compressor, monitor)
        self._totals = Totals()
        self._pending: list[Trajectory] = []
        self._running: Loop | None = None
        first = self._first_observations()
        self._observations = ObservationBuffer(
            first, self.config.observations, seed=self.config.seed
        )
        # Whether the compressor's state in the folder belongs to this training.
        self._goes_on = resume and folder is not None and self._load(folder)
        if not self._goes_on:
            self._controller.begin()
        self._controller.resume()

    # For on_progress

    @property
    def steps(self) -> int:
        """Environment steps so far, including those before a resume."""
        return self._totals.steps

    def policies(self, timeout: float = 0.0) -> tuple[Policy, Policy | None]:
        """Return the last pushed weights and the latest compressed ones; for ``on_progress``.

        Args:
            timeout: seconds to wait until both have the same version, while compression is on.

        Returns:
            The learner's policy in full precision, and the latest compressed one with the
            ``version`` of its push, or None if there is none yet or no compressor.

        Raises:
            ConfigError: training is not running.
        """
        return self._loop().policies(timeout)

    def profile(self) -> tuple[Breakdown, float]:
        """Return the breakdown of the actors' time so far, and the learner's seconds per step.

        Raises:
            ConfigError: training is not running.
        """
        return self._loop().profile()

    def _loop(self) -> Loop:
        if self._running is None:
            raise ConfigError(
                "policies and profile are available only while training runs. Call them from "
                "on_progress, during learn()."
            )
        return self._running

    @property
    def recent_returns(self) -> list[float]:
        """Returns (or scores) of the last 100 behaviour episodes, oldest first."""
        return list(self._totals.episodes.returns)

    # Setup

    def _first_observations(self) -> Array:
        """Act at random for a moment, so that the first weights can be compressed, too."""
        with failures_told(
            f"the environment {self._environment} failed before training began",
            "one that can be made, reset and stepped; fix it or its arguments",
        ):
            return self._acted_at_random()

    def _acted_at_random(self) -> Array:
        env = self._environment.make()
        try:
            check_spaces(env, self.learner.spec)
            env.action_space.seed(self.config.seed)
            rows = [env.reset(seed=self.config.seed)[0]]
            while len(rows) < FIRST_OBSERVATIONS:
                row, _, ended, cut, _ = env.step(env.action_space.sample())
                rows.append(env.reset()[0] if ended or cut else row)
            return observed(np.stack(rows), self.learner.spec)
        finally:
            env.close()

    # Checkpoints

    def _save(self) -> bool:
        """Write a checkpoint if there is a folder; return whether there is."""
        if self._folder is None:
            return False
        import torch

        totals = self._totals
        save_checkpoint(
            self._folder,
            {
                "learner": self.learner.state(),
                "monitor": None if self.monitor is None else self.monitor.state(),
                "pull_period": self.config.pull_period,
                "bits": self.config.bits,
                "steps": totals.steps,
                "version": totals.version,
                "returns": list(totals.episodes.returns),
                "episodes": totals.episodes.count,
                "observations": torch.from_numpy(self._observations.rows),
                "held": [
                    {name: torch.from_numpy(array) for name, array in one.arrays().items()}
                    for one in self._pending
                ],
            },
        )
        return True

    def _load(self, folder: Path) -> bool:
        """Resume from a folder's checkpoint; return whether there is one."""
        state = load_checkpoint(folder)
        if state is None:
            return False
        if self._chain is not None and (folder / STATE_FILE).is_file():
            # Check now: in its own process the compressor would fail, and training would run on
            # without it.
            check_state(folder / STATE_FILE, self._chain)
        rows, shape = state["observations"].numpy(), self.learner.spec.observation_shape
        if rows.shape[1:] != shape:
            raise ModelCorruptError(
                f"the checkpoint in {folder} has observations of {rows.shape[1:]}. Expected "
                f"{shape}, as the network; restore it from a copy, or start over in another "
                "folder."
            )
        try:
            self._take(state, rows)
        except (
            LookupError, TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError,
            AssertionError,
        ) as error:  # fmt: skip
            if isinstance(error, ConfigError):
                raise
            raise ModelCorruptError(
                f"the checkpoint in {folder} does not fit: {reason_of(error)}. Expected one of the "
                f"same configuration; restore it from a copy, or start over in another folder."
            ) from error
        return True

    def _take(self, state: Mapping[str, Any], rows: Array) -> None:
        """Resume from a checkpoint's state, whose recent observations are ``rows``."""
        self.learner.load_state(state["learner"])
        if self.monitor is not None and state["monitor"] is not None:
            self.monitor.load_state(state["monitor"])
            self._controller.changed({name: state.get(name) for name in ("pull_period", "bits")})
        else:
            # A new monitor has not changed anything yet.
            self._controller.begin()
        totals = self._totals
        totals.steps, totals.version = int(state["steps"]), int(state["version"])
        totals.episodes.returns.extend(float(value) for value in state["returns"])
        totals.episodes.count = int(state["episodes"])
        pending = [
            Trajectory(**{name: tensor.numpy() for name, tensor in one.items()})
            for one in state.get("held", [])
        ]
        # Drop trajectories of other sizes: they cannot be batched with new ones.
        size = (self.config.steps, self.config.environments)
        pending = [one for one in pending if one.rewards.shape == size]
        needed = self.learner.consumption.trajectories
        if needed:
            # An update waits for at least one more; with a fixed lag, for equally many per actor.
            most = 0 if self.config.lag is not None else needed - 1
            pending = pending[len(pending) - min(most, len(pending)) :]
        self._pending = pending
        self._observations = ObservationBuffer(
            rows, self.config.observations, seed=self.config.seed + totals.version
        )

    # The loop

    def _evaluate_every(self) -> int:
        if self.config.evaluate_every is not None:
            return self.config.evaluate_every
        return EVALUATE_EVERY if self.monitor is not None and self.monitor.needs_returns else 0

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
        config, compressor = self.config, None
        if self._chain is not None:
            if self._folder is not None and not self._goes_on:
                # State of another training, which a restarted compressor must not load.
                (self._folder / STATE_FILE).unlink(missing_ok=True)
            compressor = CompressorConfig(
                self._chain,
                config.compressed_backend,
                seed=config.seed,
                folder=self._folder,
                resume=self._goes_on,
                counted=config.lag is not None,
            )
        self._goes_on = True
        limiter = limiter_for(self.learner, config)
        told = engine_config(
            self.learner, config, self._environment, compressor, limiter, self._totals.version
        )
        every = self._evaluate_every()
        with (
            make_engine(config.engine, told) as engine,
            BackgroundEvaluator(
                self._evaluation,
                config.backend,
                config.evaluation_episodes,
                config.heartbeat,
                engine,
                self._controller.cache,
            ) as evaluating,
            interrupt_between() as check,
        ):
            self._running = Loop(
                engine,
                self.learner,
                config,
                limiter=limiter,
                controller=self._controller,
                totals=self._totals,
                observations=self._observations,
                pending=self._pending,
                save=self._save,
                compressing=compressor is not None,
                evaluating=evaluating if every else None,
                evaluate_every=every,
            )
            try:
                return self._running.run(total_steps, on_progress, check)
            finally:
                self._running = None
