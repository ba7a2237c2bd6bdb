"""Links without any processes: what actors and compressors see of an engine, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vinoreward_actors.actor_learner.acting.actor import Actor
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.transport.link import ActorSettings, Link, Weights
from vinoreward_actors.actor_learner.transport.trajectory import (
    FULL_PRECISION,
    Trajectory,
    TrajectorySpec,
)
from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.spec import PolicySpec, mlp
from vinoreward_actors.policies.wire import encode

CARTPOLE = mlp(4, 2, head="logits", hidden=(16, 16))


USUAL = ActorSettings()


def policy_of(spec: PolicySpec, version: int, seed: int | None = None) -> Policy:
    """Random weights that differ from version to version."""
    random = np.random.default_rng([version if seed is None else seed])
    return Policy(
        spec,
        {
            name: random.normal(0, 0.5, shape).astype(np.float32)
            for name, shape in spec.parameter_shapes().items()
        },
        version=version,
    )


class PlainLink(Link):
    """Keeps all that an actor sends; ``after`` is called with the number of trajectories so far."""

    def __init__(self, spec: TrajectorySpec, settings: ActorSettings) -> None:
        super().__init__(spec)
        self.settings = settings
        self.done: list[Trajectory] = []
        self.counted: Counter[str] = Counter()
        self.episodes: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.looks: list[tuple[int, int]] = []
        self.after: Callable[[int], None] = lambda done: None

    def put(self, policy: Policy, network: int = FULL_PRECISION) -> None:
        """Make a policy the latest of a network."""
        encoded = encode(policy)
        self.stores[network] = Weights(encoded.header, encoded.payload(), policy.version)

    def report(self, kind: str, value: Any) -> None:
        assert kind == "refused"
        self.refused.append(value)

    def pull(self, network: int, have: int) -> Weights | None:
        self.looks.append((network, have))
        return super().pull(network, have)

    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        super().commit(counts)
        self.done.append(self._filled())
        self.counted.update(counts)
        self.episodes += [dict(each) for each in episodes]
        self.after(len(self.done))


def acted(
    spec: PolicySpec = CARTPOLE,
    environment: str | EnvironmentSpec = "CartPole-v1",
    *,
    rollouts: int = 10,
    steps: int = 8,
    environments: int = 1,
    settings: ActorSettings = USUAL,
    begin: Callable[[PlainLink], None] | None = None,
    **config: Any,
) -> PlainLink:
    """Let an actor fill some trajectories."""
    trajectories = TrajectorySpec.of(spec, steps, environments)
    link = PlainLink(trajectories, settings)
    link.put(policy_of(spec, int(config.get("first_version", 0))))
    if begin is not None:
        begin(link)
    made = EnvironmentSpec(environment) if isinstance(environment, str) else environment
    run = {"backend": "numpy", "actors": 1, "environments": environments, "steps": steps, **config}
    own = {name: run.pop(name) for name in ("first_version", "compressed") if name in run}
    told = EngineConfig(ActorLearnerConfig(**run), made, spec, fresh="max_lag" in run, **own)
    with Actor(told, link, number=0) as actor:
        for _ in range(rollouts):
            actor.rollout()
    return link
