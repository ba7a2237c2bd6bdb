"""Services on the nodes of a Ray cluster: two real nodes, one of them killed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import toy_environments
from ray_workers import Worker
from waiting import until

from vinoreward import Bundle, Classifier
from vinoreward.backends.serving.places import FOLDER
from vinoreward.bundles.schema import Decision
from vinoreward.errors import BundleEditedError, ConfigError, ModelNotFoundError, ServiceError

ray: Any = pytest.importorskip("ray")
services_module = pytest.importorskip("vinoreward.serving.ray")
NodeServices = services_module.NodeServices

pytestmark = pytest.mark.slow
SUPPORT = str(Path(toy_environments.__file__).parent)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of two nodes, which share no folder of services, as two machines do not."""
    utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        # Not where Ray notes the machine's cluster: other tests would join this one.
        patch.setenv(
            "RAY_TMPDIR",
            stack.enter_context(TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)),
        )
        paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), SUPPORT]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        folders = [str(tmp_path_factory.mktemp(f"node{number}")) for number in range(2)]
        for folder in folders:
            os.chmod(folder, 0o700)
        patch.setenv(FOLDER, folders[0])
        head = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}
        cluster = utils.Cluster(initialize_head=True, head_node_args={**head, **at(folders[0])})
        cluster.add_node(num_cpus=2, object_store_memory=100_000_000, **at(folders[1]))
        cluster.wait_for_nodes()
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


def at(folder: str) -> dict[str, Any]:
    return {"env_vars": {**os.environ, FOLDER: folder}}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    return [
        toy_environments.save_toy_bundle(
            folder / name, decision=Decision(threshold=threshold, chosen_for={"target_fpr": 0.1})
        )
        for name, threshold in (("one", 0.5), ("two", 0.9))
    ]


def node_ids() -> list[str]:
    return sorted(each["NodeID"] for each in ray.nodes() if each["Alive"])


def on(node: str) -> Any:
    """Options of a task that runs on a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False), "num_cpus": 1}


def pictures(bundle: Bundle) -> Any:
    return bundle.golden.images


def workers(services: Any) -> dict[str, Any]:
    made = ray.remote(Worker)
    return {node: made.options(**on(node)).remote(services) for node in node_ids()}


def judged(worker: Any, bundle: Bundle) -> Any:
    return ray.get(worker.judge.remote(pictures(bundle)), timeout=60)


def test_every_node_has_one_service_which_answers_as_the_network_does(
    nodes: Any, bundles: list[Bundle]
) -> None:
    """Copies that a killed program left are removed; nothing is left after the last worker."""
    left = Path(os.environ[FOLDER]) / "cluster-of-a-killed-program"
    left.mkdir(mode=0o700)
    (left / "held").touch()
    with Classifier(bundles[0]) as plain:
        expected = plain.judge(pictures(bundles[0])).probability
    with NodeServices(bundles[0]) as services:
        assert services.nodes() == {}  # none before somebody asks
        there = workers(services)
        node = next(iter(there))
        beside = ray.remote(Worker).options(**on(node)).remote(services)
        for worker in (*there.values(), beside):
            np.testing.assert_allclose(judged(worker, bundles[0])[0], expected, atol=1e-6)
        told = services.nodes()
        assert set(told) == set(there) and len(told) == 2
        pids = {node: ray.get(worker.pid.remote()) for node, worker in there.items()}
        assert pids[node] == ray.get(beside.pid.remote())
        assert pids == {node: one["service_pid"] for node, one in told.items()}
        assert len(set(pids.values())) == 2
        assert not left.exists()
        assert services.here()["precision"] == "auto"  # which is more than what it resolves to
        for worker in (*there.values(), beside):
            ray.kill(worker)
    until(lambda: not any(map(alive, pids.values())))
    folders = [Path(os.environ[FOLDER]), *Path(os.environ[FOLDER]).parent.glob("node1*")]
    assert [path.name for one in folders for path in one.glob("cluster-*")] == []


def test_a_swap_reaches_all_nodes_and_those_that_ask_later(
    nodes: Any, bundles: list[Bundle], tmp_path: Path
) -> None:
    """And a bundle that does not fit changes nothing."""
    other = toy_environments.save_toy_bundle(tmp_path / "other", probabilities=True)
    early, late = node_ids()
    with NodeServices(bundles[0]) as services:
        made = ray.remote(Worker)
        first = made.options(**on(early)).remote(services)
        assert judged(first, bundles[0])[1] == 0.5
        with pytest.raises(ServiceError, match=r"was not swapped on all nodes.*output differs"):
            services.swap(other)
        assert judged(first, bundles[0])[1] == 0.5
        assert services.swap(bundles[1]) == [early]
        assert judged(first, bundles[0])[1] == 0.9
        second = made.options(**on(late)).remote(services)
        judged(second, bundles[0])
        assert judged(second, bundles[0])[1] == 0.9
        assert {one["version"] for one in services.nodes().values()} == {1}


def test_nodes_that_ask_during_a_swap_are_swapped_too(nodes: Any, bundles: list[Bundle]) -> None:
    early, late = node_ids()
    with NodeServices(bundles[0]) as services:
        made = ray.remote(Worker)
        first = made.options(**on(early)).remote(services)
        judged(first, bundles[0])
        second = made.options(**on(late)).remote(services)  # asks while the next line swaps
        services.swap(bundles[1])
        for worker in (first, second):
            judged(worker, bundles[0])
            assert judged(worker, bundles[0])[1] == 0.9


def test_a_service_and_a_holder_that_are_killed_come_back_with_the_latest_bundle(
    nodes: Any, bundles: list[Bundle]
) -> None:
    node = node_ids()[0]
    with NodeServices(bundles[0]) as services:
        made = ray.remote(Worker)
        worker = made.options(**on(node)).remote(services)
        services.swap(bundles[1])
        before = ray.get(worker.pid.remote())
        os.kill(before, signal.SIGKILL)
        assert judged(worker, bundles[0])[1] == 0.9
        assert ray.get(worker.pid.remote()) != before
        # Everything of that node: the worker, the holder, and with them the service.
        ray.kill(worker)
        for each in services.nodes().values():
            os.kill(each["holder_pid"], signal.SIGKILL)
        until(lambda: services.nodes() == {})
        again = made.options(**on(node)).remote(services)
        judged(again, bundles[0])
        assert judged(again, bundles[0])[1] == 0.9


def test_a_node_that_is_lost_takes_no_other_along(nodes: Any, bundles: list[Bundle]) -> None:
    folder = Path(os.environ[FOLDER]).parent / "third"
    folder.mkdir(mode=0o700)
    added = nodes.add_node(num_cpus=2, object_store_memory=100_000_000, **at(str(folder)))
    nodes.wait_for_nodes()
    with NodeServices(bundles[0]) as services:
        there = workers(services)
        assert len(there) == 3
        for worker in there.values():
            judged(worker, bundles[0])
        nodes.remove_node(added, allow_graceful=False)
        left = [node for node in there if node != added.node_id]
        for node in left:
            judged(there[node], bundles[0])
        until(lambda: added.node_id not in node_ids())  # its processes live on for a moment
        assert sorted(services.swap(bundles[1])) == sorted(left)
        for node in left:
            assert judged(there[node], bundles[0])[1] == 0.9
        assert sorted(services.nodes()) == sorted(left)


def test_a_closed_handle_says_so(nodes: Any, bundles: list[Bundle]) -> None:
    services = NodeServices(bundles[0])
    services.close()
    services.close()
    with pytest.raises(ServiceError, match="Expected a handle that is open"):
        services.here()


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_files_that_are_there_are_not_written_again(tmp_path: Path, bundles: list[Bundle]) -> None:
    packed = services_module._Packed.of(bundles[0])
    first = packed.unpack(tmp_path)
    before = {path.name: path.stat().st_ino for path in first.path.iterdir()}
    again = packed.unpack(tmp_path)
    assert {path.name: path.stat().st_ino for path in again.path.iterdir()} == before
    (first.path / "golden.npz").write_bytes(b"half")  # as a full disk leaves it
    assert packed.unpack(tmp_path).golden.images.shape == bundles[0].golden.images.shape
    assert [path.name for path in tmp_path.iterdir()] == [packed.sha256]


def test_files_of_a_bundle_stay_in_its_folder_and_have_its_hash(
    tmp_path: Path, bundles: list[Bundle]
) -> None:
    packed = services_module._Packed.of(bundles[0])
    inside = tmp_path / "inside"
    inside.mkdir()
    outside = dataclasses.replace(packed, files={**packed.files, "../../outside": b"x"})
    with pytest.raises(ConfigError, match="Expected the name of a file beside"):
        outside.unpack(inside)
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    changed = dataclasses.replace(packed, files={**packed.files, "model.onnx": b"another"})
    with pytest.raises(BundleEditedError):
        changed.unpack(inside)
    assert not (inside / packed.sha256).exists()


def test_it_needs_a_cluster_and_a_bundle(nodes: Any) -> None:
    with pytest.raises(ModelNotFoundError):
        NodeServices("no-such-bundle")


def test_without_ray_initialised_it_says_what_to_do(
    bundles: list[Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"call ray\.init\(\) first"):
        NodeServices(bundles[0])
