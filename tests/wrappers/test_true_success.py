"""Truth by a function of the environment, alone, in vectors and through the commands."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml

from vinoreward import TrueSuccess
from vinoreward.errors import ConfigError
from vinoreward.wrappers.true_success import Truth, as_truth, claim_of
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_training.cli import main
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.data.dataset_files import read_about
from vinoreward_training.tasks.environments import make_env
from vinoreward_training.tasks.recorded import recorded_task

ENV = "MountainCarContinuous-v0"
PARKED = """
def right(env):
    return env.state[0] > -0.5


def distance(env):
    return env.state[0] - 0.45


def fails(env):
    return env.no_such_name
"""
LIFT = """
import gymnasium as gym
import numpy as np


class Lift(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}
    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.height, self.steps = float(self.np_random.uniform()), 0
        return np.array([self.height], np.float32), {}

    def step(self, action):
        self.height = float(np.clip(self.height + float(action[0]) / 3, 0.0, 1.0))
        self.steps += 1
        return np.array([self.height], np.float32), 0.0, False, self.steps >= 6, {}

    def render(self):
        return np.full((16, 16, 3), int(255 * self.height), np.uint8)


def lifted(env):
    return np.bool_(env.height > 0.7)


gym.register("LiftWithoutTruth-v0", entry_point=Lift)
"""


@pytest.fixture
def truths(tmp_path: Path) -> str:
    (tmp_path / "truths.py").write_text(PARKED)
    return str(tmp_path / "truths.py")


def test_the_truth_is_that_of_the_state_a_step_ended_in(truths: str) -> None:
    env = TrueSuccess(gym.make(ENV), f"{truths}:right")
    _, info = env.reset(seed=0)
    told = [(info["true_success"], env.unwrapped.state[0] > -0.5)]  # type: ignore[attr-defined]
    for force in [1.0] * 20 + [-1.0] * 40:
        *_, info = env.step(np.array([force], np.float32))
        told.append((info["true_success"], env.unwrapped.state[0] > -0.5))  # type: ignore[attr-defined]
    assert {said for said, _ in told} == {True, False}
    assert all(said is bool(knows) for said, knows in told)
    again = gym.make(env.spec) if env.spec is not None else env
    assert "true_success" in again.reset(seed=0)[1]


@pytest.mark.parametrize("kind", [gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv])
def test_every_environment_of_a_vector_tells(
    kind: Callable[..., gym.vector.VectorEnv[Any, Any, Any]], truths: str
) -> None:
    more = {"context": "spawn"} if kind is gym.vector.AsyncVectorEnv else {}
    made = functools.partial(TrueSuccess, gym.make(ENV), f"{truths}:right")
    envs = kind([made, functools.partial(TrueSuccess, gym.make(ENV), f"{truths}:right")], **more)
    try:
        envs.reset(seed=0)
        for _ in range(8):
            observations, *_, info = envs.step(np.array([[1.0], [-1.0]], np.float32))
        assert info["true_success"].tolist() == (observations[:, 0] > -0.5).tolist()
    finally:
        envs.close()


class Claiming(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, False, False, {"is_success": np.float32(0)}


def test_the_environments_own_success_is_no_claim_beside_it() -> None:
    env = TrueSuccess(Claiming(), lambda _: True)
    env.reset()
    info = env.step(0)[-1]
    assert info["true_success"] is True and info["original_is_success"] == 0
    assert claim_of(info) is None and Truth()(info) is True


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("distance", "truth .*distance gives .*Expected true or false"),
        ("fails", "fails with Continuous_MountainCarEnv.*no_such_name.*Expected a function"),
        ("missing", "cannot be imported.*missing.*Expected a function"),
    ],
)
def test_what_is_no_truth_is_refused(truths: str, name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        TrueSuccess(gym.make(ENV), f"{truths}:{name}").reset(seed=0)


@pytest.mark.parametrize(
    ("value", "success"),
    [
        (True, True), (np.False_, False), (np.float32(1), True), (np.array(0.0), False),
        (np.array([1]), True), (torch.tensor(True), True), (torch.zeros(1), False),
        (torch.ones((), dtype=torch.bfloat16, requires_grad=True), True),
    ],
)  # fmt: skip
def test_a_flag_of_any_library_is_read(value: Any, success: bool) -> None:
    assert as_truth(value, "it gives") is success
    assert Truth()({"succeed": value}) is success


@pytest.mark.parametrize("value", [-0.066, 0.5, 2, "yes", None, [True, True], torch.ones(2)])
def test_a_distance_or_a_list_is_no_truth(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"info\['reward_dist'\].*truth"):
        Truth("reward_dist")({"reward_dist": value})


def test_actors_and_commands_make_environments_that_tell(truths: str) -> None:
    spec = EnvironmentSpec(ENV, truth=f"{truths}:right")
    for env in (spec.make(), make_env(RewardedTask(env=ENV, truth=f"{truths}:right"))):
        assert env.reset(seed=0)[1]["true_success"] in (True, False)


def test_the_oracle_pays_the_truth_alone(truths: str) -> None:
    given: dict[str, Any] = {"env": ENV, "truth": f"{truths}:right", "backend": "oracle"}
    env = make_env(RewardedTask(**given, success_reward=7.0, step_reward=0.0))
    env.reset(seed=0)
    for _ in range(200):
        _, reward, terminated, _, info = env.step(np.array([1.0], np.float32))
        assert (reward, terminated) == ((7.0, True) if info["true_success"] else (0.0, False))
        if terminated:
            return
    raise AssertionError("it never got there")


def test_tasks_of_dm_control_tell_their_truth(tmp_path: Path) -> None:
    pytest.importorskip("shimmy")
    (tmp_path / "near.py").write_text(
        "def near(env):\n    return env.physics.mass_to_target_dist() < 1.0\n"
    )
    name, truth = "dm_control/point_mass-easy-v0", f"{tmp_path / 'near.py'}:near"
    env = make_env(RewardedTask(env=name, truth=truth))
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation) and info["true_success"] is True
    env.close()


@pytest.mark.slow
def test_a_truth_goes_from_capture_to_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lift_task.py").write_text(LIFT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    truth = ["--truth", "lift_task:lifted"]
    env = ["--env", "lift_task:LiftWithoutTruth-v0"]
    assert main(["capture", *env, *truth, "--frames", "24", "--out", "data"]) == 0

    assert recorded_task(read_about(tmp_path / "data"))["truth"] == "lift_task:lifted"
    train = ["train", "--backend", "oracle", "--timesteps", "120"]
    assert main([*train, *env, *truth, "--final-episodes", "4", "--out", "run"]) == 0
    assert "true success:" in capsys.readouterr().out
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert settings["truth"] == "lift_task:lifted"
    assert main(["play", "--run", "run", "--episodes", "3", "--film", "0"]) == 0
    assert "/3 = " in capsys.readouterr().out


def test_a_truth_that_only_a_run_names_is_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"env: {ENV}\ntruth: {tmp_path / 'evil.py'}:fn\n")
    assert main(["train", "--resume", "--out", str(run)]) == 1
    said = capsys.readouterr().err
    assert "Expected your agreement" in said and "--truth" in said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="OSMesa is for Linux")
def test_training_lives_beside_mesas_software_renderer() -> None:
    pytest.importorskip("mujoco")
    code = (
        "import ctypes.util, sys\n"
        "if ctypes.util.find_library('OSMesa') is None: sys.exit(77)\n"
        "from vinoreward_training.configs.task import RewardedTask\n"
        "from vinoreward_training.tasks.environments import make_env\n"
        "env = make_env(RewardedTask(env='Reacher-v5'))\n"
        "import mujoco, torch\n"
        "mujoco.GLContext(8, 8).make_current()\n"
        "torch.optim.Adam([torch.zeros(1, requires_grad=True)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa"},
        capture_output=True,
        text=True,
    )
    if done.returncode == 77:
        pytest.skip("OSMesa is not installed")
    assert done.returncode == 0, done.stderr
