"""What follows training: calibration, threshold, export, model card, bundle, report."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import OutputError
from vinoreward_training import model_card
from vinoreward_training.dataset import Dataset
from vinoreward_training.dataset_files import read_about
from vinoreward_training.evaluation import (
    Rates,
    average_precision,
    log_loss,
    per_category,
    rates,
    sigmoid,
)
from vinoreward_training.next_command import after_bundle, origin

if TYPE_CHECKING:
    from vinoreward.backends.torch_networks import WithPreprocess
    from vinoreward.bundles.schema import Decision
    from vinoreward_training.finetune import FinetuneConfig

GOLDEN_FRAMES = 8
EXPORT_TOLERANCE = 2e-3
"""Largest difference in logits that the exported network may show."""
LOWEST_THRESHOLD = 0.5
"""What is less likely than not is never claimed, even where the error rate would allow it."""


def _export(inner: WithPreprocess, path: Path, dataset: Dataset) -> float:
    """Write the ONNX file; return its largest difference in logits from torch.

    Raises:
        OutputError: the exported network does not compute what was trained.
    """
    from vinoreward.backends.base import TensorSpec
    from vinoreward.backends.export import export_onnx
    from vinoreward.backends.registry import load_backend
    from vinoreward.backends.spec import NetworkSpec
    from vinoreward_training.classifier_training import predict

    height, width = dataset.images.shape[1:3]
    export_onnx(inner, path, height, width)
    frames = dataset.images[:: max(1, len(dataset.images) // 64)][:64]
    expected = predict(inner, frames)
    spec = NetworkSpec(
        path, TensorSpec((None, height, width, 3), "uint8"), TensorSpec((None, 2), "float32")
    )
    worst = 0.0
    for name in ("openvino", "onnxruntime"):
        with load_backend(name, spec) as backend:
            difference = float(np.abs(backend.infer(frames) - expected).max())
        if not difference <= EXPORT_TOLERANCE * max(1.0, float(np.abs(expected).max())):
            raise OutputError(
                f"the exported network gives logits {difference:.4g} away from torch's on {name}. "
                f"Expected at most {EXPORT_TOLERANCE}; export with other versions of torch or onnx "
                "(vinoreward doctor lists them)."
            )
        worst = max(worst, difference)
    return worst


def golden_indices(
    log_odds: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], threshold: float
) -> npt.NDArray[np.int64]:
    """Choose golden frames: of each class two at random depth and two next to the threshold."""
    near = np.argsort(np.abs(log_odds - threshold), kind="stable")
    chosen: list[int] = []
    for label in (0, 1):
        members = near[labels[near] == label]
        picks = [0, 1, len(members) // 2, len(members) - 1]
        chosen += [int(members[min(pick, len(members) - 1)]) for pick in picks]
    return np.array(sorted(dict.fromkeys(chosen)), dtype=np.int64)[:GOLDEN_FRAMES]


def versions() -> dict[str, str]:
    """Return the versions of what made the bundle."""
    found = {"python": platform.python_version()}
    for name in ("vinoreward", "torch", "torchvision", "onnx", "openvino", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class _Evaluation:
    decision: Decision
    test: Rates
    log_odds: npt.NDArray[np.float64]
    threshold_log_odds: float
    metrics: dict[str, Any]
    categories: list[dict[str, object]]


def _evaluate(
    config: FinetuneConfig,
    dataset: Dataset,
    logits: npt.NDArray[np.float64],
    parts: tuple[npt.NDArray[np.int64], ...],
) -> _Evaluation:
    """Calibrate and choose the threshold on validation frames, then measure on test frames."""
    from vinoreward.bundles.schema import Decision
    from vinoreward.rewards.calibration import temperature, threshold_for_fpr

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
    value, details = float(chosen.value), chosen.as_dict()
    if value < LOWEST_THRESHOLD:
        value = LOWEST_THRESHOLD
        raised = rates(
            probabilities[validation].astype(np.float32) >= np.float32(value), labels[validation]
        )
        details |= {"raised_to": value, "at_raised": raised.as_dict()}
    boundary = float(np.log(value) - np.log1p(-value)) if 0 < value < 1 else float("inf")
    # In float32, as at run time.
    claimed = probabilities[test].astype(np.float32) >= np.float32(value)
    measured = rates(claimed, labels[test])
    return _Evaluation(
        decision=Decision(
            threshold=value,
            temperature=heat,
            chosen_for=details,
        ),
        test=measured,
        log_odds=log_odds,
        threshold_log_odds=boundary,
        metrics={
            "test": measured.as_dict()
            | {
                "average_precision": average_precision(log_odds[test], labels[test]),
                "log_loss": log_loss(log_odds[test], labels[test]),
                "frames": len(test),
                "episodes": len(np.unique(dataset.episodes[test])),
            }
        },
        categories=per_category(claimed, labels[test], dataset.categories[test].tolist()),
    )


def make_bundle(
    config: FinetuneConfig,
    dataset: Dataset,
    parts: tuple[npt.NDArray[np.int64], ...],
    folder: Path,
    inner: WithPreprocess,
    history: Sequence[dict[str, float]],
) -> None:
    """Turn a trained network into FOLDER/bundle and FOLDER/report.html.

    Args:
        config: of the run.
        dataset: all frames.
        parts: indices of (train, validation, test).
        folder: the run folder.
        inner: the trained network, in evaluation mode.
        history: one record per epoch.

    Raises:
        OutputError: the exported network does not compute what was trained.
        InputError: no threshold reaches the target false-positive rate.
        RunFolderError: a file cannot be written.
    """
    from safetensors.torch import save as safetensors_bytes

    from vinoreward.bundles.save import save_bundle
    from vinoreward.bundles.schema import BundleSpec, Picture
    from vinoreward_training.classifier_training import predict
    from vinoreward_training.report import Section, write_report

    held = np.concatenate(parts[1:])
    logits = np.zeros((len(dataset.labels), 2))  # of training frames never read
    logits[held] = predict(inner, dataset.images[held])
    found = _evaluate(config, dataset, logits, parts)
    test, labels = parts[2], dataset.labels
    difference = _export(inner, folder / "model.onnx", dataset)
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    drawn = [
        *model_card.draw_curves(
            pictures, found.log_odds[test], labels[test], found.threshold_log_odds
        ),
        model_card.draw_mistakes(
            pictures / "mistakes.png",
            dataset.images[test],
            sigmoid(found.log_odds[test]),
            labels[test],
            _captions(dataset, test),
            found.decision.threshold,
        ),
        model_card.draw_history(pictures / "history.png", list(history)),
    ]
    golden = test[golden_indices(found.log_odds[test], labels[test], found.threshold_log_odds)]
    height, width = dataset.images.shape[1:3]
    spec = BundleSpec(
        name=config.name,
        picture=Picture(
            height=height,
            width=width,
            resize="pil_bilinear" if dataset.resized else "none",
            scene=dataset.scene,
        ),
        decision=found.decision,
        architecture=config.architecture,
        metrics=found.metrics | {"export_difference": difference, "history": list(history)},
        dataset={
            "sha256": dataset.sha256,
            "counts": dataset.counts,
            "seed": dataset.seed,
            **origin(read_about(config.data)),
            "split_seed": config.seed,
        },
        versions=versions(),
    )
    facts = {
        "network": f"{config.architecture}, {height}x{width} pixels, FP32",
        "trained on": f"{len(parts[0])} frames ({dataset.counts['episodes']} episodes in all), "
        f"dataset {dataset.sha256[:12]}, seed {config.seed}",
        # Not the whole path: it means nothing on another machine.
        "started from": "random weights" if config.weights is None else config.weights.name,
        "epochs": len(history),
        "exported network's largest difference from torch": f"{difference:.2g} in logits",
    }
    decision = {
        "threshold": f"{found.decision.threshold:.6f} (calibrated probability)",
        "temperature": f"{found.decision.temperature:.3f}",
    } | {str(key): value for key, value in found.decision.chosen_for.items() if key != "value"}
    card = model_card.card(
        config.name,
        facts=facts,
        rates=found.test.as_dict(),
        categories=found.categories,
        decision=decision,
        pictures=[path.name for path in drawn],
    )
    bundle = save_bundle(
        folder / "bundle",
        spec,
        {
            "model.onnx": folder / "model.onnx",
            "model.safetensors": safetensors_bytes(
                {key: value.contiguous() for key, value in inner.net.state_dict().items()}
            ),
        },
        dataset.images[golden],
        logits[golden].astype(np.float32),
        card,
        {path.name: path for path in drawn},
        overwrite=True,
    )
    write_report(
        folder / "report.html",
        f"Success classifier {config.name}",
        [
            Section("What it is", rows=[{"": key, " ": value} for key, value in facts.items()]),
            Section("Test frames", rows=model_card.confusion_rows(found.test.as_dict())),
            Section("By category", rows=found.categories),
            Section(
                "Threshold", rows=[{"": key, " ": str(value)} for key, value in decision.items()]
            ),
            Section("Pictures", pictures=drawn),
        ],
    )
    (folder / "model.onnx").unlink()
    print(
        f"test: recall {found.test.recall:.2%} ({found.test.recall_low:.2%} to "
        f"{found.test.recall_high:.2%}), false positives {found.test.false_positive_rate:.2%} "
        f"(at most {found.test.fpr_high:.2%}), threshold {found.decision.threshold:.4f}"
    )
    print(f"bundle {bundle.path}, report {folder / 'report.html'}")
    print(f"next: {after_bundle(bundle.path, config.data, config.success_label)}")


def _captions(dataset: Dataset, indices: npt.NDArray[np.int64]) -> list[str]:
    captions = []
    for index in indices:
        distance = dataset.distances[index]
        where = f", {distance * 1000:.1f} mm" if np.isfinite(distance) else ""
        captions.append(f"{dataset.categories[index]}{where}")
    return captions
