"""Rewards of claims on a device, against those of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from vinoreward.rewards.success import RewardCore, RewardOptions
from vinoreward_envs.device_judging import DeviceReward, piece_of

COUNT = 4
numbers = st.sampled_from([0.0, 0.19, 0.2, 0.35, 0.5, 0.51, 0.9, 1.0])
STEP = st.tuples(
    st.lists(numbers, min_size=COUNT, max_size=COUNT),
    st.lists(st.sampled_from([0.0, 0.9, 1.0, 1.1, 9.0]), min_size=COUNT, max_size=COUNT),
    st.lists(st.booleans(), min_size=COUNT, max_size=COUNT),  # a step there
    st.lists(st.booleans(), min_size=COUNT, max_size=COUNT),  # and then a new episode
)


@settings(max_examples=200)
@given(
    steps=st.lists(STEP, min_size=1, max_size=8),
    hold=st.integers(1, 3),
    leave=st.sampled_from([0.0, 0.2, 0.5]),
    guarded=st.booleans(),
    on_ood=st.sampled_from(["withhold", "ignore"]),
    replaces=st.booleans(),
)
def test_rewards_are_those_of_the_core(
    steps: list[Any], hold: int, leave: float, guarded: bool, on_ood: Any, replaces: bool
) -> None:
    options = RewardOptions(
        success_reward=100.0,
        step_reward=0.25,
        env_reward_weight=0.5,
        success_replaces_env_reward=replaces,
        success_hold_steps=hold,
        on_ood=on_ood,
    )
    core = RewardCore(options, 0.5, COUNT, leave)
    mine = DeviceReward(options, (0.5, leave), COUNT, "cpu")
    own, no = np.array([-1.0, -5.0, -1.0, 2.0]), np.zeros(COUNT, np.bool_)
    for given_, oddness, stepped, begun in steps:
        probability, mask = np.array(given_, np.float32), np.array(stepped)
        odd = np.array(oddness, np.float32) if guarded else None
        expected = core.transition(mask, probability, np.zeros_like(probability), own, no, odd=odd)
        found = mine.transition(
            torch.tensor(mask),
            torch.tensor(probability),
            torch.tensor(own),
            None if odd is None else torch.tensor(odd),
        )
        for name in ("rewards", "claimed", "probability", "odd"):
            one, other = getattr(found, name), getattr(expected, name)
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_array_equal(one.numpy(), other)
        core.begin(np.array(begun), np.zeros(COUNT, np.float32))
        mine.begin(torch.tensor(begun))


def test_a_number_that_is_none_claims_nothing() -> None:
    reward = DeviceReward(RewardOptions(), (0.0, 0.0), 2, "cpu")
    every = torch.ones(2, dtype=torch.bool)
    probability = torch.tensor([float("nan"), 0.0])
    found = reward.transition(every, probability, torch.zeros(2, dtype=torch.float64), None)
    assert found.claimed.tolist() == [False, True]


@pytest.mark.parametrize(
    ("count", "device"), [(1, "cpu"), (65, "cpu"), (4096, "cuda:0"), (1025, "cuda:0")]
)
def test_pieces_are_equal_and_not_too_large(count: int, device: str) -> None:
    piece = piece_of(count, device)
    most = 64 if device == "cpu" else 1024
    assert piece <= most and piece * -(-count // piece) - count < -(-count // piece)
