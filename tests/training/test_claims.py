"""Claims that a training keeps for people to label, and the alarms that it raises."""

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
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from train_runs import TOY, toy_config
from train_runs import config as settled

from vinoreward import Bundle
from vinoreward.errors import DatasetError
from vinoreward_training.cli import main
from vinoreward_training.configs import TrainConfig
from vinoreward_training.labelling.labels import Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of, of_run
from vinoreward_training.policy.claims import ClaimSample
from vinoreward_training.policy.train import SETTINGS, run, train
from vinoreward_training.runs.report import read_table


def image(episode: int) -> np.ndarray:
    return np.random.default_rng(episode).integers(0, 256, (6, 8, 3), dtype=np.uint8)


def claim(sample: ClaimSample, episode: int, **more: Any) -> bool:
    drawn = sample.wants(episode)
    if drawn is not None:
        sample.add(image(episode), drawn, step=10 * episode, episode=episode, **more)
    return drawn is not None


def kept(run: Path) -> list[int]:
    rows = read_table(run / "claims" / "claims.csv", ("episode",)) or []
    return [int(row["episode"] or 0) for row in rows]


def episodes_of(folder: Path) -> set[int]:
    return {int(file.stem) for file in folder.glob("*.png")}


def label_claims(run: Path, answers: dict[int, str], by: str = "ann") -> None:
    with LabelLog(run / "labels.jsonl") as log:
        for episode, answer in answers.items():
            digest = digest_of(image(episode))
            log.add(Label(f"{episode:06d}.png", digest, answer, by, now(), 1.0))  # type: ignore[arg-type]


def test_every_claim_is_as_likely_to_be_kept(tmp_path: Path) -> None:
    counts = np.zeros(60)
    for seed in range(400):
        sample = ClaimSample(tmp_path / str(seed), seed, size=12)
        for episode in range(60):
            claim(sample, episode)
        for name in sample._claims:
            counts[int(name[:6])] += 1
    assert counts.sum() == 400 * 12
    # Five standard deviations of a binomial count of 400 with 0.2.
    assert np.abs(counts - 80).max() < 5 * np.sqrt(400 * 0.2 * 0.8)


def test_folder_and_table_agree_and_stay_small(tmp_path: Path) -> None:
    sample = ClaimSample(tmp_path, 3, size=10)
    for episode in range(200):
        claim(sample, episode, probability=0.9, ood_score=0.2, true=episode % 2)
        if episode % 30 == 0:
            sample.write()
            assert episodes_of(tmp_path / "claims") == set(kept(tmp_path))
    sample.write()
    assert len(kept(tmp_path)) == 10 == len(sample)
    source = of_run(tmp_path)
    for index, name in enumerate(source.names):
        assert np.array_equal(source.read(index), image(int(name[:6])))
        assert source.numbers["true"][index] == int(name[:6]) % 2
    assert sorted(source.numbers["drawn"]) == list(np.sort(source.numbers["drawn"]))


def test_a_killed_training_ends_with_the_sample_of_one_that_was_not(tmp_path: Path) -> None:
    whole = ClaimSample(tmp_path / "whole", 3, size=10)
    for episode in range(100):
        claim(whole, episode)
    whole.write()
    killed = ClaimSample(tmp_path / "killed", 3, size=10)
    for episode in range(70):
        claim(killed, episode)
    killed.write()  # at an evaluation, after the last checkpoint at episode 50
    (tmp_path / "killed" / "claims" / "000003.png").write_bytes(b"torn")  # never of the table
    again = ClaimSample(tmp_path / "killed", 3, until=500, size=10)
    assert all(claim.step <= 500 for claim in again._claims.values())
    for episode in range(51, 100):
        claim(again, episode)
    again.write()
    assert kept(tmp_path / "killed") == kept(tmp_path / "whole")
    assert episodes_of(tmp_path / "killed" / "claims") - {3} == set(kept(tmp_path / "whole")) - {3}


def test_a_label_just_given_and_one_of_later_steps_keep_their_images(tmp_path: Path) -> None:
    """The training did not read the log since; or goes on from a checkpoint before the claim."""
    sample = ClaimSample(tmp_path, 1, size=3)
    for episode in range(60):
        claim(sample, episode)
    sample.write()
    last = max(episodes_of(tmp_path / "claims"))
    label_claims(tmp_path, dict.fromkeys(episodes_of(tmp_path / "claims"), "success"))
    before = episodes_of(tmp_path / "claims")
    for episode in range(60, 400):
        claim(sample, episode)
    sample.write()
    assert before < episodes_of(tmp_path / "claims")
    images = {one.name: one.read_bytes() for one in (tmp_path / "claims").glob("*.png")}
    again = ClaimSample(tmp_path, 1, until=10 * last - 1, size=60)
    for episode in range(last, last + 40):  # repeated, with other images
        drawn = again.wants(episode)
        if drawn is not None:
            again.add(image(1000 + episode), drawn, step=10 * episode, episode=episode)
    again.write()
    for episode in before:
        name = f"{episode:06d}.png"
        assert (tmp_path / "claims" / name).read_bytes() == images[name]
    assert len(episodes_of(tmp_path / "claims")) > 30


def in_order(sample: ClaimSample) -> list[int]:
    return [one.episode for one in sorted(sample._claims.values(), key=lambda one: one.drawn)]


def test_labels_count_in_the_order_of_the_draw_up_to_the_first_without(tmp_path: Path) -> None:
    sample = ClaimSample(tmp_path, 1, size=50)
    for episode in range(20):
        claim(sample, episode)
    assert sample.labelled() is None, "no labels yet"
    order = in_order(sample)
    answers = dict(zip(order, ["success", "failure", "skip"] * 7, strict=False))
    label_claims(tmp_path, {episode: answers[episode] for episode in order})
    bound = sample.labelled()
    assert bound is not None and sample.labelled() is None, "nothing new"
    assert (bound.successes, bound.failures, bound.unclear) == (7, 7, 6)
    for episode in range(20, 30):
        claim(sample, episode)
    label_claims(tmp_path, {order[0]: "success"}, by="bob")
    bound = sample.labelled()
    assert bound is not None and bound.labels == 20, "newer ones than the newest label are left out"


def test_people_who_disagree_leave_it_unclear_and_a_replaced_image_does_not_count(
    tmp_path: Path,
) -> None:
    sample = ClaimSample(tmp_path, 1, size=50)
    for episode in range(3):
        claim(sample, episode)
    label_claims(tmp_path, dict.fromkeys(range(3), "success"))
    label_claims(tmp_path, {1: "failure"}, by="bob")
    bound = sample.labelled()
    assert bound is not None and (bound.successes, bound.unclear) == (2, 1)
    other = ClaimSample(tmp_path, 1, size=50)
    drawn = other.wants(0)
    assert drawn is not None
    other.add(image(99), drawn, step=0, episode=0)
    assert other.labelled() is None


def test_a_half_written_label_is_waited_for_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    sample = ClaimSample(tmp_path, 1, size=50)
    for episode in range(3):
        claim(sample, episode)
    label_claims(tmp_path, dict.fromkeys(range(3), "failure"))
    whole = (tmp_path / "labels.jsonl").read_bytes()
    (tmp_path / "labels.jsonl").write_bytes(whole[:-40])
    bound = sample.labelled()
    assert bound is not None and bound.labels <= 2
    (tmp_path / "labels.jsonl").write_bytes(b"no label\n" + whole)
    with pytest.raises(DatasetError, match="line 1"):
        sample.labelled()
    assert sample.labelled() is None, "told once"


# --- trainings ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    made = toy_environments.save_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy")
    (made.path / "model.safetensors").touch()  # so that it could be mended
    return made


def toy(out: Path, bundle: Bundle, **changes: Any) -> TrainConfig:
    few = {"num_envs": 1, "timesteps": 600, "final_episodes": 2, "eval_every": 1000}
    return toy_config(out, bundle, **{**few, **changes})


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
        "backend": "openvino", "num_envs": 2, "timesteps": 40, "final_episodes": 1,
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


def test_actors_tell_of_false_claims(tmp_path: Path) -> None:
    words = ["actors", "--task", "cheated_environments:Cheated-v0", "--network", "1x8", *FEW]
    words += ["--steps", "1500", "--evaluate-every", "0"]
    assert main([*words, "--trust-run", "--out", str(tmp_path / "run")]) == 0
    (told,) = [row["text"] for row in rows_of(tmp_path / "run", "alarm")]
    assert "claimed successes are false" in told
    assert "claimed successes are false" in (tmp_path / "run" / "report.html").read_text()
