"""Checkpoints of trainings, and runs that go on from them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from full_disk import nearly_full_disk
from stable_baselines3.common.callbacks import BaseCallback
from train_runs import SMALL, Corridor, config

from vinoreward.errors import ConfigError, ModelCorruptError, ModelNotFoundError, RunFolderError
from vinoreward.files import read_state, save_state
from vinoreward_training.cli import main
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.policy.checkpoint import (
    build_model,
    read_description,
    restore_checkpoint,
    save_checkpoint,
    save_policy,
)
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.many import make_batch

ORACLE = RewardedTask(backend="oracle")


def model_after(steps: int, seed: int = 0, **more: Any) -> Any:
    model = build_model("SAC", make_env(ORACLE), {**SMALL, **more}, seed=seed, replay_size=500)
    model.learn(steps)
    return model


def cartpole(steps: int = 0) -> Any:
    given = {"buffer_size": 100, "learning_starts": 50, "policy_kwargs": {"net_arch": [8]}}
    return build_model("DQN", gym.make("CartPole-v1"), given, seed=0).learn(steps)


def test_a_checkpoint_restores_weights_optimizers_replay_and_generators(tmp_path: Path) -> None:
    model = model_after(80)
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, model)
    expected = [torch.rand(3), np.random.rand(3), model.action_space.sample()]
    other = model_after(50, seed=9)
    restore_checkpoint(path, other)
    found = [torch.rand(3), np.random.rand(3), other.action_space.sample()]
    for one, two in zip(expected, found, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
    assert (other.num_timesteps, other.replay_buffer.size()) == (80, 80)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        one, two = (getattr(m.replay_buffer, name)[:80] for m in (model, other))
        np.testing.assert_array_equal(one, two)
    # And gradient steps on the restored state are those that the original makes.
    for each in (model, other):
        np.random.seed(0)
        torch.manual_seed(0)
        each.train(gradient_steps=3, batch_size=16)
    assert torch.equal(model.log_ent_coef, other.log_ent_coef)
    for one, two in zip(model.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_legacy_generator_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """dm_control draws from NumPy's old generators."""
    pytest.importorskip("shimmy")
    small, task = {"n_steps": 4, "batch_size": 4}, RewardedTask(env="dm_control/reacher-easy-v0")
    one, other = (build_model("PPO", make_env(task), small, seed=seed) for seed in (0, 1))
    one.learn(4)
    save_checkpoint(tmp_path / "c.pt", one)
    restore_checkpoint(tmp_path / "c.pt", other)
    (expected,), (found,) = (model.get_env().get_attr("np_random") for model in (one, other))
    assert isinstance(found, np.random.RandomState) and found is not expected
    np.testing.assert_array_equal(found.normal(size=3), expected.normal(size=3))


def test_a_full_replay_buffer_survives_in_order(tmp_path: Path) -> None:
    model = model_after(50, buffer_size=30)
    save_checkpoint(tmp_path / "c.pt", model)
    larger = model_after(0, buffer_size=100)
    restore_checkpoint(tmp_path / "c.pt", larger)
    assert (larger.replay_buffer.pos, larger.replay_buffer.full) == (30, False)
    expected = np.roll(model.replay_buffer.observations, -(50 % 30), axis=0)
    np.testing.assert_array_equal(larger.replay_buffer.observations[:30], expected)


def test_a_full_disk_is_named_and_the_last_files_stay(tmp_path: Path) -> None:
    model = model_after(50)
    save_checkpoint(tmp_path / "c.pt", model)
    save_policy(tmp_path, model, {"algorithm": "SAC", "algorithm_kwargs": SMALL})
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with nearly_full_disk():
        with pytest.raises(RunFolderError, match=r"c\.pt.*free space"):
            save_checkpoint(tmp_path / "c.pt", model)
        with pytest.raises(RunFolderError, match=r"policy\.pt.*free space"):
            save_policy(tmp_path, model, {"algorithm": "SAC", "algorithm_kwargs": SMALL})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "SAC"},
        {"num_timesteps": None},
        {"variables": {"policy": torch.zeros(1)}},
        {"parameters": {"policy.__class__": {}}},
        {"replay": {"__class__": torch.zeros(3), "rewards": torch.zeros(3)}},
        {"rng": "["},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, cartpole(20))
    restore_checkpoint(path, cartpole())
    save_state(path, {**read_state(path), **change})
    with pytest.raises(ModelCorruptError, match=r"checkpoint\.pt does not fit: .*Expected one of"):
        restore_checkpoint(path, cartpole())


def test_resume_continues_the_tables_and_takes_the_recorded_configuration(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = train(config(out))
    before = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    policy = (out / "policy.pt").read_bytes()
    # A finished run is left as it is.
    same = train(SETTINGS.of(out=out, resume=True))
    assert (same.final, same.steps) == (first.final, first.steps)
    assert (out / "policy.pt").read_bytes() == policy
    with pytest.raises(ConfigError) as error:
        train(SETTINGS.of(out=out, resume=True, seed=5))
    assert error.value.field == "seed"
    more = train(SETTINGS.of(out=out, resume=True, timesteps=200))
    assert more.steps == 200 and more.seconds > first.seconds
    after = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    assert after[: len(before)] == before
    steps = [int(row["step"] or 0) for row in after]
    assert steps == sorted(set(steps))


def test_a_solved_run_goes_on_without_its_goal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    first = train(config(out))
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    (out / "summary.json").write_text(json.dumps({**summary, "solved_at": first.steps}))
    more = {"out": out, "resume": True, "timesteps": first.steps + 60}
    assert train(SETTINGS.of(**more)).steps == first.steps
    assert "add --stop-when-solved None" in capsys.readouterr().out
    assert train(SETTINGS.of(**more, stop_when_solved=None)).steps == first.steps + 60


class Stops(BaseCallback):
    """Saves and stops between two iterations after 40 steps."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > 40:
            save_checkpoint(self.path, self.model)
            raise KeyboardInterrupt


def test_a_batch_goes_on_from_gradient_steps_that_were_due(tmp_path: Path) -> None:
    env = make_batch(1, ORACLE)
    given = {**SMALL, "learning_starts": 20, "train_freq": (1, "episode"), "gradient_steps": -1}
    model: Any = build_model("SAC", env, given, seed=0, replay_size=500)
    with pytest.raises(KeyboardInterrupt):
        model.learn(200, callback=Stops(tmp_path / "c.pt"))
    assert model.postponed > 0
    other: Any = build_model("SAC", env, given, seed=0, replay_size=500)
    restore_checkpoint(tmp_path / "c.pt", other)
    assert other.postponed == model.postponed
    other.learn(30, reset_num_timesteps=False)
    assert other.num_timesteps >= model.num_timesteps + 30
    env.close()


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    out, pipe = tmp_path / "run", subprocess.PIPE
    command = [sys.executable, "-m", "vinoreward_training.cli", "train", "--out", str(out)]
    command += ["--backend", "oracle", "--timesteps", "20000", "--eval-every", "100000"]
    command += ["--algorithm-kwargs", "learning_starts", "40", "batch_size", "16"]
    run = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    while not (out / "checkpoint.pt").exists():
        assert run.poll() is None, run.communicate()
        time.sleep(0.1)
    with pytest.raises(RunFolderError, match=f"process {run.pid}"):
        train(SETTINGS.of(out=out, resume=True))
    run.kill()
    run.communicate()
    done = torch.load(out / "checkpoint.pt", weights_only=True)["num_timesteps"]
    assert done >= 1000
    more = {"timesteps": done + 60, "final_episodes": 3}
    assert train(SETTINGS.of(out=out, resume=True, **more)).steps == done + 60
    rows = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    steps = [int(row["step"] or 0) for row in rows]
    assert steps == sorted(set(steps))
    assert sum(int(row["length"] or 0) for row in rows if int(row["step"] or 0) <= done) <= done


class Interrupted(Corridor):
    """Ctrl-C arrives in its 70th step."""

    taken = 0

    def step(self, action: int) -> Any:
        Interrupted.taken += 1
        if Interrupted.taken == 70:
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


gym.register("Interrupted-v0", entry_point=Interrupted)


def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env", "Interrupted-v0", "--backend", "oracle", "--timesteps", "500"]
    words += ["--eval-every", "1000", "--out", str(tmp_path)]
    assert main(["train", *words, "--algorithm-kwargs", "learning_starts", "40"]) == 130
    text = capsys.readouterr().out
    assert f"Continue with: vinoreward train --resume --out {tmp_path}" in text
    stopped = int(text.split("Stopped at step ")[1].split(";")[0])
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert state["num_timesteps"] == stopped == len(state["replay"]["rewards"]) == 70


def test_who_plays_a_stopped_training_is_told_the_whole_command(tmp_path: Path) -> None:
    """With the package and the file of the truth, to whose import the user agrees each time."""
    settings = {"env": "my_package:My-v0", "truth": "rules.py:fell", "algorithm": "SAC"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    more = " --env my_package:My-v0 --truth rules.py:fell"
    told = rf"continue with: vinoreward train --resume --out {tmp_path}{more}$"
    with pytest.raises(ModelNotFoundError, match=told):
        read_description(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": "data/mine"}))
    with pytest.raises(ModelNotFoundError, match="train first"):
        read_description(tmp_path)


def test_training_works_outside_the_main_thread(tmp_path: Path) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(train(config(tmp_path / "run"))))
    thread.start()
    thread.join()
    assert results[0].steps == 120
