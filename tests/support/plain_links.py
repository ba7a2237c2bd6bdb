"""Links without any processes: what actors and compressors see of an engine, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vinoreward_actors.actor_learner.acting.actor import Actor, ActorConfig
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.transport.link import ActorLink, ActorSettings, Weights
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
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


class PlainLink(ActorLink):
    """Everything in this process; ``after`` is called with the number of trajectories so far."""

    def __init__(self, spec: TrajectorySpec, rollouts: int, settings: ActorSettings) -> None:
        self._spec = spec
        self._rollouts = rollouts
        self._begun: Trajectory | None = None
        self.told = settings
        self.weights: dict[int, Policy | None] = {FULL_PRECISION: None, COMPRESSED: None}
        self.done: list[Trajectory] = []
        self.counts: Counter[str] = Counter()
        self.episodes: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.looks: list[tuple[int, int]] = []
        self.after: Callable[[int], None] = lambda done: None
        self.version = 0
        self.over = False

    def publish(self, policy: Policy, network: int = FULL_PRECISION) -> None:
        self.weights[network] = policy
        if network == FULL_PRECISION:
            self.version = policy.version

    @property
    def stopped(self) -> bool:
        return self.over or len(self.done) >= self._rollouts

    @property
    def learner_version(self) -> int:
        return self.version

    def settings(self) -> ActorSettings:
        return self.told

    def report(self, kind: str, value: Any) -> None:
        assert kind == "refused"
        self.refused.append(value)

    def pull(self, store: int, have: int, *, wait: bool = False) -> Weights | None:
        self.looks.append((store, have))
        found = self.weights[store]
        if found is None or found.version <= have:
            self.over |= wait  # nobody is there who could publish
            return None
        encoded = encode(found)
        return Weights(encoded.header, encoded.payload(), found.version)

    def begin(self) -> Trajectory | None:
        self._begun = self._spec.empty()
        return self._begun

    def commit(self, counts: Mapping[str, int], episodes: Sequence[Mapping[str, Any]] = ()) -> None:
        assert self._begun is not None
        self._spec.check(self._begun)
        self.done.append(self._begun)
        self.counts.update(counts)
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
    link = PlainLink(trajectories, rollouts, settings)
    link.publish(policy_of(spec, int(config.get("first_version", 0))))
    if begin is not None:
        begin(link)
    made = EnvironmentSpec(environment) if isinstance(environment, str) else environment
    told = ActorConfig(
        environment=made,
        policy=spec,
        backend=config.pop("backend", "numpy"),
        environments=environments,
        steps=steps,
        **config,
    )
    Actor(told, link, number=0).run()
    return link
