"""Progress is learned from the steps to success that a capture records."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_folders import write_folder

from vinoreward import Bundle, Classifier
from vinoreward.bundles.schema import Progress
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.files import write_json
from vinoreward_training.classifier import finetune
from vinoreward_training.classifier.progress import (
    CENSORED,
    LEAST_SCALE,
    SOFT,
    WEIGHT,
    Targets,
    calibrated,
    progress_loss,
    read_targets,
    rise,
)
from vinoreward_training.cli import main
from vinoreward_training.configs import FinetuneConfig, MendConfig
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.data.dataset_files import Table, make_row, to_success
from vinoreward_training.mending.labelled import Labelled, read_data
from vinoreward_training.mending.refit import Recipe, refit

STEPS = 10


def draw(step: int, seed: int, wins: bool) -> np.ndarray:
    """A bar goes to the right and arrives with the last step, or stays on the left."""
    image = np.random.default_rng(seed).integers(0, 60, (32, 40, 3)).astype(np.uint8)
    place = 4 * step if wins else step
    image[8:24, place : place + 4] = 255
    return image


def write_episodes(folder: Path, count: int) -> None:
    """Every third episode fails; each ends with step 9."""
    table = Table(folder)
    for episode in range(count):
        wins, truths = episode % 3 != 2, np.zeros(STEPS, np.bool_)
        truths[-1] = wins
        for step in range(STEPS):
            success = bool(truths[step])
            file = f"{episode:06d}-{step:05d}.png"
            row = make_row(file, success, "success" if success else "failure", episode, 0)
            row |= {"step": str(step), "steps": str(STEPS)}
            row["to_success"] = to_success(truths, step)
            table.add([(draw(step, 97 * episode + step, wins), row)])
    table.save()
    write_json(folder / "dataset.json", {"scene": {"env": "bar"}, "seed": 0, "episode_steps": 10})


@given(
    st.lists(
        st.tuples(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 11)),
        min_size=4,
        max_size=12,
    )
)
def test_targets_are_those_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[tuple[list[bool], int]]
) -> None:
    folder, entries = tmp_path_factory.mktemp("table"), []
    table = Table(folder)
    for number, (truths, place) in enumerate(episodes):
        step = place % len(truths)
        row = make_row(f"{number}.png", truths[step], "", number, 0)
        row |= {"step": str(step), "steps": str(len(truths))}
        row["to_success"] = to_success(np.array(truths), step)
        table.rows[row["file"]] = row
        entries.append((row["file"], truths, step))
    table.save()
    files, every, steps = zip(*entries, strict=True)
    labels = np.array([truths[step] for truths, step in zip(every, steps, strict=True)], np.int64)
    data = Dataset(
        images=np.zeros((len(files), 4, 4, 3), np.uint8), labels=labels, files=files,
        episodes=np.arange(len(files)), categories=np.array(files), scene={}, sha256="",
        distances=np.full(len(files), np.nan), folder=folder,
    )  # fmt: skip
    ahead = [
        next((n for n, truth in enumerate(truths[step:]) if truth), None)
        for truths, step in zip(every, steps, strict=True)
    ]
    ways = [step + left for step, left in zip(steps, ahead, strict=True) if left is not None]
    train = np.arange(len(files))
    if not any(ahead):
        with pytest.raises(DatasetError, match="how many steps before a success"):
            read_targets(data, train)
        return
    found = read_targets(data, train)
    assert found.horizon == pytest.approx(np.quantile(ways, 0.9))
    for index, left in enumerate(ahead):
        if left is None:
            assert np.isnan(found.known[index])
            unmet = len(every[index]) - steps[index]  # so many steps at least were not enough
            wanted = max(0.0, 1 - unmet / found.horizon)
            assert found.most[index] == pytest.approx(wanted, abs=1e-6)
        else:
            wanted = max(0.0, 1 - left / found.horizon)
            assert found.known[index] == pytest.approx(wanted, abs=1e-6)


def test_a_failure_costs_only_above_what_it_can_be() -> None:
    known = torch.tensor([0.5, float("nan"), float("nan")])
    most = torch.tensor([1.0, 0.4, 0.4])
    found = torch.tensor([0.5 + 2 * SOFT, 0.1, 0.4 + 3 * SOFT], requires_grad=True)
    loss = progress_loss(found, known, most)
    # Huber's loss in units of SOFT: beyond it the error less half of SOFT.
    assert float(loss.detach()) == pytest.approx(WEIGHT * SOFT * (1.5 + CENSORED * 2.5) / 3)
    loss.backward()
    assert found.grad is not None
    assert found.grad.tolist() == pytest.approx([WEIGHT / 3, 0.0, CENSORED * WEIGHT / 3])


def of_steps(steps: list[float], horizon: float) -> Targets:
    left = np.array(steps, np.float32)
    known = np.clip(1 - left / np.float32(horizon), 0, 1)
    return Targets(known, np.ones_like(known), left, horizon)


def test_calibration_is_a_rising_line() -> None:
    targets, every = of_steps([0, 2, 5, 8, np.nan], 10), np.arange(5)
    column = (np.array([1.0, 0.8, 0.5, 0.2, 9.0], np.float32) - 0.25) / 2
    found = calibrated(column, targets, every)
    assert (found.scale, found.offset) == pytest.approx((2.0, 0.25), abs=1e-5)
    falling = calibrated(-column, targets, every)
    assert falling == Progress(horizon=10.0, scale=LEAST_SCALE)
    # Of 95 frames near success and 5 far from it, which lie on no line, either tenth says as much.
    many = of_steps([0.0] * 9 + [5.0] * 95 + [90.0] * 5, 100)
    column = np.repeat(np.array([1.0, 0.8, 0.7], np.float32), [9, 95, 5])
    scale = calibrated(column, many, np.arange(109)).scale
    share = 95 / (9 + 95)  # the successes are of the same tenth
    wanted = (0.2 * 0.05 * share + 0.3 * 0.9) / (0.2**2 * share + 0.3**2)
    assert scale == pytest.approx(wanted, rel=1e-4)


def test_an_episode_rises_if_its_last_image_is_above_its_first() -> None:
    steps = [8.0, 0.0, 4.0, 1.0, 3.0, np.nan, np.nan, 5.0, 4.5]
    targets, data = of_steps(steps, 10), object.__new__(Dataset)
    object.__setattr__(data, "episodes", np.array([0, 0, 1, 1, 2, 2, 3, 4, 4]))
    progress = np.array([0.1, 0.9, 0.6, 0.5, 0.7, 0.7, 0.2, 0.5, 0.95], np.float32)
    found = rise(progress, targets, data, np.arange(9))
    assert (found.rising, found.episodes) == (1, 2)  # others have one time only, or two too near
    assert found.error == pytest.approx(np.mean([0.1, 0.1, 0.0, 0.4, 0.0, 0.0, 0.4]), abs=1e-6)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("bars")
    write_episodes(folder / "data", 120)
    words = ["--data", str(folder / "data"), "--out", str(folder / "run"), "--epochs", "4"]
    words += ["--network", "fine_resnet", "--target-fpr", "0.2", "--progress"]
    assert main(["finetune", *words]) == 0
    return folder / "data", folder / "run"


def test_a_bundle_with_progress_follows_episodes_that_it_never_saw(
    trained: tuple[Path, Path],
) -> None:
    _, run = trained
    bundle = Bundle.load(run / "bundle")
    assert bundle.spec.progress is not None and bundle.spec.progress.horizon == 9
    assert bundle.golden.logits.shape[1] == 3
    with Classifier(bundle, precision="fp32") as classifier:
        images = np.stack([draw(step, 10**6 + step, True) for step in range(STEPS)])
        seen = classifier.predict(images)
    np.testing.assert_allclose(seen.progress, np.arange(STEPS) / 9, atol=0.25)
    assert (np.diff(seen.progress) > -0.1).all() and seen.probability.argmax() == STEPS - 1
    measured = bundle.spec.metrics["progress"]
    assert measured["rising"] == measured["episodes"] > 5 and measured["error"] < 0.15
    text = (run / "report.html").read_text(encoding="utf-8")
    assert f"in {measured['rising']} of {measured['episodes']} held-out episodes" in text
    assert (run / "images" / "progress.png").is_file()


def test_a_mended_bundle_keeps_its_progress(trained: tuple[Path, Path], tmp_path: Path) -> None:
    data, run = trained
    bundle = Bundle.load(run / "bundle")
    images = np.stack([draw(step, 5 * 10**5 + step, False) for step in range(STEPS)] * 2)
    labelled = Labelled(images, np.zeros(20, np.int64), np.ones(20, np.bool_), "failures")
    config = MendConfig(bundle=str(run / "bundle"), data=data, labels=(tmp_path,), out=tmp_path)
    dataset = read_data(data, bundle.spec)
    mended = refit(config, bundle, dataset, labelled, tmp_path, Recipe(replay=256, epochs=1))
    assert mended.spec.progress is not None and mended.spec.progress.horizon == 9
    with Classifier(mended, precision="fp32") as classifier:
        ends = np.stack([draw(0, 1, True), draw(STEPS - 1, 2, True)])
        first, last = classifier.predict(ends).progress  # type: ignore[misc]
    assert first < 0.3 and last > 0.7


def test_what_cannot_teach_progress_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", 200)
    config = FinetuneConfig(data=tmp_path / "photos", out=tmp_path / "run", progress=True)
    with pytest.raises(DatasetError, match=r"does not say how many steps.*capture again"):
        finetune.run(dataclasses.replace(config, target_fpr=0.5))
    more: dict[str, Any]
    for more in ({"freeze": True, "pretrained": True}, {"labels_from": "judge.py:score"}):
        with pytest.raises(ConfigError, match=f"progress and {next(iter(more))}"):
            finetune.run(dataclasses.replace(config, **more))
