"""Trajectories on request, without Ray: which actor is asked when, and how it answers.

Bookkeeping in the learner's process, and the queue in the process that is asked.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vinoreward.actor_learner.limiter import SamplesPerInsert
from vinoreward.actor_learner.transport.trajectory import Trajectory, TrajectorySpec
from vinoreward.errors import ConfigError, InputError
from vinoreward.policies.wire import Bytes

STOP_EVERY = 0.1
"""Seconds between two looks whether to stop waiting for trajectories."""


@dataclass(frozen=True, eq=False)
class Arrived:
    """A trajectory in the learner's process.

    Attributes:
        trajectory: read-only.
        sequence: counts those of its actor's generation.
    """

    trajectory: Trajectory
    sequence: int

    @property
    def order(self) -> tuple[int, int]:
        """Among those of its actor."""
        return self.trajectory.generation, self.sequence


class TrajectoryRequests:
    """Asks every actor for as many trajectories as it may have on their way.

    An actor writes only what it was asked for, so asking is what bounds memory and, with a
    limiter, how far actors run ahead. Safe to use from several threads.

    Args:
        transitions: of one trajectory.
        actors: how many.
        slots: trajectories of one actor that may be asked for, waiting or being read.
        limiter: samples per insert, if limited. What was asked for counts as inserted.
        ask: asks an actor for one more; quick.

    Attributes:
        changed: when a trajectory has come; the lock of it all.
        rollouts: trajectories that have come, by actor.
    """

    def __init__(
        self,
        transitions: int,
        actors: int,
        slots: int,
        limiter: SamplesPerInsert | None,
        ask: Callable[[int], None],
    ) -> None:
        self.changed = threading.Condition()
        self._size = transitions
        self._slots = slots
        self._limiter = limiter
        self._ask = ask
        self._asked = [0] * actors
        self._here = [0] * actors
        self.rollouts = [0] * actors
        self._closed = [False] * actors
        self._ready: list[Arrived] = []
        self._steps = 0
        self._samples = 0

    def ask(self) -> None:
        """Ask whoever may be asked, those first that have least on their way."""
        with self.changed:
            while True:
                open_ = [
                    (self._asked[actor] + self._here[actor], actor)
                    for actor, closed in enumerate(self._closed)
                    if not closed
                ]
                busy, actor = min(open_, default=(self._slots, -1))
                if busy >= self._slots or not self._may_insert():
                    return
                self._asked[actor] += 1
                self._ask(actor)

    def _may_insert(self) -> bool:
        if self._limiter is None:
            return True
        inserted = self._steps + sum(self._asked) * self._size
        return self._limiter.can_insert(inserted, self._samples, self._size)

    def arrived(self, found: Arrived) -> None:
        """Take in a trajectory that was asked for."""
        with self.changed:
            actor = found.trajectory.actor
            self._asked[actor] -= 1
            self._here[actor] += 1
            self.rollouts[actor] += 1
            self._steps += self._size
            self._ready.append(found)
            self.changed.notify_all()

    def lost(self, actor: int) -> None:
        """Forget what a dead actor was asked for, and ask it no more; what has come stays."""
        with self.changed:
            self._asked[actor] = 0
            self._closed[actor] = True

    def opened(self, actor: int) -> None:
        """Say that an actor, or its successor, can be asked."""
        with self.changed:
            self._closed[actor] = False
        self.ask()

    def sampled(self, count: int) -> None:
        """Count what the learner has used."""
        with self.changed:
            self._samples += count
        self.ask()

    @property
    def waiting(self) -> int:
        """Trajectories that can be taken at once."""
        return len(self._ready)

    def take(
        self, count: int, *, timeout: float, stop: Callable[[], bool], evenly: bool
    ) -> list[Arrived] | None:
        """Wait for trajectories, oldest first; None after ``timeout`` seconds or a stop.

        Raises:
            ConfigError: more than can ever be there, or not a multiple of the actors.
        """
        actors = len(self._asked)
        if not 1 <= count <= actors * self._slots or (evenly and count % actors):
            raise ConfigError(
                f"{count} trajectories were to be taken at once{' evenly' if evenly else ''}. "
                f"Expected 1 to {actors * self._slots}, evenly a multiple of {actors}."
            )
        deadline = time.monotonic() + timeout
        with self.changed:
            while True:
                chosen = self._choose(count, evenly)
                if chosen:
                    taken = set(map(id, chosen))
                    self._ready = [one for one in self._ready if id(one) not in taken]
                    return chosen
                left = deadline - time.monotonic()
                if left <= 0 or stop():
                    return None
                self.changed.wait(min(left, STOP_EVERY))

    def _choose(self, count: int, evenly: bool) -> list[Arrived]:
        if not evenly:
            return self._ready[:count] if len(self._ready) >= count else []
        share = count // len(self._asked)
        lines: list[list[Arrived]] = []
        for actor in range(len(self._asked)):
            own = [one for one in self._ready if one.trajectory.actor == actor]
            if len(own) < share:
                return []
            lines.append(sorted(own, key=lambda one: one.order)[:share])
        return [line[turn] for turn in range(share) for line in lines]

    def release(self, taken: Sequence[Arrived]) -> None:
        """Say that trajectories are not read any more."""
        with self.changed:
            for one in taken:
                self._here[one.trajectory.actor] -= 1
        self.ask()


def trajectory_in(
    spec: TrajectorySpec, buffer: Bytes, actor: int = 0, generation: int = 0
) -> Trajectory:
    """Return a trajectory whose arrays are views of (spec.nbytes,) uint8.

    Raises:
        InputError: another number of bytes.
    """
    if buffer.shape != (spec.nbytes,) or buffer.dtype != np.uint8:
        raise InputError(
            f"a trajectory came as {buffer.dtype}{buffer.shape}. Expected uint8({spec.nbytes},): "
            "install the same version of vinoreward on every machine."
        )
    arrays = {
        name: buffer[at.offset : at.offset + at.nbytes].view(at.dtype).reshape(at.shape)
        for name, at in spec.fields().items()
    }
    return Trajectory(**arrays, actor=actor, generation=generation)


# In the process that is asked

Message = tuple[bytes, "Bytes | None"]
"""JSON, and the bytes of a trajectory if there is one."""

_LOOK_EVERY = 0.05


class MessageQueue:
    """Between one working thread, which puts, and any number of coroutines, which ask.

    Is made in the coroutines' event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked = threading.Semaphore(0)
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._ended: asyncio.Future[str] = self._loop.create_future()

    async def next(self) -> Message:
        """Return the next message, in the order of asking."""
        self._asked.release()
        return await self._messages.get()

    async def ended(self) -> str:
        """Wait for the working thread's end; return its error report, empty if it had none."""
        return await asyncio.shield(self._ended)

    def wait_asked(self, stop: Callable[[], bool]) -> bool:
        """Wait until somebody asks for one message more; False as soon as ``stop()``."""
        while not self._asked.acquire(timeout=_LOOK_EVERY):
            if stop():
                return False
        return True

    def put(self, message: Message) -> None:
        """Hand a message to who asked first, or keep it for who asks next."""
        self._loop.call_soon_threadsafe(self._messages.put_nowait, message)

    def end(self, report: str) -> None:
        """Say that the working thread has ended; only once."""
        self._loop.call_soon_threadsafe(self._ended.set_result, report)
