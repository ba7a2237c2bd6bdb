"""Trajectories: their layout, and what must not reach a learner."""

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
    spec.check_finite(one)
    assert one.observations.shape == one.next_observations.shape == (5, 3, 7, 2)
    assert one.actions.shape == (5, 3, 2) and one.actions.dtype == np.float32
    assert (one.actor, one.generation) == (3, 1)
    for number, array in enumerate(one.arrays().values()):
        array[...] = number % 2
    again = spec.view(buffer)
    assert all((array == at % 2).all() for at, array in enumerate(again.arrays().values()))
    buffer.flags.writeable = False
    assert not any(array.flags.writeable for array in spec.view(buffer).arrays().values())


def test_a_buffer_of_another_size_is_refused():
    with pytest.raises(InputError, match="the same version of vinoreward"):
        SPEC.view(np.zeros(SPEC.nbytes - 1, np.uint8))
