"""The thread in the learner's process that hears from all others: experience, reports, deaths."""

from __future__ import annotations

import json
import math
import queue
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from vinoreward.actor_learner.acting.environments import Episode
from vinoreward.actor_learner.acting.network import Refused
from vinoreward.actor_learner.engines.base import EngineConfig, Event, News
from vinoreward.actor_learner.engines.last_words import ended_too_often, in_short
from vinoreward.actor_learner.engines.ray.cluster import reason_of
from vinoreward.actor_learner.engines.ray.intake import Arrived, Intake
from vinoreward.actor_learner.engines.ray.outbox import Message
from vinoreward.actor_learner.engines.ray.payload import trajectory_in
from vinoreward.actor_learner.engines.ray.place import Place
from vinoreward.actor_learner.engines.ray.state import Look

LOOK_EVERY = 0.25
"""Seconds between two looks at signs of life; a death is heard of at once."""


class _Note(NamedTuple):
    """Something that Ray has to say: ``"placed"``, ``"next"``, ``"ended"`` or ``"look"``."""

    kind: str
    place: int
    generation: int
    future: Future[Any]


class Desk:
    """Takes in what comes, replaces what dies or hangs.

    Args:
        ray: the module.
        config: the engine's.
        state: handle of the state actor.
        places: actors by number, then the compressor if there is one.
        state_lost: called when the state actor was started anew, empty.
    """

    def __init__(
        self,
        ray: Any,
        config: EngineConfig,
        state: Any,
        places: Sequence[Place],
        state_lost: Callable[[], None],
    ) -> None:
        self._ray, self._config, self._state = ray, config, state
        self._places = places
        self._state_lost = state_lost
        self._actors = config.actor.actors
        self._inbox: queue.SimpleQueue[_Note | None] = queue.SimpleQueue()
        self.intake = Intake(
            config.trajectory.transitions,
            self._actors,
            config.slots_per_actor,
            config.limiter,
            self._ask,
        )
        self.failure = ""
        self.pulled: tuple[int, ...] = ()
        """See :meth:`Engine.pulled`."""
        self._news = News()
        self._born = ""
        self._next_look = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="vinoreward desk", daemon=True)

    def start(self) -> None:
        """Start all processes, and the thread."""
        for place in self._places:
            self._begin(place)
        self.intake.ask()
        self._thread.start()

    def _begin(self, place: Place) -> None:
        actor = place.number < self._actors
        place.start(self.intake.rollouts[place.number] if actor else 0)
        self._hear("placed", place.number, place.generation, place.handle.placed.remote())
        self._hear("ended", place.number, place.generation, place.handle.ended.remote())
        if not actor:
            self._ask(place.number)

    def _hear(self, kind: str, place: int, generation: int, reference: Any) -> None:
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda f: self._inbox.put(_Note(kind, place, generation, f)))

    def _ask(self, number: int) -> None:
        place = self._places[number]
        if place.handle is not None:
            self._hear("next", number, place.generation, place.handle.next.remote())

    def news(self) -> News:
        """Return what came in since the last call."""
        with self.intake.changed:
            found, self._news = self._news, News()
        return found

    def tell(self, who: str, what: str) -> None:
        """Add an event to the news."""
        with self.intake.changed:
            self._news.events.append(Event(who, what))

    def counters(self) -> Counter[str]:
        """Return all actors' counters, those of dead ones included, summed."""
        total: Counter[str] = Counter()
        with self.intake.changed:
            for place in self._places:
                total.update(place.settled)
                total.update(place.counters)
        return total

    def fail(self, why: str) -> None:
        """Make the learner's next call raise."""
        with self.intake.changed:
            self.failure = self.failure or why
            self.intake.changed.notify_all()

    def close(self, patience: float) -> None:
        """Wait for all processes to end by themselves for some seconds, then end them."""
        with self.intake.changed:
            self._closing = True
            # One that is still importing has nothing to put in order.
            self.intake.changed.wait_for(
                lambda: all(place.over or not place.began for place in self._places), patience
            )
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()
        for place in self._places:
            self._kill(place)

    def _kill(self, place: Place) -> None:
        if place.handle is not None:
            self._ray.kill(place.handle, no_restart=True)
            place.handle = None

    # The thread

    def _run(self) -> None:
        try:
            while True:
                self._look()
                try:
                    note = self._inbox.get(timeout=LOOK_EVERY)
                except queue.Empty:
                    continue
                if note is None:
                    return
                self._read(note)
        except self._ray.exceptions.RayError as error:
            self.fail(f"Ray failed: {reason_of(error)}. Expected it to run on.")
        except Exception:  # noqa: BLE001  (the learner's thread raises it)
            self.fail(f"the engine broke:\n{traceback.format_exc()}")

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = math.inf  # until this one is answered
            self._hear("look", -1, 0, self._state.look.remote())

    def _read(self, note: _Note) -> None:
        error = note.future.exception()
        if note.kind == "look":
            self._next_look = time.monotonic() + LOOK_EVERY
            if error is not None and not self._closing:
                self.fail(
                    f"the process that keeps the latest weights is gone ({reason_of(error)}). "
                    "Expected Ray to run on; look at it with `ray status`, then go on from the "
                    "last checkpoint."
                )
            elif error is None:
                self._looked(note.future.result())
            return
        place = self._places[note.place]
        if note.generation != place.generation:
            return  # of one that has been replaced: nothing of it is taken any more
        if error is not None:
            self._gone(place, reason_of(error), str(error))
        elif note.kind == "placed":
            place.placed, place.started = True, time.monotonic()
        elif note.kind == "ended":
            text: str = note.future.result()
            self._gone(place, in_short(text) if text else "ended", text)
        else:
            self._open(place, note.future.result())

    def _open(self, place: Place, message: Message) -> None:
        header, buffer = message
        about = json.loads(header)
        with self.intake.changed:
            # Not only at the next look: until then its end would not be waited for.
            place.heard, place.began = time.monotonic(), True
            place.budget.worked()
            for kind, value in about["reports"]:
                if kind == "episodes":
                    self._news.episodes += [(place.number, Episode(**row)) for row in value]
                elif kind == "compressor":
                    self._news.compressor.append(value)
                elif kind == "refused":
                    self._news.refused.append((place.number, Refused(**value)))
            if buffer is None:
                self._ask(place.number)
                return
            place.counters = about["counters"]
            found = trajectory_in(self._config.trajectory, buffer, place.number, place.generation)
            self.intake.arrived(Arrived(found, about["sequence"]))

    def _looked(self, look: Look) -> None:
        if self._born not in ("", look.born):
            self._state_lost()
            for place in self._places:
                place.started = time.monotonic()  # nobody has been heard of by the new one
        self._born = look.born
        self.pulled = look.pulled
        for place in self._places:
            if place.handle is None or place.over or self._closing:
                continue
            known = look.generations[place.number] == place.generation
            silence = look.silence[place.number] if known else math.inf
            # It may have hung before it first told the state of a step that it has made.
            silence = min(silence, time.monotonic() - place.heard)
            place.began = silence < math.inf
            self._check(place, silence)

    def _check(self, place: Place, silence: float) -> None:
        config = self._config
        waited = time.monotonic() - place.started
        if silence == math.inf and waited > config.start_timeout:
            what = f"did not start in {waited:.0f} s"
            if not place.placed:
                # Nothing has failed: it starts when the cluster has room again.
                self.tell(place.name, f"{what} (`ray status` shows what it waits for); it may yet")
                place.started = time.monotonic()
                return
        elif config.heartbeat < silence < math.inf:
            what = f"gave no sign of life for {config.heartbeat:g} s"
        else:
            return
        self._gone(place, what, what)

    def _gone(self, place: Place, why: str, text: str) -> None:
        """Start a successor, or do without if there were too many."""
        with self.intake.changed:
            if self._closing:
                place.over = True
                self.intake.changed.notify_all()
                return
            self._kill(place)
            place.bury()
            self._state.replace.remote(place.number, place.generation)
            again = place.budget.spend()
            if place.number < self._actors:
                self.intake.lost(place.number, for_good=not again)
            if again:
                self._begin(place)
                self.tell(place.name, f"{why}; replaced by generation {place.generation}")
                self.intake.ask()
            else:
                place.abandoned = True
                self._do_without(place, why, text)

    def _do_without(self, place: Place, why: str, text: str) -> None:
        nobody = all(one.abandoned for one in self._places[: self._actors])
        if nobody or self._config.actor.lag is not None:
            but = "" if nobody else "; with a fixed lag nothing can go on without it"
            times = self._config.restarts + 1
            self.fail(ended_too_often(place.name, times, why, but, text))
        else:
            self.tell(place.name, f"{why}; replaced too often, training goes on without it")
