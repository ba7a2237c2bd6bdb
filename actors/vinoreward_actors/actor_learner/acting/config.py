"""The settings of a training's processes, passed whole to each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.config import ActorLearnerConfig, SamplesPerInsert
from vinoreward_actors.actor_learner.transport.trajectory import TrajectorySpec
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.policies.spec import PolicySpec

OBSERVATIONS = 1024
"""Rows for measuring ranges and for distillation."""


@dataclass(frozen=True)
class EngineConfig:
    """Settings of an engine and its processes."""

    run: ActorLearnerConfig
    environment: EnvironmentSpec
    policy: PolicySpec  # the learner's network
    chain: CompressorChain | None = None  # of the compressor; actors do not get it
    compressed: bool = False  # whether there is a compressor
    folder: Path | None = None  # of the compressor's state; None for none
    resume: bool = False  # whether the compressor loads it
    fresh: bool = True  # whether the learner drops old trajectories: one without a replay
    first_version: int = 0  # of the first weights of this run; above 0 after a resume
    limiter: SamplesPerInsert | None = None  # None: actors run ahead as far as there is room
    slots_per_actor: int = 2  # trajectories of one actor that may wait for the learner
    observations: int = OBSERVATIONS  # maximum number of rows for the compressor
    start_timeout: float = 120.0  # seconds that a process may take to start, or a reset
    longest_push: float = 300.0  # seconds that the compressor may take for a version

    @cached_property
    def trajectory(self) -> TrajectorySpec:
        """Of every actor."""
        return TrajectorySpec.of(self.policy, self.run.steps, self.run.environments)

    @property
    def max_staleness(self) -> int:
        """Pushes by which compressed weights in use may be behind."""
        run = self.run
        return min(run.max_staleness, run.max_lag) if self.fresh else run.max_staleness

    def process_names(self) -> list[str]:
        """Return the processes' names: actors in order, then the compressor if there is one."""
        names = [f"actor {number}" for number in range(self.run.actors)]
        return [*names, "compressor"] if self.compressed else names
