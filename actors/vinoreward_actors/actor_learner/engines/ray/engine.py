"""The engine of a cluster: actors and compressor as Ray actors, the learner in this process.

Actors are spread over the machines and ask for one processor each. So does the compressor, unless
it saves its state: then it runs on the learner's machine. See docs/cluster.md.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward_actors.actor_learner.engines.base import (
    Engine,
    EngineError,
    TrajectorySource,
    not_running,
)
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.ray.cluster import (
    Cluster,
    HeadWatch,
    import_ray,
    ray_errors,
    reason_of,
)
from vinoreward_actors.actor_learner.engines.ray.exchange import (
    Identity,
    Look,
    Published,
    Publisher,
    State,
    TrajectoryRequests,
)
from vinoreward_actors.actor_learner.engines.supervisor import (
    END_PATIENCE,
    Ended,
    Status,
    Supervisor,
    Worker,
    in_short,
)
from vinoreward_actors.actor_learner.transport.link import NONE
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Bytes, Encoded, decode

ANSWER_TIMEOUT = 60.0
"""Seconds that the state actor may take to answer: it may be restarting."""
LOOK_EVERY = 0.25
"""Seconds between two checks of signs of life; a death is reported at once."""
SLOWEST_BEAT = 0.5
"""Maximum seconds between two signs of life."""


class StateWatch:
    """Reads the signs of life from the state actor, and wakes the supervisor.

    ``lost`` is called when the state actor has started anew, empty.
    """

    def __init__(self, state: Any, lost: Callable[[], None]) -> None:
        self.state, self._lost = state, lost
        self._asked: Future[Any] | None = None
        self._next = 0.0
        self.woken = threading.Event()
        """Set when a process has answered."""
        self.look: Look | None = None
        """The latest."""

    def wait(self, workers: Sequence[Worker], seconds: float) -> None:
        """Wait until a process or the state actor has answered.

        Raises:
            EngineError: the state actor is gone for good.
        """
        if self._asked is None and time.monotonic() >= self._next:
            self._asked = future = self.state.look.remote().future()
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
        before, self.look = self.look, (latest := asked.result())
        if before is not None and before.born != latest.born:
            self._lost()
            for worker in workers:
                if isinstance(worker, RayWorker):
                    worker.forget()


class RayWorker(Worker):
    """An actor, or the compressor, as a Ray actor."""

    def __init__(
        self,
        name: str,
        number: int,
        config: EngineConfig,
        cluster: Cluster,
        watch: StateWatch,
        requests: TrajectoryRequests,
    ) -> None:
        super().__init__(name, number, config)
        self._cluster, self._watch, self._requests = cluster, watch, requests
        if self.acts:
            requests.lost(number)  # until there is a process to ask
        # The state goes to the learner's disk, from where a resumed run reads it. That machine's
        # processors may all be taken by actors.
        saves = config.compressor is not None and config.compressor.folder is not None
        beside = saves and not self.acts
        self.processors = 0 if beside else 1
        from vinoreward_actors.actor_learner.engines.ray import links  # imports Ray

        # Once: Ray sends a new class to the head, and a start would wait for it. No runtime
        # environment, which would double the time to start; Ray itself sets OMP_NUM_THREADS.
        self._process = cluster.remote(
            links.RayProcess,
            num_cpus=self.processors,
            max_restarts=0,  # the supervisor counts generations and keeps to the budget
            scheduling_strategy=cluster.beside_us() if beside else "SPREAD",
        )
        self._arguments: list[Any] = []
        self._handle: Any = None
        self._answers: deque[tuple[str, Any, Future[Any]]] = deque()
        """(question, handle, answer); Ray adds them in a thread of its own."""
        self._last_message = -math.inf
        self._handed = 0
        self._read = 0
        """Messages of this process that were read."""
        self._early: dict[int, tuple[dict[str, Any], Bytes | None]] = {}
        """Messages by number, whose predecessors are still on their way: Ray keeps no order."""
        self._before: Counter[str] = Counter()
        """Counters of the predecessors."""
        self._counters: Counter[str] = Counter()
        """Counters of all processes so far."""

    @ray_errors("Ray failed")
    def start(self) -> None:
        """Ask for a process; returns before there is one."""
        self.waits_for = "`ray status` shows what it waits for"
        self._last_message = -math.inf
        self._read, self._early = 0, {}
        if self.generation > 0:
            # Ends a predecessor that lives on, on a node that Ray does not reach any more.
            self._watch.state.replace.remote(self.number, self.generation)
        self._handle = self._new_process()
        self._ask("placed")
        self._ask("ended")
        if self.acts:
            self._requests.opened(self.number)
        else:
            self.ask()

    def _new_process(self) -> Any:
        from vinoreward_actors.actor_learner.engines.ray import links  # imports Ray

        config, process = self._config, self._process
        identity = Identity(
            self._watch.state,
            self.number,
            self.generation,
            self._requests.rollouts[self.number] if self.acts else 0,
            beat=min(SLOWEST_BEAT, config.heartbeat / 4),
            exact=config.actor.lag is not None,
        )
        if self.acts:
            spec = config.trajectory
            return process.remote(sys.path, links.run_actor, identity, config.actor, spec)
        # In a list: the process resolves the reference, once it has the paths of a user's classes.
        self._arguments = [self._cluster.ray.put(config.compressor_of(self.generation))]
        batch = config.actor.environments
        return process.remote(sys.path, links.run_compressor, identity, self._arguments, batch)

    def ask(self) -> None:
        """Ask the process for its next message."""
        self._ask("next")

    def _ask(self, question: str) -> None:
        handle = self._handle
        if handle is None:
            return

        def answered(future: Future[Any]) -> None:
            self._answers.append((question, handle, future))
            self._watch.woken.set()

        getattr(handle, question).remote().future().add_done_callback(answered)

    def look(self) -> Status:
        """See :meth:`Worker.look`."""
        messages: list[tuple[str, Any]] = []
        ended = Ended("ended") if self._handle is None else None
        while self._answers:
            question, handle, future = self._answers.popleft()
            if handle is not self._handle:
                continue  # of a predecessor
            error = future.exception()
            if error is not None:
                ended = ended or Ended(reason_of(error), str(error))
            elif question == "placed":
                self.waits_for, self.started = "", time.monotonic()
            elif question == "ended":
                report: str = future.result()
                ended = Ended(in_short(report) if report else "ended", report)
            else:
                self._receive(future.result())
        while self._early:
            # Of a process that has ended, a message that is still missing no longer comes.
            number = min(self._early) if ended else self._read
            if number not in self._early:
                break
            self._read = number + 1
            messages += self._take(*self._early.pop(number))
        return Status(self._silence(), self._handed, messages, ended)

    def _receive(self, message: tuple[bytes, Bytes | None]) -> None:
        header, buffer = message
        about = json.loads(header)
        self._last_message = time.monotonic()
        self._early[about["number"]] = about, buffer

    def _take(self, about: dict[str, Any], buffer: Bytes | None) -> list[tuple[str, Any]]:
        self._handed += 1
        if buffer is None:
            self.ask()
        else:
            self._counters = self._before + Counter(about["counters"])
            trajectory = self._config.trajectory.view(buffer, self.number, self.generation)
            self._requests.arrived(trajectory)
        return [(kind, value) for kind, value in about["reports"]]

    def _silence(self) -> float:
        # A process may hang before its first sign of life has reached the state actor.
        since = time.monotonic() - self._last_message
        look = self._watch.look
        if look is None or look.generations[self.number] != self.generation:
            return since
        return min(look.silence[self.number], since)

    def forget(self) -> None:
        """Forget signs of life: a new state actor has none yet."""
        self._last_message, self.started = -math.inf, time.monotonic()

    def kill(self) -> bool:
        """End the process; Ray frees the rest."""
        if self.acts:
            self._requests.lost(self.number)
        if self._handle is not None and not self._cluster.lost:
            self._cluster.ray.kill(self._handle, no_restart=True)
        self._handle = None
        self._before = self._counters
        return True

    @property
    def pulled(self) -> int:
        """See :attr:`Worker.pulled`."""
        look = self._watch.look
        return NONE if look is None else look.pulled[self.number]

    def counter(self, name: str) -> int:
        """See :meth:`Worker.counter`."""
        return self._counters[name]


class RayEngine(Engine):
    """Runs actors and compressor on a Ray cluster; MissingExtraError without Ray."""

    def __init__(self, config: EngineConfig) -> None:
        import_ray()
        super().__init__(config)
        self._cluster: Cluster | None = None
        self._state: Any = None
        self._workers: list[RayWorker] = []
        self._publisher: Publisher | None = None
        self._head: HeadWatch | None = None
        self._requests = TrajectoryRequests(config, lambda actor: self._workers[actor].ask())

    # Starting and ending

    @ray_errors("actors could not be started on Ray")
    def _open(self, policy: Policy, observations: npt.NDArray[np.generic]) -> Supervisor:
        config, names = self._config, self._config.process_names()
        self._cluster = cluster = Cluster(len(names))
        self._state = cluster.remote(
            State,
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=100 + 4 * len(names),
            name=f"vinoreward-{uuid.uuid4().hex[:12]}",
            scheduling_strategy=cluster.beside_us(),
        ).remote(len(names))
        self._publisher = Publisher(self._send, lambda why: supervisor.fail(why))
        watch = StateWatch(self._state, self._publisher.resend)
        self._workers = [
            RayWorker(name, number, config, cluster, watch, self._requests)
            for number, name in enumerate(names)
        ]
        supervisor = Supervisor(self._workers, watch.wait, config)

        def lost(why: str) -> None:
            cluster.lost = True
            supervisor.fail(why)

        self._head = HeadWatch(cluster.head, lost)
        return supervisor

    def _settle(self) -> None:
        config, cluster = self._config, self._cluster
        if cluster is None or self._publisher is None:
            raise not_running()
        if not self._publisher.flush(config.start_timeout):
            raise EngineError(
                f"Ray started no process in {config.start_timeout:g} s. Expected a cluster "
                "that runs; look at it with `ray status`."
            )
        self._raise()
        asking = sum(worker.processors for worker in self._workers)
        if cluster.processors < asking:
            self._running.add_event(
                "ray",
                f"the cluster has {cluster.processors} processors for {asking} processes: "
                "some wait until there are more",
            )

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        try:
            if cluster.ray.is_initialized() and self._state is not None:
                self._end(cluster.ray)
        finally:
            cluster.close()

    def _end(self, ray: Any) -> None:
        self._state.stop.remote()
        for part in (self._head, self._supervisor, self._publisher):
            if part is not None:
                part.close()
        self._publisher = None
        with contextlib.suppress(ray.exceptions.RayError):
            # It answers earlier requests first.
            ray.get(self._state.look.remote(), timeout=END_PATIENCE)
        ray.kill(self._state, no_restart=True)

    # The learner's side

    def _publish(self, store: int, version: int, encoded: Encoded) -> None:
        if self._publisher is None:
            raise not_running()
        # The payload is a copy: the learner may change its weights meanwhile.
        self._publisher.publish(store, version, encoded.header, encoded.payload())

    @property
    def _source(self) -> TrajectorySource:
        return self._requests

    def sampled(self, count: int) -> None:
        """See :meth:`Engine.sampled`."""
        self._requests.sampled(count)

    def _progress(self) -> tuple[Sequence[int], int]:
        self._raise()
        look: Look = self._answer(self._state.look.remote())
        return look.pulled, look.compressed

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        latest: Published | None = self._answer(self._state.latest.remote(COMPRESSED))
        payload = None if latest is None else latest.fetch()
        if latest is None or payload is None:
            return None
        return decode(latest.header, payload.copy())

    # The state actor

    @ray_errors("the process that keeps the latest weights does not answer")
    def _answer(self, reference: Any) -> Any:
        return import_ray().get(reference, timeout=ANSWER_TIMEOUT)

    def _send(self, store: int, published: Published) -> None:
        self._answer(self._state.publish.remote(store, published))
