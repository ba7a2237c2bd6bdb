"""What an engine does for a learner; the same for processes on one machine and for a cluster."""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.actor import COUNTERS, ActorConfig
from vinoreward.actor_learner.compressor import CompressorConfig
from vinoreward.actor_learner.engines.supervisor import Messages, Supervisor, Worker
from vinoreward.actor_learner.limiter import SamplesPerInsert
from vinoreward.actor_learner.transport.actor_settings import ActorSettings
from vinoreward.actor_learner.transport.link import OBSERVATIONS, SETTINGS
from vinoreward.actor_learner.transport.trajectory import (
    FULL_PRECISION,
    Trajectory,
    TrajectorySpec,
)
from vinoreward.closing import Closing
from vinoreward.errors import VinorewardError
from vinoreward.policies.policy import Policy
from vinoreward.policies.wire import Encoded, encode


class EngineError(VinorewardError, RuntimeError):
    """Actors that cannot be kept running."""


def not_running() -> EngineError:
    """Return what a call outside of ``start`` and ``close`` raises."""
    return EngineError("engine not running. Expected start() first, and no close() yet.")


@dataclass(frozen=True)
class EngineConfig:
    """What an engine is told once.

    Attributes:
        actor: what every actor does.
        trajectory: sizes of what they send.
        compressor: what the compressor does, None for none.
        limiter: samples per insert; None lets actors run as far ahead as there is room.
        slots_per_actor: trajectories of one actor that may wait to be taken.
        bits: communication quantization of the learner's weights: 32, 16, or 2 to 8.
        observations: rows that the compressor is given at most.
        heartbeat: seconds without a sign of life after which a process counts as hung.
        start_timeout: seconds that a process may take to start.
        restarts: times that each process may be replaced within a minute of its work; time in which
            it hands nothing over (it hangs, or does not start) is none.
    """

    actor: ActorConfig
    trajectory: TrajectorySpec
    compressor: CompressorConfig | None = None
    limiter: SamplesPerInsert | None = None
    slots_per_actor: int = 2
    bits: int = 32
    observations: int = 1024
    heartbeat: float = 20.0
    start_timeout: float = 120.0
    restarts: int = 3


class Engine(Closing):
    """Runs actors and compressor; a context manager that leaves nothing behind.

    What is the same everywhere is written here, or is the supervisor's. Nine methods are an
    engine's own, as four kinds of traffic go between its processes, each by a way of its own:
    processes begin and end (:meth:`_open`, :meth:`close`), the newest of a store goes to all of
    them (:meth:`_publish`), compressed weights come back (:meth:`compressed_policy`,
    :meth:`everyone_has`), and experience does (:meth:`take`, :meth:`waiting`, :meth:`sampled`,
    :meth:`counters`).

    Args:
        config: what actors and compressor do.
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
        """Start all processes with first weights (version 0, or the one resumed from).

        Args:
            policy: in full precision.
            settings: the first ones.
            observations: for the compressor.
            bits: of a weight on its way; None: as configured.

        Raises:
            ConfigError: another number of bits.
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
        """Prepare all that processes share, for what is to be published; start none yet."""

    def _settle(self) -> None:
        """Wait until what was published first is where processes find it."""

    def _supervise(
        self, workers: Sequence[Worker], wait: Callable[[Sequence[Worker], float], None]
    ) -> Supervisor:
        config = self._config
        return Supervisor(
            workers,
            wait,
            actors=config.actor.actors,
            heartbeat=config.heartbeat,
            start_timeout=config.start_timeout,
            restarts=config.restarts,
            all_needed=config.actor.lag is not None,
        )

    def publish(self, policy: Policy, bits: int | None = None) -> None:
        """Make weights the latest; does not wait for anybody.

        Args:
            policy: in full precision.
            bits: of a weight on its way; None: as configured.
        """
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
        """Change what actors and compressor do."""
        self._settings = settings
        self._number(SETTINGS, Encoded(settings.to_json(), (), 0))

    def _number(self, store: int, encoded: Encoded) -> None:
        self._publish(store, self._numbers[store], encoded)
        self._numbers[store] += 1

    @abc.abstractmethod
    def _publish(self, store: int, version: int, encoded: Encoded) -> None:
        """Make something the latest of a store of :mod:`vinoreward.actor_learner.transport.link`.

        Does not wait. Its arrays may change as soon as this returns. Whoever sees this also sees
        what was published in other stores before.
        """

    @abc.abstractmethod
    def take(
        self, count: int, *, timeout: float, evenly: bool = False
    ) -> AbstractContextManager[Sequence[Trajectory]] | None:
        """Wait for trajectories; None after ``timeout`` seconds.

        Args:
            count: how many.
            timeout: seconds.
            evenly: the same number from every actor, in an order that does not depend on time.

        Raises:
            EngineError: no actor can be kept running; with the reason one of them gave.
        """

    @abc.abstractmethod
    def waiting(self) -> int:
        """Return how many trajectories can be taken at once."""

    @abc.abstractmethod
    def sampled(self, count: int) -> None:
        """Say that the learner has used so many more transitions; for the limiter."""

    @abc.abstractmethod
    def counters(self, names: Sequence[str] = COUNTERS) -> dict[str, int]:
        """Return counters of all actors, summed; of trajectories that have been handed over.

        Args:
            names: which; few cost less.
        """

    @abc.abstractmethod
    def everyone_has(self, version: int) -> bool:
        """Whether nobody needs a version any more, for a fixed lag.

        That is: every actor has pulled it, from whichever network the settings say, and if those
        enable compression for it (:meth:`ActorSettings.enabled_at`), its compressed form is out.
        """

    def pulled(self) -> Sequence[int]:
        """Return the newest version that each process has pulled, of any weights; -1 for none.

        Actors in order, then the compressor if there is one. On Ray as of a moment ago.
        """
        return [] if self._supervisor is None else [w.pulled for w in self._supervisor.workers]

    @abc.abstractmethod
    def compressed_policy(self) -> Policy | None:
        """Return a copy of the latest compressed policy, None if there is none.

        May be called by another thread than all else, until :meth:`close`.
        """

    def messages(self) -> Messages:
        """Return what came in since the last look.

        Raises:
            EngineError: see :meth:`take`.
        """
        found = self._running.messages()
        self._raise()
        return found

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
        """End all processes and free what they shared; may be called more than once."""
