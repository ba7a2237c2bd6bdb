"""A batch of environments as Stable-Baselines3's: the same as single ones, and trained with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from train_runs import config

from vinoreward.errors import ConfigError
from vinoreward_training.configs import PlayConfig
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.play.command import play
from vinoreward_training.policy.checkpoint import build_model
from vinoreward_training.policy.evaluate import evaluate, evaluate_batch
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table
from vinoreward_training.sb3 import BatchedVecEnv
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.many import make_batch

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


def test_gymnasium_s_own_vector_environment_is_taken_too() -> None:
    mode = gym.vector.AutoresetMode.SAME_STEP
    given = {"autoreset_mode": mode}
    envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync", vector_kwargs=given)
    singles = DummyVecEnv([lambda: Monitor(gym.make("CartPole-v1"))] * 2)
    with contextlib.closing(BatchedVecEnv(envs)) as one, contextlib.closing(singles):
        np.testing.assert_array_equal(seeded(one), seeded(singles))
        for _ in range(40):
            check_same_step(*(env.step(np.array([1, 0])) for env in (one, singles)))


# --- trainings -----------------------------------------------------------------------------------


BATCHED: dict[str, Any] = {"vec_env": "batched", "num_envs": 8}


@pytest.mark.parametrize(
    ("options", "learner", "steps", "num_envs"),
    [
        ("--vec-env batched", "fused", 10, 16),
        ("--vec-env=batched --learner None --num-envs 4", "fused", 10, 4),
        ("--vec-env batched --learner sb3", "sb3", 6, 16),
        ("--vec-env batched --device auto", "sb3", 6, 16),
        ("--vec-env batched --algorithm PPO", "sb3", None, 1024),
        ("--vec-env batched --learner skrl", "skrl", None, 1024),
        ("--vec-env batched --env PandaHoverPixels-v0", "sb3", 16, 32),
        ("", "sb3", None, 1),
    ],
)
def test_the_preset_of_a_batch_says_what_trains(
    options: str, learner: str, steps: int | None, num_envs: int
) -> None:
    """A learner that takes SAC alone, and the batch to its device, is not chosen for others."""
    settled = SETTINGS.parse(options.split(), prog="vinoreward train")
    assert (settled.learner, settled.num_envs) == (learner, num_envs)
    assert settled.algorithm_kwargs.get("gradient_steps") == steps
    assert settled.algorithm == "PPO" or "gamma" in settled.algorithm_kwargs


def test_a_batch_is_trained_recorded_and_played(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = {"env": RANDOM, "backend": "openvino", "final_episodes": 20}
    result = train(config(out, timesteps=200, stop_when_solved=None, **given, **BATCHED))
    assert result.steps == 200 and result.final.claimed is not None
    assert result.final.claimed.trials == 20, "more episodes than environments"
    episodes = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    assert len(episodes) >= 16 and {row["ood"] for row in episodes} == {0}
    claims = [row for row in episodes if row["claimed"]]
    assert claims, "random play must now and then find the object"
    assert len(list((out / "claims").rglob("*.png"))) == len(claims)
    assert len(play(PlayConfig(run=out, episodes=2, film=0)).returns) == 2


def test_a_run_that_stopped_goes_on_with_the_next_objects(tmp_path: Path) -> None:
    given = {"env": RANDOM, "stop_when_solved": None, **BATCHED}
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    # Episodes of a batch whose actions are random last ten steps or end by chance.
    train(config(whole, timesteps=160, algorithm_kwargs={"learning_starts": 200}, **given))
    train(config(halved, timesteps=80, algorithm_kwargs={"learning_starts": 200}, **given))
    train(SETTINGS.of(out=halved, resume=True, timesteps=160))
    one, two = (read_table(each / "episodes.csv", EPISODE_COLUMNS) for each in (whole, halved))
    early = [row for row in one if row["step"] <= 80]
    assert two[: len(early)] == early
    assert [row["reward"] for row in two[len(early) :]] != [row["reward"] for row in early]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": "CartPole-v1", "algorithm": "DQN"}, "no batch that pays a learned reward"),
        ({"truth": "os:getcwd"}, "found truth='os:getcwd'"),
        ({"env_kwargs": {"nonsense": 1}}, "does not take these arguments"),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_a_batch_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(config(tmp_path / "run", **{**BATCHED, **changes}))


class Nearer:
    """Goes to the object, whose place is in the observation."""

    def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[Any, Any]:
        away = np.atleast_2d(observation)
        moves = np.clip(away[:, 2:] - away[:, :2], -0.05, 0.05).astype(np.float32)
        return moves.reshape(*np.shape(observation)[:-1], 2), None


def test_an_evaluation_in_a_batch_is_that_of_the_same_episodes_one_by_one() -> None:
    task = RewardedTask(env=RANDOM)
    with (
        contextlib.closing(make_batch(3, task)) as batch,
        contextlib.closing(make_env(task)) as single,
    ):
        model = build_model("SAC", batch, {"policy_kwargs": {"net_arch": [8]}}, seed=3)
        assert isinstance(batch, BatchedVecEnv)
        told: list[int] = []
        found = evaluate_batch(model, batch, 11, seed=40, ended=told.append)
        expected = evaluate(model, single, 11, seed=40)
        near = evaluate_batch(Nearer(), batch, 11, seed=40)
        nearer = evaluate(Nearer(), single, 11, seed=40)
    assert told == sorted(told) and told[-1] == 11
    for one, two in ((found, expected), (near, nearer)):
        assert (one.claimed, one.true, one.mean_length) == (two.claimed, two.true, two.mean_length)
        assert one.mean_return == pytest.approx(two.mean_return)
    assert near.true is not None and near.true.value > 0.9  # and some end sooner than others
