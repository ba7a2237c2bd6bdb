"""An actor in the test's own process: what is stored, and by which network."""

from dataclasses import replace

import numpy as np
import pytest
from plain_links import CARTPOLE, acted, policy_of

from vinoreward_actors.actor_learner.acting.profile import COUNTERS, PARTS, Breakdown
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
from vinoreward_actors.policies.distributions import log_prob
from vinoreward_actors.policies.policy import forward
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


def pushing(spec=CARTPOLE):
    """A learner that pushes after every trajectory."""

    def begin(link):
        link.after = lambda done: link.put(policy_of(spec, done))

    return begin


# What is stored


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("environments", [1, 8])
def test_log_mu_is_that_of_the_network_that_acted(head, environments):
    spec, environment, settings = HEADS[head]
    link = acted(
        spec,
        environment,
        settings=replace(settings, pull_period=5),
        begin=pushing(spec),
        environments=environments,
    )
    assert len({int(one.versions[0, 0]) for one in link.done}) > 3
    for one in link.done:
        for step in range(len(one.rewards)):
            outputs = forward(policy_of(spec, int(one.versions[step, 0])), one.observations[step])
            np.testing.assert_allclose(one.behaviour[step], outputs, rtol=1e-4, atol=1e-5)
            expected = log_prob(spec, outputs, one.actions[step], settings.exploration(0, 1))
            np.testing.assert_allclose(one.log_mu[step], expected, rtol=1e-3, atol=1e-3)


def test_episodes_go_on_over_trajectories():
    """Truncations and terminations, with the last observation and never that of the reset."""
    spec = mlp(2, 2, head="logits", hidden=(4,))
    link = acted(spec, "faulty_environments:Numbered", rollouts=8, steps=4)
    whole = {
        name: np.concatenate([one.arrays()[name][:, 0] for one in link.done])
        for name in link.done[0].arrays()
    }
    assert np.flatnonzero(whole["truncated"]).tolist() == [at for at in range(32) if at % 9 == 2]
    terminated = [at for at in range(32) if at % 9 in (4, 8)]
    assert np.flatnonzero(whole["terminated"]).tolist() == terminated
    ends = whole["truncated"] | whole["terminated"]
    after, before = whole["next_observations"], whole["observations"]
    np.testing.assert_array_equal(after[:-1][~ends[:-1]], before[1:][~ends[:-1]])
    np.testing.assert_array_equal(after, before + np.float32([0, 1]))
    assert (before[1:][ends[:-1]][:, 1] == 0).all()
    assert [row["length"] for row in link.episodes] == ([3, 2, 4] * 4)[: ends.sum()]


def test_steps_are_counted_and_timed():
    link = acted(rollouts=3, environments=2)
    assert link.counted["steps"] == 3 * 8 * 2
    assert link.counted["trajectories"] == 3
    assert (link.counted["compressed_steps"], link.counted["pulls"]) == (0, 1)
    parts = Breakdown.of(link.counted, link.counted["steps"])
    assert all(link.counted[name] >= 0 for name in COUNTERS)
    assert parts.wall["env"] > 0 < parts.cpu["infer"]
    assert 0 < parts.share_of_network < 1


def test_actors_of_one_run_differ_and_repeat():
    def first(**config):
        return acted(rollouts=1, **config).done[0].observations

    np.testing.assert_array_equal(first(seed=3), first(seed=3))
    assert not np.array_equal(first(seed=3), first(seed=4))
    assert not np.array_equal(first(seed=3), first(seed=3, first_version=7))


# Which network acts


def compressed(version):
    return policy_of(CARTPOLE, version, seed=1000 + version).replace(backend="numpy")


def with_compressed(link):
    link.put(compressed(0), COMPRESSED)


def test_full_precision_until_there_is_another():
    def begin(link):
        link.after = lambda done: with_compressed(link) if done == 5 else None

    link = acted(begin=begin, compressed=True)
    kinds = [int(one.network[0, 0]) for one in link.done]
    assert kinds == [FULL_PRECISION] * 5 + [COMPRESSED] * 5
    assert link.counted["compressed_steps"] == 5 * 8
    # Without a compressor nothing is looked for.
    assert {network for network, _ in acted(begin=with_compressed).looks} == {FULL_PRECISION}


def test_alpha_mixes_in_blocks():
    settings = ActorSettings(alpha=0.5)
    link = acted(begin=with_compressed, compressed=True, settings=settings, rollouts=400, steps=4)
    kinds = np.array([one.network for one in link.done])[:, :, 0]
    assert (kinds == kinds[:, :1]).all()  # a whole block each
    # 400 fair coins: five standard deviations.
    assert abs(kinds[:, 0].mean() - 0.5) < 5 * 0.5 / 20
    for one in link.done:
        used = policy_of(CARTPOLE, 0) if one.network[0, 0] == 0 else compressed(0)
        expected = forward(used, one.observations[:, 0])
        np.testing.assert_allclose(one.behaviour[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_late_compressor_costs_no_correctness():
    """Compressed weights that are too old are left for the learner's own, and come back."""

    def begin(link):
        with_compressed(link)

        def after(done):
            link.put(policy_of(CARTPOLE, done))
            if done == 15:
                link.put(compressed(15), COMPRESSED)

        link.after = after

    settings = ActorSettings(pull_period=8)
    link = acted(begin=begin, compressed=True, max_staleness=6, rollouts=20, settings=settings)
    kinds = [int(one.network[0, 0]) for one in link.done]
    versions = [int(one.versions[0, 0]) for one in link.done]
    assert kinds == [COMPRESSED] * 7 + [FULL_PRECISION] * 8 + [COMPRESSED] * 5
    assert versions == [0] * 7 + list(range(7, 15)) + [15] * 5


@pytest.mark.parametrize("late", [False, True])
def test_weights_are_pulled_once_a_period(late):
    """Also where a compressor has none yet."""
    link = acted(begin=pushing(), settings=ActorSettings(pull_period=20), compressed=late)
    versions = np.concatenate([one.versions[:, 0] for one in link.done])
    np.testing.assert_array_equal(np.flatnonzero(np.diff(versions)) + 1, [20, 40, 60])
    assert link.counted["pulls"] == 4


# Exploration and the profile


def test_sigmas_are_spread_over_actors():
    found = [ActorSettings(sigma=0.8).exploration(actor, 4).sigma for actor in range(4)]
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8])


@pytest.mark.parametrize(
    ("infer", "learner", "actors", "said"),
    [
        (3e-3, 1e-5, 1, "an actor 3.1 ms, 97% of it for the network, and the learner 0.01 ms"),
        (3e-3, 1e-3, 1, "acting is the bottleneck"),
        (3e-3, 4e-3, 1, "the learner is the bottleneck"),
        # One learner of 1 ms a step is slower than four actors of 3.1 ms.
        (3e-3, 1e-3, 4, "the learner is the bottleneck"),
        (1e-5, 1e-6, 1, "the environment is the bottleneck"),
        (3e-3, 0.0, 1, "run more steps"),
    ],
)
def test_the_advice_names_what_limits(infer, learner, actors, said):
    seconds = dict.fromkeys(PARTS, 0.0) | {"infer": infer, "env": 1e-4}
    assert said in Breakdown(seconds, dict(seconds), 10).advice(learner, actors)
