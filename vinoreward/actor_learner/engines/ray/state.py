"""The state actor of a training on Ray: latest weights and settings, and signs of life.

It holds references and versions, never a queue: whoever publishes replaces the latest, whoever
pulls gets the latest, and a slow process can neither hold back nor lose newer weights. The learner
publishes from a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from dataclasses import dataclass
from typing import Any, NamedTuple

from vinoreward.actor_learner.transport.link import NONE, SETTINGS, STORES
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
from vinoreward.policies.wire import Bytes

INLINE_BYTES = 64 << 10
"""Smaller payloads travel in the answer itself (Ray's own limit is 100 KB), which saves a round
trip."""
FETCH_TIMEOUT = 60.0


@dataclass(frozen=True)
class Identity:
    """Constants of a process."""

    state: Any  # handle of the state actor
    process: int
    generation: int  # number of replacements
    rollouts: int = 0  # trajectories from its predecessors
    beat: float = 0.5  # seconds between two signs of life
    exact: bool = False  # it needs every version of the learner's at once


class Published(NamedTuple):
    """The latest content of a store."""

    version: int  # of the learner for weights, counted up for everything else
    header: bytes  # JSON
    body: Any
    """(bytes,) uint8 if small, which saves a round trip; otherwise a list with one ObjectRef of it,
    as Ray would resolve a reference outside of a list on its way."""

    @classmethod
    def of(cls, version: int, header: bytes, payload: Bytes) -> Published:
        """Put a payload where others can fetch it."""
        if payload.nbytes <= INLINE_BYTES:
            return cls(version, header, payload)
        import ray

        return cls(version, header, [ray.put(payload)])

    def fetch(self) -> Bytes | None:
        """Return the payload, read-only, without a copy if it is on this machine.

        None if it is lost: the process that published it has died.
        """
        body: Any = self.body
        if isinstance(body, list):
            import ray
            from ray.exceptions import RayError

            try:
                body = ray.get(body[0], timeout=FETCH_TIMEOUT)
            except RayError:
                return None
        payload: Bytes = body
        return payload


def version_of(published: Published | None) -> int:
    """Return a version, -1 for nothing."""
    return NONE if published is None else published.version


class Query(NamedTuple):
    """The part of a process's requests that is always the same."""

    process: int
    generation: int
    pulled: int  # newest version of any weights that it has pulled, -1 for none
    settings: int  # version of its settings, -1 for none


class Reply(NamedTuple):
    """The part of the answers to a process that is always the same."""

    born: str
    """Changes when the state actor was lost and starts anew, empty: whoever has published something
    has to do so again."""
    stopped: bool  # training is over, or this process has been replaced
    learner_version: int
    settings: Published | None
    """None if there are no newer ones. Those for the learner's version are there before it is."""


class Look(NamedTuple):
    """State of all processes, for the learner's process."""

    born: str  # see Reply
    compressed: int  # newest compressed version, -1 for none
    generations: tuple[int, ...]  # the latest known ones
    silence: tuple[float, ...]  # seconds since their last signs of life, infinity for never
    pulled: tuple[int, ...]  # newest versions of any weights that they have pulled, -1 for none


@dataclass
class _Signs:
    """Signs of life of a process's latest generation."""

    generation: int = 0
    beats: int = 0
    last_beat: float = -math.inf
    pulled: int = NONE


class State:
    """Runs as one Ray actor; every method is quick, or waits without blocking the others.

    Args:
        processes: actors and compressor, numbered from 0.
    """

    def __init__(self, processes: int) -> None:
        self._born = uuid.uuid4().hex
        self._stores: dict[int, Published] = {}
        self._stopped = False
        self._signs = [_Signs() for _ in range(processes)]
        self._changed = asyncio.Event()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool], patience: float) -> None:
        deadline = time.monotonic() + patience
        while not (condition() or self._stopped):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _newer(self, store: int, have: int) -> Published | None:
        latest = self._stores.get(store)
        return latest if version_of(latest) > have else None

    async def publish(self, store: int, published: Published) -> None:
        """Replace the content of a store, unless it is newer."""
        # The same version may come again, after its object died with the compressor.
        if self._newer(store, published.version) is None:
            self._stores[store] = published
            self._wake()

    async def latest(self, store: int) -> Published | None:
        """Return the latest content of a store, None if there is nothing."""
        return self._stores.get(store)

    def _reply(self, query: Query) -> Reply:
        return Reply(
            self._born,
            self._stopped or self._signs[query.process].generation > query.generation,
            version_of(self._stores.get(FULL_PRECISION)),
            self._newer(SETTINGS, query.settings),
        )

    def _signs_of(self, process: int, generation: int) -> _Signs | None:
        """Return the signs of a process; None if this generation has been replaced."""
        if generation > self._signs[process].generation:
            self._signs[process] = _Signs(generation)
        signs = self._signs[process]
        return signs if generation == signs.generation else None

    def _note(self, query: Query) -> _Signs | None:
        signs = self._signs_of(query.process, query.generation)
        if signs is not None:
            signs.pulled = max(signs.pulled, query.pulled)
        return signs

    async def pull(
        self, query: Query, store: int, have: int, patience: float
    ) -> tuple[Reply, Published | None]:
        """Return what is newer than version ``have``, or None after ``patience`` seconds.

        Args:
            query: who asks.
            store: number.
            have: version in use, -1 for none.
            patience: seconds; 0 to look once.
        """
        await self._until(lambda: self._newer(store, have) is not None, patience)
        latest = self._newer(store, have)
        if latest is not None and store in (FULL_PRECISION, COMPRESSED):
            # A process with the reference has the weights: it keeps them from being freed.
            query = query._replace(pulled=max(query.pulled, latest.version))
        self._note(query)
        return self._reply(query), latest

    async def sync(self, query: Query, beats: int, version: int | None, patience: float) -> Reply:
        """Note a process's sign of life; answer at once if there is news for it.

        Args:
            query: who.
            beats: steps of its loop; if this does not change, the process hangs.
            version: the learner's that it knows; None if it does not need new ones at once.
            patience: seconds after which to answer in any case.
        """
        signs = self._note(query)
        if signs is not None and beats != signs.beats:
            signs.beats, signs.last_beat = beats, time.monotonic()

        def news() -> bool:
            reply = self._reply(query)
            later = version is not None and reply.learner_version > version
            return reply.stopped or later or reply.settings is not None

        await self._until(news, patience)
        return self._reply(query)

    async def replace(self, process: int, generation: int) -> None:
        """Set the latest generation of a process; an older one that still lives ends."""
        self._signs_of(process, generation)
        self._wake()

    async def look(self) -> Look:
        """Return signs of life."""
        now = time.monotonic()
        return Look(
            self._born,
            version_of(self._stores.get(COMPRESSED)),
            tuple(signs.generation for signs in self._signs),
            tuple(now - signs.last_beat for signs in self._signs),
            tuple(signs.pulled for signs in self._signs),
        )

    async def stop(self) -> None:
        """Tell all processes that training is over."""
        self._stopped = True
        self._wake()


# In the learner's process


class Publisher:
    """Publishes from a thread, one store at a time; skips all but the newest of each store.

    Settings and observations go before weights: they apply to what is published after them.

    Args:
        send: puts something into a store of the state actor and waits until it is there.
        failed: called with the reason if it cannot continue.
    """

    def __init__(
        self, send: Callable[[int, Published], None], failed: Callable[[str], None]
    ) -> None:
        self._send, self._failed = send, failed
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[int, bytes, Bytes] | Published] = {}
        self._last: dict[int, Published] = {}
        self._broken = False
        self._thread = ThreadPoolExecutor(1, "vinoreward publisher")

    def publish(self, store: int, version: int, header: bytes, payload: Bytes) -> None:
        """Publish this next; does not wait. The payload must not change any more."""
        with self._lock:
            self._waiting[store] = (version, header, payload)
        self._thread.submit(self._send_next)

    def resend(self) -> None:
        """Publish the last content of every store again, unless something newer waits."""
        with self._lock:
            self._waiting = {**self._last, **self._waiting}
        for _ in STORES:
            self._thread.submit(self._send_next)

    def flush(self, timeout: float) -> bool:
        """Wait until everything has been sent; False after ``timeout`` seconds."""
        try:
            self._thread.submit(lambda: None).result(timeout)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """End the thread; what waits is not sent."""
        self._thread.shutdown(cancel_futures=True)

    def _send_next(self) -> None:
        with self._lock:
            if not self._waiting or self._broken:
                return
            store = min(self._waiting, key=lambda each: each == FULL_PRECISION)
            content = self._waiting.pop(store)
        try:
            if not isinstance(content, Published):
                content = Published.of(*content)
            self._send(store, content)
            self._last[store] = content
        except Exception as error:  # noqa: BLE001  (the learner's thread raises it)
            self._broken = True
            self._failed(f"{STORES[store]} could not be published: {error}")
