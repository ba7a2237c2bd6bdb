"""Captures of a policy's play: who plays which episode, and what a policy's file may do."""

from __future__ import annotations

import contextlib
import csv
import ctypes.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from vinoreward.errors import ConfigError
from vinoreward_actors.policies import save_policy as save_actors_policy
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_training.capture import command as capture
from vinoreward_training.capture.policies import open_policy
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.data.dataset_files import read_about
from vinoreward_training.policy.checkpoint import save_policy

TOWARDS = """
import numpy as np

def act(observation):
    return int(observation[1] > observation[0])

def two(observation):
    return 2

def broken(observation):
    return observation["goal"]

def far(observation):
    return [3.0]
"""


class Towards(gymnasium.Env[np.ndarray, int]):
    """A walk to a goal that random play seldom reaches; the image shows place and goal."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-30, 30, (2,), np.float32)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.goal = 0, int(self.np_random.integers(8, 13))
        return self._seen(), {}

    def step(self, action: int) -> Any:
        self.at += 1 if action == 1 else -1
        return self._seen(), 0.0, False, False, {"is_success": self.at == self.goal}

    def render(self) -> Any:
        image = np.full((16, 20, 3), self.goal, np.uint8)
        image[..., 0] = 100 + self.at
        return image

    def _seen(self) -> np.ndarray:
        return np.array([self.at, self.goal], np.float32)


def named(env: type[Towards]) -> str:
    name = f"VinorewardTest{env.__name__}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=env, max_episode_steps=25)
    return name


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "towards.py"
    path.write_text(TOWARDS, encoding="utf-8")
    return path


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metadata.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def config(out: Path, policy: object, **more: Any) -> CaptureConfig:
    options: dict[str, Any] = {"env": named(Towards), "frames": 160, "seed": 3, **more}
    return CaptureConfig(out=out, policy=str(policy), **options)


def test_episodes_are_mixed_and_each_image_says_who_played(
    tmp_path: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a"
    capture.run(config(out, f"{script}:act"))
    rows = rows_of(out)
    of_episode = {row["episode"]: row["player"] for row in rows}
    assert len({(row["episode"], row["player"]) for row in rows}) == len(of_episode)
    counts = Counter(of_episode.values())
    assert set(counts) == {"random", "policy", "noisy"} and counts["noisy"] > counts["policy"]
    straight = {name: [] for name in counts}  # type: dict[str, list[bool]]
    for row in rows:
        place, goal, step = float(row["obs_0"]), float(row["obs_1"]), int(row["file"][-9:-4])
        assert (place == goal) == (row["label"] == "success")
        if row["player"] == "policy":  # it reaches the goal, and then leaves it and comes back
            assert row["to_success"] == ("" if step == 24 and place < goal else f"{goal - place:g}")
        if step < goal:
            straight[row["player"]].append(place == step + 1)
    assert all(straight["policy"]) and any(straight["noisy"]) and not all(straight["noisy"])
    about = read_about(out)
    assert about["policy"] == f"{script}:act"
    assert about["mix"] == {"random": 1.0, "policy": 1.0, "noisy": 2.0}
    said = capsys.readouterr()
    (won,) = re.findall(r"success: random 0/\d+, policy (\d+)/\1, noisy \d+/\d+", said.out)
    assert int(won) >= counts["policy"]


def test_for_progress_failures_show_the_whole_way_to_success(tmp_path: Path, script: Path) -> None:
    left = {}
    for spread in (False, True):
        out = tmp_path / str(spread)
        words = {"mix": {"policy": 1.0}, "per_episode": 1, "progress": spread}
        capture.run(config(out, f"{script}:act", **words))
        rows = [row for row in rows_of(out) if row["label"] == "failure" and row["to_success"]]
        left[spread] = np.array([int(row["to_success"]) for row in rows])
    assert (left[False] <= 5).all() and len(left[False]) > 70
    assert (left[True] > 5).sum() >= 5  # the policy comes back to the goal again and again


def test_a_seed_gives_the_same_images_of_a_policy_also_after_a_stop(
    tmp_path: Path,
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, out, policy = tmp_path / "whole", tmp_path / "stopped", f"{script}:act"
    capture.run(config(whole, policy))
    left, draw = [70], Towards.render

    def render(self: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return draw(self)

    monkeypatch.setattr(Towards, "render", render)
    words = ["--env", named(Towards), "--frames", "160", "--seed", "3", "--policy", policy]
    assert main(["capture", *words, "--out", str(out)]) == 130
    (line,) = re.findall(r"^Continue with: vinoreward (.*)$", capsys.readouterr().out, re.M)
    # A run's file runs no code that the user has not named.
    assert main(["capture", "--resume", "--out", str(out)]) == 1
    refused = capsys.readouterr().err
    assert f"names {policy} as --policy" in refused
    assert main(shlex.split(line)) == 0
    assert (out / "metadata.csv").read_text() == (whole / "metadata.csv").read_text()
    assert load_dataset(out).sha256 == load_dataset(whole).sha256
    with pytest.raises(ConfigError) as error:
        capture.SETTINGS.of(out=out, resume=True, policy=policy, mix={"policy": 1.0})
    assert error.value.field == "mix"


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("{script}:two", r"gives the action '2'. Expected one of Discrete\(2\)"),
        ("{script}:broken", r"broken fails: IndexError.*towards.py, line 11"),
        ("nowhere.zip", r"Expected a run folder, FILE.py:FUNCTION"),
    ],
)
def test_a_policy_that_cannot_play_is_refused_and_the_folder_stays_usable(
    tmp_path: Path, script: Path, policy: str, found: str
) -> None:
    out = tmp_path / "a"
    with pytest.raises(ConfigError, match=found):
        capture.run(config(out, policy.format(script=script)))
    assert capture.run(config(out, f"{script}:act", frames=8)) == 0


# --- policies in files --------------------------------------------------------------------------


def actions_in(policy: object, env_id: str) -> tuple[list[Any], list[Any]]:
    """Observations of an environment, and what ``--policy`` does there."""
    env = gymnasium.make(env_id)
    seen = [env.observation_space.sample() for _ in range(20)]
    with contextlib.ExitStack() as closing:
        act = open_policy(str(policy), env, closing)
        return seen, [act(one) for one in seen]


def test_the_documented_function_plays_a_model_of_scaled_observations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project_root: Path
) -> None:
    env = "Pendulum-v1"
    monkeypatch.chdir(tmp_path)
    scaling = VecNormalize(DummyVecEnv([lambda: gymnasium.make(env)]))
    net: dict[str, Any] = {"policy_kwargs": {"net_arch": [8]}}
    model = PPO("MlpPolicy", scaling, n_steps=16, batch_size=16, seed=1, **net).learn(16)
    model.save("policy.zip")
    scaling.save("vecnormalize.pkl")
    page = (project_root / "docs" / "datasets.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(# scaled.py.*?)```", page, flags=re.DOTALL)
    Path("scaled.py").write_text(code, encoding="utf-8")
    seen, actions = actions_in("scaled.py:act", env)
    wanted = [model.predict(scaling.normalize_obs(one), deterministic=True)[0] for one in seen]
    np.testing.assert_array_equal(np.array(actions), np.array(wanted))
    unscaled = [model.predict(one, deterministic=True)[0] for one in seen]
    assert not np.allclose(np.array(actions), np.array(unscaled))


def test_folders_of_train_and_of_actors_play(tmp_path: Path) -> None:
    model = DQN("MlpPolicy", gymnasium.make(named(Towards)), seed=1, buffer_size=10)
    described = {"algorithm": "DQN", "env": named(Towards)}
    trained, actors = tmp_path / "trained", tmp_path / "actors"
    trained.mkdir()
    save_policy(trained, model, described)
    seen, actions = actions_in(trained, named(Towards))
    wanted = [int(model.predict(one, deterministic=True)[0]) for one in seen]
    assert actions == wanted
    save_actors_policy(actors, random_policy(mlp(2, 2, head="logits", hidden=(4,)), 0))
    _, actions = actions_in(actors, named(Towards))
    assert set(actions) <= {0, 1}
    with pytest.raises(ConfigError, match=r"acts on observations of the shape \(2,\)"):
        actions_in(actors, "CartPole-v1")
    (trained / "policy.json").write_text(
        json.dumps({"schema_version": 1, **described, "encoder": "panda-hover-encoder"})
    )
    with pytest.raises(ConfigError, match="acts on latents of the encoder panda-hover-encoder"):
        actions_in(trained, named(Towards))


@pytest.mark.slow
def test_a_camera_that_depends_on_the_first_episode_is_named(tmp_path: Path) -> None:
    # The median of so many walls moves with the ball.
    maze = "[[1,1,1,1], [1,'c','c',1], [1,'c','c',1], [1,1,1,1]]"
    pytest.importorskip("mujoco")
    if ctypes.util.find_library("OSMesa") is None:
        pytest.skip("needs the Debian package libosmesa6")
    words = ["capture", "--env", "gymnasium_robotics:PointMaze_Open-v3", "--frames", "8"]
    words += ["--env-kwargs", "width", "64", "height", "64", "max_episode_steps", "60"]
    words += ["maze_map", maze, "--out", str(tmp_path / "data")]
    result = subprocess.run(
        [sys.executable, "-m", "vinoreward_training.cli", *words],
        env=os.environ | {"MUJOCO_GL": "osmesa"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "the camera looks where the first episode" in result.stdout + result.stderr
