"""From labelled images to a bundle: the loop, the threshold, the files."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_folders import make_images, write_folder
from safetensors.torch import save as safetensors_bytes

from vinoreward.backends.torch_classifiers import build
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import (
    ConfigError,
    DatasetError,
    ModelCorruptError,
)
from vinoreward.images import View
from vinoreward.rewards.calibration import threshold_for_fpr
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier import finetune
from vinoreward_training.classifier.bundle import golden_indices
from vinoreward_training.classifier.corruptions import randomly_corrupted
from vinoreward_training.classifier.evaluation import (
    Verdict,
    average_precision,
    finer,
    give_verdict,
    raised_threshold,
    rates,
    roc_curve,
    saved_by,
)
from vinoreward_training.classifier.ood import fit_ood, trained_on_corruptions
from vinoreward_training.classifier.training import (
    SAMPLE,
    ChannelsLast,
    ClassifierFit,
    check_unseen,
    margin_targets,
    read_record,
    record_of,
    sampling_shares,
)
from vinoreward_training.cli import main
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.runs.fit import CHECKPOINT


def dataset_of(count: int) -> Dataset:
    images, labels = make_images(count)
    return Dataset(
        images=images,
        labels=labels,
        episodes=np.arange(count),
        categories=np.array(["failure", "success"])[labels],
        distances=np.full(count, np.nan),
        files=tuple(str(index) for index in range(count)),
        scene={},
        sha256="0" * 64,
        folder=Path("memory"),
    )


def network() -> ChannelsLast:
    torch.manual_seed(0)
    return ChannelsLast(WithPreprocess(build("squeezenet1_1"), (0.5,) * 3, (0.25,) * 3))


def fit_of(folder: Path, *, resume: bool = False, epochs: int = 2) -> ClassifierFit:
    data = dataset_of(24)
    config = FinetuneConfig(epochs=epochs, resume=resume)
    parts = np.arange(16), np.arange(16, 24)
    return ClassifierFit(network(), data, *parts, config, folder)


def test_a_stopped_run_goes_on_to_the_very_same_weights(tmp_path: Path) -> None:
    whole = fit_of(tmp_path / "whole")
    whole.run("whole")
    stopped = fit_of(tmp_path / "stopped")
    stopped.run("stopped", until=3)
    again = fit_of(tmp_path / "stopped", resume=True)
    assert again.step == 3
    again.run("again")
    assert len(whole.history) == 2
    assert [record["val_loss"] for record in again.history] == pytest.approx(
        [record["val_loss"] for record in whole.history], rel=1e-3
    )


def test_a_share_of_the_images_is_corrupted_and_all_views_alike() -> None:
    images = np.random.default_rng(0).integers(0, 256, (200, 24, 30, 3), dtype=np.uint8)
    before = images.copy()

    def drawn(share: float, seed: int = 0) -> np.ndarray:
        return randomly_corrupted(images, share, np.random.default_rng(seed))

    some = drawn(0.3)
    changed = (some != images).any(axis=(1, 2, 3))
    assert 40 < changed.sum() < 80 and np.array_equal(before, images)
    assert np.array_equal(some, drawn(0.3)) and not np.array_equal(some, drawn(0.3, 1))
    assert np.array_equal(drawn(0.0), images)
    both = np.concatenate([images, images], axis=1)
    views = (View(name="front", height=24), View(name="wrist", height=24))
    found = randomly_corrupted(both, 1.0, np.random.default_rng(0), views)
    assert np.array_equal(found[:, :24], found[:, 24:]) and not np.array_equal(found, both)


def lit_scene(count: int = 400) -> Dataset:
    """Noisy images of one scene; in every second one the middle is a success's."""
    random = np.random.default_rng(0)
    scene = np.kron(random.integers(60, 190, (6, 8, 3)), np.ones((4, 4, 1)))
    images = np.clip(scene + random.normal(0, 2, (count, 24, 32, 3)), 0, 255).astype(np.uint8)
    return dataclasses.replace(dataset_of(count), images=images)


def truth_in(dataset: Dataset, images: np.ndarray) -> np.ndarray:
    """Return the labels (N,) of validation frames, one of each label and episode, in any light."""
    assert len(images) > 0
    validation = split_by_episode(dataset)[1]
    found = []
    for label in (0, 1):
        some = validation[dataset.labels[validation] == label]
        found.append(some[np.unique(dataset.episodes[some], return_index=True)[1]])
    labels = dataset.labels[np.concatenate(found)] == 1
    assert len(labels) == len(images)
    return labels


@pytest.mark.parametrize(
    ("fails_below", "fails", "light"),
    [(0.75, "claims", [0.85, 1.3]), (0.9, "misses", [1.0, 1.3]), (2.0, "claims", [1.0, 1.0])],
)
def test_a_detector_accepts_no_light_in_which_the_network_is_wrong(
    fails_below: float, fails: str, light: list[float]
) -> None:
    dataset = lit_scene()
    usual = dataset.images.mean()

    def claims(images: np.ndarray) -> np.ndarray:
        right = truth_in(dataset, images)
        gain = images.mean() / usual
        if abs(gain - 1) < 0.02 or gain >= fails_below:
            return right
        wrong = np.flatnonzero(right == (fails == "misses"))
        right[wrong[: max(2, len(wrong) // 3)]] ^= True
        return right

    found = fit_ood(dataset, split_by_episode(dataset), claims)
    assert found.detector is not None and found.metrics["light"] == light
    assert trained_on_corruptions({"guard": found.metrics})
    strict = fit_ood(dataset, split_by_episode(dataset), None)
    assert strict.metrics["light"] == [1.0, 1.0] and "light" not in str(strict)
    assert not trained_on_corruptions({"guard": strict.metrics})
    darker = (dataset.images * 0.74).astype(np.uint8)
    assert (found.detector.ood_score(darker) > 1).mean() > 0.95


def test_distances_become_log_odds_that_change_sign_at_the_success_distance() -> None:
    distances = np.array([0.0, 0.032, 0.035, 0.038, np.inf, np.nan, 0.01])
    labels = np.array([1, 1, 1, 0, 0, 1, 0])
    targets = margin_targets(distances, labels, 0.035)
    assert targets[:5] == pytest.approx([6, 1, 0, -1, -6], abs=1e-5)
    assert np.isnan(targets[5:]).all()  # unknown, and a distance that contradicts its label


@given(
    st.lists(st.sampled_from([-6.0, -3.0, -0.1, 0.1, 3.0, 6.0, math.nan]), min_size=1),
    st.floats(1, 10),
)
def test_frames_at_the_boundary_are_drawn_more_often_and_each_side_alike(
    values: list[float], boost: float
) -> None:
    targets = np.array(values, dtype=np.float32)
    shares = sampling_shares(targets, boost)
    assert shares.sum() == pytest.approx(1) and (shares > 0).all()
    near = np.abs(targets) < 6
    inside, outside = near & (targets > 0), near & (targets < 0)
    if boost == 1 or not (inside.any() and outside.any()):
        assert np.ptp(shares) == 0
        return
    assert shares[inside].sum() == pytest.approx(shares[outside].sum())
    others = ~near
    if others.any():
        ratio = (shares[near].sum() / near.sum()) / (shares[others].sum() / others.sum())
        assert ratio == pytest.approx(boost)


def keyed(count: int, seed: int = 0) -> Dataset:
    """Return many tiny images, each its own episode."""
    images = np.random.default_rng(seed).integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    return dataclasses.replace(
        dataset_of(2),
        images=images,
        labels=np.arange(count) % 2,
        episodes=np.arange(count),
        sha256=f"{seed}" * 64,
        files=tuple(str(index) for index in range(count)),
    )


@pytest.mark.parametrize("count", [300, 4 * SAMPLE])
def test_weights_that_have_seen_held_out_images_are_refused(count: int, tmp_path: Path) -> None:
    data = keyed(count)
    parts = split_by_episode(data)
    record = record_of(data, parts[0], started=False, before=None)
    assert len(record.sample) <= SAMPLE
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_bytes({"a": torch.zeros(1)}, {"trained_on": record.to_text()}))
    read = read_record(path)
    assert read is not None and read.facts() == record.facts()
    assert check_unseen(read, path, data, parts).startswith("yes")
    # The same images as a capture with episodes of its own: held out are others of them.
    other = dataclasses.replace(data, origin="scene seed 1")
    with pytest.raises(DatasetError, match=r"trained on \d\d% of the images.*--weights"):
        check_unseen(read, path, other, split_by_episode(other))
    # And after a second training that began with those weights.
    more = keyed(count, seed=1)
    second = record_of(more, split_by_episode(more)[0], started=True, before=read)
    assert len(second.sample) <= SAMPLE and second.complete
    assert second.datasets == (data.sha256, more.sha256)
    moved = dataclasses.replace(more, origin="scene seed 7")
    first = dataclasses.replace(data, origin="scene seed 5")
    third = record_of(first, parts[0], started=True, before=None)
    for dataset in (moved, first, moved):
        third = record_of(dataset, parts[0], started=True, before=third)
    assert third.captures == ("scene seed 5", "scene seed 7")
    with pytest.raises(DatasetError, match="trained on"):
        check_unseen(second, path, other, split_by_episode(other))


def test_raising_the_threshold_keeps_the_claims() -> None:
    none = np.zeros(0)
    likely = np.linspace(0.9, 1, 200)
    assert raised_threshold(0.01, likely, none) == 0.5
    assert raised_threshold(0.7, likely, none) == 0.7
    # A weak network calls hardly anything likelier than not: 0.5 would lose all of the successes.
    weak = np.linspace(0.05, 0.45, 200)
    value = raised_threshold(0.2, weak, none)
    before, after = (weak >= 0.2).sum(), (weak.astype(np.float32) >= np.float32(value)).sum()
    assert 0.2 < value < 0.5 and 0.98 * before < after <= before
    # Above the dead-camera frames, where few successes lie below them.
    dead = np.array([0.1, 0.85])
    assert 0.85 < raised_threshold(0.6, likely, dead) < 0.86
    assert 0.9 < raised_threshold(0.6, likely, np.array([0.999])) < 0.92
    assert raised_threshold(0.6, np.ones(9), np.ones(3)) == 0.99


def verdict_of(
    hits: int, false: int, *, dead: int = 0, episodes: int = 400, **more: Any
) -> Verdict:
    """Return that on one that claims ``hits`` of 100 successes and ``false`` of 400 failures."""
    labels = np.array([1] * 100 + [0] * 400)
    claimed = np.array([1] * hits + [0] * (100 - hits) + [1] * false + [0] * (400 - false))
    found = rates(claimed == 1, labels)
    probabilities = np.where(np.arange(500) < 100, 0.9, 0.1)
    chosen = threshold_for_fpr(probabilities, labels, np.arange(500) % (episodes + 100), 0.02)
    return give_verdict(found, chosen, dead=500, dead_claimed=dead, **more)


def test_the_verdict_says_what_a_classifier_is_good_for() -> None:
    assert verdict_of(95, 4) == Verdict("usable")
    none = verdict_of(0, 0)
    assert none.level == "useless" and "0 of 100 test successes" in none.reasons[0]
    same = verdict_of(30, 150)
    assert same.level == "useless" and "about as often" in " ".join(same.reasons)
    weak = verdict_of(53, 2)
    assert weak.level == "weak" and "more frames" in str(weak)
    assert verdict_of(95, 4, dead=40).reasons == ("it claims 40 of 500 dead-camera frames",)
    few = verdict_of(95, 4, episodes=0)
    assert few.level == "weak" and "support a false-positive rate of 0.03" in str(few)
    assert "finetune" in str(verdict_of(53, 2, finer=None))  # of a network from elsewhere


def test_the_verdict_says_whether_a_network_sees_too_little() -> None:
    random = np.random.default_rng(0)
    labels = np.arange(400) % 3 // 2
    clear = np.where(labels == 1, 4.0, -4.0) + random.normal(size=400)
    assert saved_by(np.stack([0 * clear, clear], 1), labels) > 0.9
    assert saved_by(random.normal(size=(400, 2)), labels) < 0.1
    assert saved_by(np.zeros((400, 2)), np.zeros(400, dtype=np.int64)) >= 0  # all alike
    for name in ("squeezenet1_1", "fine_resnet"):
        blind = verdict_of(0, 0, learnt=0.05, finer=finer(name, 64, 96))
        assert "not learnt even its training frames: it saves 5%" in str(blind)
        assert "--image-size 128 192" in blind.advice[0]
        assert ("--network fine_resnet" in str(blind)) == (name != "fine_resnet")
    lucky = verdict_of(30, 2, learnt=0.01)
    assert lucky.level == "useless" and verdict_of(30, 2).level == "weak"
    assert verdict_of(95, 4, learnt=0.1) == Verdict("usable")


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40).filter(
        lambda pairs: any(label for _, label in pairs)
    )
)
@settings(deadline=None)
def test_average_precision_is_the_mean_precision_at_each_success(
    pairs: list[tuple[int, bool]],
) -> None:
    scores = np.array([score for score, _ in pairs], dtype=np.float64)
    labels = np.array([label for _, label in pairs], dtype=np.int64)
    precisions = [labels[scores >= score].mean() for score in scores[labels == 1]]
    assert average_precision(scores, labels) == pytest.approx(np.mean(precisions))
    x, y = roc_curve(scores, labels)
    assert (np.diff(x) >= 0).all() and (np.diff(y) >= 0).all() and y[-1] == 1


def test_golden_frames_are_of_both_classes_and_hold_the_closest_ones() -> None:
    random = np.random.default_rng(0)
    log_odds, labels = random.normal(size=200), random.integers(0, 2, 200)
    chosen = golden_indices(log_odds, labels, 0.3)
    assert len(chosen) == 8 and labels[chosen].sum() == 4
    assert int(np.argmin(np.abs(log_odds - 0.3))) in chosen


def test_a_checkpoint_or_record_of_something_else_is_an_error(tmp_path: Path) -> None:
    fit_of(tmp_path).save()
    (tmp_path / CHECKPOINT).write_bytes(b"not a checkpoint")
    with pytest.raises(ModelCorruptError, match=r"checkpoint\.pt cannot be read"):
        fit_of(tmp_path, resume=True)
    for about in ({"dataset": "other"}, {"dataset": "0" * 64}):  # of another split
        torch.save({"about": about}, tmp_path / CHECKPOINT)
        with pytest.raises(ConfigError, match="--out"):
            fit_of(tmp_path, resume=True)
    path = tmp_path / "w.safetensors"
    for text in ("[", '{"sample": "AAAA", "datasets": [], "limit": 1, "split": "x"}'):
        path.write_bytes(safetensors_bytes({"a": torch.zeros(1)}, {"trained_on": text}))
        with pytest.raises(ModelCorruptError, match="trained on"):
            read_record(path)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("--image-crop 0 0 0 8", "image_crop"),
        ("--freeze", "freeze"),
        ("--pretrained --weights w.pt", "pretrained"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: str, field: str) -> None:
    words = [*options.split(), "--out", str(tmp_path / "run")]
    with pytest.raises(ConfigError) as caught:
        finetune.run(finetune.SETTINGS.parse(words, prog="x"))
    assert caught.value.field == field and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_an_image_folder_becomes_a_bundle_that_decides_right_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that Ctrl-C prints goes on alone; a finished run trains nothing."""
    data, out = write_folder(tmp_path / "mine", 240), tmp_path / "my run"
    steps, step = [], ClassifierFit._step

    def stopped(self: ClassifierFit) -> Any:
        steps.append(self.step)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    monkeypatch.setattr(ClassifierFit, "_step", stopped)
    words = ["--data", str(data), "--out", str(out), "--target-fpr", "0.2", "--epochs", "2"]
    assert main(["finetune", *words, "--image-size", "32", "40"]) == 130
    (line,) = re.findall(r"^Continue with: vinoreward (.*)$", capsys.readouterr().out, re.M)
    assert shlex.split(line) == ["finetune", "--resume", "--out", str(out)]
    # What is refused at once changes no settings of the run.
    assert main([*shlex.split(line), "--data", str(tmp_path)]) == 1
    assert main(shlex.split(line)) == 0
    assert steps[:4] == [0, 1, 2, 3] and len(steps) == 3 + steps[-1] + 1 - 3
    assert "INT8: none, FP32 works all the same." in capsys.readouterr().out  # too few frames
    bundle = Bundle.load(out / "bundle")
    assert bundle.spec.name == "mine-classifier"
    assert (bundle.spec.image.height, bundle.spec.image.width) == (32, 40)
    dataset = load_dataset(data)
    assert bundle.spec.dataset["sha256"] == dataset.sha256
    assert bundle.spec.metrics["test"]["recall"] == 1.0
    assert bundle.spec.decision.chosen_for["target_fpr"] == 0.2
    card, verdict = (bundle.path / "README.md").read_text(), bundle.spec.metrics["verdict"]
    assert f"## Verdict: {verdict['level']}" in card
    assert "| dead_camera: black | 40 | 0 |" in card
    with Classifier(bundle) as classifier:
        claimed = classifier.probability(dataset.images) >= classifier.threshold
    assert (claimed == (dataset.labels == 1)).mean() > 0.95
    record = read_record(bundle.path / "model.safetensors")
    assert record is not None and bundle.spec.dataset["trained_on"] == record.facts()
    taken, weights = len(steps), (bundle.path / "model.safetensors").read_bytes()
    assert main(shlex.split(line)) == 0
    assert len(steps) == taken and (bundle.path / "model.safetensors").read_bytes() == weights
