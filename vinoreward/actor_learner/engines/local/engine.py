"""The engine of one machine: spawned processes that share memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from multiprocessing.connection import wait

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.actor import COUNTERS
from vinoreward.actor_learner.engines.base import (
    Engine,
    EngineConfig,
    TrajectorySource,
    not_running,
)
from vinoreward.actor_learner.engines.local.links import PULLED, Shared, run_actor, run_compressor
from vinoreward.actor_learner.engines.local.processes import Child
from vinoreward.actor_learner.engines.supervisor import Status, Supervisor, Worker
from vinoreward.actor_learner.transport.link import OBSERVATIONS, SETTINGS
from vinoreward.actor_learner.transport.shared_memory import ControlBlock, remove_leftovers
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
from vinoreward.actor_learner.transport.trajectory_ring import TrajectoryRing
from vinoreward.actor_learner.transport.weight_store import WeightStore
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import PolicySpec
from vinoreward.policies.wire import Encoded, decode, encode

BLOB_ROOM = 1 << 20
"""Bytes that a compressed policy may need beyond those of its weights in full precision; in INT8
with an engine's compiled form it takes about half of them."""
SETTINGS_BYTES = 16384


def _room(policy: Policy, bits: int = 32) -> int:
    """Return the bytes of a network in full precision, with the header of so many bits."""
    # Full precision, whatever the bits: a resumed run may change them.
    header = encode(policy, bits=bits).header
    return WeightStore.capacity_for(header, [part for _, part in encode(policy).parts])


def _blank(spec: PolicySpec) -> Policy:
    shapes = spec.parameter_shapes()
    return Policy(spec, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})


class _Memory:
    """The shared memory, in the learner's process; all of it or, on an error, none."""

    def __init__(
        self, config: EngineConfig, policy: Policy, observations: npt.NDArray[np.generic]
    ) -> None:
        actors, readers = config.actor.actors, config.actor.actors + 1
        full, compressed, rows = _room(policy, config.bits), 64, 64
        if config.compressor is not None:
            largest = _blank(config.compressor.chain.largest(policy.spec))
            compressed = max(full, _room(largest)) + BLOB_ROOM
            row = int(np.prod(observations.shape[1:])) * observations.itemsize
            rows = config.observations * row + SETTINGS_BYTES
        sizes = {
            FULL_PRECISION: (readers, full),
            # The last reader here is this process, which evaluates what actors run.
            COMPRESSED: (readers, compressed),
            SETTINGS: (readers, SETTINGS_BYTES),
            OBSERVATIONS: (1, rows),
        }
        with contextlib.ExitStack() as opened:
            add = opened.enter_context
            self.control = add(ControlBlock.create(readers, (*COUNTERS, PULLED)))
            self.stores = {store: add(WeightStore.create(*size)) for store, size in sizes.items()}
            self.ring = add(
                TrajectoryRing.create(config.trajectory, actors, config.slots_per_actor)
            )
            self.inspector = add(WeightStore.attach(self.stores[COMPRESSED].spec, actors))
            self.close = opened.pop_all().close
        specs = {number: store.spec for number, store in self.stores.items()}
        self.shared = Shared(self.control.spec, specs, self.ring.spec)


class _LocalWorker(Worker):
    """An actor, or the compressor, as a child process."""

    hint = (
        ". Nothing: see what it wrote to the terminal. A script that starts a training needs its "
        'code below `if __name__ == "__main__":`, as processes that are started import it.'
    )

    def __init__(self, name: str, number: int, config: EngineConfig, memory: _Memory) -> None:
        super().__init__(name, number)
        self._config, self._memory = config, memory
        self._acts = number < config.actor.actors
        self.child = Child(name, run_actor if self._acts else run_compressor)

    def start(self) -> None:
        config, shared = self._config, self._memory.shared
        if self._acts:
            self.child.start(config.actor, shared, config.limiter, self.number, self.generation)
        else:
            compressor = config.compressor_of(self.generation)
            self.child.start(compressor, shared, self.number, config.actor.environments)

    def look(self) -> Status:
        # Before its messages: the last of them are there when it is gone.
        alive = self.child.alive
        messages = self.child.messages()
        ended = None if alive else self.child.ended()
        if self._acts:
            handed = self.counter("trajectories")
        else:
            handed = self._memory.stores[COMPRESSED].latest_version + 1
        return Status(self._memory.control.silence(self.number), handed, messages, ended)

    def kill(self) -> bool:
        if not self.child.end():
            return False
        memory, number = self._memory, self.number
        for store, reader in memory.shared.readers(number).items():
            memory.stores[store].reclaim(reader)
        if self._acts:
            memory.ring.reclaim(number)
        memory.control.add(number, PULLED, -self.counter(PULLED))
        memory.control.reset_beat(number)
        return True

    @property
    def pulled(self) -> int:
        return self.counter(PULLED) - 1

    def counter(self, name: str) -> int:
        return self._memory.control.count(self.number, name)


class LocalEngine(Engine):
    """Runs actors and compressor as processes of this machine; see :class:`Engine`."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._inspecting = threading.Lock()
        self._open_memory: _Memory | None = None

    @property
    def _memory(self) -> _Memory:
        if self._open_memory is None:
            raise not_running()
        return self._open_memory

    def _open(self, policy: Policy, observations: npt.NDArray[np.generic]) -> Supervisor:
        remove_leftovers()
        config = self._config
        self._open_memory = memory = _Memory(config, policy, observations)
        workers = [
            _LocalWorker(name, number, config, memory)
            for number, name in enumerate(config.process_names())
        ]

        def wait_for(some: Sequence[Worker], seconds: float) -> None:
            wait([each for one in some for each in workers[one.number].child.handles], seconds)

        return Supervisor(workers, wait_for, config)

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        if self._open_memory is not None:
            self._open_memory.control.stop()
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None
        if self._open_memory is not None:
            self._open_memory.close()
            self._open_memory = None

    def _publish(self, store: int, version: int, encoded: Encoded) -> None:
        parts = [part for _, part in encoded.parts]
        self._memory.stores[store].publish(encoded.header, parts, version=version)
        if store == FULL_PRECISION:
            # After the weights: a process that reads it finds them.
            self._memory.control.learner_version = version

    @property
    def _source(self) -> TrajectorySource:
        return self._memory.ring

    def sampled(self, count: int) -> None:
        """See :meth:`Engine.sampled`."""
        self._memory.control.samples += count

    def _progress(self) -> tuple[Sequence[int], int]:
        return self.pulled(), self._memory.stores[COMPRESSED].latest_version

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        with self._inspecting:
            lease = self._memory.inspector.pull_if_newer()
            if lease is None:
                return None
            with lease:
                return decode(lease.header, lease.payload.copy())
