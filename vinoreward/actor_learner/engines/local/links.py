"""Links of local processes: shared memory for weights and experience, a pipe for small things."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.engines.local.messages import send
from vinoreward.actor_learner.limiter import SamplesPerInsert
from vinoreward.actor_learner.transport.actor_settings import ActorSettings
from vinoreward.actor_learner.transport.control_block import ControlBlock, ControlSpec
from vinoreward.actor_learner.transport.lease import WeightStoreSpec
from vinoreward.actor_learner.transport.link import (
    LONGEST_PUSH,
    NONE,
    ActorLink,
    CompressorLink,
    Link,
    Weights,
)
from vinoreward.actor_learner.transport.ring_handles import WriteSlot
from vinoreward.actor_learner.transport.ring_slots import NEXT_SEQUENCE, RingSpec
from vinoreward.actor_learner.transport.segments import aligned
from vinoreward.actor_learner.transport.sync import wait_until
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, Trajectory
from vinoreward.actor_learner.transport.trajectory_ring import TrajectoryRing
from vinoreward.actor_learner.transport.weight_store import WeightStore
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Policy
from vinoreward.policies.wire import encode

BEAT_EVERY = 0.1
"""Seconds between two signs of life of a compressor that works."""
PULLED = "pulled"
"""Counter: the newest version of any network that a process has had, plus 1."""


@dataclass(frozen=True)
class Shared:
    """Where everything that processes share lies: plain data.

    Attributes:
        control: heartbeats, counters, stop.
        full: the learner's weights.
        compressed: the compressor's.
        settings: JSON, no arrays.
        observations: for the compressor.
        ring: trajectories.
    """

    control: ControlSpec
    full: WeightStoreSpec
    compressed: WeightStoreSpec
    settings: WeightStoreSpec
    observations: WeightStoreSpec
    ring: RingSpec


class _LocalLink(Link):
    """What both kinds have in common.

    Args:
        shared: where everything lies.
        process: number of this process in the control block, and of its leases.
        pipe: to the learner's process.
    """

    def __init__(self, shared: Shared, process: int, pipe: Connection) -> None:
        self._process = process
        self._pipe = pipe
        self._control = ControlBlock.attach(shared.control)
        self._orders_store = WeightStore.attach(shared.settings, process)
        self._settings = (NONE, ActorSettings())
        self._stores = {0: WeightStore.attach(shared.full, process)}

    @property
    def stopped(self) -> bool:
        """See :attr:`Link.stopped`."""
        self._control.beat(self._process)
        return self._control.stopped

    def settings(self) -> ActorSettings:
        """See :meth:`Link.settings`."""
        lease = self._orders_store.pull_if_newer(self._settings[0])
        if lease is not None:
            with lease:
                self._settings = (lease.version, ActorSettings.from_json(lease.header))
        return self._settings[1]

    def report(self, kind: str, value: Any) -> None:
        """See :meth:`Link.report`: JSON, so that what is read is only data."""
        send(self._pipe, kind, value)

    def pull(self, network: int, have: int, *, wait: bool = False) -> Weights | None:
        """See :meth:`Link.pull`; counts what came as pulled."""
        store = self._stores[network]
        if wait:
            lease = store.wait_newer(have, stop=lambda: self.stopped)
        else:
            lease = store.pull_if_newer(have)
        if lease is None:
            return None
        # Not the lease's word: that may be written and then taken back for a newer one.
        had = self._control.count(self._process, PULLED)
        self._control.add(self._process, PULLED, max(0, lease.version + 1 - had))
        return Weights(lease.header, lease.writable_payload, lease.version)


class LocalActorLink(_LocalLink, ActorLink):
    """An actor's; see :class:`ActorLink`.

    Args:
        shared: where everything lies.
        actor: its number.
        pipe: to the learner's process.
        limiter: samples per insert, if limited.
    """

    def __init__(
        self, shared: Shared, actor: int, pipe: Connection, limiter: SamplesPerInsert | None
    ) -> None:
        super().__init__(shared, actor, pipe)
        self._stores[COMPRESSED] = WeightStore.attach(shared.compressed, actor)
        self._ring = TrajectoryRing.attach(shared.ring, actor)
        self._limiter = limiter
        self._slot: WriteSlot | None = None

    @property
    def rollouts(self) -> int:
        """Trajectories that this actor and those before it have handed over."""
        return self._ring.words[self._ring.actor_line(self._process) + NEXT_SEQUENCE]

    @property
    def learner_version(self) -> int:
        """See :attr:`ActorLink.learner_version`."""
        return self._control.learner_version

    def _may_insert(self) -> bool:
        if self._limiter is None:
            return True
        # As if all actors began now: what others have begun is not counted yet.
        return self._limiter.can_insert(
            self._control.total("steps"), self._control.samples, self._limiter.insert_size
        )

    def begin(self) -> Trajectory | None:
        """See :meth:`ActorLink.begin`."""
        if not self._may_insert() and not wait_until(self._may_insert, stop=lambda: self.stopped):
            return None
        self._slot = self._ring.acquire(stop=lambda: self.stopped)
        return None if self._slot is None else self._slot.trajectory

    def commit(self) -> None:
        """See :meth:`ActorLink.commit`."""
        if self._slot is not None:
            self._slot.commit()
            self._slot = None

    def count(self, counts: Mapping[str, int]) -> None:
        """See :meth:`ActorLink.count`."""
        for name, value in counts.items():
            self._control.add(self._process, name, value)


class LocalCompressorLink(_LocalLink, CompressorLink):
    """The compressor's; see :class:`CompressorLink`.

    Args:
        shared: where everything lies.
        process: its number in the control block.
        pipe: to the learner's process.
    """

    def __init__(self, shared: Shared, process: int, pipe: Connection) -> None:
        super().__init__(shared, process, pipe)
        self._out = WeightStore.attach(shared.compressed)
        self._observations_store = WeightStore.attach(shared.observations, 0)
        self._looked = time.monotonic()
        threading.Thread(target=self._beat, name="vinoreward signs of life", daemon=True).start()

    def _beat(self) -> None:
        while not self._control.stopped:
            if time.monotonic() - self._looked < LONGEST_PUSH:
                self._control.beat(self._process)
            time.sleep(BEAT_EVERY)

    @property
    def stopped(self) -> bool:
        """See :attr:`Link.stopped`."""
        self._looked = time.monotonic()
        return super().stopped

    def observations(self) -> npt.NDArray[np.generic] | None:
        """See :meth:`CompressorLink.observations`."""
        lease = self._observations_store.pull_if_newer(NONE)
        if lease is None:
            return None
        with lease:
            about = json.loads(lease.header)
            found: npt.NDArray[np.generic]
            found = lease.payload.view(about["dtype"]).reshape(about["shape"]).copy()
        return found

    def publish(self, policy: Policy) -> None:
        """See :meth:`CompressorLink.publish`."""
        if policy.version <= self._out.latest_version:
            return  # made already, by a compressor that died after that
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
