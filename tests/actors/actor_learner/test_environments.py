"""Environments of an actor: several, reset by themselves, with the true successor of every step."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from engine_runs import random_policy
from faulty_environments import ENDS, Numbered
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


def environments(count: int = 1, seed: int = 0) -> Environments:
    return Environments(NUMBERED, TWO, count, seed)


class TestMaking:
    def test_by_gymnasium_id(self) -> None:
        env = EnvironmentSpec("CartPole-v1", {"max_episode_steps": 7}).make()
        assert env.spec is not None and env.spec.max_episode_steps == 7
        env.close()

    def test_by_our_own_id(self) -> None:
        env = EnvironmentSpec("PandaHover-v0").make()
        assert env.observation_space.shape is not None
        env.close()

    def test_by_function(self) -> None:
        env = EnvironmentSpec("faulty_environments:Numbered", {"at": 3}).make()
        assert isinstance(env, Numbered)

    @pytest.mark.parametrize(
        ("factory", "found"),
        [
            ("faulty_environments:ENDS", "is not a function"),
            ("faulty_environments:nothing", "is not a function"),
            ("faulty_environments:not_an_environment", "returned dict"),
        ],
    )
    def test_refuses_what_is_no_environment(self, factory: str, found: str) -> None:
        with pytest.raises(ConfigError, match=found):
            EnvironmentSpec(factory).make()


class Continuous(gym.Env[Any, Any]):
    def __init__(self, low: float, high: float) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gym.spaces.Box(low, high, (1,), np.float32)


class TestSpaces:
    def test_observations_of_another_shape_or_type(self) -> None:
        with pytest.raises(ConfigError, match=r"Expected a Box of float32 .*\(3,\)"):
            check_spaces(Numbered(), mlp(3, 2, head="logits", hidden=(4,)))
        for other in ("float32", "int64"):
            with pytest.raises(ConfigError, match=f"{other}.*Expected a Box of uint8"):
                check_spaces(Numbered(dtype=other), replace(TWO, observation_dtype="uint8"))

    @pytest.mark.parametrize("dtype", ["float64", "int64"])
    def test_other_numbers_are_rounded_to_float32(self, dtype: str) -> None:
        check_spaces(Numbered(dtype=dtype), TWO)
        envs = Environments(replace(NUMBERED, kwargs={"dtype": dtype}), TWO, 2, 0)
        found = envs.step(np.zeros(2, np.int64))
        for rows in (envs.observations, found.next_observations):
            assert rows.dtype == np.float32
            np.testing.assert_array_equal(rows, [[0, 1]] * 2)

    def test_what_float32_cannot_hold_becomes_infinity(self) -> None:
        """Which is refused where it would be acted on."""
        np.testing.assert_array_equal(observed(np.array([0.5, -1e300]), TWO), [0.5, -np.inf])

    def test_actions(self) -> None:
        with pytest.raises(ConfigError, match="Expected Discrete of 3"):
            check_spaces(Numbered(), mlp(2, 3, head="logits", hidden=(4,)))
        with pytest.raises(ConfigError, match="Expected a Box of 1"):
            check_spaces(Numbered(), mlp(2, 1, head="tanh", hidden=(4,)))

    def test_unlimited_actions(self) -> None:
        check_spaces(Continuous(-2, 5), PENDULUM)
        with pytest.raises(ConfigError, match="finite limits"):
            check_spaces(Continuous(-np.inf, 5), PENDULUM)

    def test_refused_before_anything_is_stepped(self) -> None:
        with pytest.raises(ConfigError, match="logits head"):
            Environments(NUMBERED, mlp(2, 3, head="logits", hidden=(4,)), 2, 0)


class TestSteps:
    def test_successors_ends_and_rewards(self) -> None:
        """Nine steps of the first three episodes, each of which ends in its own way."""
        envs = environments()
        for episode, (how, length) in enumerate(ENDS):
            for step in range(length):
                np.testing.assert_array_equal(envs.observations, [[episode, step]])
                found = envs.step(np.zeros(1, np.int64))
                np.testing.assert_array_equal(found.next_observations, [[episode, step + 1]])
                over = step + 1 == length
                assert found.rewards[0] == episode + step + 1
                # Both at once is a termination: there is nothing to bootstrap from.
                assert found.terminated[0] == (over and how != "truncated")
                assert found.truncated[0] == (over and how == "truncated")
                assert len(found.episodes) == over
        assert found.episodes[0].length == 4
        assert found.episodes[0].reward == sum(2 + step for step in range(1, 5))
        assert found.episodes[0].score == float("torch" in sys.modules)
        assert found.episodes[0].true_success is False
        assert found.episodes[0].claimed_success is None
        np.testing.assert_array_equal(envs.observations, [[3, 0]])

    @pytest.mark.parametrize(
        ("key", "wrapped"),
        [
            ("is_success", False),
            ("success", False),
            ("succeed", True),
            ("original_is_success", True),
        ],
    )
    def test_the_truth_is_found_and_is_no_claim(self, key: str, wrapped: bool) -> None:
        """In training and in evaluations, for whatever key environments have."""
        spec = replace(NUMBERED, kwargs={"truth": key, "wrapped": wrapped})
        envs = Environments(spec, TWO, 1, 0)
        ended = [one for _ in range(9) for one in envs.step(np.zeros(1, np.int64)).episodes]
        truth = [how == "terminated" for how, _ in ENDS]
        claims = [not true for true in truth] if wrapped else [None] * len(truth)
        assert [one.true_success for one in ended] == truth
        assert [one.claimed_success for one in ended] == claims
        policy = random_policy(TWO)
        with Evaluator(spec, "numpy") as evaluator:
            played = [evaluator.play(policy, [episode], "numpy") for episode in range(len(ENDS))]
        assert [one.true.tolist() for one in played if one.true is not None] == [[t] for t in truth]
        found = [None if one.claimed is None else bool(one.claimed[0]) for one in played]
        assert found == claims

    def test_a_truth_that_is_named_is_the_one_read(self) -> None:
        """In training and in evaluations; without the name, this key is not known."""
        named = EnvironmentSpec("faulty_environments:Numbered", {"truth": "at_goal"}, "at_goal")
        truth = [how == "terminated" for how, _ in ENDS]
        for spec, expected in ((named, truth), (replace(named, truth_key=None), [None] * 3)):
            envs = Environments(spec, TWO, 1, 0)
            ended = [one for _ in range(9) for one in envs.step(np.zeros(1, np.int64)).episodes]
            assert [one.true_success for one in ended] == expected
            with Evaluator(spec, "numpy") as evaluator:
                played = evaluator.play(random_policy(TWO), range(3), "numpy")
            assert (played.true is None) == (expected[0] is None)
        wrong = Environments(replace(named, truth_key="nothing"), TWO, 1, 0)
        with pytest.raises(ConfigError, match=r"without 'nothing' \(it has at_goal.*truth"):
            for _ in range(9):
                wrong.step(np.zeros(1, np.int64))

    def test_what_was_given_out_stays_as_it_was(self) -> None:
        envs = environments()
        before = envs.observations
        kept = before.copy()
        envs.step(np.zeros(1, np.int64))
        np.testing.assert_array_equal(before, kept)

    def test_types(self) -> None:
        envs = environments(3)
        found = envs.step(np.zeros(3, np.int64))
        assert envs.observations.dtype == np.float32
        assert found.rewards.dtype == np.float32
        assert found.terminated.dtype == found.truncated.dtype == np.bool_
        assert found.next_observations.shape == (3, 2)

    def test_each_has_its_own_seed(self) -> None:
        spec = mlp(4, 2, head="logits", hidden=(4,))
        cartpole = EnvironmentSpec("CartPole-v1")
        both = Environments(cartpole, spec, 2, 5)
        second = Environments(cartpole, spec, 1, 6)
        assert not np.array_equal(both.observations[0], both.observations[1])
        for _ in range(40):
            np.testing.assert_array_equal(both.observations[1], second.observations[0])
            both.step(np.ones(2, np.int64))
            second.step(np.ones(1, np.int64))
        both.close()
        second.close()

    def test_images_keep_their_type(self) -> None:
        from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec

        spec = PolicySpec(
            (1, 8, 8),
            (Conv("conv", 1, 2, 4, 4, "relu"), Flatten(), Dense("head", 8, 2)),
            "logits",
            2,
            observation_dtype="uint8",
        )
        envs = Environments(EnvironmentSpec("faulty_environments:Blinking"), spec, 2, 0)
        found = envs.step(np.zeros(2, np.int64))
        assert found.next_observations.dtype == np.uint8
        assert found.next_observations.max() > 200

    def test_discrete_actions_that_do_not_start_at_nought(self) -> None:
        env = Numbered()
        env.action_space = gym.spaces.Discrete(2, start=-1)
        assert in_space(np.int64(1), env.action_space) == 0

    @given(
        st.floats(-100, 100), st.floats(0.125, 100), st.floats(-1, 1, width=32)
    )  # fmt: skip
    def test_continuous_actions_are_scaled_to_the_space(
        self, low: float, width: float, action: float
    ) -> None:
        env = Continuous(low, low + width)
        space = env.action_space
        given_ = in_space(np.array([action], np.float32), space)
        assert space.contains(given_)
        expected = low + (action + 1) / 2 * width
        np.testing.assert_allclose(given_, [expected], atol=1e-4 * (abs(low) + width))
        for end in (-1.0, 1.0):
            assert env.action_space.contains(
                in_space(np.array([end], np.float32), env.action_space)
            )

    def test_close(self) -> None:
        envs = environments(2)
        inner = list(envs._envs)
        envs.close()
        envs.close()
        assert all(isinstance(env, Numbered) and env.closed for env in inner)
