"""A batch of environments as Stable-Baselines3's: the same as so many single ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from vinoreward.errors import ConfigError
from vinoreward_training.sb3 import BatchedVecEnv

RANDOM = "PandaHoverRandom-v0"


def batch(env_id: str = RANDOM, count: int = 3, **arguments: Any) -> BatchedVecEnv:
    mode = "vector_entry_point"
    return BatchedVecEnv(gym.make_vec(env_id, count, vectorization_mode=mode, **arguments))


@contextlib.contextmanager
def pair(env_id: str = RANDOM, **arguments: Any) -> Iterator[tuple[VecEnv, VecEnv]]:
    """A batch, and the oracle: single environments as SB3 steps them."""
    singles = DummyVecEnv([lambda: Monitor(gym.make(env_id, **arguments))] * 3)
    with contextlib.closing(batch(env_id, **arguments)) as one, contextlib.closing(singles):
        yield one, singles


def seeded(env: VecEnv) -> Any:
    env.seed(5)
    return env.reset()


def check_equal(found: Any, expected: Any) -> None:
    """Compare infos; seconds aside, which no two runs have in common."""
    assert {*found} == {*expected}
    for key, value in expected.items():
        if key == "episode":
            assert (found[key]["r"], found[key]["l"]) == (pytest.approx(value["r"]), value["l"])
        else:
            np.testing.assert_allclose(found[key], value, atol=1e-5)
            assert type(found[key]) is type(value) or isinstance(value, np.generic)


def check_same_step(found: Any, expected: Any) -> int:
    """Compare what two steps give; return how many episodes ended."""
    for ours, theirs in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert isinstance(ours, np.ndarray) and ours.dtype == theirs.dtype
    for ours, theirs in zip(found[3], expected[3], strict=True):
        check_equal(ours, theirs)
    return int(found[2].sum())


@pytest.mark.parametrize(
    "arguments",
    [{"backend": "oracle"}, {"backend": "openvino", "on_ood": "ignore"}],
    ids=lambda arguments: " ".join(arguments.values()),
)
def test_a_batch_steps_as_single_environments_do(arguments: dict[str, Any]) -> None:
    draw = np.random.default_rng(1)
    with pair(**arguments) as (one, singles):
        np.testing.assert_allclose(seeded(one), seeded(singles), atol=1e-5)
        ends = 0
        for _ in range(25):
            # Towards the object, so that episodes end by claims as well as by time.
            actions = draw.uniform(-0.05, 0.05, (3, 2)).astype(np.float32)
            ends += check_same_step(one.step(actions), singles.step(actions))
        assert ends >= 6


def test_a_claim_is_no_truncation_and_its_image_is_kept() -> None:
    with pair("PandaHover-v0", backend="openvino") as (one, singles):
        for env in (one, singles):
            seeded(env)
        assert one.env_method("claimed_image", indices=[1]) == [None]
        for _ in range(10):
            actions = np.tile(np.array([[0.05, -0.05]], np.float32), (3, 1))
            actions[1] = np.clip(toward(one), -0.05, 0.05)
            *_, infos = one.step(actions)
            singles.step(actions)
            if infos[1].get("is_success"):
                break
        assert infos[1]["is_success"] and infos[1]["TimeLimit.truncated"] is False
        found, expected = (
            env.env_method("claimed_image", indices=[1])[0] for env in (one, singles)
        )
        np.testing.assert_array_equal(found, expected)
        assert one.env_method("claimed_image", indices=[0]) == [None]


def toward(env: BatchedVecEnv) -> Any:
    hover = env.batch.unwrapped.scenes  # type: ignore[attr-defined]
    return (hover.objects - hover.gripper)[1]


def test_generators_are_those_of_single_environments_and_can_be_put_back() -> None:
    with pair(backend="oracle") as (one, singles):
        for env in (one, singles):
            seeded(env)
        found, expected = (env.get_attr("np_random") for env in (one, singles))
        assert [each.random() for each in found] == [each.random() for each in expected]
        states = one.get_attr("np_random")
        first = one.reset()
        assert not np.array_equal(one.reset(), first)
        for i, generator in enumerate(states):
            one.set_attr("np_random", generator, indices=[i])
        np.testing.assert_array_equal(one.reset(), first)


class Tells(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """A layer with attributes of its own, and with a classifier that shares cores."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.mark, self.classifier = 5, SimpleNamespace(busy_cores=0)
        self.seen: list[int] = []

    def step(self, actions: Any) -> Any:
        self.seen.append(self.classifier.busy_cores)
        return self.env.step(actions)

    def twice(self, index: int, number: int) -> tuple[int, int]:
        return index, 2 * number


def test_attributes_of_every_layer_are_found_the_outermost_first() -> None:
    with contextlib.closing(batch(backend="oracle")) as inner:
        inner.set_attr("mark", 7)
        tells = Tells(inner.batch)
        env = BatchedVecEnv(gym.vector.VectorWrapper(tells))
        assert env.get_attr("mark", indices=[1]) == [5]
        assert env.get_attr("randomization") == inner.get_attr("randomization")
        assert env.env_method("twice", 4, indices=[0, 2]) == [(0, 8), (2, 8)]
        assert not env.has_attr("no_such_thing") and env.env_is_wrapped(Monitor) == [False] * 3
        with pytest.raises(ConfigError, match="all environments of a batch"):
            env.set_attr("mark", 8, indices=[1])
        env.set_attr("mark", 6)
        assert (tells.mark, inner.get_attr("mark")) == (6, [7, 7, 7])
        env.reset()
        env.step(np.zeros((3, 2), np.float32))
        env.overlap_fn = lambda: None
        env.step(np.zeros((3, 2), np.float32))
        assert tells.seen == [0, 1] and tells.classifier.busy_cores == 0


def test_episodes_that_are_cut_short_are_not_counted_on() -> None:
    still = np.zeros((3, 2), np.float32)
    with contextlib.closing(batch(backend="oracle")) as env:
        env.seed(5)
        env.reset()
        for _ in range(4):
            env.step(still)
        cut = np.array([True, False, True])
        env.reset_where(cut, [5, 6, 7])
        ended: dict[int, int] = {}
        for _ in range(10):
            _, _, dones, infos = env.step(still)
            ended |= {i: infos[i]["episode"]["l"] for i in np.flatnonzero(dones).tolist()}
    assert ended == {0: 10, 1: 10, 2: 10}


def test_other_batches_are_refused() -> None:
    cartpole = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    with pytest.raises(ConfigError, match=r"CartPoleVectorEnv.*Expected same-step"):
        BatchedVecEnv(cartpole)


@pytest.mark.parametrize("observation", ["state", "pixels"])
def test_a_batch_of_tensors_gives_sb3_the_same_arrays(observation: str) -> None:
    draw = np.random.default_rng(2)
    with (
        contextlib.closing(batch(backend="oracle", observation=observation)) as one,
        contextlib.closing(batch(backend="oracle", observation=observation, array="torch")) as two,
    ):
        np.testing.assert_array_equal(seeded(two), seeded(one))
        ends = 0
        for _ in range(12):
            actions = draw.uniform(-0.05, 0.05, (3, 2)).astype(np.float32)
            ends += check_same_step(two.step(actions), one.step(actions))
        assert ends >= 3


def test_what_a_step_led_to_is_never_a_reset() -> None:
    """Also in the arrays of the batch's own kind, which a learner on its device takes."""
    for array in ("numpy", "torch"):
        with contextlib.closing(batch(backend="oracle", array=array)) as env:
            before = np.asarray(seeded(env))
            for _ in range(10):
                step = env.step_batch(np.zeros((3, 2), np.float32))
                last = np.asarray(step.last())
                np.testing.assert_array_equal(last[:, 2:], before[:, 2:])
            assert step.dones.all() and not np.asarray(step.terminated).any()
            assert (np.asarray(step.observations)[:, 2:] != before[:, 2:]).any()
            assert type(step.last()) is type(step.observations)


def test_gymnasium_s_own_vector_environment_is_taken_too() -> None:
    mode = gym.vector.AutoresetMode.SAME_STEP
    given = {"autoreset_mode": mode}
    envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", vector_kwargs=given)
    singles = DummyVecEnv([lambda: Monitor(gym.make("CartPole-v1"))] * 2)
    with contextlib.closing(BatchedVecEnv(envs)) as one, contextlib.closing(singles):
        np.testing.assert_array_equal(seeded(one), seeded(singles))
        for _ in range(40):
            check_same_step(*(env.step(np.array([1, 0])) for env in (one, singles)))
