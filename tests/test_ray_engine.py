"""Ray alone: two machines, one of which dies, and what else a cluster can do to a training."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from engine_environments import Fragile, gone, notes
from engine_runs import NUMBERED, PATIENCE, config, observations, random_policy, until
from faulty_environments import Remembers
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.actor_learner.actor_learner import ActorLearner, ActorLearnerConfig, Progress
from vinoreward.actor_learner.engines import budget, ray_cluster
from vinoreward.actor_learner.engines.base import Engine, EngineError
from vinoreward.actor_learner.engines.ray import RayEngine
from vinoreward.actor_learner.engines.ray_cluster import ADDRESS, NAMESPACE, found_address
from vinoreward.actor_learner.engines.ray_courier import Courier
from vinoreward.actor_learner.engines.ray_intake import Arrived, Intake
from vinoreward.actor_learner.engines.ray_outbox import Outbox
from vinoreward.actor_learner.engines.ray_payload import trajectory_in
from vinoreward.actor_learner.engines.ray_state import COMPRESSED as STORE_OF_COMPRESSED
from vinoreward.actor_learner.engines.ray_state import (
    FULL,
    ORDERS,
    Identity,
    Known,
    Published,
    State,
)
from vinoreward.actor_learner.engines.registry import make_engine
from vinoreward.actor_learner.environments import EnvironmentSpec
from vinoreward.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward.actor_learner.limiter import SamplesPerInsert
from vinoreward.actor_learner.orders import Orders
from vinoreward.actor_learner.trajectory import COMPRESSED
from vinoreward.compression.chain import CompressorChain
from vinoreward.errors import InputError, MissingExtraError
from vinoreward.policies.spec import mlp

LEARNED = mlp(2, 2, head="logits", hidden=(256, 256), value=True)
"""Large enough that its weights lie in the object store."""


def learner() -> Impala:
    return Impala(LEARNED, ImpalaConfig(trajectories=2, seed=0, precision="fp32"))


def environment(folder: Path) -> EnvironmentSpec:
    kwargs = {"folder": str(folder), "owner": os.getpid()}
    return EnvironmentSpec("engine_environments:Watched", kwargs)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
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
    def test_a_state_actor_that_is_killed(self, two_nodes: Any) -> None:
        """It starts anew with nothing; actors go on, and get what the learner has and makes."""
        import ray

        told = config(LEARNED, actors=1, heartbeat=20.0)
        with RayEngine(told) as engine:
            engine.start(random_policy(LEARNED), Orders(pull_period=1), observations(LEARNED))
            newest(engine, 0)
            kill_state()
            engine.publish(random_policy(LEARNED, 1))
            newest(engine, 1)
            until(lambda: engine.everyone_has(1), engine)
            assert engine.news().events == []
        assert not ray.is_initialized()

    @pytest.mark.parametrize("hidden", [8, 256])
    def test_a_state_actor_that_is_killed_under_a_fixed_lag(
        self, two_nodes: Any, hidden: int
    ) -> None:
        """All wait for the compressed form of the present version, which the compressor has.

        Small weights travel in messages, large ones lie in the object store.
        """
        spec = mlp(2, 2, head="logits", hidden=(hidden, hidden))
        told = config(spec, chain=CompressorChain().add(Remembers()), lag=0)
        with RayEngine(told) as engine:
            engine.start(random_policy(spec), Orders(), observations(spec))
            until(lambda: engine.everyone_has(0), engine)
            for version in range(1, 3):
                kill_state()
                until(lambda: engine.everyone_has(version - 1), engine)  # noqa: B023
                made = engine.compressed_policy()
                assert made is not None and made.version == version - 1
                engine.publish(random_policy(spec, version))
                newest(engine, version, network=COMPRESSED)
                until(lambda: engine.everyone_has(version), engine)  # noqa: B023
            assert engine.news().events == []

    def test_an_environment_that_hangs_at_its_first_step(
        self, two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Replaced no more often than it may be, however long a hang takes to be noticed."""
        monkeypatch.setattr(budget, "MINUTE", 0.5)
        kwargs = {"folder": str(tmp_path), "owner": os.getpid(), "at": 1, "once": False}
        told = config(
            environment="engine_environments:Watched",
            kwargs={**kwargs, "fault": "sleep"},
            heartbeat=1.0,
            restarts=1,
        )
        with RayEngine(told) as engine:
            engine.start(random_policy(NUMBERED), Orders(), observations(NUMBERED))
            (event,) = until(lambda: engine.news().events)
            assert event.what == "gave no sign of life for 1 s; replaced by generation 1"
            with pytest.raises(EngineError, match="actor 0 ended 2 times within a minute of work"):
                until(lambda: engine.news().events)

    def test_a_process_that_the_cluster_has_no_room_for(self, two_nodes: Any) -> None:
        """It waits for a node, however long, and costs no restarts; the others act."""
        told = dataclasses.replace(config(actors=3, restarts=0), start_timeout=15.0)
        with RayEngine(told) as engine:
            engine.start(random_policy(NUMBERED), Orders(), observations(NUMBERED))
            events: list[str] = []

            def told_so() -> bool:
                events.extend(str(each) for each in engine.news().events)
                return len(events) >= 2

            until(told_so, engine)
            assert events[0].startswith("ray: the cluster has 2 processors for 3 processes")
            assert events[1].endswith("s (`ray status` shows what it waits for); it may yet")
            node = two_nodes.add_node(num_cpus=1, object_store_memory=100_000_000)
            until(lambda: engine.everyone_has(0), engine)
            assert all("it may yet" in str(each) for each in engine.news().events)
        two_nodes.remove_node(node)

    def test_a_compressor_that_is_killed(self, two_nodes: Any, tmp_path: Path) -> None:
        """What it had put into the object store dies with it; its successor makes it anew."""
        stage = Fragile(str(tmp_path / "died"), 2)
        told = config(LEARNED, chain=CompressorChain().add(stage), folder=tmp_path)
        with RayEngine(told) as engine:
            engine.start(random_policy(LEARNED), Orders(pull_period=1), observations(LEARNED))
            until(lambda: engine.compressed_policy(), engine)
            engine.publish(random_policy(LEARNED, 1))
            (event,) = until(lambda: engine.news().events, engine)
            assert event.who == "compressor"
            assert event.what.endswith("replaced by generation 1")
            until(lambda: (p := engine.compressed_policy()) and p.version == 1, engine)
            newest(engine, 1, network=COMPRESSED)

    def test_a_node_that_dies(self, two_nodes: Any, tmp_path: Path) -> None:
        """Actors on both; one node is killed in mid-training, which goes on and ends as usual."""
        import ray

        node = two_nodes.add_node(num_cpus=2, object_store_memory=200_000_000)
        two_nodes.wait_for_nodes()
        nodes: set[str] = set()
        killed_at: list[int] = []
        events: list[Any] = []

        def progress(now: Progress) -> None:
            events.extend(now.events)
            nodes.update(each["node"] for each in notes(tmp_path).values())
            if not killed_at and len(nodes) == 2 and now.updates > 5:
                two_nodes.remove_node(node, allow_graceful=False)
                killed_at.append(now.updates)
            assert np.isfinite(list(now.metrics.values())).all()

        def done(now: Progress) -> bool:
            progress(now)
            # A successor on the node that is left has learned along.
            return bool(killed_at) and now.updates > killed_at[0] + 20 and len(events) > 0

        training = ActorLearner(
            environment(tmp_path),
            learner(),
            ActorLearnerConfig(
                actors=3, steps=9, engine="ray", executor="numpy", max_lag=10**6, heartbeat=30.0
            ),
        )
        summary = training.learn(10**7, done)
        assert summary.stopped
        assert {event.what.split("; ")[1] for event in events} == {"replaced by generation 1"}
        assert not ray.is_initialized()
        until(lambda: all(gone(pid) for pid in notes(tmp_path)))

    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
    def test_the_learner_dies_or_is_interrupted(self, how: signal.Signals, tmp_path: Path) -> None:
        """Without a cluster, so that Ray is started by the training itself, and ends with it."""
        with training_script(tmp_path) as process:

            def acting() -> bool:
                assert process.poll() is None, process.communicate()[0]
                return len(notes(tmp_path)) == 2

            until_late(acting)
            family = psutil.Process(process.pid).children(recursive=True)
            # Ray's own helpers look for their parent once a minute.
            helpers = [one for one in family if one.name().endswith("Agent")]
            assert set(notes(tmp_path)) < {one.pid for one in family} - {h.pid for h in helpers}
            if how is signal.SIGKILL:
                process.kill()
            else:
                os.killpg(process.pid, how)  # as a terminal does it
                helpers = []
            output, _ = process.communicate(timeout=LATE)
            until_late(lambda: all(gone(one.pid) for one in family if one not in helpers))
            for helper in helpers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    helper.kill()
        if how is signal.SIGINT:
            assert output.rstrip().endswith("KeyboardInterrupt")
            assert (tmp_path / "run" / "checkpoint.pt").is_file()


LATE = 180.0
"""Seconds that a loaded machine may take to start a script with PyTorch, and Ray."""


def until_late(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LATE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@contextlib.contextmanager
def training_script(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A script like a user's, in a group of its own; whatever it leaves is ended."""
    (folder / "run").mkdir()
    script = folder / "train.py"
    script.write_text(
        f"""
import os, pathlib, sys
sys.path.append({str(Path(__file__).parent)!r})
from vinoreward.actor_learner.actor_learner import ActorLearner, ActorLearnerConfig
from vinoreward.actor_learner.environments import EnvironmentSpec
from vinoreward.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward.policies.spec import mlp

if __name__ == "__main__":
    kwargs = dict(folder={str(folder)!r}, owner=os.getpid())
    network = mlp(2, 2, head="logits", hidden=(8,), value=True)
    ActorLearner(
        EnvironmentSpec("engine_environments:Watched", kwargs),
        Impala(network, ImpalaConfig(trajectories=2, seed=0, precision="fp32")),
        ActorLearnerConfig(actors=2, steps=9, engine="ray", executor="numpy", max_lag=10**6),
        folder=pathlib.Path({str(folder / "run")!r}),
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
    family = []
    try:
        yield process
    finally:
        if process.poll() is None:
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def kill_state() -> None:
    """End the process of the state actor, as the system does it when memory is short."""
    import ray

    (found,) = ray.util.list_named_actors(all_namespaces=True)
    assert found["namespace"] == NAMESPACE
    state = ray.get_actor(**found)
    pid = int(ray.get(state.__ray_call__.remote(lambda self: os.getpid())))
    os.kill(pid, signal.SIGKILL)


def newest(engine: Engine, version: int, network: int = 0) -> None:
    """Wait until an actor acts with a version, whatever else is under way."""

    def acted() -> bool:
        batch = engine.take(1, timeout=0.1)
        if batch is None:
            return False
        with batch as (one,):
            return bool((one.versions == version).all() and (one.network == network).all())

    until(acted)


class TestWithoutRay:
    def test_the_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'vinoreward\[ray\]'"):
            make_engine("ray", config())

    def test_nobody_at_the_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Said at once; Ray itself would try for minutes."""
        pytest.importorskip("ray")
        for address in ("127.0.0.1:1", "nonsense"):
            monkeypatch.setenv(ADDRESS, address)
            with make_engine("ray", config()) as engine, pytest.raises(EngineError) as caught:
                engine.start(random_policy(NUMBERED), Orders(), observations(NUMBERED))
            assert f"nothing answers at RAY_ADDRESS={address}" in str(caught.value)

    def test_only_a_cluster_that_was_started_for_others_is_joined(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        note = tmp_path / "ray_current_cluster"
        monkeypatch.setattr(ray_cluster, "_STARTED", note)
        monkeypatch.delenv(ADDRESS, raising=False)
        assert found_address() is None
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            note.write_text(address + "\n")
            assert found_address() == address
        assert found_address() is None  # it has ended without saying so
        monkeypatch.setenv(ADDRESS, "local")
        assert found_address() is None

    def test_close_without_start(self) -> None:
        pytest.importorskip("ray")
        engine = make_engine("ray", config())
        engine.close()
        engine.close()

    def test_a_trajectory_of_another_size(self) -> None:
        spec = config().trajectory
        with pytest.raises(InputError, match="the same version of vinoreward"):
            trajectory_in(spec, np.zeros(spec.nbytes - 1, np.uint8))


def arrived(actor: int, sequence: int) -> Arrived:
    return Arrived(config().trajectory.empty(actor), sequence)


class TestIntake:
    @given(
        actors=st.integers(1, 4),
        slots=st.integers(1, 3),
        ratio=st.sampled_from([0.25, 1.0, 8.0]),
        moves=st.lists(st.integers(0, 2**16), max_size=60),
    )
    @settings(deadline=None)
    def test_bounded_limited_and_never_stuck(
        self, actors: int, slots: int, ratio: float, moves: list[int]
    ) -> None:
        """Whatever comes in which order: no actor has more on its way than there is room for."""
        size, sample = 9, 32
        together = size * actors
        buffer = 2 * SamplesPerInsert.smallest_buffer(ratio, together, sample)
        limiter = SamplesPerInsert(ratio, 18, buffer, insert_size=together, sample_size=sample)
        asked: list[int] = []
        intake = Intake(size, actors, slots, limiter, asked.append)
        intake.ask()
        taken: list[Arrived] = []
        steps = samples = 0
        sequence = [0] * actors
        for move in moves:
            if asked and move % 4:
                actor = asked.pop(move % len(asked))
                intake.arrived(arrived(actor, sequence[actor]))
                sequence[actor] += 1
                steps += size
            found = intake.take(1, timeout=0.0, stop=lambda: False, evenly=False)
            taken += found or []
            if taken and move % 3 == 0:
                intake.release([taken.pop()])
            if limiter.can_sample(steps, samples, sample):
                samples += sample
                intake.sampled(sample)
            if asked and move % 7 == 0:
                dead = asked[0]
                intake.lost(dead)
                asked[:] = [actor for actor in asked if actor != dead]
                intake.ask()
            for actor in range(actors):
                held = sum(one.trajectory.actor == actor for one in taken)
                assert asked.count(actor) + held <= slots
            inserted = steps + size * len(asked)
            assert inserted <= 18 or limiter.surplus(inserted, samples) <= limiter.error_buffer
        intake.release(taken)
        while (found := intake.take(1, timeout=0.0, stop=lambda: False, evenly=False)) is not None:
            intake.release(found)
        # With everything given back, somebody can always go on.
        assert asked or limiter.can_sample(steps, samples, sample)

    def test_evenly_is_in_order_whatever_came_first(self) -> None:
        intake = Intake(9, 2, 3, None, lambda actor: None)
        intake.ask()
        for actor, sequence in [(1, 1), (1, 0), (0, 2), (0, 0), (1, 2)]:
            intake.arrived(arrived(actor, sequence))
        assert intake.take(6, timeout=0.0, stop=lambda: False, evenly=True) is None
        intake.arrived(arrived(0, 1))
        found = intake.take(4, timeout=0.0, stop=lambda: False, evenly=True)
        assert found is not None
        order = [(one.trajectory.actor, one.sequence) for one in found]
        assert order == [(0, 0), (1, 0), (0, 1), (1, 1)]
        assert intake.waiting == 2
        assert intake.rollouts == [3, 3]


class TestOutbox:
    def test_messages_go_to_who_asked_first(self) -> None:
        async def asking() -> list[bytes]:
            outbox = Outbox()

            def work() -> None:
                outbox.put((b"0", None))
                assert outbox.wait_asked(lambda: False)
                for text in (b"1", b"2", b"3"):
                    outbox.put((text, None))
                outbox.end("over")

            thread = threading.Thread(target=work)
            first = outbox.next()
            thread.start()
            ended = asyncio.ensure_future(outbox.ended())
            found = [await first, *(await asyncio.gather(*(outbox.next() for _ in range(3))))]
            assert await ended == await outbox.ended() == "over"
            thread.join()
            return [text for text, _ in found]

        assert asyncio.run(asking()) == [b"0", b"1", b"2", b"3"]

    def test_nobody_asks(self) -> None:
        assert not Outbox().wait_asked(lambda: True)


class TestCourier:
    def test_the_newest_goes_and_orders_before_weights(self) -> None:
        sent: list[tuple[str, int]] = []
        free = threading.Event()
        busy = threading.Event()

        def send(store: str, version: int, header: bytes, payload: Any) -> Published:
            busy.set()
            assert free.wait(PATIENCE)
            sent.append((store, version))
            return Published(version, header, payload)

        failures: list[str] = []
        again: list[tuple[str, int]] = []
        courier = Courier(
            send, lambda store, what: again.append((store, what.version)), failures.append
        )
        empty = np.empty(0, np.uint8)
        courier.publish(FULL, 0, b"", empty)
        assert busy.wait(PATIENCE)
        for version in range(1, 5):
            courier.publish(FULL, version, b"", empty)
        courier.publish(ORDERS, 7, b"", empty)
        assert not courier.flush(0.0)
        free.set()
        assert courier.flush(PATIENCE)
        assert sent == [(FULL, 0), (ORDERS, 7), (FULL, 4)]
        courier.resend()
        assert courier.flush(PATIENCE)
        assert again == [(ORDERS, 7), (FULL, 4)]
        courier.close()
        assert failures == []

    def test_a_failure_is_told(self) -> None:
        def send(store: str, version: int, header: bytes, payload: Any) -> Published:
            raise OSError("no way through")

        failures: list[str] = []
        courier = Courier(send, lambda store, what: None, failures.append)
        courier.publish(FULL, 0, b"", np.empty(0, np.uint8))
        until(lambda: failures)
        assert failures == ["full could not be published: no way through"]
        courier.close()


class TestState:
    def test_newest_wins_and_an_older_generation_is_sent_away(self) -> None:
        async def talk() -> None:
            state = State(2)
            first = Known(0, 0, -1, -1)
            born = (await state.look()).born
            assert await state.pull(first, FULL, -1, 0.0) == ((born, False, -1, None), None)
            waiting = asyncio.ensure_future(state.pull(first, FULL, -1, PATIENCE))
            await state.publish(ORDERS, Published(0, b"{}", None))
            await state.publish(FULL, Published(5, b"five", None))
            pulled = await waiting
            assert pulled.latest == (5, b"five", None)
            assert pulled.told == (born, False, 5, (0, b"{}", None))
            await state.publish(FULL, Published(4, b"late", None))
            assert (await state.latest(FULL)) == (5, b"five", None)
            assert await state.everyone_has(1, 5, False)
            assert not await state.everyone_has(2, 5, False)
            assert not await state.everyone_has(1, 5, True)
            told = await state.sync(Known(1, 0, 5, 0), 3, None, 0.0)
            assert told == (born, False, 5, None)
            assert await state.everyone_has(2, 5, False)
            look = await state.look()
            assert look.silence[0] == float("inf") > look.silence[1] >= 0
            # Replaced while it waits: it is told to end, and does not count any more.
            waiting_too = asyncio.ensure_future(state.sync(Known(1, 0, 5, 0), 4, None, PATIENCE))
            await asyncio.sleep(0)
            await state.replace(1, 1)
            assert (await waiting_too).stopped
            assert not await state.everyone_has(2, 5, False)
            assert (await state.look()).silence[1] == float("inf")
            await state.sync(Known(1, 0, 9, 0), 5, None, 0.0)
            assert (await state.look()).generations == (0, 1)
            assert not await state.everyone_has(2, 5, False)
            await state.stop()
            assert (await state.pull(first, FULL, 5, PATIENCE)).told.stopped

        asyncio.run(talk())


class Handle:
    """A state that lives in this process, and is asked like one on Ray."""

    def __init__(self, processes: int) -> None:
        self.actor = State(processes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(
                getattr(self.actor, name)(*arguments), self._loop
            )

        return SimpleNamespace(remote=remote)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class TestStateLost:
    def test_the_compressor_publishes_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The learner waits for what only the compressor has, which waits for the learner."""
        ray_links = pytest.importorskip("vinoreward.actor_learner.engines.ray_links")
        monkeypatch.setattr(
            ray_links, "ray", SimpleNamespace(get=lambda future: future.result(PATIENCE))
        )
        handle = Handle(2)

        def ask(name: str, *arguments: Any) -> Any:
            return getattr(handle, name).remote(*arguments).result(PATIENCE)

        def learner_publishes() -> None:
            ask("publish", ORDERS, Published(0, Orders().to_json(), None))
            ask("publish", FULL, Published(5, b"five", np.empty(0, np.uint8)))
            ask("pull", Known(0, 0, -1, 0), FULL, -1, 0.0)  # so does the actor

        learner_publishes()
        link = ray_links.RayCompressorLink(Identity(handle, 1, 0, beat=0.01), Outbox())
        assert link.pull(0, -1).version == 5
        link.publish(random_policy(NUMBERED, 5))
        assert ask("everyone_has", 1, 5, True)
        made = ask("latest", STORE_OF_COMPRESSED)
        handle.actor = State(2)  # Ray starts it anew, empty, and the courier sends again
        learner_publishes()
        assert link.pull(0, 5) is None
        until(lambda: ask("everyone_has", 1, 5, True))
        assert ask("latest", STORE_OF_COMPRESSED) == made
        ask("stop")
        until(lambda: link.stopped)
        until(lambda: not any("signs of life" in one.name for one in threading.enumerate()))
        handle.close()
