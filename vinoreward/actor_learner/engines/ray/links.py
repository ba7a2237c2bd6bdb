"""Links of processes on Ray: weights and settings from the state actor, experience on request.

Everything that belongs to a trajectory (its arrays, the counters, the episodes that ended in it)
travels in one message, so that all of it arrives, or none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.exceptions import RayError

from vinoreward.actor_learner.engines.ray.message_queue import MessageQueue
from vinoreward.actor_learner.engines.ray.payload import body_of, fetch, trajectory_in
from vinoreward.actor_learner.engines.ray.state import (
    COMPRESSED,
    OBSERVATIONS,
    WEIGHTS,
    Identity,
    Known,
    Published,
    Pulled,
    Told,
)
from vinoreward.actor_learner.transport.actor_settings import ActorSettings
from vinoreward.actor_learner.transport.link import (
    LONGEST_PUSH,
    NONE,
    ActorLink,
    CompressorLink,
    Link,
    Weights,
)
from vinoreward.actor_learner.transport.trajectory import Trajectory, TrajectorySpec
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
        self._settings = (NONE, ActorSettings())
        self._stopped = False
        self._born = ""
        while self._settings[0] == NONE and not self._stopped:
            self._sync(PATIENCE)  # nobody acts without settings
        threading.Thread(target=self._talk, name="vinoreward signs of life", daemon=True).start()

    @property
    def _known(self) -> Known:
        me = self._identity
        return Known(me.process, me.generation, self._pulled, self._settings[0])

    def _take(self, told: Told) -> None:
        with self._lock:
            # Settings first: whoever sees a version finds those that hold for it.
            if told.settings is not None and told.settings.version > self._settings[0]:
                self._settings = (
                    told.settings.version,
                    ActorSettings.from_json(told.settings.header),
                )
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

    def settings(self) -> ActorSettings:
        """See :meth:`Link.settings`."""
        return self._settings[1]

    def report(self, kind: str, value: Any) -> None:
        """See :meth:`Link.report`."""
        self._reports.append((kind, value))

    def _send(self, about: Mapping[str, Any], buffer: Bytes | None = None) -> None:
        reports, self._reports = self._reports, []
        self._messages.put((json.dumps({**about, "reports": reports}).encode(), buffer))

    def pull(self, network: int, have: int, *, wait: bool = False) -> Weights | None:
        """See :meth:`Link.pull`."""
        store = WEIGHTS[network]
        while True:
            latest = self._pull(store, have, PATIENCE if wait else 0.0)
            payload = None if latest is None else fetch(latest)
            if latest is not None and payload is not None:
                self._pulled = max(self._pulled, latest.version)
                return Weights(latest.header, payload, latest.version)
            if not wait or self.stopped:
                return None
            if latest is not None:
                time.sleep(PATIENCE)  # lost: until somebody publishes it again

    def _pull(self, store: str, have: int, patience: float) -> Published | None:
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
        self._done: Bytes | None = None
        self._sequence = 0
        self._counters: dict[str, int] = {}

    @property
    def learner_version(self) -> int:
        """See :attr:`ActorLink.learner_version`."""
        return self._learner_version

    def begin(self) -> Trajectory | None:
        """See :meth:`ActorLink.begin`."""
        self._flush()
        if not self._messages.wait_asked(lambda: self.stopped):
            return None
        self._buffer = np.zeros(self._spec.nbytes, dtype=np.uint8)
        return trajectory_in(self._spec, self._buffer)

    def commit(self) -> None:
        """See :meth:`ActorLink.commit`. Sent with the counters that follow."""
        if self._buffer is not None:
            self._spec.check(trajectory_in(self._spec, self._buffer, self._identity.process))
            self._done, self._buffer = self._buffer, None

    def count(self, counts: Mapping[str, int]) -> None:
        """See :meth:`ActorLink.count`."""
        for name, value in counts.items():
            self._counters[name] = self._counters.get(name, 0) + value
        self._flush()

    def _flush(self) -> None:
        if self._done is None:
            return
        done, self._done = self._done, None
        # Totals, not increments: a message that is lost takes nothing with it.
        self._send({"sequence": self._sequence, "counters": self._counters}, done)
        self._sequence += 1


class RayCompressorLink(_RayLink, CompressorLink):
    """The compressor's; see :class:`CompressorLink`."""

    def __init__(self, identity: Identity, messages: MessageQueue) -> None:
        self._published: Published | None = None
        self._seen = NONE
        self._rows: npt.NDArray[np.generic] | None = None
        super().__init__(identity, messages)

    def _sign(self) -> int:
        if time.monotonic() - self._looked < LONGEST_PUSH:
            self._beats += 1
        return self._beats

    def report(self, kind: str, value: Any) -> None:
        """See :meth:`Link.report`; at once, there is nothing that it belongs to."""
        super().report(kind, value)
        self._send({})

    def observations(self) -> npt.NDArray[np.generic] | None:
        """See :meth:`CompressorLink.observations`."""
        latest = self._pull(OBSERVATIONS, self._seen, 0.0)
        rows = None if latest is None else fetch(latest)
        if latest is not None and rows is not None:
            about = json.loads(latest.header)
            self._seen = latest.version
            self._rows = rows.view(about["dtype"]).reshape(about["shape"])
        return None if self._rows is None else self._rows.copy()

    def publish(self, policy: Policy) -> None:
        """See :meth:`CompressorLink.publish`."""
        encoded = encode(policy)
        # Kept: nobody else has it when the state is lost, and with a fixed lag all wait for it.
        self._published = Published(policy.version, encoded.header, body_of(encoded.payload()))
        ray.get(self._state.publish.remote(COMPRESSED, self._published))

    def _publish_again(self) -> None:
        # From either thread: the state keeps the newest, and the same twice does no harm.
        if self._published is not None:
            ray.get(self._state.publish.remote(COMPRESSED, self._published))
