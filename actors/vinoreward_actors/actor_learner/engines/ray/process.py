"""What runs in a process on Ray: an actor or the compressor, called by the learner.

An actor's process does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.engines.base import Called, error_report
from vinoreward_actors.actor_learner.transport.link import ActorSettings, Link, Weights
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
from vinoreward_actors.policies.wire import Bytes


class Published(NamedTuple):
    """The latest weights of a network."""

    version: int
    header: bytes  # JSON
    body: list[Any]  # the reference to the payload; in a list Ray does not fetch it on its way


class Order(NamedTuple):
    """What the learner gives with each call."""

    settings: ActorSettings
    weights: Mapping[int, Published]  # by network
    observations: list[Any]  # the reference to them, for the compressor


class Result(NamedTuple):
    """What a call gives back."""

    counts: Mapping[str, int] = {}
    sent: Sequence[tuple[str, Any]] = ()  # kinds and values of messages
    payload: Bytes | None = None  # the bytes of a trajectory
    made: tuple[int, bytes] | None = None  # version and header of compressed weights
    error: str = ""  # the report of an error that ended the process's work


class RayLink(Link):
    """The link of a process on Ray: payloads are fetched when they are pulled."""

    weights: Mapping[int, Published] = {}

    @property
    def learner_version(self) -> int:
        """See :attr:`Link.learner_version`."""
        return self.weights[FULL_PRECISION].version

    def pull(self, network: int, have: int) -> Weights | None:
        """See :meth:`Link.pull`; None too if the payload was lost with its machine."""
        import ray
        from ray.exceptions import RayError

        newest = self.weights.get(network)
        if newest is None or newest.version <= have:
            return None
        try:
            return Weights(newest.header, ray.get(newest.body[0]), newest.version)
        except RayError:
            return None


class RayProcess:
    """An actor of training, or the compressor, in a Ray actor.

    ``paths`` is the learner's ``sys.path``. Folders that this process lacks are searched last, so
    that it finds an environment beside the user's script on a shared file system.
    """

    def __init__(self, paths: Sequence[str], number: int, generation: int, config: bytes) -> None:
        from ray import cloudpickle

        sys.path.extend(path for path in paths if path not in sys.path)
        self._number, self._generation = number, generation
        # As bytes until here: the user's classes in it are found only now.
        self._config: EngineConfig = cloudpickle.loads(config)
        self._link = RayLink(self._config.trajectory, number, generation)
        self._runs: Called | None = None
        self._seen: Any = None

    def call(self, order: Order | None) -> tuple[Result, Bytes | None]:
        """Fill a trajectory, or compress the newest weights; the second result is their payload.

        The first call, without an order, returns as soon as there is a process.
        """
        import ray

        link = self._link
        if order is None:
            return Result(), None
        try:
            if self._runs is None:
                self._runs = Called(self._config, link, self._number, self._generation)
            link.settings, link.weights = order.settings, order.weights
            if order.observations and order.observations[0] != self._seen:
                self._seen = order.observations[0]
                link.observations = np.array(ray.get(self._seen))
            done = self._runs.call()
        except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner gets it)
            if self._runs is not None:
                self._runs.close()
            return Result(sent=link.take_sent(), error=error_report(error)), None
        if self._config.chain is None:
            return Result(link.counts, link.take_sent(), link.buffer), None
        made = link.stores[COMPRESSED] if done else None
        about = None if made is None else (made.version, made.header)
        return Result(sent=link.take_sent(), made=about), None if made is None else made.payload
