"""What runs in a process on Ray: an actor or the compressor, called by the learner.

An actor's process does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vinoreward_actors.actor_learner.acting.actor import Actor, ActorConfig
from vinoreward_actors.actor_learner.compressor import Compressor
from vinoreward_actors.actor_learner.engines.base import error_report
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.memory_link import MemoryLink
from vinoreward_actors.actor_learner.transport.link import NONE, Weights
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    TrajectorySpec,
)
from vinoreward_actors.policies.backends.base import BackendOutputs
from vinoreward_actors.policies.wire import Bytes


class Published(NamedTuple):
    """The latest content of a store."""

    version: int  # of the learner for weights, counted up for everything else
    header: bytes  # JSON
    body: list[Any]  # the reference to the payload; in a list Ray does not fetch it on its way


class Order(NamedTuple):
    """What the learner gives with each call."""

    generation: int  # a new one starts anew
    stores: Mapping[int, Published]


class Result(NamedTuple):
    """What a call gives back."""

    counts: Mapping[str, int] = {}
    pulled: int = NONE
    sent: Sequence[tuple[str, Any]] = ()  # kinds and values of messages
    payload: Bytes | None = None  # the bytes of a trajectory
    made: tuple[int, bytes] | None = None  # version and header of compressed weights
    error: str = ""  # the report of an error that ended this generation


class RayLink(MemoryLink):
    """The link of a process on Ray: payloads are fetched when they are pulled."""

    def __init__(self, trajectory: TrajectorySpec, number: int) -> None:
        super().__init__({}, trajectory, number)
        self.given: Mapping[int, Published] = {}

    def give(self, order: Order) -> None:
        """Take the stores of the learner's latest order."""
        self.given = order.stores
        self.newest = order.stores[FULL_PRECISION].version

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        """See :meth:`Link.pull`; None too if the payload was lost with its machine."""
        import ray
        from ray.exceptions import RayError

        newest = self.given.get(store)
        if newest is None or newest.version <= have:
            return None
        try:
            payload: Any = ray.get(newest.body[0]) if newest.body else np.empty(0, np.uint8)
        except RayError:
            return None
        self.stores[store] = Weights(newest.header, payload, newest.version)
        return super().pull(store, have)


class RayProcess:
    """An actor of training, or the compressor, in a Ray actor.

    ``paths`` is the learner's ``sys.path``. Folders that this process lacks are searched last, so
    that it finds an environment beside the user's script on a shared file system.
    """

    def __init__(self, paths: Sequence[str], number: int, config: bytes) -> None:
        from ray import cloudpickle

        sys.path.extend(path for path in paths if path not in sys.path)
        self._number = number
        # As bytes until here: the user's classes in it are found only now.
        self._config: EngineConfig = cloudpickle.loads(config)
        self._link = RayLink(self._config.trajectory, number)
        self._generation = NONE
        self._runs: Actor | Compressor | None = None
        self._outputs: BackendOutputs | None = None

    def placed(self) -> Result:
        """Return as soon as there is a process."""
        return Result()

    def rollout(self, order: Order) -> Result:
        """Let the actor fill one trajectory."""
        try:
            actor = self._of(order)
            if not isinstance(actor, Actor):
                raise TypeError(f"process {self._number} is the compressor, not an actor")
            self._link.counts.clear()
            actor.rollout()
        except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner gets it)
            return self._failed(error)
        link = self._link
        return Result(dict(link.counts), link.pulled, link.take_sent(), link.filled())

    def compress(self, order: Order, save: bool = False) -> tuple[Result, Bytes | None]:
        """Compress the newest weights, or only ``save`` the state; the second result is theirs."""
        made: Weights | None = None
        try:
            compressor = self._of(order)
            if not isinstance(compressor, Compressor):
                raise TypeError(f"process {self._number} is an actor, not the compressor")
            self._link.stores.pop(COMPRESSED, None)
            if save:
                compressor.save_if_asked()
            else:
                compressor.step()
            made = self._link.stores.get(COMPRESSED)
        except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner gets it)
            return self._failed(error), None
        link = self._link
        about = None if made is None else (made.version, made.header)
        result = Result(pulled=link.pulled, sent=link.take_sent(), made=about)
        return result, None if made is None else made.payload

    def _of(self, order: Order) -> Actor | Compressor:
        """Return what runs here, made anew for a new generation."""
        if order.generation != self._generation:
            self._close()
            self._generation = order.generation
            self._link = RayLink(self._config.trajectory, self._number)
        self._link.give(order)
        if self._runs is None:
            self._runs = self._new(self._config.actor)
        return self._runs

    def _new(self, config: ActorConfig) -> Actor | Compressor:
        if self._number < config.actors:
            return Actor(config, self._link, self._number, self._generation)
        compressor = self._config.compressor_of(self._generation)
        if compressor is None:
            raise ValueError("there is no compressor")
        self._outputs = BackendOutputs(config.environments)
        return Compressor(compressor, self._link, config.environments, self._outputs)

    def _failed(self, error: BaseException) -> Result:
        self._close()
        return Result(sent=self._link.take_sent(), error=error_report(error))

    def _close(self) -> None:
        runs, self._runs = self._runs, None
        if isinstance(runs, Actor):
            runs.close()
        if self._outputs is not None:
            self._outputs.close()
            self._outputs = None
