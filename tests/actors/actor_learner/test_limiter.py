"""Samples per insert: a limit on both sides that cannot block both."""

from hypothesis import example, given
from hypothesis import strategies as st

from vinoreward_actors.actor_learner.config import SamplesPerInsert


@st.composite
def limiters(draw):
    ratio = draw(st.sampled_from([0.1, 0.5, 1.0, 3.0, 16.0]))
    insert, sample = draw(st.integers(1, 40)), draw(st.integers(1, 256))
    return SamplesPerInsert(ratio, draw(st.integers(1, 500)), insert, sample)


@given(limiters(), st.lists(st.booleans(), min_size=200, max_size=200))
@example(SamplesPerInsert(0.1, 2, 8, 2), [False] * 200)  # both at the limit, but for rounding
def test_the_ratio_holds_and_somebody_may_always_go_on(limit, choices):
    inserts = samples = 0
    for insert_first in choices:
        may_insert = limit.can_insert(inserts, samples, limit.insert_size)
        may_sample = limit.can_sample(inserts, samples, limit.sample_size)
        assert may_insert or may_sample
        if may_insert and (insert_first or not may_sample):
            inserts += limit.insert_size
        else:
            samples += limit.sample_size
        if inserts < limit.min_size:
            assert samples == 0
        else:
            assert abs(limit.surplus(inserts, samples)) <= limit.error_buffer + 1e-9


@given(limiters())
@example(SamplesPerInsert(0.1, 1, 2, 128))  # exactly at the limit, but for rounding
def test_the_faster_side_waits_until_the_other_has_moved(limit):
    inserts = 0
    while limit.can_insert(inserts, 0, limit.insert_size):
        inserts += limit.insert_size
    assert inserts <= limit.min_size + (limit.error_buffer + 1e-9) / limit.ratio
    samples = 0
    while limit.can_sample(inserts, samples, limit.sample_size):
        samples += limit.sample_size
    assert samples > 0
    assert not limit.can_sample(inserts, samples, limit.sample_size)
    while not limit.can_sample(inserts, samples, limit.sample_size):
        assert limit.can_insert(inserts, samples, limit.insert_size)
        inserts += limit.insert_size
