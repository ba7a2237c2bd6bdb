"""Claims that a training draws for its certificate, their labels, and the pause that follows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_environments
from labelling_client import Client, Labelling
from train_runs import config as settled

from vinoreward.errors import ConfigError
from vinoreward_training.labelling.labels import Answer, Label, LabelLog, now
from vinoreward_training.labelling.sources import digest_of, of_run
from vinoreward_training.policy.claims import ClaimSample
from vinoreward_training.policy.train import SETTINGS, train

EVERY = 4


def sampled(run: Path, seed: int, lost: int | None = None) -> ClaimSample:
    """A sample of 80 claims, one of every second episode; that of one block has no image."""
    sample = ClaimSample(run, seed, size=3, every=EVERY, last=40)
    for number in range(80):
        drawn = sample.wants(2 * number, number)
        if drawn is not None and number // EVERY != lost:
            image = np.full((6, 8, 3), number, np.uint8)
            sample.add(image, drawn, step=number, episode=2 * number, number=number)
    sample.write()
    return sample


def label(run: Path, answers: dict[int, Answer], by: str = "ann") -> int:
    """Label the claims that a run drew for these blocks; return how many there are."""
    source = of_run(run)
    found = [(i, int(b)) for i, b in enumerate(source.numbers["block"]) if b in answers]
    with LabelLog(run / "labels.jsonl") as log:
        for i, block in found:
            name, digest = source.names[i], digest_of(source.read(i))
            log.add(Label(name, digest, answers[block], by, now(), 1.0))
    return len(found)


def test_one_claim_of_each_block_is_drawn_each_as_likely(tmp_path: Path) -> None:
    places = np.zeros(EVERY)
    for seed in range(20):
        sampled(tmp_path / str(seed), seed)
        source = of_run(tmp_path / str(seed))
        blocks, numbers = source.numbers["block"], np.array(source.episodes) // 2
        drawn = ~np.isnan(blocks)
        assert sorted(blocks[drawn]) == list(range(20))
        assert (blocks[drawn] == numbers[drawn] // EVERY).all()
        np.add.at(places, numbers[drawn] % EVERY, 1)
    # Four standard deviations of a binomial count of 400 with a quarter.
    assert np.abs(places - 100).max() < 4 * np.sqrt(400 * 0.25 * 0.75)


def test_labels_count_block_by_block_up_to_the_first_without(tmp_path: Path) -> None:
    sample = sampled(tmp_path, 1, lost=2)
    assert sample.certificate(80) is None, "no labels yet"
    label(tmp_path, {block: "failure" for block in range(20) if block != 1})
    found = sample.certificate(80)
    assert found is not None and found.run.labels == 1 and found.claims == EVERY
    label(tmp_path, {1: "skip"})
    found = sample.certificate(80)
    assert found is not None and found.claims == 80 and found.last.labels == 10
    assert (found.run.failures, found.run.unclear) == (18, 2), "skipped, and without an image"
    assert sample.certificate(80) is None, "nothing new"
    again = ClaimSample(tmp_path, 1, until=1000, size=3, every=EVERY, last=40)
    assert again.certificate(80) == found, "after a resume"
    assert again.certificate(83) is None, "a block counts once it is whole"


def test_the_page_shows_the_claims_of_the_certificate_first(tmp_path: Path) -> None:
    sample = sampled(tmp_path, 3)
    with Labelling(["--run", str(tmp_path), "--limit", "7"]) as running:
        client = Client(running.port)
        assert client.enter(running.token) == 200
        for _ in range(7):
            client.label(client.value("/api/state")[1]["image"], "success")
    found = sample.certificate(80)
    assert found is not None and found.run.successes == found.run.labels == 7


@pytest.mark.parametrize("kind", ["one", "many", "batched"])
def test_a_training_pauses_the_reward_below_the_precision(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def claimed_after(step: int) -> list[int]:
        rows = csv.DictReader((out / "episodes.csv").read_text().splitlines())
        return [int(row["claimed"]) for row in rows if int(row["step"]) > step]

    out, every_block = tmp_path / "run", range(1000)
    changes: dict[str, Any] = {
        "env": "toy_environments:ToyCorridor-v0", "success_reward": 1.0, "step_reward": 0.0,
        "algorithm": "DQN", "num_envs": 3 if kind == "many" else 1, "vec_env": "dummy",
        "bundle": str(toy_environments.save_toy_bundle(tmp_path / "toy").path),
    }  # fmt: skip
    if kind == "batched":
        changes = {"env_kwargs": {"success_threshold": 1e-9}, "num_envs": 4, "vec_env": "batched"}
    changes |= {"backend": "openvino", "on_ood": "ignore", "timesteps": 300, "eval_every": 1000}
    train(settled(out, label_every=2, stop_when_solved=None, final_episodes=2, **changes))
    labels = label(out, dict.fromkeys(every_block, "failure"))
    assert labels > 10
    capsys.readouterr()
    train(SETTINGS.of(out=out, resume=True, timesteps=500, on_low_precision="pause"))
    said = capsys.readouterr().out
    assert "The reward abstains from step 30" in said and "labelled claims" in said
    assert claimed_after(330) and not any(claimed_after(330))
    summary = json.loads((out / "summary.json").read_text())
    assert summary["labelled_claims"]["failures"] >= labels - 1, "the last block may not be whole"
    assert len(summary["precision_alarms"]) == 1
    assert "successes among the last claims" in (out / "report.html").read_text()
    if kind == "batched":  # whose trainings take seconds
        return
    label(out, dict.fromkeys(every_block, "success"), by="bob")  # who contradicts
    train(SETTINGS.of(out=out, resume=True, timesteps=700))
    assert any(claimed_after(500))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"on_low_precision": "pause"}, "label_every"),
        ({"on_low_precision": "pause", "label_every": 5, "on_alarm": "off"}, "label_every"),
        ({"last_claims": 50}, "last_claims"),
    ],
)
def test_a_pause_and_a_window_need_a_certificate(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        train(settled(tmp_path / "run", backend="openvino", **changes))
