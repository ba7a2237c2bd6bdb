"""What an engine does for a learner; the same for processes on one machine and for a cluster."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.actor import COUNTERS, ActorConfig
from vinoreward.actor_learner.acting.environments import Episode
from vinoreward.actor_learner.acting.network import Refused
from vinoreward.actor_learner.compressor import CompressorConfig
from vinoreward.actor_learner.limiter import SamplesPerInsert
from vinoreward.actor_learner.transport.actor_settings import ActorSettings
from vinoreward.actor_learner.transport.trajectory import Trajectory, TrajectorySpec
from vinoreward.closing import Closing
from vinoreward.errors import VinorewardError
from vinoreward.policies.policy import Policy


class EngineError(VinorewardError, RuntimeError):
    """Actors that cannot be kept running."""


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


@dataclass(frozen=True)
class Event:
    """Something that happened to a process, in words.

    Attributes:
        who: such as ``"actor 0"``.
        what: in words.
    """

    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


@dataclass
class Messages:
    """What came in since the last look.

    Attributes:
        episodes: (actor, episode) pairs.
        compressor: its reports, see :mod:`vinoreward.actor_learner.compressor`.
        events: what happened to processes.
        refused: (actor, weights) pairs: compressed ones that it could not act with.
    """

    episodes: list[tuple[int, Episode]] = field(default_factory=list)
    compressor: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    refused: list[tuple[int, Refused]] = field(default_factory=list)


class Engine(Closing):
    """Runs actors and compressor; a context manager that leaves nothing behind."""

    @abc.abstractmethod
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
        """

    @abc.abstractmethod
    def publish(self, policy: Policy, bits: int | None = None) -> None:
        """Make weights the latest; does not wait for anybody.

        Args:
            policy: in full precision.
            bits: of a weight on its way; None: as configured.
        """

    @abc.abstractmethod
    def give_observations(self, observations: npt.NDArray[np.generic]) -> None:
        """Give the compressor recent observations (N, *shape); no more than configured."""

    @abc.abstractmethod
    def configure(self, settings: ActorSettings) -> None:
        """Change what actors and compressor do."""

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
        """Return counters of all actors, summed.

        Args:
            names: which; few cost less.
        """

    @abc.abstractmethod
    def everyone_has(self, version: int) -> bool:
        """Whether nobody needs a version any more, for a fixed lag.

        That is: every actor has pulled it, from whichever network the settings say, and if those
        enable compression for it (:meth:`ActorSettings.enabled_at`), its compressed form is out.
        """

    @abc.abstractmethod
    def pulled(self) -> Sequence[int]:
        """Return the newest version that each process has pulled, of any weights; -1 for none.

        Actors in order, then the compressor. On Ray as of a moment ago.
        """

    @abc.abstractmethod
    def compressed_policy(self) -> Policy | None:
        """Return a copy of the latest compressed policy, None if there is none.

        May be called by another thread than all else, until :meth:`close`.
        """

    @abc.abstractmethod
    def messages(self) -> Messages:
        """Return what came in since the last look.

        Raises:
            EngineError: see :meth:`take`.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End all processes and free what they shared; may be called more than once."""
