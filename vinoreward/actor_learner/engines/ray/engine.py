"""The engine of a cluster: actors and compressor as Ray actors, the learner in this process.

Every machine needs the same versions of Python and of vinoreward::

    pip install '.[ray]'                     # in a copy of the repository, on all of them;
                                             # the compressor's also needs [train]
    ray start --head --port=6379             # on the learner's
    ray start --address=LEARNER:6379         # on each other one

and the training is run on the first with ``engine="ray"``. It finds the cluster there; elsewhere
``RAY_ADDRESS=LEARNER:6379`` names it. Without a cluster, one is started on this machine and ended
with the training. Where Ray asks for a token, ``ray get-auth-token --generate`` on the first
machine makes one, which goes into ``~/.ray/auth_token`` of the others.

Actors are spread over the machines and ask for one processor each. So does the compressor, but if
there is a folder for its state it runs on the learner's machine, whatever is free there. An
environment that is given as ``module:function`` has to be importable on all of them.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.actor import COUNTERS
from vinoreward.actor_learner.engines.base import Engine, EngineConfig, EngineError, Messages
from vinoreward.actor_learner.engines.budget import RestartBudget
from vinoreward.actor_learner.engines.ray.cluster import Cluster, HeadWatch, import_ray, ray_told
from vinoreward.actor_learner.engines.ray.payload import body_of, fetch
from vinoreward.actor_learner.engines.ray.publisher import Publisher
from vinoreward.actor_learner.engines.ray.requests import Arrived, TrajectoryRequests
from vinoreward.actor_learner.engines.ray.starter import Starter, keeps_state
from vinoreward.actor_learner.engines.ray.state import (
    COMPRESSED,
    FULL,
    OBSERVATIONS,
    SETTINGS,
    Published,
    State,
)
from vinoreward.actor_learner.engines.ray.supervisor import RaySupervisor
from vinoreward.actor_learner.engines.ray.worker_slot import WorkerSlot
from vinoreward.actor_learner.transport.actor_settings import ActorSettings
from vinoreward.actor_learner.transport.trajectory import Trajectory
from vinoreward.policies.policy import Policy
from vinoreward.policies.wire import Bytes, decode, encode

END_PATIENCE = 3.0
SAVE_PATIENCE = 10.0
"""Seconds that processes are given to end by themselves; a compressor may have its state to write.
"""
ANSWER_TIMEOUT = 60.0
"""Seconds that the state actor may take to answer: it may be in the middle of a restart."""


class RayEngine(Engine):
    """Runs actors and compressor on a Ray cluster.

    Args:
        config: what they do.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, config: EngineConfig) -> None:
        import_ray()
        self._config = config
        self._cluster: Cluster | None = None
        self._state: Any = None
        self._supervisor: RaySupervisor | None = None
        self._publisher: Publisher | None = None
        self._head: HeadWatch | None = None
        self._settings = ActorSettings()
        self._numbers = {SETTINGS: 0, OBSERVATIONS: 0}

    # Starting and ending

    @ray_told("actors could not be started on Ray")
    def start(
        self,
        policy: Policy,
        settings: ActorSettings,
        observations: npt.NDArray[np.generic],
        bits: int | None = None,
    ) -> None:
        """See :meth:`Engine.start`.

        Raises:
            EngineError: no cluster, or its first process does not start.
        """
        config = self._config
        processes = config.actor.actors + (config.compressor is not None)
        try:
            self._cluster = cluster = Cluster(processes)
            self._state = cluster.remote(
                State,
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=100 + 4 * processes,
                name=f"vinoreward-{uuid.uuid4().hex[:12]}",
                scheduling_strategy=cluster.beside_us(),
            ).remote(processes)
            slots = self._slots(Starter(cluster, config, self._state))
            self._supervisor = RaySupervisor(
                cluster.ray, config, self._state, slots, self._state_lost
            )
            self._head = HeadWatch(cluster.head, self._supervisor.fail)
            self._publisher = Publisher(self._send, self._again, self._supervisor.fail)
            # They wait for settings and weights, and start meanwhile.
            self._supervisor.start()
            self.configure(settings)
            self.give_observations(observations)
            self.publish(policy, bits)
            if not self._publisher.flush(config.start_timeout):
                raise EngineError(
                    f"Ray started no process in {config.start_timeout:g} s. Expected a cluster "
                    "that runs; look at it with `ray status`."
                )
            self._raise()
            asking = processes - keeps_state(config)
            if cluster.processors < asking:
                self._supervisor.tell(
                    "ray",
                    f"the cluster has {cluster.processors} processors for {asking} processes: "
                    "some wait until there are more",
                )
        except BaseException:
            self.close()
            raise

    def _slots(self, starter: Starter) -> list[WorkerSlot]:
        config = self._config
        actors = config.actor.actors
        slots = [
            WorkerSlot(
                f"actor {number}",
                number,
                partial(starter.actor, number),
                RestartBudget(config.restarts),
            )
            for number in range(actors)
        ]
        if config.compressor is not None:
            budget = RestartBudget(config.restarts)
            slots.append(WorkerSlot("compressor", actors, starter.compressor, budget))
        return slots

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        if self._head is not None:
            self._head.close()
        try:
            if cluster.ray.is_initialized() and self._state is not None:
                self._end(cluster.ray)
        finally:
            cluster.close()

    def _end(self, ray: Any) -> None:
        saving = keeps_state(self._config)
        self._state.stop.remote()
        if self._supervisor is not None:
            self._supervisor.close(SAVE_PATIENCE if saving else END_PATIENCE)
        if self._publisher is not None:
            self._publisher.close()
        with contextlib.suppress(ray.exceptions.RayError):
            # What it was asked before is answered then.
            ray.get(self._state.look.remote(), timeout=END_PATIENCE)
        ray.kill(self._state, no_restart=True)

    # The learner's side

    def publish(self, policy: Policy, bits: int | None = None) -> None:
        """See :meth:`Engine.publish`."""
        encoded = encode(policy, bits=self._config.bits if bits is None else bits)
        # The payload is a copy: the learner may change its weights while this is on its way.
        self._sender.publish(FULL, policy.version, encoded.header, encoded.payload())

    def give_observations(self, observations: npt.NDArray[np.generic]) -> None:
        """See :meth:`Engine.give_observations`."""
        if self._config.compressor is None:
            return
        rows = np.array(observations[-self._config.observations :], order="C")
        header = json.dumps({"dtype": rows.dtype.name, "shape": rows.shape}).encode()
        self._numbered(OBSERVATIONS, header, rows.reshape(-1).view(np.uint8))

    def configure(self, settings: ActorSettings) -> None:
        """See :meth:`Engine.order`."""
        self._settings = settings
        self._numbered(SETTINGS, settings.to_json(), np.empty(0, dtype=np.uint8))

    def _numbered(self, store: str, header: bytes, payload: Bytes) -> None:
        number = self._numbers[store]
        self._numbers[store] = number + 1
        self._sender.publish(store, number, header, payload)

    @property
    def _sender(self) -> Publisher:
        if self._publisher is None:
            raise EngineError("the engine does not run. Expected start() first, and no close() yet")
        return self._publisher

    @property
    def _running(self) -> RaySupervisor:
        if self._supervisor is None:
            raise EngineError("the engine does not run. Expected start() first, and no close() yet")
        return self._supervisor

    def take(
        self, count: int, *, timeout: float, evenly: bool = False
    ) -> AbstractContextManager[Sequence[Trajectory]] | None:
        """See :meth:`Engine.take`."""
        supervisor = self._running
        taken = supervisor.requests.take(
            count, timeout=timeout, stop=lambda: bool(supervisor.failure), evenly=evenly
        )
        if taken is None:
            self._raise()
            return None
        return _open(supervisor.requests, taken)

    def waiting(self) -> int:
        """See :meth:`Engine.waiting`."""
        return self._running.requests.waiting

    def sampled(self, count: int) -> None:
        """See :meth:`Engine.sampled`."""
        self._running.requests.sampled(count)

    def counters(self, names: Sequence[str] = COUNTERS) -> dict[str, int]:
        """See :meth:`Engine.counters`. Those of what has come, not of what is on its way."""
        found = self._running.counters()
        return {name: found[name] for name in names}

    def everyone_has(self, version: int) -> bool:
        """See :meth:`Engine.everyone_has`."""
        self._raise()
        compressed = self._config.compressor is not None and self._settings.enabled_at(version)
        answer = self._state.everyone_has.remote(self._config.actor.actors, version, compressed)
        return bool(self._answer(answer))

    def pulled(self) -> Sequence[int]:
        """See :meth:`Engine.pulled`."""
        return self._running.pulled

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        latest: Published | None = self._answer(self._state.latest.remote(COMPRESSED))
        payload = None if latest is None else fetch(latest)
        if latest is None or payload is None:
            return None
        return decode(latest.header, payload.copy())

    def messages(self) -> Messages:
        """See :meth:`Engine.messages`."""
        found = self._running.messages()
        self._raise()
        return found

    def _raise(self) -> None:
        if self._supervisor is not None and self._supervisor.failure:
            raise EngineError(self._supervisor.failure)

    # The state actor

    @ray_told("the process that keeps the latest weights does not answer")
    def _answer(self, reference: Any) -> Any:
        return import_ray().get(reference, timeout=ANSWER_TIMEOUT)

    def _send(self, store: str, version: int, header: bytes, payload: Bytes) -> Published:
        published = Published(version, header, body_of(payload))
        self._again(store, published)
        return published

    def _again(self, store: str, published: Published) -> None:
        self._answer(self._state.publish.remote(store, published))

    def _state_lost(self) -> None:
        if self._publisher is not None:
            self._publisher.resend()


@contextlib.contextmanager
def _open(requests: TrajectoryRequests, taken: list[Arrived]) -> Iterator[Sequence[Trajectory]]:
    try:
        yield tuple(one.trajectory for one in taken)
    finally:
        requests.release(taken)
