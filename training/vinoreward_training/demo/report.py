"""The demo's report: what came out, is the classifier as good as the shipped one, what to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.rewards.classifier import Classifier
from vinoreward_training.capture.hover import fresh_scenes
from vinoreward_training.classifier.evaluation import average_precision, rates
from vinoreward_training.configs import DemoConfig
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.report import Section

SHIPPED = "panda-hover-classifier"
"""Name of the bundle that comes with the package."""
STAGES = {
    "capture": "take and label the images",
    "finetune": "train the classifier, choose its threshold, quantize it",
    "check": "compare with the shipped classifier",
    "train": "train the policy, evaluations included",
    "play": "film and count",
    "report": "write this page",
}
"""Stage to what it does."""
SIGNIFICANCE = 0.05
CARD = ("history.png", "roc.png", "pr.png", "mistakes.png")
"""Images of the model card."""
CAPTIONS = {
    "play.gif": "The first episodes of the trained policy. The classifier sees the same scene "
    "smaller.",
    "learning_curve.png": "Thin: the last 50 training episodes, in which the policy explores. "
    "Thick: evaluations, in which it does not.",
    "history.png": "Training of the classifier, epoch by epoch; the best epoch is kept.",
    "roc.png": "Held-out frames: recall against false positives.",
    "pr.png": "Held-out frames: precision against recall.",
    "mistakes.png": "The held-out frames it is most wrong about; millimetres between gripper and "
    "object, success is up to 35 mm.",
}


def compare(bundle: Path, count: int, seed: int) -> dict[str, Any]:
    """Let the shipped classifier and that of ``bundle`` score the same ``count`` fresh scenes.

    Returns plain data: ``rows`` (one per quantity), and the sentence ``verdict``.
    """
    images, labels, _ = fresh_scenes(count, seed)
    rows: dict[str, dict[str, str]] = {}
    wrong = []
    for name, source in (("shipped", SHIPPED), ("this demo's", str(bundle))):
        with Classifier(source) as classifier:
            # One by one, as in an environment.
            each = [classifier.probability(images[at : at + 1]) for at in range(count)]
            threshold, precision = classifier.threshold, classifier.precision
        probabilities = np.concatenate(each)
        claims = probabilities >= np.float32(threshold)
        counts, scores = rates(claims, labels), probabilities.astype(np.float64)
        failures = counts.false_positives + counts.true_negatives
        for quantity, value in {
            "precision": precision.upper(),
            "threshold": f"{threshold:.3f}",
            "recall": f"{counts.recall:.1%}",
            "recall, 95 % interval": f"{counts.recall_low:.1%} to {counts.recall_high:.1%}",
            "false positives": f"{counts.false_positives} of {failures}",
            "false-positive rate": f"{counts.false_positive_rate:.2%}",
            "false-positive rate, 95 % upper bound": f"{counts.fpr_high:.2%}",
            "average precision (no threshold)": f"{average_precision(scores, labels):.4f}",
        }.items():
            rows.setdefault(quantity, {"": quantity})[name] = value
        wrong.append(claims != (labels == 1))
    return {"rows": [*rows.values()], "verdict": verdict(*wrong)}


def verdict(before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]) -> str:
    """Say whether the second of two classifiers is worse, by the exact McNemar test.

    Both are (N,): where each was wrong, on the same scenes.
    """
    from scipy.stats import binomtest

    lost, gained = int((after & ~before).sum()), int((before & ~after).sum())
    p = 1.0 if lost + gained == 0 else float(binomtest(lost, lost + gained).pvalue)
    if p >= SIGNIFICANCE:
        result = f"no difference that so many scenes could show (p = {p:.2g})"
    else:
        result = f"this one makes {'more' if lost > gained else 'fewer'} mistakes (p = {p:.2g})"
    return (
        f"Of {len(before)} scenes the shipped classifier alone was right on {lost}, this one alone "
        f"on {gained}: {result}."
    )


def demo_sections(
    config: DemoConfig,
    facts: Mapping[str, Any],
    policy: Path,
    bundle: Path,
    seconds: Mapping[str, float],
    commands: Sequence[tuple[str, str]],
) -> list[Section]:
    """Return the report's sections; ``facts`` are the stages', by name."""
    machine = describe_machine()
    check, solved = facts["check"], facts["solved_at"] is not None
    result = {
        "true success, by the simulator": facts["true"],
        "claimed success, by the classifier": facts["claimed"],
        "training steps": f"{facts['steps']}, {'solved' if solved else 'the goal was not reached'}",
        "INT8": facts["int8"],
    }
    times = [
        {"stage": name, "what it did": STAGES[name], "seconds": round(value)}
        for name, value in seconds.items()
    ]
    tried = [{"command": words, "what it does": what} for words, what in commands]
    card = [path for name in CARD if (path := bundle / "images" / name).is_file()]
    return [
        Section(
            "Result",
            f"{config.env} after training. Success of an episode is that of its last state: the "
            "gripper within 35 mm of the point above the object. The classifier's claims were the "
            "only reward in training; the simulator's truth was only watched, and decided when to "
            "stop.",
            images=[policy / "play.gif"],
            captions=CAPTIONS,
            facts=result,
        ),
        Section(
            "Learning curve",
            "Where claimed and true part, the policy has found a way to fool the classifier.",
            images=[policy / "learning_curve.png"],
            captions=CAPTIONS,
        ),
        Section(
            "The classifier compared with the shipped one",
            f"It started from {facts['start']} and saw {facts['frames']} images. Both scored the "
            "same fresh scenes, which neither was trained on. Intervals are Clopper-Pearson. "
            f"{check['verdict']}",
            check["rows"],
        ),
        Section("The classifier in images", "From its model card.", images=card, captions=CAPTIONS),
        Section("Time", f"On {machine['cpu']}, {machine['cores']} cores.", times),
        Section("What to try next", rows=tried),
    ]
