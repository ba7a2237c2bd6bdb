"""The engine of one machine: spawned processes that share memory, and pipes for small messages.

Child processes import this module, so nothing heavy is imported here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.engines.base import (
    LOOK_EVERY,
    Called,
    not_running,
)
from vinoreward_actors.actor_learner.engines.processes import SIGN_EVERY, Child, reporting, send
from vinoreward_actors.actor_learner.engines.workers import (
    SAVE_PATIENCE,
    Ended,
    Observations,
    Worker,
    WorkerEngine,
)
from vinoreward_actors.actor_learner.transport.link import ActorSettings, Link, Weights
from vinoreward_actors.actor_learner.transport.memory import SharedMemory, aligned
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Trajectory,
)
from vinoreward_actors.actor_learner.transport.weight_store import WeightStore
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Encoded, encode

BLOB_ROOM = 1 << 20
"""Bytes of a compressed policy beyond those of its weights in full precision; a compiled INT8 form
needs about half of them."""
END_PATIENCE = 3.0
"""Seconds that actors have to end by themselves."""
NO_GUARD = (
    "nothing: see what it wrote to the terminal. A script that starts a training needs its code "
    'below `if __name__ == "__main__":`, as processes that are started import it.'
)
"""The report of a process that Python could not start."""


@dataclass(frozen=True)
class Shared:
    """The memory that processes share; an argument of each of them."""

    stores: Mapping[int, WeightStore]  # by network
    trajectories: SharedMemory  # the slots of all actors, in order
    observations: SharedMemory | None  # for the compressor; written while it is idle

    def slot(self, config: EngineConfig, index: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a trajectory."""
        size = config.trajectory.nbytes
        return self.trajectories.array(index * size, (size,), np.uint8)


@dataclass(frozen=True)
class Order:
    """What the learner asks a process for."""

    settings: ActorSettings
    slot: int = 0  # of an actor's trajectory
    rows: tuple[tuple[int, ...], str] | None = None  # shape and dtype of new observations


# In a child process


class LocalLink(Link):
    """The link of a child process; a thread of its own reads the learner's orders."""

    def __init__(
        self,
        config: EngineConfig,
        shared: Shared,
        number: int,
        generation: int,
        orders: Connection,
        pipe: Connection,
    ) -> None:
        super().__init__(config.trajectory, number, generation)
        self._config, self._shared, self._pipe = config, shared, pipe
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._over = False
        self._signed = 0.0
        self._slot = 0
        threading.Thread(target=self._listen, args=(orders,), daemon=True).start()

    def _listen(self, orders: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._orders.put(orders.recv())
        # The learner has closed its end, or has died.
        self._over = True
        self._orders.put(None)

    def next(self) -> bool:
        """Wait for the next order and take its settings; False if there is none any more."""
        order = self._orders.get()
        if order is None:
            return False
        self.settings, self._slot = order.settings, order.slot
        memory = self._shared.observations
        if order.rows is not None and memory is not None:
            self.observations = memory.array(0, *order.rows).copy()
        return True

    @property
    def stopped(self) -> bool:  # type: ignore[override]
        """See :class:`Link`."""
        if time.monotonic() - self._signed > SIGN_EVERY:
            self.report("alive", None)
        return self._over

    def report(self, kind: str, value: Any) -> None:
        """See :meth:`Link.report`."""
        self._signed = time.monotonic()
        send(self._pipe, kind, value)

    @property
    def learner_version(self) -> int:
        """See :attr:`Link.learner_version`."""
        return self._shared.stores[FULL_PRECISION].latest_version

    def pull(self, network: int, have: int) -> Weights | None:
        """See :meth:`Link.pull`."""
        return self._shared.stores[network].pull_if_newer(have)

    def resetting(self, begins: bool) -> None:
        """See :meth:`Link.resetting`."""
        self.report("resetting", begins)

    def room(self) -> npt.NDArray[np.uint8]:
        """See :meth:`Link.room`."""
        return self._shared.slot(self._config, self._slot)

    def publish(self, policy: Policy) -> None:
        """See :meth:`Link.publish`."""
        out = self._shared.stores[COMPRESSED]
        if policy.version <= out.latest_version:
            return  # published by a compressor that died after that
        encoded = encode(policy, packed=False)  # actors read it where it lies
        size, room = aligned(len(encoded.header)) + encoded.size, out.capacity
        if size > room:
            raise ConfigError(
                f"the compressed policy of version {policy.version} takes {size} bytes. Expected "
                f"at most {room}, which follows from the stages: the one whose networks are larger "
                "than what it is given has to return the largest from its method largest(spec)."
            )
        out.publish(encoded.header, [part for _, part in encoded.parts], version=policy.version)


def run_process(
    config: EngineConfig,
    shared: Shared,
    number: int,
    generation: int,
    orders: Connection,
    pipe: Connection,
) -> None:
    """Run an actor or the compressor in a child process until the learner closes ``orders``."""
    with reporting(pipe):
        link = LocalLink(config, shared, number, generation, orders, pipe)
        with Called(config, link, number, generation) as process:
            link.report("begun", None)
            acts = config.chain is None
            while link.next():
                done = process.call()
                if acts and not done:  # stopped in the middle
                    break
                link.report(*(("filled", link.counts) if acts else ("compressed", done)))


# In the learner's process


def _room(policy: Policy, bits: int = 32) -> int:
    """Return the bytes of a network in full precision, with a header for so many bits."""
    # Full precision in any case: a resumed run may change the bits.
    header = encode(policy, bits=bits).header
    return WeightStore.capacity_for(header, [part for _, part in encode(policy).parts])


class LocalWorker(Worker):
    """An actor, or the compressor, as a child process."""

    def __init__(self, name: str, number: int, config: EngineConfig, shared: Shared) -> None:
        super().__init__(name, number, config)
        self._shared = shared
        self.child = Child(name, run_process)
        self._orders: Connection | None = None
        count = config.slots_per_actor
        self._free = list(range(number * count, (number + 1) * count)) if self.acts else []
        self._asked: deque[int] = deque()
        """Slots of the calls under way."""
        self._held: list[tuple[Trajectory, int]] = []
        """Trajectories that the learner has, and their slots."""
        self._given: Observations | None = None

    def start(self) -> None:
        """See :meth:`Worker.start`."""
        config = self._config
        if self.acts:  # without the chain, which may import torch
            config = replace(config, chain=None)
        theirs, self._orders = get_context("spawn").Pipe(duplex=False)
        with theirs:
            self.child.start(config, self._shared, self.number, self.generation, theirs)

    def call(self, settings: ActorSettings, observations: Observations | None) -> None:
        """See :meth:`Worker.call`."""
        if self.acts:
            self._asked.append(self._free.pop())
            self._send(Order(settings, self._asked[-1]))
            return
        rows, memory = None, self._shared.observations
        if observations is not None and observations is not self._given and memory is not None:
            # The compressor is idle: it copies them when it is called.
            memory.array(0, observations.shape, observations.dtype)[...] = observations
            rows, self._given = (observations.shape, observations.dtype.name), observations
        self._send(Order(settings, rows=rows))

    def _send(self, order: Order) -> None:
        if self._orders is not None:
            with contextlib.suppress(OSError):  # it is dead, as the next look finds
                self._orders.send(order)

    def messages(self) -> list[tuple[str, Any]]:
        """See :meth:`Worker.messages`."""
        # Before reading its messages: the last ones are there once it is gone.
        alive, found = self.child.alive, []
        for kind, value in self.child.messages():
            self.begun = self.begun or kind == "begun"
            found.append((kind, self._filled(value) if kind == "filled" else value))
        if not alive:
            ended = self.child.ended()
            if not self.begun and ended.why == "ended with status 1":
                ended = Ended(ended.why, NO_GUARD)
            found.append(("ended", ended))
        return found

    def _filled(self, counts: Mapping[str, int]) -> tuple[Mapping[str, int], Trajectory]:
        slot = self._asked.popleft()
        buffer = self._shared.slot(self._config, slot)
        buffer.flags.writeable = False
        trajectory = self._config.trajectory.view(buffer, self.number, self.generation)
        self._held.append((trajectory, slot))
        return counts, trajectory

    def release(self, trajectory: Trajectory) -> None:
        """See :meth:`Worker.release`."""
        super().release(trajectory)
        self._free += [slot for held, slot in self._held if held is trajectory]
        self._held = [each for each in self._held if each[0] is not trajectory]

    def stop(self) -> None:
        """Ask the process to end: an actor at its next step, the compressor after its calls."""
        if self._orders is not None:
            self._orders.close()
            self._orders = None

    def ending(self) -> bool:
        """Return whether the process, which was asked to, may still end by itself."""
        # Messages are read to the end: a process that cannot send does not end.
        self.child.messages()
        return self.begun and self.child.alive

    def end(self) -> bool:
        """See :meth:`Worker.end`."""
        self.stop()
        if not self.child.end():
            return False
        self._free += self._asked
        self._asked.clear()
        self._given = None
        return True


class LocalEngine(WorkerEngine[LocalWorker]):
    """Runs actors and compressor as processes of this machine; see :class:`Engine`."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.ahead = config.slots_per_actor
        self._opened: Shared | None = None
        self._close_memory: Callable[[], object] = lambda: None

    @property
    def _shared(self) -> Shared:
        if self._opened is None:
            raise not_running()
        return self._opened

    def _open(self, policy: Policy) -> None:
        config = self._config
        full, compressed, rows = _room(policy, config.run.bits), 0, 0
        if config.chain is not None and self._observations is not None:
            spec = config.chain.largest(policy.spec)
            shapes = spec.parameter_shapes()
            zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            compressed = max(full, _room(Policy(spec, zeros))) + BLOB_ROOM
            rows = config.observations * self._observations[0].nbytes
        slots = config.run.actors * config.slots_per_actor
        with contextlib.ExitStack() as opened:  # all of the memory or, on an error, none
            add = opened.enter_context
            self._opened = Shared(
                {FULL_PRECISION: add(WeightStore(full)), COMPRESSED: add(WeightStore(compressed))},
                add(SharedMemory.create(slots * config.trajectory.nbytes)),
                add(SharedMemory.create(rows)) if rows else None,
            )
            self._close_memory = opened.pop_all().close
        for number, name in enumerate(config.process_names()):
            self._workers.append(LocalWorker(name, number, config, self._opened))

    def _wait(self, workers: Sequence[LocalWorker], seconds: float) -> None:
        wait([handle for one in workers for handle in one.child.handles], seconds)

    def _publish(self, encoded: Encoded, version: int) -> None:
        parts = [part for _, part in encoded.parts]
        self._shared.stores[FULL_PRECISION].publish(encoded.header, parts, version=version)

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        latest = self._shared.stores[COMPRESSED].pull_if_newer()
        return None if latest is None else replace(latest, payload=latest.payload.copy()).policy()

    def close(self) -> None:
        """See :meth:`Engine.close`: wait for processes, which are asked to stop, then kill them."""
        workers, self._workers, self._opened = self._workers, [], None
        for worker in workers:
            if not worker.acts and worker.begun and self._save_is_due:
                worker.call(self._settings, None)
            worker.stop()
        began = time.monotonic()
        while left := [worker for worker in workers if worker.ending()]:
            saving = not all(worker.acts for worker in left)
            if time.monotonic() - began > (SAVE_PATIENCE if saving else END_PATIENCE):
                break
            self._wait(left, LOOK_EVERY)
        for worker in workers:
            worker.end()
        self._close_memory()
