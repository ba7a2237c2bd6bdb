"""Playing: the counts are the policy's, the film can be looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from backend_policies import in_int8
from PIL import Image, ImageSequence
from task_runs import evaluator
from toy_environments import save_toy_bundle
from train_runs import TOY, Corridor, config

from vinoreward.errors import (
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
)
from vinoreward_actors.command.settings import SETTINGS as ACTORS
from vinoreward_actors.command.settings import recorded
from vinoreward_actors.policies import save_policy
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_actors.tasks.networks import network
from vinoreward_training.cli import main
from vinoreward_training.configs import PlayConfig
from vinoreward_training.play.command import play
from vinoreward_training.play.film import FILM_WIDTH, Filmer
from vinoreward_training.policy.evaluate import EvalStep
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.runs.run_folder import plain
from vinoreward_training.runs.settings import Settings


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on the oracle."""
    out = tmp_path_factory.mktemp("runs") / "hover"
    train(config(out, timesteps=60, final_episodes=2))
    return out


def test_a_policy_that_cheats_leads_to_its_claims_and_an_honest_one_ends_the_chain(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["play", "--run", str(trained), "--episodes", "2", "--film", "0"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "next:" not in said and "No clear sign that the policy cheats" in said
    run = tmp_path / "cheated"
    bundle = save_toy_bundle(tmp_path / "toy")
    (bundle.path / "model.safetensors").touch()  # so that it could be mended
    train(
        SETTINGS.of(
            out=run, env=TOY, bundle=str(bundle.path), success_reward=1.0, step_reward=0.0,
            timesteps=400, final_episodes=1, eval_every=1000,
        )
    )  # fmt: skip
    words = ["play", "--run", str(run), "--env", TOY, "--episodes", "30", "--film", "0"]
    assert main([*words]) == 0
    said = capsys.readouterr().out
    assert "claims that are no successes" in said
    assert f"next:   vinoreward mend --bundle {bundle.path} " in said
    assert "Where claim and truth differ" in (run / "play.html").read_text(encoding="utf-8")


def test_play_counts_films_and_reports(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film = tmp_path / "hover.gif"
    arguments = ["--run", str(trained), "--episodes", "4", "--film", "2", "--out", str(film)]
    assert main(["play", *arguments]) == 0
    text = capsys.readouterr().out
    assert "claimed success: " in text and "true success: " in text and "95 % interval" in text
    found = json.loads((trained / "play.json").read_text(encoding="utf-8"))["evaluation"]
    assert found["claimed"]["trials"] == found["true"]["trials"] == 4
    assert found["claimed"] == found["true"], "the oracle claims the truth"
    with Image.open(film) as image:
        frames = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(image)]
        times = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
    assert times.count(1000) == 2, "the last frame of an episode stays longer"
    assert 2 <= len(frames) <= 22
    assert frames[0].shape[1] == FILM_WIDTH
    assert frames[0].std() > 10, "an image, not one colour"
    page = (trained / "play.html").read_text(encoding="utf-8")
    assert "data:image/gif" in page and "0 of 4 episodes." in page


def test_a_loaded_policy_plays_as_the_one_that_was_saved_and_repeats_itself(trained: Path) -> None:
    recorded = json.loads((trained / "summary.json").read_text(encoding="utf-8"))["final"]
    again = PlayConfig(run=trained, episodes=2, film=0, seed=10_002)
    first, second = (play(again) for _ in range(2))
    assert first.evaluation == second.evaluation and first.film is None
    assert first.evaluation.mean_return == pytest.approx(recorded["mean_return"])


def test_policies_that_do_not_fit_or_are_damaged(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="train first"):
        play(PlayConfig(run=tmp_path))
    with pytest.raises(ModelCorruptError, match="does not fit"):
        play(PlayConfig(run=trained, env="PandaHoverRandom-v0", episodes=1, film=0))
    (tmp_path / "policy.json").write_bytes((trained / "policy.json").read_bytes())
    (tmp_path / "policy.pt").write_bytes(b"garbage")
    with pytest.raises(ModelCorruptError, match=r"policy\.pt"):
        play(PlayConfig(run=tmp_path, episodes=1, film=0))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("--out film.avi", "out"),
        ("--compressed", "compressed"),
    ],
)
def test_what_is_refused_before_anything_is_played(
    trained: Path, arguments: str, field: str
) -> None:
    with pytest.raises(ConfigError) as error:
        play(Settings(PlayConfig).parse(["--run", str(trained), *arguments.split()], prog="play"))
    assert error.value.field == field


class Drawn(Corridor):
    """Paints every step alike."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012

    def render(self) -> Any:
        return np.zeros((8, 12, 3), np.uint8)


def test_a_long_film_is_thinned_and_keeps_the_last_frames() -> None:
    filmer = Filmer(Drawn(), 2)
    for episode in range(3):
        for step in range(401):
            filmer(EvalStep(episode, step, 0.0, {}, step == 400))
    assert 150 <= len(filmer.frames) == len(filmer.lasts) <= 300 and sum(filmer.lasts) == 2
    assert filmer.frame_seconds == 4 / 50  # one frame in four at 50 a second


# --- what vinoreward actors wrote --------------------------------------------------------------


def run_of(folder: Path, task: str, spec: Any, **changes: Any) -> Path:
    """A run as vinoreward actors leaves one, with a policy that was never trained."""
    folder.mkdir(exist_ok=True)
    config = ACTORS.of(task=task, out=folder, **changes)
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


@pytest.mark.full
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
