"""The row of the cluster: its numbers are of real parts, and its table says what they mean."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_children import own_folder

from vinoreward.actor_learner.transport.trajectory import TrajectorySpec
from vinoreward.backends.serving.places import FOLDER
from vinoreward.policies.policy import random_policy
from vinoreward.policies.wire import encode
from vinoreward_training.bench import cluster_checks, cluster_costs
from vinoreward_training.bench.cluster_costs import (
    BITS,
    LATENTS,
    PICTURES,
    STATES,
    Bookkeeping,
    Measured,
    measure,
    policies,
    two_nodes,
)
from vinoreward_training.bench.cluster_model import (
    CARD_IN,
    CORES,
    LEARNER,
    RECEIVING,
    STORE,
    Cluster,
)
from vinoreward_training.bench.clusters import KINDS, cluster_of, measured_rows, model_rows
from vinoreward_training.bench.services import running_services
from vinoreward_training.configs import BenchConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the service needs Linux")


def invented() -> Measured:
    """Round figures: a step of 4 ms, a learner that takes 0.1 ms for states and 2 for pictures."""
    found = Measured()
    sizes = {STATES: 1_800, PICTURES: 1_500_000, LATENTS: 22_000}
    learn = {STATES: 1e-4, PICTURES: 2e-3, LATENTS: 1e-4}
    for kind in KINDS:
        found.add(f"trajectory {kind}", sizes[kind])
        found.add(f"learn {kind}", learn[kind] * Cluster(1).transitions)
        found.add(f"act {kind}", 1e-4)
        found.add(f"send {kind}", 1e-3)
        found.add(f"receive {kind}", 2e-4)
        found.add(f"store {kind}", sizes[kind] * 3e-9)
        for bits in BITS:
            name = f"{kind} {bits}"
            found.add(f"weights {name}", bits * 10_000)
            for what in ("push", "put", "load", "fetch", "store weights"):
                found.add(f"{what} {name}", 1e-3)
    for name, value in {
        "step": 4e-3, "service": 1e-3, "encode": 1e-3, "spread": 0.3, "slots": 1e-6,
        "slots, each actor": 1e-7, "call": 4e-4, "sign": 4e-4, "wake": 2e-5,
    }.items():  # fmt: skip
        found.add(name, value)
    for part in ("motion", "render", "infer", "judge"):
        found.add(f"step, {part}", 1e-3)
    return found


def test_the_table_says_what_binds_and_from_where(tmp_path: Path) -> None:
    config = BenchConfig(out=tmp_path, cluster_cores=4, cluster_gbits=1, cluster_learner=10)
    cluster = cluster_of(config)
    assert (cluster.cores, cluster.gbits, cluster.learner_speed) == (4, 1, 10)
    rows = model_rows(invented(), cluster, config)
    binding = [row for row in rows if row.unit == "nodes"]
    assert len(binding) == len(KINDS) * len(BITS)
    for row in binding:
        found = row.details["nodes"]
        rate = row.details["each"]["rate"]
        per_step = row.details["costs"]
        # With a learner ten times as fast: from so many nodes it has too little time for a step.
        pushes = per_step["push"] / cluster.transitions / 10
        assert found[LEARNER] == int(1 / (per_step["learn"] / 10 + pushes) / rate) + 1
        carried = 1e9 / 8 / (per_step["trajectory"] / cluster.steps)
        assert found[CARD_IN] == int(carried / rate) + 1
        assert row.value == min(count for count in found.values() if count is not None)
    pictures = next(row for row in binding if row.what.startswith(PICTURES))
    latents = next(row for row in binding if row.what.startswith(LATENTS))
    for station in (CARD_IN, STORE):
        assert pictures.details["nodes"][station] < latents.details["nodes"][station]
    simulated = [row for row in rows if row.unit == "steps/s"]
    assert [row.what.split(",")[0] for row in simulated] == [kind for kind in KINDS for _ in "123"]
    for row in simulated:
        # Pushes may be overtaken and skipped, so what carries weights may allow more than all.
        most = min(row.details["limits"][name] for name in (CORES, CARD_IN, RECEIVING, LEARNER))
        assert row.value is not None and 0 < row.value <= 1.05 * most
    assert len([row for row in rows if "half of" in row.what]) == 4
    assert (tmp_path / "cluster.png").stat().st_size > 10_000
    assert all(row.value is not None for row in measured_rows(invented(), cluster))


def test_the_book_about_slots_goes_on() -> None:
    """Each call lets one arrive and asks for one more: never fewer, never more than the slots."""
    book = Bookkeeping(5, Cluster(1, slots=3))
    for _ in range(40):
        book()
        assert len(book.asked) == 5 * 3


@pytest.fixture
def own_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody else's service takes part, and none is left."""
    with own_folder(tmp_path, monkeypatch):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("own_services")
def test_numbers_of_real_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a cluster that is not the machine's own, which a training would join by Ray's note."""
    pytest.importorskip("warp")
    pytest.importorskip("ray")
    from vinoreward.rewards.classifier import Classifier

    note = tmp_path / "ray" / "ray_current_cluster"
    note.parent.mkdir()
    note.write_text("127.0.0.1:6379")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with (
        two_nodes() as nodes,
        Classifier("panda-hover-classifier", service="shared") as classifier,
    ):
        assert nodes.address != "127.0.0.1:6379"
        # One cluster for both, and fewer calls of each kind.
        for name, value in {"CALLS": 100, "PUSHES": 10, "WAITING": 50, "IDLE": 0.5}.items():
            monkeypatch.setattr(cluster_costs, name, value)
        monkeypatch.setattr(cluster_costs, "two_nodes", lambda: contextlib.nullcontext(nodes))
        classifier.backend.load()
        check_numbers_of_real_parts(monkeypatch)
        assert note.read_text() == "127.0.0.1:6379"
    assert note.read_text() == "127.0.0.1:6379"


def check_numbers_of_real_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure and train, in a cluster and with a service that are there."""
    config, cluster = BenchConfig(rounds=1), Cluster(1)
    found = measure(config, cluster, (STATES,))
    spec = policies()[STATES]
    assert found[f"trajectory {STATES}"] == TrajectorySpec.of(spec, 20, 1).nbytes
    for bits in BITS:
        assert found[f"weights {STATES} {bits}"] == pytest.approx(
            encode(random_policy(spec, 0), bits=bits).nbytes, rel=0.01
        )
    costs = found.costs(STATES, 32, cluster)
    assert 1e-4 < costs.step < 0.1
    assert 1e-4 < costs.picture < 0.1
    assert 1e-5 < costs.receive < costs.step
    assert 0 < costs.receive_actor < 1e-5
    assert found["sign"] <= found["sign, all threads"]
    parts = sum(found[f"step, {part}"] for part in ("motion", "render", "infer", "judge"))
    assert parts == pytest.approx(found["step"], rel=0.5)
    # And with these a real training is predicted, if only roughly: the machine may be busy.
    monkeypatch.setattr(cluster_checks, "ACTORS", (1,))
    monkeypatch.setattr(cluster_checks, "SECONDS", 2.0)
    services = running_services(os.environ[FOLDER])
    assert len(services) == 1
    trained, waited = cluster_checks.check_rows(found, cluster, services)
    assert trained.value is not None and 0.3 < trained.value < 3
    assert waited.value is not None and 0.3 < waited.value < 1.3
