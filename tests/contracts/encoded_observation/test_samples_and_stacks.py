"""EncodedObservation: samples follow their seeds, stacks their episodes."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_environments import Camera

from vinoreward import EncodedObservation
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward.wrappers.encoded import EncodingCore, EncodingOptions

# --- samples -------------------------------------------------------------------------------------


def run(env: gym.Env[Any, Any], *seeds: int | None) -> np.ndarray:
    seen = []
    for seed in seeds:
        seen.append(env.reset(seed=seed)[0])
        seen += [env.step(0)[0] for _ in range(2)]
    env.close()
    return np.array(seen)


def test_samples_are_the_same_for_the_same_seeds_only(bundle: Bundle) -> None:
    make = functools.partial(EncodedObservation, bundle=bundle, sample=True)
    first = run(make(Camera(), seed=4), 1, None)
    np.testing.assert_array_equal(first, run(make(Camera(), seed=4), 1, None))
    assert not np.allclose(first, run(make(Camera(), seed=5), 1, None))
    assert not np.allclose(first, run(make(Camera()), 1, None))
    np.testing.assert_array_equal(run(make(Camera()), 1, None), run(make(Camera()), 1, None))
    mean = run(EncodedObservation(Camera(), bundle), 1, None)
    assert not np.allclose(first, mean) and first.shape == mean.shape


def test_a_plain_autoencoder_has_nothing_to_sample(plain: Bundle) -> None:
    EncodedObservation(Camera(), plain).close()
    with pytest.raises(ConfigError, match="posterior"):
        EncodedObservation(Camera(), plain, sample=True)


# --- frame stacks --------------------------------------------------------------------------------


@given(
    depth=st.integers(1, 5),
    events=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=40),
)
@settings(deadline=None, max_examples=60)
def test_stacks_are_those_of_a_deque(depth: int, events: list[tuple[int, bool]]) -> None:
    core = EncodingCore.__new__(EncodingCore)
    core.options = EncodingOptions(frame_stack=depth)
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
