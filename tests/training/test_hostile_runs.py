"""A run folder from a stranger may hold anything: one sentence says what is wrong with it."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import yaml
from train_runs import config

from vinoreward.errors import (
    ConfigError,
    ModelCorruptError,
    RunFolderError,
    VinorewardError,
)
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

BOMB = "env_kwargs:\n  a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)
HOSTILE = [
    (BOMB, r"has an alias"),
    ("env_kwargs: &a\n  b: *a\n", "has an alias"),
    ("env_kwargs: &a [*a]\n", "has an alias"),
    ("env_kwargs: {a: " + "[" * 3000 + "]" * 3000 + "}\n", "nested too deeply"),
    ("env_kwargs: " + "{a: " * 40 + "1" + "}" * 40 + "\n", "nested too deeply"),
    ("# " + "x" * 70_000 + "\n", "more than 65536"),
    ("env_kwargs: {a: 0x" + "f" * 5000 + "}\n", "more than 64 bits"),
    ("env_kwargs: {a: !!set {b}}\n", "holds a set"),
    ("env_kwargs: {a: 2026-11-22}\n", "holds a date"),
    ("env_kwargs: {a: !!binary aaaa}\n", "holds a bytes"),
    ("env_kwargs: {? [a, b] : c}\n", "cannot be read"),
    ("x: !!python/object/apply:os.getcwd []\n", "cannot be read"),
    ("env: \xff\ud800\n", "cannot be read"),
]


@pytest.mark.parametrize(("text", "words"), HOSTILE)
def test_settings_that_are_a_trap(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    began = time.process_time()
    for read in (
        lambda: TRAIN.of(config=file),
        lambda: TRAIN.of(out=tmp_path, resume=True),
        lambda: ACTORS.of(config=file),
        lambda: FINETUNE.of(out=tmp_path, resume=True),
    ):
        with pytest.raises(ConfigError, match=rf"config\.yaml cannot be read: .*{words}|{words}"):
            read()
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "changes",
    [
        {"env_kwargs": [1]},
        {"env_kwargs": {1: 2}},
        {"algorithm_kwargs": "x"},
        {"algorithm": ["DQN"]},
        {"truth_key": ["a"]},
        {"encoder_sha256": 5},
        {"bundle": 7},
        {"device": ["cpu"]},
        {"seed": "x"},
        {"frame_stack": 1.5},
        {"success_reward": "much"},
        {"threads": 10**9},
        {"timesteps": True},
        {"out": None},
    ],
)
def test_values_of_other_types(tmp_path: Path, changes: dict[str, Any]) -> None:
    (name,) = changes
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(changes), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"found {name}=.*Expected .*; (change --|write it)"):
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "'final'"),
        ("[", "JSON|Expecting"),
        ("[1]", "list"),
        ("[" * 100_000, "too deep"),
        ('{"final": {"claimed": 1, "true": null}}', "int"),
        ('{"final": {"claimed": {"successes": "x"}, "true": null}}', "successes"),
        ('{"final": {"claimed": null, "true": null, "mean_return": []}}', "mean_return"),
    ],
)
def test_a_summary(tmp_path: Path, text: str, words: str) -> None:
    settings = config(tmp_path, env="CartPole-v1", algorithm="DQN", resume=True)
    (tmp_path / "config.yaml").write_text("env: CartPole-v1\nalgorithm: DQN\n", encoding="utf-8")
    (tmp_path / "summary.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunFolderError, match=rf"summary\.json cannot be read: .*({words}).*remove"):
        train(settings)
    with pytest.raises(RunFolderError, match=r"summary\.json cannot be read: .*remove it"):
        read_summary(tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        '{"a":' * 50_000,
        "[1]",
        '{"kind": "train", "step": "x"}',
        '{"kind": 1, "step": 1, "seconds": "x"}',
    ],
)
def test_rows_of_metrics(tmp_path: Path, row: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{row}\n{row}\n", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"line 1 of .*metrics\.jsonl is not a row"):
        read_rows(tmp_path)


@pytest.mark.parametrize(
    "table",
    [
        "a,b\n1,2\n",
        "step,reward\n1\n",
        "step,reward\nx,1\n",
        "step,reward\n" + "1" * 200_000 + ",1\n",
        "step,reward\ninf,1\n",
        "step,reward\n\0,1\n",
    ],
)
def test_tables_of_curves(tmp_path: Path, table: str) -> None:
    (tmp_path / "episodes.csv").write_text(table, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"episodes\.csv cannot be read as a table"):
        read_table(tmp_path / "episodes.csv", EPISODE_COLUMNS, until=5)


def test_a_file_where_logs_should_be(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("x", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"logs cannot be made: .*remove what is in its place"):
        Recorder(tmp_path, total=10, progress=False)
    shutil.copy(tmp_path / "logs", tmp_path / "run")
    with pytest.raises(VinorewardError, match="writable folder"):
        train(config(tmp_path / "run", env="CartPole-v1", algorithm="DQN"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"learning_starts": "x"},
        {"batch_size": 1.5},
        {"buffer_size": 10**12},
        {"gamma": None},
        {"policy_kwargs": {"net_arch": "x"}},
        {"policy_kwargs": {"net_arch": [10**13]}},
        {"policy_kwargs": {"unknown": 1}},
        {"\x1b[2J": 1},
    ],
)
def test_arguments_of_an_algorithm(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"DQN.*change --algorithm"):
        build_model("DQN", gym.make("CartPole-v1"), arguments, seed=0, replay_size=10)


def test_an_error_does_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text('"\\e[31;1mred\\e]0;title\\a": 1\n', encoding="utf-8")
    assert main(["train", "--config", str(tmp_path / "c.yaml")]) == 1
    told = capsys.readouterr().err
    assert "\\x1b[31;1mred" in told
    assert "\x1b" not in told and "\x07" not in told


@pytest.mark.parametrize("seconds", ["Infinity", "NaN", "-1", "1" + "0" * 400, '"x"', "[]", "null"])
@pytest.mark.parametrize("name", ["seconds", "evaluation_seconds"])
def test_a_clock(tmp_path: Path, name: str, seconds: str) -> None:
    other = {"seconds": "evaluation_seconds", "evaluation_seconds": "seconds"}[name]
    text = f'{{"{name}": {seconds}, "{other}": 1.0}}'
    (tmp_path / "clock.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"clock\.json cannot be read .*remove the file"):
        read_clock(tmp_path)
