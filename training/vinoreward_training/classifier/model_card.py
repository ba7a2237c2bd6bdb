"""The pictures and tables of a classifier's model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward_training.classifier.evaluation import (
    Rates,
    average_precision,
    pr_curve,
    roc_curve,
)
from vinoreward_training.runs.curves import new_figure, save_figure

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def draw_curves(folder: Path, log_odds: Floats, labels: Labels, threshold: float) -> list[Path]:
    """Write ``roc.png`` and ``pr.png`` for held-out frames; return their paths.

    Args:
        folder: where to write.
        log_odds: (N,) calibrated.
        labels: (N,) 1 = success.
        threshold: log-odds at which success is claimed; marked on both curves.
    """
    claimed, success = log_odds >= threshold, labels == 1
    recall = float((claimed & success).sum() / max(1, success.sum()))
    false_rate = float((claimed & ~success).sum() / max(1, (~success).sum()))
    precision = float((claimed & success).sum() / max(1, claimed.sum()))
    rates, recalls = roc_curve(log_odds, labels)
    across, precisions = pr_curve(log_odds, labels)
    plots: list[tuple[str, Any, Any, tuple[float, float], str, str]] = [
        ("roc", rates, recalls, (false_rate, recall), "false-positive rate", "recall"),
        ("pr", across, precisions, (recall, precision), "recall", "precision"),
    ]
    paths = []
    for name, x, y, point, x_label, y_label in plots:
        figure = new_figure()
        axes = figure.add_subplot()
        axes.plot(x, y, color="#0068b5")
        axes.plot(*point, "o", color="#c8102e", label="the threshold")
        axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, 1.02))
        if name == "roc":
            axes.set(xscale="symlog", xlim=(0, 1.02))
            axes.set_xscale("symlog", linthresh=0.01)
            axes.set_title("ROC, held-out frames (x is logarithmic beyond 1 %)")
        else:
            axes.set(xlim=(0, 1.02))
            axes.set_title(
                f"precision and recall, average precision {average_precision(log_odds, labels):.4f}"
            )
        axes.grid(alpha=0.3)
        axes.legend(loc="lower center")
        paths.append(save_figure(figure, folder / f"{name}.png"))
    return paths


def draw_history(path: Path, history: Sequence[Mapping[str, float]]) -> Path:
    """Write a picture of loss and average precision by epoch; return its path."""
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


def draw_mistakes(
    path: Path,
    images: npt.NDArray[np.uint8],
    probabilities: Floats,
    labels: Labels,
    captions: Sequence[str],
    threshold: float,
    *,
    count: int = 12,
) -> Path:
    """Write a grid of the frames that are most wrong, or else closest to being wrong.

    Args:
        path: PNG to write.
        images: (N, H, W, 3) uint8.
        probabilities: (N,) calibrated probability of success.
        labels: (N,) 1 = success.
        captions: (N,) a word about each frame.
        threshold: probability at which success is claimed.
        count: pictures in the grid.
    """
    margin = np.where(labels == 1, probabilities - threshold, threshold - probabilities)
    chosen = np.argsort(margin, kind="stable")[:count]
    rows = -(-len(chosen) // 4)
    height, width = images.shape[1:3]
    figure = new_figure(10.0, rows * (2.5 * height / width + 0.35))
    grid = np.atleast_1d(figure.subplots(rows, 4)).reshape(-1)
    for axes in grid:
        axes.axis("off")
    for axes, index in zip(grid, chosen, strict=False):
        truth = "success" if labels[index] == 1 else "failure"
        wrong = (probabilities[index] >= threshold) != (labels[index] == 1)
        axes.imshow(images[index], interpolation="nearest")
        axes.set_title(
            f"P {probabilities[index]:.3f}, truth {truth}\n{captions[index]}",
            fontsize=8,
            color="#c8102e" if wrong else "#333333",
        )
    return save_figure(figure, path)


def confusion_rows(rates: Rates) -> list[dict[str, object]]:
    """Return the confusion table of a classifier as rows."""
    success = (rates.true_positives, rates.false_negatives)
    failure = (rates.false_positives, rates.true_negatives)
    return [
        {"truth": truth, "claimed success": claimed, "claimed failure": denied}
        for truth, (claimed, denied) in (("success", success), ("failure", failure))
    ]


def in_words(rates: Rates) -> str:
    """Return the rates of a classifier as a sentence."""
    return (
        f"Recall {rates.recall:.2%} (95 % interval {rates.recall_low:.2%} to "
        f"{rates.recall_high:.2%}); false-positive rate {rates.false_positive_rate:.2%} "
        f"(95 % upper bound {rates.fpr_high:.2%}); precision {rates.precision:.2%}. "
        "Clopper-Pearson, counted in frames."
    )
