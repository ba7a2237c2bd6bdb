"""What runs in a process on Ray: the loop of an actor or of the compressor, and its link.

The loop has a thread; the process's event loop answers the learner meanwhile. Weights and settings
come from the state actor, experience is handed over on request. Everything that belongs to a
trajectory (its arrays, the counters, the episodes that ended in it) travels in one message, so that
all of it arrives, or none. torch is not imported by an actor's process.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from vinoreward.actor_learner.acting.actor import Actor, ActorConfig
from vinoreward.actor_learner.compressor import Compressor, CompressorConfig
from vinoreward.actor_learner.engines.ray.requests import Message, MessageQueue, trajectory_in
from vinoreward.actor_learner.engines.ray.state import Identity, Known, Published, Pulled, Told
from vinoreward.actor_learner.engines.supervisor import error_report
from vinoreward.actor_learner.transport.link import (
    LONGEST_PUSH,
    NONE,
    SETTINGS,
    ActorLink,
    CompressorLink,
    Link,
    Weights,
)
from vinoreward.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Trajectory,
    TrajectorySpec,
)
from vinoreward.policies.backends.base import BackendOutputs
from vinoreward.policies.policy import Policy
from vinoreward.policies.wire import Bytes, encode

PATIENCE = 0.25
"""Seconds that a question for newer weights waits before it is asked again."""


class _RayLink(Link):
    """What both kinds have in common.

    Args:
        identity: of this process.
        messages: what the learner asks for.
    """

    def __init__(self, identity: Identity, messages: MessageQueue) -> None:
        self._identity = identity
        self._state = identity.state
        self._messages = messages
        self._reports: list[tuple[str, Any]] = []
        self._beats = 0
        self._looked = time.monotonic()
        self._pulled = NONE
        self._lock = threading.Lock()
        self._learner_version = NONE
        self._newest: Published | None = None
        """Settings that were told."""
        self._stopped = False
        self._born = ""
        while self._newest is None and not self._stopped:
            self._sync(PATIENCE)  # nobody acts without settings
        threading.Thread(target=self._talk, name="vinoreward signs of life", daemon=True).start()

    @property
    def _known(self) -> Known:
        me = self._identity
        settings = NONE if self._newest is None else self._newest.version
        return Known(me.process, me.generation, self._pulled, settings)

    def _take(self, told: Told) -> None:
        with self._lock:
            # Settings first: whoever sees a version finds those that hold for it.
            have = NONE if self._newest is None else self._newest.version
            if told.settings is not None and told.settings.version > have:
                self._newest = told.settings
            self._learner_version = max(self._learner_version, told.learner_version)
            self._stopped = self._stopped or told.stopped
            lost = self._born not in ("", told.born)
            self._born = told.born
        if lost:
            self._publish_again()

    def _publish_again(self) -> None:
        """Give a state that was started anew what this process had published."""

    def _sync(self, patience: float) -> None:
        version = self._learner_version if self._identity.exact else None
        self._take(ray.get(self._state.sync.remote(self._known, self._sign(), version, patience)))

    def _sign(self) -> int:
        """Return a number that is another one as long as this process is not hung."""
        return self._beats

    def _talk(self) -> None:
        """Say how far the loop has got and hear of new settings, until training is over."""
        while not self._stopped:
            try:
                self._sync(self._identity.beat)
            except RayError:
                self._stopped = True  # the state is gone for good: so is the learner

    @property
    def stopped(self) -> bool:
        """See :attr:`Link.stopped`."""
        self._beats += 1
        self._looked = time.monotonic()
        return self._stopped

    def report(self, kind: str, value: Any) -> None:
        """See :meth:`Link.report`."""
        self._reports.append((kind, value))

    def _send(self, about: Mapping[str, Any], buffer: Bytes | None = None) -> None:
        reports, self._reports = self._reports, []
        self._messages.put((json.dumps({**about, "reports": reports}).encode(), buffer))

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        """See :meth:`Link.pull`."""
        if store == SETTINGS:
            newest = self._newest  # told unasked
            if newest is None or newest.version <= have:
                return None
            return Weights(newest.header, np.empty(0, np.uint8), newest.version)
        while True:
            latest = self._pull(store, have, PATIENCE if wait else 0.0)
            payload = None if latest is None else latest.fetch()
            if latest is not None and payload is not None:
                if store in (FULL_PRECISION, COMPRESSED):
                    self._pulled = max(self._pulled, latest.version)
                return Weights(latest.header, payload, latest.version)
            if not wait or self.stopped:
                return None
            if latest is not None:
                time.sleep(PATIENCE)  # lost: until somebody publishes it again

    def _pull(self, store: int, have: int, patience: float) -> Published | None:
        pulled: Pulled = ray.get(self._state.pull.remote(self._known, store, have, patience))
        self._take(pulled.told)
        return pulled.latest


class RayActorLink(_RayLink, ActorLink):
    """An actor's; see :class:`ActorLink`.

    Args:
        identity: of this process.
        messages: what the learner asks for. How often it asks is what limits this actor.
        trajectory: sizes.
    """

    def __init__(
        self, identity: Identity, messages: MessageQueue, trajectory: TrajectorySpec
    ) -> None:
        super().__init__(identity, messages)
        self._spec = trajectory
        self._buffer: Bytes | None = None
        self._sequence = 0
        self._counters: dict[str, int] = {}

    @property
    def learner_version(self) -> int:
        """See :attr:`ActorLink.learner_version`."""
        return self._learner_version

    def begin(self) -> Trajectory | None:
        """See :meth:`ActorLink.begin`."""
        if not self._messages.wait_asked(lambda: self.stopped):
            return None
        self._buffer = np.zeros(self._spec.nbytes, dtype=np.uint8)
        return trajectory_in(self._spec, self._buffer)

    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        """See :meth:`ActorLink.commit`."""
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        self._spec.check(trajectory_in(self._spec, buffer, self._identity.process))
        if episodes:
            self.report("episodes", episodes)
        for name, value in counts.items():
            self._counters[name] = self._counters.get(name, 0) + value
        # Totals, not increments: a message that is lost takes nothing with it.
        self._send({"sequence": self._sequence, "counters": self._counters}, buffer)
        self._sequence += 1


class RayCompressorLink(_RayLink, CompressorLink):
    """The compressor's; see :class:`CompressorLink`."""

    def __init__(self, identity: Identity, messages: MessageQueue) -> None:
        self._published: Published | None = None
        super().__init__(identity, messages)

    def _sign(self) -> int:
        if time.monotonic() - self._looked < LONGEST_PUSH:
            self._beats += 1
        return self._beats

    def report(self, kind: str, value: Any) -> None:
        """See :meth:`Link.report`; at once, there is nothing that it belongs to."""
        super().report(kind, value)
        self._send({})

    def publish(self, policy: Policy) -> None:
        """See :meth:`CompressorLink.publish`."""
        encoded = encode(policy)
        # Kept: nobody else has it when the state is lost, and with a fixed lag all wait for it.
        self._published = Published.of(policy.version, encoded.header, encoded.payload())
        ray.get(self._state.publish.remote(COMPRESSED, self._published))

    def _publish_again(self) -> None:
        # From either thread: the state keeps the newest, and the same twice does no harm.
        if self._published is not None:
            ray.get(self._state.publish.remote(COMPRESSED, self._published))


def run_actor(
    messages: MessageQueue, identity: Identity, config: ActorConfig, trajectory: TrajectorySpec
) -> None:
    """Run one actor until training is over."""
    link = RayActorLink(identity, messages, trajectory)
    Actor(config, link, identity.process, identity.generation, identity.rollouts).run()


def run_compressor(
    messages: MessageQueue, identity: Identity, config: Sequence[Any], batch: int
) -> None:
    """Run the compressor until training is over.

    Args:
        messages: what the learner asks for.
        identity: of this process.
        config: a reference to a CompressorConfig, in a list.
        batch: of the actors' backends.
    """
    link = RayCompressorLink(identity, messages)
    told: CompressorConfig = ray.get(config[0])
    with BackendOutputs(batch) as outputs:
        Compressor(told, link, batch, outputs).run()


class RayProcess:
    """A loop in a thread, and the queue of what it has for the learner.

    Args:
        paths: where the learner's process finds modules. Those that this one lacks are looked at
            last, so that an environment beside the user's script is found on a shared file system.
        run: the loop; its first argument is the queue.
        arguments: the others.
    """

    def __init__(self, paths: Sequence[str], run: Callable[..., None], *arguments: Any) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        self._run, self._arguments = run, arguments
        self._queue: MessageQueue | None = None

    def _messages(self) -> MessageQueue:
        # Ray promises no order between what it is asked first.
        if self._queue is None:
            self._queue = MessageQueue()
        return self._queue

    async def placed(self) -> None:
        """Start the loop, as soon as there is a process to do so."""
        messages = self._messages()

        def work() -> None:
            try:
                self._run(messages, *self._arguments)
            except BaseException as error:  # noqa: BLE001  (nothing is swallowed: told)
                messages.end(error_report(error))
            else:
                messages.end("")

        threading.Thread(target=work, name="vinoreward loop", daemon=True).start()

    async def next(self) -> Message:
        """Return what the loop has next for the learner."""
        return await self._messages().next()

    async def ended(self) -> str:
        """Return the error report of the loop when it ends, empty if it ended by itself."""
        return await self._messages().ended()
