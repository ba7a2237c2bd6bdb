"""Bench rows of trainings in a batch: what is run, and what is said of the worst seed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vinoreward.errors import RunFolderError
from vinoreward_training.bench import seconds
from vinoreward_training.configs import BenchConfig

TASKS = ("PandaHover-v0", "PandaHoverRandom-v0", "PandaHoverPixels-v0")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What follows ``vinoreward train`` in the commands that are run; none of them trains."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        words = command[command.index("train") + 1 :]
        commands.append(words)
        out, seed = (words[words.index(name) + 1] for name in ("--out", "--seed"))
        assert not Path(out).exists(), "every run begins anew"
        Path(out).mkdir(parents=True)
        at = int(seed) - 99  # 1, 2, ...
        summary = {
            "solved_at": at, "steps": 100 * at, "seconds": 4.0 + at, "evaluation_seconds": 1.0,
            "final": {"true": {"successes": 9, "trials": 10}},
        }  # fmt: skip
        (Path(out) / "summary.json").write_text(json.dumps(summary))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", run)
    return commands


def test_rows_are_of_the_worst_seed(tmp_path: Path, commands: list[list[str]]) -> None:
    bench = BenchConfig(seeds=2, evaluation_episodes=5, out=tmp_path)
    for _ in range(2):  # also over the folders of another bench
        rows = seconds.seconds_rows(bench)
    # Of each task two rows: seconds of training, and of the command, which takes none here.
    assert [(row.value, row.low, row.high) for row in rows[::2]] == [(5.0, 4.0, 5.0)] * 3
    assert all(row.value is not None and 0 < row.value < 4 for row in rows[1::2])
    targets = ["<= 5 s", "<= 9 s", "<= 15 s", "", "<= 15 s", ""]
    assert [row.target for row in rows] == [one and f"{one}, 2 of 2 solved" for one in targets]
    assert [row.met for row in rows] == [True, True, True, None, True, None]
    for row in rows:
        assert (row.name, row.spread) == ("seconds", "best and worst of 2 seeds; 2 of 2 solved")
        assert row.note.startswith("steps [100, 200]; processor seconds of the whole command ")
        assert [run["true"] for run in row.details["runs"]] == [0.9, 0.9]
    assert commands[6:] == [
        [
            "--vec-env", "batched", "--env", env, "--seed", str(seed), "--bundle", bench.bundle,
            *(("--encoder", bench.encoder) if "Pixels" in env else ()), "--final-episodes", "5",
            "--stop-when-solved", "0.95", "--no-progress", "--out",
            str(tmp_path / "train" / f"seconds-{env}-{seed}"),
        ]
        for env in TASKS
        for seed in (100, 101)
    ]  # fmt: skip


def test_options_are_of_the_command_and_of_its_folder(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    bench = BenchConfig(seeds=1, out=tmp_path)
    options = "--learner", "skrl", "--device", "cuda"
    for row in seconds.task_rows(bench, "gpu", seconds.TASKS[0], *options):
        words = f"train --vec-env batched {' '.join(options)} --env PandaHover-v0,"
        assert row.name == "gpu" and words in row.what
    assert commands[0][2:6] == [*options]
    assert Path(commands[0][-1]).name == "seconds-skrl-cuda-PandaHover-v0-100"


def test_without_its_encoder_a_task_is_not_trained(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    *_, row = seconds.seconds_rows(BenchConfig(seeds=1, out=tmp_path, encoder="nothing"))
    assert row.value is None and "no encoder nothing" in row.note and TASKS[2] in row.what
    assert len(commands) == 2


@pytest.mark.parametrize(
    ("limit", "solved", "met"), [(5.0, True, True), (4.9, True, False), (9.0, False, False)]
)
def test_a_bar_is_met_where_every_seed_is_solved_in_time(
    limit: float, solved: bool, met: bool
) -> None:
    one = seconds.Run(100, True, 10, 1.0, training=3.0, process=5.0, processor=9.0)
    other = dataclasses.replace(one, solved=solved, training=5.0)
    task = seconds.Task("X-v0", limit)
    training, process = seconds.rows_of(BenchConfig(), "seconds", task, [one, other])
    assert training.met is met and process.met is None
    assert training.spread.endswith(f"{1 + solved} of 2 solved")


@pytest.mark.slow
def test_the_row_of_seconds_runs_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seconds, "TASKS", seconds.TASKS[:1])
    rows = seconds.seconds_rows(BenchConfig(seeds=1, evaluation_episodes=5, out=tmp_path))
    assert [row.target for row in rows] == ["<= 5 s, 1 of 1 solved", "<= 9 s, 1 of 1 solved"]
    (run,) = rows[0].details["runs"]
    assert run["solved"] and run["true"] >= 0.95
    assert 0 < run["training"] < run["process"]


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"(?s)vinoreward train ended with 1.*no bundle"):
        seconds.run_once(BenchConfig(bundle="no such bundle", out=tmp_path), seconds.TASKS[0], 0)
