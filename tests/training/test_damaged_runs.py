"""Damaged files of a run end in a sentence that names them; none of them is executed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from train_runs import config

from vinoreward.errors import ConfigError, ModelCorruptError, RunFolderError, VinorewardError
from vinoreward_actors.command.run import Recorder, read_rows, read_summary
from vinoreward_actors.command.settings import SETTINGS as ACTORS
from vinoreward_training.classifier.finetune import SETTINGS as FINETUNE
from vinoreward_training.cli import main
from vinoreward_training.play.command import is_of_actors
from vinoreward_training.policy.callbacks import read_clock
from vinoreward_training.policy.checkpoint import build_model, read_description
from vinoreward_training.policy.train import SETTINGS as TRAIN
from vinoreward_training.policy.train import train
from vinoreward_training.runs.report import EPISODE_COLUMNS, read_table


@pytest.mark.parametrize(
    "text",
    ["x: [", "x: !!python/object/apply:os.getcwd []\n", "[1]", "unknown: 1\n", b"env: \xff"],
)
def test_settings_that_cannot_be_read(tmp_path: Path, text: str | bytes) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    for read in (
        lambda: TRAIN.of(config=file),
        lambda: TRAIN.of(out=tmp_path, resume=True),
        lambda: ACTORS.of(config=file),
        lambda: FINETUNE.of(out=tmp_path, resume=True),
    ):
        with pytest.raises(ConfigError, match=r"config\.yaml"):
            read()


@pytest.mark.parametrize(
    "changes",
    [
        {"env_kwargs": [1]},
        {"algorithm_kwargs": "x"},
        {"algorithm": ["DQN"]},
        {"bundle": 7},
        {"seed": "x"},
        {"frame_stack": 1.5},
        {"success_reward": "much"},
        {"timesteps": True},
        {"out": None},
    ],
)
def test_settings_of_other_types(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(changes), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{next(iter(changes))}.*Expected"):
        TRAIN.of(config=file)


DESCRIPTION: dict[str, Any] = {
    "schema_version": 1, "algorithm": "DQN", "algorithm_kwargs": {}, "env": "CartPole-v1",
    "env_kwargs": {}, "backend": "openvino", "bundle": None, "precision": "auto",
    "wrap_bundle": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 100 + "1" + "}" * 100,
        "[]",
        '"\xff"',
        '{"schema_version": 1}',
        *(
            json.dumps({**DESCRIPTION, **change})
            for change in (
                {"env": {"a": 1}},
                {"env_kwargs": [1]},
                {"algorithm_kwargs": None},
                {"truth_key": ["a"]},
                {"encoder_sha256": 5},
                {"frame_stack": "x"},
                {"bundle": 7},
                {"unknown": 1},
            )
        ),
    ],
)
def test_a_policys_description(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy may come from a stranger."""
    (tmp_path / "policy.json").write_text(json.dumps(DESCRIPTION), encoding="utf-8")
    assert read_description(tmp_path) == DESCRIPTION
    (tmp_path / "policy.json").write_text(text, encoding="latin-1")
    assert not is_of_actors(tmp_path)
    with pytest.raises(ModelCorruptError, match=r"policy\.json cannot be (read|used): .*Expected"):
        read_description(tmp_path)
    assert main(["play", "--run", str(tmp_path)]) == 1
    assert "policy.json" in capsys.readouterr().err


def test_a_pipe_is_no_description(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "policy.json")
    assert not is_of_actors(tmp_path)
    with pytest.raises(ModelCorruptError, match="no plain file"):
        read_description(tmp_path)


@pytest.mark.parametrize("arguments", [{"learning_starts": "x"}, {"policy_kwargs": {"unknown": 1}}])
def test_a_policys_arguments_of_its_algorithm(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"DQN.*Expected"):
        build_model("DQN", gym.make("CartPole-v1"), arguments, seed=0, replay_size=10)


@pytest.mark.parametrize("text", ["{}", "[", '{"final": {"claimed": 1, "true": null}}'])
def test_a_summary(tmp_path: Path, text: str) -> None:
    settings = config(tmp_path, env="CartPole-v1", algorithm="DQN", resume=True)
    (tmp_path / "config.yaml").write_text("env: CartPole-v1\nalgorithm: DQN\n", encoding="utf-8")
    (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    for read in (lambda: train(settings), lambda: read_summary(tmp_path)):
        with pytest.raises(RunFolderError, match=r"summary\.json cannot be read: .*remove"):
            read()


def test_metrics_tables_and_clocks(tmp_path: Path) -> None:
    def table() -> object:
        return read_table(tmp_path / "episodes.csv", EPISODE_COLUMNS, until=5)

    row, seconds = '{"kind": "train", "step": "x"}', '{"seconds": -1, "evaluation_seconds": 1.0}'
    for name, text, read in (
        ("metrics.jsonl", f"{row}\n{row}\n", lambda: read_rows(tmp_path)),
        ("episodes.csv", "a,b\n1,2\n", table),
        ("episodes.csv", "step,reward\nx,1\n", table),
        ("clock.json", seconds, lambda: read_clock(tmp_path)),
        ("clock.json", "{", lambda: read_clock(tmp_path)),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(VinorewardError, match=name):
            read()


def test_a_file_where_logs_or_the_run_should_be(tmp_path: Path) -> None:
    for name in ("logs", "run"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"logs cannot be made: .*remove what is in its place"):
        Recorder(tmp_path, total=10, progress=False)
    with pytest.raises(VinorewardError, match="writable folder"):
        train(config(tmp_path / "run", env="CartPole-v1", algorithm="DQN"))


def test_an_error_does_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text('"\\e[31;1mred\\e]0;title\\a": 1\n', encoding="utf-8")
    assert main(["train", "--config", str(tmp_path / "c.yaml")]) == 1
    told = capsys.readouterr().err
    assert "\\x1b[31;1mred" in told
    assert "\x1b" not in told and "\x07" not in told
