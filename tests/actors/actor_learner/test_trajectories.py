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


def test_the_layout_is_aligned_and_does_not_overlap():
    spec = TrajectorySpec(5, 3, (7, 2), "uint8", (2,), 4)
    end = 0
    for name, at in spec.fields().items():
        assert at.offset % 64 == 0 and at.offset >= end, name
        end = at.offset + at.nbytes
    assert tuple(spec.fields()) == ARRAYS
    assert spec.nbytes >= end and spec.nbytes % 64 == 0
    assert spec.transitions == 15
    empty = spec.empty(actor=3, generation=1)
    spec.check(empty)
    assert empty.observations.shape == empty.next_observations.shape == (5, 3, 7, 2)
    assert empty.actions.shape == (5, 3, 2) and empty.actions.dtype == np.float32
    assert (empty.actor, empty.generation) == (3, 1)


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
