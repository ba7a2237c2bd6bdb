"""Truth by a function of the environment, alone, in vectors and through the commands."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from vinoreward import TrueSuccess
from vinoreward.errors import ConfigError
from vinoreward.wrappers.true_success import Truth, as_truth, claim_of
from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.tasks.environments import make_env

ENV = "MountainCarContinuous-v0"
PARKED = """
def right(env):
    return env.state[0] > -0.5


def distance(env):
    return env.state[0] - 0.45


def fails(env):
    return env.no_such_name
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


def test_every_environment_of_a_vector_tells(truths: str) -> None:
    made = functools.partial(TrueSuccess, gym.make(ENV), f"{truths}:right")
    other = functools.partial(TrueSuccess, gym.make(ENV), f"{truths}:right")
    envs = gym.vector.AsyncVectorEnv([made, other], context="spawn")
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


def test_a_distance_or_a_list_is_no_truth() -> None:
    for value in (-0.066, 2, "yes", None, [True, True], torch.ones(2)):
        with pytest.raises(ConfigError, match=r"info\['reward_dist'\].*truth"):
            Truth("reward_dist")({"reward_dist": value})


def test_the_oracle_pays_the_truth_alone(truths: str) -> None:
    spec = EnvironmentSpec(ENV, truth=f"{truths}:right")  # as actors make it
    assert spec.make().reset(seed=0)[1]["true_success"] in (True, False)
    given: dict[str, Any] = {"env": ENV, "truth": f"{truths}:right", "backend": "oracle"}
    env = make_env(RewardedTask(**given, success_reward=7.0, step_reward=0.0))
    env.reset(seed=0)
    for _ in range(200):
        _, reward, terminated, _, info = env.step(np.array([1.0], np.float32))
        assert (reward, terminated) == ((7.0, True) if info["true_success"] else (0.0, False))
        if terminated:
            return
    raise AssertionError("it never got there")


@pytest.mark.full
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
