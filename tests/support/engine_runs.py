"""What tests of real actor processes share: small configurations, and that nothing is left."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import waiting

from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.config import ActorLearnerConfig, SamplesPerInsert
from vinoreward_actors.actor_learner.engines.base import Engine, Event
from vinoreward_actors.actor_learner.engines.local import LocalEngine
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.policies.backends.base import make_backend
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.spec import PolicySpec, mlp

NUMBERED = mlp(2, 2, head="logits", hidden=(8, 8))
"""A network for ``faulty_environments:Numbered``."""
USUAL = ActorSettings()
PATIENCE = 60.0
"""Seconds that a loaded machine may take for what takes one."""


def random_policy(spec: PolicySpec, version: int = 0) -> Policy:
    random = np.random.default_rng([version])
    return Policy(
        spec,
        {
            name: random.normal(0, 0.3, shape).astype(np.float32)
            for name, shape in spec.parameter_shapes().items()
        },
        version=version,
    )


def config(
    spec: PolicySpec = NUMBERED,
    environment: str = "faulty_environments:Numbered",
    *,
    kwargs: dict[str, Any] | None = None,
    actors: int = 1,
    environments: int = 1,
    steps: int = 9,
    chain: CompressorChain | None = None,
    folder: Path | None = None,
    limiter: SamplesPerInsert | None = None,
    bits: int = 32,
    heartbeat: float = PATIENCE,
    restarts: int = 3,
    slots: int = 2,
    first_version: int = 0,
    **run: Any,
) -> EngineConfig:
    told = {"backend": "numpy", "heartbeat": heartbeat, "restarts": restarts, "bits": bits, **run}
    return EngineConfig(
        ActorLearnerConfig(
            actors=actors,
            environments=environments,
            steps=steps,
            engine="local" if bits >= 16 else "ray",
            **told,
        ),
        EnvironmentSpec(environment, kwargs or {}),
        spec,
        chain=chain,
        compressed=chain is not None,
        folder=folder,
        fresh="max_lag" in run,
        first_version=first_version,
        limiter=limiter,
        slots_per_actor=slots,
        observations=128,
    )


def observations(spec: PolicySpec) -> Any:
    random = np.random.default_rng(0)
    rows = random.normal(size=(128, *spec.observation_shape))
    return (rows * 20).clip(0, 255).astype(spec.observation_dtype)


@contextlib.contextmanager
def started(told: EngineConfig, settings: ActorSettings = USUAL) -> Iterator[LocalEngine]:
    """A running engine with random weights of version 0."""
    spec = told.policy
    with LocalEngine(told) as engine:
        engine.start(random_policy(spec), settings, observations(spec))
        yield engine


def take(engine: Engine, count: int = 1) -> list[Trajectory]:
    """Copies of the next trajectories."""
    batch = engine.take(count, timeout=PATIENCE)
    assert batch is not None, "no trajectory came"
    with batch as found:
        return [one.copy() for one in found]


def until(condition: Callable[[], Any], engine: Engine | None = None) -> Any:
    """Wait for a condition and return it; taking what actors send meanwhile."""

    def held() -> Any:
        if not (found := condition()) and engine is not None and engine.waiting():
            take(engine)
        return found

    return waiting.until(held, PATIENCE)


def event(engine: LocalEngine) -> Event:
    """The next thing that happens to a process."""
    found = until(lambda: engine.messages().events, engine)
    assert len(found) == 1
    return found[0]


def process_named(name: str) -> Any:
    """The child process of an actor, or of the compressor."""
    found = [one for one in multiprocessing.active_children() if one.name == f"vinoreward {name}"]
    assert len(found) == 1
    return found[0]


def replay_training(folder: Path) -> Any:
    """A DQN of CartPole with two actors and a compressor, gone on with if there is a checkpoint."""
    from faulty_environments import Remembers

    from vinoreward_actors.actor_learner.learners.dqn import DQN, DQNConfig
    from vinoreward_actors.actor_learner.trainer import ActorLearner, ActorLearnerConfig
    from vinoreward_actors.compression.quantize import Quantize

    return ActorLearner(
        "CartPole-v1",
        DQN(
            mlp(4, 2, head="q", hidden=(16, 16)),
            DQNConfig(batch_size=16, learning_starts=100, buffer_size=4000, precision="fp32"),
        ),
        ActorLearnerConfig(
            actors=2, steps=10, backend="numpy", pull_period=10, checkpoint_seconds=0.3
        ),
        compressor=CompressorChain().add(Remembers()).add(Quantize("int8")),
        folder=folder,
        resume=(folder / "checkpoint.pt").is_file(),
    )


def compressor_pushes(folder: Path) -> int:
    """Pushes of ``replay_training``'s compressor that are in its saved state."""
    path = folder / "compressor.npz"
    if not path.is_file() or not (folder / "checkpoint.pt").is_file():
        return 0
    with np.load(path) as state:
        return int(state["0-Remembers.count"])


def check_nothing_left() -> None:
    """No process of this process's trainings; shared memory goes with the last of them."""
    # The resource tracker is Python's own and stays; so does the server that forks the processes of
    # Stable-Baselines3's SubprocVecEnv, without them.
    children = [
        child.pid
        for child in psutil.Process().children(recursive=True)
        if "resource_tracker" not in (command := " ".join(child.cmdline()))
        and not ("forkserver" in command and child.ppid() == os.getpid())
    ]
    assert children == []


def as_computed(policy: Policy) -> Policy:
    """Return the policy that an actor's backend computes on this processor.

    Without VNNI it has 7-bit weights in place of 8-bit ones.
    """
    with make_backend(policy.backend, 1) as backend:
        return backend.computed(policy)
