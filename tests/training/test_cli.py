"""The console command, and files of a run that are damaged: one sentence says what is wrong."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from train_runs import config

from vinoreward.errors import ConfigError, ModelCorruptError, RunFolderError, install_command
from vinoreward_actors.command.run import read_rows, read_summary
from vinoreward_actors.command.settings import SETTINGS as ACTORS
from vinoreward_training import doctor
from vinoreward_training.classifier.finetune import SETTINGS as FINETUNE
from vinoreward_training.cli import main
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.policy.checkpoint import read_description
from vinoreward_training.policy.train import SETTINGS as TRAIN
from vinoreward_training.policy.train import train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table
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


# --- files that are damaged, or name what cannot be ----------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "env_kwargs: {a: " + "[" * 3000 + "]" * 3000 + "}\n",
        "env_kwargs: {a: 2026-11-22}\n",
        "x: !!python/object/apply:os.getcwd []\n",
        "env: \xff\ud800\n",
    ],
)
def test_a_file_of_settings_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    """Such as one of ``--config`` that somebody else wrote."""
    file = tmp_path / "config.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    for read in (
        lambda: TRAIN.of(config=file),
        lambda: TRAIN.of(out=tmp_path, resume=True),
        lambda: ACTORS.of(config=file),
        lambda: FINETUNE.of(out=tmp_path, resume=True),
    ):
        with pytest.raises(ConfigError):
            read()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"schema_version": 2}',
        '{"schema_version": 1, "env": {"a": 1}}',
        '{"schema_version": 1, "unknown": 1}',
    ],
    ids=lambda text: text[:30],
)
def test_a_policys_description(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.json").write_text(json.dumps({"schema_version": 1, "env": "CartPole-v1"}))
    assert read_description(tmp_path).env == "CartPole-v1"
    (tmp_path / "policy.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelCorruptError, match=r"policy\.json cannot be read: .*Expected"):
        read_description(tmp_path)
    assert main(["play", "--run", str(tmp_path)]) == 1
    assert "policy.json" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{}", "[", '{"final": {"claimed": 1, "true": null}}'])
def test_a_summary(tmp_path: Path, text: str) -> None:
    settings = config(tmp_path, env="CartPole-v1", backend="openvino", resume=True)
    (tmp_path / "config.yaml").write_text("env: CartPole-v1\nalgorithm: DQN\n", encoding="utf-8")
    (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"summary\.json cannot be read: .*remove"):
        train(settings)
    with pytest.raises(RunFolderError, match=r"summary\.json cannot be read: .*remove it"):
        read_summary(tmp_path)


def test_other_tables_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": "x"}\n{}\n')
    with pytest.raises(RunFolderError, match=r"line 1 of .*metrics\.jsonl is not a row"):
        read_rows(tmp_path)
    for table in ("a,b\n1,2\n", "step,reward\n1\n", "step,reward\nx,1\n", "step,reward\n\0,1\n"):
        (tmp_path / "episodes.csv").write_text(table, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"episodes\.csv cannot be read as a table"):
            read_table(tmp_path / "episodes.csv", EPISODE_COLUMNS, until=5)


def test_an_error_does_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text('"\\e[31;1mred\\e]0;title\\a": 1\n', encoding="utf-8")
    assert main(["train", "--config", str(tmp_path / "c.yaml")]) == 1
    told = capsys.readouterr().err
    assert "\\x1b[31;1mred" in told
    assert "\x1b" not in told and "\x07" not in told
