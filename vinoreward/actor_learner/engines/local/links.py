"""Links of local processes: shared memory for weights and experience, a pipe for small messages.

Messages are lines of JSON and not the framing of ``Connection.send_bytes``: a child that is stopped
in the middle of a message would then stop whoever waits for the rest of it, and that is the thread
that should notice.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from vinoreward.actor_learner.limiter import SamplesPerInsert
from vinoreward.actor_learner.transport.control_block import ControlBlock, ControlSpec
from vinoreward.actor_learner.transport.link import (
    LONGEST_PUSH,
    OBSERVATIONS,
    SETTINGS,
    ActorLink,
    CompressorLink,
    Link,
    Weights,
)
from vinoreward.actor_learner.transport.ring_slots import NEXT_SEQUENCE, RingSpec
from vinoreward.actor_learner.transport.segments import aligned
from vinoreward.actor_learner.transport.sync import wait_until
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION, Trajectory
from vinoreward.actor_learner.transport.trajectory_ring import TrajectoryRing, WriteSlot
from vinoreward.actor_learner.transport.weight_store import WeightStore, WeightStoreSpec
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Policy
from vinoreward.policies.wire import encode

BEAT_EVERY = 0.1
"""Seconds between two signs of life of a compressor that works."""
PULLED = "pulled"
"""Counter: the newest version of any network that a process has had, plus 1."""
CHUNK = 1 << 16


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


def send(pipe: Connection, kind: str, value: Any) -> None:
    """Write a message; waits while the pipe is full.

    Args:
        pipe: writing end.
        kind: such as ``"episodes"``.
        value: plain data.

    Raises:
        OSError: nobody reads any more.
    """
    data = memoryview(json.dumps({"kind": kind, "value": value}).encode() + b"\n")
    while data:
        data = data[os.write(pipe.fileno(), data) :]


class Inbox:
    """Reads messages; never waits.

    Args:
        pipe: reading end; closed by :meth:`close`, or when there can be no more.
    """

    def __init__(self, pipe: Connection) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe: Connection | None = pipe
        self._rest = b""

    @property
    def pipe(self) -> Connection | None:
        """What to wait for, None when there can be no more."""
        return self._pipe

    def read(self) -> list[dict[str, Any]]:
        """Return the messages that are complete; what a dead child cut off is dropped."""
        while self._pipe is not None:
            try:
                data = os.read(self._pipe.fileno(), CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.close()
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Read no more."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


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
        self._stores = {
            FULL_PRECISION: WeightStore.attach(shared.full, process),
            SETTINGS: WeightStore.attach(shared.settings, process),
        }

    @property
    def stopped(self) -> bool:
        """See :attr:`Link.stopped`."""
        self._control.beat(self._process)
        return self._control.stopped

    def report(self, kind: str, value: Any) -> None:
        """See :meth:`Link.report`: JSON, so that what is read is only data."""
        send(self._pipe, kind, value)

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        """See :meth:`Link.pull`; counts weights as pulled."""
        opened = self._stores[store]
        if wait:
            lease = opened.wait_newer(have, stop=lambda: self.stopped)
        else:
            lease = opened.pull_if_newer(have)
        if lease is None:
            return None
        if store in (FULL_PRECISION, COMPRESSED):
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

    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        """See :meth:`ActorLink.commit`."""
        if self._slot is not None:
            self._slot.commit()
            self._slot = None
        if episodes:
            self.report("episodes", episodes)
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
        self._stores[OBSERVATIONS] = WeightStore.attach(shared.observations, 0)
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
