"""Training with a batch of environments: a preset of its own, the same records, resume."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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

BATCHED: dict[str, Any] = {"vec_env": "batched", "num_envs": 8}
RANDOM = "PandaHoverRandom-v0"


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


def test_a_run_goes_on_with_its_learner(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("vec_env: batched\nlearner: sb3\n")
    for more in ({}, {"learner": "sb3"}):
        assert SETTINGS.of(out=tmp_path, resume=True, **more).learner == "sb3"
    with pytest.raises(ConfigError) as caught:
        SETTINGS.of(out=tmp_path, resume=True, learner="fused")
    assert caught.value.field == "learner"


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
