"""The engine of a cluster: actors and compressor as Ray actors, the learner in this process.

The learner keeps one call of each process under way: an actor fills one trajectory, the compressor
compresses one version. A call takes references to the latest weights along. Whatever ends a call
early (a death, an error, a hang) costs that call alone; Ray starts the process again.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.acting.actor import COUNTERS
from vinoreward_actors.actor_learner.engines.base import (
    Engine,
    EngineError,
    Event,
    Messages,
    in_short,
    not_running,
)
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.ray.cluster import (
    Cluster,
    import_ray,
    ray_errors,
    reason_of,
)
from vinoreward_actors.actor_learner.engines.ray.process import Order, Published, RayProcess
from vinoreward_actors.actor_learner.engines.supervisor import (
    SAVE_PATIENCE,
    RestartBudget,
    too_often,
)
from vinoreward_actors.actor_learner.transport.link import NONE
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Batch,
    Trajectory,
)
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.wire import Encoded, decode

FETCH_TIMEOUT = 60.0
LOOK_EVERY = 0.1
"""Maximum seconds of one wait for calls."""


@dataclass
class _Process:
    """An actor or the compressor, and its call under way."""

    name: str
    number: int
    handle: Any
    budget: RestartBudget
    generation: int = 0
    call: Any = None  # the reference to the result; None if there is no call
    made: Any = None  # the reference to the compressor's second result
    asked: str = ""  # which method
    since: float = 0.0  # when
    here: int = 0  # trajectories that the learner has not released yet
    pulled: int = NONE
    report: str = ""  # the last one of an error
    abandoned: bool = False


class RayEngine(Engine):
    """Runs actors and compressor on a Ray cluster; MissingExtraError without Ray."""

    def __init__(self, config: EngineConfig) -> None:
        import_ray()
        super().__init__(config)
        self._cluster: Cluster | None = None
        self._stores: dict[int, Published] = {}
        self._processes: list[_Process] = []
        self._ready: list[Trajectory] = []
        self._counters: Counter[str] = Counter()
        self._samples = 0
        self._seen = (NONE, 0)
        """Version and save request that the compressor got last."""
        self._messages = Messages()
        self._failure = ""

    # Starting and ending

    @ray_errors("actors could not be started on Ray")
    def _open(self, policy: Policy, observations: npt.NDArray[np.generic]) -> None:
        names = self._config.process_names()
        self._cluster = cluster = Cluster(len(names))
        for number, name in enumerate(names):
            budget = RestartBudget(self._config.restarts)
            process = _Process(name, number, None, budget)
            process.handle = self._new(cluster, process)
            self._processes.append(process)
        processors = int(cluster.ray.cluster_resources().get("CPU", 0))
        asking = sum(self._processors(process) for process in self._processes)
        if processors < asking:
            what = f"the cluster has {processors} processors for {asking} processes: some wait"
            self._messages.events.append(Event("ray", f"{what} until there are more"))

    def _processors(self, process: _Process) -> int:
        # The state goes to the learner's disk, from where a resumed run reads it. That machine's
        # processors may all be taken by actors.
        return 0 if self._saves(process) else 1

    def _saves(self, process: _Process) -> bool:
        compressor = self._config.compressor
        return not self._acts(process) and compressor is not None and compressor.folder is not None

    def _acts(self, process: _Process) -> bool:
        return process.number < self._config.actor.actors

    def _new(self, cluster: Cluster, process: _Process) -> Any:
        remote = cluster.ray.remote(
            num_cpus=self._processors(process),
            max_restarts=-1,  # within the budget, which the learner keeps
            scheduling_strategy=cluster.beside_us() if self._saves(process) else "SPREAD",
        )
        config = self._config
        if self._acts(process):
            # Without the chain, which may import torch.
            config = dataclasses.replace(config, compressor=None)
        # By value: Ray may start the process again at any time.
        pickled = cluster.ray.cloudpickle.dumps(config)
        return remote(RayProcess).remote(sys.path, process.number, pickled)

    def _begin(self) -> None:
        for process in self._processes:
            self._call(process, "placed")

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        try:
            if cluster.ray.is_initialized():
                self._save(cluster.ray)
                for process in self._processes:
                    cluster.ray.kill(process.handle)
        finally:
            self._processes, self._ready = [], []
            cluster.close()

    def _save(self, ray: Any) -> None:
        """Let the compressor save its state, if that was asked for."""
        process = self._processes[-1] if self._processes else None
        if process is None or not self._saves(process) or process.abandoned:
            return
        if self._settings.save <= self._seen[1] or FULL_PRECISION not in self._stores:
            return
        # After the call under way: Ray keeps their order.
        saved, _ = process.handle.compress.options(num_returns=2).remote(self._order(process), True)
        ray.wait([saved], timeout=SAVE_PATIENCE)

    # Calls

    @property
    def _running(self) -> Cluster:
        if self._cluster is None:
            raise not_running()
        return self._cluster

    @property
    def _ray(self) -> Any:
        return self._running.ray

    def _order(self, process: _Process) -> Order:
        return Order(process.generation, dict(self._stores))

    def _call(self, process: _Process, method: str) -> None:
        process.asked, process.since = method, time.monotonic()
        if method == "placed":
            process.call = process.handle.placed.remote()
        elif method == "rollout":
            process.call = process.handle.rollout.remote(self._order(process))
        else:
            remote = process.handle.compress.options(num_returns=2)
            process.call, process.made = remote.remote(self._order(process))

    def _call_all(self) -> None:
        """Ask idle processes for what is allowed; first the actors that have least here."""
        idle = [one for one in self._processes if one.call is None and not one.abandoned]
        for process in sorted(idle, key=lambda one: one.here):
            if not self._acts(process):
                newest = (self._stores[FULL_PRECISION].version, self._settings.save)
                if newest != self._seen:
                    self._seen = newest
                    self._call(process, "compress")
            elif process.here < self._config.slots_per_actor and self._may_insert():
                self._call(process, "rollout")

    def _may_insert(self) -> bool:
        limiter, size = self._config.limiter, self._config.trajectory.transitions
        if limiter is None:
            return True
        under_way = sum(one.asked == "rollout" for one in self._processes if one.call is not None)
        inserted = self._counters["steps"] + size * under_way
        return limiter.can_insert(inserted, self._samples, size)

    @ray_errors("Ray failed")
    def _look(self, timeout: float) -> None:
        """Wait for results of calls, and ask for the next."""
        ray = self._ray
        self._call_all()
        calls = {one.call: one for one in self._processes if one.call is not None}
        if not calls:
            time.sleep(min(timeout, LOOK_EVERY))
            return
        done, _ = ray.wait(list(calls), timeout=timeout)
        if done:
            done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in done:
            self._returned(calls[call])
        for process in self._processes:
            self._check(process)
        self._call_all()

    def _returned(self, process: _Process) -> None:
        ray, call = self._ray, process.call
        process.call = None
        try:
            result = ray.get(call)
        except ray.exceptions.ActorUnavailableError:
            if process.asked == "placed":  # Ray still starts it again
                self._call(process, "placed")
            else:
                self._replace(process, "died")
            return
        except ray.exceptions.ActorDiedError as error:
            # It did not even start: ask for another one.
            process.handle = self._new(self._running, process)
            self._replace(process, reason_of(error), str(error))
            return
        for kind, value in result.sent:
            self._messages.add(process.number, kind, value)
        if result.error:
            self._replace(process, in_short(result.error), result.error)
            return
        process.pulled = max(process.pulled, result.pulled)
        if result.payload is not None:
            process.budget.worked()
            self._counters.update(result.counts)
            process.here += 1
            view = self._config.trajectory.view(result.payload, process.number, process.generation)
            self._ready.append(view)
        if result.made is not None:
            process.budget.worked()
            version, header = result.made
            self._stores[COMPRESSED] = Published(version, header, [process.made])

    def _check(self, process: _Process) -> None:
        """End a process whose call takes too long; Ray starts it again."""
        config = self._config
        # A trajectory may contain resets.
        longest = (
            config.start_timeout + config.heartbeat if self._acts(process) else config.longest_push
        )
        hangs = process.call is not None and time.monotonic() - process.since > longest
        if hangs and process.asked != "placed":
            self._ray.kill(process.handle, no_restart=False)
            process.call = None
            self._replace(process, f"gave no result for {longest:g} s")

    def _replace(self, process: _Process, why: str, report: str = "") -> None:
        process.generation += 1
        process.report, process.pulled = report or process.report, NONE
        if process.budget.spend():
            what = f"{why}; replaced by generation {process.generation}"
            self._messages.events.append(Event(process.name, what))
            self._seen = self._seen if self._acts(process) else (NONE, self._seen[1])
            self._call(process, "placed")
            return
        process.abandoned = True
        self._ray.kill(process.handle)
        if all(one.abandoned for one in self._processes if self._acts(one)):
            name, restarts = process.name, self._config.restarts
            self._failure = too_often(name, restarts, why, process.report or why)
        else:
            what = f"{why}; replaced too often, training goes on without it"
            self._messages.events.append(Event(process.name, what))

    # The learner's side

    def _publish(self, store: int, version: int, encoded: Encoded) -> None:
        body = [self._ray.put(encoded.payload())] if encoded.size else []
        self._stores[store] = Published(version, encoded.header, body)

    def take(self, count: int, *, timeout: float) -> Batch | None:
        """See :meth:`Engine.take`."""
        room = self._config.slots_per_actor * self._config.actor.actors
        if not 1 <= count <= room:
            raise ConfigError(field="count", value=count, expected=f"1 to {room}")
        deadline = time.monotonic() + timeout
        self._look(0.0)
        while len(self._ready) < count:
            left = deadline - time.monotonic()
            if self._failure:
                raise EngineError(self._failure)
            if left <= 0:
                return None
            self._look(min(left, LOOK_EVERY))
        taken, self._ready = self._ready[:count], self._ready[count:]
        return Batch(taken, lambda: self._release(taken))

    def _release(self, taken: Sequence[Trajectory]) -> None:
        for one in taken:
            if self._processes:
                self._processes[one.actor].here -= 1

    def waiting(self) -> int:
        """See :meth:`Engine.waiting`."""
        self._look(0.0)
        return len(self._ready)

    def sampled(self, count: int) -> None:
        """See :meth:`Engine.sampled`."""
        self._samples += count

    def counters(self, names: Sequence[str] = COUNTERS) -> dict[str, int]:
        """See :meth:`Engine.counters`."""
        return {name: self._counters[name] for name in names}

    def pulled(self) -> Sequence[int]:
        """See :meth:`Engine.pulled`."""
        return [process.pulled for process in self._processes]

    @ray_errors("the compressed weights cannot be fetched")
    def compressed_policy(self) -> Policy | None:
        """See :meth:`Engine.compressed_policy`."""
        self._look(0.0)
        latest = self._stores.get(COMPRESSED)
        if latest is None:
            return None
        try:
            payload = self._ray.get(latest.body[0], timeout=FETCH_TIMEOUT)
        except self._ray.exceptions.ObjectLostError:
            return None
        return decode(latest.header, payload.copy())

    def messages(self) -> Messages:
        """See :meth:`Engine.messages`."""
        self._look(0.0)
        if self._failure and not self._ready:
            raise EngineError(self._failure)
        messages, self._messages = self._messages, Messages()
        return messages
