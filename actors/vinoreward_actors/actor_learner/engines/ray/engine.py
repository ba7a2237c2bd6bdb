"""The engine of a cluster: actors and compressor as Ray actors, the learner in this process.

One call of each process is under way: an actor fills one trajectory, the compressor compresses one
version. A call takes references to the latest weights along.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.engines.base import Event, in_short, not_running
from vinoreward_actors.actor_learner.engines.ray.cluster import (
    Cluster,
    import_ray,
    ray_errors,
    reason_of,
)
from vinoreward_actors.actor_learner.engines.ray.process import Order, Published, RayProcess, Result
from vinoreward_actors.actor_learner.engines.workers import (
    SAVE_PATIENCE,
    Ended,
    Observations,
    Worker,
    WorkerEngine,
)
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Encoded, decode

FETCH_TIMEOUT = 60.0


class RayWorker(Worker):
    """An actor or the compressor; each generation is a Ray actor of its own.

    ``weights`` are the latest by network, shared with the engine; compressed ones are put there.
    """

    def __init__(
        self,
        name: str,
        number: int,
        config: EngineConfig,
        cluster: Cluster,
        weights: dict[int, Published],
    ) -> None:
        super().__init__(name, number, config)
        self._cluster, self._ray, self._weights = cluster, cluster.ray, weights
        self.saves = not self.acts and config.folder is not None
        # The state goes to the learner's disk, from where a resumed run reads it. That machine's
        # processors may all be taken by actors.
        self.processors = 0 if self.saves else 1
        self._handle: Any = None
        self.result: Any = None  # the reference to that of the call under way
        self._given: tuple[Observations | None, list[Any]] = (None, [])

    def start(self) -> None:
        """See :meth:`Worker.start`."""
        remote = self._ray.remote(
            num_cpus=self.processors,
            scheduling_strategy=self._cluster.beside_us() if self.saves else "SPREAD",
        )
        # An actor's without the chain, which may import torch.
        config = replace(self._config, chain=None) if self.acts else self._config
        pickled = self._ray.cloudpickle.dumps(config)
        handle = remote(RayProcess).remote(sys.path, self.number, self.generation, pickled)
        self._handle, self._ask = handle, handle.call.options(num_returns=2)
        self.result, self._payload = self._ask.remote(None)

    def call(self, settings: ActorSettings, observations: Observations | None) -> None:
        """See :meth:`Worker.call`; Ray keeps the order of calls."""
        if observations is not None and observations is not self._given[0]:
            self._given = observations, [self._ray.put(observations)]
        order = Order(settings, dict(self._weights), self._given[1])
        self.result, self._payload = self._ask.remote(order)

    def messages(self) -> list[tuple[str, Any]]:
        """See :meth:`Worker.messages`."""
        ray, reference = self._ray, self.result
        if reference is None or not ray.wait([reference], timeout=0)[0]:
            return []
        self.result = None
        try:
            result: Result = ray.get(reference)
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            return [("ended", Ended("died" if self.begun else reason_of(error), str(error)))]
        found = list(result.sent)
        if result.error:
            return [*found, ("ended", Ended(in_short(result.error), result.error))]
        if not self.begun:
            return [("begun", None)]
        if not self.acts:
            if result.made is not None:
                self._weights[COMPRESSED] = Published(*result.made, [self._payload])
            return [*found, ("compressed", result.made is not None)]
        if result.payload is not None:
            view = self._config.trajectory.view(result.payload, self.number, self.generation)
            found.append(("filled", (result.counts, view)))
        return found

    def hangs(self, now: float) -> str:
        """See :meth:`Worker.hangs`; a process that the cluster has no room for may wait for it."""
        config = self._config
        # A call gives no signs of life, and a trajectory may contain resets.
        longest = config.start_timeout + config.run.heartbeat if self.acts else config.longest_push
        hung = self.begun and self.calls > 0 and now - self.sign > longest
        return f"gave no result for {longest:g} s" if hung else ""

    def end(self) -> bool:
        """See :meth:`Worker.end`."""
        self._ray.kill(self._handle)
        self.result = None
        return True


class RayEngine(WorkerEngine[RayWorker]):
    """Runs actors and compressor on a Ray cluster; MissingExtraError without Ray."""

    def __init__(self, config: EngineConfig) -> None:
        import_ray()
        super().__init__(config)
        self._cluster: Cluster | None = None
        self._weights: dict[int, Published] = {}

    @ray_errors("actors could not be started on Ray")
    def _open(self, policy: Policy) -> None:
        config, names = self._config, self._config.process_names()
        self._cluster = cluster = Cluster(len(names))
        self._workers = [
            RayWorker(name, number, config, cluster, self._weights)
            for number, name in enumerate(names)
        ]
        processors = int(cluster.ray.cluster_resources().get("CPU", 0))
        asking = sum(worker.processors for worker in self._workers)
        if processors < asking:
            what = f"the cluster has {processors} processors for {asking} processes: some wait"
            self._messages.events.append(Event("ray", f"{what} until there are more"))

    @property
    def _ray(self) -> Any:
        if self._cluster is None:
            raise not_running()
        return self._cluster.ray

    @ray_errors("Ray failed")
    def _look(self, seconds: float) -> None:
        super()._look(seconds)

    def _wait(self, workers: Sequence[RayWorker], seconds: float) -> None:
        results = [one.result for one in workers if one.result is not None]
        if results:
            self._ray.wait(results, timeout=seconds)
        else:
            time.sleep(seconds)

    def _publish(self, encoded: Encoded, version: int) -> None:
        body = [self._ray.put(encoded.payload())]
        self._weights[FULL_PRECISION] = Published(version, encoded.header, body)

    @ray_errors("the compressed weights cannot be fetched")
    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        self._look(0.0)
        latest = self._weights.get(COMPRESSED)
        if latest is None:
            return None
        try:
            payload = self._ray.get(latest.body[0], timeout=FETCH_TIMEOUT)
        except self._ray.exceptions.ObjectLostError:
            return None
        return decode(latest.header, payload.copy())

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        cluster, self._cluster = self._cluster, None
        workers, self._workers = self._workers, []
        if cluster is None:
            return
        try:
            if cluster.ray.is_initialized():
                for worker in workers:
                    if worker.saves and worker.begun and self._save_is_due:
                        worker.call(self._settings, None)
                        cluster.ray.wait([worker.result], timeout=SAVE_PATIENCE)
                for worker in workers:
                    worker.end()
        finally:
            cluster.close()
