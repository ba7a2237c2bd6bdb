"""Code that a file names is not run unless the user agrees: a run may come from a stranger."""

from __future__ import annotations

import os
import pty
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest
import yaml
from train_runs import config

from vinoreward.errors import ConfigError
from vinoreward_actors.command.settings import SETTINGS as ACTORS
from vinoreward_actors.command.settings import recorded
from vinoreward_actors.policies import save_policy
from vinoreward_actors.policies.policy import random_policy
from vinoreward_actors.policies.spec import mlp
from vinoreward_training.cli import main
from vinoreward_training.policy.train import train
from vinoreward_training.tasks.trust import agree_to_run

PACKAGE = "package_of_a_stranger"
ENV = f"{PACKAGE}:Strange-v0"
SOURCE = """
import pathlib

import gymnasium

with (pathlib.Path(__file__).parent / "imported").open("a") as stream:
    stream.write("x")
gymnasium.register("Strange-v0", entry_point="train_runs:Corridor")
"""


class Stranger:
    """A package that notes how often its code ran."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / f"{PACKAGE}.py").write_text(SOURCE, encoding="utf-8")

    def forget(self) -> None:
        """As in another process."""
        sys.modules.pop(PACKAGE, None)
        gym.registry.pop("Strange-v0", None)
        (self.folder / "imported").unlink(missing_ok=True)

    @property
    def imported(self) -> bool:
        return (self.folder / "imported").exists()


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    folder = tmp_path_factory.mktemp("stranger")
    sys.path.insert(0, str(folder))
    yield Stranger(folder)
    sys.path.remove(str(folder))
    sys.modules.pop(PACKAGE, None)


@pytest.fixture(scope="module")
def run(stranger: Stranger, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training in the stranger's environment, half done."""
    out = tmp_path_factory.mktemp("runs") / "strange"
    few = {"timesteps": 8, "stop_when_solved": None, "algorithm": "PPO", "env": ENV}
    train(config(out, **few, algorithm_kwargs={"n_steps": 4, "batch_size": 4, "n_epochs": 1}))
    return out


@pytest.fixture(scope="module")
def actors_run(stranger: Stranger, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``vinoreward actors`` leaves of a training there."""
    out = tmp_path_factory.mktemp("runs") / "actors"
    save_policy(out, random_policy(mlp(1, 2, head="logits", hidden=(4,), value=True), 0))
    settled = ACTORS.of(task=ENV, network="1x4", out=out)
    text = yaml.safe_dump({**recorded(settled), "out": str(out)})
    (out / "config.yaml").write_text(text, encoding="utf-8")
    return out


PLAY = ("play", "--run", "{}", "--episodes", "1", "--film", "0")
RESUME = ("train", "--resume", "--out", "{}", "--timesteps")


@pytest.mark.parametrize(
    ("arguments", "agreed"),
    [(PLAY, ("--trust-run",)), ((*RESUME, "12"), ("--env", ENV))],
)
def test_a_runs_package_is_imported_only_where_the_user_agrees(
    stranger: Stranger,
    run: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    agreed: tuple[str, ...],
) -> None:
    words = [word.format(run) for word in arguments]
    stranger.forget()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert f"names {ENV} as --env" in said and "--trust-run" in said
    assert not stranger.imported
    assert main([*words, *agreed]) == 0
    assert stranger.imported


def test_a_truth_that_only_a_run_names_is_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"env: CartPole-v1\ntruth: {tmp_path / 'evil.py'}:fn\n")
    assert main(["train", "--resume", "--out", str(run)]) == 1
    said = capsys.readouterr().err
    assert "Expected your agreement" in said and "--truth" in said


def test_a_run_of_actors_likewise(
    stranger: Stranger, actors_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play = [word.format(actors_run) for word in PLAY]
    stranger.forget()
    for words in (play, ["actors", "--resume", "--out", str(actors_run)]):
        assert main(words) == 1
        assert f"names {ENV} as " in capsys.readouterr().err
    assert not stranger.imported
    # Another environment of the same spaces: the stranger's is not needed.
    assert main([*play, "--env", "no_such_package:Else-v0"]) == 1
    assert not stranger.imported
    for agreed in (["--env", ENV], ["--trust-run"]):
        stranger.forget()
        assert main([*play, *agreed]) == 0
        assert stranger.imported


def test_a_file_cannot_say_that_it_is_trusted(
    stranger: Stranger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.yaml"
    stranger.forget()
    for key, command in (("env", "train"), ("task", "actors")):
        words = [command, "--config", str(file), "--out", str(tmp_path / command)]
        file.write_text(f"{key}: {ENV}\n", encoding="utf-8")
        assert main(words) == 1
        assert f"settings.yaml names {ENV} as --{key}" in capsys.readouterr().err
        file.write_text(f"{key}: {ENV}\ntrust_run: true\n", encoding="utf-8")
        assert main(words) == 1
        assert "unknown key trust_run" in capsys.readouterr().err
    assert not stranger.imported


@pytest.mark.parametrize("answer", ["y", ""])
def test_on_a_terminal_the_user_is_asked(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as raw:
        terminal = os.fdopen(os.dup(raw.fileno()), "w", encoding="utf-8")
        with terminal, os.fdopen(os.dup(raw.fileno()), encoding="utf-8") as keyboard:
            monkeypatch.setattr(sys, "stdin", keyboard)
            monkeypatch.setattr(sys, "stderr", terminal)
            os.write(ours, f"{answer}\n".encode())
            if answer.startswith("y"):
                agree_to_run("never.imported:Id-v0", Path("run"), field="env")
            else:
                with pytest.raises(ConfigError, match="Expected your agreement"):
                    agree_to_run("never.imported:Id-v0", Path("run"), field="env")
            monkeypatch.undo()
            asked = ""
            while "[y/N]" not in asked and select.select([ours], [], [], 10)[0]:
                asked += os.read(ours, 4096).decode()
    os.close(ours)
    assert "would import never.imported and run its code. Import it? [y/N]" in asked


def test_what_needs_no_agreement() -> None:
    for name in (None, "CartPole-v1", "vinoreward:PandaHover-v0", "vinoreward_envs.x:Y-v0", "os:A"):
        agree_to_run(name, Path("run"), field="env")
    for wrong in (3, "a b:C-v0", "a:B-v0\x1b[2J"):
        with pytest.raises(ConfigError) as error:
            agree_to_run(wrong, Path("run"), field="env")
        assert error.value.field == "env"
    # A file is not ours by its name.
    for file in ("strange.py", "vinoreward.x/../strange.py", "vinoreward.py"):
        with pytest.raises(ConfigError, match="Expected your agreement"):
            agree_to_run(f"{file}:truth", Path("policy.json"), field="truth")
