"""An actor in the test's own process: what is stored, and by which network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plain_links import CARTPOLE, PlainLink, acted, policy_of

from vinoreward.errors import InputError
from vinoreward_actors.actor_learner.acting.environments import Environments, EnvironmentSpec
from vinoreward_actors.actor_learner.acting.profile import COUNTERS, Breakdown
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
)
from vinoreward_actors.policies.distributions import log_prob
from vinoreward_actors.policies.policy import Policy, forward
from vinoreward_actors.policies.spec import mlp

HEADS = {
    "logits": (CARTPOLE, "CartPole-v1", ActorSettings()),
    "q": (mlp(4, 2, head="q", hidden=(16,)), "CartPole-v1", ActorSettings(epsilon=0.3)),
    "tanh_gaussian": (
        mlp(3, 1, head="tanh_gaussian", hidden=(16,)),
        "Pendulum-v1",
        ActorSettings(),
    ),
    "tanh": (mlp(3, 1, head="tanh", hidden=(16,)), "Pendulum-v1", ActorSettings(sigma=0.4)),
}


class TestWhatIsStored:
    @pytest.mark.parametrize("head", HEADS)
    @pytest.mark.parametrize("environments", [1, 8])
    def test_log_mu_is_that_of_the_network_that_acted(self, head: str, environments: int) -> None:
        spec, environment, settings = HEADS[head]

        def begin(link: PlainLink) -> None:
            link.after = lambda done: link.publish(policy_of(spec, done))

        link = acted(
            spec,
            environment,
            settings=replace(settings, pull_period=5),
            begin=begin,
            environments=environments,
        )
        assert len({int(one.versions[0, 0]) for one in link.done}) > 3
        for one in link.done:
            for step in range(len(one.rewards)):
                version = int(one.versions[step, 0])
                outputs = forward(policy_of(spec, version), one.observations[step])
                np.testing.assert_allclose(one.behaviour[step], outputs, rtol=1e-4, atol=1e-5)
                expected = log_prob(spec, outputs, one.actions[step], settings.exploration(0, 1))
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

        with pytest.raises(InputError, match=r"head.bias of version 0 has NaN"):
            acted(begin=begin)


class TestWhichNetwork:
    def compressed(self, version: int) -> Policy:
        return policy_of(CARTPOLE, version, seed=1000 + version).replace(backend="numpy")

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
            settings=ActorSettings(alpha=0.5),
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

    @pytest.mark.parametrize("settings", [ActorSettings(enabled=False), ActorSettings(alpha=0.0)])
    def test_switched_off(self, settings: ActorSettings) -> None:
        link = acted(
            begin=lambda link: link.publish(self.compressed(0), COMPRESSED),
            compressed=True,
            settings=settings,
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
            settings=ActorSettings(pull_period=8),
        )
        kinds = [int(one.network[0, 0]) for one in link.done]
        versions = [int(one.versions[0, 0]) for one in link.done]
        assert kinds == [COMPRESSED] * 7 + [FULL_PRECISION] * 8 + [COMPRESSED] * 5
        assert versions == [0] * 7 + list(range(7, 15)) + [15] * 5

    def test_pull_period(self) -> None:
        def begin(link: PlainLink) -> None:
            link.after = lambda done: link.publish(policy_of(CARTPOLE, done))

        link = acted(begin=begin, settings=ActorSettings(pull_period=20), rollouts=10, steps=8)
        versions = np.concatenate([one.versions[:, 0] for one in link.done])
        changed = np.flatnonzero(np.diff(versions)) + 1
        np.testing.assert_array_equal(changed, [20, 40, 60])
        assert link.counts["pulls"] == 4

    def test_a_stale_network_does_not_shorten_the_pull_period(self) -> None:
        def begin(link: PlainLink) -> None:
            link.after = lambda done: link.publish(policy_of(CARTPOLE, done))

        link = acted(
            begin=begin, compressed=True, settings=ActorSettings(pull_period=20), rollouts=10
        )
        assert link.counts["pulls"] == 4


class TestSettings:
    def test_json(self) -> None:
        settings = ActorSettings(alpha=0.25, bits=None, save=3, since=9)
        assert ActorSettings.from_json(settings.to_json()) == settings

    def test_other_text_is_refused(self) -> None:
        for text in (b"[]", b"{", b'{"colour": 1}'):
            with pytest.raises(InputError, match="same version"):
                ActorSettings.from_json(text)

    def test_sigmas_are_spread_over_actors(self) -> None:
        settings = ActorSettings(sigma=0.8)
        assert [settings.exploration(actor, 4).sigma for actor in range(4)] == pytest.approx(
            [0.2, 0.4, 0.6, 0.8]
        )
