"""The learner's requests for trajectories.

An actor writes only what it was asked for. That bounds memory and, with a limiter, how far actors
run ahead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from vinoreward.actor_learner.engines.base import EngineConfig
from vinoreward.actor_learner.transport.trajectory import Batch, Trajectory, check_count, choose

STOP_EVERY = 0.1
"""Seconds between two checks whether to stop waiting for trajectories."""


class TrajectoryRequests:
    """Asks every actor for as many trajectories as there is room for. Thread-safe.

    Args:
        config: sizes and limits. What was asked for takes a slot, and the limiter counts it as
            inserted.
        ask: asks an actor for one more; quick.

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
        self._closed = [False] * actors
        self._ready: list[tuple[int, tuple[int, int], Trajectory]] = []
        """(actor, (generation, sequence), trajectory) in the order of arrival."""
        self._steps = 0
        self._samples = 0

    def ask(self) -> None:
        """Ask actors for as much as allowed, those first that have least on their way."""
        with self._changed:
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

    def arrived(self, trajectory: Trajectory, sequence: int) -> None:
        """Add a trajectory that was asked for.

        Args:
            trajectory: read-only.
            sequence: its number among those of its actor's generation.
        """
        with self._changed:
            actor = trajectory.actor
            self._asked[actor] -= 1
            self._here[actor] += 1
            self.rollouts[actor] += 1
            self._steps += self._size
            self._ready.append((actor, (trajectory.generation, sequence), trajectory))
            self._changed.notify_all()

    def lost(self, actor: int) -> None:
        """Stop asking a dead actor, and forget its open requests; what has arrived stays."""
        with self._changed:
            self._asked[actor] = 0
            self._closed[actor] = True

    def opened(self, actor: int) -> None:
        """Start asking an actor, or its successor."""
        with self._changed:
            self._closed[actor] = False
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
        """Wait for trajectories, oldest first; None after ``timeout`` seconds or a stop.

        Raises:
            ConfigError: more than there is room for, or not a multiple of the actors.
        """
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
