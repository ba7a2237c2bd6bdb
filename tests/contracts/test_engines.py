"""The contract that every engine keeps: one suite, local processes and Ray."""

from __future__ import annotations

import contextlib
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
from vinoreward_actors.compression.graph import Compile

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.config import SamplesPerInsert
from vinoreward_actors.actor_learner.engines.base import Engine, EngineError
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.ray.cluster import ADDRESS, Cluster
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.trainer import ActorLearner, ActorLearnerConfig, make_engine
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, Trajectory
from vinoreward_actors.compression.chain import CompressorChain
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


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.slow)])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return str(request.param)


local = pytest.mark.parametrize("name", ["local"], indirect=True)
"""For what both engines leave to the same actors, compressor and messages."""


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
    spec = told.actor.policy
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
        """Two actors with two environments: evenly taken, each one's experience in order."""
        with started(name, watched(actors=2, environments=2)) as engine:
            for turn in range(8):
                taken = take(engine, 4, evenly=True)
                assert [one.actor for one in taken] == [0, 1, 0, 1]
                assert [check_whole(one) for one in taken] == [
                    6 * turn,
                    6 * turn,
                    *[6 * turn + 3] * 2,
                ]
            assert all(one.generation == 0 for one in taken)
            counters = until(lambda: (c := engine.counters())["trajectories"] >= 32 and c, engine)
            assert counters["steps"] == 2 * STEPS * counters["trajectories"]
            assert counters["pulls"] >= 2
            assert counters["infer_wall"] > 0 and counters["env_cpu"] > 0
            episodes = until(lambda: engine.messages().episodes, engine)
            assert {episode.length for _, episode in episodes} == set(EPISODES)
            assert {actor for actor, _ in episodes} == {0, 1}
        engine.close()  # a second time
        about = notes(tmp_path)
        assert len(about) == 2
        until(lambda: all(gone(pid) for pid in about))
        for each in about.values():
            assert each["torch"] is False
            assert each["threads"] == "1"

    def test_actors_act_with_the_newest_weights_and_orders(self, name: str) -> None:
        """With what few bits leave of them, and with all of them where that is asked for.

        Published one after another without waiting: the last one is what all end up with.
        """
        spec = mlp(4, 2, head="q", hidden=(16, 16))
        told = config(spec, "CartPole-v1", actors=2, bits=4)
        with started(name, told, ActorSettings(pull_period=1)) as engine:
            for one in take(engine, 2, evenly=True):
                np.testing.assert_array_equal(one.log_mu, 0.0)  # greedy
            for version, bits in ((0, 4), (1, 2), (2, 32)):
                policy = random_policy(spec, version)
                if version:
                    engine.publish(policy, bits)
                one = take(engine)[0]
                while one.versions.min() < version:
                    one = take(engine)[0]
                expected = forward(lowered(policy, bits), one.observations[:, 0])
                np.testing.assert_allclose(one.behaviour[:, 0], expected, rtol=1e-4, atol=1e-5)
            for version in range(3, 40):
                engine.publish(random_policy(spec, version), 32)
            have: dict[int, Trajectory] = {}
            while len(have) < 2:
                for one in take(engine):
                    assert (np.diff(one.versions[:, 0]) >= 0).all()
                    if one.versions.min() == 39:
                        have[one.actor] = one
            until(lambda: engine.everyone_has(39))
            assert not engine.everyone_has(40)
            policy = random_policy(spec, 39)
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
            with pytest.raises(ConfigError):
                engine.take(3, timeout=0.0, evenly=True)

    def test_samples_per_insert(self, name: str, watched: Callable[..., EngineConfig]) -> None:
        limiter = SamplesPerInsert(4.0, 18, 2 * 4.0 * 18, insert_size=18, sample_size=32)
        with started(name, watched(actors=2, slots=50, limiter=limiter)) as engine:
            samples = 0
            for _ in range(6):
                # Whatever the order of things: neither side waits for ever, and none runs ahead.
                until(lambda: limiter.can_sample(engine.counters()["steps"], samples, 32))  # noqa: B023
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
            # A hang on Ray: the compressor's, below, and an environment's in test_ray_engine.py.
            pytest.param("ray", "kill", marks=pytest.mark.slow),
        ],
        indirect=["name"],
    )
    def test_an_actor_that_dies_or_hangs_is_replaced(
        self, name: str, fault: str, watched: Callable[..., EngineConfig], tmp_path: Path
    ) -> None:
        """In mid-write: nothing torn is seen, a successor begins anew, the other one goes on."""
        heartbeat = 1.5 if fault == "hang" else PATIENCE
        told = watched(fault, STEPS * 3 + 4, actors=2, heartbeat=heartbeat)
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
            assert ("sign of life" in event.what) == (fault == "hang")
            until(lambda: engine.counters()["trajectories"] >= before + 3, engine)
            until(lambda: gone(int((tmp_path / "victim").read_text())))

    def test_a_compressor_that_hangs_is_replaced_and_one_that_works_is_not(
        self, name: str, tmp_path: Path
    ) -> None:
        """Long work takes more than two heartbeats here.

        Its first push is long; it stops in the second; its successor is stuck in its third.
        """
        chain = CompressorChain()
        for push, fault in enumerate(("work", "hang", "stuck"), 1):
            chain.add(Fragile(str(tmp_path / fault), push, fault))
        told: list[Any] = []
        with started(name, config(chain=chain, heartbeat=1.5)) as engine:

            def pushed(version: int, happened: int) -> None:
                if version:
                    engine.publish(random_policy(NUMBERED, version))
                until(lambda: (p := engine.compressed_policy()) and p.version == version, engine)
                # Messages of a cluster may come a moment after what a successor made.
                until(lambda: told.extend(engine.messages().events) or len(told) >= happened)
                assert len(told) == happened

            for version, happened in enumerate((0, 1, 1, 2)):
                pushed(version, happened)
        what = "gave no sign of life for 1.5 s; replaced by generation"
        assert [(event.who, event.what) for event in told] == [
            ("compressor", f"{what} {generation}") for generation in (1, 2)
        ]
        assert (tmp_path / "work").read_text() == (tmp_path / "hang").read_text()
        for fault in ("hang", "stuck"):
            until(lambda: gone(int((tmp_path / fault).read_text())))  # noqa: B023

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

    def test_a_successor_takes_its_place_in_a_fixed_lag(
        self, name: str, watched: Callable[..., EngineConfig]
    ) -> None:
        with started(name, watched("kill", STEPS * 3 + 4, lag=0)) as engine:
            found = []
            for version in range(6):
                (one,) = take(engine)
                check_whole(one)
                found.append((int(one.versions[0, 0]), one.generation))
                until(lambda: engine.everyone_has(version))  # noqa: B023
                engine.publish(random_policy(NUMBERED, version + 1))
        assert found == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]


class TestCompression:
    @local
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


@pytest.mark.slow
def test_a_fixed_lag_is_the_same_to_the_bit_on_both(cluster: Cluster) -> None:
    """Weights after a training, and every metric on the way."""

    def trained(engine: str) -> tuple[list[dict[str, float]], dict[str, Any]]:
        spec = mlp(4, 2, head="logits", hidden=(32, 32), activation="tanh", value=True)
        learner = Impala(spec, ImpalaConfig(trajectories=4, seed=3, precision="fp32"))
        chain = CompressorChain().add(Quantize("int8")).add(Compile("openvino"))
        training = ActorLearner(
            "CartPole-v1",
            learner,
            ActorLearnerConfig(actors=2, environments=2, steps=10, engine=engine, lag=1, seed=5),
            compressor=chain,
        )
        metrics: list[dict[str, float]] = []
        training.learn(6 * 80, lambda progress: metrics.append(progress.metrics))
        return metrics, learner.policy(0).float_parameters()

    (first, ours), (second, theirs) = trained("local"), trained("ray")
    assert first == second
    assert len(first) == 6
    assert first[-1]["compressed_share"] == 1.0
    for key, value in ours.items():
        np.testing.assert_array_equal(value, theirs[key])
