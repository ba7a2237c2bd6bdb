"""The engine of one machine: spawned processes that share memory, and a pipe for small messages.

Child processes import this module, so nothing heavy is imported here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.acting.actor import COUNTERS, Actor, ActorConfig
from vinoreward_actors.actor_learner.compressor import Compressor, CompressorConfig
from vinoreward_actors.actor_learner.config import SamplesPerInsert
from vinoreward_actors.actor_learner.engines.base import (
    Engine,
    EngineError,
    Messages,
    not_running,
)
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.processes import Child, reporting, send
from vinoreward_actors.actor_learner.engines.supervisor import Ended, Status, Supervisor, Worker
from vinoreward_actors.actor_learner.transport.link import (
    OBSERVATIONS,
    SETTINGS,
    ActorLink,
    CompressorLink,
    Link,
    Weights,
)
from vinoreward_actors.actor_learner.transport.shared_memory import (
    ControlBlock,
    ControlSpec,
    aligned,
    wait_until,
)
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Batch,
    Trajectory,
)
from vinoreward_actors.actor_learner.transport.trajectory_ring import RingSpec, TrajectoryRing
from vinoreward_actors.actor_learner.transport.weight_store import WeightStore, WeightStoreSpec
from vinoreward_actors.policies.backends.base import BackendOutputs
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Encoded, decode, encode

BLOB_ROOM = 1 << 20
"""Bytes of a compressed policy beyond those of its weights in full precision; a compiled INT8 form
needs about half of them."""
SETTINGS_BYTES = 16384
PULLED = "pulled"
"""Counter: the newest version of any network that a process has pulled, plus 1."""
RESETS = "resets"
"""Counter: odd while an actor resets environments."""
NO_GUARD = (
    "nothing: see what it wrote to the terminal. A script that starts a training needs its code "
    'below `if __name__ == "__main__":`, as processes that are started import it.'
)
"""The report of a process that Python could not start."""


# In a child process


@dataclass(frozen=True)
class Shared:
    """What processes need to attach to the shared memory; plain data."""

    control: ControlSpec
    stores: Mapping[int, WeightStoreSpec]  # by number
    ring: RingSpec


class _LocalLink(Link):
    def __init__(self, shared: Shared, process: int, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe
        self._control = ControlBlock.attach(shared.control)
        self._stores = {store: WeightStore.attach(spec) for store, spec in shared.stores.items()}

    @property
    def stopped(self) -> bool:
        self._control.beat(self._process)
        return self._control.stopped

    def report(self, kind: str, value: Any) -> None:
        send(self._pipe, kind, value)

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        opened = self._stores[store]
        if wait:
            weights = opened.wait_newer(have, stop=lambda: self.stopped)
        else:
            weights = opened.pull_if_newer(have)
        if weights is not None and store in (FULL_PRECISION, COMPRESSED):
            had = self._control.count(self._process, PULLED)
            self._control.add(self._process, PULLED, max(0, weights.version + 1 - had))
        return weights


class _LocalActorLink(_LocalLink, ActorLink):
    def __init__(
        self,
        shared: Shared,
        actor: int,
        generation: int,
        pipe: Connection,
        limiter: SamplesPerInsert | None,
    ) -> None:
        super().__init__(shared, actor, pipe)
        self._limiter = limiter
        self._ring = TrajectoryRing.attach(shared.ring, actor, generation)

    @property
    def learner_version(self) -> int:
        return self._control.learner_version

    def _may_insert(self) -> bool:
        if self._limiter is None:
            return True
        # As if all actors began now: what others have begun is not counted yet.
        return self._limiter.can_insert(
            self._control.total("steps"), self._control.samples, self._limiter.insert_size
        )

    def resetting(self, begins: bool) -> None:
        self._control.beat(self._process)
        self._control.add(self._process, RESETS)

    def begin(self) -> Trajectory | None:
        if not wait_until(self._may_insert, stop=lambda: self.stopped):
            return None
        return self._ring.acquire(stop=lambda: self.stopped)

    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        self._ring.commit()
        if episodes:
            self.report("episodes", episodes)
        for name, value in counts.items():
            self._control.add(self._process, name, value)


class _LocalCompressorLink(_LocalLink, CompressorLink):
    def publish(self, policy: Policy) -> None:
        out = self._stores[COMPRESSED]
        if policy.version <= out.latest_version:
            return  # published by a compressor that died after that
        encoded = encode(policy, packed=False)  # actors read it where it lies
        size, room = aligned(len(encoded.header)) + encoded.size, out.spec.capacity
        if size > room:
            raise ConfigError(
                f"the compressed policy of version {policy.version} takes {size} bytes. Expected "
                f"at most {room}, which follows from the stages: the one whose networks are larger "
                "than what it is given has to return the largest from its method largest(spec)."
            )
        out.publish(encoded.header, [part for _, part in encoded.parts], version=policy.version)


def run_actor(
    config: ActorConfig,
    limiter: SamplesPerInsert | None,
    shared: Shared,
    number: int,
    generation: int,
    pipe: Connection,
) -> None:
    """Run one actor in a child process until training is over."""
    with reporting(pipe):
        link = _LocalActorLink(shared, number, generation, pipe, limiter)
        Actor(config, link, number, generation).run()


def run_compressor(
    config: CompressorConfig, batch: int, shared: Shared, number: int, pipe: Connection
) -> None:
    """Run the compressor in a child process until training is over."""
    with reporting(pipe):
        link = _LocalCompressorLink(shared, number, pipe)
        with BackendOutputs(batch) as outputs:
            Compressor(config, link, batch, outputs).run()


# In the learner's process


def _room(policy: Policy, bits: int = 32) -> int:
    """Return the bytes of a network in full precision, with a header for so many bits."""
    # Full precision in any case: a resumed run may change the bits.
    header = encode(policy, bits=bits).header
    return WeightStore.capacity_for(header, [part for _, part in encode(policy).parts])


class _Memory:
    """The shared memory: all of it or, on an error, none."""

    def __init__(
        self, config: EngineConfig, policy: Policy, observations: npt.NDArray[np.generic]
    ) -> None:
        actors, processes = config.actor.actors, len(config.process_names())
        full, compressed, rows = _room(policy, config.bits), 64, 64
        if config.compressor is not None:
            spec = config.compressor.chain.largest(policy.spec)
            shapes = spec.parameter_shapes()
            zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            compressed = max(full, _room(Policy(spec, zeros))) + BLOB_ROOM
            row = int(np.prod(observations.shape[1:])) * observations.itemsize
            rows = config.observations * row + SETTINGS_BYTES
        sizes = {
            FULL_PRECISION: full,
            COMPRESSED: compressed,
            SETTINGS: SETTINGS_BYTES,
            OBSERVATIONS: rows,
        }
        with contextlib.ExitStack() as opened:
            add = opened.enter_context
            self.control = add(ControlBlock.create(processes, (*COUNTERS, PULLED, RESETS)))
            self.stores = {store: add(WeightStore.create(size)) for store, size in sizes.items()}
            ring = TrajectoryRing.create(config.trajectory, actors, config.slots_per_actor)
            self.ring = add(ring)
            self.close = opened.pop_all().close
        specs = {number: store.spec for number, store in self.stores.items()}
        self.shared = Shared(self.control.spec, specs, self.ring.spec)


class _LocalWorker(Worker):
    """An actor, or the compressor, as a child process."""

    def __init__(self, name: str, number: int, config: EngineConfig, memory: _Memory) -> None:
        super().__init__(name, number, config)
        self._memory = memory
        self.child = Child(name, run_actor if self.acts else run_compressor)

    def start(self) -> None:
        config, shared = self._config, self._memory.shared
        if self.acts:
            self.child.start(config.actor, config.limiter, shared, self.number, self.generation)
        else:
            compressor = config.compressor_of(self.generation)
            self.child.start(compressor, config.actor.environments, shared, self.number)

    def look(self) -> Status:
        # Before reading its messages: the last ones are there once it is gone.
        alive = self.child.alive
        messages = self.child.messages()
        silence = self._memory.control.silence(self.number)
        ended = None if alive else self.child.ended()
        if ended is not None and silence == math.inf and ended.why == "ended with status 1":
            ended = Ended(ended.why, NO_GUARD)
        if self.acts:
            handed = self.counter("trajectories")
        else:
            handed = self._memory.stores[COMPRESSED].latest_version + 1
        return Status(silence, handed, messages, ended, self.counter(RESETS) % 2 == 1)

    def kill(self) -> bool:
        if not self.child.end():
            return False
        memory, number = self._memory, self.number
        if self.acts:
            memory.ring.reclaim(number)
        memory.control.add(number, PULLED, -self.counter(PULLED))
        memory.control.add(number, RESETS, self.counter(RESETS) % 2)
        memory.control.reset_beat(number)
        return True

    def counter(self, name: str) -> int:
        """Return a counter of all its processes."""
        return self._memory.control.count(self.number, name)


class LocalEngine(Engine):
    """Runs actors and compressor as processes of this machine; see :class:`Engine`."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._open_memory: _Memory | None = None
        self._workers: list[_LocalWorker] = []
        self._supervisor: Supervisor | None = None

    @property
    def _memory(self) -> _Memory:
        if self._open_memory is None:
            raise not_running()
        return self._open_memory

    def _open(self, policy: Policy, observations: npt.NDArray[np.generic]) -> None:
        config = self._config
        self._open_memory = memory = _Memory(config, policy, observations)
        names = enumerate(config.process_names())
        self._workers = workers = [_LocalWorker(name, at, config, memory) for at, name in names]

        def wait_for(some: Sequence[Worker], seconds: float) -> None:
            wait([each for one in some for each in workers[one.number].child.handles], seconds)

        self._supervisor = Supervisor(workers, wait_for, config)

    def _begin(self) -> None:
        self._running.start()

    @property
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise not_running()
        return self._supervisor

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        memory = self._open_memory
        if memory is None:
            return
        memory.control.stop()
        try:
            if self._supervisor is not None:
                self._supervisor.close()
        finally:
            self._supervisor = self._open_memory = None
            memory.close()

    def _publish(self, store: int, version: int, encoded: Encoded) -> None:
        parts = [part for _, part in encoded.parts]
        self._memory.stores[store].publish(encoded.header, parts, version=version)
        if store == FULL_PRECISION:
            # After the weights: a process that reads it finds them.
            self._memory.control.learner_version = version

    def take(self, count: int, *, timeout: float) -> Batch | None:
        """See :meth:`Engine.take`."""
        running = self._running
        batch = self._memory.ring.take(count, timeout=timeout, stop=lambda: bool(running.failure))
        if batch is None and running.failure:
            raise EngineError(running.failure)
        return batch

    def waiting(self) -> int:
        """See :meth:`Engine.waiting`."""
        return self._memory.ring.ready()

    def sampled(self, count: int) -> None:
        """See :meth:`Engine.sampled`."""
        self._memory.control.samples += count

    def counters(self, names: Sequence[str] = COUNTERS) -> dict[str, int]:
        """See :meth:`Engine.counters`."""
        return {name: self._memory.control.total(name) for name in names}

    def pulled(self) -> Sequence[int]:
        """See :meth:`Engine.pulled`."""
        return [worker.counter(PULLED) - 1 for worker in self._workers]

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        latest = self._memory.stores[COMPRESSED].pull_if_newer()
        return None if latest is None else decode(latest.header, latest.payload.copy())

    def messages(self) -> Messages:
        """See :meth:`Engine.messages`."""
        messages = self._running.messages()
        if self._running.failure and not self.waiting():
            raise EngineError(self._running.failure)
        return messages
