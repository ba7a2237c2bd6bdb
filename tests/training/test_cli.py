"""The console command: exit codes, one sentence instead of a traceback; help is in packaging."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from vinoreward.errors import install_command
from vinoreward_training import doctor
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.runs.settings import Settings


def test_usage_errors_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out
    assert main(["trian"]) == 2
    assert "trian" in capsys.readouterr().err
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("vinoreward 0.")


def test_false_in_a_table_is_not_a_word_that_counts_as_true() -> None:
    words = ["--env-kwargs", "a", "false", "b", "False", "c", "true", "d", "[1, 'x']"]
    found = Settings(CaptureConfig).parse(words, prog="vinoreward capture")
    assert found.env_kwargs == {"a": False, "b": False, "c": True, "d": [1, "x"]}


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
        ("classifier.finetune", ["--data", "data/lift"], "runs/lift"),
        ("policy.train", ["--env", "cheated_environments:Cheated-v0"], "runs/cheated-policy"),
        ("reward.command", ["--env", "my_robot:Lift-v0", "--out", "runs/mine"], "runs/mine"),
    ],
)
def test_a_folder_has_the_name_of_what_is_in_it(module: str, words: list[str], out: str) -> None:
    settings = importlib.import_module(f"vinoreward_training.{module}").SETTINGS
    assert settings.parse(words, prog="vinoreward").out == Path(out)
