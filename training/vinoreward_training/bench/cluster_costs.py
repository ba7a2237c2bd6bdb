"""Measures what a training on a cluster costs, on real parts: the numbers of the row ``cluster``.

An environment with a service, policies, an encoder and a learner in this process; Ray's processes
on two nodes that both run on this machine. Times are processor time, so that others' work on the
machine changes them little. Of a process with many threads, the busiest one limits the rate, and
all together take a machine's cores: figures ``NAME`` and ``NAME, all threads``.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np

from vinoreward.actor_learner.engines.ray.cluster import import_ray
from vinoreward.actor_learner.engines.ray.exchange import (
    Published,
    Query,
    State,
    TrajectoryRequests,
)
from vinoreward.actor_learner.transport.link import NONE
from vinoreward.actor_learner.transport.trajectory import (
    FULL_PRECISION,
    Trajectory,
    TrajectorySpec,
)
from vinoreward.backends.serving.places import FOLDER
from vinoreward.bundles.bundle import Bundle
from vinoreward.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward.policies.wire import decode, encode
from vinoreward.processes import environment_variables
from vinoreward_training.bench.cluster_model import INLINE_BYTES, Cluster, Costs
from vinoreward_training.bench.rows import Clock, Timing, interleaved
from vinoreward_training.bench.services import processor_seconds, running_services
from vinoreward_training.configs import BenchConfig

ENVIRONMENT = "PandaHoverRandom-v0"
STATES, PICTURES, LATENTS = "states", "pictures", "latents"
FULL_BITS, FEW_BITS = 32, 8
BITS = (FULL_BITS, FEW_BITS)
PARTS = {
    "motion": "environment",
    "render": "picture",
    "infer": "service call, the actor's part",
    "judge": "judging: guard, threshold and the rest",
}
"""Of an environment step."""
ASKED = 4
"""Trajectories that an actor is asked for at once, where Ray's part is measured."""
CALLS = 400
"""Of the process of the latest weights, in a round."""
PUSHES = 20
WAITING = 200
"""Signs of life that wait while weights are pushed."""
IDLE = 2.0
"""Seconds in which Ray's daemon is watched doing nothing."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
}
_STORE_BYTES = 200_000_000


def policies() -> dict[str, PolicySpec]:
    """Return the network that acts on each kind of observation."""
    convolutions = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # Mnih et al. 2015
    layers: list[Conv | Flatten | Dense] = []
    channels, height, width = 3, 96, 128
    picture = (channels, height, width)
    for number, (outputs, kernel, stride) in enumerate(convolutions):
        layers.append(Conv(f"conv{number}", channels, outputs, kernel, stride))
        height, width = ((side - kernel) // stride + 1 for side in (height, width))
        channels = outputs
    layers += [
        Flatten(),
        Dense("dense0", channels * height * width, 512, "relu"),
        Dense("head", 512, 4),
    ]
    return {
        STATES: mlp(4, 2, head="tanh_gaussian", value=True),
        PICTURES: PolicySpec(
            picture,
            tuple(layers),
            "tanh_gaussian",
            2,
            value=Dense("value", 512, 1),
            observation_dtype="uint8",
            scale=1 / 255,
        ),
        LATENTS: mlp(128, 2, head="tanh_gaussian", value=True),
    }


def trajectory(spec: TrajectorySpec, seed: int) -> Trajectory:
    """Return one of random steps in one episode, as a learner accepts it."""
    random = np.random.default_rng(seed)
    made = spec.empty()
    seen = random.integers(0, 256, (spec.steps + 1, *made.observations.shape[1:]))
    if spec.observation_dtype == "float32":
        seen = (seen / 128 - 1).astype(np.float32)
    made.observations[:], made.next_observations[:] = seen[:-1], seen[1:]
    made.actions[:] = random.uniform(-0.9, 0.9, made.actions.shape)
    made.rewards[:] = random.normal(size=made.rewards.shape)
    made.log_mu[:] = -1.0
    return made


# In this process


@dataclass
class Measured:
    """Figures by name: seconds of processor time, or bytes, one of each round or one of all."""

    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, *values: float) -> None:
        """Add a figure's values."""
        self.figures.setdefault(name, []).extend(map(float, values))

    def __getitem__(self, name: str) -> float:
        """Return a figure's median."""
        return float(np.median(self.figures[name]))

    def costs(self, kind: str, bits: int, cluster: Cluster) -> Costs:
        """Return a training's costs, for one kind of observation and bits of a push."""
        weights = f"{kind} {bits}"
        per = cluster.transitions
        encode_picture = self["encode"] if kind == LATENTS else 0.0
        return Costs(
            step=self["step"] + self[f"act {kind}"] + encode_picture,
            spread=self["spread"],
            picture=self["service"],
            send=self[f"send {kind}"],
            load=self[f"load {weights}"] + self[f"fetch {weights}"],
            trajectory=int(self[f"trajectory {kind}"]),
            weights=int(self[f"weights {weights}"]),
            store=self[f"store {kind}"],
            store_weights=self[f"store weights {weights}"],
            receive=self[f"receive {kind}"] + self["slots"],
            receive_actor=self["slots, each actor"],
            learn=self[f"learn {kind}"] / per,
            push=self[f"push {weights}"] + self[f"put {weights}"],
            call=self["call"],
            sign=self["sign"],
            wake=self["wake"],
        )


def measure(config: BenchConfig, cluster: Cluster, kinds: Sequence[str]) -> Measured:
    """Measure all that :meth:`Measured.costs` needs.

    Args:
        config: bundle, encoder, seed, and a quarter of the rounds.
        cluster: sizes of trajectories and updates.
        kinds: of observations, some of ``states``, ``pictures`` and ``latents``.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    found = Measured()
    rounds = max(2, config.rounds // 4)
    _in_this_process(found, config, cluster, kinds, rounds)
    with two_nodes() as nodes:
        _on_ray(found, cluster, kinds, rounds, nodes)
    return found


def _in_this_process(
    found: Measured, config: BenchConfig, cluster: Cluster, kinds: Sequence[str], rounds: int
) -> None:
    from vinoreward.encoders import Encoder
    from vinoreward.policies.backends.base import make_backend
    from vinoreward.policies.distributions import act
    from vinoreward_training.bench.rewards import Stepper, one_thread

    one_thread()
    random = np.random.default_rng(config.seed)
    candidates: dict[str, Callable[[], object]] = {}
    calls: dict[str, int] = {}

    def candidate(name: str, function: Callable[[], object], times: int) -> None:
        candidates[name], calls[name] = function, times

    with contextlib.ExitStack() as stack:
        clock = Clock(time.process_time)
        env = gym.make(ENVIRONMENT, bundle=config.bundle, service="shared")
        stack.callback(env.close)
        own: Any = env.unwrapped
        for name, part in {"home": "motion", "move_gripper": "motion", "render": "render"}.items():
            setattr(own.scene, name, clock.timed(part, getattr(own.scene, name)))
        for backend in own.classifier.backends:
            backend.infer = clock.timed("infer", backend.infer)
        step = clock.timed("judge", Stepper(env, config.seed))
        taken: list[dict[str, float]] = []

        def counted() -> None:
            step()
            taken.append(clock.take())

        candidate("step", counted, 50)
        encoder = stack.enter_context(Encoder(config.encoder))
        picture = np.ascontiguousarray(Bundle.load(config.encoder).golden.images[:1])
        candidate("encode", partial(encoder.encode, picture), 20)
        for kind in kinds:
            spec = policies()[kind]
            wire = TrajectorySpec.of(spec, cluster.steps, 1)
            found.add(f"trajectory {kind}", wire.nbytes)
            learner = _learner(spec, cluster)
            batch = [trajectory(wire, number) for number in range(cluster.trajectories)]
            candidate(f"learn {kind}", partial(learner.update, batch), 1)
            acting = stack.enter_context(make_backend("openvino", 1))
            acting.refresh(learner.policy(0))
            seen = np.ascontiguousarray(batch[0].observations[0])

            def choose(acting: Any = acting, spec: Any = spec, seen: Any = seen) -> None:
                act(spec, acting.infer(seen), random)

            candidate(f"act {kind}", choose, 50)
            for bits in BITS:
                encoded = encode(learner.policy(0), bits=bits)
                found.add(f"weights {kind} {bits}", encoded.nbytes)
                header, payload = encoded.header, encoded.payload()

                def push(learner: Any = learner, bits: int = bits) -> None:
                    encode(learner.policy(0), bits=bits).payload()

                def load(acting: Any = acting, header: Any = header, body: Any = payload) -> None:
                    acting.refresh(decode(header, body))

                candidate(f"push {kind} {bits}", push, 2)
                candidate(f"load {kind} {bits}", load, 2)
        counts = (150, 1500)
        for actors in counts:
            candidate(f"slots {actors}", Bookkeeping(actors, cluster), 100)
        # Loading, and what the first calls find out, are in no round.
        for function in candidates.values():
            function()
        taken.clear()
        times: Mapping[str, Timing] = interleaved(
            candidates, rounds=rounds, calls=calls, warm_up=1, settle=1
        )
        # One step after the other: what the service does between the other candidates is no part.
        pids = running_services(os.environ[FOLDER])
        used, steps = processor_seconds(pids), 50 * rounds
        for _ in range(steps):
            step()
        found.add("service", (processor_seconds(pids) - used) / steps)
    for name, timing in times.items():
        found.add(name, *timing.cpu)
    small, large = (np.array(found.figures[f"slots {actors}"]) for actors in counts)
    slope = (large - small) / (counts[1] - counts[0])
    found.add("slots, each actor", *slope)
    found.add("slots", *np.maximum(0.0, small - counts[0] * slope))
    sums = [sum(one.values()) for one in taken]
    found.add("spread", float(np.std(sums) / np.mean(sums)))
    for name in PARTS:
        found.add(f"step, {name}", float(np.mean([one.get(name, 0.0) for one in taken])))


def _learner(spec: PolicySpec, cluster: Cluster) -> Any:
    from vinoreward.actor_learner.learners.impala import Impala, ImpalaConfig

    told = ImpalaConfig(trajectories=cluster.trajectories, precision="fp32", device="cpu")
    return Impala(spec, told)


class Bookkeeping:
    """The learner's book about so many actors' slots: what one more trajectory costs."""

    def __init__(self, actors: int, cluster: Cluster) -> None:
        from vinoreward.actor_learner.acting.actor import ActorConfig
        from vinoreward.actor_learner.acting.environments import EnvironmentSpec
        from vinoreward.actor_learner.engines.base import EngineConfig

        spec = policies()[STATES]
        wire = TrajectorySpec.of(spec, cluster.steps, 1)
        acting = ActorConfig(EnvironmentSpec(ENVIRONMENT), spec, actors=actors)
        self.asked: list[int] = []
        """Actors that were asked for a trajectory, in order."""
        self._requests = TrajectoryRequests(
            EngineConfig(acting, wire, slots_per_actor=cluster.slots_of(actors)), self.asked.append
        )
        self._one = trajectory(wire, 0)
        self._requests.ask()

    def __call__(self) -> None:
        """Let a trajectory arrive, take it and release it."""
        actor = self.asked.pop(0)
        self._requests.arrived(replace(self._one, actor=actor))
        batch = self._requests.take(1, timeout=0.0, stop=lambda: False)
        if batch is not None:
            batch.close()


# On Ray


@dataclass(frozen=True)
class Nodes:
    """Two nodes of a cluster on this machine: the learner's, with this process, and another."""

    address: str
    other: str
    """Ray's id of the other node."""
    daemons: tuple[int, int]
    """Process ids of Ray's daemon on each."""

    def there(self, kind: type) -> Any:
        """Return a class whose instances run on the other node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(self.other, soft=False)
        return import_ray().remote(num_cpus=0, scheduling_strategy=strategy)(kind)


@contextlib.contextmanager
def two_nodes(processors: int = 8) -> Iterator[Nodes]:
    """Start a cluster of two nodes, and join it; both run on this machine.

    Raises:
        MissingExtraError: Ray is not installed.
    """
    ray = import_ray()
    from ray.cluster_utils import Cluster as RayCluster

    told: dict[str, Any] = {"num_cpus": processors, "object_store_memory": _STORE_BYTES}
    quiet = {k: v for k, v in _QUIET.items() if k not in os.environ}
    # Ray would note this cluster as the machine's own, for other trainings to join, and in the end
    # remove the note of one that runs.
    with (
        TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        environment_variables({**quiet, "RAY_TMPDIR": folder}),
    ):
        cluster: Any = RayCluster(
            initialize_head=True, head_node_args={**told, "include_dashboard": False}
        )
        try:
            ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
            here = ray.get_runtime_context().get_node_id()
            cluster.add_node(**told)
            cluster.wait_for_nodes()
            other = next(one["NodeID"] for one in ray.nodes() if one["NodeID"] != here)
            daemons = [
                one.all_processes["raylet"][0].process.pid
                for one in (cluster.head_node, *cluster.worker_nodes)
            ]
            yield Nodes(cluster.address, other, (daemons[0], daemons[1]))
        finally:
            ray.shutdown()
            cluster.shutdown()


def _on_ray(
    found: Measured, cluster: Cluster, kinds: Sequence[str], rounds: int, nodes: Nodes
) -> None:
    from vinoreward.actor_learner.engines.ray import links

    ray = import_ray()

    daemon = Threads(nodes.daemons[0])
    time.sleep(IDLE)
    idle = {thread: used / IDLE for thread, used in daemon.spent().items()}
    actors = {}
    for kind in kinds:
        nbytes = int(found[f"trajectory {kind}"])
        actors[kind] = nodes.there(links.RayProcess).remote(sys.path, flood, nbytes)
        ray.get(actors[kind].placed.remote())
    puller = nodes.there(Puller).remote()
    state = ray.remote(num_cpus=0, max_concurrency=1000)(StateWithPid).remote(WAITING)
    state_pid = ray.get(state.pid.remote())
    totals = Totals(idle)
    for index in range(rounds + 1):
        for kind in kinds:
            nbytes = int(found[f"trajectory {kind}"])
            count = 300 if nbytes <= INLINE_BYTES else 60
            received(kind, actors[kind], count, nodes, totals)
            for bits in BITS:
                _weights(found, f"{kind} {bits}", puller, daemon, totals)
        asked(state, Threads(state_pid), totals)
        if index == 0:  # the first round warms up
            totals.clear()
    # The kernel counts threads' time in hundredths of a second: one figure of all rounds.
    for name in totals.threads:
        found.add(name, totals.busiest(name))
        found.add(f"{name}, all threads", totals.all(name))


def _weights(found: Measured, name: str, puller: Any, daemon: Threads, totals: Totals) -> None:
    """Push weights, and let the other node fetch them."""
    ray = import_ray()
    payload = np.random.default_rng(0).integers(0, 256, int(found[f"weights {name}"]), np.uint8)
    for _ in range(10):
        own = time.process_time()
        published = Published.of(0, b"{}", payload)
        found.add(f"put {name}", time.process_time() - own)
        daemon.spent()
        began = time.perf_counter()
        found.add(f"fetch {name}", ray.get(puller.fetch.remote(published)))
        wall = time.perf_counter() - began
        totals.add(f"store weights {name}", daemon.spent(), 1, wall)


class Threads:
    """The processor time of each thread of a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[str, float] = {}
        self.spent()

    def spent(self) -> dict[str, float]:
        """Return each thread's seconds since the last call."""
        now: dict[str, float] = {}
        for task in Path(f"/proc/{self._pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                ticks = int(fields[11]) + int(fields[12])
                now[task.name] = ticks / os.sysconf("SC_CLK_TCK")
        before, self._before = self._before, now
        return {thread: seconds - before.get(thread, 0.0) for thread, seconds in now.items()}


class Totals:
    """Seconds of threads by figure, and of how many calls; without what a daemon takes idly."""

    def __init__(self, idle: Mapping[str, float]) -> None:
        self._idle = idle
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.threads: dict[str, dict[str, float]] = {}
        self._calls: Counter[str] = Counter()
        self._wall: dict[str, float] = {}

    def add(self, name: str, spent: Mapping[str, float], calls: int, wall: float = 0.0) -> None:
        """Add what calls took; ``wall`` seconds of them, if the daemon took it."""
        total = self.threads.setdefault(name, {})
        for thread, seconds in spent.items():
            total[thread] = total.get(thread, 0.0) + seconds
        self._calls[name] += calls
        self._wall[name] = self._wall.get(name, 0.0) + wall

    def _seconds(self, name: str) -> list[float]:
        wall = self._wall[name]
        spent = self.threads[name].items()
        return [max(0.0, each - wall * self._idle.get(one, 0.0)) for one, each in spent]

    def busiest(self, name: str) -> float:
        """Return the seconds of the busiest thread in one call."""
        return max(self._seconds(name), default=0.0) / self._calls[name]

    def all(self, name: str) -> float:
        """Return the seconds of all threads in one call."""
        return sum(self._seconds(name)) / self._calls[name]


class Puller:
    """An actor that fetches weights as actors' links do."""

    def fetch(self, published: Published) -> float:
        """Return the processor time that it took."""
        began = time.process_time()
        published.fetch()
        return time.process_time() - began


class StateWithPid(State):
    """The process of the latest weights; it tells its process id, too."""

    async def pid(self) -> int:
        """Return it."""
        return os.getpid()


def flood(process: Any, nbytes: int) -> None:
    """Send a trajectory's bytes whenever the learner asks for one; runs in a RayProcess."""
    header = json.dumps({"pid": os.getpid(), "number": 0, "reports": [], "counters": {}}).encode()
    while process.wait_asked(lambda: False):
        process.put((header, np.ones(nbytes, np.uint8)))


def received(kind: str, actor: Any, count: int, nodes: Nodes, totals: Totals) -> None:
    """Ask an actor for trajectories and receive them as the engine does; add what that took."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        actor.next.remote().future().add_done_callback(answers.put)

    def pid_of_next() -> int:
        header, _ = answers.get().result()
        return int(json.loads(header)["pid"])

    ask()
    pids = {"receive": os.getpid(), "send": pid_of_next(), "store": nodes.daemons[0]}
    threads = {name: Threads(pid) for name, pid in pids.items()}
    began = time.perf_counter()
    for number in range(count + ASKED):
        if number >= ASKED:
            pid_of_next()
        if number < count:
            ask()
    wall = time.perf_counter() - began
    for name, one in threads.items():
        totals.add(f"{name} {kind}", one.spent(), count, wall if name == "store" else 0.0)


def asked(state: Any, threads: Threads, totals: Totals) -> None:
    """Add what questions, signs of life and pushes cost the process of the latest weights."""
    ray = import_ray()
    query = Query(0, 0, 0, 0)

    def signs(count: int, patience: float) -> list[Any]:
        return [state.sync.remote(query, 0, None, patience) for _ in range(count)]

    pull = partial(state.pull.remote, query, FULL_PRECISION, 1 << 30, 0.0)
    published = Published(NONE, b"{}", np.zeros(8, np.uint8))
    push = partial(state.publish.remote, FULL_PRECISION, published)

    threads.spent()
    ray.get([pull() for _ in range(CALLS)])
    totals.add("call", threads.spent(), CALLS)
    # They wait for news, as actors' do, and none comes.
    ray.get(signs(CALLS, 0.2))
    totals.add("sign", threads.spent(), CALLS)
    waiting = signs(WAITING, 3.0)
    ray.get(state.look.remote())
    threads.spent()
    for _ in range(PUSHES):
        ray.get(push())
    totals.add("wake", threads.spent(), PUSHES * WAITING)
    ray.get(waiting)
