"""Settings of an engine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from vinoreward_actors.actor_learner.acting.actor import ActorConfig
from vinoreward_actors.actor_learner.compressor import CompressorConfig
from vinoreward_actors.actor_learner.config import SamplesPerInsert
from vinoreward_actors.actor_learner.transport.trajectory import TrajectorySpec

OBSERVATIONS = 1024
"""Rows for measuring ranges and for distillation."""


@dataclass(frozen=True)
class EngineConfig:
    """Settings of an engine; see also :class:`~vinoreward_actors.ActorLearnerConfig`."""

    actor: ActorConfig
    trajectory: TrajectorySpec
    compressor: CompressorConfig | None = None
    limiter: SamplesPerInsert | None = None  # None: actors run ahead as far as there is room
    slots_per_actor: int = 2  # trajectories of one actor that may wait for the learner
    bits: int = 32  # communication quantization of the learner's weights
    observations: int = OBSERVATIONS  # maximum number of rows for the compressor
    heartbeat: float = 20.0  # seconds of silence after which an actor counts as hung
    start_timeout: float = 120.0  # seconds that a process may take to start, or a reset
    longest_push: float = 300.0  # seconds that the compressor may take for a version
    restarts: int = 3  # of each process within a minute of its work; see RestartBudget

    def process_names(self) -> list[str]:
        """Return the processes' names: actors in order, then the compressor if there is one."""
        names = [f"actor {number}" for number in range(self.actor.actors)]
        return names if self.compressor is None else [*names, "compressor"]

    def compressor_of(self, generation: int) -> CompressorConfig | None:
        """Return the compressor's settings; a replacement resumes from its saved state."""
        if self.compressor is None or generation == 0:
            return self.compressor
        return dataclasses.replace(self.compressor, resume=True)
