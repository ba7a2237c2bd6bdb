"""The console command: exit codes, one sentence instead of a traceback; help is in packaging."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from vinoreward.errors import install_command
from vinoreward_training import doctor
from vinoreward_training.cli import commands, main


def test_usage_errors_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out
    assert main(["trian"]) == 2
    assert "trian" in capsys.readouterr().err
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("vinoreward 0.")


@pytest.mark.parametrize("name", list(commands()))
def test_every_command_has_its_configuration_and_run(name: str) -> None:
    place, kind = commands()[name]
    assert callable(importlib.import_module(place).run)
    assert dataclasses.is_dataclass(kind)


@pytest.mark.parametrize("word", ["false", "False"])
def test_false_in_a_table_is_not_a_word_that_counts_as_true(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = ["--env-kwargs", "clip_reward", word, "--learner", "double", "true"]
    given = ["actors", "--algorithm", "dqn", "--network", "1x8", *tables]
    module = importlib.import_module("vinoreward_actors.command.command")
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(module, "run", lambda config: seen.append(config) or 0)
        assert main(given) == 0
    assert seen[0].env_kwargs == {"clip_reward": False}
    assert seen[0].learner == {"double": True}
    refused = [*given[:5], "--learner", "double", "5", "--out", str(tmp_path / "run")]
    assert main(refused) == 1
    said = capsys.readouterr().err
    assert "'double': 5" in said and "Expected true or false" in said


def test_an_error_is_one_sentence_and_exit_code_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", "--run", str(tmp_path)]) == 1
    text = capsys.readouterr().err
    assert text.startswith("vinoreward play: no policy in") and "Traceback" not in text


def test_a_missing_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(config: object) -> int:
        raise ModuleNotFoundError("No module named 'torch'", name="torch.nn")

    monkeypatch.setattr(doctor, "run", run)
    assert main(["doctor"]) == 1
    assert install_command("train") in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m vinoreward_training.cli --help | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("module", "words", "out"),
    [
        ("capture.command", ["--env", "cheated_environments:Cheated-v0"], "data/cheated"),
        ("capture.command", ["--recordings", "mine/pick"], "data/pick"),
        ("capture.command", [], "data/hover"),
        ("classifier.finetune", ["--data", "data/lift"], "runs/lift"),
        ("policy.train", ["--env", "cheated_environments:Cheated-v0"], "runs/cheated-policy"),
        ("policy.train", [], "runs/hover"),
        ("reward.command", ["--data", "photos"], "runs/photos"),
        ("reward.command", ["--env", "my_robot:Lift-v0", "--out", "runs/mine"], "runs/mine"),
    ],
)
def test_a_folder_has_the_name_of_what_is_in_it(module: str, words: list[str], out: str) -> None:
    settings = importlib.import_module(f"vinoreward_training.{module}").SETTINGS
    assert settings.parse(words, prog="vinoreward").out == Path(out)
