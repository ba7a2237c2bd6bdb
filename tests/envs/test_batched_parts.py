"""The parts of the batched environment: random numbers, devices, input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vinoreward.arrays import Arrays, to_numpy
from vinoreward.errors import ConfigError, InputError
from vinoreward_envs.arrays import checked_device, make_arrays, placed
from vinoreward_envs.inputs import checked_actions, checked_seeds
from vinoreward_envs.random_numbers import BatchedPCG64


@pytest.fixture(params=["numpy", "torch"])
def arrays(request: pytest.FixtureRequest) -> Arrays:
    if request.param == "torch":
        pytest.importorskip("torch")
    return make_arrays(request.param)


def test_random_numbers_are_those_of_each_seed_s_own_generator(arrays: Arrays) -> None:
    seeds = [0, 1, 2**31, 2**40 + 3, 12345678901234567890123, *range(100, 145)]
    batched, own = BatchedPCG64(arrays, 50), [np.random.default_rng(seed) for seed in seeds]
    batched.set(range(50), [np.random.PCG64(seed) for seed in seeds])
    choose = np.random.default_rng(0)
    for _ in range(200):
        mask = choose.random(len(seeds)) < 0.5
        count = int(choose.integers(1, 4))
        drawn = to_numpy(batched.uniforms(count, placed(mask, arrays)))
        expected = [own[i].uniform(size=count) for i in np.flatnonzero(mask)]
        np.testing.assert_array_equal(drawn[mask], expected)
    further = [each.random() for each in batched.generators()]
    np.testing.assert_array_equal(further, [each.random() for each in own])
    every = placed(np.ones(50, np.bool_), arrays)
    np.testing.assert_array_equal(to_numpy(batched.uniforms(1, every))[:, 0], further)


def test_a_device_gets_its_full_name() -> None:
    assert [checked_device(one) for one in ("CPU", "cuda", "CUDA:1")] == ["cpu", "cuda:0", "cuda:1"]
    wrong: Any
    for wrong in ("gpu", "cuda:", "cuda:-1", "", None, 0):
        with pytest.raises(ConfigError, match="expected"):
            checked_device(wrong)


def test_actions_are_clipped_and_those_that_are_no_numbers_are_found(arrays: Arrays) -> None:
    actions = np.array([[5.0, -5.0], [np.nan, 0.0], [0.05, np.inf], [0.01, -0.02]], np.float32)
    moves, finite = checked_actions(actions, 4, arrays)
    np.testing.assert_array_equal(to_numpy(finite), [True, False, False, True])
    expected = [[0.1, -0.1], [0, 0], [0, 0], np.array([0.01, -0.02], np.float32)]
    np.testing.assert_array_equal(to_numpy(moves), expected)
    for wrong in (np.zeros((3, 2)), np.zeros(8), [["a", "b"]] * 4, None, 1.0):
        with pytest.raises(InputError, match=r"expected numbers of shape \(4, 2\)"):
            checked_actions(wrong, 4, arrays)


def test_seeds_that_are_none_are_refused() -> None:
    seed: Any
    for seed in (-1, [1, 2], [1, -2, 3], [1, "a", 3], [True, 1, 2]):
        with pytest.raises(InputError, match="whole number of at least 0"):
            checked_seeds(seed, 3)
