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


def image(episode: int) -> np.ndarray:
    return np.random.default_rng(episode).integers(0, 256, (6, 8, 3), dtype=np.uint8)


def sampled(run: Path, seed: int, claims: int, lost: int | None = None) -> ClaimSample:
    """A sample of so many claims, one of every second episode; one without an image."""
    sample = ClaimSample(run, seed, size=3, every=EVERY, last=40)
    for number in range(claims):
        drawn = sample.wants(2 * number, number)
        if drawn is not None and number != lost:
            sample.add(image(number), drawn, step=number, episode=2 * number, number=number)
    sample.write()
    return sample


def drawn_claims(run: Path) -> list[int]:
    """Numbers of the claims that were drawn for the certificate, in their order."""
    rows = csv.DictReader((run / "claims" / "claims.csv").read_text().splitlines())
    found = sorted((int(row["block"]), int(row["episode"]) // 2) for row in rows if row["block"])
    return [number for _, number in found]


def label(run: Path, answers: dict[int, Answer]) -> None:
    with LabelLog(run / "labels.jsonl") as log:
        for number, answer in answers.items():
            digest = digest_of(image(number))
            log.add(Label(f"{2 * number:06d}.png", digest, answer, "ann", now(), 1.0))


def test_one_claim_of_each_block_is_drawn_each_as_likely(tmp_path: Path) -> None:
    places = np.zeros(EVERY)
    for seed in range(20):
        sampled(tmp_path / str(seed), seed, 10 * EVERY)
        drawn = drawn_claims(tmp_path / str(seed))
        assert [number // EVERY for number in drawn] == list(range(10))
        np.add.at(places, np.array(drawn) % EVERY, 1)
    # Four standard deviations of a binomial count of 200 with a quarter.
    assert np.abs(places - 50).max() < 4 * np.sqrt(200 * 0.25 * 0.75)


def test_labels_count_block_by_block_up_to_the_first_without(tmp_path: Path) -> None:
    lost = drawn_claims(sampled(tmp_path / "whole", 1, 80).folder.parent)[2]
    sample = sampled(tmp_path / "run", 1, 80, lost)
    first, second, fourth, *others = drawn_claims(tmp_path / "run")
    assert sample.certificate(80) is None, "no labels yet"
    label(tmp_path / "run", dict.fromkeys([first, fourth, *others[1:]], "failure"))
    found = sample.certificate(80)
    assert found is not None and found.run.labels == 1 and found.claims == EVERY
    label(tmp_path / "run", {second: "skip", others[0]: "success"})
    found = sample.certificate(80)
    assert found is not None and found.claims == 80
    counts = found.run.successes, found.run.failures, found.run.unclear
    assert counts == (1, 17, 2), "a skipped claim and one without an image are unclear"
    assert found.last.labels == 10 and sample.certificate(80) is None, "nothing new"
    again = ClaimSample(tmp_path / "run", 1, until=1000, size=3, every=EVERY, last=40)
    assert again.certificate(80) == found, "after a resume"
    assert again.certificate(83) is None, "a block counts once it is whole"


def test_the_page_shows_the_claims_of_the_certificate_first(tmp_path: Path) -> None:
    sample = sampled(tmp_path, 3, 80)
    with Labelling(["--run", str(tmp_path), "--limit", "7"]) as running:
        client = Client(running.port)
        assert client.enter(running.token) == 200
        for _ in range(7):
            client.label(client.value("/api/state")[1]["image"], "success")
    found = sample.certificate(80)
    assert found is not None and found.run.successes == found.run.labels == 7


def labelled_run(out: Path, **changes: Any) -> int:
    """A training whose drawn claims are all labelled as failures; the number of labels."""
    train(settled(out, stop_when_solved=None, final_episodes=2, label_every=2, **changes))
    source = of_run(out)
    blocks = source.numbers["block"]
    with LabelLog(out / "labels.jsonl") as log:
        for i in np.flatnonzero(~np.isnan(blocks)).tolist():
            name, digest = source.names[i], digest_of(source.read(i))
            log.add(Label(name, digest, "failure", "ann", now(), 1.0))
    return int(np.count_nonzero(~np.isnan(blocks)))


@pytest.mark.parametrize("kind", ["one", "many", "batched"])
def test_a_training_pauses_the_reward_below_the_precision(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    changes: dict[str, Any] = {"backend": "openvino", "on_ood": "ignore", "timesteps": 300}
    if kind == "batched":
        changes |= {"env_kwargs": {"success_threshold": 1e-9}, "num_envs": 4, "vec_env": "batched"}
    else:
        bundle = toy_environments.save_toy_bundle(tmp_path / "toy")
        changes |= {
            "env": "toy_environments:ToyCorridor-v0", "bundle": str(bundle.path),
            "success_reward": 1.0, "step_reward": 0.0, "algorithm": "DQN",
            "num_envs": 3 if kind == "many" else 1, "vec_env": "dummy",
        }  # fmt: skip
    labels = labelled_run(out, eval_every=1000, **changes)
    assert labels > 10
    capsys.readouterr()
    train(SETTINGS.of(out=out, resume=True, timesteps=500, on_low_precision="pause"))
    said = capsys.readouterr().out
    assert "The reward abstains from step 30" in said and "labelled claims" in said
    rows = list(csv.DictReader((out / "episodes.csv").read_text().splitlines()))
    claimed = [int(row["claimed"]) for row in rows if int(row["step"]) > 330]
    assert claimed and not any(claimed)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["labelled_claims"]["failures"] >= labels - 1, "the last block may not be whole"
    assert len(summary["precision_alarms"]) == 1
    assert "successes among the last claims" in (out / "report.html").read_text()


@pytest.mark.parametrize("changes", [{}, {"label_every": 5, "on_alarm": "off"}], ids=str)
def test_a_pause_needs_claims_that_are_drawn_and_tested(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="label_every"):
        settled(tmp_path, backend="openvino", on_low_precision="pause", **changes)
