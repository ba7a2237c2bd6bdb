"""The engine of one machine: spawned processes, shared memory, and a thread that watches them."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.actor import COUNTERS
from vinoreward.actor_learner.engines.base import Engine, EngineConfig, EngineError, Messages
from vinoreward.actor_learner.engines.local.children import Child
from vinoreward.actor_learner.engines.local.links import PULLED, Shared
from vinoreward.actor_learner.engines.local.processes import run_actor, run_compressor
from vinoreward.actor_learner.engines.local.supervisor import Supervisor
from vinoreward.actor_learner.transport.actor_settings import ActorSettings
from vinoreward.actor_learner.transport.control_block import ControlBlock
from vinoreward.actor_learner.transport.ring_handles import Batch
from vinoreward.actor_learner.transport.segments import remove_leftovers
from vinoreward.actor_learner.transport.trajectory import Trajectory
from vinoreward.actor_learner.transport.trajectory_ring import TrajectoryRing
from vinoreward.actor_learner.transport.weight_store import WeightStore
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import PolicySpec
from vinoreward.policies.wire import decode, encode

BLOB_ROOM = 1 << 20
"""Bytes that a compressed policy may need beyond those of its weights in full precision; in INT8
with an engine's compiled form it takes about half of them."""
ORDERS_BYTES = 16384

Opened = TypeVar("Opened", ControlBlock, WeightStore, TrajectoryRing)


def _room(spec: PolicySpec) -> int:
    """Return the bytes of a network in full precision."""
    shapes = spec.parameter_shapes()
    blank = Policy(spec, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    encoded = encode(blank)
    return WeightStore.capacity_for(encoded.header, [part for _, part in encoded.parts])


@contextmanager
def _taken(batch: Batch) -> Iterator[Sequence[Trajectory]]:
    with batch:
        yield batch.trajectories


class LocalEngine(Engine):
    """Runs actors and compressor as processes of this machine.

    Args:
        config: what they do.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._actors = config.actor.actors
        self._supervisor: Supervisor | None = None
        self._settings = ActorSettings()
        self._inspecting = threading.Lock()
        self._order_number = 0
        self._observation_number = 0
        self._opened: list[ControlBlock | WeightStore | TrajectoryRing] = []

    # Starting and ending

    def start(
        self,
        policy: Policy,
        settings: ActorSettings,
        observations: npt.NDArray[np.generic],
        bits: int | None = None,
    ) -> None:
        """See :meth:`Engine.start`.

        Raises:
            SharedMemoryError: there is not enough; nothing was started.
            ConfigError: another number of bits.
        """
        remove_leftovers()
        try:
            shared = self._reserve(policy, observations)
            self._control.learner_version = policy.version
            self.configure(settings)
            self.give_observations(observations)
            self.publish(policy, bits)
            self._supervisor = self._supervise(shared)
            self._supervisor.start()
        except BaseException:
            self.close()
            raise

    def _reserve(self, policy: Policy, observations: npt.NDArray[np.generic]) -> Shared:
        config, readers = self._config, self._actors + 1
        # Full precision, whatever the bits: a resumed run may change them.
        header = encode(policy, bits=config.bits).header
        full = WeightStore.capacity_for(header, [part for _, part in encode(policy).parts])
        compressed = 64
        if config.compressor is not None:
            compressed = max(full, _room(config.compressor.chain.largest(policy.spec))) + BLOB_ROOM
        row = int(np.prod(observations.shape[1:])) * observations.itemsize
        self._control = self._keep(ControlBlock.create(readers, (*COUNTERS, PULLED)))
        self._full = self._keep(WeightStore.create(readers, full))
        # The last reader here is this process, which evaluates what the actors run.
        self._compressed = self._keep(WeightStore.create(readers, compressed))
        self._order_store = self._keep(WeightStore.create(readers, ORDERS_BYTES))
        room = config.observations * row + ORDERS_BYTES if config.compressor is not None else 64
        self._observations = self._keep(WeightStore.create(1, room))
        self._ring = self._keep(
            TrajectoryRing.create(config.trajectory, self._actors, config.slots_per_actor)
        )
        self._inspector = WeightStore.attach(self._compressed.spec, self._actors)
        return Shared(
            self._control.spec,
            self._full.spec,
            self._compressed.spec,
            self._order_store.spec,
            self._observations.spec,
            self._ring.spec,
        )

    def _keep(self, opened: Opened) -> Opened:
        self._opened.append(opened)
        return opened

    def _supervise(self, shared: Shared) -> Supervisor:
        config = self._config
        children = [self._actor(number, shared) for number in range(self._actors)]
        if config.compressor is not None:
            children.append(self._compressor(shared))
        return Supervisor(
            children,
            actors=self._actors,
            silence=self._control.silence,
            handed=self._handed,
            release=self._release,
            heartbeat=config.heartbeat,
            start_timeout=config.start_timeout,
            restarts=config.restarts,
            all_needed=config.actor.lag is not None,
        )

    def _actor(self, number: int, shared: Shared) -> Child:
        config = self._config
        return Child(
            f"actor {number}",
            number,
            run_actor,
            lambda generation: (config.actor, shared, config.limiter, number, generation),
        )

    def _compressor(self, shared: Shared) -> Child:
        batch = self._config.actor.environments

        def arguments(generation: int) -> tuple[Any, ...]:
            told = self._config.compressor
            if told is not None and generation > 0:
                told = dataclasses.replace(told, resume=True)
            return (told, shared, self._actors, batch)

        return Child("compressor", self._actors, run_compressor, arguments)

    def _handed(self, number: int) -> int:
        if number < self._actors:
            return self._control.count(number, "trajectories")
        return self._compressed.latest_version

    def _release(self, child: Child) -> None:
        """Take back what a dead process held; its successor starts with nothing."""
        self._full.reclaim(child.number)
        self._order_store.reclaim(child.number)
        self._control.add(child.number, PULLED, -self._control.count(child.number, PULLED))
        if child.number < self._actors:
            self._compressed.reclaim(child.number)
            child.generation = self._ring.reclaim(child.number)
        else:
            self._observations.reclaim(0)
            child.generation += 1
        self._control.reset_beat(child.number)

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        if self._opened:
            self._control.stop()
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None
        for opened in reversed(self._opened):
            opened.close()
        self._opened = []

    # The learner's side

    def publish(self, policy: Policy, bits: int | None = None) -> None:
        """See :meth:`Engine.publish`."""
        encoded = encode(policy, bits=self._config.bits if bits is None else bits)
        self._full.publish(
            encoded.header, [part for _, part in encoded.parts], version=policy.version
        )
        # After the weights: whoever reads it finds them.
        self._control.learner_version = policy.version

    def give_observations(self, observations: npt.NDArray[np.generic]) -> None:
        """See :meth:`Engine.give_observations`."""
        if self._config.compressor is None:
            return
        rows = np.ascontiguousarray(observations[-self._config.observations :])
        header = json.dumps({"dtype": rows.dtype.name, "shape": rows.shape}).encode()
        self._observations.publish(header, [rows], version=self._observation_number)
        self._observation_number += 1

    def configure(self, settings: ActorSettings) -> None:
        """See :meth:`Engine.order`."""
        self._order_store.publish(settings.to_json(), [], version=self._order_number)
        self._order_number += 1
        self._settings = settings

    def take(
        self, count: int, *, timeout: float, evenly: bool = False
    ) -> AbstractContextManager[Sequence[Trajectory]] | None:
        """See :meth:`Engine.take`."""
        batch = self._ring.take(
            count, timeout=timeout, stop=lambda: bool(self._failure), evenly=evenly
        )
        if batch is None:
            self._raise()
            return None
        return _taken(batch)

    def waiting(self) -> int:
        """See :meth:`Engine.waiting`."""
        return self._ring.ready()

    def sampled(self, count: int) -> None:
        """See :meth:`Engine.sampled`."""
        self._control.samples += count

    def counters(self, names: Sequence[str] = COUNTERS) -> dict[str, int]:
        """See :meth:`Engine.counters`."""
        return {name: self._control.total(name) for name in names}

    def everyone_has(self, version: int) -> bool:
        """See :meth:`Engine.everyone_has`."""
        compressing = self._config.compressor is not None and self._settings.enabled_at(version)
        if compressing and self._compressed.latest_version < version:
            return False
        return all(self._control.count(actor, PULLED) > version for actor in range(self._actors))

    def pulled(self) -> Sequence[int]:
        """See :meth:`Engine.pulled`."""
        return [self._control.count(child, PULLED) - 1 for child in range(self._actors + 1)]

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        with self._inspecting:
            lease = self._inspector.pull_if_newer()
            if lease is None:
                return None
            with lease:
                return decode(lease.header, lease.payload.copy())

    def messages(self) -> Messages:
        """See :meth:`Engine.messages`."""
        found = Messages() if self._supervisor is None else self._supervisor.messages()
        self._raise()
        return found

    @property
    def _failure(self) -> str:
        return "" if self._supervisor is None else self._supervisor.failure

    def _raise(self) -> None:
        if self._failure:
            raise EngineError(self._failure)
