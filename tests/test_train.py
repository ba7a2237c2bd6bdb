"""Training: repeatable, resumable, with claimed and true success side by side."""

from __future__ import annotations

import contextlib
import dataclasses
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
import tyro
import yaml
from full_disk import nearly_full_disk
from hypothesis import given
from hypothesis import strategies as st
from toy_environments import save_toy_bundle

from vinoreward.errors import (
    ConfigError,
    MissingExtraError,
    ModelCorruptError,
    ModelNotFoundError,
    RunFolderError,
    UnknownDeviceError,
)
from vinoreward_training.checkpoint import build_model, restore_checkpoint, save_checkpoint
from vinoreward_training.cli import main, named
from vinoreward_training.curves import read_table, rolling_mean
from vinoreward_training.environments import has_own_reward, make_env
from vinoreward_training.evaluate_policy import Moment, evaluate
from vinoreward_training.policy_files import save_policy
from vinoreward_training.torch_devices import check_device
from vinoreward_training.train import TrainConfig, train
from vinoreward_training.train_settings import resolve

SMALL: dict[str, Any] = {
    "learning_starts": 40,
    "batch_size": 16,
    "policy_kwargs": {"net_arch": [16]},
}


def config(out: Path, **changes: Any) -> TrainConfig:
    """A run of a second: the oracle, a tiny network."""
    settings: dict[str, Any] = {
        "backend": "oracle",
        "timesteps": 120,
        "eval_every": 50,
        "eval_episodes": 1,
        "final_episodes": 3,
        "checkpoint_every": 60,
        "algorithm_kwargs": SMALL,
        "progress": False,
    }
    return TrainConfig(out=out, **{**settings, **changes})


class Corridor(gym.Env[np.ndarray, int]):
    """Walk right three times; the claim is made one cell too early, the truth is the third."""

    observation_space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.steps = 0, 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.cell], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.cell += int(action)
        self.steps += 1
        info = {"is_success": self.cell >= 2, "true_success": self.cell == 3}
        return self.observe(), 1.0, False, self.steps == 4, info


class Walk:
    """Walks right for the first ``count`` steps of each episode."""

    def __init__(self, count: int) -> None:
        self.count = count

    def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[int, None]:
        assert deterministic
        return int(observation[0] < self.count), None


@pytest.mark.parametrize(("cells", "claimed", "true"), [(1, 0, 0), (2, 5, 0), (3, 5, 5), (4, 5, 0)])
def test_success_is_that_of_the_state_where_the_agent_stopped(
    cells: int, claimed: int, true: int
) -> None:
    found = evaluate(Walk(cells), Corridor(), 5, seed=0)
    assert found.claimed is not None
    assert found.true is not None
    assert (found.claimed.successes, found.claimed.trials) == (claimed, 5)
    assert (found.true.successes, found.true.trials) == (true, 5)
    assert found.mean_return == found.mean_length == 4.0


def test_the_interval_is_clopper_pearson() -> None:
    found = evaluate(Walk(3), Corridor(), 100, seed=0)
    assert found.true is not None
    # All of n: the lower bound is (alpha / 2) ** (1 / n).
    assert found.true.low == pytest.approx(0.025 ** (1 / 100))
    assert found.true.high == 1.0


def test_whoever_watches_sees_the_reset_and_every_step() -> None:
    seen: list[Moment] = []
    evaluate(Walk(3), Corridor(), 2, seed=0, watch=seen.append)
    assert [(m.episode, m.step, m.last) for m in seen[:5]] == [
        (0, 0, False),
        (0, 1, False),
        (0, 2, False),
        (0, 3, False),
        (0, 4, True),
    ]
    assert len(seen) == 10


def test_where_nobody_knows_the_success_none_is_reported() -> None:
    class Left:
        def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[int, None]:
            return 0, None

    env = gym.make("CartPole-v1")
    found = evaluate(Left(), env, 2, seed=0)
    env.close()
    assert found.claimed is None
    assert found.true is None


def test_no_episodes_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        evaluate(Walk(1), Corridor(), 0, seed=0)


@given(st.lists(st.floats(0, 1), max_size=30), st.integers(1, 12))
def test_rolling_mean_is_the_mean_of_the_last_values(values: list[float], window: int) -> None:
    found = rolling_mean(np.array(values, dtype=np.float64), window)
    naive = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    np.testing.assert_allclose(found, np.array(naive, dtype=np.float64), atol=1e-12)


def test_a_run_writes_what_it_promises_and_names_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump({"algorithm_kwargs": SMALL, "timesteps": 999}), encoding="utf-8"
    )
    arguments = ["--config", str(tmp_path / "c.yaml"), "--timesteps", "120", "--out", str(out)]
    arguments += ["--backend", "oracle", "--eval-every", "50", "--final-episodes", "3"]
    assert main(["train", *arguments, "--no-progress"]) == 0
    assert f"vinoreward play --run {out}" in capsys.readouterr().out
    names = "config.yaml checkpoint.pt policy.pt policy.json episodes.csv evaluations.csv"
    for name in [*names.split(), "learning_curve.png", "report.html", "summary.json"]:
        assert (out / name).stat().st_size > 0, name
    assert list((out / "logs").rglob("events.out.tfevents*"))
    episodes = read_table(out / "episodes.csv")
    assert list(episodes[0]) == ["step", "reward", "length", "claimed", "true"]
    assert sum(int(row["length"] or 0) for row in episodes) <= 120
    assert [row["step"] for row in read_table(out / "evaluations.csv")] == [50, 100, 120]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["final"]["true"]["trials"] == 3


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    texts = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(config(tmp_path / name, seed=seed))
        files = [tmp_path / name / f for f in ("episodes.csv", "evaluations.csv")]
        texts.append([file.read_text(encoding="utf-8") for file in files])
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    first, second = (torch.load(tmp_path / n / "policy.pt", weights_only=True) for n in "ab")
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
def test_sac_solves_the_task_and_stops(tmp_path: Path) -> None:
    result = train(TrainConfig(out=tmp_path / "run", backend="oracle", progress=False))
    assert result.solved_at is not None
    assert result.solved_at < 8000
    assert result.final.true is not None
    assert result.final.true.value >= 0.95
    assert result.final.true.trials == 100


@pytest.mark.parametrize("algorithm", ["TD3", "PPO", "A2C"])
def test_other_algorithms_by_name(tmp_path: Path, algorithm: str) -> None:
    small: dict[str, Any] = {"policy_kwargs": {"net_arch": [16]}}
    if algorithm == "PPO":
        small |= {"n_steps": 64, "batch_size": 32}
    if algorithm == "A2C":
        small |= {"n_steps": 8}
    if algorithm == "TD3":
        small |= {"learning_starts": 40, "action_noise": 0.1}
    changes = {"timesteps": 128, "eval_every": 64, "checkpoint_every": 64}
    first = config(tmp_path / "run", algorithm=algorithm, algorithm_kwargs=small, **changes)
    assert train(first).steps == 128
    again = TrainConfig(out=tmp_path / "run", resume=True, timesteps=192)
    assert train(again).steps == 192


def test_an_environment_without_a_learned_reward_trains_as_it_is(tmp_path: Path) -> None:
    small = {"learning_starts": 20, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}
    result = train(
        config(
            tmp_path / "run",
            env="CartPole-v1",
            algorithm="DQN",
            algorithm_kwargs=small,
            timesteps=80,
        )
    )
    assert result.solved_at is None
    assert result.final.true is None


# --- checkpoints


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


# --- resume


def test_resume_continues_the_tables_and_takes_the_recorded_configuration(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(config(out))
    before = read_table(out / "episodes.csv")
    result = train(TrainConfig(out=out, resume=True, timesteps=200, progress=False))
    assert result.steps == 200
    after = read_table(out / "episodes.csv")
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
    again = train(TrainConfig(out=out, resume=True))
    assert (out / "policy.pt").read_bytes() == policy
    assert again.final == first.final
    assert again.steps == first.steps


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train(config(tmp_path))
    before = (tmp_path / "policy.pt").read_bytes()
    with pytest.raises(ConfigError, match="--resume"):
        train(config(tmp_path))
    assert (tmp_path / "policy.pt").read_bytes() == before


def test_resuming_as_another_run_is_refused(tmp_path: Path) -> None:
    train(config(tmp_path))
    with pytest.raises(ConfigError, match="seed"):
        train(TrainConfig(out=tmp_path, resume=True, seed=5))


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
        train(TrainConfig(out=out, resume=True))
    run.kill()
    run.communicate()
    done = torch.load(out / "checkpoint.pt", weights_only=True)["num_timesteps"]
    assert done >= 50
    result = train(
        TrainConfig(out=out, resume=True, timesteps=done + 60, final_episodes=3, progress=False)
    )
    assert result.steps == done + 60
    rows = read_table(out / "episodes.csv")
    steps = [int(row["step"] or 0) for row in rows]
    assert steps == sorted(set(steps))
    assert sum(int(row["length"] or 0) for row in rows if int(row["step"] or 0) <= done) <= done


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = start(out)
    run.send_signal(signal.SIGINT)
    text, errors = run.communicate(timeout=60)
    assert run.returncode == 130, errors
    assert f"vinoreward train --resume --out {out}" in text
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


# --- settings


def test_command_line_wins_over_file_and_file_over_preset(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "timesteps: 500\neval_every: 70\nalgorithm_kwargs: {batch_size: 64, tau: 0.1}\n",
        encoding="utf-8",
    )
    found = resolve(TrainConfig(config=file, timesteps=8000, algorithm_kwargs={"batch_size": 32}))
    assert (found.timesteps, found.eval_every) == (8000, 70)
    arguments = found.algorithm_kwargs
    assert (arguments["batch_size"], arguments["tau"], arguments["gamma"]) == (32, 0.1, 0.9)


def test_what_is_named_on_the_command_line_wins_even_where_it_is_the_default(
    tmp_path: Path,
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("backend: oracle\nprogress: false\n", encoding="utf-8")
    words = ["--config", str(file), "--eval-every", "500", "--backend=openvino", "--progress"]
    config = tyro.cli(TrainConfig, args=words)
    found = resolve(dataclasses.replace(config, explicit=named(config, words)))
    assert (found.eval_every, found.backend, found.progress) == (500, "openvino", True)
    # The preset's, as it was not named.
    assert found.eval_episodes == 2
    with pytest.raises(SystemExit):
        tyro.cli(TrainConfig, args=["--explicit", "seed"], console_outputs=False)
    silent = resolve(config)
    assert (silent.eval_every, silent.backend, silent.progress) == (250, "oracle", False)


def test_the_preset_is_that_of_the_environment_and_of_sac() -> None:
    assert resolve(TrainConfig(env="PandaHoverRandom-v0")).timesteps == 20_000
    assert resolve(TrainConfig(env="vinoreward:PandaHover-v0")).algorithm_kwargs["gamma"] == 0.9
    assert resolve(TrainConfig(algorithm="TD3")).algorithm_kwargs == {}
    assert resolve(TrainConfig(env="CartPole-v1")).timesteps == 8000


@pytest.mark.parametrize(
    ("text", "message"),
    [("timestep: 5", "timestep"), ("- 1", "list"), ("a: [", "not YAML"), ("timesteps: x", "'x'")],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        resolve(TrainConfig(config=file))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timesteps": 0}, "timesteps"),
        ({"eval_every": -1}, "eval-every"),
        ({"stop_when_solved": 1.5}, "stop_when_solved"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(dataclasses.replace(TrainConfig(), **changes))


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"gone\.yaml"):
        resolve(TrainConfig(config=tmp_path / "gone.yaml"))
    with pytest.raises(ConfigError, match="SARSA"):
        train(config(tmp_path / "a", algorithm="SARSA"))
    with pytest.raises(ConfigError, match="NoSuchEnv"):
        train(config(tmp_path / "b", env="NoSuchEnv-v0"))
    with pytest.raises(ConfigError, match="batchsize"):
        train(config(tmp_path / "c", algorithm_kwargs={"batchsize": 3}))
    with pytest.raises(ConfigError, match="colour"):
        train(config(tmp_path / "d", env_kwargs={"colour": 3}))
    with pytest.raises(ConfigError, match="--bundle"):
        train(config(tmp_path / "e", env="CartPole-v1", wrap_bundle=True))


def test_a_package_is_imported_for_its_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import gymnasium\ngymnasium.register('{}-v0', entry_point='{}')\n"
    for name, point in (("Fresh", "toy_environments:Corridor"), ("Ours", "vinoreward_envs.x:Y")):
        file = tmp_path / f"package_of_{name.lower()}.py"
        file.write_text(text.format(name, point), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert not has_own_reward("package_of_fresh:Fresh-v0")
    assert has_own_reward("package_of_ours:Ours-v0")
    assert has_own_reward("vinoreward:PandaHover-v0")
    make_env("package_of_fresh:Fresh-v0").close()
    for name in ("no_such_package:Fresh-v0", "package_of_fresh:NoSuchEnv-v0", "a.b:c:Fresh-v0"):
        with pytest.raises(ConfigError, match=name):
            has_own_reward(name)


@pytest.mark.parametrize("device", ["cuda:77", "quantum", "meta", ""])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(UnknownDeviceError, match=f"'{device}'.*cpu.*--device"):
        train(config(tmp_path / "run", device=device))
    assert not (tmp_path / "run").exists()


def test_devices_that_are_there_are_taken() -> None:
    kind = torch.accelerator.current_accelerator()
    for name in ("cpu", "auto", *([kind.type] if torch.accelerator.is_available() else [])):
        check_device(name)


def test_a_bundle_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    bundle = str(save_toy_bundle(tmp_path / "toy").path)
    with pytest.raises(ConfigError, match=r"ToyCorridor-v0.*--wrap-bundle"):
        train(config(tmp_path / "run", env="ToyCorridor-v0", bundle=bundle))
    assert not (tmp_path / "run").exists()


class Lacking(Corridor):
    """Needs a package that is not installed, to be made or to be drawn."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, when: str = "made", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        if when == "made":
            self.render()

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled('run `pip install "gymnasium[drawing]"`')


gym.register("Lacking-v0", entry_point=Lacking)


@pytest.mark.parametrize("when", ["made", "drawn"])
def test_what_an_environment_lacks_is_named(tmp_path: Path, when: str) -> None:
    changes: dict[str, Any] = {"env": "Lacking-v0", "algorithm": "A2C", "algorithm_kwargs": {}}
    if when == "drawn":
        bundle = str(save_toy_bundle(tmp_path / "toy").path)
        changes |= {"backend": "openvino", "bundle": bundle, "wrap_bundle": True}
    with pytest.raises(MissingExtraError, match=r"Lacking-v0.*gymnasium\[drawing\]"):
        train(config(tmp_path / "run", env_kwargs={"when": when}, **changes))


def test_the_help_names_environments_that_work_with_what_the_extras_install() -> None:
    examples = [line.split() for line in (TrainConfig.__doc__ or "").splitlines()]
    named_there = [words for words in examples if "--env" in words]
    assert len(named_there) >= 3
    for words in named_there:
        env_id = words[words.index("--env") + 1]
        if env_id.startswith("my_package:"):
            continue
        own = {"backend": "oracle"} if has_own_reward(env_id) else {}
        drawn = "--wrap-bundle" in words
        with contextlib.closing(
            make_env(env_id, render_mode="rgb_array" if drawn else None, **own)
        ) as env:
            env.reset(seed=0)
            if drawn:
                env.render()


def test_the_rl_zoo_example_names_real_arguments() -> None:
    import inspect

    from vinoreward.wrappers.learned_reward import LearnedReward

    path = Path(__file__).parents[1] / "examples" / "rl_zoo" / "sac.yml"
    example = yaml.safe_load(path.read_text(encoding="utf-8"))
    ((name, arguments),) = example["PandaHoverRandom-v0"]["env_wrapper"][0].items()
    assert name == f"{LearnedReward.__module__}.{LearnedReward.__name__}"
    assert set(arguments) <= set(inspect.signature(LearnedReward.__init__).parameters)
    assert all(isinstance(value, bool | int | float | str) for value in arguments.values())


@pytest.mark.parametrize("env", ["PandaHover-v0", "PandaHoverRandom-v0"])
def test_the_rl_zoo_example_says_what_the_preset_says(env: str) -> None:
    path = Path(__file__).parents[1] / "examples" / "rl_zoo" / "sac.yml"
    example = yaml.safe_load(path.read_text(encoding="utf-8"))[env]
    settled = resolve(TrainConfig(env=env))
    assert example["n_timesteps"] == settled.timesteps
    assert {name: example[name] for name in settled.algorithm_kwargs} == settled.algorithm_kwargs
