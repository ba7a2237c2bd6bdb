"""Learners and settings of small trainings, for tests of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.learners.base import Learner
from vinoreward_actors.actor_learner.learners.dqn import DQN, DQNConfig
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.trainer import ActorLearner, ActorLearnerConfig
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.compression.chain import CompressorChain, Stage
from vinoreward_actors.monitoring.monitor import Monitor
from vinoreward_actors.monitoring.strategy import CompressionSetting, Strategy
from vinoreward_actors.policies.spec import mlp

CARTPOLE = mlp(4, 2, head="logits", hidden=(16, 16), activation="tanh", value=True)


def impala(trajectories: int = 2, seed: int = 0) -> Impala:
    return Impala(CARTPOLE, ImpalaConfig(trajectories=trajectories, seed=seed, precision="fp32"))


def dqn(**config: Any) -> DQN:
    settings = {
        "batch_size": 16,
        "learning_starts": 100,
        "buffer_size": 4000,
        "precision": "fp32",
    } | config
    return DQN(mlp(4, 2, head="q", hidden=(16, 16)), DQNConfig(**settings))


def settings(**changed: Any) -> ActorLearnerConfig:
    return ActorLearnerConfig(
        **({"actors": 1, "steps": 10, "backend": "numpy", "pull_period": 10} | changed)
    )


def chain(*stages: Stage) -> CompressorChain:
    found = CompressorChain()
    for stage in stages:
        found.add(stage)
    return found


def training(
    learner: Learner | None = None,
    *stages: Stage,
    environment: str | EnvironmentSpec = "CartPole-v1",
    monitor: Monitor | None = None,
    folder: Path | None = None,
    resume: bool = False,
    evaluation: EnvironmentSpec | None = None,
    **changed: Any,
) -> ActorLearner:
    """Return a small training, by default of IMPALA on CartPole with one actor.

    Args:
        learner: in place of IMPALA.
        stages: of the compression; without any nothing is compressed.
        environment: in place of CartPole.
        monitor: see :class:`ActorLearner`, like the next three.
        folder: of the checkpoint.
        resume: from it.
        evaluation: its environment.
        changed: what differs from :func:`settings`.
    """
    return ActorLearner(
        environment,
        learner or impala(),
        settings(**changed),
        compressor=chain(*stages) if stages else None,
        monitor=monitor,
        folder=folder,
        resume=resume,
        evaluation=evaluation,
    )


def weights_of(learner: Impala | DQN) -> str:
    values = learner.policy(0).float_parameters().values()
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()


class Keeps(Impala):
    """Keeps what it was given."""

    def __init__(self, trajectories: int = 2) -> None:
        super().__init__(
            CARTPOLE, ImpalaConfig(trajectories=trajectories, seed=0, precision="fp32")
        )
        self.given: list[list[Trajectory]] = []

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        self.given.append([one.copy() for one in trajectories])
        return super().update(trajectories)


class Switches(Strategy):
    """Turns compression off and on at every other look."""

    def decide(self, readings: Any, setting: CompressionSetting) -> CompressionSetting:
        return setting.changed({"enabled": not setting.enabled})
