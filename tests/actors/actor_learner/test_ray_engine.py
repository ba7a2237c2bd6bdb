"""Ray alone: two machines, one of which dies, and what else a cluster can do to a training."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest
import waiting
from actor_learner_parts import chain, training
from engine_environments import Fragile, gone, notes
from engine_runs import config, observations, random_policy, until
from faulty_environments import Remembers

from vinoreward.errors import MissingExtraError
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.checkpoint import load_checkpoint
from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.engines.ray import cluster as ray_cluster
from vinoreward_actors.actor_learner.engines.ray.cluster import ADDRESS, NAMESPACE, found_address
from vinoreward_actors.actor_learner.engines.ray.engine import RayEngine
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.trainer import make_engine
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED
from vinoreward_actors.policies.spec import mlp

LEARNED = mlp(2, 2, head="logits", hidden=(256, 256), value=True)
"""Large enough that its weights lie in the object store."""


def learner():
    return Impala(LEARNED, ImpalaConfig(trajectories=2, seed=0, precision="fp32"))


def environment(folder):
    kwargs = {"folder": str(folder), "owner": os.getpid()}
    return EnvironmentSpec("engine_environments:Watched", kwargs)


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster of two machines with two processors each, on one."""
    utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        head = {"num_cpus": 2, "object_store_memory": 200_000_000, "include_dashboard": False}
        cluster = utils.Cluster(initialize_head=True, head_node_args=head)
        patch.setenv(ADDRESS, cluster.address)
        yield cluster
        cluster.shutdown()


@pytest.mark.slow
class TestCluster:
    def test_a_state_actor_that_is_gone_for_good(self, two_nodes):
        """Whatever the learner asks next says so in our words; Ray's own are the cause."""
        import ray

        with running(config(LEARNED)) as engine:
            ray.kill(state_actor())
            with pytest.raises(EngineError, match=r"not answer: .* Expected a Ray") as caught:
                until(engine.compressed_policy)  # there is none; Ray kills when it gets to it
            assert isinstance(caught.value.__cause__, ray.exceptions.RayError)
            with pytest.raises(EngineError, match=r"weights is gone \(.*go on from the last"):
                until(lambda: engine.messages().events == "never")
        assert not ray.is_initialized()

    @pytest.mark.parametrize("hidden", [8, 256])
    def test_a_state_actor_that_is_killed_under_a_fixed_lag(self, two_nodes, hidden):
        """All wait for the compressed form of the present version, which the compressor has.

        Small weights travel in messages, large ones lie in the object store.
        """
        spec = mlp(2, 2, head="logits", hidden=(hidden, hidden))
        with running(config(spec, chain=chain(Remembers()), lag=0)) as engine:
            until(lambda: engine.everyone_has(0), engine)
            kill_state()
            until(lambda: engine.everyone_has(0), engine)
            made = engine.compressed_policy()
            assert made.version == 0
            engine.publish(random_policy(spec, 1))
            newest(engine, 1, network=COMPRESSED)
            until(lambda: engine.everyone_has(1), engine)
            assert engine.messages().events == []

    def test_a_process_that_the_cluster_has_no_room_for(self, two_nodes):
        """It waits for a node, however long, and costs no restarts; the others act."""
        told = dataclasses.replace(config(actors=3, restarts=0), start_timeout=10.0)
        with running(told) as engine:
            events = []

            def told_so():
                events.extend(str(each) for each in engine.messages().events)
                return len(events) >= 2

            until(told_so, engine)
            assert events[0].startswith("ray: the cluster has 2 processors for 3 processes")
            assert events[1].endswith("s (`ray status` shows what it waits for); it may yet")
            with more(two_nodes, 1):
                until(lambda: engine.everyone_has(0), engine)
                assert all("it may yet" in str(each) for each in engine.messages().events)

    def test_a_compressor_that_is_killed(self, two_nodes, tmp_path):
        """What it had put into the object store dies with it; its successor makes it anew."""
        told = config(LEARNED, chain=chain(Fragile(str(tmp_path / "died"), 2)), folder=tmp_path)
        with running(told, ActorSettings(pull_period=1)) as engine:
            until(lambda: engine.compressed_policy(), engine)
            engine.publish(random_policy(LEARNED, 1))
            (event,) = until(lambda: engine.messages().events, engine)
            assert event.who == "compressor"
            assert event.what.endswith("replaced by generation 1")
            until(lambda: (p := engine.compressed_policy()) and p.version == 1, engine)
            newest(engine, 1, network=COMPRESSED)

    def test_a_node_that_dies(self, two_nodes, tmp_path):
        """Actors on both; one node is killed in mid-training, which goes on and ends as usual."""
        import ray

        node = two_nodes.add_node(num_cpus=2, object_store_memory=200_000_000)
        two_nodes.wait_for_nodes()
        nodes = set()
        killed_at = []
        events = []

        def done(now):
            events.extend(now.events)
            nodes.update(each["node"] for each in notes(tmp_path).values())
            if not killed_at and len(nodes) == 2 and now.updates > 5:
                two_nodes.remove_node(node, allow_graceful=False)
                killed_at.append(now.updates)
            assert np.isfinite(list(now.metrics.values())).all()
            # A successor on the node that is left has learned along.
            return bool(killed_at) and now.updates > killed_at[0] + 20 and len(events) > 0

        told = {"actors": 3, "steps": 9, "engine": "ray", "max_lag": 10**6, "heartbeat": 30.0}
        trainer = training(learner(), environment=environment(tmp_path), **told)
        assert trainer.learn(10**7, done).stopped
        assert {event.what.split("; ")[1] for event in events} == {"replaced by generation 1"}
        assert not ray.is_initialized()
        until(lambda: all(gone(pid) for pid in notes(tmp_path)))

    def test_the_learner_dies(self, tmp_path):
        """Without a cluster, so that Ray is started by the training itself, and ends with it."""
        with training_script(tmp_path) as process:

            def acting():
                assert process.poll() is None, process.communicate()[0]
                return len(notes(tmp_path)) == 2

            waiting.until(acting, LATE)
            family = psutil.Process(process.pid).children(recursive=True)
            # Ray's own helpers look for their parent once a minute.
            helpers = [one for one in family if one.name().endswith("Agent")]
            assert set(notes(tmp_path)) < {one.pid for one in family} - {h.pid for h in helpers}
            process.kill()
            process.communicate(timeout=LATE)
            waiting.until(lambda: all(gone(one.pid) for one in family if one not in helpers), LATE)
            for helper in helpers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    helper.kill()

    def test_the_head_is_lost(self, tmp_path):
        """The learner says so and has saved what it learned until then, before Ray ends it.

        Also where an actor on the head's machine is lost with it, as here, and cannot be replaced.
        """
        cluster = "vinoreward_actors.actor_learner.engines.ray.cluster"
        shorter = f"import {cluster} as c; c.HEAD_PATIENCE=2"
        with (
            cluster_of_its_own(tmp_path) as (address, head),
            training_script(tmp_path, address, shorter) as process,
        ):
            waiting.until(
                lambda: (tmp_path / "updates").is_file() or process.poll() is not None, LATE
            )
            head.kill()
            actors = [path.stem for path in tmp_path.iterdir() if path.stem.isdigit()]
            os.kill(int(actors[0]), signal.SIGKILL)
            output, _ = process.communicate(timeout=LATE)
        last = output.rstrip().splitlines()[-1]
        assert "EngineError: the head of the Ray cluster at " in last, output
        assert "go on from the last checkpoint" in last
        state = load_checkpoint(tmp_path / "run")
        # All that it did, and no earlier checkpoint: none was due.
        assert state["version"] == int((tmp_path / "updates").read_text()) > 0


@contextlib.contextmanager
def running(told, settings=None):
    spec = told.actor.policy
    with RayEngine(told) as engine:
        engine.start(random_policy(spec), settings or ActorSettings(), observations(spec))
        yield engine


@contextlib.contextmanager
def more(cluster, processors):
    """One more machine."""
    node = cluster.add_node(num_cpus=processors, object_store_memory=100_000_000)
    cluster.wait_for_nodes()
    yield
    cluster.remove_node(node)


LATE = 180.0
"""Seconds that a loaded machine may take to start a script with PyTorch, and Ray."""


def kill_family(process):
    """Kill a process and all that it started, and close its pipes."""
    family = []
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


@contextlib.contextmanager
def cluster_of_its_own(folder):
    """A cluster that a process of its own has started: its address, and its head's process."""
    pytest.importorskip("ray")
    script = folder / "cluster.py"
    script.write_text(
        f"""
import json, pathlib, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args=dict(
    num_cpus=2, object_store_memory=200_000_000, include_dashboard=False))
pids = {{name: found[0].process.pid for name, found in cluster.head_node.all_processes.items()}}
part = pathlib.Path({str(folder / "cluster.part")!r})
part.write_text(json.dumps([cluster.address, pids]))
part.rename({str(folder / "cluster.json")!r})
sys.stdin.read()
"""
    )
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, **quiet},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        waiting.until((folder / "cluster.json").is_file, LATE)
        address, pids = json.loads((folder / "cluster.json").read_text())
        yield address, psutil.Process(pids["gcs_server"])
    finally:
        kill_family(process)


@contextlib.contextmanager
def training_script(folder, address="local", before=""):
    """A script like a user's, in a group of its own; whatever it leaves is ended.

    Args:
        folder: gets ``run``, and ``updates``: how many there were.
        address: of the cluster.
        before: to be run first.
    """
    (folder / "run").mkdir()
    script = folder / "train.py"
    script.write_text(
        f"""
import os, pathlib, sys
sys.path.append({str(Path(__file__).parents[2] / "support")!r})
from actor_learner_parts import training
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.policies.spec import mlp
{before}

def note(progress):
    pathlib.Path({str(folder / "updates")!r}).write_text(str(progress.updates))

if __name__ == "__main__":
    kwargs = dict(folder={str(folder)!r}, owner=os.getpid())
    network = mlp(2, 2, head="logits", hidden=(8,), value=True)
    training(
        Impala(network, ImpalaConfig(trajectories=2, seed=0, precision="fp32")),
        environment=EnvironmentSpec("engine_environments:Watched", kwargs),
        folder=pathlib.Path({str(folder / "run")!r}),
        actors=2, steps=9, engine="ray", max_lag=10**6,
    ).learn(10**9, note)
"""
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, ADDRESS: address},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_family(process)


def state_actor():
    import ray

    (found,) = ray.util.list_named_actors(all_namespaces=True)
    assert found["namespace"] == NAMESPACE
    return ray.get_actor(**found)


def kill_state():
    """End the process of the state actor, as the system does it when memory is short."""
    import ray

    state = state_actor()
    pid = int(ray.get(state.__ray_call__.remote(lambda self: os.getpid())))
    os.kill(pid, signal.SIGKILL)


def newest(engine, version, network=0):
    """Wait until an actor acts with a version, whatever else is under way."""

    def acted():
        batch = engine.take(1, timeout=0.1)
        if batch is None:
            return False
        with batch as (one,):
            return bool((one.versions == version).all() and (one.network == network).all())

    until(acted)


class TestWithoutRay:
    def test_the_missing_extra_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(MissingExtraError, match=r"pip install .*\[ray\]"):
            make_engine("ray", config())

    def test_nobody_at_the_address(self, monkeypatch):
        """Said at once; Ray itself would try for minutes."""
        pytest.importorskip("ray")
        for address in ("127.0.0.1:1", "nonsense"):
            monkeypatch.setenv(ADDRESS, address)
            said = f"nothing answers at RAY_ADDRESS={address}"
            with pytest.raises(EngineError, match=said), running(config()):
                pass
        engine = make_engine("ray", config())
        engine.close()  # without a start, and twice
        engine.close()

    def test_only_a_cluster_that_was_started_for_others_is_joined(self, monkeypatch):
        """By a note that only its user can write."""
        with (
            tempfile.TemporaryDirectory() as folder,
            socket.create_server(("127.0.0.1", 0)) as server,
        ):
            note = Path(folder, "ray_current_cluster")
            monkeypatch.setattr(ray_cluster, "_STARTED", note)
            monkeypatch.delenv(ADDRESS, raising=False)
            assert found_address() is None
            address = f"127.0.0.1:{server.getsockname()[1]}"
            note.write_text(address + "\n")
            assert found_address() == address
            monkeypatch.setenv(ADDRESS, "local")
            assert found_address() is None
            monkeypatch.delenv(ADDRESS)
            os.chmod(folder, 0o777)
            with pytest.raises(EngineError, match=f"set {ADDRESS}={address} to join"):
                found_address()
            with monkeypatch.context() as patch:
                patch.setattr(os, "getuid", lambda: note.stat().st_uid + 1)
                assert found_address() is None  # another user's
            os.chmod(folder, 0o700)
            server.close()
            assert found_address() is None  # it has ended without saying so

    @pytest.mark.slow
    def test_a_cluster_of_its_own_is_for_this_user_alone(self, tmp_path):
        pytest.importorskip("ray")
        code = (
            "import psutil, ray\n"  # imported before: what its import reads is read
            "from vinoreward_actors.actor_learner.engines.ray.cluster import Cluster\n"
            "cluster, me = Cluster(1), psutil.Process()\n"
            "cluster.ray.get(cluster.ray.remote(lambda: None).remote())\n"
            "for process in (me, *me.children(recursive=True)):\n"
            "    for one in process.net_connections('tcp'):\n"
            "        if one.status == 'LISTEN':\n"
            "            print(one.laddr.ip.removeprefix('::ffff:'))\n"
            "cluster.close()\n"
        )
        home = {"HOME": str(tmp_path), ADDRESS: "local"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **home}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert {*done.stdout.split()} == {"127.0.0.1"}
        assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("saves", [True, False])
def test_where_a_compressor_runs(saves, tmp_path):
    """With state to write: beside the learner, whatever is free; otherwise where room is."""
    engine = pytest.importorskip("vinoreward_actors.actor_learner.engines.ray.engine")
    told = config(chain=chain(), folder=tmp_path if saves else None)
    cluster = MagicMock()
    engine.RayWorker("compressor", 1, told, cluster, MagicMock(), MagicMock())
    asked = cluster.remote.call_args.kwargs
    assert asked["num_cpus"] == (0 if saves else 1)
    beside = cluster.beside_us.return_value
    assert asked["scheduling_strategy"] == (beside if saves else "SPREAD")
