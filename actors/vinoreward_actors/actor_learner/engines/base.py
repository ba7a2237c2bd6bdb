"""The interface of engines: processes of one machine, a cluster, or this process alone."""

from __future__ import annotations

import abc
import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import VinorewardError
from vinoreward_actors.actor_learner.acting.actor import COUNTERS, Refused
from vinoreward_actors.actor_learner.acting.environments import Episode
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.transport.link import OBSERVATIONS, SETTINGS, ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import FULL_PRECISION, Batch
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Encoded, encode


class EngineError(VinorewardError, RuntimeError):
    """Actors that cannot be kept running."""


def not_running() -> EngineError:
    """Return the error of a call before ``start`` or after ``close``."""
    return EngineError("engine not running. Expected start() first, and no close() yet.")


def error_report(error: BaseException) -> str:
    """Return one line for an error of :mod:`vinoreward.errors`, a traceback for any other."""
    if isinstance(error, VinorewardError):
        return " ".join(str(error).split())
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def in_short(report: str) -> str:
    """Return the last line of a report, without a full stop."""
    return report.strip().splitlines()[-1].rstrip(".")


@dataclass(frozen=True)
class Event:
    """Something that happened to a process, in words."""

    who: str  # such as "actor 0"
    what: str

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


@dataclass
class Messages:
    """What processes sent, and what happened to them, since the last call."""

    episodes: list[tuple[int, Episode]] = field(default_factory=list)  # with the actor's number
    compressor: list[dict[str, Any]] = field(default_factory=list)  # see its module
    events: list[Event] = field(default_factory=list)
    refused: list[tuple[int, Refused]] = field(default_factory=list)  # with the actor's number

    def add(self, number: int, kind: str, value: Any) -> None:
        """Add what a process sent by :meth:`~...transport.link.Link.report`."""
        if kind == "episodes":
            self.episodes += [(number, Episode(**row)) for row in value]
        elif kind == "compressor":
            self.compressor.append(value)
        elif kind == "refused":
            self.refused.append((number, Refused(**value)))

    def extend(self, later: Messages) -> None:
        """Add later messages."""
        for name, found in vars(later).items():
            getattr(self, name).extend(found)


class Engine(Closing):
    """Runs actors and compressor; a context manager that leaves nothing behind."""

    exact = False
    """Whether runs repeat bit by bit: then nothing may depend on time."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._settings = ActorSettings()
        self._numbers = {SETTINGS: 0, OBSERVATIONS: 0}

    def start(
        self, policy: Policy, settings: ActorSettings, observations: npt.NDArray[np.generic]
    ) -> None:
        """Start all processes with the first weights, settings and observations.

        Raises:
            ConfigError: an environment or network that an actor cannot use.
            EngineError: there is no cluster.
            OSError: there is no room for another process; nothing is left of the others.
            SharedMemoryError: there is not enough; nothing was started.
        """
        try:
            self._open(policy, observations)
            self.configure(settings)
            self.give_observations(observations)
            self.publish(policy)
            self._begin()
        except BaseException:
            self.close()
            raise

    @abc.abstractmethod
    def _open(self, policy: Policy, observations: npt.NDArray[np.generic]) -> None:
        """Prepare what processes share, with room for these; start none of them yet."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Start the processes: the first publications lie ready."""

    def publish(self, policy: Policy) -> None:
        """Make weights the latest; with the configured bits per weight."""
        encoded = encode(policy, bits=self._config.bits)
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

        The arrays may change as soon as this returns.
        """

    @abc.abstractmethod
    def take(self, count: int, *, timeout: float) -> Batch | None:
        """Wait for trajectories, the oldest first; None after ``timeout`` seconds.

        Raises:
            ConfigError: more than there is room for.
            EngineError: no actor can be kept running; includes an actor's error report.
        """

    @abc.abstractmethod
    def waiting(self) -> int:
        """Return the number of trajectories that can be taken now."""

    @abc.abstractmethod
    def sampled(self, count: int) -> None:
        """Count transitions that the learner has sampled; for the limiter."""

    @abc.abstractmethod
    def counters(self, names: Sequence[str] = COUNTERS) -> Mapping[str, int]:
        """Return sums of all actors' counters, of the trajectories that have arrived."""

    @abc.abstractmethod
    def pulled(self) -> Sequence[int]:
        """Return the newest version of any weights that each process has pulled; -1 for none.

        Actors in order, then the compressor if there is one.
        """

    @abc.abstractmethod
    def compressed_policy(self) -> Policy | None:
        """Return a copy of the latest compressed policy, None if there is none."""

    @abc.abstractmethod
    def messages(self) -> Messages:
        """Return what processes sent, and what happened to them, since the last call.

        Raises:
            EngineError: see :meth:`take`; only once no trajectory is left to take.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End all processes and free what they share; may be called twice."""
