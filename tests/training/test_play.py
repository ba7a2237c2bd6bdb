"""Playing: the counts are the policy's, the film can be looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many_runs import TOY
from PIL import Image, ImageSequence
from toy_environments import save_toy_bundle
from train_runs import Corridor

from vinoreward.errors import (
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
)
from vinoreward_training.cli import main
from vinoreward_training.configs import PlayConfig
from vinoreward_training.play.command import play
from vinoreward_training.play.film import FILM_WIDTH, Filmer
from vinoreward_training.policy.evaluate import EvalStep
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.runs.settings import Settings


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on the oracle."""
    out = tmp_path_factory.mktemp("runs") / "hover"
    small: dict[str, Any] = {"learning_starts": 20, "batch_size": 8}
    few = {"timesteps": 60, "final_episodes": 2}
    train(SETTINGS.of(out=out, backend="oracle", algorithm_kwargs=small, **few))
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
