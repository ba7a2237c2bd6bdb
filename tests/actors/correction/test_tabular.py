"""A small Markov decision process whose answers linear algebra gives.

Nothing is sampled: every way in which three steps can go is a column of the batch, weighted with
its probability under the behaviour policy. So the expected target is exact, and repeating
"value := expected target" converges to what a corrector really learns. Episodes end in terminal
states and are cut off by time limits; after either the next row starts an unrelated episode.
"""

import itertools
import math

import numpy as np
import pytest

from vinoreward_actors.correction import (
    Correction,
    ImportanceSampling,
    NoCorrection,
    OffPolicyBatch,
    VTrace,
)

GAMMA = 0.8
TERMINATES = 0.15
TIME_LIMIT = 0.2
RESET = 2
STATES, ACTIONS, STEPS = 3, 2, 3

_random = np.random.default_rng(7)
# Each action leads to one of two states.
MOVES = np.array([[[0.7, 0.3, 0.0], [0.0, 0.2, 0.8]], [[0.5, 0.0, 0.5], [0.1, 0.9, 0.0]],
                  [[0.0, 0.6, 0.4], [1.0, 0.0, 0.0]]])  # fmt: skip
REWARDS = _random.normal(size=(STATES, ACTIONS)) * 3
PI = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
MU = np.array([[0.3, 0.7], [0.5, 0.5], [0.2, 0.8]])


def q_of(policy):
    """Q of a policy; a time limit changes nothing, for truncation bootstraps."""
    continues = GAMMA * (1 - TERMINATES) * MOVES.reshape(STATES * ACTIONS, STATES)
    spread = np.einsum("st,sa->sta", np.eye(STATES), policy).reshape(STATES, STATES * ACTIONS)
    system = np.eye(STATES * ACTIONS) - continues @ spread
    return np.linalg.solve(system, REWARDS.ravel()).reshape(STATES, ACTIONS)


def v_of(policy):
    return (policy * q_of(policy)).sum(axis=1)


def between(rho):
    """The policy whose value V-trace learns (Espeholt et al. 2018, eq. 3)."""
    weights = np.minimum(rho * MU, PI)
    return weights / weights.sum(axis=1, keepdims=True)


class Paths:
    """All ways of three steps from every state and first action."""

    def __init__(self):
        ways = []
        for state, action in itertools.product(range(STATES), range(ACTIONS)):
            ways.append((state, action, -1, "terminated", TERMINATES))
            for following in np.flatnonzero(MOVES[state, action]):
                chance = (1 - TERMINATES) * MOVES[state, action, following]
                ways.append((state, action, following, "", chance * (1 - TIME_LIMIT)))
                ways.append((state, action, following, "truncated", chance * TIME_LIMIT))

        def follows(way, other):
            return other[0] == (RESET if way[3] else way[2])

        paths = [
            path
            for path in itertools.product(ways, repeat=STEPS)
            if all(follows(*pair) for pair in itertools.pairwise(path))
        ]

        def table(of):
            return np.array([[of(*path[t]) for path in paths] for t in range(STEPS)])

        self.states = table(lambda state, *_: state)
        self.actions = table(lambda _, action, *__: action)
        self.following = table(lambda _, __, following, *___: following)
        self.terminated = table(lambda _, __, ___, end, chance: end == "terminated")
        self.truncated = table(lambda _, __, ___, end, chance: end == "truncated")
        chances = table(lambda state, action, _, __, chance: chance * MU[state, action])
        self.probability = chances.prod(axis=0)

    def batch(self, values):
        return OffPolicyBatch(
            log_pi=np.log(PI[self.states, self.actions]),
            log_mu=np.log(MU[self.states, self.actions]),
            rewards=REWARDS[self.states, self.actions],
            terminated=self.terminated,
            truncated=self.truncated,
            values=values[self.states],
            # A terminal state has no value; reading one would spread NaN.
            next_values=np.where(self.terminated, np.nan, values[self.following]),
            gamma=GAMMA,
        )

    def mean_by_state(self, first_row):
        total = np.bincount(self.states[0], self.probability * first_row, STATES)
        return total / np.bincount(self.states[0], self.probability, STATES)

    def mean_by_action(self, first_row):
        cell = self.states[0] * ACTIONS + self.actions[0]
        total = np.bincount(cell, self.probability * first_row, STATES * ACTIONS)
        share = np.bincount(cell, self.probability, STATES * ACTIONS)
        return (total / share).reshape(STATES, ACTIONS)


@pytest.fixture(scope="module")
def paths():
    return Paths()


def learn_v(paths, corrector, rounds=120):
    correction = Correction([corrector])
    values = np.zeros(STATES)
    for _ in range(rounds):
        values = paths.mean_by_state(correction(paths.batch(values)).targets[0])
    return values


def test_the_paths_are_all_there(paths):
    np.testing.assert_allclose(np.bincount(paths.states[0], paths.probability), 1.0)
    assert np.abs(v_of(PI) - v_of(MU)).min() > 0.3  # or no test here could fail


@pytest.mark.parametrize("c", [0.5, 1.0, math.inf])
@pytest.mark.parametrize("lam", [0.6, 1.0])
def test_untruncated_vtrace_learns_the_target_policys_values(paths, c, lam):
    learned = learn_v(paths, VTrace(rho=math.inf, c=c, lam=lam))
    np.testing.assert_allclose(learned, v_of(PI), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rho", [0.5, 1.0, 1.5])
def test_truncated_vtrace_learns_the_values_that_its_paper_says(paths, rho):
    learned = learn_v(paths, VTrace(rho=rho, c=0.5), rounds=300)
    np.testing.assert_allclose(learned, v_of(between(rho)), rtol=0, atol=1e-6)
    assert np.abs(learned - v_of(PI)).max() > 0.1


@pytest.mark.parametrize("corrector", [NoCorrection(), NoCorrection(lam=0.5)], ids=str)
def test_uncorrected_returns_learn_the_behaviour_policys_values(paths, corrector):
    learned = learn_v(paths, corrector)
    np.testing.assert_allclose(learned, v_of(MU), rtol=0, atol=1e-6)
    assert np.abs(learned - v_of(PI)).min() > 0.3


@pytest.mark.parametrize(
    "correctors",
    [
        [VTrace(rho=math.inf, c=1.0)],
        [VTrace(rho=math.inf, c=1.0), ImportanceSampling(rho=math.inf)],
    ],
    ids=["V-trace alone", "V-trace and importance sampling"],
)
def test_the_policy_gradients_weight_comes_once(paths, correctors):
    """``sum_a mu(a|s) E[weighted advantage | s, a] grad log pi`` is the policy gradient.

    That needs ``mu(a|s) E[weighted advantage] = pi(a|s) A(s, a)``; with the ratio applied twice
    it would be ``pi(a|s)^2 / mu(a|s) A(s, a)``, which is checked to be something else.
    """
    values = v_of(PI)
    advantages = Correction(correctors)(paths.batch(values)).advantages[0]
    gradient = MU * paths.mean_by_action(advantages)
    expected = PI * (q_of(PI) - values[:, None])
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-9)
    assert np.abs(expected * PI / MU - expected).max() > 0.1
