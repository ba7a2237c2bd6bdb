"""Alarms of vinoreward train and actors: what is kept, told, paused and stopped."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_environments
from actor_runs import FEW, rows_of
from many_runs import SMALL_DQN, TOY
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_runs import config as settled
from waiting import until

from vinoreward import Bundle
from vinoreward_training.cli import main
from vinoreward_training.configs import TrainConfig
from vinoreward_training.labelling.labels import Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of, of_run
from vinoreward_training.policy.train import SETTINGS, run, train


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    made = toy_environments.save_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy")
    (made.path / "model.safetensors").touch()  # so that it could be mended
    return made


def toy(out: Path, bundle: Bundle, **changes: Any) -> TrainConfig:
    settings = {
        "env": TOY, "backend": "openvino", "bundle": str(bundle.path),
        "success_reward": 1.0, "step_reward": 0.0, "algorithm": "DQN",
        "algorithm_kwargs": SMALL_DQN, "stop_when_solved": None, "timesteps": 600,
        "final_episodes": 2, "eval_every": 1000,
    }  # fmt: skip
    return settled(out, **{**settings, **changes})


def tags(folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for events in sorted(folder.rglob("events.out.*")):
        reader = EventAccumulator(str(events)).Reload()
        for tag in reader.Tags()["scalars"]:
            found.setdefault(tag, []).extend(one.value for one in reader.Scalars(tag))
    return found


@pytest.mark.parametrize("envs", [1, 3])
def test_a_training_keeps_the_images_that_were_claimed(
    tmp_path: Path, bundle: Bundle, envs: int
) -> None:
    """Each image is of the claim's own cell, not of the next episode's first one."""
    out = tmp_path / "run"
    train(toy(out, bundle, num_envs=envs, vec_env="dummy", sample_claims=12))
    source = of_run(out)
    assert len(source.names) == 12
    episodes = list(csv.DictReader((out / "episodes.csv").read_text().splitlines()))
    table = list(csv.DictReader((out / "claims" / "claims.csv").read_text().splitlines()))
    for index, row in enumerate(table):
        cell = round(float(source.read(index)[..., 0].mean()) / 255 * toy_environments.LAST_CELL)
        odds = toy_environments.cell_log_odds(cell)
        assert float(row["probability"]) == pytest.approx(1 / (1 + np.exp(-odds)), rel=1e-4)
        assert int(row["true"]) == (cell >= 6)
        episode = episodes[int(row["episode"])]
        found = episode["step"], episode["true"], episode["claimed"]
        assert (row["step"], row["true"], "1") == found
    none = tmp_path / "none"
    train(toy(none, bundle, sample_claims=0, timesteps=60))
    assert not (none / "claims").exists()


def test_subprocesses_hand_their_images_over(tmp_path: Path) -> None:
    """PandaHover judges in the process of its environment."""
    out = tmp_path / "run"
    changes = {
        "backend": "openvino", "num_envs": 2, "timesteps": 60, "sample_claims": 4,
        "env_kwargs": {"success_threshold": 1e-9}, "on_ood": "ignore",
    }  # fmt: skip
    train(settled(out, **changes))
    assert len(of_run(out).names) == 4
    assert of_run(out).read(0).shape == (96, 128, 3)


def test_labels_raise_an_alarm_during_the_training(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    train(toy(out, bundle))
    source = of_run(out)
    with LabelLog(out / "labels.jsonl") as log:
        for index, name in enumerate(source.names):
            log.add(Label(name, digest_of(source.read(index)), "failure", "ann", now(), 1.0))
    capsys.readouterr()
    go_on = {"out": out, "resume": True, "timesteps": 700, "progress": False}
    stopped = train(SETTINGS.of(**go_on, on_alarm="stop"))
    said = capsys.readouterr().out
    assert "labelled claims" in said and "vinoreward mend" in said and stopped.steps < 700
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["precision_alarms"]) == 1
    assert summary["labelled_claims"]["failures"] == len(source.names)
    report = (out / "report.html").read_text()
    assert "successes among all claims" in report and "alarms of labelled claims" in report
    assert tags(out / "logs")["trust/precision_high"][-1] < 0.9
    train(SETTINGS.of(**go_on, on_alarm="tell"))
    assert len(json.loads((out / "summary.json").read_text())["precision_alarms"]) == 1


def test_a_run_on_the_truth_says_whether_it_is_the_learner(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(toy(out, bundle, timesteps=30, final_episodes=10, on_alarm="off")) == 0
    said = capsys.readouterr().out
    (line,) = re.findall(r"^next: +vinoreward (train .*--backend oracle .*)$", said, re.M)
    assert "the learner" in said and "not the" not in said
    assert main(shlex.split(line)) == 0
    said = capsys.readouterr().out
    assert "The learner, not the reward: true success is " in said
    assert f"next:   vinoreward play --run {out}-oracle --env {TOY}\n" in said


def test_early_claims_are_told_and_drawn(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(toy(out, bundle, earliest_success=5, timesteps=300)) == 0
    said = capsys.readouterr().out
    mend = f"mend --bundle {bundle.path} --data data/its-training --labels {out} "
    assert f"\nnext:   vinoreward {mend}" in said, "the claims carry the truth"
    assert f"watch:  vinoreward play --run {out} --env {TOY}\n" in said
    assert "before step 5, where no success is possible" in said
    assert f"vinoreward label --run {out}" in said
    drawn = tags(out / "logs")
    assert max(drawn["trust/early_evidence"]) > 10 and drawn["trust/alarms"][-1] >= 1
    assert 0 < drawn["trust/claim_rate"][-1] <= 1


def start(out: Path, bundle: Bundle, **streams: Any) -> subprocess.Popen[bytes]:
    arguments = [
        sys.executable, "-m", "vinoreward_training.cli", "train", "--env", TOY, "--trust-run",
        "--bundle", str(bundle.path), "--success-reward", "1", "--step-reward", "0",
        "--algorithm", "DQN", "--out", str(out),
        "--timesteps", "600", "--on-alarm", "pause", "--final-episodes", "2", "--no-progress",
        "--algorithm-kwargs", "learning_starts", "5000", "--eval-every", "1000",
    ]  # fmt: skip
    support = str(Path(toy_environments.__file__).parent)
    path = os.pathsep.join([support, *filter(os.path.isabs, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(arguments, env=environment, **streams)


def paused(log: Path) -> Callable[[], bool]:
    return lambda: b"Paused at step" in log.read_bytes()


def test_a_paused_training_goes_on_when_a_file_appears_and_ctrl_c_stops_it(
    tmp_path: Path, bundle: Bundle
) -> None:
    """Every further alarm pauses again; what was stopped there can be continued."""
    out, log = tmp_path / "run", tmp_path / "log"
    with log.open("wb") as stream:
        run = start(out, bundle, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
        try:
            until(paused(log), 120.0)
            assert (out / "checkpoint.pt").is_file() and not (out / "summary.json").exists()
            written = (out / "checkpoint.pt").stat().st_mtime_ns
            time.sleep(1.0)
            assert run.poll() is None and (out / "checkpoint.pt").stat().st_mtime_ns == written
            said = log.read_text()
            assert f"create the file {out / 'continue'}" in said and "Enter" not in said
            assert "Going on" not in said
            (out / "continue").touch()
            until(lambda: log.read_bytes().count(b"Paused at step") == 2, 120.0)
            assert not (out / "continue").exists()
            run.send_signal(signal.SIGINT)
            assert run.wait(60) == 130, log.read_text()
        finally:
            run.kill()
            run.wait()
    assert "Going on from step" in log.read_text()
    assert f"Continue with: vinoreward train --resume --out {out}" in log.read_text()
    more = train(SETTINGS.of(out=out, resume=True, on_alarm="tell", progress=False))
    assert more.steps == 600


def test_enter_on_a_terminal_ends_a_pause(tmp_path: Path, bundle: Bundle) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    ours, theirs = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first one opened becomes its terminal

    with log.open("wb") as stream:
        run = start(
            out, bundle, stdin=theirs, stdout=stream, stderr=stream, preexec_fn=own_terminal
        )
        try:
            until(paused(log), 120.0)
            assert "press Enter, or create the file" in log.read_text()
            time.sleep(0.5)
            assert "Going on" not in log.read_text()
            os.write(ours, b"\n")
            until(lambda: b"Going on from step" in log.read_bytes())
        finally:
            run.kill()
            run.wait()
            os.close(ours)
            os.close(theirs)


def acted(out: Path, *more: str) -> int:
    return main(
        [
            "actors", "--task", "cheated_environments:Cheated-v0", "--network", "1x8", *FEW,
            "--steps", "4000", "--evaluate-every", "0", "--no-progress", "--out", str(out),
            "--trust-run", *more,
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kwargs", "more", "said"),
    [
        (("true", "False"), (), "claimed successes are false"),
        (("true", "True", "ood", "True"), (), "unlike those of"),
        (("true", "True"), ("--earliest-success", "5"), "before step 5"),
    ],
)
def test_actors_tell_of_each_alarm_and_stop(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kwargs: tuple[str, ...],
    more: tuple[str, ...],
    said: str,
) -> None:
    out = tmp_path / "run"
    assert acted(out, "--env-kwargs", *kwargs, *more, "--on-alarm", "stop") == 0
    (row,) = rows_of(out, "alarm")
    assert said in row["text"]
    printed = capsys.readouterr().out
    assert "by the alarm. Continue with: vinoreward actors --resume" in printed
    summary = json.loads((out / "summary.json").read_text())
    assert row["step"] <= summary["steps"] < 4000
    assert said in (out / "report.html").read_text()
    if said != "unlike those of":  # it goes on alike after each
        return
    words = ["actors", "--resume", "--out", str(out), "--on-alarm", "off", "--no-progress"]
    assert main(words) == 0
    assert json.loads((out / "summary.json").read_text())["steps"] >= 4000


def test_actors_draw_their_rates_and_are_silent_when_honest(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert acted(out, "--env-kwargs", "true", "True", "--steps", "1500") == 0
    assert rows_of(out, "alarm") == []
    drawn = tags(out / "logs")
    assert drawn["trust/claim_rate"][-1] == 1.0 and drawn["trust/ood_rate"][-1] == 0.0
    assert drawn["trust/false_evidence"][-1] < 1000 and drawn["trust/alarms"][-1] == 0
