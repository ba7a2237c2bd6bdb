"""The link of an actor or the compressor to the learner; processes have links of their own kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Trajectory,
    TrajectorySpec,
)
from vinoreward_actors.policies.distributions import Exploration
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Bytes, decode, encode

NONE = -1
"""Version of missing weights."""


@dataclass(frozen=True)
class ActorSettings:
    """How to act and how to compress; the learner changes them during training.

    For the exploration see :class:`~vinoreward_actors.policies.distributions.Exploration`.
    """

    alpha: float = 1.0  # probability of the compressed network for an actor's next block of steps
    pull_period: int = 100  # steps of one environment between two checks for newer weights
    enabled: bool = True  # whether there is any compression
    bits: int | None = 8  # per weight; None for full precision
    sparsity: float = 0.0  # fraction of neurons removed
    epsilon: float = 0.0
    sigma: float = 0.0  # of the actor that explores most
    save: int = 0  # number of requests to the compressor to save its state

    def exploration(self, actor: int, actors: int) -> Exploration:
        """Return an actor's exploration; sigma increases evenly over the actors, as in ActorQ."""
        return Exploration(self.epsilon, self.sigma * (actor + 1) / actors)


@dataclass(frozen=True)
class Weights:
    """A received policy."""

    header: bytes  # see :func:`vinoreward_actors.policies.wire.encode`
    payload: Bytes
    version: int = NONE  # of the learner's policy from which it was made

    def policy(self) -> Policy:
        """Return the policy; its arrays may be views of the payload."""
        return decode(self.header, self.payload)


class Link:
    """What an actor or the compressor gets and gives; its owner calls it, and nothing runs beside.

    Args:
        trajectory: sizes of the actors' trajectories.
        number: of the actor, from 0; the compressor comes after all actors.
        generation: number of replacements before it.
        stores: the newest weights by network, shared with other links.

    Attributes:
        settings: the latest; the owner sets them before each call.
        observations: recent ones (N, *shape) for the compressor, or None; set likewise.
        buffer: the bytes of the trajectory that was begun last.
        counts: of the trajectory that was committed last.
        sent: kinds and values of the messages; the owner takes them out.
    """

    observations: npt.NDArray[np.generic] | None = None
    stopped = False
    """Whether training is over or the learner is gone. Asking is a sign of life."""

    def __init__(
        self,
        trajectory: TrajectorySpec,
        number: int = 0,
        generation: int = 0,
        stores: dict[int, Weights] | None = None,
    ) -> None:
        self.stores = {} if stores is None else stores
        self.settings = ActorSettings()
        self.counts: Mapping[str, int] = {}
        self.sent: list[tuple[str, Any]] = []
        self._spec, self._number, self._generation = trajectory, number, generation
        self.buffer: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)

    def report(self, kind: str, value: Any) -> None:
        """Send a small message to the learner: plain data of a kind such as ``"refused"``."""
        self.sent.append((kind, value))

    def take_sent(self) -> list[tuple[str, Any]]:
        """Return the messages since the last call."""
        sent, self.sent = self.sent, []
        return sent

    # Weights, by network: 0 for the learner's own, 1 for the compressed ones

    @property
    def learner_version(self) -> int:
        """The newest version of the learner's weights; read far more often than those."""
        newest = self.stores.get(FULL_PRECISION)
        return NONE if newest is None else newest.version

    def pull(self, network: int, have: int) -> Weights | None:
        """Return weights that are newer than version ``have``, or None; cheap.

        They are valid until the second pull of the same network after this one.
        """
        newest = self.stores.get(network)
        return None if newest is None or newest.version <= have else newest

    # An actor fills trajectories in place

    def resetting(self, begins: bool) -> None:
        """Tell that resets begin or are over: they may take longer than a step."""

    def room(self) -> npt.NDArray[np.uint8]:
        """Return the bytes of the next trajectory."""
        return np.zeros(self._spec.nbytes, np.uint8)

    def begin(self) -> Trajectory:
        """Return a trajectory to fill; it has old contents."""
        self.buffer = self.room()
        return self._filled()

    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Send the trajectory of :meth:`begin`, if it is finite, with its finished episodes.

        ``counts`` are added to this actor's counters.
        """
        self._spec.check_finite(self._filled())
        self.counts = counts
        if episodes:
            self.report("episodes", episodes)

    def _filled(self) -> Trajectory:
        return self._spec.view(self.buffer, self._number, self._generation)

    # The compressor

    def publish(self, policy: Policy) -> None:
        """Publish a compressed policy to all actors."""
        encoded = encode(policy)
        self.stores[COMPRESSED] = Weights(encoded.header, encoded.payload(), policy.version)
