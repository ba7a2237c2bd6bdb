"""A trained classifier becomes a bundle with a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vinoreward.bundles.schema import BundleSpec
from vinoreward.rewards.classifier import log_odds as log_odds_of
from vinoreward.rewards.classifier import logit, progress_of, sigmoid
from vinoreward_training.classifier.agreement import JudgedLabels, compare_with_judge
from vinoreward_training.classifier.evaluation import (
    Evaluation,
    Floats,
    Labels,
    Verdict,
    claimed,
    evaluate,
    rates,
    roc_curve,
)
from vinoreward_training.classifier.last_layer import OutOfFold
from vinoreward_training.classifier.networks import normalization
from vinoreward_training.classifier.ood import OodFit, fit_ood
from vinoreward_training.classifier.progress import Targets, calibrated, rise, section
from vinoreward_training.classifier.training import RECORD, ChannelsLast, TrainedOn, logits_of
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.data.dataset_files import Indices, read_about
from vinoreward_training.data.provenance import SPLIT
from vinoreward_training.runs.fit import export_checked, predict, subsample, weights_of
from vinoreward_training.runs.report import Section, new_figure, publish, save_figure, shown
from vinoreward_training.tasks.recorded import recorded_task

GOLDEN_FRAMES = 8
SHOWN_MISTAKES = 12
BLUE, RED = "#0068b5", "#c8102e"
LIMITS = (
    "It knows the images it was trained on: another camera, size, light or object needs a new "
    "capture. Frames close to the success distance are the ones it gets wrong."
)
TRAINING_FRAMES = 400
"""About as many training frames show whether the network has learnt them."""


def golden_indices(log_odds: Floats, labels: Labels, threshold: float) -> Indices:
    """Choose golden frames: of each class two at random depth and two next to the threshold."""
    near = np.argsort(np.abs(log_odds - threshold), kind="stable")
    chosen: list[int] = []
    for label in (0, 1):
        members = near[labels[near] == label]
        picks = [0, 1, len(members) // 2, len(members) - 1]
        chosen += [int(members[min(pick, len(members) - 1)]) for pick in picks]
    return np.array(sorted(dict.fromkeys(chosen)), dtype=np.int64)[:GOLDEN_FRAMES]


def golden_of(labels: Labels, result: Evaluation) -> Indices:
    """Return which of the test frames, with these labels (N,), to record as golden."""
    return golden_indices(result.log_odds, labels, logit(result.decision.threshold))


def make_bundle(
    config: FinetuneConfig,
    dataset: Dataset,
    parts: Sequence[Indices],
    folder: Path,
    module: ChannelsLast,
    history: Sequence[dict[str, float]],
    record: TrainedOn,
    unseen: str | None = None,
    recall: float | None = None,
    *,
    corruptions: bool = True,
    judged: JudgedLabels | None = None,
    out_of_fold: OutOfFold | None = None,
    progress: Targets | None = None,
) -> Verdict:
    """Turn a trained network into FOLDER/bundle and FOLDER/report.html; return the verdict on it.

    Args:
        config: of the run.
        dataset: all frames.
        parts: indices of (train, validation, test).
        folder: the run folder.
        module: the trained network.
        history: one record per epoch.
        record: what the network was trained on.
        unseen: whether the held-out frames are new to the initial weights, in words.
        recall: on validation frames, which the threshold keeps; None chooses by the target rate.
        corruptions: whether it was trained on corrupted images.
        judged: a judge's labels, which it learned; None if the data have their own.
        out_of_fold: scores of frames that it learned, for the threshold; None if it learned the
            training part only.
        progress: what is known of the frames' progress; None if it was not learned.
    """
    train, choosing, test = parts
    known: tuple[Floats | None, Floats | None] = (None, None)
    if out_of_fold is not None:
        train = choosing = out_of_fold.learned
        test, known = out_of_fold.tested, out_of_fold.logits
    # In the memory order that it was trained in, which is faster on a CPU.
    predicted = partial(logits_of, module)
    result = evaluate(
        predicted,
        dataset,
        (choosing, test),
        config.target_fpr,
        seed=config.seed,
        trained=train[:: max(1, len(train) // TRAINING_FRAMES)],
        network=config.network,
        recall=recall,
        known=known,
    )

    def claims(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        odds = log_odds_of(predicted(images).astype(np.float64), 1, result.decision.temperature)
        return claimed(odds, result.decision.threshold)

    ood = fit_ood(dataset, parts, claims if corruptions else None)
    inner = module.inner.to(memory_format=torch.contiguous_format).eval()
    compared = subsample(dataset.images, np.arange(len(dataset.images)), 64)
    difference = export_checked(inner, folder / "model.onnx", compared, predict(inner, compared))
    golden = golden_of(dataset.labels[test], result)
    mean, std = normalization(config.network)
    about = read_about(config.data)
    named = {name: about[name] for name in ("labels_from",) if judged is None and name in about}
    spec = BundleSpec(
        name=config.name,
        image=dataset.image(mean=mean, std=std),
        decision=result.decision,
        architecture=config.network,
        metrics=result.metrics
        | {"guard": ood.metrics, "export_difference": difference, "history": list(history)},
        dataset={
            "sha256": dataset.sha256,
            "counts": dataset.counts,
            "seed": dataset.seed,
            **recorded_task(about),
            **named,
            "success_label": config.success_label,
            "split": SPLIT,
            "trained_on": record.facts(),
        },
    )
    facts = _facts(config, dataset, train) | {
        **named,
        **({} if unseen is None else {"held-out frames new to those weights": unseen}),
        **({"epochs": len(history)} if out_of_fold is None else out_of_fold.facts),
        "guard": str(ood),
        "exported network's largest difference from torch": f"{difference:.2g} in logits",
    }
    drawn = draw(folder / "images", dataset, test, result)
    sections = sections_of(result, facts, drawn)
    if progress is not None:
        spec, followed = _with_progress(spec, progress, dataset, module, (choosing, test), folder)
        sections.insert(1, followed)
    if judged is not None:
        spec, agreement = _distilled(spec, judged, dataset, test, result, folder)
        sections.insert(1, agreement)
    publish(
        folder,
        "Success classifier",
        "A success classifier: one camera image in, the probability of success out. Made by "
        "`vinoreward finetune`; use it with `vinoreward.LearnedReward(env, path)`.",
        sections,
        spec,
        {
            "model.onnx": folder / "model.onnx",
            "model.safetensors": weights_of(inner.net, {RECORD: record.to_text()}),
            **ood.files,
        },
        (dataset.images[test[golden]], predict(inner, dataset.images[test[golden]])),
    )
    print_result(result, ood)
    return result.verdict


def _distilled(
    spec: BundleSpec,
    judged: JudgedLabels,
    dataset: Dataset,
    test: Indices,
    result: Evaluation,
    folder: Path,
) -> tuple[BundleSpec, Section]:
    """Return the spec with the judge that labelled its images, and the agreement's section."""
    claims = claimed(result.log_odds, result.decision.threshold)
    found, section = compare_with_judge(dataset, test, claims, folder)
    print(found)
    metrics = {**spec.metrics, "agreement": found.as_dict}
    labelled = {**spec.dataset, "labels_from": judged.facts}
    section = replace(section, facts=judged.facts)
    return replace(spec, metrics=metrics, dataset=labelled), section


def _with_progress(
    spec: BundleSpec,
    targets: Targets,
    dataset: Dataset,
    module: ChannelsLast,
    parts: tuple[Indices, Indices],
    folder: Path,
) -> tuple[BundleSpec, Section]:
    """Return the spec with its progress, calibrated on the first part, and the report of it on the
    second."""
    choosing, test = (predict(module, dataset.images[part]) for part in parts)
    spec = replace(spec, progress=calibrated(choosing[:, 2], targets, parts[0]))
    found: Any = progress_of(test, spec)
    rises = rise(found, targets, dataset, parts[1])
    print(rises)
    metrics = {**spec.metrics, "progress": asdict(rises)}
    picture = folder / "images" / "progress.png"
    return replace(spec, metrics=metrics), section(found, targets, parts[1], rises, picture)


def _facts(config: FinetuneConfig, dataset: Dataset, train: Indices) -> dict[str, object]:
    height, width = dataset.images.shape[1:3]
    started = (
        f"the published weights of {config.network}" if config.pretrained else "random weights"
    )
    if config.weights is not None:
        started = config.weights.name  # a whole path means nothing on another machine
    facts: dict[str, object] = {
        "network": f"{config.network}, {height}x{width} pixels, FP32",
        "trained on": f"{len(train)} frames ({dataset.counts['episodes']} episodes in all), "
        f"dataset {dataset.sha256[:12]}, seed {config.seed}",
        "started from": started,
    }
    if dataset.views:
        facts["views"] = ", ".join(str(view) for view in dataset.views)
    if config.freeze:
        facts["trained layers"] = "the last one only"
    return facts


def print_result(result: Evaluation, ood: OodFit) -> None:
    """Print rates, OOD detector and verdict."""
    test, dead_camera = result.test, result.metrics["dead_camera"]
    print(
        f"test: recall {test.recall:.2%} ({test.recall_low:.2%} to "
        f"{test.recall_high:.2%}), false positives {test.false_positive_rate:.2%} "
        f"(at most {test.fpr_high:.2%}), threshold {result.decision.threshold:.4f}"
    )
    if (by_episode := result.metrics["failing_episodes"]) is not None:
        print(f"episodes: {by_episode['summary']}")
    print(f"dead camera: {dead_camera['claimed']} of {dead_camera['frames']} frames claimed")
    print(f"guard: {ood}")
    print(f"verdict: {result.verdict}")


def sections_of(
    result: Evaluation, facts: Mapping[str, object], images: Sequence[Path], limits: str = LIMITS
) -> list[Section]:
    """Return the sections of a classifier's report; ``facts`` say what it is."""
    decision, test, dead_camera = result.decision, result.test, result.metrics["dead_camera"]
    chosen: dict[str, object] = {
        "threshold": f"{decision.threshold:.6f} (calibrated probability)",
        "temperature": f"{decision.temperature:.3f}",
        **{name: shown(value) for name, value in decision.chosen_for.items() if shown(value)},
    }
    if (by_episode := result.metrics["failing_episodes"]) is not None:
        chosen["by episode"] = by_episode["summary"]
    failing = ""
    if dead_camera["frames"]:
        failing = (
            f"\n\nOf {dead_camera['frames']} frames as a failing camera gives them (black, noise, "
            "lost rows and others, the categories dead_camera) it claims "
            f"{dead_camera['claimed']} (95 % upper bound {dead_camera['claimed_high']:.2%}). They "
            "are easy and not counted in the rates above."
        )
    return [
        Section(f"Verdict: {result.verdict.level}", result.verdict.bullets()),
        Section("What it is", facts=facts),
        Section(
            "On held-out test frames",
            f"Recall {test.recall:.2%} (95 % interval {test.recall_low:.2%} to "
            f"{test.recall_high:.2%}); false-positive rate {test.false_positive_rate:.2%} "
            f"(95 % upper bound {test.fpr_high:.2%}); precision {test.precision:.2%}. "
            f"Clopper-Pearson, counted in frames.{failing}",
        ),
        Section("By category", rows=result.categories),
        Section("The threshold", facts=chosen),
        Section("Images", images=images),
        Section("Limits", limits),
    ]


def draw(folder: Path, dataset: Dataset, test: Indices, result: Evaluation) -> list[Path]:
    """Draw the model card's curves and mistakes; return their paths."""
    folder.mkdir(exist_ok=True)
    scores, boundary = result.log_odds, logit(result.decision.threshold)
    return [
        *draw_curves(folder, scores, dataset.labels[test], boundary, "held-out frames"),
        _draw_mistakes(folder / "mistakes.png", dataset, test, result),
    ]


def draw_curves(
    folder: Path, log_odds: Floats, labels: Labels, threshold: float, frames: str
) -> list[Path]:
    """Write ``roc.png``, with the threshold (in log-odds) marked; return its path in a list.

    ``frames`` says of what, for the title.
    """
    point = rates(log_odds >= threshold, labels)
    figure = new_figure()
    axes = figure.add_subplot()
    axes.plot(*roc_curve(log_odds, labels), color=BLUE)
    axes.plot(point.false_positive_rate, point.recall, "o", color=RED, label="the threshold")
    axes.set(xlabel="false-positive rate", ylabel="recall", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.set_title(f"ROC, {frames} (x is logarithmic beyond 1 %)")
    axes.set_xscale("symlog", linthresh=0.01)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower center")
    return [save_figure(figure, folder / "roc.png")]


def draw_reliability(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the plot of rows of :func:`.reliability`; return its path."""
    means, shares, low, high = (
        np.array([row[name] for row in rows], dtype=np.float64)
        for name in ("mean probability", "share of successes", "low", "high")
    )
    figure = new_figure()
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#999999", linestyle="--", label="calibrated")
    axes.errorbar(means, shares, [shares - low, high - shares], fmt="o", color=BLUE, capsize=3)
    axes.set(xlabel="probability", ylabel="share of successes", xlim=(0, 1), ylim=(-0.02, 1.02))
    axes.set_title("Reliability, with 95 % intervals")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    return save_figure(figure, path)


def _draw_mistakes(path: Path, dataset: Dataset, test: Indices, result: Evaluation) -> Path:
    """Write a grid of the test frames that are most wrong, or else closest to being wrong."""
    threshold = result.decision.threshold
    probabilities, labels = sigmoid(result.log_odds), dataset.labels[test]
    margin = np.where(labels == 1, probabilities - threshold, threshold - probabilities)
    chosen = np.argsort(margin, kind="stable")[:SHOWN_MISTAKES]
    rows = -(-len(chosen) // 4)
    height, width = dataset.images.shape[1:3]
    figure = new_figure(10.0, rows * (2.5 * height / width + 0.35))
    grid = np.atleast_1d(figure.subplots(rows, 4)).reshape(-1)
    for axes in grid:
        axes.axis("off")
    for axes, index in zip(grid, chosen, strict=False):
        frame, distance = test[index], dataset.distances[test[index]]
        where = f", {distance * 1000:.1f} mm" if np.isfinite(distance) else ""
        truth = "success" if labels[index] == 1 else "failure"
        wrong = (probabilities[index] >= threshold) != (labels[index] == 1)
        axes.imshow(dataset.images[frame], interpolation="nearest")
        axes.set_title(
            f"P {probabilities[index]:.3f}, truth {truth}\n{dataset.categories[frame]}{where}",
            fontsize=8,
            color=RED if wrong else "#333333",
        )
    return save_figure(figure, path)
