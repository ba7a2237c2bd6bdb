"""The model of a cluster, against what queueing theory knows in closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest

from vinoreward.errors import ConfigError
from vinoreward_training.bench.cluster_model import (
    CARD_IN,
    CARD_OUT,
    CORES,
    LATEST,
    LEARNER,
    NODE_CARD,
    RECEIVING,
    STATIONS,
    STORE,
    Cluster,
    Costs,
    Node,
    Station,
    binding_nodes,
    closed_loop,
    elasticities,
    limits,
    node,
    simulate,
)

LIGHT = Costs(
    step=0.004,
    spread=0.3,
    picture=0.0005,
    send=0.001,
    load=1e-4,
    trajectory=2000,
    weights=300_000,
    store=1e-7,
    store_weights=1e-7,
    receive=1e-7,
    receive_actor=0.0,
    learn=1e-8,
    push=1e-7,
    call=1e-7,
    sign=1e-7,
    wake=0.0,
)
"""A training of which the nodes' cores alone limit the rate."""
SMALL = Cluster(4, cores=6)
ONLY = {
    LEARNER: {"learn": 1e-3},
    RECEIVING: {"receive": 0.02},
    STORE: {"store": 0.02},
    LATEST: {"call": 0.1},
    CARD_IN: {"trajectory": 20_000_000},
    CARD_OUT: {"weights": 1_000_000_000},
}
"""Station to what makes it the bottleneck of SMALL."""
RARE: dict[str, dict[str, int]] = {
    LATEST: {"push_period": 10_000},  # a push that is overtaken is skipped: the limit counts all
    CARD_OUT: {"pull_period": 400, "trajectories": 1},  # two pulls of a node are of two versions
}
"""… and how often weights go to and fro there."""


def waits(station: Station, gaps: np.ndarray, services: np.ndarray) -> float:
    """The mean time in the queue."""
    now, total = 0.0, 0.0
    for gap, seconds in zip(gaps.tolist(), services.tolist(), strict=True):
        now += gap
        total += station.serve(now, seconds) - now - seconds
    return total / len(gaps)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_random_arrivals_and_constant_service(load: float) -> None:
    """M/D/1: Pollaczek and Khinchine's mean wait."""
    count, service = 40_000, 2.0
    gaps = np.random.default_rng(1).exponential(service / load, count)
    found = waits(Station(), gaps, np.full(count, service))
    assert found == pytest.approx(service * load / (2 * (1 - load)), rel=0.05)


def test_random_arrivals_at_two_servers() -> None:
    """M/M/2: Erlang's C. With a load of 2/3 of both, someone waits in 8 of 15 cases."""
    count, service = 60_000, 1.0
    random = np.random.default_rng(2)
    gaps = random.exponential(service / (4 / 3), count)
    found = waits(Station(2), gaps, random.exponential(service, count))
    assert found == pytest.approx(8 / 15 * service / (2 - 4 / 3), rel=0.05)


def test_a_station_tells_the_work_that_it_has_done() -> None:
    station = Station()
    assert station.serve(1.0, 2.0) == 3.0
    assert station.serve(1.5, 4.0) == 7.0
    assert [station.worked(now) for now in (3.0, 5.0, 9.0)] == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("customers", [1, 4, 12])
def test_random_machines_and_one_repairer(customers: int) -> None:
    """M/M/1//N: of all times, the repairer is idle for a part that Erlang's sum gives."""
    think, service = 1.0, 0.15
    weights = [
        math.factorial(customers) / math.factorial(customers - n) * (service / think) ** n
        for n in range(customers + 1)
    ]
    random = np.random.default_rng(3)
    found = closed_loop(
        customers,
        1,
        lambda: float(random.exponential(think)),
        lambda: float(random.exponential(service)),
        20_000,
    )
    assert found == pytest.approx((1 - weights[0] / sum(weights)) / service, rel=0.03)


@pytest.mark.parametrize("customers", [1, 3, 5, 20])
def test_constant_times_reach_the_bottleneck_law(customers: int) -> None:
    found = closed_loop(customers, 1, repeat(0.9).__next__, repeat(0.2).__next__, 3000)
    assert found == pytest.approx(min(customers / 1.1, 1 / 0.2), rel=0.01)


def test_a_node_has_as_many_services_as_its_actors_need() -> None:
    each = node(LIGHT, Cluster(1, cores=16))
    assert each.actors + each.services == 15
    own = LIGHT.step + LIGHT.send / 20
    free = each.actors / (own + LIGHT.picture)
    assert 0.9 * free < each.rate < free  # actors wait for the service now and then
    assert each.rate * LIGHT.picture <= 0.8 * each.services
    without = node(replace(LIGHT, picture=0.0), Cluster(1, cores=16))
    assert without == Node(15, 0, 15 / own)


def test_below_saturation_nodes_add_up() -> None:
    each = node(LIGHT, SMALL)
    found = simulate(LIGHT, SMALL, each=each)
    assert found.steps == pytest.approx(4 * each.rate, rel=0.03)
    assert found.binds == CORES
    assert found.dropped == 0
    assert found.busy[CORES] == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("station", list(ONLY))
def test_a_bottleneck_is_busy_and_sets_the_rate(station: str) -> None:
    """The bottleneck law: its limit is reached, and not passed, whichever station it is."""
    costs = replace(LIGHT, **ONLY[station])
    # Enough slots, and small updates: with few, all may wait for the last of an update.
    few = {"max_lag": None, "slots": 4, "trajectories": 4, **RARE.get(station, {})}
    cluster = replace(SMALL, **few)
    each = node(costs, cluster)
    allowed = limits(costs, cluster, each)
    assert min(allowed, key=allowed.__getitem__) == station
    assert allowed[station] < 0.7 * allowed[CORES]
    found = simulate(costs, cluster, each=each)
    assert found.binds == station
    assert found.steps == pytest.approx(allowed[station], rel=0.05)
    assert found.busy[station] == pytest.approx(1.0, abs=0.03)
    for name in (CARD_IN, STORE, RECEIVING, LEARNER):
        assert found.busy[name] == pytest.approx(found.steps / allowed[name], rel=0.1, abs=1e-3)


def test_a_nodes_own_card() -> None:
    costs = replace(LIGHT, trajectory=60_000_000)
    cluster = replace(SMALL, nodes=1, slots=8)
    found = simulate(costs, cluster)
    assert found.steps == pytest.approx(20 / (60_000_000 * 8 / 10e9), rel=0.03)
    assert found.busy[NODE_CARD] == pytest.approx(1.0, abs=0.03)


def test_behind_a_slow_learner_weights_grow_old() -> None:
    """Little's law: all slots are full, and an update empties as many as it takes."""
    costs = replace(LIGHT, learn=1e-3)
    cluster = Cluster(20, cores=11, trajectories=4, pull_period=20, max_lag=None)
    each = Node(10, 0, 10 / 0.004)
    found = simulate(costs, cluster, each=each)
    assert found.age == pytest.approx(2 * 200 / 4, rel=0.1)
    young = simulate(costs, replace(cluster, max_lag=30), each=each)
    assert young.age <= 30
    assert young.dropped > 0.3


def test_on_a_slow_card_weights_grow_old_too() -> None:
    """Little's law again: what counts is when a trajectory was begun, not when it arrives."""
    costs = replace(LIGHT, trajectory=20_000_000)
    cluster = Cluster(4, cores=11, trajectories=4, pull_period=20, slots=8, max_lag=None)
    found = simulate(costs, cluster, each=Node(10, 0, 10 / 0.004), trajectories=2000)
    assert found.binds == CARD_IN
    assert found.age == pytest.approx(8 * 40 / 4, rel=0.1)


def test_a_node_fetches_each_version_once() -> None:
    """Its actors pull it one after the other, and find it in the node's own store."""
    costs = replace(LIGHT, weights=10_000_000)
    cluster = Cluster(4, cores=11, trajectories=4, pull_period=20, push_period=50)
    found = simulate(costs, cluster, each=Node(10, 0, 10 / 0.004), trajectories=8000)
    pushes = found.steps / (cluster.transitions * cluster.push_period)
    assert found.busy[CARD_OUT] == pytest.approx(4 * pushes * 10_000_000 * 8 / 10e9, rel=0.1)


def test_a_late_push_is_overtaken() -> None:
    """The process of the latest weights takes longer for a push than the learner for an update."""
    costs, cluster = replace(LIGHT, learn=1e-5, wake=0.05), replace(SMALL, max_lag=None)
    each = node(costs, cluster)
    found = simulate(costs, cluster, each=each)
    assert found.busy[LATEST] > 0.95
    assert found.steps > 5 * limits(costs, cluster, each)[LATEST]  # which counts every push
    assert found.age > 1.5 * simulate(replace(costs, wake=0.0), cluster, each=each).age


def test_a_training_repeats_by_seed() -> None:
    first, again, other = (simulate(LIGHT, SMALL, seed=seed) for seed in (5, 5, 6))
    assert first == again != other


@pytest.mark.parametrize("changes", ONLY.values(), ids=list(ONLY))
def test_nodes_from_which_a_station_binds(changes: dict[str, float]) -> None:
    costs = replace(LIGHT, **{name: value / 8 for name, value in changes.items()}, wake=1e-9)
    each = node(costs, SMALL)
    found = binding_nodes(costs, SMALL, each)
    assert set(found) == set(STATIONS) - {CORES}
    for name, count in found.items():
        if count is None:
            continue
        here = limits(costs, replace(SMALL, nodes=count), each)
        assert here[name] < here[CORES]
        if count > 1:
            before = limits(costs, replace(SMALL, nodes=count - 1), each)
            assert before[name] >= before[CORES]
    assert found[NODE_CARD] is None
    assert any(count is not None and 1 < count < 200 for count in found.values())


def test_signs_of_life_alone_can_take_all_of_a_process() -> None:
    costs = replace(LIGHT, sign=1e-3)
    each = Node(15, 0, 3000)
    assert limits(costs, replace(SMALL, nodes=34), each)[LATEST] == 0  # 510 actors, 2 a second
    assert limits(costs, replace(SMALL, nodes=33), each)[LATEST] > 0


def test_what_matters_most() -> None:
    free = elasticities(LIGHT, SMALL)
    assert max(free, key=free.__getitem__) == "step"
    assert free["step"] == pytest.approx(0.85, abs=0.15)
    learning = elasticities(replace(LIGHT, learn=1e-3), SMALL)
    assert learning["learn"] == pytest.approx(1.0, abs=0.02)
    assert learning["step"] == pytest.approx(0.0, abs=1e-9)


def test_samples_per_insert_and_a_faster_learner() -> None:
    costs = replace(LIGHT, learn=1e-3)
    each = node(costs, SMALL)
    cluster = replace(SMALL, samples_per_insert=4, max_lag=None)
    assert simulate(costs, cluster, each=each).steps == pytest.approx(250, rel=0.03)
    faster = replace(cluster, learner_speed=2.0)
    assert simulate(costs, faster, each=each).steps == pytest.approx(500, rel=0.03)


def test_few_bits_spare_the_card() -> None:
    """Small pushes go to each actor, large ones once to a node."""
    each = Node(10, 0, 1000)
    many = Cluster(100, pull_period=1000)
    large, small = (
        limits(replace(LIGHT, weights=weights), many, each)[CARD_OUT]
        for weights in (300_000, 300_000 // 4)
    )
    assert small == pytest.approx(4 * large)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"nodes": 0}, "nodes=0"), ({"cores": 1}, "cores=1"), ({"gbits": 0.0}, "gbits=0.0")],
)
def test_impossible_clusters_are_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"{words}\. Expected two cores"):
        replace(SMALL, **changes)


def test_an_update_for_which_there_are_never_enough_is_refused() -> None:
    few = Cluster(1, trajectories=9, slots=2)
    with pytest.raises(ConfigError, match=r"4 actors have 2 slots each, and an update takes 9"):
        simulate(LIGHT, few, each=Node(4, 0, 1000))
    assert simulate(LIGHT, replace(few, slots=None), each=Node(4, 0, 1000)).steps > 500


def test_a_node_without_room_for_a_service_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no room for both\. Expected more cores"):
        node(replace(LIGHT, picture=1.0), Cluster(1, cores=2))
