"""Ray alone: two machines, one of which dies, and what else a cluster can do to a training."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import waiting
from actor_learner_parts import chain, training
from engine_environments import Fragile, gone, notes
from engine_runs import config, observations, random_policy, take, until

from vinoreward.errors import MissingExtraError
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.engines.ray.cluster import ADDRESS
from vinoreward_actors.actor_learner.engines.ray.engine import RayEngine
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.trainer import make_engine
from vinoreward_actors.actor_learner.transport.link import ActorSettings
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
    def test_a_process_that_the_cluster_has_no_room_for(self, two_nodes):
        """It waits for a node, however long, and costs no restarts; the others act."""
        with running(config(actors=3, restarts=0)) as engine:
            (event,) = engine.messages().events
            said = "ray: the cluster has 2 processors for 3 processes"
            assert str(event).startswith(said)
            seen = set()

            def acted():
                seen.update(one.actor for one in take(engine))
                return len(seen)

            until(lambda: acted() == 2)
            with more(two_nodes, 1):
                until(lambda: acted() == 3)
                assert engine.messages().events == []

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
            until(lambda: (one := take(engine)[0]).versions.all() and one.network.all())
            engine.configure(ActorSettings(save=1))
        assert (tmp_path / "compressor.npz").is_file()

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


@contextlib.contextmanager
def running(told, settings=None):
    spec = told.policy
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
def training_script(folder):
    """A script like a user's, in a group of its own; whatever it leaves is ended."""
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

if __name__ == "__main__":
    kwargs = dict(folder={str(folder)!r}, owner=os.getpid())
    network = mlp(2, 2, head="logits", hidden=(8,), value=True)
    training(
        Impala(network, ImpalaConfig(trajectories=2, seed=0, precision="fp32")),
        environment=EnvironmentSpec("engine_environments:Watched", kwargs),
        folder=pathlib.Path({str(folder / "run")!r}),
        actors=2, steps=9, engine="ray", max_lag=10**6,
    ).learn(10**9)
"""
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, ADDRESS: "local"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_family(process)


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
