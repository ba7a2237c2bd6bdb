"""Checkpoints of trainings, and runs that go on from them."""

from __future__ import annotations

import json
import os
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
from train_runs import SMALL, config

from vinoreward.errors import (
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
    RunFolderError,
)
from vinoreward.files import read_state, save_state
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


def model_after(steps: int, seed: int = 0) -> Any:
    env = make_env("PandaHover-v0", backend="oracle")
    model = build_model("SAC", env, SMALL, seed=seed, replay_size=500)
    model.learn(steps)
    return model


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
    assert other.num_timesteps == 80
    assert other.replay_buffer.size() == 80
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        one, two = (getattr(m.replay_buffer, name)[:80] for m in (model, other))
        np.testing.assert_array_equal(one, two)
    assert torch.equal(model.log_ent_coef, other.log_ent_coef)
    for one, two in zip(model.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(one, two)
    one, two = (m.critic.optimizer.state_dict()["state"][0]["exp_avg"] for m in (model, other))
    assert torch.equal(one, two)


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    """One gradient step on the restored state is the one the original makes."""
    model = model_after(80)
    save_checkpoint(tmp_path / "c.pt", model)
    other = model_after(45, seed=5)
    restore_checkpoint(tmp_path / "c.pt", other)
    for each in (model, other):
        # SB3 samples the replay buffer with NumPy's global generator.
        np.random.seed(0)
        torch.manual_seed(0)
        each.train(gradient_steps=3, batch_size=16)
    for one, two in zip(model.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_legacy_generator_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """dm_control draws from NumPy's old generators."""
    pytest.importorskip("shimmy")
    small = {"n_steps": 4, "batch_size": 4}
    one, other = (
        build_model("PPO", make_env("dm_control/reacher-easy-v0"), small, seed=seed)
        for seed in (0, 1)
    )
    one.learn(4)
    save_checkpoint(tmp_path / "c.pt", one)
    restore_checkpoint(tmp_path / "c.pt", other)
    (expected,), (found,) = (model.get_env().get_attr("np_random") for model in (one, other))
    assert isinstance(found, np.random.RandomState) and found is not expected
    np.testing.assert_array_equal(found.normal(size=3), expected.normal(size=3))


def test_a_full_replay_buffer_survives_in_order(tmp_path: Path) -> None:
    env = make_env("PandaHover-v0", backend="oracle")
    model = build_model("SAC", env, {**SMALL, "buffer_size": 30}, seed=0)
    model.learn(50)
    save_checkpoint(tmp_path / "c.pt", model)
    larger = build_model("SAC", env, {**SMALL, "buffer_size": 100}, seed=0)
    restore_checkpoint(tmp_path / "c.pt", larger)
    assert larger.replay_buffer is not None
    assert model.replay_buffer is not None
    assert (larger.replay_buffer.pos, larger.replay_buffer.full) == (30, False)
    expected = np.roll(model.replay_buffer.observations, -(50 % 30), axis=0)
    np.testing.assert_array_equal(larger.replay_buffer.observations[:30], expected)


def test_files_hold_no_code_to_run(tmp_path: Path) -> None:
    train(config(tmp_path / "run"))
    for name in ("checkpoint.pt", "policy.pt"):
        assert torch.load(tmp_path / "run" / name, weights_only=True)
    assert not [p for p in (tmp_path / "run").rglob("*") if p.suffix in (".pkl", ".zip")]


def test_a_full_disk_is_named_and_the_last_files_stay(tmp_path: Path) -> None:
    model = model_after(50)
    description = {"algorithm": "SAC", "algorithm_kwargs": SMALL}
    save_checkpoint(tmp_path / "c.pt", model)
    save_policy(tmp_path, model, description)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with nearly_full_disk():
        with pytest.raises(RunFolderError, match=r"c\.pt.*free space"):
            save_checkpoint(tmp_path / "c.pt", model)
        with pytest.raises(RunFolderError, match=r"policy\.pt.*free space"):
            save_policy(tmp_path, model, description)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut off"])
def test_a_corrupt_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    with pytest.raises(ModelCorruptError, match=r"checkpoint\.pt"):
        restore_checkpoint(path, model_after(1))


def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c.pt", model_after(1))
    env = make_env("PandaHover-v0", backend="oracle")
    with pytest.raises(ModelCorruptError, match="SAC"):
        restore_checkpoint(tmp_path / "c.pt", build_model("A2C", env, {}, seed=0))


def test_resume_continues_the_tables_and_takes_the_recorded_configuration(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(config(out))
    before = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    result = train(SETTINGS.of(out=out, resume=True, timesteps=200, progress=False))
    assert result.steps == 200
    after = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    assert after[: len(before)] == before
    steps = [int(row["step"] or 0) for row in after]
    assert steps == sorted(set(steps))
    recorded = yaml.safe_load((out / "config.yaml").read_text(encoding="utf-8"))
    assert recorded["algorithm_kwargs"]["batch_size"] == 16
    assert recorded["timesteps"] == 200


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = train(config(out))
    policy = (out / "policy.pt").read_bytes()
    again = train(SETTINGS.of(out=out, resume=True))
    assert (out / "policy.pt").read_bytes() == policy
    assert again.final == first.final
    assert again.steps == first.steps


@pytest.mark.parametrize(
    ("part", "value"),
    [("parameters", float("nan")), ("variables", float("inf")), ("replay", float("-inf"))],
)
def test_a_checkpoint_that_can_learn_no_more_is_refused(
    tmp_path: Path, part: str, value: float
) -> None:
    model = model_after(60)
    save_checkpoint(tmp_path / "c.pt", model)
    state = read_state(tmp_path / "c.pt")
    table = state[part]["policy"] if part == "parameters" else state[part]
    name = next(name for name, values in table.items() if values.is_floating_point())
    table[name].view(-1)[-1] = value
    save_state(tmp_path / "c.pt", state)
    with pytest.raises(ModelCorruptError, match=rf"{part} .*NaN or infinity"):
        restore_checkpoint(tmp_path / "c.pt", model_after(5))


def test_an_optimiser_that_can_learn_no_more_is_refused(tmp_path: Path) -> None:
    """Its settings are a list of tables, with pairs in them."""
    model = model_after(60)
    save_checkpoint(tmp_path / "c.pt", model)
    state = read_state(tmp_path / "c.pt")
    (group,) = state["parameters"]["actor.optimizer"]["param_groups"]
    group["betas"] = (torch.tensor(0.9), torch.tensor(float("inf")))
    save_state(tmp_path / "c.pt", state)
    with pytest.raises(ModelCorruptError, match=r"param_groups betas' hold NaN or infinity"):
        restore_checkpoint(tmp_path / "c.pt", model)


def test_a_replay_of_other_actions_is_refused(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1")
    given = {"learning_starts": 50, "policy_kwargs": {"net_arch": [8]}}  # plays at random
    model = build_model("DQN", env, given, seed=0, replay_size=50)
    model.learn(20)
    save_checkpoint(tmp_path / "c.pt", model)
    restore_checkpoint(tmp_path / "c.pt", model)
    for action in (-1, 2):
        state = read_state(tmp_path / "c.pt")
        state["replay"]["actions"][3] = action
        save_state(tmp_path / "other.pt", state)
        with pytest.raises(ModelCorruptError, match=r"actions that are not of Discrete\(2"):
            restore_checkpoint(tmp_path / "other.pt", model)


def test_a_solved_run_goes_on_without_its_goal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    first = train(config(out))
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    (out / "summary.json").write_text(json.dumps({**summary, "solved_at": first.steps}))
    more = {"out": out, "resume": True, "progress": False, "timesteps": first.steps + 60}
    assert train(SETTINGS.of(**more)).steps == first.steps
    assert "add --stop-when-solved None" in capsys.readouterr().out
    assert train(SETTINGS.of(**more, stop_when_solved=None)).steps == first.steps + 60


@pytest.mark.parametrize("train_freq", [1, (1, "episode")])
def test_a_batch_goes_on_from_gradient_steps_that_were_due(tmp_path: Path, train_freq: Any) -> None:
    """They need the replay; an episode may leave more of them than any number of steps."""
    env = make_batch(1, "PandaHover-v0", backend="oracle")
    given = {**SMALL, "learning_starts": 20, "train_freq": train_freq, "gradient_steps": -1}

    class Stops(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps > 40:
                save_checkpoint(tmp_path / "c.pt", self.model)
                raise KeyboardInterrupt

    model: Any = build_model("SAC", env, given, seed=0, replay_size=500)
    with pytest.raises(KeyboardInterrupt):
        model.learn(200, callback=Stops())
    assert model.postponed > 0
    other: Any = build_model("SAC", env, given, seed=0, replay_size=500)
    restore_checkpoint(tmp_path / "c.pt", other)
    assert other.postponed == model.postponed
    other.learn(30, reset_num_timesteps=False)
    assert other.num_timesteps >= model.num_timesteps + 30
    env.close()


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train(config(tmp_path))
    before = (tmp_path / "policy.pt").read_bytes()
    with pytest.raises(ConfigError, match="--resume"):
        train(config(tmp_path))
    assert (tmp_path / "policy.pt").read_bytes() == before


def test_resuming_as_another_run_is_refused(tmp_path: Path) -> None:
    train(config(tmp_path))
    with pytest.raises(ConfigError, match="seed"):
        train(SETTINGS.of(out=tmp_path, resume=True, seed=5))


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    """A long run in a process of its own; returns when its first checkpoint is there."""
    small = ["learning_starts", "40", "batch_size", "16"]
    command = [sys.executable, "-m", "vinoreward_training.cli", "train", "--out", str(out)]
    command += ["--backend", "oracle", "--timesteps", "100000", "--checkpoint-every", "50"]
    command += ["--eval-every", "100000", "--no-progress", "--algorithm-kwargs", *small, *more]
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    for _ in range(1200):
        if (out / "checkpoint.pt").exists() or run.poll() is not None:
            break
        time.sleep(0.1)
    assert run.poll() is None, run.communicate()
    assert (out / "checkpoint.pt").exists()
    return run


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = start(out)
    with pytest.raises(RunFolderError, match=f"process {run.pid}"):
        train(SETTINGS.of(out=out, resume=True))
    run.kill()
    run.communicate()
    done = torch.load(out / "checkpoint.pt", weights_only=True)["num_timesteps"]
    assert done >= 50
    result = train(
        SETTINGS.of(out=out, resume=True, timesteps=done + 60, final_episodes=3, progress=False)
    )
    assert result.steps == done + 60
    rows = read_table(out / "episodes.csv", EPISODE_COLUMNS)
    steps = [int(row["step"] or 0) for row in rows]
    assert steps == sorted(set(steps))
    assert sum(int(row["length"] or 0) for row in rows if int(row["step"] or 0) <= done) <= done


def test_who_plays_a_stopped_training_is_told_the_whole_command(tmp_path: Path) -> None:
    """With the package and the file of the truth, to whose import the user agrees each time."""
    (tmp_path / "checkpoint.pt").touch()
    settings = {"env": "my_package:My-v0", "truth": "rules.py:fell"}
    told = rf"vinoreward train --resume --out {tmp_path}"
    for text, more in (
        (yaml.safe_dump(settings), " --env my_package:My-v0 --truth rules.py:fell"),
        (yaml.safe_dump({"env": "Pendulum-v1", "truth": None}), ""),
        ('env: [1, 2]\ntruth: "a:\\e[31m"\n', ""),  # no environment; nothing for a terminal
        ("{", ""),
    ):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ModelNotFoundError, match=f"continue with: {told}{more}$"):
            read_description(tmp_path)
    # A first checkpoint takes a while; what only other commands wrote goes on with none of this.
    (tmp_path / "checkpoint.pt").unlink()
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"env": "Pendulum-v1", "algorithm": "SAC"})
    )
    with pytest.raises(ModelNotFoundError, match=f"continue with: {told}$"):
        read_description(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": "data/mine"}))
    with pytest.raises(ModelNotFoundError, match="train first"):
        read_description(tmp_path)


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = start(out)
    run.send_signal(signal.SIGINT)
    text, errors = run.communicate(timeout=60)
    assert run.returncode == 130, errors
    assert f"Continue with: vinoreward train --resume --out {out}" in text
    stopped = int(text.split("Stopped at step ")[1].split(";")[0])
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    assert state["num_timesteps"] == stopped
    assert len(state["replay"]["rewards"]) == stopped


def test_training_works_outside_the_main_thread(tmp_path: Path) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(train(config(tmp_path / "run"))))
    thread.start()
    thread.join()
    assert results[0].steps == 120


@pytest.mark.parametrize(
    "change",
    [
        {"counters": {"tensorboard_log": 5}},
        {"counters": {"__class__": 5}},
        {"counters": {"_n_updates": "many"}},
        {"counters": {"_n_updates": -1}},
        {"counters": [1]},
        {"num_timesteps": None},
        {"variables": {"policy": torch.zeros(1)}},
        {"parameters": {"policy.__class__": {}}},
        {"replay": {"__class__": torch.zeros(3), "rewards": torch.zeros(3)}},
        {"rng": "[" * 3000},
        {"torch_rng": torch.zeros(2)},
    ],
)
def test_a_checkpoint_sets_counters_and_tensors_and_nothing_else(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    def model() -> Any:
        return build_model("DQN", gym.make("CartPole-v1"), {"buffer_size": 100}, seed=0)

    save_checkpoint(tmp_path / "checkpoint.pt", model())
    restore_checkpoint(tmp_path / "checkpoint.pt", model())
    state = read_state(tmp_path / "checkpoint.pt")
    save_state(tmp_path / "checkpoint.pt", {**state, **change})
    resumed = model()
    with pytest.raises(ModelCorruptError, match=r"checkpoint\.pt does not fit: .*Expected one of"):
        restore_checkpoint(tmp_path / "checkpoint.pt", resumed)
    assert resumed.tensorboard_log is None
