"""What follows a classifier's training: calibration, threshold, verdict, bundle, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.backends.convert import export_onnx
from vinoreward.bundles.schema import BundleSpec, Decision, Picture
from vinoreward.rewards.calibration import clopper_pearson, temperature, threshold_for_fpr
from vinoreward_training.classifier import model_card
from vinoreward_training.classifier.evaluation import (
    GOOD_RECALL,
    Rates,
    Verdict,
    average_precision,
    judge,
    log_loss,
    per_category,
    raised_threshold,
    rates,
    sigmoid,
    still_falling,
)
from vinoreward_training.data.dataset import SPLIT, Dataset
from vinoreward_training.data.dataset_files import Indices, read_about
from vinoreward_training.runs.next_command import after_bundle, origin
from vinoreward_training.runs.publish import check_export, publish, versions
from vinoreward_training.runs.report import Section

if TYPE_CHECKING:
    from vinoreward.backends.torch_networks import WithPreprocess
    from vinoreward_training.classifier.weights import TrainedOn
    from vinoreward_training.configs import FinetuneConfig

Dead = dict[str, npt.NDArray[np.float64]]
"""Family of dead-camera frames to their log-odds (M,), not calibrated."""

GOLDEN_FRAMES = 8


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


@dataclass(frozen=True)
class _Evaluation:
    decision: Decision
    test: Rates
    log_odds: npt.NDArray[np.float64]
    threshold_log_odds: float
    metrics: dict[str, Any]
    categories: list[dict[str, object]]
    verdict: Verdict


def _evaluate(
    config: FinetuneConfig,
    dataset: Dataset,
    logits: npt.NDArray[np.float64],
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
    # In float32, as at run time.
    raised = rates(
        probabilities[validation].astype(np.float32) >= np.float32(value), labels[validation]
    )
    details = chosen.as_dict()
    if value > chosen.value:
        details |= {"raised_to": value, "at_raised": asdict(raised)}
    boundary = float(np.log(value) - np.log1p(-value)) if 0 < value < 1 else float("inf")
    claimed = probabilities[test].astype(np.float32) >= np.float32(value)
    measured = rates(claimed, labels[test])
    claims = {
        family: sigmoid(values / heat).astype(np.float32) >= np.float32(value)
        for family, values in dead[1].items()
    }
    every = np.concatenate([*claims.values()])
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
        decision=Decision(
            threshold=value,
            temperature=heat,
            chosen_for=details,
        ),
        test=measured,
        log_odds=log_odds,
        threshold_log_odds=boundary,
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
                "by_family": {family: int(found.sum()) for family, found in claims.items()},
            },
        },
        categories=per_category(claimed, labels[test], dataset.categories[test].tolist())
        + per_category(
            every,
            np.zeros(len(every), dtype=np.int64),
            [f"dead_camera: {family}" for family, found in claims.items() for _ in found],
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
    from safetensors.torch import save as safetensors_bytes

    from vinoreward_training.classifier.training import judged_dead, predict
    from vinoreward_training.classifier.weights import RECORD

    _, validation, test = parts
    held = np.concatenate([validation, test])
    logits = np.zeros((len(dataset.labels), 2))  # of training frames never read
    logits[held] = predict(inner, dataset.images[held])
    dead = (
        judged_dead(inner, dataset, validation, 1, config.seed),
        judged_dead(inner, dataset, test, 2, config.seed),
    )
    falling = still_falling([record["val_loss"] for record in history], config.epochs)
    found = _evaluate(config, dataset, logits, parts, dead, falling=falling)
    labels, decision, seen = dataset.labels[test], found.decision, found.metrics["dead_camera"]
    height, width = dataset.images.shape[1:3]
    export_onnx(inner, folder / "model.onnx", height, width)
    compared = dataset.images[:: max(1, len(dataset.images) // 64)][:64]
    difference = check_export(folder / "model.onnx", compared, predict(inner, compared))
    golden = test[golden_indices(found.log_odds[test], labels, found.threshold_log_odds)]
    spec = BundleSpec(
        name=config.name,
        picture=Picture(
            height=height,
            width=width,
            resize="pil_bilinear" if dataset.resized else "none",
            scene=dataset.scene,
        ),
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
        versions=versions(),
    )
    facts: dict[str, object] = {
        "network": f"{config.architecture}, {height}x{width} pixels, FP32",
        "trained on": f"{len(parts[0])} frames ({dataset.counts['episodes']} episodes in all), "
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
                f"{model_card.in_words(found.test)}\n\nOf {seen['frames']} frames as a failing "
                "camera gives them (black, noise, lost rows and others, the categories "
                f"`dead_camera`) it claims {seen['claimed']} (95 % upper bound "
                f"{seen['claimed_high']:.2%}). They are easy and not counted in the rates above.",
                model_card.confusion_rows(found.test),
            ),
            Section("By category", rows=found.categories),
            Section("The threshold", facts=chosen),
            Section("Pictures", pictures=_draw(folder, dataset, test, found, history)),
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
            "model.safetensors": safetensors_bytes(
                {key: value.contiguous() for key, value in inner.net.state_dict().items()},
                metadata={RECORD: record.to_text()},
            ),
        },
        (dataset.images[golden], logits[golden].astype(np.float32)),
    )
    print(
        f"test: recall {found.test.recall:.2%} ({found.test.recall_low:.2%} to "
        f"{found.test.recall_high:.2%}), false positives {found.test.false_positive_rate:.2%} "
        f"(at most {found.test.fpr_high:.2%}), threshold {decision.threshold:.4f}"
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
    history: Sequence[dict[str, float]],
) -> list[Path]:
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    log_odds, labels = found.log_odds[test], dataset.labels[test]
    captions = []
    for index in test:
        distance = dataset.distances[index]
        where = f", {distance * 1000:.1f} mm" if np.isfinite(distance) else ""
        captions.append(f"{dataset.categories[index]}{where}")
    return [
        *model_card.draw_curves(pictures, log_odds, labels, found.threshold_log_odds),
        model_card.draw_mistakes(
            pictures / "mistakes.png",
            dataset.images[test],
            sigmoid(log_odds),
            labels,
            captions,
            found.decision.threshold,
        ),
        model_card.draw_history(pictures / "history.png", history),
    ]
