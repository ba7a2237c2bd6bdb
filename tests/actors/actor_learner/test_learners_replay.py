"""The replay of the learners: what is drawn is what was put in, and as often as it should be."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_collectors import random_trajectory

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.actor_learner.learners.replay import (
    PrioritizedReplay,
    Replay,
    SumTree,
    n_step_sums,
)
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
    st.sampled_from([None, PrioritizedReplay()]),
)
def test_windows_are_those_of_the_trajectories(seed, length, count, steps, capacity, priorities):
    random = np.random.default_rng(seed)
    replay = Replay(SPEC, capacity, seed=seed, priorities=priorities)
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
            assert drawn.log_mu[row, column] == trajectory.log_mu[t, b]
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


def test_the_oldest_are_overwritten():
    random = np.random.default_rng(1)
    replay = Replay(SPEC, 20)
    for number in range(10):
        trajectory = random_trajectory(SPEC, random, steps=4, count=1, ends=0.0)
        trajectory.rewards[:] = number
        replay.add(trajectory)
    drawn = replay.sample(200).rewards
    assert set(np.unique(drawn)) == {6.0, 7.0, 8.0, 9.0} and replay.size == 16


def test_draws_follow_priorities_and_weights_undo_them():
    random = np.random.default_rng(2)
    settings_ = PrioritizedReplay(alpha=0.5, beta=1.0, least=1e-9)
    replay = Replay(SPEC, 64, seed=3, priorities=settings_)
    trajectory = random_trajectory(SPEC, random, steps=4, count=1, ends=0.0)
    trajectory.rewards[:, 0] = [0, 1, 2, 3]
    replay.add(trajectory)
    errors = np.array([1.0, 4.0, 9.0, 16.0])
    for _ in range(30):
        drawn = replay.sample(16)
        replay.update_priorities(drawn, errors[drawn.rewards[0].astype(int)])
    counts, weights = np.zeros(4), np.zeros(4)
    for _ in range(200):
        drawn = replay.sample(50)
        seen = drawn.rewards[0].astype(int)
        counts += np.bincount(seen, minlength=4)
        weights[seen] = drawn.weights
    wanted = np.sqrt(errors) / np.sqrt(errors).sum()
    np.testing.assert_allclose(counts / counts.sum(), wanted, atol=0.01)
    # With beta 1 the expectation of a weighted draw is that of an even one.
    np.testing.assert_allclose(weights * wanted, np.full(4, (weights * wanted)[0]), rtol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0, 0.999))
def test_the_sum_tree_finds_what_a_running_sum_finds(values, share):
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), values)
    assert tree.total == pytest.approx(sum(values))
    if tree.total > 1e-3:
        mass = share * tree.total
        place = int(tree.find(np.array([mass]))[0])
        running = np.concatenate([[0.0], np.cumsum(values)])
        assert running[place] - 1e-6 <= mass <= running[place + 1] + 1e-6


@pytest.mark.parametrize("priorities", [None, PrioritizedReplay()])
def test_a_restored_replay_draws_the_same(priorities):
    random = np.random.default_rng(4)
    replay = Replay(SPEC, 50, seed=5, priorities=priorities)
    for _ in range(9):
        replay.add(random_trajectory(SPEC, random))
        replay.update_priorities(drawn := replay.sample(8, 2), random.standard_normal(8))
        assert drawn.slots.shape == (2, 8)
    stream = io.BytesIO()
    torch.save(replay.state_dict(), stream)
    stream.seek(0)
    other = Replay(SPEC, 50, seed=99, priorities=priorities)
    other.load_state_dict(torch.load(stream, weights_only=True))
    for _ in range(5):
        more = random_trajectory(SPEC, random)
        replay.add(more)
        other.add(more)
        one, two = replay.sample(16, 3), other.sample(16, 3)
        np.testing.assert_array_equal(one.slots, two.slots)
        np.testing.assert_array_equal(one.weights, two.weights)
        np.testing.assert_array_equal(replay.observations(one.slots), other.observations(two.slots))


def test_what_cannot_be_kept_is_refused():
    random = np.random.default_rng(6)
    replay = Replay(SPEC, 8)
    with pytest.raises(InputError, match="empty"):
        replay.sample(1)
    with pytest.raises(InputError, match="larger replay"):
        replay.add(random_trajectory(SPEC, random, steps=9))
    broken = random_trajectory(SPEC, random, steps=3, count=1, ends=0.0)
    broken.next_observations[0] += 1
    with pytest.raises(InputError, match="successors"):
        replay.add(broken)
    with pytest.raises(InputError, match="observations"):
        replay.add(random_trajectory(IMAGES, random, steps=2))
    with pytest.raises(InputError, match="slots"):
        replay.load_state_dict(Replay(SPEC, 9).state_dict())
    with pytest.raises(ConfigError):
        PrioritizedReplay(alpha=2.0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rewards", lambda rows: rows[:-1]),
        ("rewards", lambda rows: rows[:1]),  # which NumPy would repeat
        ("filled", lambda filled: filled - 1),
        ("position", lambda position: 20),
        ("priorities", lambda rows: rows[:1]),
    ],
)
def test_a_damaged_state_is_refused_before_anything_is_taken_from_it(name, change):
    replay = Replay(SPEC, 20, priorities=PrioritizedReplay())
    replay.add(random_trajectory(SPEC, np.random.default_rng(8), steps=3, count=2))
    state = replay.state_dict()
    state["arrays"] = dict(state["arrays"])
    place = state["arrays"] if name in state["arrays"] else state
    place[name] = change(place[name])
    other = Replay(SPEC, 20, priorities=PrioritizedReplay())
    with pytest.raises(InputError, match="one row for each filled slot"):
        other.load_state_dict(state)
    assert other.size == 0
