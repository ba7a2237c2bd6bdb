"""EncodedObservation: stacks of latents follow their episodes."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.wrappers.encoded import EncodingCore


@given(
    depth=st.integers(1, 5),
    events=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=40),
)
@settings(deadline=None, max_examples=60)
def test_stacks_are_those_of_a_deque(depth: int, events: list[tuple[int, bool]]) -> None:
    core = EncodingCore.__new__(EncodingCore)
    core._kept = {}
    core._stacks = np.zeros((3, depth, 2), np.float32)
    naive = [deque([np.zeros(2, np.float32)] * depth, maxlen=depth) for _ in range(3)]
    for number, (index, starts) in enumerate(events):
        latent = np.array([number, -number], np.float32)
        mask, latents = np.arange(3) == index, np.tile(latent, (3, 1))
        if starts:
            core.begin(mask, latents)
            naive[index].extend([latent] * depth)
        else:
            core.push(mask, latents)
            naive[index].append(latent)
        seen = core.observations()
        np.testing.assert_array_equal(seen, [np.concatenate(one) for one in naive])
