"""Alarms of vinoreward train and actors: what is kept, told and stopped."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_environments
from actor_runs import FEW, rows_of
from many_runs import SMALL_DQN, TOY
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_runs import config as settled

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
    train(toy(out, bundle, num_envs=envs, vec_env="dummy", timesteps=200))
    source = of_run(out)
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


def test_subprocesses_hand_their_images_over(tmp_path: Path) -> None:
    """PandaHover judges in the process of its environment."""
    out = tmp_path / "run"
    changes = {
        "backend": "openvino", "num_envs": 2, "timesteps": 60,
        "env_kwargs": {"success_threshold": 1e-9}, "on_ood": "ignore",
    }  # fmt: skip
    train(settled(out, **changes))
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
    go_on = {"out": out, "resume": True, "timesteps": 700}
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


def test_a_training_that_fails_names_the_same_one_on_the_truth(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(toy(out, bundle, timesteps=30, final_episodes=10, on_alarm="off")) == 0
    said = capsys.readouterr().out
    (line,) = re.findall(r"^next: +vinoreward (train .*--backend oracle .*)$", said, re.M)
    assert main(shlex.split(line)) == 0


def test_false_claims_are_told_and_drawn(
    tmp_path: Path, bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(toy(out, bundle, timesteps=400)) == 0
    said = capsys.readouterr().out
    mend = f"mend --bundle {bundle.path} --data data/its-training --labels {out} "
    assert f"\nnext:   vinoreward {mend}" in said, "the claims carry the truth"
    assert f"watch:  vinoreward play --run {out} --env {TOY}\n" in said
    assert "claimed successes are false" in said
    assert f"vinoreward label --run {out}" in said
    drawn = tags(out / "logs")
    assert max(drawn["trust/false_evidence"]) > 10 and drawn["trust/alarms"][-1] >= 1
    assert 0 < drawn["trust/claim_rate"][-1] <= 1


@pytest.mark.parametrize("honest", [False, True])
def test_actors_tell_of_false_claims(tmp_path: Path, honest: bool) -> None:
    words = ["actors", "--task", "cheated_environments:Cheated-v0", "--network", "1x8", *FEW]
    words += ["--steps", "1500", "--evaluate-every", "0", "--env-kwargs", "true", str(honest)]
    assert main([*words, "--trust-run", "--out", str(tmp_path / "run")]) == 0
    told = [row["text"] for row in rows_of(tmp_path / "run", "alarm")]
    assert len(told) == (not honest)
    assert all("claimed successes are false" in text for text in told)
    report = (tmp_path / "run" / "report.html").read_text()
    assert ("claimed successes are false" in report) is not honest
