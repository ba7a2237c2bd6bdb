"""What follows a classifier's training: calibration, threshold, verdict, bundle, report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.bundles.schema import BundleSpec, Decision
from vinoreward.rewards.calibration import clopper_pearson, temperature, threshold_for_fpr
from vinoreward_training.classifier.evaluation import (
    GOOD_RECALL,
    Floats,
    Labels,
    Rates,
    Verdict,
    average_precision,
    judge,
    log_loss,
    per_category,
    pr_curve,
    raised_threshold,
    rates,
    roc_curve,
    sigmoid,
    still_falling,
)
from vinoreward_training.classifier.training import judged_dead
from vinoreward_training.classifier.weights import RECORD, TrainedOn
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import SPLIT, Dataset
from vinoreward_training.data.dataset_files import Indices, read_about
from vinoreward_training.runs.fit import export_checked, predict, spread, weights_of
from vinoreward_training.runs.next_command import after_bundle, origin
from vinoreward_training.runs.report import Section, new_figure, publish, save_figure

Dead = dict[str, Floats]
"""Family of dead-camera frames to their log-odds (M,), not calibrated."""

GOLDEN_FRAMES = 8
SHOWN_MISTAKES = 12


def golden_indices(log_odds: Floats, labels: Labels, threshold: float) -> Indices:
    """Choose golden frames: of each class two at random depth and two next to the threshold."""
    near = np.argsort(np.abs(log_odds - threshold), kind="stable")
    chosen: list[int] = []
    for label in (0, 1):
        members = near[labels[near] == label]
        picks = [0, 1, len(members) // 2, len(members) - 1]
        chosen += [int(members[min(pick, len(members) - 1)]) for pick in picks]
    return np.array(sorted(dict.fromkeys(chosen)), dtype=np.int64)[:GOLDEN_FRAMES]


@dataclass(frozen=True)
class _Evaluation:
    decision: Decision
    test: Rates
    log_odds: Floats
    """(N,) calibrated, of every frame; those of training frames mean nothing."""
    threshold_log_odds: float
    metrics: dict[str, Any]
    categories: list[dict[str, object]]
    verdict: Verdict


def _evaluate(
    config: FinetuneConfig,
    dataset: Dataset,
    logits: Floats,
    parts: Sequence[Indices],
    dead: tuple[Dead, Dead],
    *,
    falling: bool,
) -> _Evaluation:
    """Calibrate and choose the threshold on validation frames, then measure on test frames.

    The dead-camera frames ``dead`` of (validation, test) are counted apart: among the failures they
    would dilute the false-positive rate, as they are easy. They only raise the threshold.
    """
    _, validation, test = parts
    labels = dataset.labels
    heat = temperature(logits[validation], labels[validation])
    log_odds = (logits[:, 1] - logits[:, 0]) / heat
    probabilities = sigmoid(log_odds)
    chosen = threshold_for_fpr(
        probabilities[validation],
        labels[validation],
        dataset.episodes[validation],
        config.target_fpr,
    )
    successes = probabilities[validation][labels[validation] == 1]
    failures = probabilities[validation][labels[validation] == 0]
    value = raised_threshold(
        float(chosen.value), successes, sigmoid(np.concatenate([*dead[0].values()]) / heat)
    )

    def claims(these: Floats) -> npt.NDArray[np.bool_]:
        return these.astype(np.float32) >= np.float32(value)  # in float32, as at run time

    details = chosen.as_dict()
    if value > chosen.value:
        raised = rates(claims(probabilities[validation]), labels[validation])
        details |= {"raised_to": value, "at_raised": asdict(raised)}
    claimed = claims(probabilities[test])
    measured = rates(claimed, labels[test])
    by_family = {family: claims(sigmoid(values / heat)) for family, values in dead[1].items()}
    every = np.concatenate([*by_family.values()])
    good = np.quantile(successes, 1 - GOOD_RECALL, method="lower")
    verdict = judge(
        measured,
        chosen,
        dead=len(every),
        dead_claimed=int(every.sum()),
        rate_of_good_recall=clopper_pearson(
            int((failures >= good).sum()), len(failures), 0.95, "upper"
        )[1],
        falling=falling,
    )
    return _Evaluation(
        decision=Decision(threshold=value, temperature=heat, chosen_for=details),
        test=measured,
        log_odds=log_odds,
        threshold_log_odds=float(np.log(value) - np.log1p(-value)) if 0 < value < 1 else np.inf,
        metrics={
            "verdict": verdict.as_dict(),
            "test": asdict(measured)
            | {
                "average_precision": average_precision(log_odds[test], labels[test]),
                "log_loss": log_loss(log_odds[test], labels[test]),
                "frames": len(test),
                "episodes": len(np.unique(dataset.episodes[test])),
            },
            "dead_camera": {
                "frames": len(every),
                "claimed": int(every.sum()),
                "claimed_high": clopper_pearson(int(every.sum()), len(every), 0.95, "upper")[1],
                "by_family": {family: int(each.sum()) for family, each in by_family.items()},
            },
        },
        categories=per_category(claimed, labels[test], dataset.categories[test].tolist())
        + per_category(
            every,
            np.zeros(len(every), dtype=np.int64),
            [f"dead_camera: {family}" for family, each in by_family.items() for _ in each],
        ),
        verdict=verdict,
    )


def make_bundle(
    config: FinetuneConfig,
    dataset: Dataset,
    parts: Sequence[Indices],
    folder: Path,
    inner: WithPreprocess,
    history: Sequence[dict[str, float]],
    record: TrainedOn,
    unseen: str | None = None,
) -> Verdict:
    """Turn a trained network into FOLDER/bundle and FOLDER/report.html; return the verdict on it.

    Args:
        config: of the run.
        dataset: all frames.
        parts: indices of (train, validation, test).
        folder: the run folder.
        inner: the trained network, in evaluation mode.
        history: one record per epoch.
        record: what the network was trained on.
        unseen: whether the weights it started from had seen the held-out frames, in words.

    Raises:
        OutputError: the exported network does not compute what was trained.
        InputError: no threshold reaches the target false-positive rate.
        RunFolderError: a file cannot be written.
    """
    train, validation, test = parts
    held = np.concatenate([validation, test])
    logits = np.zeros((len(dataset.labels), 2))  # of training frames never read
    logits[held] = predict(inner, dataset.images[held])
    dead = (
        judged_dead(inner, dataset, validation, 1, config.seed),
        judged_dead(inner, dataset, test, 2, config.seed),
    )
    falling = still_falling([record["val_loss"] for record in history], config.epochs)
    found = _evaluate(config, dataset, logits, parts, dead, falling=falling)
    decision, rated, seen = found.decision, found.test, found.metrics["dead_camera"]
    height, width = dataset.images.shape[1:3]
    compared = spread(dataset.images, np.arange(len(dataset.images)), 64)
    difference = export_checked(inner, folder / "model.onnx", compared, predict(inner, compared))
    boundary = found.threshold_log_odds
    golden = test[golden_indices(found.log_odds[test], dataset.labels[test], boundary)]
    spec = BundleSpec(
        name=config.name,
        picture=dataset.picture(),
        decision=decision,
        architecture=config.architecture,
        metrics=found.metrics | {"export_difference": difference, "history": list(history)},
        dataset={
            "sha256": dataset.sha256,
            "counts": dataset.counts,
            "seed": dataset.seed,
            **origin(read_about(config.data)),
            "split": SPLIT,
            "trained_on": record.facts(),
        },
    )
    facts: dict[str, object] = {
        "network": f"{config.architecture}, {height}x{width} pixels, FP32",
        "trained on": f"{len(train)} frames ({dataset.counts['episodes']} episodes in all), "
        f"dataset {dataset.sha256[:12]}, seed {config.seed}",
        # Not the whole path: it means nothing on another machine.
        "started from": "random weights" if config.weights is None else config.weights.name,
    }
    if unseen is not None:
        facts["held-out frames new to those weights"] = unseen
    facts |= {
        "epochs": len(history),
        "exported network's largest difference from torch": f"{difference:.2g} in logits",
    }
    chosen: dict[str, object] = {
        "threshold": f"{decision.threshold:.6f} (calibrated probability)",
        "temperature": f"{decision.temperature:.3f}",
    } | {str(key): value for key, value in decision.chosen_for.items() if key != "value"}
    confusion: list[dict[str, object]] = [
        {"truth": truth, "claimed success": claimed, "claimed failure": denied}
        for truth, claimed, denied in (
            ("success", rated.true_positives, rated.false_negatives),
            ("failure", rated.false_positives, rated.true_negatives),
        )
    ]
    saved = publish(
        folder,
        "Success classifier",
        "A success classifier: one camera picture in, the probability of success out. Made by "
        "`vinoreward finetune`; use it with `vinoreward.LearnedReward(env, path)`.",
        [
            Section(f"Verdict: {found.verdict.level}", found.verdict.bullets()),
            Section("What it is", facts=facts),
            Section(
                "On held-out test frames",
                f"Recall {rated.recall:.2%} (95 % interval {rated.recall_low:.2%} to "
                f"{rated.recall_high:.2%}); false-positive rate {rated.false_positive_rate:.2%} "
                f"(95 % upper bound {rated.fpr_high:.2%}); precision {rated.precision:.2%}. "
                f"Clopper-Pearson, counted in frames.\n\nOf {seen['frames']} frames as a failing "
                "camera gives them (black, noise, lost rows and others, the categories "
                f"`dead_camera`) it claims {seen['claimed']} (95 % upper bound "
                f"{seen['claimed_high']:.2%}). They are easy and not counted in the rates above.",
                confusion,
            ),
            Section("By category", rows=found.categories),
            Section("The threshold", facts=chosen),
            Section("Pictures", pictures=_draw(folder / "pictures", dataset, test, found, history)),
            Section(
                "Limits",
                "It knows the pictures it was trained on: another camera, size, light or object "
                "needs a new capture. Frames close to the success distance are the ones it gets "
                "wrong.",
            ),
        ],
        spec,
        {
            "model.onnx": folder / "model.onnx",
            "model.safetensors": weights_of(inner.net, {RECORD: record.to_text()}),
        },
        (dataset.images[golden], logits[golden].astype(np.float32)),
    )
    print(
        f"test: recall {rated.recall:.2%} ({rated.recall_low:.2%} to "
        f"{rated.recall_high:.2%}), false positives {rated.false_positive_rate:.2%} "
        f"(at most {rated.fpr_high:.2%}), threshold {decision.threshold:.4f}"
    )
    print(f"dead camera: {seen['claimed']} of {seen['frames']} frames claimed")
    print(f"verdict: {found.verdict}")
    if found.verdict.level != "useless":
        print(f"next: {after_bundle(saved, config.data, config.success_label)}")
    return found.verdict


def _draw(
    folder: Path,
    dataset: Dataset,
    test: Indices,
    found: _Evaluation,
    history: Sequence[Mapping[str, float]],
) -> list[Path]:
    """Draw the model card's pictures; return their paths."""
    folder.mkdir(exist_ok=True)
    return [
        *_draw_curves(folder, found, dataset.labels[test], found.log_odds[test]),
        _draw_mistakes(folder / "mistakes.png", dataset, test, found),
        _draw_history(folder / "history.png", history),
    ]


def _draw_curves(
    folder: Path, found: _Evaluation, labels: Labels, log_odds: Floats
) -> Iterator[Path]:
    """Write ``roc.png`` and ``pr.png`` for held-out frames, with the threshold marked on both."""
    claimed, success = log_odds >= found.threshold_log_odds, labels == 1
    recall = float((claimed & success).sum() / max(1, success.sum()))
    false_rate = float((claimed & ~success).sum() / max(1, (~success).sum()))
    precision = float((claimed & success).sum() / max(1, claimed.sum()))
    average = average_precision(log_odds, labels)
    plots: list[tuple[str, tuple[Floats, Floats], tuple[float, float], str, str, str]] = [
        ("roc", roc_curve(log_odds, labels), (false_rate, recall), "false-positive rate", "recall",
         "ROC, held-out frames (x is logarithmic beyond 1 %)"),
        ("pr", pr_curve(log_odds, labels), (recall, precision), "recall", "precision",
         f"precision and recall, average precision {average:.4f}"),
    ]  # fmt: skip
    for name, curve, point, x_label, y_label, title in plots:
        figure = new_figure()
        axes = figure.add_subplot()
        axes.plot(*curve, color="#0068b5")
        axes.plot(*point, "o", color="#c8102e", label="the threshold")
        axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, 1.02), xlim=(0, 1.02), title=title)
        if name == "roc":
            axes.set_xscale("symlog", linthresh=0.01)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower center")
        yield save_figure(figure, folder / f"{name}.png")


def _draw_history(path: Path, history: Sequence[Mapping[str, float]]) -> Path:
    """Write a picture of loss and average precision by epoch."""
    figure = new_figure(8.0, 3.4)
    left, right = figure.subplots(1, 2)
    epochs = [record["epoch"] for record in history]
    left.plot(epochs, [record["val_loss"] for record in history], "o-", color="#0068b5")
    left.set(xlabel="epoch", ylabel="validation cross-entropy, calibrated")
    left.set_ylim(0, 1.1 * max(record["val_loss"] for record in history))
    right.plot(epochs, [record["val_ap"] for record in history], "o-", color="#0068b5")
    right.set(xlabel="epoch", ylabel="validation average precision")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.ticklabel_format(useOffset=False)
        axes.grid(alpha=0.3)
    return save_figure(figure, path)


def _draw_mistakes(path: Path, dataset: Dataset, test: Indices, found: _Evaluation) -> Path:
    """Write a grid of the test frames that are most wrong, or else closest to being wrong."""
    threshold = found.decision.threshold
    probabilities, labels = sigmoid(found.log_odds[test]), dataset.labels[test]
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
            color="#c8102e" if wrong else "#333333",
        )
    return save_figure(figure, path)
