"""Processes on Ray, as the learner's process sees them: workers for the supervisor.

Ray calls back in a thread of its own whenever a process has answered; that is noted, and read by
the supervisor's thread.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from vinoreward.actor_learner.engines.base import EngineConfig, EngineError
from vinoreward.actor_learner.engines.ray.cluster import Cluster, ray_told, reason_of
from vinoreward.actor_learner.engines.ray.links import RayProcess, run_actor, run_compressor
from vinoreward.actor_learner.engines.ray.requests import (
    Arrived,
    Message,
    TrajectoryRequests,
    trajectory_in,
)
from vinoreward.actor_learner.engines.ray.state import Identity, Look
from vinoreward.actor_learner.engines.supervisor import Ended, Status, Worker, in_short
from vinoreward.actor_learner.transport.link import NONE

LOOK_EVERY = 0.25
"""Seconds between two looks at signs of life; a death is heard of at once."""
SLOWEST_BEAT = 0.5
"""Seconds between two signs of life, at most."""


def keeps_state(config: EngineConfig) -> bool:
    """Whether the compressor has a folder to write its state to, which is on the learner's disk."""
    return config.compressor is not None and config.compressor.folder is not None


class _Answer(NamedTuple):
    """What a process has answered to: ``"placed"``, ``"next"`` or ``"ended"``."""

    question: str
    generation: int
    future: Future[Any]


class StateWatch:
    """Looks at the state actor, which hears all signs of life, and wakes the supervisor.

    Args:
        state: handle of the state actor.
        lost: called when it was started anew, empty.
    """

    def __init__(self, state: Any, lost: Callable[[], None]) -> None:
        self._state, self._lost = state, lost
        self._asked: Future[Any] | None = None
        self._next = 0.0
        self.woken = threading.Event()
        self.look: Look | None = None
        """The latest."""

    def wait(self, workers: Sequence[Worker], seconds: float) -> None:
        """Wait until something has been answered.

        Raises:
            EngineError: the state actor is gone for good.
        """
        if self._asked is None and time.monotonic() >= self._next:
            self._asked = future = self._state.look.remote().future()
            future.add_done_callback(lambda _: self.woken.set())
        self.woken.wait(seconds)
        self.woken.clear()
        asked = self._asked
        if asked is None or not asked.done():
            return
        self._asked, self._next = None, time.monotonic() + LOOK_EVERY
        error = asked.exception()
        if error is not None:
            self._next = math.inf
            raise EngineError(
                f"the process that keeps the latest weights is gone ({reason_of(error)}). "
                "Expected Ray to run on; look at it with `ray status`, then go on from the "
                "last checkpoint."
            )
        before, look = self.look, asked.result()
        self.look = look
        if before is not None and before.born != look.born:
            self._lost()
            for worker in workers:
                if isinstance(worker, RayWorker):
                    worker.forget()


class RayWorker(Worker):
    """An actor, or the compressor: on one thread and one processor, anywhere in the cluster.

    A compressor that writes its state down runs on the learner's machine.

    Args:
        name: of it.
        number: of it.
        cluster: where it runs.
        config: the engine's.
        state: handle of the state actor.
        watch: what the state actor has heard.
        requests: of trajectories.
    """

    def __init__(
        self,
        name: str,
        number: int,
        cluster: Cluster,
        config: EngineConfig,
        state: Any,
        watch: StateWatch,
        requests: TrajectoryRequests,
    ) -> None:
        super().__init__(name, number)
        self._ray, self._config, self._state, self._watch = cluster.ray, config, state, watch
        self._acts = number < config.actor.actors
        self._requests = requests
        if self._acts:
            requests.lost(number)  # until there is a process to ask
        options: dict[str, Any] = {
            "num_cpus": 1,
            # The supervisor restarts them: it counts generations and keeps to the budget.
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
            # No environment of their own, which would double the time they take to start: Ray
            # itself sets OMP_NUM_THREADS to num_cpus before anything is imported.
        }
        if not self._acts and keeps_state(config):
            # It asks for no processor: actors may have taken all of that machine's, and elsewhere
            # its state would be written to another disk, where nobody resumes from it.
            options |= {"num_cpus": 0, "scheduling_strategy": cluster.beside_us()}
        self.processors: int = options["num_cpus"]
        """That it asks for."""
        self._kind = cluster.remote(RayProcess, **options)
        self._told: list[Any] = []
        self._handle: Any = None
        self._answers: deque[_Answer] = deque()
        self._heard = -math.inf
        self._handed = 0
        self._settled: Counter[str] = Counter()
        """Counters of the processes before the present one."""
        self.counters: Counter[str] = Counter()
        """Of all processes so far."""

    @ray_told("Ray failed")
    def start(self) -> None:
        """See :meth:`Worker.start`; returns before there is a process."""
        self.waits_for = "`ray status` shows what it waits for"
        self._heard = -math.inf
        if self.generation > 0:
            # One that lives on, on a node that Ray does not reach any more, ends.
            self._state.replace.remote(self.number, self.generation)
        self._handle = self._made()
        self._ask("placed")
        self._ask("ended")
        if self._acts:
            self._requests.opened(self.number)
        else:
            self.ask()

    def _made(self) -> Any:
        config = self._config
        identity = Identity(
            self._state,
            self.number,
            self.generation,
            self._requests.rollouts[self.number] if self._acts else 0,
            beat=min(SLOWEST_BEAT, config.heartbeat / 4),
            exact=config.actor.lag is not None,
        )
        if self._acts:
            spec = config.trajectory
            return self._kind.remote(sys.path, run_actor, identity, config.actor, spec)
        told = config.compressor
        if told is not None and self.generation > 0:
            told = dataclasses.replace(told, resume=True)
        # A reference in a list is not opened before the process does it: it may hold classes of the
        # user's, which are found only with these paths.
        self._told = [self._ray.put(told)]
        batch = config.actor.environments
        return self._kind.remote(sys.path, run_compressor, identity, self._told, batch)

    def ask(self) -> None:
        """Ask the process for its next message."""
        self._ask("next")

    def _ask(self, question: str) -> None:
        handle, generation = self._handle, self.generation
        if handle is None:
            return

        def answered(future: Future[Any]) -> None:
            self._answers.append(_Answer(question, generation, future))
            self._watch.woken.set()

        getattr(handle, question).remote().future().add_done_callback(answered)

    def look(self) -> Status:
        """See :meth:`Worker.look`."""
        messages: list[tuple[str, Any]] = []
        ended = Ended("ended") if self._handle is None else None
        while self._answers:
            question, generation, future = self._answers.popleft()
            if generation != self.generation or self._handle is None:
                continue  # of one that has been replaced: nothing of it is taken any more
            error = future.exception()
            if error is not None:
                ended = ended or Ended(reason_of(error), str(error))
            elif question == "placed":
                self.waits_for, self.started = "", time.monotonic()
            elif question == "ended":
                report: str = future.result()
                ended = Ended(in_short(report) if report else "ended", report)
            else:
                messages += self._read(future.result())
        return Status(self._silence(), self._handed, messages, ended)

    def _read(self, message: Message) -> list[tuple[str, Any]]:
        header, buffer = message
        about = json.loads(header)
        self._heard = time.monotonic()
        self._handed += 1
        if buffer is None:
            self.ask()
        else:
            self.counters = self._settled + Counter(about["counters"])
            spec = self._config.trajectory
            found = trajectory_in(spec, buffer, self.number, self.generation)
            self._requests.arrived(Arrived(found, about["sequence"]))
        return [(kind, value) for kind, value in about["reports"]]

    def _silence(self) -> float:
        # It may have hung before it first told the state of a step that it has made.
        since = time.monotonic() - self._heard
        look = self._watch.look
        if look is None or look.generations[self.number] != self.generation:
            return since
        return min(look.silence[self.number], since)

    def forget(self) -> None:
        """Forget signs of life: a state actor that was started anew has heard of none yet."""
        self._heard, self.started = -math.inf, time.monotonic()

    def kill(self) -> bool:
        """See :meth:`Worker.kill`; Ray does the rest."""
        if self._acts:
            self._requests.lost(self.number)
        if self._handle is not None:
            self._ray.kill(self._handle, no_restart=True)
            self._handle = None
        self._settled = self.counters
        return True

    @property
    def pulled(self) -> int:
        """See :attr:`Worker.pulled`; as of a moment ago."""
        look = self._watch.look
        return NONE if look is None else look.pulled[self.number]
