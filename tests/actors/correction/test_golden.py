"""V-trace gives the numbers that a published reference library's tests expect.

All inputs and expected values are those of rlax (google-deepmind/rlax, Apache-2.0):
``rlax/_src/vtrace_test.py`` and ``value_learning_test.py``. There the arrays are batch-major; here
they are transposed. rlax's temporal-difference errors are targets minus values, and its discounts
of 0 are terminations.
"""

import numpy as np
import pytest

from vinoreward_actors.correction.returns import vtrace

REWARDS = np.array([[-1.3, -1.3, 2.3, 42.0], [1.3, 5.3, -3.3, -5.0]]).T
DISCOUNTS = np.array([[0.0, 0.89, 0.85, 0.99], [0.88, 1.0, 0.83, 0.95]]).T


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def chosen(array, actions):
    return np.take_along_axis(array, actions[..., None], axis=-1)[..., 0]


def no_ends(like):
    return np.zeros(like.shape, dtype=np.bool_)


def test_vtrace_as_in_rlax_vtrace_test():
    mu_logits = np.array(
        [
            [[8.9, 0.7], [5.0, 1.0], [0.6, 0.1], [-0.9, -0.1]],
            [[0.3, -5.0], [1.0, -8.0], [0.3, 1.7], [4.7, 3.3]],
        ]
    )
    pi_logits = np.array(
        [
            [[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]],
            [[1.0, 0.9], [1.0, -1.0], [-4.3, 8.7], [0.8, 0.3]],
        ]
    )
    actions = np.array([[0, 1, 0, 0], [1, 0, 0, 1]])
    log_rhos = chosen(log_softmax(pi_logits) - log_softmax(mu_logits), actions).T
    values = np.array([[2.1, 1.1, -3.1, 0.0], [3.1, 0.1, -1.1, 7.4]]).T
    next_values = np.concatenate([values[1:], [[8.4, -1.2]]])

    returns = vtrace(
        log_rhos=log_rhos,
        discounts=DISCOUNTS,
        rewards=REWARDS,
        values=values,
        next_values=next_values,
        ends=DISCOUNTS == 0.0,
    )

    expected_td = np.array(
        [
            [-1.6155143, -3.4973226, 1.8670533, 50.316002],
            [1.4662437, 3.6116405, -8.3327293e-5, -13.54],
        ]
    ).T
    expected_pg = np.array(
        [
            [-1.6155143, -3.4973226, 1.8670534, 50.316002],
            [1.4662433, 3.6116405, -8.3369283e-05, -13.54],
        ]
    ).T
    np.testing.assert_allclose(returns.targets - values, expected_td, rtol=1e-3)
    np.testing.assert_allclose(returns.weights * returns.advantages, expected_pg, rtol=1e-3)


def test_on_policy_vtrace_as_in_rlax_td_lambda_test():
    values = np.array([[1.1, -1.1, 3.1], [2.1, -1.1, -2.1]]).T
    next_values = np.concatenate([values[1:], [[2.2, -1.2]]])
    returns = vtrace(
        log_rhos=np.zeros_like(values),
        discounts=DISCOUNTS[:3],
        rewards=REWARDS[:3],
        values=values,
        next_values=next_values,
        ends=no_ends(values),
        lam=0.75,
    )
    expected = np.array([[-2.4, 3.2732253, 1.0700002], [-0.01701999, 2.6529999, -2.196]]).T
    np.testing.assert_allclose(returns.targets - values, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1.0, [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]]),
        (0.7, [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1.0, 0.0, -4.9]]),
        (0.4, [[0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1.0, 0.0, -4.9]]),
    ],
)
def test_on_policy_vtrace_advantages_as_in_rlax_generalised_advantage_test(lam, expected):
    rewards = np.array([[0.0, 0.0, 1.0, 0.0, -0.5], [0.0, 0.0, 0.0, 0.0, 1.0]]).T
    values = np.array([[1.0, 4.0, -3.0, -2.0, -1.0, -1.0], [-3.0, -2.0, -1.0, 0.0, 5.0, -1.0]]).T
    discounts = np.array([[0.99] * 5, [0.9, 0.9, 0.9, 0.0, 0.9]]).T
    returns = vtrace(
        log_rhos=np.zeros_like(rewards),
        discounts=discounts,
        rewards=rewards,
        values=values[:-1],
        next_values=values[1:],
        ends=discounts == 0.0,
        lam=lam,
    )
    np.testing.assert_allclose(returns.advantages, np.array(expected).T, atol=1e-3)
