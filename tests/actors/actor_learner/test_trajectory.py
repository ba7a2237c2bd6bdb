"""What actors send: a layout that is aligned, and values that a learner may see."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from shared_memory_children import SPEC

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.actor_learner.transport.trajectory import ARRAYS, Trajectory, TrajectorySpec


def test_the_layout_is_aligned_and_does_not_overlap() -> None:
    spec = TrajectorySpec(5, 3, (7, 2), "uint8", (2,), 4)
    end = 0
    for name, at in spec.fields().items():
        assert at.offset % 64 == 0 and at.offset >= end, name
        end = at.offset + at.nbytes
    assert tuple(spec.fields()) == ARRAYS
    assert spec.nbytes >= end and spec.nbytes % 64 == 0
    assert spec.transitions == 15
    names = tuple(field.name for field in dataclasses.fields(Trajectory))
    assert names == (*ARRAYS, "actor", "generation")
    empty = spec.empty(actor=3, generation=1)
    spec.check(empty)
    assert empty.observations.shape == empty.next_observations.shape == (5, 3, 7, 2)
    assert empty.actions.shape == (5, 3, 2) and empty.actions.dtype == np.float32
    assert (empty.actor, empty.generation) == (3, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "at least 1"),
        ({"observation_shape": (3, 0)}, "at least 1"),
        ({"observation_dtype": "float64"}, "float32 or uint8"),
        ({"action_shape": (2, 2)}, "flatten"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SPEC, **change)


def test_shapes_dtypes_and_continuous_actions_are_checked() -> None:
    spec = dataclasses.replace(SPEC, action_shape=(2,))
    good = spec.empty()
    spec.check(good)
    with pytest.raises(InputError, match=r"rewards .*float64.*Expected float32"):
        spec.check(dataclasses.replace(good, rewards=good.rewards.astype(np.float64)))
    with pytest.raises(InputError, match=r"actions .*\(16, 2, 3\).*Expected"):
        spec.check(dataclasses.replace(good, actions=np.zeros((16, 2, 3), np.float32)))
    good.actions[0, 0, 0] = 1.01
    with pytest.raises(InputError, match=r"Expected -1\.0 to 1\.0"):
        spec.check(good)
