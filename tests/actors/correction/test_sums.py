"""Each backward recursion equals the sum that defines it, written out with plain loops."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward_actors.correction.returns import lambda_returns, vtrace

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


class Data:
    """Random ``(T, B)`` arrays with terminations and truncations anywhere."""

    def __init__(self, seed, steps, batch, gamma):
        random = np.random.default_rng(seed)
        shape = (steps, batch)
        self.shape = shape
        self.log_rhos = random.normal(size=shape)
        self.rewards = random.normal(size=shape)
        self.next_values = random.normal(size=shape)
        terminated = random.random(shape) < 0.2
        self.ends = terminated | (random.random(shape) < 0.2)
        self.discounts = np.where(terminated, 0.0, gamma)
        # In one episode the value of the successor is that of the next row.
        self.values = random.normal(size=shape)
        self.values[1:] = np.where(self.ends[:-1], self.values[1:], self.next_values[:-1])

    def cells(self):
        return np.ndindex(*self.shape)


data = st.builds(
    Data,
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 7),
    batch=st.integers(1, 3),
    gamma=st.floats(0.0, 1.0),
)
shares = st.floats(0.0, 1.0)
limits = st.one_of(st.floats(0.1, 3.0), st.just(math.inf))


def given_to_all(d):
    return {
        "rewards": d.rewards,
        "discounts": d.discounts,
        "next_values": d.next_values,
        "ends": d.ends,
    }


def vtrace_of(d, log_rhos, **settings):
    return vtrace(log_rhos=log_rhos, values=d.values, **given_to_all(d), **settings)


@settings(max_examples=200, deadline=None)
@given(d=data, rho=limits, c=limits, lam=shares)
def test_vtrace_is_the_sum_of_corrected_temporal_differences(d, rho, c, lam):
    returns = vtrace_of(d, d.log_rhos, rho=rho, c=c, lam=lam)
    expected = np.empty(d.shape)
    for t, b in d.cells():
        total, product = d.values[t, b], 1.0
        for k in range(t, d.shape[0]):
            ratio = math.exp(d.log_rhos[k, b])
            one_step = d.rewards[k, b] + d.discounts[k, b] * d.next_values[k, b]
            total += product * min(rho, ratio) * (one_step - d.values[k, b])
            if d.ends[k, b]:
                break
            product *= d.discounts[k, b] * lam * min(c, ratio)
        expected[t, b] = total
    np.testing.assert_allclose(returns.targets, expected, **CLOSE)
    np.testing.assert_allclose(returns.weights, np.minimum(rho, np.exp(d.log_rhos)), **CLOSE)

    for t, b in d.cells():
        bootstrap = d.next_values[t, b]
        if t + 1 < d.shape[0] and not d.ends[t, b]:
            bootstrap = lam * expected[t + 1, b] + (1 - lam) * bootstrap
        advantage = d.rewards[t, b] + d.discounts[t, b] * bootstrap - d.values[t, b]
        np.testing.assert_allclose(returns.advantages[t, b], advantage, **CLOSE)


def naive_n_step(d, t, b, steps):
    """The return over at most ``steps`` steps and how many it has: to an end or to the last row."""
    total, product = 0.0, 1.0
    for k in range(t, min(t + steps, d.shape[0])):
        total += product * d.rewards[k, b]
        product *= d.discounts[k, b]
        if d.ends[k, b]:
            break
    return total + product * d.next_values[k, b], k - t + 1


@settings(max_examples=200, deadline=None)
@given(d=data, lam=shares)
def test_lambda_returns_are_the_weighted_mean_of_n_step_returns(d, lam):
    returns = lambda_returns(**given_to_all(d), lam=lam)
    for t, b in d.cells():
        longest = naive_n_step(d, t, b, d.shape[0])[1]
        total = lam ** (longest - 1) * naive_n_step(d, t, b, longest)[0]
        for steps in range(1, longest):
            total += (1 - lam) * lam ** (steps - 1) * naive_n_step(d, t, b, steps)[0]
        np.testing.assert_allclose(returns[t, b], total, **CLOSE)


@settings(max_examples=100, deadline=None)
@given(d=data, lam=shares, rho=st.floats(1.0, 5.0))
def test_on_policy_vtrace_is_the_lambda_return(d, lam, rho):
    on_policy = vtrace_of(d, np.zeros(d.shape), rho=rho, lam=lam)
    expected = lambda_returns(**given_to_all(d), lam=lam)
    np.testing.assert_allclose(on_policy.targets, expected, **CLOSE)
    np.testing.assert_allclose(on_policy.advantages, expected - d.values, **CLOSE)
