"""Interfaces between the learner and actors or the compressor; an engine implements them."""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import InputError
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.policies.distributions import Exploration
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Bytes, decode

NONE = -1
"""Version of missing weights."""
SETTINGS, OBSERVATIONS = 2, 3
"""Stores other than those of weights, whose number is that of their network."""


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

    def to_json(self) -> bytes:
        """Return the settings as JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> ActorSettings:
        """Return the settings that :meth:`to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"cannot read the settings ({error!r}). Expected JSON of the same version of "
                "vinoreward."
            ) from error


@dataclass(frozen=True)
class Weights:
    """A received policy, or the newest content of another store."""

    header: bytes  # see :func:`vinoreward_actors.policies.wire.encode`
    payload: Bytes
    version: int = NONE  # of the learner's policy from which it was made

    def policy(self) -> Policy:
        """Return the policy; its arrays may be views of the payload."""
        return decode(self.header, self.payload)


class Link(abc.ABC):
    """Common interface of actors and compressor."""

    _settings = (NONE, ActorSettings())

    @property
    @abc.abstractmethod
    def stopped(self) -> bool:
        """Whether training is over or the learner is gone. Also sends a heartbeat."""

    @abc.abstractmethod
    def report(self, kind: str, value: Any) -> None:
        """Send a small message to the learner: plain data of a kind such as ``"refused"``."""

    @abc.abstractmethod
    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        """Return the content of a store if it is newer than version ``have``, or None; cheap.

        It is valid until the second pull of the same store after this one.
        ``store`` is 0 for the learner's own weights, 1 for the compressed ones, or
        :data:`SETTINGS`; a compressor also has :data:`OBSERVATIONS`. ``wait`` blocks until there is
        newer content or training is over.
        """

    def settings(self) -> ActorSettings:
        """Return the latest settings; cheap."""
        newer = self.pull(SETTINGS, self._settings[0])
        if newer is not None:
            self._settings = (newer.version, ActorSettings.from_json(newer.header))
        return self._settings[1]


class ActorLink(Link):
    """Interface of an actor, which fills trajectories in place."""

    @property
    @abc.abstractmethod
    def learner_version(self) -> int:
        """The newest version of the learner's weights; read far more often than those."""

    def resetting(self, begins: bool) -> None:
        """Tell that resets begin or are over: they may take longer than a step."""

    @abc.abstractmethod
    def begin(self) -> Trajectory | None:
        """Wait for a slot and the limiter; return a trajectory to fill, or None to stop."""

    @abc.abstractmethod
    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Send the trajectory of :meth:`begin`, its finished episodes as plain data.

        ``counts`` are added to this actor's counters.
        """


class CompressorLink(Link):
    """Interface of the compressor."""

    _seen = NONE
    _rows: npt.NDArray[np.generic] | None = None

    @abc.abstractmethod
    def publish(self, policy: Policy) -> None:
        """Publish a compressed policy to all actors."""

    def observations(self) -> npt.NDArray[np.generic] | None:
        """Return a copy of recent observations (N, *shape), or None if there are none."""
        newer = self.pull(OBSERVATIONS, self._seen)
        if newer is not None:
            about = json.loads(newer.header)
            self._seen = newer.version
            self._rows = newer.payload.view(about["dtype"]).reshape(about["shape"])
        return None if self._rows is None else self._rows.copy()
