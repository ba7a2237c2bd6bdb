"""vinoreward play with what vinoreward actors wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from backend_policies import in_int8
from PIL import Image
from task_runs import evaluator

from vinoreward.errors import ConfigError, ModelCorruptError, ModelNotFoundError
from vinoreward_actors.command.settings import SETTINGS, recorded
from vinoreward_actors.policies import save_policy
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.tasks.networks import network
from vinoreward_training.cli import main
from vinoreward_training.configs import PlayConfig
from vinoreward_training.play.command import play
from vinoreward_training.runs.run_folder import plain


def run_of(folder: Path, task: str, spec: Any, **changes: Any) -> Path:
    """A run as vinoreward actors leaves one, with a policy that was never trained."""
    folder.mkdir(exist_ok=True)
    config = SETTINGS.of(task=task, out=folder, **changes)
    (folder / "config.yaml").write_text(yaml.safe_dump(plain(recorded(config))))
    policy = random_policy(spec, 0).replace(version=3)
    save_policy(folder, policy)
    if spec.observation_dtype == "float32":
        small = in_int8(policy, but=(policy.spec.weighted[0].name,))
        save_policy(folder, small.replace(backend="onnxruntime"), "compressed")
    return folder


@pytest.fixture
def cartpole(tmp_path: Path) -> Path:
    options: dict[str, Any] = {"env_kwargs": {"max_steps": 30}, "backend": "numpy"}
    return run_of(tmp_path / "run", "CartPole-v0", network("CartPole-v0", "1x8"), **options)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_run_of_actors_is_played(
    cartpole: Path, capsys: pytest.CaptureFixture[str], compressed: bool
) -> None:
    arguments = ["--run", str(cartpole), "--episodes", "4", "--film", "0"]
    assert main(["play", *arguments, *["--compressed"] * compressed]) == 0
    said = capsys.readouterr().out
    assert "mean return: " in said and "(standard error)" in said
    assert "claimed success: not known" in said and "film" not in said
    found = json.loads((cartpole / "play.json").read_text())
    assert found["policy"] == {
        "task": "CartPole-v0",
        "env_kwargs": {"max_steps": 30},
        "file": "compressed.json" if compressed else "policy.json",
        "version": 3,
        "backend": "onnxruntime" if compressed else "numpy",
        "truth": None,
    }
    assert len(found["returns"]) == 4 and max(found["returns"]) <= 30
    assert "Mean return" in (cartpole / "play.html").read_text()


def test_the_truth_is_read_under_the_name_that_is_given(tmp_path: Path) -> None:
    """On the command line, or to the run."""
    task, out = "faulty_environments:NumberedTelling-v0", tmp_path / "run"

    def played(*words: str) -> Any:
        arguments = ["--run", str(out), "--episodes", "3", "--film", "0", "--env", task]
        assert main(["play", *arguments, *words]) == 0
        return json.loads((out / "play.json").read_text())["evaluation"]

    run_of(out, task, mlp(2, 2, head="logits", hidden=(8,)))
    assert played()["true"] is None
    named = played("--truth", "at_goal")
    assert named["truth_key"] == "at_goal" and named["true"]["successes"] == 1
    run_of(out, task, mlp(2, 2, head="logits", hidden=(8,)), truth="at_goal")
    assert played()["true"] == named["true"]


def test_play_and_evaluation_agree(tmp_path: Path) -> None:
    """Actions reach the task's limits also where who plays it scales them."""
    options = {"normalise_actions": False}
    spec = network("Pendulum-v1", "1x8", "d4pg")
    run = run_of(tmp_path, "Pendulum-v1", spec, env_kwargs=options, algorithm="d4pg")
    found = play(PlayConfig(run=run, episodes=3, film=0, seed=5))
    with evaluator("Pendulum-v1", {}, "openvino") as ours:
        played = ours.play(random_policy(spec, 0), range(5, 8), "openvino")
    np.testing.assert_allclose(found.returns, played.returns, rtol=1e-3)
    assert found.error == pytest.approx(played.error, rel=1e-2)
    assert found.evaluation.mean_return == pytest.approx(played.mean, rel=1e-3)


@pytest.mark.slow
def test_the_hover_scene_is_filmed_and_its_success_told(tmp_path: Path) -> None:
    pytest.importorskip("warp")
    spec = network("PandaHover-v0", "1x8", "d4pg")
    options = {"backend": "oracle"}
    run = run_of(tmp_path, "PandaHover-v0", spec, env_kwargs=options, algorithm="d4pg")
    found = play(PlayConfig(run=run, episodes=2, film=1))
    assert found.evaluation.claimed == found.evaluation.true is not None
    assert found.film is not None and not found.unfilmed
    with Image.open(found.film) as film:
        assert getattr(film, "n_frames", 1) > 1


class Dark(gym.Env[Any, Any]):
    """Knows nothing of images."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = self.steps
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


gym.register("Dark-v0", entry_point=Dark)


def test_what_cannot_be_filmed_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, "Dark-v0", network("Dark-v0", "1x8"))
    assert main(["play", "--run", str(run), "--episodes", "2"]) == 0
    said = capsys.readouterr().out
    assert "no film: " in said and not (run / "play.gif").exists()
    # The game's score, not what is learned from.
    assert "mean return:     3 ± 0" in said


def test_a_policy_without_a_run_is_played_on_the_task_that_is_named(tmp_path: Path) -> None:
    save_policy(tmp_path, random_policy(network("CartPole-v0", "1x8"), 0))
    with pytest.raises(ConfigError, match="name the task with env"):
        play(PlayConfig(run=tmp_path, film=0))
    found = play(PlayConfig(run=tmp_path, env="CartPole-v1", episodes=2, film=0))
    assert len(found.returns) == 2


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"bundle": "some"}, "env_kwargs=bundle some"),
        ({"env": "Acrobot-v1"}, "observations"),
        ({"env_kwargs": {"colour": "red"}}, "colour"),
    ],
)
def test_settings_that_do_not_go_with_it(
    cartpole: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        play(PlayConfig(run=cartpole, film=1, **changes))


def test_policies_that_are_not_there_or_damaged(cartpole: Path) -> None:
    (cartpole / "compressed.json").unlink()
    with pytest.raises(ModelNotFoundError, match="leave --compressed out"):
        play(PlayConfig(run=cartpole, compressed=True, film=0))
    (cartpole / "policy.safetensors").write_bytes(b"garbage")
    with pytest.raises(ModelCorruptError, match="belong together"):
        play(PlayConfig(run=cartpole, film=0))


@pytest.mark.slow
@pytest.mark.parametrize(("task", "package"), [("pong", "ale_py"), ("cartpole-balance", "shimmy")])
def test_the_suites_are_played(tmp_path: Path, task: str, package: str) -> None:
    pytest.importorskip(package)
    pong = task == "pong"
    name, algorithm = ("net3", "impala") if pong else ("1x8", "d4pg")
    options: dict[str, Any] = {"max_steps": 20, **({"clip_reward": True} if pong else {})}
    spec = network(task, name, algorithm)
    run = run_of(tmp_path, task, spec, env_kwargs=options, algorithm=algorithm)
    # dm_control's images need an OpenGL library, which not every machine has.
    arguments = ["--run", str(run), "--episodes", "2", "--film", str(int(pong))]
    assert main(["play", *arguments]) == 0
    found = json.loads((run / "play.json").read_text())
    assert found["policy"]["env_kwargs"] == {"max_steps": 20}
    assert found["evaluation"]["mean_length"] == 20
    assert (run / "play.gif").exists() == pong
