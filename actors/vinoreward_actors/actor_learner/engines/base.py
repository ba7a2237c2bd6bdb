"""The interface of engines, for processes on one machine and on a cluster."""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import VinorewardError
from vinoreward_actors.actor_learner.acting.actor import COUNTERS
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.supervisor import Messages, Supervisor
from vinoreward_actors.actor_learner.transport.link import OBSERVATIONS, SETTINGS, ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import (
    FULL_PRECISION,
    Batch,
)
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Encoded, encode


class EngineError(VinorewardError, RuntimeError):
    """Actors that cannot be kept running."""


def not_running() -> EngineError:
    """Return the error of a call before ``start`` or after ``close``."""
    return EngineError("engine not running. Expected start() first, and no close() yet.")


class TrajectorySource(Protocol):
    """Where trajectories of all actors arrive; see :meth:`Engine.take`."""

    def ready(self) -> int:
        """Return the number of trajectories that can be taken now."""
        ...

    def take(
        self, count: int, *, timeout: float, stop: Callable[[], bool], evenly: bool
    ) -> Batch | None:
        """Wait for trajectories; None after ``timeout`` seconds or a stop."""


class Engine(Closing):
    """Runs actors and compressor; a context manager that leaves nothing behind.

    An engine implements seven members, as it has ways of its own for each of these: processes start
    and end (:meth:`_open`, :meth:`close`), the newest content of a store goes to all of them
    (:meth:`_publish`), compressed weights come back (:meth:`compressed_policy`,
    :meth:`_progress`), and so do trajectories (:attr:`_source`, :meth:`sampled`). The rest is here
    or in the supervisor.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._supervisor: Supervisor | None = None
        self._settings = ActorSettings()
        self._numbers = {SETTINGS: 0, OBSERVATIONS: 0}

    def start(
        self,
        policy: Policy,
        settings: ActorSettings,
        observations: npt.NDArray[np.generic],
        bits: int | None = None,
    ) -> None:
        """Start all processes with the first weights, settings and observations.

        Raises:
            ConfigError: an invalid number of bits.
            EngineError: there is no cluster, or its first process does not start.
            SharedMemoryError: there is not enough; nothing was started.
        """
        try:
            self._supervisor = supervisor = self._open(policy, observations)
            self.configure(settings)
            self.give_observations(observations)
            self.publish(policy, bits)
            supervisor.start()
            self._settle()
        except BaseException:
            self.close()
            raise

    @abc.abstractmethod
    def _open(self, policy: Policy, observations: npt.NDArray[np.generic]) -> Supervisor:
        """Prepare what processes share, with room for these; start none of them yet."""

    def _settle(self) -> None:
        """Wait until the first publications have arrived where processes find them."""

    def publish(self, policy: Policy, bits: int | None = None) -> None:
        """Make weights the latest; ``bits`` per weight on the wire, None as configured."""
        encoded = encode(policy, bits=self._config.bits if bits is None else bits)
        self._publish(FULL_PRECISION, policy.version, encoded)

    def give_observations(self, observations: npt.NDArray[np.generic]) -> None:
        """Give the compressor recent observations (N, *shape); no more than configured."""
        if self._config.compressor is None:
            return
        rows = np.ascontiguousarray(observations[-self._config.observations :])
        header = json.dumps({"dtype": rows.dtype.name, "shape": rows.shape}).encode()
        payload = rows.reshape(-1).view(np.uint8)
        self._number(OBSERVATIONS, Encoded(header, ((0, payload),), payload.size))

    def configure(self, settings: ActorSettings) -> None:
        """Change the settings of actors and compressor."""
        self._settings = settings
        self._number(SETTINGS, Encoded(settings.to_json(), (), 0))

    def _number(self, store: int, encoded: Encoded) -> None:
        self._publish(store, self._numbers[store], encoded)
        self._numbers[store] += 1

    @abc.abstractmethod
    def _publish(self, store: int, version: int, encoded: Encoded) -> None:
        """Make something the latest content of a store; does not wait.

        The arrays may change as soon as this returns. A process that sees this also sees what was
        published in other stores before.
        """

    @property
    @abc.abstractmethod
    def _source(self) -> TrajectorySource:
        """Where trajectories arrive."""

    def take(self, count: int, *, timeout: float, evenly: bool = False) -> Batch | None:
        """Wait for trajectories, the oldest first; None after ``timeout`` seconds.

        ``evenly``: equally many from every actor, in an order that does not depend on time.

        Raises:
            ConfigError: more than there is room for, or evenly and not a multiple of the actors.
            EngineError: no actor can be kept running; includes an actor's error report.
        """
        batch = self._source.take(count, timeout=timeout, stop=self._stopped, evenly=evenly)
        if batch is None:
            self._raise()
        return batch

    def waiting(self) -> int:
        """Return the number of trajectories that can be taken now."""
        return self._source.ready()

    @abc.abstractmethod
    def sampled(self, count: int) -> None:
        """Count transitions that the learner has sampled; for the limiter."""

    def counters(self, names: Sequence[str] = COUNTERS) -> dict[str, int]:
        """Return sums of all actors' counters, of the trajectories that have arrived."""
        workers = self._running.workers
        return {name: sum(worker.counter(name) for worker in workers) for name in names}

    def everyone_has(self, version: int) -> bool:
        """Return whether no process needs an older version any more, for a fixed lag.

        Every actor has pulled this version, and its compressed form, if expected, is published.
        """
        compressing = self._config.compressor is not None and self._settings.enabled_at(version)
        pulled, compressed = self._progress()
        if compressing and compressed < version:
            return False
        return min(pulled[: self._config.actor.actors]) >= version

    @abc.abstractmethod
    def _progress(self) -> tuple[Sequence[int], int]:
        """Return :meth:`pulled` as of now, and the newest compressed version, -1 for none."""

    def pulled(self) -> Sequence[int]:
        """Return the newest version of any weights that each process has pulled; -1 for none.

        Actors in order, then the compressor if there is one. On Ray up to half a second old.
        """
        return [] if self._supervisor is None else [w.pulled for w in self._supervisor.workers]

    @abc.abstractmethod
    def compressed_policy(self) -> Policy | None:
        """Return a copy of the latest compressed policy, None if there is none.

        The only method that another thread may call, until :meth:`close`.
        """

    def messages(self, *, experience_first: bool = False) -> Messages:
        """Return what processes sent, and what happened to them, since the last call.

        ``experience_first``: after a failure, no error as long as trajectories can be taken.

        Raises:
            EngineError: see :meth:`take`.
        """
        messages = self._running.messages()
        if not (experience_first and self.waiting()):
            self._raise()
        return messages

    @property
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise not_running()
        return self._supervisor

    def _stopped(self) -> bool:
        return self._supervisor is None or bool(self._supervisor.failure)

    def _raise(self) -> None:
        if self._supervisor is not None and self._supervisor.failure:
            raise EngineError(self._supervisor.failure)

    @abc.abstractmethod
    def close(self) -> None:
        """End all processes and free what they share; may be called twice."""
