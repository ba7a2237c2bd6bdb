"""The engine without processes: actors and compressor run in turn, exact to the bit.

For tests, debugging and paired comparisons. A run depends on its seed alone, with a deterministic
learner on one kind of machine.
"""

from __future__ import annotations

import dataclasses

from vinoreward.errors import VinorewardError
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.engines.base import (
    Called,
    Engine,
    EngineError,
    Messages,
    error_report,
    not_running,
)
from vinoreward_actors.actor_learner.transport.link import Link, Weights
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
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
        self._links: list[Link] = []
        self._actors: list[Called] = []
        self._compressor: Called | None = None
        self._turn = 0

    def _open(self, policy: Policy) -> None:
        config = self._config
        acting = dataclasses.replace(config, chain=None)
        for number in range(len(config.process_names())):
            link = Link(config.trajectory, number, stores=self._stores)
            self._links.append(link)
            if number < config.run.actors:
                self._actors.append(Called(acting, link, number))
            else:
                self._compressor = Called(config, link, number)

    def _begin(self) -> None:
        pass

    def _call(self, called: Called, link: Link) -> None:
        link.settings, link.observations = self._settings, self._observations
        called.call()

    def _publish(self, encoded: Encoded, version: int) -> None:
        self._stores[FULL_PRECISION] = Weights(encoded.header, encoded.payload(), version)
        if self._compressor is not None:
            self._call(self._compressor, self._links[-1])

    def _collect(self, count: int, deadline: float) -> bool:
        """Act now, whatever the deadline."""
        if not self._actors:
            raise not_running()
        while len(self._ready) < count:
            if not self._may_insert():
                return False
            self._act()
        return True

    def _act(self) -> None:
        """Let the next actor fill a trajectory."""
        number = self._turn
        self._turn = (number + 1) % len(self._actors)
        link = self._links[number]
        try:
            self._call(self._actors[number], link)
        except Exception as error:
            if isinstance(error, VinorewardError):
                why = f"actor {number} failed: {error}"
            else:
                why = f"actor {number} failed. Expected it to run.\n{error_report(error)}"
            raise EngineError(why) from error
        self._counters.update(link.counts)
        link.buffer.flags.writeable = False
        self._ready.append(self._config.trajectory.view(link.buffer, number))

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        latest = self._stores.get(COMPRESSED)
        if latest is None:
            return None
        return dataclasses.replace(latest, payload=latest.payload.copy()).policy()

    def messages(self) -> Messages:
        """See :meth:`Engine.messages`."""
        for number, link in enumerate(self._links):
            for kind, value in link.take_sent():
                self._messages.add(number, kind, value)
        return super().messages()

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        parts = [*self._actors, self._compressor]
        self._actors, self._compressor = [], None
        for part in parts:
            if part is not None:
                part.close()
