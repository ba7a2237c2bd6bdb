"""Playing: the counts are the policy's, the film can be looked at."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence
from toy_environments import save_toy_bundle

from vinoreward.errors import (
    ConfigError,
    MissingDisplayError,
    MissingExtraError,
    ModelCorruptError,
    ModelNotFoundError,
    RunFolderError,
)
from vinoreward_training.cli import main
from vinoreward_training.configs import PlayConfig
from vinoreward_training.play.command import _report, play
from vinoreward_training.play.film import FILM_WIDTH, captioned, save_film
from vinoreward_training.policy.checkpoint import load_policy
from vinoreward_training.policy.evaluate import Evaluation, Moment, evaluate, rate
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.tasks.environments import make_env


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on the oracle."""
    out = tmp_path_factory.mktemp("runs") / "hover"
    small: dict[str, Any] = {"learning_starts": 20, "batch_size": 8}
    train(
        SETTINGS.of(
            out=out,
            backend="oracle",
            timesteps=60,
            final_episodes=2,
            algorithm_kwargs=small,
            progress=False,
        )
    )
    return out


@pytest.mark.parametrize(
    ("claimed", "true", "cheats"),
    [(23, 10, True), (27, 0, True), (98, 95, False), (10, 12, False), (86, 74, True)],
)
def test_a_policy_cheats_that_surely_claims_more_than_is_true(
    claimed: int, true: int, cheats: bool
) -> None:
    assert Evaluation(rate(claimed, 100), rate(true, 100), 0.0, 1.0).cheats is cheats
    assert not Evaluation(rate(claimed, 100), None, 0.0, 1.0).cheats


def test_a_policy_that_cheats_leads_to_its_claims_and_an_honest_one_ends_the_chain(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["play", "--run", str(trained), "--episodes", "2", "--film", "0", "--no-progress"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "next:" not in said and "No sure sign that the policy cheats" in said
    run = tmp_path / "cheated"
    bundle = save_toy_bundle(tmp_path / "toy")
    (bundle.path / "model.safetensors").touch()  # so that it could be mended
    train(
        SETTINGS.of(
            out=run, env="toy_environments:ToyCorridor-v0", wrap_bundle=True, progress=False,
            bundle=str(bundle.path), timesteps=400, final_episodes=1, eval_every=1000,
        )
    )  # fmt: skip
    words = ["play", "--run", str(run), "--env", "toy_environments:ToyCorridor-v0"]
    assert main([*words, "--episodes", "30", "--film", "0", "--no-progress"]) == 0
    said = capsys.readouterr().out
    assert "paid for claims that are no successes" in said
    assert f"next:   vinoreward mend --bundle {bundle.path} " in said and "profile" not in said


def test_play_counts_films_and_reports(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film = tmp_path / "hover.gif"
    arguments = ["--run", str(trained), "--episodes", "4", "--film", "2", "--out", str(film)]
    assert main(["play", *arguments]) == 0
    text = capsys.readouterr().out
    assert "claimed success: " in text
    assert "true success: " in text
    assert "95 % interval" in text
    found = json.loads((trained / "play.json").read_text(encoding="utf-8"))["evaluation"]
    assert found["claimed"]["trials"] == found["true"]["trials"] == 4
    assert found["claimed"] == found["true"], "the oracle claims the truth"
    with Image.open(film) as image:
        frames = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(image)]
    assert 2 <= len(frames) <= 22
    assert frames[0].shape[1] == FILM_WIDTH
    assert frames[0].std() > 10, "an image, not one colour"
    assert "data:image/gif" in (trained / "play.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"claimed": False}, {"claimed": True}], "Not known: no episode has both a claim and a"),
        ([{"true": True}], "Not known"),
        ([{"claimed": True, "true": False}, {"claimed": True}], "1 of 1 episodes, the first:"),
        ([{"claimed": True, "true": True}, {"claimed": False, "true": False}], "0 of 2 episodes."),
    ],
)
def test_claims_are_compared_where_the_truth_is_known(
    tmp_path: Path, rows: list[dict[str, object]], said: str
) -> None:
    found = Evaluation(None, None, 0.0, 1.0)
    page = _report(PlayConfig(run=tmp_path), found, rows, None).read_text(encoding="utf-8")
    assert said in page


def test_a_run_folder_with_a_link_out_of_it_is_not_played(trained: Path, tmp_path: Path) -> None:
    link = trained / "play.html"
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "page.html")
    try:
        with pytest.raises(RunFolderError, match=r"play\.html is a link to"):
            play(PlayConfig(run=trained, episodes=1, film=0, progress=False))
    finally:
        link.unlink()


def test_a_loaded_policy_acts_like_the_one_that_was_saved(trained: Path) -> None:
    recorded = json.loads((trained / "summary.json").read_text(encoding="utf-8"))["final"]
    description = json.loads((trained / "policy.json").read_text(encoding="utf-8"))
    env = make_env(description["env"], backend="oracle")
    model = load_policy(trained, env)
    found = evaluate(model, env, 2, seed=10_000)
    env.close()
    assert found.mean_return == recorded["mean_return"]


def test_the_same_seed_plays_the_same_episodes(trained: Path) -> None:
    first, second = (play(PlayConfig(run=trained, episodes=3, film=0)) for _ in range(2))
    assert first.evaluation == second.evaluation
    assert first.film is None


def test_a_policy_does_not_fit_other_spaces(trained: Path) -> None:
    with pytest.raises(ModelCorruptError, match="does not fit"):
        play(PlayConfig(run=trained, env="PandaHoverRandom-v0", episodes=1, film=0))


def test_an_edited_policy_is_refused(trained: Path, tmp_path: Path) -> None:
    for name in ("policy.pt", "policy.json"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    (tmp_path / "policy.pt").write_bytes(b"garbage")
    with pytest.raises(ModelCorruptError, match=r"policy\.pt"):
        play(PlayConfig(run=tmp_path, episodes=1, film=0))
    (tmp_path / "policy.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelCorruptError, match=r"policy\.json"):
        play(PlayConfig(run=tmp_path, episodes=1, film=0))


def test_a_folder_without_a_policy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="train first"):
        play(PlayConfig(run=tmp_path))


def test_a_window_needs_a_display(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(MissingDisplayError, match="--human"):
        play(PlayConfig(run=trained, human=True))


def test_mp4_without_ffmpeg_is_refused_before_anything_is_played(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match="imageio_ffmpeg"):
        play(PlayConfig(run=trained, out=tmp_path / "film.mp4"))
    assert not (tmp_path / "film.mp4").exists()


@pytest.mark.slow
def test_a_film_can_be_an_mp4(trained: Path, tmp_path: Path) -> None:
    import imageio.v2 as imageio

    play(PlayConfig(run=trained, episodes=1, film=1, out=tmp_path / "film.mp4"))
    with imageio.get_reader(tmp_path / "film.mp4") as film:
        assert film.get_data(0).ndim == 3


@pytest.mark.parametrize("changes", [{"episodes": 0}, {"film": -1}, {"out": Path("film.avi")}])
def test_settings_that_cannot_work(trained: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        play(PlayConfig(run=trained, **changes))


def test_captions_keep_the_image_and_differ_with_what_they_say() -> None:
    frame = np.zeros((96, 128, 3), np.uint8)
    frame[:, :64] = 200
    sheets = []
    for claimed in (False, True):
        info = {"reward_prob": 0.5}
        sheets.append(captioned(frame, Moment(0, 1, 0.0, info, False, claimed, False)))
    assert sheets[0].shape == (360 + 56, FILM_WIDTH, 3)
    assert sheets[0].dtype == np.uint8
    np.testing.assert_array_equal(sheets[0][:360], sheets[1][:360])
    assert sheets[0][180, 100].tolist() == [200, 200, 200]
    assert (sheets[0][360:] != sheets[1][360:]).any()


def test_the_last_frame_of_an_episode_stays_longer(tmp_path: Path) -> None:
    frames = [np.full((20, 30, 3), value, np.uint8) for value in (0, 90, 180)]
    path = save_film(tmp_path / "a.gif", frames, [False, True, False])
    with Image.open(path) as film:
        times = [frame.info["duration"] for frame in ImageSequence.Iterator(film)]
    assert times == [250, 1000, 250]


def test_no_frames_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no frames"):
        save_film(tmp_path / "a.gif", [], [])
    assert not list(tmp_path.iterdir())
