"""The parts of the batched environment: random numbers, arrays, kinematic state, input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.utils import seeding
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.arrays import Arrays, to_numpy
from vinoreward.errors import ConfigError, InputError
from vinoreward_envs import constants as c
from vinoreward_envs.arm import gripper_position, inverse_kinematics
from vinoreward_envs.arrays import checked_device, make_arrays, placed
from vinoreward_envs.inputs import checked_actions, checked_seeds
from vinoreward_envs.random_numbers import BatchedPCG64
from vinoreward_envs.scenes import HoverScenes


@pytest.fixture(params=["numpy", "torch"])
def arrays(request: pytest.FixtureRequest) -> Arrays:
    if request.param == "torch":
        pytest.importorskip("torch")
    return make_arrays(request.param)


def test_random_numbers_are_those_of_each_seed_s_own_generator(arrays: Arrays) -> None:
    seeds = [0, 1, 2**31, 2**40 + 3, 12345678901234567890123, *range(100, 145)]
    batched = BatchedPCG64(arrays, len(seeds))
    batched.set(range(len(seeds)), [np.random.PCG64(seed) for seed in seeds])
    own = [seeding.np_random(seed)[0] for seed in seeds]
    choose = np.random.default_rng(0)
    for _ in range(200):
        mask = choose.random(len(seeds)) < 0.5
        count = int(choose.integers(1, 4))
        drawn = to_numpy(batched.uniforms(count, placed(mask, arrays)))
        expected = [own[i].uniform(size=count) for i in np.flatnonzero(mask)]
        np.testing.assert_array_equal(drawn[mask], expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2**200), min_size=1, max_size=4), st.integers(1, 20))
def test_any_seed_gives_numpy_s_numbers(seeds: list[int], count: int) -> None:
    arrays = Arrays()
    batched = BatchedPCG64(arrays, len(seeds))
    batched.set(range(len(seeds)), [np.random.PCG64(seed) for seed in seeds])
    every = np.ones(len(seeds), np.bool_)
    first = batched.uniforms(count, every)
    some = batched.uniforms(count, every)
    drawn = np.concatenate([first, some, batched.uniforms(1, every)], axis=1)
    count = 2 * count + 1
    expected = [np.random.default_rng(np.random.PCG64(seed)).random(count) for seed in seeds]
    np.testing.assert_array_equal(drawn, expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**100), st.integers(0, 20))
def test_generators_go_on_as_numpy_s_and_back(seed: int, drawn: int) -> None:
    for arrays in (make_arrays("numpy"), make_arrays("torch")):
        batched = BatchedPCG64(arrays, 3)
        batched.set([0, 1, 2], [np.random.PCG64(seed + i) for i in range(3)])
        every = placed(np.ones(3, np.bool_), arrays)
        for _ in range(drawn):
            batched.uniforms(1, every)
        own = batched.generators()
        assert len(own) == 3
        other = BatchedPCG64(arrays, 3)
        other.set([0, 1, 2], [generator.bit_generator for generator in own])
        expected = [generator.random() for generator in own]
        for each in (batched, other):
            np.testing.assert_array_equal(to_numpy(each.uniforms(1, every))[:, 0], expected)


def test_the_arm_is_where_it_was_sent_to_a_micrometre(arrays: Arrays) -> None:
    """So states need no joints."""
    count, draw = 200, np.random.default_rng(1)
    scenes = HoverScenes(count, arrays=arrays)
    every = placed(np.ones(count, np.bool_), arrays)
    for _ in range(c.MAX_EPISODE_STEPS):
        scenes.move(placed(draw.uniform(-0.1, 0.1, (count, 2)), arrays), every)
        gripper = np.column_stack([to_numpy(scenes.gripper), np.full(count, c.HOVER_HEIGHT)])
        reached = gripper_position(inverse_kinematics(gripper))
        np.testing.assert_allclose(reached, gripper, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("cpu", "cpu"),
        ("CPU", "cpu"),
        ("cuda", "cuda:0"),
        ("cuda:3", "cuda:3"),
        ("CUDA:1", "cuda:1"),
    ],
)
def test_a_device_gets_its_full_name(given: str, full: str) -> None:
    assert checked_device(given) == full


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "", None, 0])
def test_no_name_of_a_device_is_refused(device: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        checked_device(device)


def test_actions_are_clipped_and_those_that_are_no_numbers_are_found(arrays: Arrays) -> None:
    actions = np.array([[5.0, -5.0], [np.nan, 0.0], [0.05, np.inf], [0.01, -0.02]], np.float32)
    moves, finite = checked_actions(actions, 4, arrays)
    np.testing.assert_array_equal(to_numpy(finite), [True, False, False, True])
    expected = [[0.1, -0.1], [0, 0], [0, 0], np.array([0.01, -0.02], np.float32)]
    np.testing.assert_array_equal(to_numpy(moves), expected)


@pytest.mark.parametrize("actions", [np.zeros((3, 2)), np.zeros(8), [["a", "b"]] * 4, None, 1.0])
def test_actions_of_another_shape_are_refused(arrays: Arrays, actions: Any) -> None:
    with pytest.raises(InputError, match=r"expected numbers of shape \(4, 2\)"):
        checked_actions(actions, 4, arrays)


def test_one_seed_is_counted_on_and_several_are_taken_as_they_are() -> None:
    assert checked_seeds(5, 3) == [5, 6, 7]
    assert checked_seeds([9, None, 2], 3) == [9, None, 2]
    assert checked_seeds(None, 2) == [None, None]


@pytest.mark.parametrize("seed", [-1, [1, 2], [1, -2, 3], [1, "a", 3], [True, 1, 2]])
def test_seeds_that_are_none_are_refused(seed: Any) -> None:
    with pytest.raises(InputError, match="whole number of at least 0"):
        checked_seeds(seed, 3)
