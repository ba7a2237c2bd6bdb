"""Trainings that go on from a checkpoint with something changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from actor_learner_parts import CARTPOLE, dqn, impala, settings
from engine_runs import check_nothing_left

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.compressor import STATE_FILE
from vinoreward_actors.actor_learner.learners.base import Learner
from vinoreward_actors.actor_learner.learners.d4pg import D4PG, D4PGConfig
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.actor_learner.learners.sac import SAC, SACConfig
from vinoreward_actors.actor_learner.trainer import ActorLearner
from vinoreward_actors.actor_learner.transport.trajectory import TrajectorySpec
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.compression.graph import Compile, Fuse
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring import default_monitor
from vinoreward_actors.policies.spec import mlp


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


def chain() -> CompressorChain:
    taught = Distill(2, cold_steps=2)
    return CompressorChain().add(Prune(0.5)).add(taught).add(Quantize("w4")).add(Compile("numpy"))


@pytest.mark.parametrize("name", ["impala", "d4pg", "sac"])
def test_a_learning_rate_that_was_lowered_is_what_is_gone_on_with(name: str) -> None:
    def made(rate: float) -> Any:
        if name == "impala":
            return Impala(CARTPOLE, ImpalaConfig(learning_rate=rate))
        if name == "d4pg":
            spec = mlp(3, 1, head="tanh", hidden=(8,))
            return D4PG(spec, D4PGConfig(learning_rate=rate, critic_learning_rate=3 * rate))
        return SAC(mlp(3, 1, head="tanh_gaussian", hidden=(8,)), SACConfig(learning_rate=rate))

    def rates(learner: Any) -> list[float]:
        states = [part for part in learner.state()["parts"].values() if "param_groups" in part]
        return [group["lr"] for state in states for group in state["param_groups"]]

    learner = made(1e-5)
    before = rates(learner)
    learner.load_state(made(1e-3).state())
    assert rates(learner) == before != rates(made(1e-3))


def test_another_chain_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    first = ActorLearner("CartPole-v1", impala(), settings(), compressor=chain(), folder=tmp_path)
    first.learn(40)
    kept = (tmp_path / STATE_FILE).read_bytes()
    other = CompressorChain().add(Fuse()).add(Quantize("int8")).add(Compile("numpy"))
    with pytest.raises(ConfigError, match="is of another chain"):
        ActorLearner(
            "CartPole-v1", impala(), settings(), compressor=other, folder=tmp_path, resume=True
        )
    assert (tmp_path / STATE_FILE).read_bytes() == kept
    again = ActorLearner(
        "CartPole-v1", impala(), settings(), compressor=chain(), folder=tmp_path, resume=True
    )
    assert again.steps == first.steps


def saved(folder: Path, *, monitored: bool) -> None:
    ActorLearner(
        "CartPole-v1",
        impala(),
        settings(),
        compressor=chain(),
        monitor=default_monitor("logits", safer=chain().safer()) if monitored else None,
        folder=folder,
    )._state.save()


@pytest.mark.parametrize("monitored", [False, True])
def test_a_monitor_goes_on_with_the_users_settings(tmp_path: Path, monitored: bool) -> None:
    """Whether it was there before or not: the chain's bits, and a pull period that was changed."""
    saved(tmp_path, monitored=monitored)
    monitor = default_monitor("logits", safer=chain().safer())
    ActorLearner(
        "CartPole-v1",
        impala(),
        settings(pull_period=7),
        compressor=chain(),
        monitor=monitor,
        folder=tmp_path,
        resume=True,
    )
    found = monitor.setting
    assert (found.bits, found.sparsity, found.pull_period) == (4, 0.5, 7)


def test_a_pull_period_that_a_monitor_chose_stays(tmp_path: Path) -> None:
    monitor = default_monitor("logits")
    first = ActorLearner(
        "CartPole-v1", impala(), settings(), compressor=chain(), monitor=monitor, folder=tmp_path
    )
    monitor.setting = monitor.setting.changed({"pull_period": 3})
    first._state.save()
    again = default_monitor("logits")
    ActorLearner(
        "CartPole-v1",
        impala(),
        settings(),
        compressor=chain(),
        monitor=again,
        folder=tmp_path,
        resume=True,
    )
    assert again.setting.pull_period == 3


@pytest.mark.parametrize(("trajectories", "lag"), [(4, 0), (1, None), (4, None)])
def test_trajectories_that_waited_do_not_stop_a_run_that_takes_others(
    tmp_path: Path, trajectories: int, lag: int | None
) -> None:
    config = settings(actors=2)
    first = ActorLearner("CartPole-v1", impala(4), config, folder=tmp_path)
    spec = TrajectorySpec.of(CARTPOLE, config.steps, 1)
    for version in range(3):
        waits = spec.empty()
        for array in waits.arrays().values():
            array[...] = 0
        waits.versions[...] = version
        first._state.pending.append(waits)
    first._state.save()
    again = ActorLearner(
        "CartPole-v1",
        impala(trajectories),
        settings(actors=2, lag=lag),
        folder=tmp_path,
        resume=True,
    )
    kept = [int(one.versions[0, 0]) for one in again._state.pending]
    assert kept == ([] if lag == 0 else list(range(3))[3 - min(3, trajectories - 1) :])
    before = again.learner.updates
    again.learn(200)
    assert again.learner.updates > before


def test_a_monitor_needs_a_unit_for_actions_without_probabilities() -> None:
    learner = D4PG(mlp(3, 1, head="tanh", hidden=(8,)), D4PGConfig(sigma=0.0))
    compressor = CompressorChain().add(Quantize("int8", first=True))
    made: dict[str, Any] = {"config": settings(), "compressor": compressor}
    with pytest.raises(ConfigError, match="sigma above 0"):
        ActorLearner("Pendulum-v1", learner, monitor=default_monitor("tanh"), **made)
    ActorLearner("Pendulum-v1", learner, **made)


@pytest.mark.parametrize(
    ("backend", "engine"), [("onnxruntime", "onnxruntime"), ("torch", "numpy")]
)
def test_a_chain_that_does_not_say_what_runs_it_is_run_as_the_rest(
    backend: str, engine: str
) -> None:
    learner: Learner = dqn() if backend == "torch" else impala()
    training = ActorLearner(
        "CartPole-v1",
        learner,
        settings(backend=backend),
        compressor=CompressorChain().add(Quantize("w8")),
    )
    found: list[str] = []

    def watch(progress: Any) -> bool:
        compressed = training.policies()[1]
        found.extend([] if compressed is None else [compressed.backend])
        return bool(found)

    training.learn(100_000, watch)
    assert found == [engine]
    assert np.isfinite(training.recent_returns).all()
