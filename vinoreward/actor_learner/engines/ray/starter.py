"""Starting the processes of a training on Ray."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from vinoreward.actor_learner.engines.base import EngineConfig, EngineError
from vinoreward.actor_learner.engines.ray.cluster import Cluster
from vinoreward.actor_learner.engines.ray.state import Identity
from vinoreward.actor_learner.engines.ray.workers import ActorWorker, CompressorWorker

SLOWEST_BEAT = 0.5
"""Seconds between two signs of life, at most."""


def keeps_state(config: EngineConfig) -> bool:
    """Whether the compressor has a folder to write its state to, which is on the learner's disk."""
    return config.compressor is not None and config.compressor.folder is not None


class Starter:
    """Asks Ray for processes: on one thread, one processor each, spread over the machines.

    A compressor that writes its state down runs on the learner's machine.

    Args:
        cluster: to start them on.
        config: the engine's.
        state: handle of the state actor.
    """

    def __init__(self, cluster: Cluster, config: EngineConfig, state: Any) -> None:
        self._config = config
        self._state = state
        options: dict[str, Any] = {
            "num_cpus": 1,
            # The supervisor restarts them: it counts generations and keeps to the budget.
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
            # No environment of their own, which would double the time they take to start: Ray
            # itself sets OMP_NUM_THREADS to num_cpus before anything is imported.
        }
        self._actor = cluster.remote(ActorWorker, **options)
        self._put = cluster.ray.put
        self._told: list[Any] = []
        if keeps_state(config):
            # It asks for no processor: actors may have taken all of that machine's, and elsewhere
            # its state would be written to another disk, where nobody resumes from it.
            options |= {"num_cpus": 0, "scheduling_strategy": cluster.beside_us()}
        self._compressor = cluster.remote(CompressorWorker, **options)

    def _identity(self, process: int, generation: int, rollouts: int) -> Identity:
        beat = min(SLOWEST_BEAT, self._config.heartbeat / 4)
        exact = self._config.actor.lag is not None
        return Identity(self._state, process, generation, rollouts, beat, exact)

    def actor(self, number: int, generation: int, rollouts: int) -> Any:
        """Start an actor; return its handle at once.

        Args:
            number: of it.
            generation: how many times it was replaced.
            rollouts: trajectories that have come from those before it.
        """
        config = self._config
        identity = self._identity(number, generation, rollouts)
        return self._actor.remote(sys.path, identity, config.actor, config.trajectory)

    def compressor(self, generation: int, rollouts: int) -> Any:
        """Start the compressor; one that was replaced goes on from its last state."""
        config = self._config
        told = config.compressor
        if told is None:
            raise EngineError("no compressor was configured. Expected one in EngineConfig.")
        if generation > 0:
            told = dataclasses.replace(told, resume=True)
        identity = self._identity(config.actor.actors, generation, rollouts)
        # A reference in a list is not opened before the worker does it: it may hold classes of the
        # user's, which are found only with these paths.
        self._told = [self._put(told)]
        return self._compressor.remote(sys.path, identity, self._told, config.actor.environments)
