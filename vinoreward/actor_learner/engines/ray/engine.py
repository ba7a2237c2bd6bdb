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
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.actor import COUNTERS
from vinoreward.actor_learner.engines.base import Engine, EngineConfig, EngineError, not_running
from vinoreward.actor_learner.engines.ray.cluster import Cluster, HeadWatch, import_ray, ray_told
from vinoreward.actor_learner.engines.ray.requests import Arrived, TrajectoryRequests
from vinoreward.actor_learner.engines.ray.state import Published, Publisher, State
from vinoreward.actor_learner.engines.supervisor import END_PATIENCE, Supervisor
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, Trajectory
from vinoreward.policies.policy import Policy
from vinoreward.policies.wire import Encoded, decode

if TYPE_CHECKING:
    from vinoreward.actor_learner.engines.ray.processes import RayWorker

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
        super().__init__(config)
        self._cluster: Cluster | None = None
        self._state: Any = None
        self._workers: list[RayWorker] = []
        self._publisher: Publisher | None = None
        self._head: HeadWatch | None = None
        self._requests = TrajectoryRequests(
            config.trajectory.transitions,
            config.actor.actors,
            config.slots_per_actor,
            config.limiter,
            lambda actor: self._workers[actor].ask(),
        )

    # Starting and ending

    @ray_told("actors could not be started on Ray")
    def _open(self, policy: Policy, observations: npt.NDArray[np.generic]) -> Supervisor:
        from vinoreward.actor_learner.engines.ray.processes import RayWorker, StateWatch

        config = self._config
        names = [f"actor {number}" for number in range(config.actor.actors)]
        if config.compressor is not None:
            names.append("compressor")
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
        watch = StateWatch(self._state, self._state_lost)
        self._workers = [
            RayWorker(name, number, cluster, config, self._state, watch, self._requests)
            for number, name in enumerate(names)
        ]
        supervisor = self._supervise(self._workers, watch.wait)
        self._head = HeadWatch(cluster.head, supervisor.fail)
        self._publisher = Publisher(self._send, supervisor.fail)
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
            self._running.tell(
                "ray",
                f"the cluster has {cluster.processors} processors for {asking} processes: "
                "some wait until there are more",
            )

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
        self._state.stop.remote()
        if self._supervisor is not None:
            self._supervisor.close()
        if self._publisher is not None:
            self._publisher.close()
        with contextlib.suppress(ray.exceptions.RayError):
            # What it was asked before is answered then.
            ray.get(self._state.look.remote(), timeout=END_PATIENCE)
        ray.kill(self._state, no_restart=True)

    # The learner's side

    def _publish(self, store: int, version: int, encoded: Encoded) -> None:
        if self._publisher is None:
            raise not_running()
        # The payload is a copy: the learner may change its weights while this is on its way.
        self._publisher.publish(store, version, encoded.header, encoded.payload())

    def take(
        self, count: int, *, timeout: float, evenly: bool = False
    ) -> AbstractContextManager[Sequence[Trajectory]] | None:
        """See :meth:`Engine.take`."""
        taken = self._requests.take(count, timeout=timeout, stop=self._stopped, evenly=evenly)
        if taken is None:
            self._raise()
            return None
        return _open(self._requests, taken)

    def waiting(self) -> int:
        """See :meth:`Engine.waiting`."""
        return self._requests.waiting

    def sampled(self, count: int) -> None:
        """See :meth:`Engine.sampled`."""
        self._requests.sampled(count)

    def counters(self, names: Sequence[str] = COUNTERS) -> dict[str, int]:
        """See :meth:`Engine.counters`. Those of what has come, not of what is on its way."""
        return {name: sum(worker.counters[name] for worker in self._workers) for name in names}

    def everyone_has(self, version: int) -> bool:
        """See :meth:`Engine.everyone_has`."""
        self._raise()
        compressed = self._config.compressor is not None and self._settings.enabled_at(version)
        answer = self._state.everyone_has.remote(self._config.actor.actors, version, compressed)
        return bool(self._answer(answer))

    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        latest: Published | None = self._answer(self._state.latest.remote(COMPRESSED))
        payload = None if latest is None else latest.fetch()
        if latest is None or payload is None:
            return None
        return decode(latest.header, payload.copy())

    # The state actor

    @ray_told("the process that keeps the latest weights does not answer")
    def _answer(self, reference: Any) -> Any:
        return import_ray().get(reference, timeout=ANSWER_TIMEOUT)

    def _send(self, store: int, published: Published) -> None:
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
