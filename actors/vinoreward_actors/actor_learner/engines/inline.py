"""The engine without processes: actors and compressor run in turn, exact to the bit.

For tests, debugging and paired comparisons. A run depends on its seed alone, with a deterministic
learner on one kind of machine.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, VinorewardError
from vinoreward_actors.actor_learner.acting.actor import COUNTERS, Actor
from vinoreward_actors.actor_learner.compressor import Compressor
from vinoreward_actors.actor_learner.engines.base import (
    Engine,
    EngineError,
    Messages,
    error_report,
    not_running,
)
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.memory_link import MemoryLink
from vinoreward_actors.actor_learner.transport.link import Weights
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Batch,
    Trajectory,
)
from vinoreward_actors.policies.backends.base import BackendOutputs
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Encoded


class InlineEngine(Engine):
    """Runs actors in turn when trajectories are taken, the compressor when weights are published.

    An actor that fails ends the training: its environment lives in this process.
    """

    exact = True

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._stores: dict[int, Weights] = {}
        self._links = [
            MemoryLink(self._stores, config.trajectory, number)
            for number in range(len(config.process_names()))
        ]
        self._actors: list[Actor] = []
        self._compressor: Compressor | None = None
        self._outputs: BackendOutputs | None = None
        self._ready: list[Trajectory] = []
        self._turn = self._samples = 0

    def _open(self, policy: Policy, observations: npt.NDArray[np.generic]) -> None:
        config = self._config
        for number in range(config.actor.actors):
            self._actors.append(Actor(config.actor, self._links[number], number))
        if config.compressor is not None:
            self._outputs = BackendOutputs(config.actor.environments)
            # A copy, as in a process of its own: the user's chain does not change.
            chain = copy.deepcopy(config.compressor)
            batch = config.actor.environments
            self._compressor = Compressor(chain, self._links[-1], batch, self._outputs)

    def _begin(self) -> None:
        pass

    def _publish(self, store: int, version: int, encoded: Encoded) -> None:
        self._stores[store] = Weights(encoded.header, encoded.payload(), version)
        if store != FULL_PRECISION:
            return
        for link in self._links:
            link.newest = version
        if self._compressor is not None:
            self._compressor.step()

    def take(self, count: int, *, timeout: float) -> Batch | None:
        """See :meth:`Engine.take`; acts now, whatever the timeout."""
        room = self._config.slots_per_actor * len(self._actors)
        if not self._actors:
            raise not_running()
        if not 1 <= count <= room:
            raise ConfigError(field="count", value=count, expected=f"1 to {room}")
        while len(self._ready) < count:
            if not self._may_insert():
                return None
            self._act()
        taken, self._ready = self._ready[:count], self._ready[count:]
        return Batch(taken, lambda: None)

    def _may_insert(self) -> bool:
        limiter, size = self._config.limiter, self._config.trajectory.transitions
        if limiter is None:
            return True
        return limiter.can_insert(self.counters(("steps",))["steps"], self._samples, size)

    def _act(self) -> None:
        """Let the next actor fill a trajectory."""
        number = self._turn
        self._turn = (number + 1) % len(self._actors)
        try:
            self._actors[number].rollout()
        except Exception as error:
            if isinstance(error, VinorewardError):
                why = f"actor {number} failed: {error}"
            else:
                why = f"actor {number} failed. Expected it to run.\n{error_report(error)}"
            raise EngineError(why) from error
        filled = self._links[number].filled()
        filled.flags.writeable = False
        self._ready.append(self._config.trajectory.view(filled, number))

    def waiting(self) -> int:
        """See :meth:`Engine.waiting`."""
        return len(self._ready)

    def sampled(self, count: int) -> None:
        """See :meth:`Engine.sampled`."""
        self._samples += count

    def counters(self, names: Sequence[str] = COUNTERS) -> dict[str, int]:
        """See :meth:`Engine.counters`."""
        return {name: sum(link.counts[name] for link in self._links) for name in names}

    def pulled(self) -> Sequence[int]:
        """See :meth:`Engine.pulled`."""
        return [link.pulled for link in self._links]

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        latest = self._stores.get(COMPRESSED)
        if latest is None:
            return None
        return Weights(latest.header, latest.payload.copy()).policy()

    def messages(self) -> Messages:
        """See :meth:`Engine.messages`."""
        messages = Messages()
        for number, link in enumerate(self._links):
            for kind, value in link.take_sent():
                messages.add(number, kind, value)
        return messages

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        parts: list[Any] = [*self._actors, self._outputs]
        self._actors, self._compressor, self._outputs = [], None, None
        for part in parts:
            if part is not None:
                part.close()
