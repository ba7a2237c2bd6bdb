"""The one place of a training on Ray that everybody asks: latest weights, settings, signs of life.

It holds references and versions, never a queue: whoever publishes rebinds a name, whoever pulls
gets the newest there is, and a process that is slow can neither hold back nor lose newer weights.
What the learner publishes goes there in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from vinoreward.actor_learner.transport.link import NONE, SETTINGS, STORES
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
from vinoreward.policies.wire import Bytes

INLINE_BYTES = 64 << 10
"""What is smaller travels in the answer itself (Ray's own limit is 100 KB): one journey, not two.
"""
FETCH_TIMEOUT = 60.0


@dataclass(frozen=True)
class Identity:
    """Who a process is.

    Attributes:
        state: handle of the state actor.
        process: number.
        generation: how many times it was replaced.
        rollouts: trajectories that those before it have handed over.
        beat: seconds between two signs of life.
        exact: it has to hear of every version of the learner's at once.
    """

    state: Any
    process: int
    generation: int
    rollouts: int = 0
    beat: float = 0.5
    exact: bool = False


class Published(NamedTuple):
    """The latest of one store.

    Attributes:
        version: of the learner for weights, counted up for everything else.
        header: JSON.
        body: (bytes,) uint8 if that is little, which saves a second journey, otherwise a list with
            one ObjectRef of it: a reference by itself would be resolved on its way.
    """

    version: int
    header: bytes
    body: Any

    @classmethod
    def of(cls, version: int, header: bytes, payload: Bytes) -> Published:
        """Put a payload where others can fetch it."""
        if payload.nbytes <= INLINE_BYTES:
            return cls(version, header, payload)
        import ray

        return cls(version, header, [ray.put(payload)])

    def fetch(self) -> Bytes | None:
        """Return the payload, read-only and not copied where it is on this machine.

        None if it is lost: the process that had put it there has died.
        """
        body: Any = self.body
        if isinstance(body, list):
            import ray
            from ray.exceptions import RayError

            try:
                body = ray.get(body[0], timeout=FETCH_TIMEOUT)
            except RayError:
                return None
        found: Bytes = body
        return found


class Told(NamedTuple):
    """What a process is told whenever it asks for anything.

    Attributes:
        born: changes when the state was lost and started anew, empty: whoever has published
            something has to do so again.
        stopped: training is over, or this process has been replaced.
        learner_version: updates that the learner has made.
        settings: None if there are no newer ones. Those for the learner's version are there
            before it is.
    """

    born: str
    stopped: bool
    learner_version: int
    settings: Published | None


class Pulled(NamedTuple):
    """What a pull gives.

    Attributes:
        told: besides.
        latest: None if there is nothing newer.
    """

    told: Told
    latest: Published | None


class Known(NamedTuple):
    """Who asks, and what it knows already.

    Attributes:
        process: number.
        generation: how many times it was replaced.
        pulled: newest version of any weights that it has had, -1 for none.
        settings: version of those it has, -1 for none.
    """

    process: int
    generation: int
    pulled: int
    settings: int


class Look(NamedTuple):
    """What the learner's process sees.

    Attributes:
        born: see :class:`Told`.
        generations: of every process, the latest that was heard of.
        silence: seconds since each of these last gave a sign of life, infinity for never.
        pulled: newest version of any weights that each has had, -1 for none.
    """

    born: str
    generations: tuple[int, ...]
    silence: tuple[float, ...]
    pulled: tuple[int, ...]


@dataclass
class _Signs:
    """Of one process's latest generation."""

    generation: int = 0
    beats: int = 0
    beaten: float = -math.inf
    pulled: int = NONE

    def of(self, generation: int) -> bool:
        """Whether the signs of that generation count; forgets those of an older one."""
        if generation > self.generation:
            self.generation, self.beats = generation, 0
            self.beaten, self.pulled = -math.inf, NONE
        return generation == self.generation


class State:
    """Runs as one Ray actor; every method is quick or waits without holding up the others.

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
        return latest if latest is not None and latest.version > have else None

    @property
    def _learner_version(self) -> int:
        latest = self._stores.get(FULL_PRECISION)
        return NONE if latest is None else latest.version

    async def publish(self, store: int, published: Published) -> None:
        """Rebind a store, unless something newer is there already."""
        # The same version again: its object died with the compressor that had published it.
        if self._newer(store, published.version) is None:
            self._stores[store] = published
            self._wake()

    def _told(self, known: Known) -> Told:
        return Told(
            self._born,
            self._stopped or self._signs[known.process].generation > known.generation,
            self._learner_version,
            self._newer(SETTINGS, known.settings),
        )

    async def latest(self, store: int) -> Published | None:
        """Return the latest of a store, None if there is nothing."""
        return self._stores.get(store)

    async def pull(self, known: Known, store: int, have: int, patience: float) -> Pulled:
        """Return what is newer than version ``have``; waits ``patience`` seconds for it.

        Args:
            known: who asks.
            store: number.
            have: version in use, -1 for none.
            patience: seconds; 0 to look once.
        """
        await self._until(lambda: self._newer(store, have) is not None, patience)
        latest = self._newer(store, have)
        if latest is not None and store in (FULL_PRECISION, COMPRESSED):
            # Whoever has the reference has the weights: it keeps them from being freed.
            known = known._replace(pulled=max(known.pulled, latest.version))
        self._note(known)
        return Pulled(self._told(known), latest)

    def _note(self, known: Known) -> _Signs | None:
        signs = self._signs[known.process]
        if not signs.of(known.generation):
            return None
        signs.pulled = max(signs.pulled, known.pulled)
        return signs

    async def sync(self, known: Known, beats: int, version: int | None, patience: float) -> Told:
        """Take a process's sign of life; answer at once if there is something to tell it.

        Args:
            known: who.
            beats: steps of its loop; what has stopped counting is hung, however alive it looks.
            version: the learner's that it knows of, None if it need not hear of others soon.
            patience: seconds after which to answer in any case.
        """
        signs = self._note(known)
        if signs is not None and beats != signs.beats:
            signs.beats, signs.beaten = beats, time.monotonic()

        def something() -> bool:
            told = self._told(known)
            later = version is not None and told.learner_version > version
            return told.stopped or later or told.settings is not None

        await self._until(something, patience)
        return self._told(known)

    async def replace(self, process: int, generation: int) -> None:
        """Say that a process's generation is another now; an older one that still lives ends."""
        self._signs[process].of(generation)
        self._wake()

    async def everyone_has(self, actors: int, version: int, compressed: bool) -> bool:
        """Return whether actors have pulled a version, and its compressed form is published."""
        if compressed and self._newer(COMPRESSED, version - 1) is None:
            return False
        return all(signs.pulled >= version for signs in self._signs[:actors])

    async def look(self) -> Look:
        """Return signs of life."""
        now = time.monotonic()
        return Look(
            self._born,
            tuple(signs.generation for signs in self._signs),
            tuple(now - signs.beaten for signs in self._signs),
            tuple(signs.pulled for signs in self._signs),
        )

    async def stop(self) -> None:
        """Tell everybody that training is over."""
        self._stopped = True
        self._wake()


# In the learner's process


class Publisher:
    """Sends one thing at a time; of a store that is published faster, the newest.

    Settings and observations go before weights: they hold for what is published after them.

    Args:
        send: brings something to a store of the state actor and waits until it is there.
        failed: is told why it cannot go on.
    """

    def __init__(
        self, send: Callable[[int, Published], None], failed: Callable[[str], None]
    ) -> None:
        self._send, self._failed = send, failed
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[int, bytes, Bytes] | Published] = {}
        self._last: dict[int, Published] = {}
        self._busy = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="vinoreward publisher", daemon=True)
        self._thread.start()

    def publish(self, store: int, version: int, header: bytes, payload: Bytes) -> None:
        """Send this next; does not wait. The payload must not change any more."""
        with self._changed:
            self._waiting[store] = (version, header, payload)
            self._changed.notify_all()

    def resend(self) -> None:
        """Send everything again that has nothing newer waiting."""
        with self._changed:
            self._waiting = {**self._last, **self._waiting}
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything has been sent; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closing or not (self._waiting or self._busy), timeout
            )

    def close(self) -> None:
        """End the thread; what waits is not sent."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or bool(self._waiting))
                if self._closing:
                    return
                store = min(self._waiting, key=lambda each: each == FULL_PRECISION)
                parcel = self._waiting.pop(store)
                self._busy = True
            try:
                if not isinstance(parcel, Published):
                    parcel = Published.of(*parcel)
                self._send(store, parcel)
                self._last[store] = parcel
            except Exception as error:  # noqa: BLE001  (the learner's thread raises it)
                self._failed(f"{STORES[store]} could not be published: {error}")
                return
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
