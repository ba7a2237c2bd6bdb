"""From outputs to actions and probabilities, held against torch and SciPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from torch import distributions as td

from vinoreward.errors import ConfigError
from vinoreward_actors.policies.distributions import (
    EDGE,
    Exploration,
    act,
    entropy,
    kl,
    log_prob,
    log_probabilities,
)
from vinoreward_actors.policies.spec import mlp

LOGITS = mlp(4, 3, head="logits", hidden=(8,))
VALUES = mlp(4, 4, head="q", hidden=(8,))
GAUSSIAN = mlp(4, 2, head="tanh_gaussian", hidden=(8,))
CERTAIN = mlp(4, 2, head="tanh", hidden=(8,))

rows = hnp.arrays(np.float32, (5, 4), elements=st.floats(-50, 50, width=32))


def gaussian_rows(seed, count=50):
    found = np.random.default_rng(seed).normal(0, 0.8, (count, 4)).astype(np.float32)
    return np.clip(found, -1.9, 1.9)


def squashed(outputs, sigma=None):
    values = torch.from_numpy(outputs.astype(np.float64))
    if sigma is None:
        normal = td.Normal(values[:, :2], values[:, 2:].clamp(-20, 2).exp())
    else:
        normal = td.Normal(values, sigma)
    return td.Independent(td.TransformedDistribution(normal, td.TanhTransform()), 1)


def test_log_probabilities_of_logits_stop_at_minus_twenty():
    found = log_probabilities(LOGITS, np.array([[0.0, 100.0, 0.0]]))
    np.testing.assert_allclose(found, [[-20.0, 0.0, -20.0]])


def test_epsilon_greedy_probabilities_by_hand():
    outputs = np.array([[1.0, 5.0, 5.0, 0.0]], dtype=np.float32)
    found = np.exp(log_probabilities(VALUES, outputs, 0.2))
    # The first of two equal values is taken: 0.8 + 0.2 / 4.
    np.testing.assert_allclose(found, [[0.05, 0.85, 0.05, 0.05]])


@pytest.mark.parametrize(
    ("spec", "row", "epsilon"),
    [(LOGITS, [0.5, -1.0, 1.5], 0.0), (VALUES, [1.0, 5.0, 2.0, 0.0], 0.2)],
)
def test_actions_are_drawn_as_often_as_their_probability_says(spec, row, epsilon):
    outputs = np.tile(np.array([row], dtype=np.float32), (20_000, 1))
    exploration = Exploration(epsilon=epsilon)
    drawn = act(spec, outputs, np.random.default_rng(1), exploration)
    counts = np.bincount(drawn.actions, minlength=len(row))
    logs = log_probabilities(spec, outputs[:1], epsilon)[0]
    assert stats.chisquare(counts, np.exp(logs) * len(outputs)).pvalue > 0.01
    np.testing.assert_allclose(drawn.log_mu, logs[drawn.actions], rtol=1e-6)


@pytest.mark.parametrize("spec", [LOGITS, VALUES, GAUSSIAN, CERTAIN])
def test_greedy_actions_are_the_best_and_certain(spec):
    outputs = np.random.default_rng(2).normal(size=(9, spec.outputs)).astype(np.float32)
    expected = outputs.argmax(1) if spec.discrete else np.tanh(outputs[:, :2])
    # Values are acted on greedily where no epsilon is given.
    for explore in (Exploration(greedy=True), *([Exploration()] if spec is VALUES else [])):
        drawn = act(spec, outputs, np.random.default_rng(0), explore)
        np.testing.assert_allclose(drawn.actions, expected, rtol=1e-6)
        np.testing.assert_array_equal(drawn.log_mu, 0)


def test_squashed_gaussians_have_torchs_density():
    outputs = gaussian_rows(4)
    drawn = act(GAUSSIAN, outputs, np.random.default_rng(5))
    found = log_prob(GAUSSIAN, outputs, drawn.actions)
    inside = (np.abs(drawn.actions) < 0.999).all(1)
    assert inside.sum() > 10
    expected = squashed(outputs).log_prob(torch.from_numpy(drawn.actions.astype(np.float64)))
    np.testing.assert_allclose(found[inside], expected.numpy()[inside], rtol=1e-6, atol=1e-6)
    # What the actor stores is what the learner would compute.
    np.testing.assert_allclose(drawn.log_mu, found, rtol=1e-6, atol=1e-5)


def test_noise_on_certain_actions_has_torchs_density():
    outputs = gaussian_rows(6)[:, :2]
    drawn = act(CERTAIN, outputs, np.random.default_rng(7), Exploration(sigma=0.3))
    found = log_prob(CERTAIN, outputs, drawn.actions, Exploration(sigma=0.3))
    expected = squashed(outputs, 0.3).log_prob(torch.from_numpy(drawn.actions.astype(np.float64)))
    inside = (np.abs(drawn.actions) < 0.999).all(1)
    np.testing.assert_allclose(found[inside], expected.numpy()[inside], rtol=1e-5, atol=1e-5)


def test_squashed_gaussians_are_drawn_from_that_density():
    outputs = np.tile(np.array([[0.3, -1.0, -0.5, 0.1]], dtype=np.float32), (5000, 1))
    actions = act(GAUSSIAN, outputs, np.random.default_rng(8)).actions
    for column, (mean, log_std) in enumerate([(0.3, -0.5), (-1.0, 0.1)]):
        before = np.arctanh(np.asarray(actions[:, column], dtype=np.float64))
        assert stats.kstest(before, stats.norm(mean, math.exp(log_std)).cdf).pvalue > 0.01


def test_saturated_actions_have_a_finite_density_on_both_sides():
    outputs = np.array([[50.0, -50.0, 2.0, -20.0]], dtype=np.float32)
    drawn = act(GAUSSIAN, outputs, np.random.default_rng(0))
    assert np.isfinite(drawn.log_mu).all()
    assert (np.abs(drawn.actions) <= np.float32(EDGE)).all()
    edge = np.array([[1.0, -1.0]])
    assert np.isfinite(log_prob(GAUSSIAN, outputs, edge)).all()


@given(p=rows, q=rows)
def test_divergence_of_logits_is_torchs(p, q):
    # Above -20 nothing is clipped, and then it is the plain divergence.
    p, q = p[:, :3] / 10, q[:, :3] / 10
    expected = td.kl_divergence(
        td.Categorical(logits=torch.from_numpy(p.astype(np.float64))),
        td.Categorical(logits=torch.from_numpy(q.astype(np.float64))),
    )
    np.testing.assert_allclose(kl(LOGITS, p, q), expected.numpy(), rtol=1e-6, atol=1e-9)


def test_divergence_of_gaussians_is_torchs():
    p, q = gaussian_rows(9), gaussian_rows(10)
    normal = [
        td.Independent(td.Normal(torch.from_numpy(o[:, :2]), torch.from_numpy(o[:, 2:]).exp()), 1)
        for o in (p.astype(np.float64), q.astype(np.float64))
    ]
    expected = td.kl_divergence(normal[0], normal[1]).numpy()
    np.testing.assert_allclose(kl(GAUSSIAN, p, q), expected, rtol=1e-9)


def test_divergence_of_certain_actions_is_in_units_of_sigma():
    p = np.array([[0.1, 0.2]], dtype=np.float32)
    found = kl(CERTAIN, p, p + np.float32(0.5), Exploration(sigma=0.25))
    np.testing.assert_allclose(found, 2 * 0.5 * (0.5 / 0.25) ** 2, rtol=1e-5)
    with pytest.raises(ConfigError, match="sigma"):
        kl(CERTAIN, p, p)


def test_divergence_of_epsilon_greedy_policies_is_finite():
    p, q = np.eye(4, dtype=np.float32)[:1], np.eye(4, dtype=np.float32)[1:2]
    found = kl(VALUES, p, q, Exploration(epsilon=0.2))
    assert found == pytest.approx((0.85 - 0.05) * math.log(0.85 / 0.05))
    assert kl(VALUES, p, q)[0] == pytest.approx((math.e - 1) / (math.e + 3))


@given(p=rows, q=rows, head=st.sampled_from([LOGITS, VALUES, GAUSSIAN, CERTAIN]))
def test_divergence_is_finite_not_negative_and_nought_of_equals(p, q, head):
    p, q, explore = p[:, : head.outputs], q[:, : head.outputs], Exploration(sigma=0.1)
    found = kl(head, p, q, explore)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    np.testing.assert_allclose(kl(head, p, p, explore), 0, atol=1e-12)


def test_entropy_is_torchs():
    logits = gaussian_rows(11)[:, :3]
    expected = td.Categorical(logits=torch.from_numpy(logits.astype(np.float64))).entropy()
    np.testing.assert_allclose(entropy(LOGITS, logits), expected.numpy(), rtol=1e-9)
    outputs = gaussian_rows(12)
    normal = td.Normal(0.0, torch.from_numpy(outputs[:, 2:].astype(np.float64)).exp())
    expected = td.Independent(normal, 1).entropy()
    np.testing.assert_allclose(entropy(GAUSSIAN, outputs), expected.numpy(), rtol=1e-9)


def test_impossible_exploration_is_refused():
    for arguments in ({"epsilon": -0.1}, {"epsilon": 1.1}, {"sigma": -1.0}, {"sigma": math.nan}):
        with pytest.raises(ConfigError, match="Expected"):
            Exploration(**arguments)
    outputs = gaussian_rows(13)
    with pytest.raises(ConfigError, match="without exploration"):
        log_prob(GAUSSIAN, outputs, np.zeros((50, 2)), Exploration(greedy=True))
    with pytest.raises(ConfigError, match="without exploration"):
        log_prob(CERTAIN, outputs[:, :2], np.zeros((50, 2)))
