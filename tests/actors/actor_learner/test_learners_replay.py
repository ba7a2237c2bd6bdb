"""The replay of the learners: what is drawn is what was put in, and as often as it should be."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_collectors import random_trajectory

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.actor_learner.learners.replay import Replay, n_step_sums
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp

SPEC = mlp(3, 2, head="q", hidden=(4,))
IMAGES = PolicySpec(
    observation_shape=(1, 4, 4),
    layers=(Conv("conv", 1, 2, 2, 2), Flatten(), Dense("head", 8, 2)),
    head="q",
    actions=2,
    observation_dtype="uint8",
    scale=1 / 255,
)


def windows_of(trajectory, steps):
    """All windows of a trajectory by their first reward, as lists of (t, b), written plainly."""
    length, count = trajectory.rewards.shape
    found = {}
    for b in range(count):
        for t in range(length):
            rows = [t]
            while len(rows) < steps and rows[-1] + 1 < length:
                if trajectory.terminated[rows[-1], b] or trajectory.truncated[rows[-1], b]:
                    break
                rows.append(rows[-1] + 1)
            found[float(trajectory.rewards[t, b])] = (rows, b)
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(40, 70),
)
def test_windows_are_those_of_the_trajectories(seed, length, count, steps, capacity):
    random = np.random.default_rng(seed)
    replay = Replay(SPEC, capacity, seed=seed)
    known, trajectories = {}, []
    for _ in range(random.integers(1, 8)):
        trajectory = random_trajectory(SPEC, random, steps=length, count=count)
        trajectories.append(trajectory)
        replay.add(trajectory)
        for reward, (rows, b) in windows_of(trajectory, steps).items():
            known[reward] = (trajectory, rows, b)
    assert replay.size <= length * count * len(trajectories)
    drawn = replay.sample(64, steps)
    observations, following = replay.observations(drawn.slots), replay.successors(drawn.slots)
    for column in range(64):
        trajectory, rows, b = known[float(drawn.rewards[0, column])]
        for row, t in enumerate(rows):
            np.testing.assert_array_equal(observations[row, column], trajectory.observations[t, b])
            np.testing.assert_array_equal(
                following[row, column], trajectory.next_observations[t, b]
            )
            assert drawn.actions[row, column] == trajectory.actions[t, b]
            assert drawn.terminated[row, column] == trajectory.terminated[t, b]
        if len(rows) < steps:
            assert (
                drawn.ends[len(rows) - 1, column] and not drawn.ends[: len(rows) - 1, column].any()
            )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_n_step_sums_equal_the_loop(seed, steps, gamma):
    random = np.random.default_rng(seed)
    replay = Replay(SPEC, 100, seed=seed)
    trajectory = random_trajectory(SPEC, random, steps=7, count=3)
    replay.add(trajectory)
    drawn = replay.sample(32, steps)
    returns, discounts = n_step_sums(drawn.rewards, drawn, gamma)
    known = windows_of(trajectory, steps)
    following = replay.successors(drawn.slots[-1])
    for column in range(32):
        rows, b = known[float(drawn.rewards[0, column])]
        summed, discount = 0.0, 1.0
        for t in rows:
            summed += discount * trajectory.rewards[t, b]
            discount *= gamma
        # Termination does not bootstrap; truncation and the end of the data do.
        discount *= not trajectory.terminated[rows[-1], b]
        assert returns[column] == pytest.approx(summed, abs=1e-5)
        assert discounts[column] == pytest.approx(discount)
        np.testing.assert_array_equal(following[column], trajectory.next_observations[rows[-1], b])


def test_images_stay_bytes_and_are_kept_once():
    random = np.random.default_rng(0)
    replay = Replay(IMAGES, 64)
    trajectory = random_trajectory(IMAGES, random, steps=20, count=2, ends=0.0)
    assert replay.add(trajectory) == 40 and replay.size == 40
    assert replay.observations(replay.sample(4).slots).dtype == np.uint8
    # 42 places for 40 steps: a second of the same would not fit if successors were kept as well.
    assert replay.state_dict()["filled"] == 42


STACKS = PolicySpec(
    observation_shape=(4, 6, 6),
    layers=(Conv("conv", 4, 2, 2, 2), Flatten(), Dense("head", 18, 2)),
    head="q",
    actions=2,
    observation_dtype="uint8",
)


def stacked(random, *, steps, count, ends=0.3):
    """A trajectory whose observations are the last four frames, repeated at an episode's start."""
    found = random_trajectory(STACKS, random, steps=steps, count=count, ends=ends)
    frames = random.integers(0, 256, (steps + 1, count, 6, 6)).astype(np.uint8)
    over = found.terminated | found.truncated
    stack = random.integers(0, 256, (count, 4, 6, 6)).astype(np.uint8)
    for t in range(steps):
        found.observations[t] = stack
        following = np.concatenate([stack[:, 1:], frames[t, :, None]], axis=1)
        found.next_observations[t] = following
        reset = np.repeat(frames[t + 1, :, None], 4, axis=1)
        stack = np.where(over[t][:, None, None, None], reset, following)
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 3))
def test_frames_of_stacks_are_kept_once_and_nothing_is_lost(seed, length, count):
    random = np.random.default_rng(seed)
    replay, known = Replay(STACKS, 150, seed=seed), {}
    for _ in range(6):
        trajectory = stacked(random, steps=length, count=count)
        replay.add(trajectory)
        pairs = (trajectory.observations, trajectory.next_observations)
        for place in np.ndindex(length, count):
            known[float(trajectory.rewards[place])] = tuple(each[place] for each in pairs)
    drawn = replay.sample(40, 2)
    for steps in range(2):
        seen = replay.observations(drawn.slots[steps]), replay.successors(drawn.slots[steps])
        for reward, *found in zip(drawn.rewards[steps], *seen, strict=True):
            np.testing.assert_array_equal(found, known[float(reward)])
    state = replay.state_dict()
    assert state["arrays"]["observations"].shape[1:] == (6, 6)
    other = Replay(STACKS, 150)
    other.load_state_dict(state)
    np.testing.assert_array_equal(replay.observations(drawn.slots), other.observations(drawn.slots))


def test_a_hundred_thousand_atari_rows_take_less_than_800_megabytes():
    layers = (Conv("conv", 4, 2, 8, 4), Flatten(), Dense("head", 800, 2))
    spec = PolicySpec((4, 84, 84), layers, "q", 2, observation_dtype="uint8")
    replay = Replay(spec, 1000)
    trajectory = random_trajectory(spec, np.random.default_rng(0), steps=20, count=1, ends=0.0)
    trajectory.observations[:] = trajectory.next_observations[:] = 7
    for _ in range(45):
        replay.add(trajectory)
    arrays = replay.state_dict()["arrays"].values()
    assert replay.full and 100 * sum(array.numpy().nbytes for array in arrays) < 0.8e9


def test_images_that_turn_out_not_to_be_stacks_are_kept_whole():
    random = np.random.default_rng(3)
    replay = Replay(STACKS, 150)
    first = stacked(random, steps=5, count=1, ends=0.0)
    replay.add(first)
    other = random_trajectory(STACKS, random, steps=5, count=1, ends=0.0)
    replay.add(other)
    for trajectory in (first, other):
        for reward, seen in zip(
            trajectory.rewards[:, 0], trajectory.observations[:, 0], strict=True
        ):
            drawn = replay.sample(400)
            slot = drawn.slots[0][drawn.rewards[0] == reward][:1]
            np.testing.assert_array_equal(replay.observations(slot)[0], seen)


def test_the_oldest_are_overwritten():
    random = np.random.default_rng(1)
    replay = Replay(SPEC, 20)
    for number in range(10):
        trajectory = random_trajectory(SPEC, random, steps=4, count=1, ends=0.0)
        trajectory.rewards[:] = number
        replay.add(trajectory)
    drawn = replay.sample(200).rewards
    assert set(np.unique(drawn)) == {6.0, 7.0, 8.0, 9.0} and replay.size == 16


def test_a_restored_replay_draws_the_same():
    random = np.random.default_rng(4)
    replay = Replay(SPEC, 50, seed=5)
    for _ in range(9):
        replay.add(random_trajectory(SPEC, random))
        assert replay.sample(8, 2).slots.shape == (2, 8)
    stream = io.BytesIO()
    torch.save(replay.state_dict(), stream)
    stream.seek(0)
    other = Replay(SPEC, 50, seed=99)
    other.load_state_dict(torch.load(stream, weights_only=True))
    for _ in range(5):
        more = random_trajectory(SPEC, random)
        replay.add(more)
        other.add(more)
        one, two = replay.sample(16, 3), other.sample(16, 3)
        np.testing.assert_array_equal(one.slots, two.slots)
        np.testing.assert_array_equal(replay.observations(one.slots), other.observations(two.slots))


def test_what_cannot_be_kept_is_refused():
    random = np.random.default_rng(6)
    replay = Replay(SPEC, 8)
    with pytest.raises(InputError, match="empty"):
        replay.sample(1)
    with pytest.raises(InputError, match="larger replay"):
        replay.add(random_trajectory(SPEC, random, steps=9))
    with pytest.raises(InputError, match="slots"):
        replay.load_state_dict(Replay(SPEC, 9).state_dict())
    with pytest.raises(ConfigError):
        Replay(SPEC, 1)
