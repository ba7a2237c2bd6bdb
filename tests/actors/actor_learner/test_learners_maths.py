"""The arithmetic of the learners against formulas written out by hand or in plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_collectors import random_trajectory

from vinoreward_actors.actor_learner.learners import networks
from vinoreward_actors.actor_learner.learners.dqn import DQN, DQNConfig
from vinoreward_actors.actor_learner.learners.impala import Impala, ImpalaConfig
from vinoreward_actors.policies import distributions
from vinoreward_actors.policies.policy import forward, random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.policies.torch_policy import load_policy

GAUSSIAN = mlp(3, 2, head="tanh_gaussian", hidden=(4,))
LOGITS = mlp(3, 4, head="logits", hidden=(4,))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_heads_are_those_of_the_actors(seed):
    random = np.random.default_rng(seed)
    for spec in (LOGITS, GAUSSIAN):
        outputs = random.standard_normal((6, spec.outputs)).astype(np.float32)
        acted = distributions.act(spec, outputs, random)
        tensor = torch.from_numpy(outputs)
        found = networks.log_prob(spec, tensor, torch.from_numpy(np.asarray(acted.actions)))
        wanted = distributions.log_prob(spec, outputs, acted.actions)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(
            networks.entropy(spec, tensor).numpy(), distributions.entropy(spec, outputs), atol=1e-4
        )


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.floats(-20, 20), st.floats(0, 1.0))
def test_projection_equals_the_loop(seed, count, reward, discount):
    random = np.random.default_rng(seed)
    low, high = -5.0, 7.0
    probabilities = random.dirichlet(np.ones(count))
    atoms = np.linspace(low, high, count)
    step = (high - low) / (count - 1)
    wanted = np.zeros(count)
    for atom, probability in zip(atoms, probabilities, strict=True):
        place = (min(max(reward + discount * atom, low), high) - low) / step
        lower = min(math.floor(place + 1e-9), count - 1)
        part = max(place - lower, 0.0)
        wanted[lower] += probability * (1 - part)
        if part > 1e-9:
            wanted[min(lower + 1, count - 1)] += probability * part
    found = networks.project(
        torch.tensor(probabilities[None], dtype=torch.float64),
        torch.tensor([reward], dtype=torch.float64),
        torch.tensor([discount], dtype=torch.float64),
        torch.linspace(low, high, count).double(),
    )
    np.testing.assert_allclose(found[0].numpy(), wanted, atol=1e-5)
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-5)


def test_impala_gradient_equals_the_formula():
    # One layer and its value head, with weights that are not the learner's first.
    spec = mlp(3, 2, head="logits", hidden=(), value=True)
    policy = random_policy(spec, 3)
    gamma, entropy_weight, value_weight = 0.9, 0.05, 0.5
    coefficients = {"entropy_coef": entropy_weight, "value_coef": value_weight}
    config = ImpalaConfig(gamma=gamma, max_grad_norm=1e9, precision="fp32", **coefficients)
    learner = Impala(spec, config)
    load_policy(learner.actor, policy)
    random = np.random.default_rng(5)
    trajectory = random_trajectory(spec, random, steps=6, count=2, ends=0.0)
    trajectory.terminated[1, 0] = True
    trajectory.truncated[3, 1] = True
    trajectory.next_observations[1, 0] = 7.0
    trajectory.next_observations[3, 1] = -2.0
    learner.update([trajectory])

    weights = {name: np.asarray(value, np.float64) for name, value in policy.parameters.items()}
    gradients = {name: np.zeros_like(value) for name, value in weights.items()}
    steps, count = trajectory.rewards.shape
    for b in range(count):
        states = trajectory.observations[:, b].astype(np.float64)
        following = trajectory.next_observations[:, b].astype(np.float64)
        values = states @ weights["value.weight"][0] + weights["value.bias"][0]
        after = following @ weights["value.weight"][0] + weights["value.bias"][0]
        logits = states @ weights["head.weight"].T + weights["head.bias"]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        rows = np.arange(steps)
        actions = trajectory.actions[:, b]
        rho = np.minimum(1.0, p[rows, actions] / np.exp(trajectory.log_mu[:, b]))
        discount = gamma * (1.0 - trajectory.terminated[:, b])
        over = trajectory.terminated[:, b] | trajectory.truncated[:, b]
        delta = rho * (trajectory.rewards[:, b] + discount * after - values)
        targets = np.zeros(steps)
        for t in rows:
            factor = 1.0
            targets[t] = values[t]
            for k in range(t, steps):
                targets[t] += factor * delta[k]
                factor *= discount[k] * rho[k]
                if over[k]:
                    break
        for t in rows:
            last = over[t] or t == steps - 1
            ahead = after[t] if last else targets[t + 1]
            advantage = rho[t] * (trajectory.rewards[t, b] + discount[t] * ahead - values[t])
            chosen = np.eye(2)[actions[t]]
            entropy = -(p[t] * np.log(p[t])).sum()
            by_logits = -advantage * (chosen - p[t])
            by_logits += entropy_weight * p[t] * (np.log(p[t]) + entropy)
            gradients["head.weight"] += np.outer(by_logits, states[t]) / (steps * count)
            gradients["head.bias"] += by_logits / (steps * count)
            by_value = value_weight * (values[t] - targets[t]) / (steps * count)
            gradients["value.weight"] += by_value * states[t]
            gradients["value.bias"] += by_value
    for name, wanted in gradients.items():
        found = learner.actor.get_parameter(name).grad
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-6, err_msg=name)


def dqn(**settings_):
    spec = mlp(3, 3, head="q", hidden=(8,))
    usual = {"gamma": 0.7, "batch_size": 1, "learning_starts": 1, "buffer_size": 30}
    usual |= {"target_update_interval": 1000, "learning_rate": 0.05, "precision": "fp32"}
    return DQN(spec, DQNConfig(**(usual | settings_)))


@pytest.mark.parametrize("end", ["terminated", "truncated", "nothing"])
def test_the_double_q_target_by_hand(end):
    learner = dqn()
    trajectory = random_trajectory(
        learner.spec, np.random.default_rng(1), steps=1, count=1, ends=0.0
    )
    if end != "nothing":
        getattr(trajectory, end)[0, 0] = True
    target = random_policy(learner.spec, 8)
    load_policy(learner.target, target)
    online = learner.policy(0)
    metrics = learner.update([trajectory])
    following = trajectory.next_observations[0]
    valued = forward(target, following)[0]
    deciding = forward(online, following)[0]
    ahead = 0.0 if end == "terminated" else 0.7 * valued[deciding.argmax()]
    now = forward(online, trajectory.observations[0])[0][trajectory.actions[0, 0]]
    wanted = abs(trajectory.rewards[0, 0] + ahead - now)
    assert metrics["error"] == pytest.approx(wanted, rel=1e-4)
    huber = 0.5 * wanted**2 if wanted <= 1 else wanted - 0.5
    assert metrics["loss"] == pytest.approx(huber, rel=1e-4)


def test_targets_of_two_steps_by_hand():
    learner = dqn(n_step=2, learning_rate=1e-12)
    target = random_policy(learner.spec, 8)
    load_policy(learner.target, target)
    online = learner.policy(0)
    random = np.random.default_rng(2)
    trajectory = random_trajectory(learner.spec, random, steps=2, count=1, ends=0.0)
    following = trajectory.next_observations[1]
    ahead = forward(target, following)[0][forward(online, following)[0].argmax()]
    rewards = trajectory.rewards[:, 0]
    wanted = rewards[0] + 0.7 * (rewards[1] + 0.7 * ahead)
    now = forward(online, trajectory.observations[0])[0][trajectory.actions[0, 0]]
    # Only windows that begin at the first step have two; others are drawn too.
    drawn = [learner.update([trajectory]) for _ in range(20)]
    errors = [one["error"] for one in drawn if one["value"] == pytest.approx(now, rel=1e-4)]
    assert errors and errors == pytest.approx([abs(wanted - now)] * len(errors), rel=1e-4)


def test_rewards_are_scaled_and_then_clipped_where_asked():
    clipped, plain = dqn(reward_clip=1.0), dqn()
    scaled, both = dqn(reward_scale=0.5), dqn(reward_scale=0.1, reward_clip=1.0)
    trajectory = random_trajectory(plain.spec, np.random.default_rng(1), steps=1, count=1, ends=0.0)
    trajectory.terminated[:] = True
    trajectory.rewards[:] = 5.0
    now = forward(plain.policy(0), trajectory.observations[0])[0][trajectory.actions[0, 0]]
    assert plain.update([trajectory])["error"] == pytest.approx(5.0 - now, rel=1e-4)
    assert clipped.update([trajectory])["error"] == pytest.approx(1.0 - now, rel=1e-4)
    assert scaled.update([trajectory])["error"] == pytest.approx(2.5 - now, rel=1e-4)
    assert both.update([trajectory])["error"] == pytest.approx(abs(0.5 - now), rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 60), st.floats(-20, 2))
def test_identical_networks_have_a_ratio_of_one_at_any_saturation(seed, spread, log_std):
    random = np.random.default_rng(seed)
    outputs = (spread * random.standard_normal((20, 4))).astype(np.float32)
    outputs[:, 2:] = log_std
    acted = distributions.act(GAUSSIAN, outputs, random)
    actions = torch.from_numpy(np.asarray(acted.actions))
    found = networks.log_prob(GAUSSIAN, torch.from_numpy(outputs), actions).float().numpy()
    np.testing.assert_allclose(found, acted.log_mu, rtol=0, atol=1e-5)


def test_bfloat16_learns_nearly_the_same():
    spec = mlp(3, 4, head="logits", hidden=(32,), value=True)
    found = {}
    for precision in ("fp32", "bf16"):
        learner = Impala(spec, ImpalaConfig(precision=precision))
        random = np.random.default_rng(0)
        found[precision] = learner.update([random_trajectory(spec, random, steps=20, count=4)])
        assert all(value.dtype == torch.float32 for value in learner.actor.parameters())
    assert found["bf16"]["loss"] != found["fp32"]["loss"]
    assert found["bf16"]["loss"] == pytest.approx(found["fp32"]["loss"], rel=0.05, abs=0.02)
