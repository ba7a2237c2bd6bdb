"""The interface of engines: processes of one machine, a cluster, or this process alone."""

from __future__ import annotations

import abc
import copy
import dataclasses
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, VinorewardError
from vinoreward_actors.actor_learner.acting.actor import COUNTERS, Actor, Refused
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.acting.environments import Episode
from vinoreward_actors.actor_learner.compressor import Compressor
from vinoreward_actors.actor_learner.transport.link import ActorSettings, Link
from vinoreward_actors.actor_learner.transport.trajectory import Batch, Trajectory
from vinoreward_actors.policies.backends.base import BackendOutputs
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Encoded, encode

LOOK_EVERY = 0.1
"""Maximum seconds of one wait for processes."""


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
    pulled: list[int] = field(default_factory=list)  # versions, by the compressor
    events: list[Event] = field(default_factory=list)
    refused: list[tuple[int, Refused]] = field(default_factory=list)  # with the actor's number

    def add(self, number: int, kind: str, value: Any) -> None:
        """Add what a process sent by :meth:`~...transport.link.Link.report`."""
        if kind == "episodes":
            self.episodes += [(number, Episode(**row)) for row in value]
        elif kind == "compressor":
            self.compressor.append(value)
        elif kind == "pulled":
            self.pulled.append(value)
        elif kind == "refused":
            self.refused.append((number, Refused(**value)))

    def extend(self, later: Messages) -> None:
        """Add later messages."""
        for name, found in vars(later).items():
            getattr(self, name).extend(found)


class Called(Closing):
    """An actor or the compressor, which works when it is called.

    Args:
        config: of the engine; an actor's process gets it without the chain.
        link: to the learner.
        number: of the process, in the order of their names.
        generation: number of replacements before it; a later compressor resumes from its state.
    """

    def __init__(self, config: EngineConfig, link: Link, number: int, generation: int = 0) -> None:
        self._actor: Actor | None = None
        self._compressor: Compressor | None = None
        self._outputs: BackendOutputs | None = None
        if config.chain is None:
            self._actor = Actor(config, link, number, generation)
            return
        self._outputs = BackendOutputs(config.run.environments)
        chain = copy.deepcopy(config.chain)  # the user's does not change
        told = dataclasses.replace(config, resume=config.resume or generation > 0)
        self._compressor = Compressor(told, chain, link, self._outputs)

    def call(self) -> bool:
        """Fill a trajectory, or save the compressor's state if due and compress the newest weights.

        Returns:
            bool: whether there is a trajectory, or a compressed policy.
        """
        if self._actor is not None:
            return self._actor.rollout()
        return self._compressor is not None and self._compressor.step()

    def close(self) -> None:
        """Close environments and backends."""
        for part in (self._actor, self._outputs):
            if part is not None:
                part.close()


class Engine(Closing):
    """Runs actors and compressor; a context manager that leaves nothing behind."""

    exact = False
    """Whether runs repeat bit by bit: then nothing may depend on time."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._settings = ActorSettings()
        self._observations: npt.NDArray[np.generic] | None = None
        self._ready: list[Trajectory] = []
        self._counters: Counter[str] = Counter()
        self._samples = 0
        self._messages = Messages()

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
            self.give_observations(observations)
            self.configure(settings)
            self._open(policy)
            self.publish(policy)
            self._begin()
        except BaseException:
            self.close()
            raise

    @abc.abstractmethod
    def _open(self, policy: Policy) -> None:
        """Prepare what processes share, with room for such weights; start none of them yet."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Start the processes: the first weights lie ready."""

    def publish(self, policy: Policy) -> None:
        """Make weights the latest; with the configured bits per weight."""
        self._publish(encode(policy, bits=self._config.run.bits), policy.version)

    @abc.abstractmethod
    def _publish(self, encoded: Encoded, version: int) -> None:
        """Make weights the latest; does not wait. Their arrays may change when this returns."""

    def give_observations(self, observations: npt.NDArray[np.generic]) -> None:
        """Give the compressor recent observations (N, *shape), which do not change any more."""
        self._observations = np.ascontiguousarray(observations[-self._config.observations :])

    def configure(self, settings: ActorSettings) -> None:
        """Change the settings of actors and compressor."""
        self._settings = settings

    def take(self, count: int, *, timeout: float) -> Batch | None:
        """Wait for trajectories, the oldest first; None after ``timeout`` seconds.

        Raises:
            ConfigError: more than there is room for.
            EngineError: no actor can be kept running; includes an actor's error report.
        """
        room = self._config.slots_per_actor * self._config.run.actors
        if not 1 <= count <= room:
            raise ConfigError(field="count", value=count, expected=f"1 to {room}")
        if not self._collect(count, time.monotonic() + timeout):
            return None
        taken, self._ready = self._ready[:count], self._ready[count:]
        return Batch(taken, lambda: self._release(taken))

    @abc.abstractmethod
    def _collect(self, count: int, deadline: float) -> bool:
        """Wait until there are so many trajectories; return whether there are."""

    def _release(self, trajectories: Sequence[Trajectory]) -> None:
        """Reuse the memory of trajectories that the learner does not need any more."""

    def waiting(self) -> int:
        """Return the number of trajectories that can be taken now."""
        return len(self._ready)

    def sampled(self, count: int) -> None:
        """Count transitions that the learner has sampled; for the limiter."""
        self._samples += count

    def _may_insert(self, begun: int = 0) -> bool:
        """Return whether an actor may fill a trajectory, beside those that others have begun."""
        limiter, size = self._config.limiter, self._config.trajectory.transitions
        inserts = self._counters["steps"] + begun * size
        return limiter is None or limiter.can_insert(inserts, self._samples, size)

    def counters(self, names: Sequence[str] = COUNTERS) -> Mapping[str, int]:
        """Return sums of all actors' counters, of the trajectories that have arrived."""
        return {name: self._counters[name] for name in names}

    @abc.abstractmethod
    def compressed_policy(self) -> Policy | None:
        """Return a copy of the latest compressed policy, None if there is none."""

    def messages(self) -> Messages:
        """Return what processes sent, and what happened to them, since the last call.

        Raises:
            EngineError: see :meth:`take`; only once no trajectory is left to take.
        """
        messages, self._messages = self._messages, Messages()
        return messages

    @abc.abstractmethod
    def close(self) -> None:
        """End all processes and free what they share; may be called twice."""
