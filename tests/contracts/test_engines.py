"""The contract that every engine keeps: one suite, local processes, Ray, and inline."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_environments import Fragile, gone, notes
from engine_runs import (
    NUMBERED,
    PATIENCE,
    as_computed,
    config,
    observations,
    random_policy,
    take,
    until,
)

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.config import SamplesPerInsert
from vinoreward_actors.actor_learner.engines.base import Engine, EngineConfig, EngineError
from vinoreward_actors.actor_learner.engines.ray.cluster import ADDRESS, Cluster
from vinoreward_actors.actor_learner.trainer import make_engine
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, Trajectory
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.compile import Compile
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.policies.policy import forward
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.policies.wire import lowered

STEPS = 9  # three episodes of Numbered
EPISODES = (3, 2, 4)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One Ray for all tests here."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ADDRESS, "local")
        found = Cluster(8)
        yield found
        found.close()


LOCAL, INLINE = "local", "inline"
RAY = pytest.param("ray", marks=pytest.mark.slow)


@pytest.fixture(params=[LOCAL, INLINE, RAY])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return str(request.param)


with_processes = pytest.mark.parametrize("name", [LOCAL, RAY], indirect=True)
"""For what an engine without processes does not have."""


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., EngineConfig]:
    """Configurations with environments that write into this test's folder."""

    def told(fault: str = "", at: int = 0, once: bool = True, **rest: Any) -> EngineConfig:
        kwargs = {
            "folder": str(tmp_path),
            "owner": os.getpid(),
            "fault": fault,
            "at": at,
            "once": once,
        }
        return config(NUMBERED, "engine_environments:Watched", kwargs=kwargs, steps=STEPS, **rest)

    return told


@contextlib.contextmanager
def started(
    name: str, told: EngineConfig, settings: ActorSettings | None = None
) -> Iterator[Engine]:
    spec = told.policy
    with make_engine(name, told) as engine:
        engine.start(random_policy(spec), settings or ActorSettings(), observations(spec))
        yield engine


def check_whole(one: Trajectory) -> int:
    """Every element is what the environment gave; return the number of its first episode."""
    first = int(one.observations[0, 0, 0])
    steps = [(first + at, step) for at, count in enumerate(EPISODES) for step in range(count)]
    for env in range(one.rewards.shape[1]):
        np.testing.assert_array_equal(one.observations[:, env], steps)
        np.testing.assert_array_equal(one.next_observations[:, env], np.add(steps, (0, 1)))
        np.testing.assert_array_equal(one.rewards[:, env], np.sum(steps, 1) + 1)
    assert np.flatnonzero(one.terminated[:, 0]).tolist() == [4, 8]
    assert np.flatnonzero(one.truncated[:, 0]).tolist() == [2]
    return first


class TestExperience:
    def test_all_of_it_arrives_in_order_and_nothing_is_left(
        self, name: str, watched: Callable[..., EngineConfig], tmp_path: Path
    ) -> None:
        with started(name, watched(actors=2, environments=2)) as engine:
            firsts: dict[int, list[int]] = {0: [], 1: []}
            while min(map(len, firsts.values())) < 8:
                taken = take(engine, 2)
                for one in taken:
                    firsts[one.actor].append(check_whole(one))
            for found in firsts.values():
                assert found == list(range(0, 3 * len(found), 3))
            assert all(one.generation == 0 for one in taken)
            counters = until(lambda: (c := engine.counters())["trajectories"] >= 16 and c, engine)
            assert counters["steps"] == 2 * STEPS * counters["trajectories"]
            assert counters["pulls"] >= 2
            assert counters["infer_wall"] > 0 and counters["env_cpu"] > 0
            episodes = until(lambda: engine.messages().episodes, engine)
            assert {episode.length for _, episode in episodes} == set(EPISODES)
            assert {actor for actor, _ in episodes} == {0, 1}
        engine.close()  # a second time
        about = notes(tmp_path)
        assert len(about) == (0 if name == INLINE else 2)
        until(lambda: all(gone(pid) for pid in about))
        for each in about.values():
            assert each["torch"] is False
            assert each["threads"] == "1"

    def test_actors_act_with_the_newest_weights_and_orders(self, name: str) -> None:
        """With what the configured bits leave of them.

        Published one after another without waiting: the last one is what all end up with.
        """
        spec = mlp(4, 2, head="q", hidden=(16, 16))
        bits = 4 if name == "ray" else 16
        told = config(spec, "CartPole-v1", actors=2, bits=bits)
        with started(name, told, ActorSettings(pull_period=1)) as engine:
            for one in take(engine, 2):
                np.testing.assert_array_equal(one.log_mu, 0.0)  # greedy
            for version in range(1, 40):
                engine.publish(random_policy(spec, version))
            have: dict[int, Trajectory] = {}
            while len(have) < 2:
                for one in take(engine):
                    assert (np.diff(one.versions[:, 0]) >= 0).all()
                    if one.versions.min() == 39:
                        have[one.actor] = one
            policy = lowered(random_policy(spec, 39), bits)
            for one in have.values():
                outputs = forward(policy, one.observations[:, 0])
                np.testing.assert_allclose(one.behaviour[:, 0], outputs, rtol=1e-3, atol=1e-4)
            # And with the newest settings.
            engine.configure(ActorSettings(epsilon=1.0, pull_period=1))
            at_random = {0: False, 1: False}
            while not all(at_random.values()):
                for one in take(engine):
                    at_random[one.actor] |= bool(np.allclose(one.log_mu, np.log(0.5)))


class TestLimits:
    @with_processes
    def test_room_of_large_trajectories(self, name: str) -> None:
        """Nobody reads: no more is written than there is room for.

        More than fits into a message, weights too: on Ray they lie in the object store.
        """
        spec = mlp(2, 2, head="logits", hidden=(256, 256))
        steps, environments = 9 * 100, 7
        told = config(spec, actors=2, steps=steps, environments=environments, slots=3)
        with started(name, told, ActorSettings(pull_period=1000)) as engine:
            engine.publish(random_policy(spec, 1))
            until(lambda: engine.waiting() == 6)
            batch = engine.take(1, timeout=PATIENCE)
            assert batch is not None
            with batch as (one,):
                assert one.arrays()["next_observations"].nbytes > 50_000
                assert not one.observations.flags.writeable
                np.testing.assert_array_equal(
                    one.observations[1:, :, 0] - one.observations[:-1, :, 0],
                    (one.terminated | one.truncated)[:-1],
                )
            until(lambda: engine.waiting() == 6)
            assert engine.take(1, timeout=0.0) is not None  # not entered: still held
            assert engine.take(6, timeout=0.3) is None
            assert engine.counters()["steps"] == 7 * steps * environments
            with pytest.raises(ConfigError):
                engine.take(7, timeout=0.0)

    def test_samples_per_insert(self, name: str, watched: Callable[..., EngineConfig]) -> None:
        limiter = SamplesPerInsert(4.0, 18, insert_size=18, sample_size=32)
        with started(name, watched(actors=2, slots=50, limiter=limiter)) as engine:
            samples = 0

            def can_sample(engine: Engine, samples: int) -> bool:
                if (batch := engine.take(1, timeout=0.0)) is not None:
                    batch.close()
                return limiter.can_sample(engine.counters()["steps"], samples, 32)

            for _ in range(6):
                # Whatever the order of things: neither side waits for ever, and none runs ahead.
                until(lambda: can_sample(engine, samples))  # noqa: B023
                engine.sampled(32)
                samples += 32
                steps = engine.counters()["steps"]
                assert limiter.surplus(steps - 18, samples) <= limiter.error_buffer


class TestFaults:
    @pytest.mark.parametrize(
        ("name", "fault"),
        [
            ("local", "kill"),
            ("local", "hang"),
            pytest.param("ray", "kill", marks=pytest.mark.slow),
            pytest.param("ray", "hang", marks=pytest.mark.slow),
        ],
        indirect=["name"],
    )
    def test_an_actor_that_dies_or_hangs_is_replaced(
        self, name: str, fault: str, watched: Callable[..., EngineConfig], tmp_path: Path
    ) -> None:
        """In mid-write: nothing torn is seen, a successor begins anew, the other one goes on."""
        heartbeat = 1.5 if fault == "hang" else PATIENCE
        told = watched(fault, STEPS * 3 + 4, actors=2, heartbeat=heartbeat)
        if name == "ray" and fault == "hang":  # there a trajectory has as long as a start
            told = dataclasses.replace(told, start_timeout=10.0)
        with started(name, told) as engine:
            events: list[Any] = []
            successors: list[Trajectory] = []
            before = 0
            while len(successors) < 3:
                (one,) = take(engine)
                first = check_whole(one)
                events += engine.messages().events
                if one.generation == 1:
                    assert first == 3 * len(successors)
                    successors.append(one)
                before += one.generation == 0
            (event,) = events
            assert event.who == f"actor {successors[0].actor}"
            assert event.what.endswith("; replaced by generation 1")
            assert ("gave no" in event.what) == (fault == "hang")
            until(lambda: engine.counters()["trajectories"] >= before + 3, engine)
            until(lambda: gone(int((tmp_path / "victim").read_text())))

    @with_processes
    def test_a_compressor_that_hangs_is_replaced(self, name: str, tmp_path: Path) -> None:
        """Stopped in its first push; its successor makes that version."""
        marker = tmp_path / "hangs"
        told = config(chain=CompressorChain().add(Fragile(str(marker), 1, "hang")))
        with started(name, dataclasses.replace(told, longest_push=5.0)) as engine:
            (event,) = until(lambda: engine.messages().events, engine)
            assert event.who == "compressor" and event.what.startswith("gave no ")
            assert event.what.endswith("for 5 s; replaced by generation 1")
            until(lambda: (p := engine.compressed_policy()) and p.version == 0, engine)
        until(lambda: gone(int(marker.read_text())))

    @with_processes
    def test_an_environment_that_fails_for_good(
        self, name: str, watched: Callable[..., EngineConfig]
    ) -> None:
        told = watched("raise", STEPS + 2, once=False, restarts=0)
        with (
            pytest.raises(EngineError) as caught,
            started(name, told) as engine,
        ):
            until(lambda: engine.messages() and False, engine)
        text = str(caught.value)
        assert "actor 0 ended 1 times within a minute" in text
        assert "Traceback (most recent call last)" in text
        assert "RuntimeError: the simulator fell over" in text

    def test_an_environment_that_fails_inline(self) -> None:
        told = config(environment="engine_environments:Falls")
        with started(INLINE, told) as engine:
            check_whole(take(engine)[0])
            with pytest.raises(EngineError, match="RuntimeError: the simulator fell over"):
                take(engine)


class TestCompression:
    @pytest.mark.parametrize("name", [LOCAL, INLINE], indirect=True)
    def test_actors_act_with_what_the_compressor_made(self, name: str) -> None:
        spec = mlp(4, 2, head="logits", hidden=(32, 32))
        chain = CompressorChain().add(Quantize("int8")).add(Compile("openvino"))
        told = config(spec, "CartPole-v1", chain=chain, backend="openvino", steps=8)
        with started(name, told, ActorSettings(pull_period=1)) as engine:
            for version in (0, 1):
                if version:
                    engine.publish(random_policy(spec, version))
                compressed = until(
                    lambda: (p := engine.compressed_policy()) and p.version == version and p,  # noqa: B023
                    engine,
                )
                one = until(
                    lambda: next(
                        (
                            one
                            for one in take(engine)
                            if (one.network == COMPRESSED).all() and (one.versions == version).all()  # noqa: B023
                        ),
                        None,
                    )
                )
                outputs = forward(as_computed(compressed), one.observations[:, 0])
                np.testing.assert_allclose(one.behaviour[:, 0], outputs, rtol=1e-3, atol=1e-3)
            assert compressed.backend == "openvino"
            reports = until(lambda: engine.messages().compressor, engine)
            assert all("error" not in report for report in reports)
