"""``calibrate``: threshold, rates and OOD detector of a bundle on new images."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_network as tiny
from foreign_networks import LABELS, MEAN, STD, Colours, to_onnx
from foreign_networks import draw as draw_colours
from image_folders import write_folder
from PIL import Image
from toy_environments import HEIGHT, WIDTH, save_column_bundle

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import TooFewNegativesError
from vinoreward.rewards.calibration import (
    episode_rate,
    negatives_needed,
    rate_for_episodes,
    rate_supported,
    threshold_for_fpr,
)
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.ood import guard_of
from vinoreward_training import importing
from vinoreward_training.classifier import calibrate, finetune
from vinoreward_training.classifier.camera_failure import logits_by_family
from vinoreward_training.classifier.evaluation import (
    EPISODE_LIMIT,
    Verdict,
    claims_by_episode,
    default_rate,
    episode_rates,
    give_verdict,
    rates,
)
from vinoreward_training.classifier.finetune import USELESS
from vinoreward_training.cli import main
from vinoreward_training.configs import CalibrateConfig, FinetuneConfig, ImportConfig
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode


def draw(folder: Path, noise: float, count: int) -> Path:
    """Write images whose columns are redder in a success, each with noise of its own."""
    random = np.random.default_rng(0)
    for index in range(count):
        label = ("failure", "success")[index % 2]
        image = random.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        columns = random.normal(150 if index % 2 else 110, noise, WIDTH)
        image[..., 0] = np.clip(columns, 0, 255).astype(np.uint8)
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{index:04d}.png")
    return folder


@pytest.mark.slow
def test_what_is_reported_is_what_the_classifier_does(tmp_path: Path) -> None:
    path = save_column_bundle(tmp_path / "bundle").path
    data = draw(tmp_path / "data", noise=22.0, count=1200)
    words = ["--data", str(data), "--target-fpr", "0.02", "--int8", "off"]
    assert main(["calibrate", "--bundle", str(path), *words]) == 0
    bundle, dataset = Bundle.load(path), load_dataset(data)
    metrics, decision = bundle.spec.metrics, bundle.spec.decision
    train, validation, test = split_by_episode(dataset)
    choosing = np.sort(np.concatenate([train, validation]))  # the network has seen none of them
    with Classifier(bundle, guarded=False) as classifier:
        claims = classifier.compute_reward
        truth = dataset.labels[test] == 1
        claimed = claims(dataset.images[test]) > 0
        assert (claimed & truth).sum() == metrics["test"]["true_positives"]
        assert (claimed & ~truth).sum() == metrics["test"]["false_positives"]
        dead = logits_by_family(claims, dataset, test, 2, 0)
        counts = {family: int(each.sum()) for family, each in dead.items()}
        assert counts == metrics["dead_camera"]["by_family"]
        chosen_for = decision.chosen_for
        first = claims(dataset.images[choosing]) > 0
        wrong = dataset.labels[choosing] == 0
        assert (first & wrong).sum() == chosen_for.get("at_raised", chosen_for)["false_positives"]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and a network that knows them."""
    folder = tmp_path_factory.mktemp("foreign")
    draw_colours(folder / "data", 240)
    to_onnx(Colours(2), folder / "two.onnx")
    return folder


def imported(foreign: Path, out: Path, **changes: Any) -> CalibrateConfig:
    """Import the network; return the command that calibrates it."""
    given = {"labels": LABELS, "mean": MEAN, "std": STD, **changes}
    importing.run(ImportConfig(model=foreign / "two.onnx", out=out, **given))
    return CalibrateConfig(bundle=out, data=foreign / "data", target_fpr=0.05, int8="off")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_inverted_label_shows_as_a_useless_classifier(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = imported(foreign, tmp_path / "bundle", success_label="failure")
    assert calibrate.run(config) == USELESS
    said = capsys.readouterr().out
    assert "verdict: useless" in said and "INT8" not in said
    assert Bundle.load(tmp_path / "bundle").spec.metrics["verdict"]["level"] == "useless"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_calibrated_bundle_has_a_detector_of_its_images(foreign: Path, tmp_path: Path) -> None:
    config = imported(foreign, tmp_path / "bundle")
    assert calibrate.run(config) == 0
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.spec.decision.chosen_for["target_fpr"] == 0.05
    assert bundle.spec.metrics["test"]["recall"] > 0.9 and len(bundle.golden.images) == 8
    assert "clean test frames are out of distribution" in (bundle.path / "README.md").read_text()
    images, detector = load_dataset(foreign / "data").images, guard_of(bundle)
    assert detector is not None and (detector.ood_score(images) > 1).mean() < 0.05
    assert (detector.ood_score(np.zeros_like(images)) > 1).all()
    # A new calibration on too few episodes for one leaves none, and says why.
    few = dataclasses.replace(config, data=draw_colours(tmp_path / "few", 110), target_fpr=0.3)
    assert calibrate.run(few) in (0, USELESS)
    after = Bundle.load(tmp_path / "bundle")
    assert guard_of(after) is None
    assert "it takes 20 episodes" in after.spec.metrics["guard"]["why"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_data_that_do_not_fit_change_nothing(foreign: Path, tmp_path: Path) -> None:
    config = imported(foreign, tmp_path / "bundle")
    before = tiny.snapshot(tmp_path / "bundle")
    few = dataclasses.replace(config, target_fpr=0.02)
    with pytest.raises(TooFewNegativesError, match="Expected at least 149") as caught:
        calibrate.run(few)
    assert caught.value.field == "target_fpr"
    assert tiny.snapshot(tmp_path / "bundle") == before


# --- rates -------------------------------------------------------------------------------------


def dataset_of(episodes: int, steps: int | None, seen: int = 1) -> Dataset:
    """Failures, ``seen`` of each episode."""
    count = episodes * seen
    return Dataset(
        images=np.zeros((count, 4, 4, 3), dtype=np.uint8),
        labels=np.zeros(count, dtype=np.int64),
        episodes=np.arange(count) // seen,
        categories=np.full(count, "failure"),
        distances=np.full(count, np.nan),
        files=tuple(map(str, range(count))),
        scene={},
        sha256="0" * 64,
        folder=Path("memory"),
        episode_steps=steps,
    )


def test_a_share_of_episodes_is_estimated_from_some_of_their_steps_and_not_too_low() -> None:
    random = np.random.default_rng(0)
    steps, seen, episodes = 40, 4, 200_000
    assert episode_rate(0.02, steps) == pytest.approx(1 - 0.98**40)
    assert rate_for_episodes(episode_rate(0.02, steps, seen), steps, seen) == pytest.approx(0.02)
    for own in (np.full(episodes, 0.02), random.beta(0.1, 4.9, episodes)):
        true = float((random.random(episodes) < 1 - (1 - own) ** steps).mean())
        some = float((random.random(episodes) < 1 - (1 - own) ** seen).mean())
        estimate = episode_rate(some, steps, seen)
        # Of independent steps it is right; where episodes differ it is above the truth, and below
        # what single images would give.
        assert true - 0.01 < estimate <= episode_rate(float(own.mean()), steps) + 0.01
    assert estimate > true + 0.1


@pytest.mark.parametrize(
    ("episodes", "steps", "seen", "rate"),
    [
        (299, None, 1, 0.01),
        (22, None, 1, 0.15),  # 300 photographs, half of them failures
        (90, 40, 4, 0.05),
        (300, 6, 1, 0.01),
        (2000, 40, 1, 0.0026),
        (700, 40, 1, 0.005),  # not quite enough for that
        (8, None, 4, None),
    ],
)
def test_the_default_rate_is_what_episodes_need_if_the_data_support_it(
    episodes: int, steps: int | None, seen: int, rate: float | None
) -> None:
    dataset = dataset_of(episodes, steps, seen)
    found, why = default_rate(dataset.labels, dataset.episodes, steps)
    assert found == rate
    assert why.startswith(f"{episodes} failing episodes choose the threshold")
    if found is not None:
        assert found >= rate_supported(episodes)


def scored(false: int, steps: int, *, lasting: bool = True) -> tuple[Verdict, dict[str, Any]]:
    """Judge one that claims ``false`` of 400 failures, 2 of each episode, and most successes."""
    labels = np.array([1] * 100 + [0] * 400)
    claimed = np.arange(500) < 95
    claimed[100 : 100 + 2 * false : 2] = True
    episodes = np.arange(500) // 2
    test = rates(claimed, labels)
    counts = episode_rates(claimed, labels, episodes)
    found = claims_by_episode(test, counts, steps, lasting=lasting)
    probabilities = np.where(labels == 1, 0.9, 0.1)
    chosen = threshold_for_fpr(probabilities, labels, episodes, 0.05)
    verdict = give_verdict(
        test, chosen, dead=500, dead_claimed=0, by_episode=found, frames=1000,
    )  # fmt: skip
    return verdict, found


def test_the_verdict_counts_false_claims_by_the_episode() -> None:
    verdict, found = scored(8, 2)
    assert verdict == Verdict("usable") and found["share"] == pytest.approx(0.04, abs=0.01)
    verdict, found = scored(8, 40)
    assert verdict.level == "weak" and found["share"] > 0.5 < found["share_high"]
    (reason,) = verdict.reasons
    about, most = re.findall(r"about (\d+)% .* \(at most (\d+)%\)", reason)[0]
    assert reason.startswith("at 40 steps about ") and float(about) < float(most)
    # Steps in a row, where a success lasts; and frames that would do, a thousand are there.
    assert found["hold"] == 2 and "train --hold 2" in str(verdict)
    assert verdict.frames == 2200 and verdict.as_dict()["frames"] == 2200
    assert "2200 frames in all" in str(verdict)
    assert scored(8, 40, lasting=False)[1]["hold"] is None


def test_more_episodes_are_asked_for_where_none_was_claimed_and_episodes_are_long() -> None:
    """Two hundred episodes without a false claim say little of four hundred steps."""
    verdict, found = scored(0, 400)
    assert verdict.level == "weak" and 0.4 < found["share"] < 0.6
    needed = negatives_needed(rate_for_episodes(EPISODE_LIMIT, 400, 2), 0.5)
    assert verdict.frames == pytest.approx(1.1 * 1000 * needed / 200, abs=100)


def as_played(folder: Path, steps: object) -> None:
    """Make two images of each label an episode."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    rows = [f"{file},{file.split('/')[0]},{int(file[-8:-4]) // 4}" for file in files]
    (folder / "metadata.csv").write_text("\n".join(["file,label,episode", *rows]) + "\n")
    (folder / "dataset.json").write_text(json.dumps({"episode_steps": steps}))


def test_calibrate_chooses_the_rate_says_it_and_tells_claims_by_the_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = draw(tmp_path / "data", noise=3.0, count=300)
    path = save_column_bundle(tmp_path / "bundle").path
    words = ["calibrate", "--bundle", str(path), "--data", str(data)]
    assert main(words) == 0
    said = capsys.readouterr().out
    rate, episodes = re.findall(r"^false-positive rate (\S+): (\d+) failing episodes", said, re.M)[
        0
    ]
    spec = Bundle.load(path).spec
    assert spec.decision is not None
    assert spec.decision.chosen_for["target_fpr"] == float(rate) > 0.01
    assert spec.decision.chosen_for["negative_episodes"] == int(episodes)
    assert spec.metrics["failing_episodes"] is None and "episodes: at" not in said
    as_played(data, 200)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "as episodes of 200 steps need" in said
    spec = Bundle.load(path).spec
    found, verdict = spec.metrics["failing_episodes"], spec.metrics["verdict"]
    assert found["steps"] == 200 and 1 < found["scored"] <= 2
    assert f"episodes: {found['summary']}" in said
    assert f"by episode: {found['summary']}" in (path / "README.md").read_text()
    assert verdict["level"] == "weak" and verdict["frames"] > 300


def test_a_rate_that_is_asked_for_and_not_supported_names_one_that_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data", 200)
    words = ["finetune", "--data", str(data), "--out", str(tmp_path / "run")]
    assert main([*words, "--target-fpr", "0.01"]) == 1
    said = capsys.readouterr().err
    deciding, accepted = re.findall(r"(\d+) of them in the .* --target-fpr ([\d.]+)\.$", said)[0]
    assert 0 < float(accepted) - rate_supported(int(deciding)) < 0.02
    # So few support none.
    with pytest.raises(TooFewNegativesError, match=r"episodes with .* at least 9 .* rate of 0\.3"):
        few = write_folder(tmp_path / "few", 60)
        finetune.run(FinetuneConfig(data=few, out=tmp_path / "other"))
