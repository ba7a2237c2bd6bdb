"""The engine of one machine: spawned processes that share memory."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import wait
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.actor import COUNTERS
from vinoreward.actor_learner.engines.base import Engine, EngineConfig, not_running
from vinoreward.actor_learner.engines.local.links import PULLED, Shared
from vinoreward.actor_learner.engines.local.processes import Child, run_actor, run_compressor
from vinoreward.actor_learner.engines.supervisor import Status, Supervisor, Worker
from vinoreward.actor_learner.transport.control_block import ControlBlock
from vinoreward.actor_learner.transport.link import OBSERVATIONS, SETTINGS
from vinoreward.actor_learner.transport.segments import remove_leftovers
from vinoreward.actor_learner.transport.trajectory import FULL_PRECISION, Trajectory
from vinoreward.actor_learner.transport.trajectory_ring import Batch, TrajectoryRing
from vinoreward.actor_learner.transport.weight_store import WeightStore
from vinoreward.closing import Closing
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import PolicySpec
from vinoreward.policies.wire import Encoded, decode, encode

BLOB_ROOM = 1 << 20
"""Bytes that a compressed policy may need beyond those of its weights in full precision; in INT8
with an engine's compiled form it takes about half of them."""
SETTINGS_BYTES = 16384

Opened = TypeVar("Opened", ControlBlock, WeightStore, TrajectoryRing)


def _room(policy: Policy, bits: int = 32) -> int:
    """Return the bytes of a network in full precision, with the header of so many bits."""
    # Full precision, whatever the bits: a resumed run may change them.
    header = encode(policy, bits=bits).header
    return WeightStore.capacity_for(header, [part for _, part in encode(policy).parts])


def _blank(spec: PolicySpec) -> Policy:
    shapes = spec.parameter_shapes()
    return Policy(spec, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})


class _Memory(Closing):
    """What the processes share, each part as the learner's process sees it.

    Args:
        config: what it is for.
        policy: the first.
        observations: the first.

    Raises:
        ConfigError: another number of bits.
        SharedMemoryError: there is not enough; nothing is kept.
    """

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
        self._opened: list[Closing] = []
        try:
            self.control = self._keep(ControlBlock.create(readers, (*COUNTERS, PULLED)))
            self.full = self._keep(WeightStore.create(readers, full))
            # The last reader here is this process, which evaluates what the actors run.
            self.compressed = self._keep(WeightStore.create(readers, compressed))
            self.settings = self._keep(WeightStore.create(readers, SETTINGS_BYTES))
            self.observations = self._keep(WeightStore.create(1, rows))
            self.ring = self._keep(
                TrajectoryRing.create(config.trajectory, actors, config.slots_per_actor)
            )
            self.inspector = self._keep(WeightStore.attach(self.compressed.spec, actors))
        except BaseException:
            self.close()
            raise
        self.shared = Shared(
            self.control.spec,
            self.full.spec,
            self.compressed.spec,
            self.settings.spec,
            self.observations.spec,
            self.ring.spec,
        )

    def _keep(self, opened: Opened) -> Opened:
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        """Free all of it."""
        while self._opened:
            self._opened.pop().close()


class _LocalWorker(Worker):
    """An actor, or the compressor, as a child process.

    Args:
        name: of it.
        number: in the control block.
        config: the engine's.
        memory: what it shares.
    """

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
        """See :meth:`Worker.start`."""
        config, shared = self._config, self._memory.shared
        if self._acts:
            self.child.start(config.actor, shared, config.limiter, self.number, self.generation)
            return
        told = config.compressor
        if told is not None and self.generation > 0:
            told = dataclasses.replace(told, resume=True)
        self.child.start(told, shared, self.number, config.actor.environments)

    def look(self) -> Status:
        """See :meth:`Worker.look`."""
        memory, number = self._memory, self.number
        # Before its messages: the last of them are there when it is gone.
        alive = self.child.alive
        messages = self.child.messages()
        ended = None if alive else self.child.ended()
        if self._acts:
            handed = memory.control.count(number, "trajectories")
        else:
            handed = memory.compressed.latest_version + 1
        return Status(memory.control.silence(number), handed, messages, ended)

    def kill(self) -> bool:
        """See :meth:`Worker.kill`."""
        if not self.child.end():
            return False
        memory, number = self._memory, self.number
        memory.full.reclaim(number)
        memory.settings.reclaim(number)
        memory.control.add(number, PULLED, -memory.control.count(number, PULLED))
        if self._acts:
            memory.compressed.reclaim(number)
            memory.ring.reclaim(number)
        else:
            memory.observations.reclaim(0)
        memory.control.reset_beat(number)
        return True

    @property
    def pulled(self) -> int:
        """See :attr:`Worker.pulled`."""
        return self._memory.control.count(self.number, PULLED) - 1


@contextmanager
def _taken(batch: Batch) -> Iterator[Sequence[Trajectory]]:
    with batch:
        yield batch.trajectories


class LocalEngine(Engine):
    """Runs actors and compressor as processes of this machine; see :class:`Engine`."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._inspecting = threading.Lock()
        self._kept: _Memory | None = None

    @property
    def _memory(self) -> _Memory:
        if self._kept is None:
            raise not_running()
        return self._kept

    def _open(self, policy: Policy, observations: npt.NDArray[np.generic]) -> Supervisor:
        remove_leftovers()
        config, actors = self._config, self._config.actor.actors
        self._kept = memory = _Memory(config, policy, observations)
        names = [f"actor {number}" for number in range(actors)]
        if config.compressor is not None:
            names.append("compressor")
        workers = [_LocalWorker(name, at, config, memory) for at, name in enumerate(names)]

        def wait_for(some: Sequence[Worker], seconds: float) -> None:
            wait([each for one in some for each in workers[one.number].child.handles], seconds)

        return self._supervise(workers, wait_for)

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        if self._kept is not None:
            self._kept.control.stop()
        if self._supervisor is not None:
            self._supervisor.close()
            self._supervisor = None
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _publish(self, store: int, version: int, encoded: Encoded) -> None:
        memory = self._memory
        stores = {
            FULL_PRECISION: memory.full,
            SETTINGS: memory.settings,
            OBSERVATIONS: memory.observations,
        }
        stores[store].publish(encoded.header, [part for _, part in encoded.parts], version=version)
        if store == FULL_PRECISION:
            # After the weights: whoever reads it finds them.
            memory.control.learner_version = version

    def take(
        self, count: int, *, timeout: float, evenly: bool = False
    ) -> AbstractContextManager[Sequence[Trajectory]] | None:
        """See :meth:`Engine.take`."""
        batch = self._memory.ring.take(count, timeout=timeout, stop=self._stopped, evenly=evenly)
        if batch is None:
            self._raise()
            return None
        return _taken(batch)

    def waiting(self) -> int:
        """See :meth:`Engine.waiting`."""
        return self._memory.ring.ready()

    def sampled(self, count: int) -> None:
        """See :meth:`Engine.sampled`."""
        self._memory.control.samples += count

    def counters(self, names: Sequence[str] = COUNTERS) -> dict[str, int]:
        """See :meth:`Engine.counters`."""
        return {name: self._memory.control.total(name) for name in names}

    def everyone_has(self, version: int) -> bool:
        """See :meth:`Engine.everyone_has`."""
        compressing = self._config.compressor is not None and self._settings.enabled_at(version)
        if compressing and self._memory.compressed.latest_version < version:
            return False
        return min(self.pulled()[: self._config.actor.actors]) >= version

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        with self._inspecting:
            lease = self._memory.inspector.pull_if_newer()
            if lease is None:
                return None
            with lease:
                return decode(lease.header, lease.payload.copy())
