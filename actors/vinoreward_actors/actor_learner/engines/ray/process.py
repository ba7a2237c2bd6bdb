"""What runs in a process on Ray: an actor or the compressor, called by the learner.

An actor's process does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vinoreward_actors.actor_learner.engines.base import Called, EngineConfig, error_report
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
    save: bool = False  # only save the state


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

    def begin(self) -> Result:
        """Make the actor or compressor."""
        try:
            self._runs = Called(self._config, self._link, self._number, self._generation)
        except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner gets it)
            return Result(error=error_report(error))
        return Result()

    def call(self, order: Order) -> tuple[Result, Bytes | None]:
        """Fill a trajectory, or compress the newest weights; the second result is their payload."""
        import ray

        link, runs = self._link, self._runs
        try:
            if runs is None:
                raise RuntimeError("called before begin()")
            link.settings, link.weights = order.settings, order.weights
            if order.observations and order.observations[0] != self._seen:
                self._seen = order.observations[0]
                link.observations = np.array(ray.get(self._seen))
            done = runs.call(save=order.save)
        except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner gets it)
            if runs is not None:
                runs.close()
            return Result(sent=link.take_sent(), error=error_report(error)), None
        if self._config.compressor is None:
            return Result(link.counts, link.take_sent(), link.buffer), None
        made = link.stores[COMPRESSED] if done else None
        about = None if made is None else (made.version, made.header)
        return Result(sent=link.take_sent(), made=about), None if made is None else made.payload
