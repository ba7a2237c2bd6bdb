"""Environments of an actor: several, reset by themselves, with the true successor of every step."""

import sys
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from engine_runs import random_policy
from faulty_environments import ENDS, Blinking, Numbered
from hypothesis import given
from hypothesis import strategies as st

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.acting.environments import (
    Environments,
    EnvironmentSpec,
    check_spaces,
    in_space,
    observed,
)
from vinoreward_actors.actor_learner.acting.evaluation import Evaluator
from vinoreward_actors.policies.spec import mlp

NUMBERED = EnvironmentSpec("faulty_environments:Numbered")
TWO = mlp(2, 2, head="logits", hidden=(4,))
PENDULUM = mlp(3, 1, head="tanh_gaussian", hidden=(4,))
IDLE = np.zeros(1, np.int64)


class Continuous(gym.Env[Any, Any]):
    def __init__(self, low, high):
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gym.spaces.Box(low, high, (1,), np.float32)


# Making


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (EnvironmentSpec("faulty_environments:ENDS").make, "is not a function"),
        (EnvironmentSpec("faulty_environments:nothing").make, "is not a function"),
        (EnvironmentSpec("faulty_environments:not_an_environment").make, "returned dict"),
        (
            lambda: check_spaces(Numbered(), mlp(3, 2, head="logits", hidden=(4,))),
            r"Expected a Box of float32 .*\(3,\)",
        ),
        (
            lambda: check_spaces(Numbered(), replace(TWO, observation_dtype="uint8")),
            "float32.*Expected a Box of uint8",
        ),
        (
            lambda: check_spaces(Numbered(dtype="int64"), replace(TWO, observation_dtype="uint8")),
            "int64.*Expected a Box of uint8",
        ),
        (
            lambda: check_spaces(Numbered(), mlp(2, 3, head="logits", hidden=(4,))),
            "Expected Discrete of 3",
        ),
        (
            lambda: check_spaces(Numbered(), mlp(2, 1, head="tanh", hidden=(4,))),
            "Expected a Box of 1",
        ),
        (lambda: check_spaces(Continuous(-np.inf, 5), PENDULUM), "finite limits"),
        # Before anything is stepped.
        (
            lambda: Environments(NUMBERED, mlp(2, 3, head="logits", hidden=(4,)), 2, 0),
            "logits head",
        ),
    ],
)
def test_what_is_no_environment_or_does_not_fit_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


# Stepping


def test_successors_ends_and_rewards():
    """Nine steps of the first three episodes, each of which ends in its own way."""
    envs = Environments(NUMBERED, TWO, 1, 0)
    for episode, (how, length) in enumerate(ENDS):
        for step in range(length):
            before = envs.observations
            np.testing.assert_array_equal(before, [[episode, step]])
            found = envs.step(IDLE)
            np.testing.assert_array_equal(before, [[episode, step]])  # stays as it was given out
            np.testing.assert_array_equal(found.next_observations, [[episode, step + 1]])
            over = step + 1 == length
            assert found.rewards[0] == episode + step + 1
            # Both at once is a termination: there is nothing to bootstrap from.
            assert found.terminated[0] == (over and how != "truncated")
            assert found.truncated[0] == (over and how == "truncated")
            assert len(found.episodes) == over
    (last,) = found.episodes
    assert (last.length, last.reward) == (4, sum(2 + step for step in range(1, 5)))
    assert last.score == float("torch" in sys.modules)
    assert (last.true_success, last.claimed_success) == (False, None)
    np.testing.assert_array_equal(envs.observations, [[3, 0]])
    assert found.rewards.dtype == np.float32
    assert found.terminated.dtype == found.truncated.dtype == np.bool_


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_other_numbers_are_rounded_to_float32(dtype):
    envs = Environments(replace(NUMBERED, kwargs={"dtype": dtype}), TWO, 2, 0)
    found = envs.step(np.zeros(2, np.int64))
    for rows in (envs.observations, found.next_observations):
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, [[0, 1]] * 2)
    # What it cannot hold becomes infinity, which is refused where it would be acted on.
    np.testing.assert_array_equal(observed(np.array([0.5, -1e300]), TWO), [0.5, -np.inf])


@pytest.mark.parametrize(
    ("key", "wrapped"),
    [("is_success", False), ("success", False), ("succeed", True), ("original_is_success", True)],
)
def test_the_truth_is_found_and_is_no_claim(key, wrapped):
    """In training and in evaluations, for whatever key environments have."""
    spec = replace(NUMBERED, kwargs={"truth": key, "wrapped": wrapped})
    envs = Environments(spec, TWO, 1, 0)
    ended = [one for _ in range(9) for one in envs.step(IDLE).episodes]
    truth = [how == "terminated" for how, _ in ENDS]
    claims = [not true for true in truth] if wrapped else [None] * len(truth)
    assert [one.true_success for one in ended] == truth
    assert [one.claimed_success for one in ended] == claims
    with Evaluator(spec, "numpy") as evaluator:
        played = [evaluator.play(random_policy(TWO), [seed], "numpy") for seed in range(len(ENDS))]
    assert [one.true.tolist() for one in played if one.true is not None] == [[t] for t in truth]
    found = [None if one.claimed is None else bool(one.claimed[0]) for one in played]
    assert found == claims


def test_a_truth_that_is_named_is_the_one_read():
    """In training and in evaluations; without the name, this key is not known."""
    named = EnvironmentSpec("faulty_environments:Numbered", {"truth": "at_goal"}, "at_goal")
    truth = [how == "terminated" for how, _ in ENDS]
    for spec, expected in ((named, truth), (replace(named, truth_key=None), [None] * 3)):
        envs = Environments(spec, TWO, 1, 0)
        ended = [one for _ in range(9) for one in envs.step(IDLE).episodes]
        assert [one.true_success for one in ended] == expected
        with Evaluator(spec, "numpy") as evaluator:
            played = evaluator.play(random_policy(TWO), range(3), "numpy")
        assert (played.true is None) == (expected[0] is None)
    wrong = Environments(replace(named, truth_key="nothing"), TWO, 1, 0)
    with pytest.raises(ConfigError, match=r"without 'nothing' \(it has at_goal.*--truth-key"):
        for _ in range(9):
            wrong.step(IDLE)


def test_each_has_its_own_seed():
    spec, cartpole = mlp(4, 2, head="logits", hidden=(4,)), EnvironmentSpec("CartPole-v1")
    both, second = Environments(cartpole, spec, 2, 5), Environments(cartpole, spec, 1, 6)
    expected = [cartpole.make().reset(seed=seed)[0] for seed in (5, 6)]
    np.testing.assert_array_equal(both.observations, expected)
    for _ in range(40):
        np.testing.assert_array_equal(both.observations[1], second.observations[0])
        both.step(np.ones(2, np.int64))
        second.step(np.ones(1, np.int64))


def test_images_keep_their_type():
    seen = observed(np.stack([Blinking().reset()[0]]), replace(TWO, observation_dtype="uint8"))
    assert seen.dtype == np.uint8 and seen.max() > 200


def test_discrete_actions_that_do_not_start_at_nought():
    assert in_space(np.int64(1), gym.spaces.Discrete(2, start=-1)) == 0


@given(st.floats(-100, 100), st.floats(0.125, 100), st.floats(-1, 1, width=32))
def test_continuous_actions_are_scaled_to_the_space(low, width, action):
    space = Continuous(low, low + width).action_space
    check_spaces(Continuous(low, low + width), PENDULUM)
    given_ = in_space(np.array([action], np.float32), space)
    assert space.contains(given_)
    expected = low + (action + 1) / 2 * width
    np.testing.assert_allclose(given_, [expected], atol=1e-4 * (abs(low) + width))
    for end in (-1.0, 1.0):
        assert space.contains(in_space(np.array([end], np.float32), space))


def test_whole_numbers_of_a_box_have_equal_chances():
    space = gym.spaces.Box(0, 5, (2,), np.int64)
    spread = np.linspace(-1, 1, 60_000, dtype=np.float32)
    found = in_space(np.stack([spread, spread], axis=1), space)
    assert found.dtype == np.int64
    np.testing.assert_allclose(np.bincount(found[:, 0]), 10_000, atol=2)


def test_closing_closes_all_and_twice_is_fine():
    closed = []
    gym.register("Closes-v0", lambda: closed.append(Numbered()) or closed[-1])
    try:
        envs = Environments(EnvironmentSpec("Closes-v0"), TWO, 2, 0)
        envs.close()
        envs.close()
    finally:
        del gym.registry["Closes-v0"]
    assert len(closed) == 2 and all(env.closed for env in closed)
