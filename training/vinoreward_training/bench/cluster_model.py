"""A cluster as a network of queues: what saturates first, and what a training gets out of it.

Actors of a node share its services. Their trajectories pass the node's network card, the learner's
card, Ray's object store on the learner's machine and the thread that receives them, and wait for
the learner. Weights go back: a call to the process that keeps the latest ones, the object store,
the learner's card. docs/sizing-a-cluster.md says what is left out.

:func:`limits` is the bottleneck law (Denning and Buzen 1978): no station is busy for more than all
of the time. :func:`simulate` plays the same stations event by event, with their queues.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from vinoreward.errors import ConfigError

CORES = "nodes' cores"
NODE_CARD = "node's card"
CARD_IN, CARD_OUT = "learner's card, in", "learner's card, out"
STORE = "object store"
RECEIVING = "receiving"
LATEST = "latest weights"
LEARNER = "learner"
STATIONS = (CORES, NODE_CARD, CARD_IN, STORE, RECEIVING, LEARNER, LATEST, CARD_OUT)
"""In the order that a trajectory and then its weights pass them."""
INLINE_BYTES = 64 << 10
"""Smaller pushes travel in each actor's answer; larger ones once to a node, as Ray's objects."""
FULL = 0.8
"""A node has as many services as are busy for at most this part of the time."""
_BITS = 8
_GIGA = 1e9


@dataclass(frozen=True)
class Costs:
    """What a training costs. Seconds are processor time of one core of the measured machine."""

    step: float
    """Actor's process, an environment step: environment, picture, call, judging, acting."""
    spread: float
    """Standard deviation of a step's time over its mean."""
    picture: float
    """Service's process, a picture; 0 without a service."""
    send: float
    """Actor's process, a trajectory into Ray."""
    load: float
    """Actor's process, new weights until they act."""
    trajectory: int
    """Bytes of a trajectory."""
    weights: int
    """Bytes of a push."""
    store: float
    """Ray's daemon on the learner's machine, a trajectory."""
    store_weights: float
    """… and weights that go to one node."""
    receive: float
    """Learner's process, a trajectory: out of Ray, and the book about all actors' slots."""
    receive_actor: float
    """… more of it for each actor that there is."""
    learn: float
    """Learner, a sampled transition."""
    push: float
    """Learner, a push: a copy of the weights, coded, into the object store."""
    call: float
    """Process of the latest weights, a pull's question, or a push."""
    sign: float
    """… an actor's sign of life."""
    wake: float
    """… a push, for each actor whose sign of life waits there."""


@dataclass(frozen=True)
class Cluster:
    """Nodes of actors, and a machine for the learner; words as in ActorLearnerConfig."""

    nodes: int
    cores: int = 16
    """Of a node. One is kept for Ray and the system."""
    gbits: float = 10.0
    """Bandwidth of every network card, in 10^9 bits a second, each way."""
    steps: int = 20
    """T, of a trajectory."""
    trajectories: int = 16
    """Of an update."""
    slots: int | None = None
    """Trajectories of an actor that are on their way or wait; None for as many as a training of
    ours has: two, or one more than an actor's part of an update."""
    pull_period: int = 100
    push_period: int = 1
    samples_per_insert: float = 1.0
    max_lag: int | None = 100
    """Pushes; None for a learner that drops nothing, as those with a replay."""
    beat: float = 0.5
    """Seconds between an actor's signs of life."""
    learner_speed: float = 1.0
    """Of the learner's machine against a core of the measured one."""

    def __post_init__(self) -> None:
        least = {"nodes": 1, "cores": 2, "steps": 1, "trajectories": 1}
        wrong = [name for name, low in least.items() if getattr(self, name) < low]
        periods = ("pull_period", "push_period", "gbits", "samples_per_insert", "beat")
        wrong += [name for name in (*periods, "learner_speed") if not getattr(self, name) > 0]
        if wrong:
            words = ", ".join(f"{name}={getattr(self, name)}" for name in wrong)
            raise ConfigError(
                f"the cluster has {words}. Expected two cores or more, and at least 1 of nodes, "
                "steps and trajectories; the rest above 0."
            )

    @property
    def transitions(self) -> int:
        """Of an update."""
        return self.steps * self.trajectories

    def slots_of(self, actors: int) -> int:
        """Return the slots of each of so many actors."""
        if self.slots is not None:
            return self.slots
        return max(2, 1 + math.ceil(self.trajectories / actors))

    def wire_seconds(self, nbytes: float) -> float:
        """Return how long bytes take through a card."""
        return nbytes * _BITS / (self.gbits * _GIGA)


@dataclass(frozen=True)
class Node:
    """How a node's cores are shared out, and what it does."""

    actors: int
    services: int
    rate: float
    """Environment steps a second, of all its actors, if nothing else holds them up."""


@dataclass(frozen=True)
class Outcome:
    """What a simulated cluster does once it has settled."""

    steps: float
    """Environment steps a second that the learner learns from."""
    dropped: float
    """Part of the trajectories that were too old and were dropped."""
    age: float
    """Median pushes between the weights that acted and the learner's, when it takes them."""
    busy: dict[str, float]
    """Part of the time that each station was busy; of nodes' cores, that actors did not wait."""

    @property
    def binds(self) -> str:
        """The busiest station."""
        return max(self.busy, key=self.busy.__getitem__)


class Station:
    """First come, first served, by one or more servers; customers come in the order of time."""

    def __init__(self, servers: int = 1) -> None:
        self._free = [0.0] * servers
        self._work = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """Return when a customer who comes now, and takes so long, leaves."""
        ends = max(now, self._free[0]) + seconds
        heapq.heapreplace(self._free, ends)
        self._work += seconds
        return ends

    def worked(self, now: float) -> float:
        """Return the seconds of work done until now, of all servers."""
        return self._work - sum(max(0.0, ends - now) for ends in self._free)


def closed_loop(
    customers: int,
    servers: int,
    think: Callable[[], float],
    service: Callable[[], float],
    count: int,
) -> float:
    """Return visits a second where customers think, wait, are served, and think again.

    The machine-repairman model; the first third of ``count`` visits warms it up.
    """
    station = Station(servers)
    events = [(think(), one) for one in range(customers)]
    heapq.heapify(events)
    # A customer thinks from when it is served: both ends of that are one event.
    began = ended = 0.0
    for visit in range(count):
        now, one = events[0]
        if visit == count // 3:
            began = now
        ended = now
        heapq.heapreplace(events, (station.serve(now, service()) + think(), one))
    return (count - 1 - count // 3) / (ended - began)


def node(costs: Costs, cluster: Cluster, seed: int = 0) -> Node:
    """Share a node's cores between actors and services; simulate what the node then does."""
    free = cluster.cores - 1
    own = costs.step + costs.send / cluster.steps
    services = 0
    if costs.picture > 0:
        actors = free
        while services == 0 or actors * costs.picture / (own + costs.picture) > FULL * services:
            services, actors = services + 1, actors - 1
            if actors < 1:
                raise ConfigError(
                    f"a service takes {costs.picture:.3g} s for a picture and an actor "
                    f"{own:.3g} s for a step: {cluster.cores} cores have no room for both. "
                    "Expected more cores, or actors without a service."
                )
    actors = free - services
    if not services:
        return Node(actors, 0, actors / own)
    random = np.random.default_rng(seed)
    steps = _draws(random, own, costs.spread)
    count = 3000 * services
    rate = closed_loop(actors, services, steps.__next__, lambda: costs.picture, count)
    return Node(actors, services, rate)


def _draws(random: np.random.Generator, mean: float, spread: float) -> Iterator[float]:
    """Yield times with a gamma distribution; all the same without a spread."""
    if mean <= 0 or spread <= 0:
        yield from itertools.repeat(mean)
    shape = spread**-2
    while True:
        yield from random.gamma(shape, mean / shape, 4096).tolist()


def demands(costs: Costs, cluster: Cluster, actors: int) -> dict[str, float]:
    """Return what an environment step asks of each station but the nodes' cores, in seconds."""
    per_step = 1 / cluster.steps
    learned = cluster.samples_per_insert / cluster.learner_speed
    updates = cluster.samples_per_insert / cluster.transitions
    pushes = updates / cluster.push_period
    pulls = 1 / cluster.pull_period
    # Of weights that lie in the object store, a node fetches each version at most once.
    small = costs.weights <= INLINE_BYTES
    fetches = pulls if small else min(pulls, cluster.nodes * pushes)
    return {
        NODE_CARD: per_step * cluster.wire_seconds(costs.trajectory) / cluster.nodes,
        CARD_IN: per_step * cluster.wire_seconds(costs.trajectory),
        STORE: per_step * costs.store + (0.0 if small else fetches * costs.store_weights),
        RECEIVING: per_step * (costs.receive + costs.receive_actor * actors),
        LEARNER: costs.learn * learned + pushes * costs.push / cluster.learner_speed,
        LATEST: pulls * costs.call + pushes * (costs.call + actors * costs.wake),
        CARD_OUT: fetches * cluster.wire_seconds(costs.weights),
    }


def limits(costs: Costs, cluster: Cluster, each: Node) -> dict[str, float]:
    """Return the environment steps a second that each station allows the whole cluster.

    With each push published, and fetched wherever somebody pulls. All actors must call the process
    of the latest weights for their signs of life, whatever else happens; what is left of its time
    is for pulls and pushes.
    """
    actors = cluster.nodes * each.actors
    allowed = {CORES: cluster.nodes * each.rate}
    left = max(0.0, 1 - actors * costs.sign / cluster.beat)
    for name, seconds in demands(costs, cluster, actors).items():
        most = left if name == LATEST else 1.0
        allowed[name] = most / seconds if seconds > 0 else math.inf
    return allowed


def binding_nodes(
    costs: Costs, cluster: Cluster, each: Node, most: int = 1 << 20
) -> dict[str, int | None]:
    """Return the number of nodes from which each station cannot keep up with what all produce.

    None: not with ``most`` nodes either. A node's own card is the same for any number of nodes.
    """

    def keeps_up(name: str, nodes: int) -> bool:
        allowed = limits(costs, replace(cluster, nodes=nodes), each)
        return allowed[name] >= allowed[CORES]

    found: dict[str, int | None] = {}
    for name in STATIONS:
        if name == CORES:
            continue
        if keeps_up(name, most):
            found[name] = None
            continue
        low, high = 0, most  # it keeps up with low, and not with high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if keeps_up(name, middle) else (low, middle)
        found[name] = high
    return found


def elasticities(costs: Costs, cluster: Cluster, seed: int = 0) -> dict[str, float]:
    """Return by how many percent one percent more of each cost lowers the bottleneck's limit."""

    def rate(changed: Costs) -> float:
        return min(limits(changed, cluster, node(changed, cluster, seed)).values())

    before = rate(costs)
    found = {}
    for name, value in vars(costs).items():
        if value and name != "spread":
            more = replace(costs, **{name: value * 1.01})
            found[name] = 100 * (1 - rate(more) / before)
    return found


# The simulation. Numbers of events, in no order.
_BEGIN, _MADE, _AT_LEARNER, _STORED, _READY, _LEARNED, _PULL, _PULLED, _BEAT, _PUBLISHED = range(10)


class _Simulation:
    """One run; see :func:`simulate`."""

    def __init__(self, costs: Costs, cluster: Cluster, each: Node, seed: int) -> None:
        self.costs, self.cluster, self.each = costs, cluster, each
        self.actors = cluster.nodes * each.actors
        self.slots = cluster.slots_of(self.actors)
        if self.slots * self.actors < cluster.trajectories:
            raise ConfigError(
                f"{self.actors} actors have {self.slots} slots each, and an update takes "
                f"{cluster.trajectories} trajectories at once. Expected slots for them; take fewer "
                "trajectories, or leave slots out."
            )
        self.stations = {name: Station() for name in STATIONS if name not in (CORES, NODE_CARD)}
        self.cards = [Station() for _ in range(cluster.nodes)]
        random = np.random.default_rng([seed, cluster.nodes])
        own = each.actors / each.rate * cluster.steps
        self.times = _draws(random, own, costs.spread / math.sqrt(cluster.steps))
        self.now = 0.0
        self._events: list[tuple[float, int, int, int]] = []
        self._sequence = itertools.count()
        phases = random.random((2, self.actors)).tolist()
        for actor in range(self.actors):
            self._at(phases[0][actor] * own, _BEGIN, actor)
            self._at(phases[1][actor] * cluster.beat, _BEAT, actor)
        # Of each actor
        self._out = [0] * self.actors
        """Trajectories that it was asked for and that were not yet released."""
        self._idle = [False] * self.actors
        self._since = (random.random(self.actors) * cluster.pull_period).tolist()
        """Steps since its last pull."""
        self._have = [0.0] * self.actors
        self._acted: list[deque[float]] = [deque() for _ in range(self.actors)]
        """Versions that its trajectories on their way were made with; they arrive in order."""
        self.worked = 0.0
        """Seconds that actors took for trajectories."""
        self._fetched = [(0.0, 0.0)] * cluster.nodes
        """Of each node: the newest version that it has, and since when."""
        # Of the learner
        self._ready: deque[tuple[int, float]] = deque()
        self._batch: list[int] = []
        self._learning = False
        self.version = self._published = self._sending = 0.0
        self._publishing = False
        self._updates = 0
        self.used = self.dropped = 0
        self.ages: list[float] = []

    def _at(self, when: float, event: int, about: int) -> None:
        heapq.heappush(self._events, (when, next(self._sequence), event, about))

    def run(self, trajectories: int) -> None:
        """Go on until the learner has taken so many more."""
        ends = self.used + self.dropped + trajectories
        # By number: one comparison after the other took half of the time.
        steps: dict[int, Callable[[int], None]] = {
            _BEGIN: self._begin,
            _MADE: self._made,
            _AT_LEARNER: self._at_learner,
            _STORED: self._stored,
            _READY: self._arrived,
            _LEARNED: self._learned,
            _PULL: self._pull,
            _PULLED: self._produce,
            _BEAT: self._beat,
            _PUBLISHED: self._is_published,
        }
        while self.used + self.dropped < ends:
            self.now, _, event, about = heapq.heappop(self._events)
            steps[event](about)

    def _serve(self, name: str, seconds: float, at: float | None = None) -> float:
        return self.stations[name].serve(self.now if at is None else at, seconds)

    # An actor

    def _begin(self, actor: int) -> None:
        if self._out[actor] >= self.slots:
            self._idle[actor] = True
            return
        self._idle[actor] = False
        self._out[actor] += 1
        self._since[actor] += self.cluster.steps
        if self._since[actor] < self.cluster.pull_period:
            self._produce(actor)
            return
        self._since[actor] = 0
        self._at(self._serve(LATEST, self.costs.call), _PULL, actor)

    def _pull(self, actor: int) -> None:
        """The answer about newer weights is here; fetch them."""
        newest = self._published
        if newest <= self._have[actor]:
            self._produce(actor)
            return
        costs, wire = self.costs, self.cluster.wire_seconds(self.costs.weights)
        number = actor // self.each.actors
        if costs.weights <= INLINE_BYTES:
            here = self._serve(CARD_OUT, wire)
        else:
            version, here = self._fetched[number]
            if version < newest:
                # Not before the store has served it; its customers come in order all the same.
                here = self._serve(CARD_OUT, wire)
                here = max(here, self._serve(STORE, costs.store_weights))
                self._fetched[number] = newest, here
        self._have[actor] = newest
        self._at(max(self.now, here) + costs.load, _PULLED, actor)

    def _produce(self, actor: int) -> None:
        self._acted[actor].append(self._have[actor])
        seconds = next(self.times)
        self.worked += seconds
        self._at(self.now + seconds, _MADE, actor)

    def _made(self, actor: int) -> None:
        card = self.cards[actor // self.each.actors]
        sent = card.serve(self.now, self.cluster.wire_seconds(self.costs.trajectory))
        self._at(sent, _AT_LEARNER, actor)
        self._begin(actor)

    def _beat(self, actor: int) -> None:
        answered = self._serve(LATEST, self.costs.sign)
        self._at(answered + self.cluster.beat, _BEAT, actor)

    # The learner's machine

    def _at_learner(self, actor: int) -> None:
        wire = self.cluster.wire_seconds(self.costs.trajectory)
        self._at(self._serve(CARD_IN, wire), _STORED, actor)

    def _stored(self, actor: int) -> None:
        stored = self._serve(STORE, self.costs.store)
        seconds = self.costs.receive + self.costs.receive_actor * self.actors
        self._at(self._serve(RECEIVING, seconds, stored), _READY, actor)

    def _arrived(self, actor: int) -> None:
        self._ready.append((actor, self._acted[actor].popleft()))
        self._learn()

    def _learn(self) -> None:
        """Begin an update if there are enough trajectories that are young enough."""
        limit = self.cluster.max_lag
        while self._ready and not self._learning:
            actor, version = self._ready.popleft()
            age = self.version - version
            if limit is not None and age > limit:
                self.dropped += 1
                self._release(actor)
                continue
            self.ages.append(age)
            self._batch.append(actor)
            if len(self._batch) == self.cluster.trajectories:
                self._learning = True
                cluster, costs = self.cluster, self.costs
                updates = cluster.samples_per_insert
                seconds = costs.learn * cluster.transitions * updates
                seconds += costs.push * updates / cluster.push_period
                self._at(self._serve(LEARNER, seconds / cluster.learner_speed), _LEARNED, 0)

    def _learned(self, _: int) -> None:
        self.used += len(self._batch)
        batch, self._batch, self._learning = self._batch, [], False
        self._updates += 1
        self.version += self.cluster.samples_per_insert / self.cluster.push_period
        if not self._publishing and self._updates % self.cluster.push_period == 0:
            self._publish()
        for actor in batch:
            self._release(actor)
        self._learn()

    def _release(self, actor: int) -> None:
        self._out[actor] -= 1
        if self._idle[actor]:
            self._begin(actor)

    def _publish(self) -> None:
        """Send the newest weights; a push that is overtaken by another is skipped."""
        self._publishing, self._sending = True, self.version
        seconds = self.costs.call + self.costs.wake * self.actors
        self._at(self._serve(LATEST, seconds), _PUBLISHED, 0)

    def _is_published(self, _: int) -> None:
        self._publishing, self._published = False, self._sending
        if self.version > self._published:
            self._publish()

    def done(self) -> dict[str, float]:
        """Return the seconds of work that each station has done."""
        done = {name: one.worked(self.now) for name, one in self.stations.items()}
        cards = sum(card.worked(self.now) for card in self.cards)
        return {CORES: self.worked / self.actors, NODE_CARD: cards / len(self.cards), **done}


def simulate(
    costs: Costs,
    cluster: Cluster,
    *,
    each: Node | None = None,
    seed: int = 0,
    trajectories: int | None = None,
) -> Outcome:
    """Simulate a training until the learner has taken many trajectories, after as many to settle.

    Deterministic by seed. A step's time has a gamma distribution with the measured spread; all
    other times are constant.

    Args:
        costs: measured.
        cluster: to simulate.
        each: what one node does; None simulates that first.
        seed: of the steps' times, and of when actors begin.
        trajectories: to measure; None for as many as there are actors, and at least 2,000.
    """
    each = node(costs, cluster, seed) if each is None else each
    run = _Simulation(costs, cluster, each, seed)
    count = max(2000, run.actors) if trajectories is None else trajectories
    run.run(max(count, 2 * run.slots * run.actors))
    began, done, used, dropped = run.now, run.done(), run.used, run.dropped
    run.ages.clear()
    run.run(count)
    seconds = run.now - began
    taken = run.used - used
    lost = run.dropped - dropped
    busy = {name: (now - done[name]) / seconds for name, now in run.done().items()}
    return Outcome(
        steps=taken * cluster.steps / seconds,
        dropped=lost / (taken + lost),
        age=float(np.median(run.ages)) if run.ages else float("nan"),
        busy=busy,
    )
