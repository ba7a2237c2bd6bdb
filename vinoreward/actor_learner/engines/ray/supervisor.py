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
from vinoreward.actor_learner.engines.base import EngineConfig, Event, Messages
from vinoreward.actor_learner.engines.error_report import ended_too_often, in_short
from vinoreward.actor_learner.engines.ray.cluster import reason_of
from vinoreward.actor_learner.engines.ray.message_queue import Message
from vinoreward.actor_learner.engines.ray.payload import trajectory_in
from vinoreward.actor_learner.engines.ray.requests import Arrived, TrajectoryRequests
from vinoreward.actor_learner.engines.ray.state import Look
from vinoreward.actor_learner.engines.ray.worker_slot import WorkerSlot

LOOK_EVERY = 0.25
"""Seconds between two looks at signs of life; a death is heard of at once."""


class _Note(NamedTuple):
    """Something that Ray has to say: ``"placed"``, ``"next"``, ``"ended"`` or ``"look"``."""

    kind: str
    slot: int
    generation: int
    future: Future[Any]


class RaySupervisor:
    """Takes in what comes, replaces what dies or hangs.

    Args:
        ray: the module.
        config: the engine's.
        state: handle of the state actor.
        slots: actors by number, then the compressor if there is one.
        state_lost: called when the state actor was started anew, empty.
    """

    def __init__(
        self,
        ray: Any,
        config: EngineConfig,
        state: Any,
        slots: Sequence[WorkerSlot],
        state_lost: Callable[[], None],
    ) -> None:
        self._ray, self._config, self._state = ray, config, state
        self._slots = slots
        self._state_lost = state_lost
        self._actors = config.actor.actors
        self._inbox: queue.SimpleQueue[_Note | None] = queue.SimpleQueue()
        self.requests = TrajectoryRequests(
            config.trajectory.transitions,
            self._actors,
            config.slots_per_actor,
            config.limiter,
            self._ask,
        )
        self.failure = ""
        self.pulled: tuple[int, ...] = ()
        """See :meth:`Engine.pulled`."""
        self._messages = Messages()
        self._born = ""
        self._next_look = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="vinoreward supervisor", daemon=True)

    def start(self) -> None:
        """Start all processes, and the thread."""
        for slot in self._slots:
            self._begin(slot)
        self.requests.ask()
        self._thread.start()

    def _begin(self, slot: WorkerSlot) -> None:
        actor = slot.number < self._actors
        slot.start(self.requests.rollouts[slot.number] if actor else 0)
        self._listen("placed", slot.number, slot.generation, slot.handle.placed.remote())
        self._listen("ended", slot.number, slot.generation, slot.handle.ended.remote())
        if not actor:
            self._ask(slot.number)

    def _listen(self, kind: str, slot: int, generation: int, reference: Any) -> None:
        future: Future[Any] = reference.future()
        future.add_done_callback(lambda f: self._inbox.put(_Note(kind, slot, generation, f)))

    def _ask(self, number: int) -> None:
        slot = self._slots[number]
        if slot.handle is not None:
            self._listen("next", number, slot.generation, slot.handle.next.remote())

    def messages(self) -> Messages:
        """Return what came in since the last call."""
        with self.requests.changed:
            found, self._messages = self._messages, Messages()
        return found

    def tell(self, who: str, what: str) -> None:
        """Add an event to the messages."""
        with self.requests.changed:
            self._messages.events.append(Event(who, what))

    def counters(self) -> Counter[str]:
        """Return all actors' counters, those of dead ones included, summed."""
        total: Counter[str] = Counter()
        with self.requests.changed:
            for slot in self._slots:
                total.update(slot.settled)
                total.update(slot.counters)
        return total

    def fail(self, why: str) -> None:
        """Make the learner's next call raise."""
        with self.requests.changed:
            self.failure = self.failure or why
            self.requests.changed.notify_all()

    def close(self, patience: float) -> None:
        """Wait for all processes to end by themselves for some seconds, then end them."""
        with self.requests.changed:
            self._closing = True
            # One that is still importing has nothing to put in order.
            self.requests.changed.wait_for(
                lambda: all(slot.over or not slot.began for slot in self._slots), patience
            )
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join()
        for slot in self._slots:
            self._kill(slot)

    def _kill(self, slot: WorkerSlot) -> None:
        if slot.handle is not None:
            self._ray.kill(slot.handle, no_restart=True)
            slot.handle = None

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
            self._listen("look", -1, 0, self._state.look.remote())

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
        slot = self._slots[note.slot]
        if note.generation != slot.generation:
            return  # of one that has been replaced: nothing of it is taken any more
        if error is not None:
            self._gone(slot, reason_of(error), str(error))
        elif note.kind == "placed":
            slot.placed, slot.started = True, time.monotonic()
        elif note.kind == "ended":
            text: str = note.future.result()
            self._gone(slot, in_short(text) if text else "ended", text)
        else:
            self._open(slot, note.future.result())

    def _open(self, slot: WorkerSlot, message: Message) -> None:
        header, buffer = message
        about = json.loads(header)
        with self.requests.changed:
            # Not only at the next look: until then its end would not be waited for.
            slot.heard, slot.began = time.monotonic(), True
            slot.budget.worked()
            for kind, value in about["reports"]:
                if kind == "episodes":
                    self._messages.episodes += [(slot.number, Episode(**row)) for row in value]
                elif kind == "compressor":
                    self._messages.compressor.append(value)
                elif kind == "refused":
                    self._messages.refused.append((slot.number, Refused(**value)))
            if buffer is None:
                self._ask(slot.number)
                return
            slot.counters = about["counters"]
            found = trajectory_in(self._config.trajectory, buffer, slot.number, slot.generation)
            self.requests.arrived(Arrived(found, about["sequence"]))

    def _looked(self, look: Look) -> None:
        if self._born not in ("", look.born):
            self._state_lost()
            for slot in self._slots:
                slot.started = time.monotonic()  # nobody has been heard of by the new one
        self._born = look.born
        self.pulled = look.pulled
        for slot in self._slots:
            if slot.handle is None or slot.over or self._closing:
                continue
            known = look.generations[slot.number] == slot.generation
            silence = look.silence[slot.number] if known else math.inf
            # It may have hung before it first told the state of a step that it has made.
            silence = min(silence, time.monotonic() - slot.heard)
            slot.began = silence < math.inf
            self._check(slot, silence)

    def _check(self, slot: WorkerSlot, silence: float) -> None:
        config = self._config
        waited = time.monotonic() - slot.started
        if silence == math.inf and waited > config.start_timeout:
            what = f"did not start in {waited:.0f} s"
            if not slot.placed:
                # Nothing has failed: it starts when the cluster has room again.
                self.tell(slot.name, f"{what} (`ray status` shows what it waits for); it may yet")
                slot.started = time.monotonic()
                return
        elif config.heartbeat < silence < math.inf:
            what = f"gave no sign of life for {config.heartbeat:g} s"
        else:
            return
        self._gone(slot, what, what)

    def _gone(self, slot: WorkerSlot, why: str, text: str) -> None:
        """Start a successor, or do without if there were too many."""
        with self.requests.changed:
            if self._closing:
                slot.over = True
                self.requests.changed.notify_all()
                return
            self._kill(slot)
            slot.release()
            self._state.replace.remote(slot.number, slot.generation)
            again = slot.budget.spend()
            if slot.number < self._actors:
                self.requests.lost(slot.number, for_good=not again)
            if again:
                self._begin(slot)
                self.tell(slot.name, f"{why}; replaced by generation {slot.generation}")
                self.requests.ask()
            else:
                slot.abandoned = True
                self._do_without(slot, why, text)

    def _do_without(self, slot: WorkerSlot, why: str, text: str) -> None:
        nobody = all(one.abandoned for one in self._slots[: self._actors])
        if nobody or self._config.actor.lag is not None:
            but = "" if nobody else "; with a fixed lag nothing can go on without it"
            times = self._config.restarts + 1
            self.fail(ended_too_often(slot.name, times, why, but, text))
        else:
            self.tell(slot.name, f"{why}; replaced too often, training goes on without it")
