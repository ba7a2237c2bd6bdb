"""Links of local processes: shared memory for weights and trajectories, a pipe for small messages.

And what child processes run with them; so nothing heavy is imported here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from vinoreward.actor_learner.acting.actor import Actor, ActorConfig
from vinoreward.actor_learner.compressor import Compressor, CompressorConfig
from vinoreward.actor_learner.config import SamplesPerInsert
from vinoreward.actor_learner.engines.local.processes import reporting, send
from vinoreward.actor_learner.transport.link import (
    LONGEST_PUSH,
    OBSERVATIONS,
    SETTINGS,
    ActorLink,
    CompressorLink,
    Link,
    Weights,
)
from vinoreward.actor_learner.transport.shared_memory import (
    ControlBlock,
    ControlSpec,
    aligned,
    wait_until,
)
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION, Trajectory
from vinoreward.actor_learner.transport.trajectory_ring import RingSpec, TrajectoryRing
from vinoreward.actor_learner.transport.weight_store import WeightStore, WeightStoreSpec
from vinoreward.errors import ConfigError
from vinoreward.policies.backends.base import BackendOutputs
from vinoreward.policies.policy import Policy
from vinoreward.policies.wire import encode

BEAT_EVERY = 0.1
"""Seconds between two signs of life of a compressor at work."""
PULLED = "pulled"
"""Counter: the newest version of any network that a process has pulled, plus 1."""


@dataclass(frozen=True)
class Shared:
    """What processes need to attach to the shared memory: plain data."""

    control: ControlSpec
    stores: Mapping[int, WeightStoreSpec]  # by number
    ring: RingSpec

    def readers(self, process: int) -> dict[int, int]:
        """Return the number that a process has as a reader of each store that it reads."""
        if process < self.ring.actors:
            return dict.fromkeys((FULL_PRECISION, COMPRESSED, SETTINGS), process)
        return {FULL_PRECISION: process, SETTINGS: process, OBSERVATIONS: 0}


class _LocalLink(Link):
    """What actors and compressor have in common."""

    def __init__(self, shared: Shared, process: int, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe
        self._control = ControlBlock.attach(shared.control)
        self._stores = {
            store: WeightStore.attach(shared.stores[store], reader)
            for store, reader in shared.readers(process).items()
        }

    @property
    def stopped(self) -> bool:
        self._control.beat(self._process)
        return self._control.stopped

    def report(self, kind: str, value: Any) -> None:
        send(self._pipe, kind, value)

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        opened = self._stores[store]
        if wait:
            lease = opened.wait_newer(have, stop=lambda: self.stopped)
        else:
            lease = opened.pull_if_newer(have)
        if lease is None:
            return None
        if store in (FULL_PRECISION, COMPRESSED):
            # Not read from the lease: that may be stored and then replaced by a newer one.
            had = self._control.count(self._process, PULLED)
            self._control.add(self._process, PULLED, max(0, lease.version + 1 - had))
        return Weights(lease.header, lease.writable_payload, lease.version)


class _LocalActorLink(_LocalLink, ActorLink):
    def __init__(
        self, shared: Shared, actor: int, pipe: Connection, limiter: SamplesPerInsert | None
    ) -> None:
        super().__init__(shared, actor, pipe)
        self._limiter = limiter
        self.ring = TrajectoryRing.attach(shared.ring, actor)

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

    def begin(self) -> Trajectory | None:
        if not wait_until(self._may_insert, stop=lambda: self.stopped):
            return None
        return self.ring.acquire(stop=lambda: self.stopped)

    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        self.ring.commit()
        if episodes:
            self.report("episodes", episodes)
        for name, value in counts.items():
            self._control.add(self._process, name, value)


class _LocalCompressorLink(_LocalLink, CompressorLink):
    def __init__(self, shared: Shared, process: int, pipe: Connection) -> None:
        super().__init__(shared, process, pipe)
        self._out = WeightStore.attach(shared.stores[COMPRESSED])
        self._looked = time.monotonic()
        threading.Thread(target=self._beat, name="vinoreward signs of life", daemon=True).start()

    def _beat(self) -> None:
        while not self._control.stopped:
            if time.monotonic() - self._looked < LONGEST_PUSH:
                self._control.beat(self._process)
            time.sleep(BEAT_EVERY)

    @property
    def stopped(self) -> bool:
        self._looked = time.monotonic()
        return super().stopped

    def publish(self, policy: Policy) -> None:
        if policy.version <= self._out.latest_version:
            return  # published by a compressor that died after that
        encoded = encode(policy, packed=False)  # actors read it where it lies
        size, room = aligned(len(encoded.header)) + encoded.size, self._out.spec.capacity
        if size > room:
            raise ConfigError(
                f"the compressed policy of version {policy.version} takes {size} bytes. Expected "
                f"at most {room}, which follows from the stages: the one whose networks are larger "
                "than what it is given has to return the largest from its method largest(spec)."
            )
        self._out.publish(
            encoded.header, [part for _, part in encoded.parts], version=policy.version
        )


def run_actor(
    config: ActorConfig,
    shared: Shared,
    limiter: SamplesPerInsert | None,
    number: int,
    generation: int,
    pipe: Connection,
) -> None:
    """Run one actor in a child process until training is over."""
    with reporting(pipe):
        link = _LocalActorLink(shared, number, pipe, limiter)
        Actor(config, link, number, generation, link.ring.committed).run()


def run_compressor(
    config: CompressorConfig, shared: Shared, process: int, batch: int, pipe: Connection
) -> None:
    """Run the compressor in a child process until training is over."""
    with reporting(pipe):
        link = _LocalCompressorLink(shared, process, pipe)
        with BackendOutputs(batch) as outputs:
            Compressor(config, link, batch, outputs).run()
