"""The correctors give the numbers that a published reference library's tests expect.

All inputs and expected values are those of rlax (google-deepmind/rlax, Apache-2.0):
``rlax/_src/vtrace_test.py`` and ``value_learning_test.py``. There the arrays are batch-major; here
they are transposed. rlax's temporal-difference errors are targets minus values, and its discounts
of 0 are terminations.
"""

import numpy as np
import pytest

from vinoreward_actors.correction.returns import munos_returns, retrace_coefficients, vtrace

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


def test_retrace_as_in_rlax_retrace_test():
    q_values = np.array(
        [
            [[1.1, 2.1], [-1.1, 1.1], [3.1, -3.1], [-1.2, 0.0]],
            [[2.1, 3.1], [9.5, 0.1], [-2.1, -1.1], [0.1, 7.4]],
        ]
    )
    target_network = np.array(
        [
            [[1.2, 2.2], [-1.2, 0.2], [2.2, -1.2], [-2.25, -6.0]],
            [[4.2, 2.2], [1.2, 1.2], [-1.2, -2.2], [1.5, 1.0]],
        ]
    )
    actions = np.array([[0, 1, 0, 0], [1, 0, 0, 1]])
    pi = np.array(
        [
            [[0.5, 0.5], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1]],
            [[0.1, 0.9], [1.0, 0.0], [0.3, 0.7], [0.7, 0.3]],
        ]
    )
    mu_of_actions = np.array([[0.5, 0.1, 0.9, 0.3], [0.4, 0.6, 1.0, 0.9]])
    # The last column of the test is only the successor of the third.
    log_rhos = np.log(chosen(pi, actions) / mu_of_actions).T[:3]
    returns = munos_returns(
        rewards=REWARDS[:3],
        discounts=DISCOUNTS[:3],
        q_values=chosen(target_network, actions).T[:3],
        next_values=(pi * target_network).sum(axis=-1).T[1:],
        coefficients=retrace_coefficients(log_rhos, 0.9),
        ends=DISCOUNTS[:3] == 0.0,
    )
    expected_loss = np.array(
        [[2.8800001, 3.8934109, 4.5942383], [0.31121615, 20.253206, 3.1601219e-3]]
    )
    td = returns - chosen(q_values, actions).T[:3]
    np.testing.assert_allclose(0.5 * np.square(td), expected_loss.T, rtol=1e-5)


Q_NEXT = np.array([[[1.2, 2.2], [-1.2, 0.2], [2.2, -1.2]], [[4.2, 2.2], [1.2, 1.2], [-1.2, -2.2]]])
Q_NOW = np.array([[1.1, 1.1, 3.1], [3.1, -1.1, -2.1]]).T


@pytest.mark.parametrize(
    ("next_values", "expected"),
    [
        # Peng's Q(lambda): bootstraps from the best action.
        (Q_NEXT.max(axis=-1).T, [[-2.4, 0.427975, 1.07], [0.69348, 3.478, -2.196]]),
        # Sarsa(lambda): from the executed action.
        (
            chosen(Q_NEXT, np.array([[1, 0, 1], [1, 1, 0]])).T,
            [[-2.4, -1.8126001, -1.8200002], [0.25347996, 3.4780002, -2.196]],
        ),
    ],
)
def test_munos_form_as_in_rlax_q_lambda_and_sarsa_lambda_tests(next_values, expected):
    # Both are the Munos form with c = lambda where Q(s', a') stands for the expectation.
    returns = munos_returns(
        rewards=REWARDS[:3],
        discounts=DISCOUNTS[:3],
        q_values=np.concatenate([np.full((1, 2), np.nan), next_values[:-1]]),
        next_values=next_values,
        coefficients=np.full((3, 2), 0.75),
        ends=no_ends(next_values),
    )
    np.testing.assert_allclose(returns - Q_NOW, np.array(expected).T, rtol=1e-5)
