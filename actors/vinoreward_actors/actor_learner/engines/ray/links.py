"""What runs in a process on Ray: the loop of an actor or of the compressor, and its link.

The loop has a thread; the process's event loop answers the learner meanwhile. Weights and settings
come from the state actor, trajectories go to the learner on request. A trajectory's arrays,
counters and episodes travel in one message, so that all of it arrives, or none. An actor's process
does not import torch.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from vinoreward_actors.actor_learner.acting.actor import Actor, ActorConfig
from vinoreward_actors.actor_learner.compressor import Compressor, CompressorConfig
from vinoreward_actors.actor_learner.engines.ray.exchange import (
    Identity,
    Published,
    Query,
    Reply,
    version_of,
)
from vinoreward_actors.actor_learner.engines.supervisor import error_report
from vinoreward_actors.actor_learner.transport.link import (
    LONGEST_PUSH,
    NONE,
    SETTINGS,
    ActorLink,
    CompressorLink,
    Link,
    Weights,
)
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Trajectory,
    TrajectorySpec,
)
from vinoreward_actors.policies.backends.base import BackendOutputs
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Bytes, encode

Message = tuple[bytes, "Bytes | None"]
"""JSON, and the bytes of a trajectory if there is one."""
_LOOK_EVERY = 0.05
PATIENCE = 0.25
"""Seconds that a request for newer weights waits before it is repeated."""


class _RayLink(Link):
    def __init__(self, identity: Identity, process: RayProcess) -> None:
        self._identity = identity
        self._state = identity.state
        self._process = process
        self._reports: list[tuple[str, Any]] = []
        self._sent = 0
        self._beats = 0
        self._looked = time.monotonic()
        self._pulled = NONE
        self._lock = threading.Lock()
        self._latest = Reply("", False, NONE, None)
        """All that the state actor has replied so far."""
        while self._latest.settings is None and not self._latest.stopped:
            self._sync(PATIENCE)  # no process acts without settings
        threading.Thread(target=self._talk, name="vinoreward signs of life", daemon=True).start()

    @property
    def _query(self) -> Query:
        me = self._identity
        return Query(me.process, me.generation, self._pulled, version_of(self._latest.settings))

    def _note(self, reply: Reply) -> None:
        with self._lock:  # replies come in two threads
            before = self._latest
            self._latest = Reply(
                reply.born,
                before.stopped or reply.stopped,
                max(before.learner_version, reply.learner_version),
                max(before.settings, reply.settings, key=version_of),
            )
        if before.born not in ("", reply.born):
            self._publish_again()

    def _publish_again(self) -> None:
        """Publish to a state actor that started anew what this process had published."""

    def _sync(self, patience: float) -> None:
        version = self._latest.learner_version if self._identity.exact else None
        self._note(ray.get(self._state.sync.remote(self._query, self._sign(), version, patience)))

    def _sign(self) -> int:
        """Return a number that changes unless this process hangs."""
        return self._beats

    def _talk(self) -> None:
        """Send signs of life and receive new settings, until training is over."""
        while not self._latest.stopped:
            try:
                self._sync(self._identity.beat)
            except RayError:  # the state actor is gone for good: so is the learner
                self._note(self._latest._replace(stopped=True))

    @property
    def stopped(self) -> bool:
        self._beats += 1
        self._looked = time.monotonic()
        return self._latest.stopped

    def report(self, kind: str, value: Any) -> None:
        self._reports.append((kind, value))

    def _send(self, about: Mapping[str, Any], buffer: Bytes | None = None) -> None:
        reports, self._reports = self._reports, []
        told = {**about, "number": self._sent, "reports": reports}
        self._sent += 1
        self._process.put((json.dumps(told).encode(), buffer))

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        if store == SETTINGS:
            newest = self._latest.settings
            if newest is None or newest.version <= have:
                return None
            return Weights(newest.header, np.empty(0, np.uint8), newest.version)
        while True:
            patience = PATIENCE if wait else 0.0
            pulled = self._state.pull.remote(self._query, store, have, patience)
            reply, latest = ray.get(pulled)
            self._note(reply)
            payload = None if latest is None else latest.fetch()
            if latest is not None and payload is not None:
                if store in (FULL_PRECISION, COMPRESSED):
                    self._pulled = max(self._pulled, latest.version)
                return Weights(latest.header, payload, latest.version)
            if not wait or self.stopped:
                return None
            if latest is not None:
                time.sleep(PATIENCE)  # lost, until it is published again


class _RayActorLink(_RayLink, ActorLink):
    """The link of an actor. The learner limits it by the number of its requests."""

    def __init__(self, identity: Identity, process: RayProcess, trajectory: TrajectorySpec) -> None:
        super().__init__(identity, process)
        self._spec = trajectory
        self._buffer: Bytes | None = None
        self._counters: Counter[str] = Counter()

    @property
    def learner_version(self) -> int:
        return self._latest.learner_version

    def begin(self) -> Trajectory | None:
        if not self._process.wait_asked(lambda: self.stopped):
            return None
        self._buffer = np.zeros(self._spec.nbytes, dtype=np.uint8)
        return self._spec.view(self._buffer, self._identity.process)

    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        self._spec.check(self._spec.view(buffer, self._identity.process))
        if episodes:
            self.report("episodes", episodes)
        self._counters.update(counts)
        # Totals, not increments: a lost message loses no counts.
        self._send({"counters": self._counters}, buffer)


class RayCompressorLink(_RayLink, CompressorLink):
    """The link of the compressor."""

    def __init__(self, identity: Identity, process: RayProcess) -> None:
        self._published: Published | None = None
        super().__init__(identity, process)

    def _sign(self) -> int:
        if time.monotonic() - self._looked < LONGEST_PUSH:
            self._beats += 1
        return self._beats

    def report(self, kind: str, value: Any) -> None:
        """Send a message at once: it belongs to no trajectory."""
        super().report(kind, value)
        self._send({})

    def publish(self, policy: Policy) -> None:
        """See :meth:`CompressorLink.publish`."""
        encoded = encode(policy)
        # If the state actor is lost, no other process has it, and with a fixed lag all wait.
        self._published = Published.of(policy.version, encoded.header, encoded.payload())
        self._publish_again()

    def _publish_again(self) -> None:
        # In either thread: the state keeps the newest, and the same twice does no harm.
        if self._published is not None:
            ray.get(self._state.publish.remote(COMPRESSED, self._published))


def run_actor(
    process: RayProcess, identity: Identity, config: ActorConfig, trajectory: TrajectorySpec
) -> None:
    """Run one actor until training is over."""
    link = _RayActorLink(identity, process, trajectory)
    Actor(config, link, identity.process, identity.generation, identity.rollouts).run()


def run_compressor(
    process: RayProcess, identity: Identity, config: Sequence[Any], batch: int
) -> None:
    """Run the compressor until training is over; ``config`` has one reference, to its settings."""
    link = RayCompressorLink(identity, process)
    compressor: CompressorConfig = ray.get(config[0])
    with BackendOutputs(batch) as outputs:
        Compressor(compressor, link, batch, outputs).run()


class RayProcess:
    """Runs a loop in a thread, and answers the learner with the loop's messages.

    ``paths`` is the learner's ``sys.path``. Folders that this process lacks are searched last, so
    that it finds an environment beside the user's script on a shared file system.
    """

    def __init__(self, paths: Sequence[str], run: Callable[..., None], *arguments: Any) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        self._run, self._arguments = run, arguments
        self._asked = threading.Semaphore(0)
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._report = ""

    async def placed(self) -> None:
        """Start the loop, as soon as there is a process for it."""
        self._answering = asyncio.get_running_loop()
        threading.Thread(target=self._work, name="vinoreward loop", daemon=True).start()

    async def next(self) -> Message:
        """Return the loop's next message, in the order of asking."""
        self._asked.release()
        return await self._messages.get()

    async def ended(self) -> str:
        """Wait for the end of the loop; return its error report, empty if it had none."""
        await self._ended.wait()
        return self._report

    # In the loop's thread

    def _work(self) -> None:
        try:
            self._run(self, *self._arguments)
        except BaseException as error:  # noqa: BLE001  (nothing is swallowed: the learner gets it)
            self._report = error_report(error)
        self._answering.call_soon_threadsafe(self._ended.set)

    def wait_asked(self, stop: Callable[[], bool]) -> bool:
        """Wait until the learner asks for one message more; False as soon as ``stop()``."""
        while not self._asked.acquire(timeout=_LOOK_EVERY):
            if stop():
                return False
        return True

    def put(self, message: Message) -> None:
        """Send a message to the learner, or keep it until the learner asks."""
        self._answering.call_soon_threadsafe(self._messages.put_nowait, message)
