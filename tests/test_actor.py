"""The loop of one actor, in this process, with a link that is plain Python.

What a real process adds (shared memory, kills, imports) is tested in test_local_engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vinoreward.actor_learner.actor import Actor, ActorConfig
from vinoreward.actor_learner.compressor import Compressor, CompressorConfig
from vinoreward.actor_learner.environments import Environments, EnvironmentSpec
from vinoreward.actor_learner.link import ActorLink, CompressorLink, Weights
from vinoreward.actor_learner.orders import Orders
from vinoreward.actor_learner.profile import COUNTERS, Breakdown
from vinoreward.actor_learner.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Trajectory,
    TrajectorySpec,
)
from vinoreward.compression.chain import CompressorChain
from vinoreward.compression.quantize import Quantize
from vinoreward.errors import InputError
from vinoreward.policies.distributions import log_prob
from vinoreward.policies.policy import Policy
from vinoreward.policies.reference import forward
from vinoreward.policies.spec import PolicySpec, mlp
from vinoreward.policies.wire import encode

CARTPOLE = mlp(4, 2, head="logits", hidden=(16, 16))
USUAL = Orders()


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

    def __init__(self, spec: TrajectorySpec, rollouts: int, orders: Orders) -> None:
        self._spec = spec
        self._rollouts = rollouts
        self._begun: Trajectory | None = None
        self.told = orders
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

    def orders(self) -> Orders:
        return self.told

    def report(self, kind: str, value: Any) -> None:
        assert kind in ("episodes", "refused")
        if kind == "refused":
            self.refused.append(value)
        else:
            self.episodes += value

    def pull(self, network: int, have: int, *, wait: bool = False) -> Weights | None:
        self.looks.append((network, have))
        found = self.weights[network]
        if found is None or found.version <= have:
            self.over |= wait  # nobody is there who could publish
            return None
        encoded = encode(found)
        return Weights(encoded.header, encoded.payload(), found.version)

    def begin(self) -> Trajectory | None:
        self._begun = self._spec.empty()
        return self._begun

    def commit(self) -> None:
        assert self._begun is not None
        self._spec.check(self._begun)
        self.done.append(self._begun)
        self.after(len(self.done))

    def count(self, counts: Mapping[str, int]) -> None:
        self.counts.update(counts)


def acted(
    spec: PolicySpec = CARTPOLE,
    environment: str | EnvironmentSpec = "CartPole-v1",
    *,
    rollouts: int = 10,
    steps: int = 8,
    environments: int = 1,
    orders: Orders = USUAL,
    begin: Callable[[PlainLink], None] | None = None,
    prior: int = 0,
    **config: Any,
) -> PlainLink:
    """Let an actor fill some trajectories."""
    trajectories = TrajectorySpec.of(spec, steps, environments)
    link = PlainLink(trajectories, rollouts, orders)
    link.publish(policy_of(spec, int(config.get("first_version", 0))))
    if begin is not None:
        begin(link)
    made = EnvironmentSpec(environment) if isinstance(environment, str) else environment
    told = ActorConfig(
        environment=made,
        policy=spec,
        engine=config.pop("engine", "numpy"),
        environments=environments,
        steps=steps,
        **config,
    )
    Actor(told, link, number=0, rollouts=prior).run()
    return link


HEADS = {
    "logits": (CARTPOLE, "CartPole-v1", Orders()),
    "q": (mlp(4, 2, head="q", hidden=(16,)), "CartPole-v1", Orders(epsilon=0.3)),
    "tanh_gaussian": (mlp(3, 1, head="tanh_gaussian", hidden=(16,)), "Pendulum-v1", Orders()),
    "tanh": (mlp(3, 1, head="tanh", hidden=(16,)), "Pendulum-v1", Orders(sigma=0.4)),
}


class TestWhatIsStored:
    @pytest.mark.parametrize("head", HEADS)
    @pytest.mark.parametrize("environments", [1, 8])
    def test_log_mu_is_that_of_the_network_that_acted(self, head: str, environments: int) -> None:
        spec, environment, orders = HEADS[head]

        def begin(link: PlainLink) -> None:
            link.after = lambda done: link.publish(policy_of(spec, done))

        link = acted(
            spec,
            environment,
            orders=replace(orders, pull_period=5),
            begin=begin,
            environments=environments,
        )
        assert len({int(one.versions[0, 0]) for one in link.done}) > 3
        for one in link.done:
            for step in range(len(one.rewards)):
                version = int(one.versions[step, 0])
                outputs = forward(policy_of(spec, version), one.observations[step])
                np.testing.assert_allclose(one.behaviour[step], outputs, rtol=1e-4, atol=1e-5)
                expected = log_prob(spec, outputs, one.actions[step], orders.exploration(0, 1))
                np.testing.assert_allclose(one.log_mu[step], expected, rtol=1e-3, atol=1e-3)

    def test_a_greedy_network_without_noise_is_certain(self) -> None:
        spec = mlp(3, 1, head="tanh", hidden=(16,))
        link = acted(spec, "Pendulum-v1", rollouts=2)
        for one in link.done:
            assert (one.log_mu == 0).all()
            np.testing.assert_allclose(one.actions, np.tanh(one.behaviour), atol=1e-6)

    def test_episodes_go_on_over_trajectories(self) -> None:
        """Truncations and terminations, with the last observation and never that of the reset."""
        link = acted(
            mlp(2, 2, head="logits", hidden=(4,)),
            "faulty_environments:Numbered",
            rollouts=8,
            steps=4,
        )
        whole = {
            name: np.concatenate([one.arrays()[name][:, 0] for one in link.done])
            for name in link.done[0].arrays()
        }
        truncated = [at for at in range(32) if at % 9 == 2]
        terminated = [at for at in range(32) if at % 9 in (4, 8)]
        assert list(np.flatnonzero(whole["truncated"])) == truncated
        assert list(np.flatnonzero(whole["terminated"])) == terminated
        ends = whole["truncated"] | whole["terminated"]
        after, before = whole["next_observations"], whole["observations"]
        np.testing.assert_array_equal(after[:-1][~ends[:-1]], before[1:][~ends[:-1]])
        np.testing.assert_array_equal(after[:, 1], before[:, 1] + 1)
        np.testing.assert_array_equal(after[:, 0], before[:, 0])
        assert (before[1:][ends[:-1]][:, 1] == 0).all()
        assert [row["length"] for row in link.episodes] == ([3, 2, 4] * 4)[: len(link.episodes)]
        assert len(link.episodes) == ends.sum()

    def test_counters(self) -> None:
        link = acted(rollouts=3, environments=2)
        assert link.counts["steps"] == 3 * 8 * 2
        assert link.counts["trajectories"] == 3
        assert link.counts["compressed_steps"] == 0
        assert link.counts["pulls"] == 1
        parts = Breakdown.of(link.counts, link.counts["steps"])
        assert all(link.counts[name] >= 0 for name in COUNTERS)
        assert parts.wall["env"] > 0 < parts.cpu["infer"]
        assert 0 < parts.share_of_network < 1

    def test_actors_of_one_run_differ_and_repeat(self) -> None:
        def first(**config: Any) -> Any:
            return acted(rollouts=1, **config).done[0].observations

        np.testing.assert_array_equal(first(seed=3), first(seed=3))
        assert not np.array_equal(first(seed=3), first(seed=4))
        assert not np.array_equal(first(seed=3), first(seed=3, first_version=7))

    def test_environments_of_one_actor_begin_differently(self) -> None:
        made = EnvironmentSpec("CartPole-v1")
        envs = Environments(made, CARTPOLE, 3, seed=7)
        expected = [made.make().reset(seed=seed)[0] for seed in (7, 8, 9)]
        np.testing.assert_array_equal(envs.observations, expected)
        envs.close()

    def test_broken_weights_are_refused_before_they_act(self) -> None:
        def begin(link: PlainLink) -> None:
            policy = policy_of(CARTPOLE, 0)
            weights = dict(policy.float_parameters())
            weights["head.bias"] = np.full(2, np.nan, np.float32)
            link.publish(policy.replace(parameters=weights))

        with pytest.raises(InputError, match=r"head.bias of version 0 holds NaN"):
            acted(begin=begin)


class TestWhichNetwork:
    def compressed(self, version: int) -> Policy:
        return policy_of(CARTPOLE, version, seed=1000 + version).replace(engine="numpy")

    def test_full_precision_until_there_is_another(self) -> None:
        def begin(link: PlainLink) -> None:
            def after(done: int) -> None:
                if done == 5:
                    link.publish(self.compressed(0), COMPRESSED)

            link.after = after

        link = acted(begin=begin, compressed=True)
        kinds = [int(one.network[0, 0]) for one in link.done]
        assert kinds == [FULL_PRECISION] * 5 + [COMPRESSED] * 5
        for one in link.done[5:]:
            expected = forward(self.compressed(0), one.observations[:, 0])
            np.testing.assert_allclose(one.behaviour[:, 0], expected, rtol=1e-4, atol=1e-5)
        assert link.counts["compressed_steps"] == 5 * 8

    def test_alpha_mixes_in_blocks(self) -> None:
        link = acted(
            begin=lambda link: link.publish(self.compressed(0), COMPRESSED),
            compressed=True,
            orders=Orders(alpha=0.5),
            rollouts=400,
            steps=4,
        )
        kinds = np.array([one.network for one in link.done])[:, :, 0]
        assert (kinds == kinds[:, :1]).all()  # a whole block each
        # 400 fair coins: five standard deviations.
        assert abs(kinds[:, 0].mean() - 0.5) < 5 * 0.5 / 20
        for one in link.done:
            used = policy_of(CARTPOLE, 0) if one.network[0, 0] == 0 else self.compressed(0)
            expected = forward(used, one.observations[:, 0])
            np.testing.assert_allclose(one.behaviour[:, 0], expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("orders", [Orders(enabled=False), Orders(alpha=0.0)])
    def test_switched_off(self, orders: Orders) -> None:
        link = acted(
            begin=lambda link: link.publish(self.compressed(0), COMPRESSED),
            compressed=True,
            orders=orders,
        )
        assert all((one.network == FULL_PRECISION).all() for one in link.done)

    def test_without_a_compressor_nothing_is_looked_for(self) -> None:
        link = acted(begin=lambda link: link.publish(self.compressed(0), COMPRESSED))
        assert {network for network, _ in link.looks} == {FULL_PRECISION}

    def test_a_late_compressor_costs_no_correctness(self) -> None:
        """Compressed weights that are too old are left for the learner's own, and come back."""

        def begin(link: PlainLink) -> None:
            link.publish(self.compressed(0), COMPRESSED)

            def after(done: int) -> None:
                link.publish(policy_of(CARTPOLE, done))
                if done == 15:
                    link.publish(self.compressed(15), COMPRESSED)

            link.after = after

        link = acted(
            begin=begin,
            compressed=True,
            max_staleness=6,
            rollouts=20,
            orders=Orders(pull_period=8),
        )
        kinds = [int(one.network[0, 0]) for one in link.done]
        versions = [int(one.versions[0, 0]) for one in link.done]
        assert kinds == [COMPRESSED] * 7 + [FULL_PRECISION] * 8 + [COMPRESSED] * 5
        assert versions == [0] * 7 + list(range(7, 15)) + [15] * 5

    def test_pull_period(self) -> None:
        def begin(link: PlainLink) -> None:
            link.after = lambda done: link.publish(policy_of(CARTPOLE, done))

        link = acted(begin=begin, orders=Orders(pull_period=20), rollouts=10, steps=8)
        versions = np.concatenate([one.versions[:, 0] for one in link.done])
        changed = np.flatnonzero(np.diff(versions)) + 1
        np.testing.assert_array_equal(changed, [20, 40, 60])
        assert link.counts["pulls"] == 4

    def test_a_stale_network_does_not_shorten_the_pull_period(self) -> None:
        def begin(link: PlainLink) -> None:
            link.after = lambda done: link.publish(policy_of(CARTPOLE, done))

        link = acted(begin=begin, compressed=True, orders=Orders(pull_period=20), rollouts=10)
        assert link.counts["pulls"] == 4


class TestFixedLag:
    @pytest.mark.parametrize("lag", [0, 1, 3])
    @pytest.mark.parametrize("per_update", [1, 2])
    @pytest.mark.parametrize("first", [0, 40])
    def test_versions_are_exact(self, lag: int, per_update: int, first: int) -> None:
        def begin(link: PlainLink) -> None:
            def after(done: int) -> None:
                # A learner as fast as may be: an update for each share of rollouts, a push as soon
                # as the actor has pulled the one before.
                pulled = int(link.done[-1].versions[0, 0])
                ready = first + done // per_update
                link.publish(policy_of(CARTPOLE, min(ready, pulled + 1)))

            link.after = after

        link = acted(
            begin=begin,
            lag=lag,
            rollouts=12,
            rollouts_per_update=per_update,
            first_version=first,
        )
        versions = [np.unique(one.versions).tolist() for one in link.done]
        assert versions == [[first + max(0, r // per_update - lag)] for r in range(12)]

    def test_a_switch_takes_effect_at_its_version(self) -> None:
        """Whatever the actor reads when: orders say from which version on they hold."""

        def begin(link: PlainLink) -> None:
            link.publish(policy_of(CARTPOLE, 0), COMPRESSED)

            def after(done: int) -> None:
                link.told = Orders(enabled=done < 4, since=4 if done >= 4 else 0)
                if done >= 8:
                    link.told = Orders(enabled=True, since=8)
                if link.told.enabled_at(done):
                    link.publish(policy_of(CARTPOLE, done), COMPRESSED)
                link.publish(policy_of(CARTPOLE, done))

            link.after = after

        link = acted(begin=begin, lag=0, compressed=True, rollouts=12)
        assert [int(one.network[0, 0]) for one in link.done] == [1] * 4 + [0] * 4 + [1] * 4
        assert [int(one.versions[0, 0]) for one in link.done] == list(range(12))

    def test_a_successor_goes_on_where_the_other_died(self) -> None:
        link = acted(
            begin=lambda link: link.publish(policy_of(CARTPOLE, 7)), lag=1, rollouts=1, prior=8
        )
        assert int(link.done[0].versions[0, 0]) == 7

    def test_a_successor_whose_version_is_gone_takes_the_next(self) -> None:
        link = acted(
            begin=lambda link: link.publish(policy_of(CARTPOLE, 8)), lag=1, rollouts=1, prior=8
        )
        assert int(link.done[0].versions[0, 0]) == 8


class PlainCompressorLink(CompressorLink):
    """The learner publishes the versions it was given, one at each look."""

    def __init__(self, teachers: list[Policy], orders: list[Orders]) -> None:
        self._teachers = teachers
        self._told = orders
        self.published: list[Policy] = []
        self.reports: list[dict[str, Any]] = []
        self._at = -1

    @property
    def stopped(self) -> bool:
        return self._at >= len(self._teachers)

    def orders(self) -> Orders:
        return self._told[min(max(self._at, 0), len(self._told) - 1)]

    def report(self, kind: str, value: Any) -> None:
        assert kind == "compressor"
        self.reports.append(value)

    def pull(self, network: int, have: int, *, wait: bool = False) -> Weights | None:
        self._at += 1
        if self.stopped:
            return None
        encoded = encode(self._teachers[self._at])
        return Weights(encoded.header, encoded.payload())

    def observations(self) -> Any:
        return np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)

    def publish(self, policy: Policy) -> None:
        self.published.append(policy)


class TestCompressor:
    def test_compresses_every_version_it_gets_to(self) -> None:
        link = PlainCompressorLink([policy_of(CARTPOLE, v) for v in (0, 3)], [Orders()])
        Compressor(CompressorConfig(CompressorChain().add(Quantize("int8"))), link).run()
        assert [policy.version for policy in link.published] == [0, 3]
        assert [report["version"] for report in link.reports] == [0, 3]
        assert link.reports[0]["quality"]["kl_max"] < 0.5
        assert link.published[0].ranges

    def test_versions_before_a_switch_are_left_as_it_found_them(self) -> None:
        teachers = [policy_of(CARTPOLE, v) for v in range(4)]
        orders = [Orders(enabled=True, since=2)]  # read late: 0 and 1 were of before
        link = PlainCompressorLink(teachers, orders)
        Compressor(CompressorConfig(CompressorChain().add(Quantize("int8"))), link).run()
        assert [policy.version for policy in link.published] == [2, 3]

    def test_bits_are_turned(self) -> None:
        teachers = [policy_of(CARTPOLE, v) for v in range(2)]
        link = PlainCompressorLink(teachers, [Orders(bits=8), Orders(bits=None)])
        Compressor(CompressorConfig(CompressorChain().add(Quantize("int8"))), link).run()
        assert [bool(policy.ranges) for policy in link.published] == [True, False]

    def test_an_error_is_told_and_the_next_version_tried(self) -> None:
        broken = policy_of(CARTPOLE, 0)
        weights = dict(broken.float_parameters())
        weights["head.weight"] = weights["head.weight"] * np.float32(np.inf)
        teachers = [broken.replace(parameters=weights), policy_of(CARTPOLE, 1)]
        link = PlainCompressorLink(teachers, [Orders()])
        Compressor(CompressorConfig(CompressorChain().add(Quantize("int8"))), link).run()
        assert [policy.version for policy in link.published] == [1]
        assert "NaN or infinity" in link.reports[0]["error"]

    def test_state_is_saved_when_asked_and_taken_up(self, tmp_path: Any) -> None:
        from faulty_environments import Remembers, pushes_counted

        teachers = [policy_of(CARTPOLE, v) for v in range(3)]
        config = CompressorConfig(CompressorChain().add(Remembers()), folder=tmp_path)
        Compressor(config, PlainCompressorLink(teachers, [Orders(), Orders(save=1)])).run()
        assert [path.name for path in tmp_path.iterdir()] == ["compressor.npz"]
        again = CompressorConfig(CompressorChain().add(Remembers()), folder=tmp_path, resume=True)
        link = PlainCompressorLink([policy_of(CARTPOLE, 3)], [Orders()])
        Compressor(again, link).run()
        # Saved on being asked, after the second push of three.
        assert pushes_counted(link.published[0]) == 3


class TestOrders:
    def test_json(self) -> None:
        orders = Orders(alpha=0.25, bits=None, save=3, since=9)
        assert Orders.from_json(orders.to_json()) == orders

    def test_other_text_is_refused(self) -> None:
        for text in (b"[]", b"{", b'{"colour": 1}'):
            with pytest.raises(InputError, match="same version"):
                Orders.from_json(text)

    def test_sigmas_are_spread_over_actors(self) -> None:
        orders = Orders(sigma=0.8)
        assert [orders.exploration(actor, 4).sigma for actor in range(4)] == pytest.approx(
            [0.2, 0.4, 0.6, 0.8]
        )
