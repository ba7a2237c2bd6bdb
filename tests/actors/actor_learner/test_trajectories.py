"""Trajectories: their layout, and what must not reach a learner."""

import dataclasses

import numpy as np
import pytest

from vinoreward.errors import InputError
from vinoreward_actors.actor_learner.transport.link import Link
from vinoreward_actors.actor_learner.transport.trajectory import ARRAYS, TrajectorySpec

SPEC = TrajectorySpec(16, 2, (8,), "float32", (), 1000)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rewards", np.nan, "NaN"),
        ("behaviour", np.inf, "NaN or infinity"),
        ("log_mu", -np.inf, "NaN or infinity"),
        ("observations", np.nan, "NaN"),
        ("actions", SPEC.outputs, "Expected 0 to 999"),
        ("actions", -1, "Expected 0 to 999"),
        ("network", 2, "Expected 0 to 1"),
        ("versions", -1, "Expected 0 to inf"),
    ],
)
def test_values_a_learner_must_not_see_are_refused(name, value, message):
    link = Link(SPEC)
    trajectory = link.begin()
    getattr(trajectory, name)[3, 1] = value
    with pytest.raises(InputError, match=message):
        link.commit({"steps": 32})
    assert link.counts == {}
    getattr(trajectory, name)[3, 1] = 0
    link.commit({"steps": 32})
    assert link.counts == {"steps": 32}


def test_a_slot_has_every_array_and_its_size():
    spec = TrajectorySpec(5, 3, (7, 2), "uint8", (2,), 4)
    assert spec.layout.names == ARRAYS and spec.nbytes % 64 == 0
    assert spec.transitions == 15
    buffer = np.zeros(spec.nbytes, np.uint8)
    one = spec.view(buffer, actor=3, generation=1)
    spec.check(one)
    assert one.observations.shape == one.next_observations.shape == (5, 3, 7, 2)
    assert one.actions.shape == (5, 3, 2) and one.actions.dtype == np.float32
    assert (one.actor, one.generation) == (3, 1)
    for number, array in enumerate(one.arrays().values()):
        array[...] = number % 2
    again = spec.view(buffer)
    assert all((array == at % 2).all() for at, array in enumerate(again.arrays().values()))
    buffer.flags.writeable = False
    assert not any(array.flags.writeable for array in spec.view(buffer).arrays().values())


def test_sizes_shapes_dtypes_and_continuous_actions_are_checked():
    spec = dataclasses.replace(SPEC, action_shape=(2,))
    good = spec.empty()
    spec.check(good)
    with pytest.raises(InputError, match="the same version of vinoreward"):
        spec.view(np.zeros(spec.nbytes - 1, np.uint8))
    with pytest.raises(InputError, match=r"rewards .*float64.*Expected float32"):
        spec.check(dataclasses.replace(good, rewards=good.rewards.astype(np.float64)))
    with pytest.raises(InputError, match=r"actions .*\(16, 2, 3\).*Expected"):
        spec.check(dataclasses.replace(good, actions=np.zeros((16, 2, 3), np.float32)))
    good.actions[0, 0, 0] = 1.01
    with pytest.raises(InputError, match=r"Expected -1\.0 to 1\.0"):
        spec.check(good)
