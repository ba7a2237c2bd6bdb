"""What processes exchange on Ray: the state actor, and the learner's publisher and requests.

The state actor holds the latest weights and settings, and signs of life. It holds references and
versions, never a queue: whoever publishes replaces the latest, whoever pulls gets the latest, and a
slow process can neither hold back nor lose newer weights.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from vinoreward_actors.actor_learner.transport.link import NONE, SETTINGS, STORES
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Batch,
    Trajectory,
    check_count,
    choose,
)
from vinoreward_actors.policies.wire import Bytes

if TYPE_CHECKING:
    from vinoreward_actors.actor_learner.engines.config import EngineConfig

INLINE_BYTES = 64 << 10
"""Smaller payloads travel in the answer itself, which saves a round trip; Ray's limit is 100 KB."""
FETCH_TIMEOUT = 60.0
STOP_EVERY = 0.1
"""Seconds between two checks whether to stop waiting for trajectories."""


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
    """(bytes,) uint8 if small; else a list with one ObjectRef, as Ray would resolve a reference
    outside of a list on its way."""

    @classmethod
    def of(cls, version: int, header: bytes, payload: Bytes) -> Published:
        """Put a payload where others can fetch it."""
        if payload.nbytes <= INLINE_BYTES:
            return cls(version, header, payload)
        import ray

        return cls(version, header, [ray.put(payload)])

    def fetch(self) -> Bytes | None:
        """Return the payload, read-only; None if it died with the process that published it."""
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
    """The part that all requests of a process have."""

    process: int
    generation: int
    pulled: int  # newest version of any weights that it has pulled, -1 for none
    settings: int  # version of its settings, -1 for none


class Reply(NamedTuple):
    """The part that all answers to a process have."""

    born: str
    """Changes when the state actor starts anew, empty: publish everything again."""
    stopped: bool  # training is over, or this process has been replaced
    learner_version: int
    settings: Published | None
    """If there are newer ones. Those for the learner's version are there before it is."""


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
    """Runs as one Ray actor; every method is quick, or waits without blocking the others."""

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
        """Replace the content of a store, unless that is newer."""
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
        """Return what is newer than version ``have``, or None after ``patience`` seconds."""
        await self._until(lambda: self._newer(store, have) is not None, patience)
        latest = self._newer(store, have)
        if latest is not None and store in (FULL_PRECISION, COMPRESSED):
            # A process with the reference has the weights: it keeps them from being freed.
            query = query._replace(pulled=max(query.pulled, latest.version))
        self._note(query)
        return self._reply(query), latest

    async def sync(self, query: Query, beats: int, version: int | None, patience: float) -> Reply:
        """Note a process's sign of life; answer if there is news, or after ``patience`` seconds.

        A process whose ``beats`` do not change hangs. A learner's version after ``version`` is news
        too, unless that is None.
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
    ``send`` waits until the state actor has it; ``failed`` gets the reason if it cannot continue.
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


class TrajectoryRequests:
    """The learner's requests: it asks each actor for as many trajectories as there is room for.

    An actor writes only what it was asked for. That bounds memory and how far actors run ahead: a
    request takes a slot, and the limiter counts it as inserted. Thread-safe.

    Attributes:
        rollouts: trajectories that have arrived, by actor.
    """

    def __init__(self, config: EngineConfig, ask: Callable[[int], None]) -> None:
        actors = config.actor.actors
        self._changed = threading.Condition()
        self._size = config.trajectory.transitions
        self._slots = config.slots_per_actor
        self._limiter = config.limiter
        self._ask = ask
        self._asked = [0] * actors
        self._here = [0] * actors
        self.rollouts = [0] * actors
        self._open = set(range(actors))
        self._ready: list[tuple[int, int, Trajectory]] = []
        """(actor, number among this actor's, trajectory) in the order of arrival."""
        self._samples = 0

    def ask(self) -> None:
        """Ask actors for as much as allowed; first those with the fewest on their way."""
        with self._changed:
            while True:
                slots = [(self._asked[actor] + self._here[actor], actor) for actor in self._open]
                busy, actor = min(slots, default=(self._slots, -1))
                if busy >= self._slots or not self._may_insert():
                    return
                self._asked[actor] += 1
                self._ask(actor)

    def _may_insert(self) -> bool:
        if self._limiter is None:
            return True
        inserted = sum(self.rollouts) + sum(self._asked)
        return self._limiter.can_insert(inserted * self._size, self._samples, self._size)

    def arrived(self, trajectory: Trajectory) -> None:
        """Add an actor's next trajectory."""
        with self._changed:
            actor = trajectory.actor
            self._asked[actor] -= 1
            self._here[actor] += 1
            self.rollouts[actor] += 1
            self._ready.append((actor, self.rollouts[actor], trajectory))
            self._changed.notify_all()

    def lost(self, actor: int) -> None:
        """Stop asking a dead actor, and forget its open requests; what has arrived stays."""
        with self._changed:
            self._asked[actor] = 0
            self._open.discard(actor)

    def opened(self, actor: int) -> None:
        """Start asking an actor, or its successor."""
        with self._changed:
            self._open.add(actor)
        self.ask()

    def sampled(self, count: int) -> None:
        """Count transitions that the learner has sampled."""
        with self._changed:
            self._samples += count
        self.ask()

    def ready(self) -> int:
        """Return the number of trajectories that can be taken now."""
        return len(self._ready)

    def take(
        self, count: int, *, timeout: float, stop: Callable[[], bool], evenly: bool = False
    ) -> Batch | None:
        """See :meth:`TrajectoryRing.take`."""
        actors = len(self._asked)
        check_count(count, actors * self._slots, actors, evenly)
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (chosen := choose(self._ready, count, actors, evenly)):
                left = deadline - time.monotonic()
                if left <= 0 or stop():
                    return None
                self._changed.wait(min(left, STOP_EVERY))
            taken = set(map(id, chosen))
            self._ready = [one for one in self._ready if id(one[2]) not in taken]
        return Batch(chosen, lambda: self._release(chosen))

    def _release(self, taken: list[Trajectory]) -> None:
        with self._changed:
            for one in taken:
                self._here[one.actor] -= 1
        self.ask()
