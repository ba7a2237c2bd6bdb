"""Bench row about trust: the classifier on fresh scenes, traps included."""

from __future__ import annotations

from vinoreward_training.bench_network import scene_camera
from vinoreward_training.bench_settings import BenchConfig
from vinoreward_training.bench_statistics import Row


def classifier_rows(config: BenchConfig) -> list[Row]:
    """Judge scenes no capture has seen: false positives with their upper bound, and recall."""
    from vinoreward.bundles.bundle import Bundle
    from vinoreward.rewards.calibration import clopper_pearson
    from vinoreward.rewards.classifier import Classifier
    from vinoreward_training.fresh_scenes import evaluate_classifier, fresh_scenes

    bundle = Bundle.load(config.bundle)
    images, labels, categories = fresh_scenes(
        config.scenes, config.seed, camera=scene_camera(bundle)
    )
    with Classifier(bundle) as classifier:
        found = evaluate_classifier(classifier, images, labels, categories)
        precision = classifier.precision
    success = labels == 1
    negatives, positives = int((~success).sum()), int(success.sum())
    false = int((found.decisions & ~success).sum())
    hits = int((found.decisions & success).sum())
    bound = clopper_pearson(false, negatives, 0.95, "upper")[1]
    low, high = clopper_pearson(hits, positives, 0.95)
    what = f"shipped classifier ({precision}), {config.scenes} fresh scenes"
    return [
        Row(
            "classifier",
            f"{what}: 95 % upper bound of the false-positive rate",
            100.0 * bound,
            "%",
            spread=f"{false} of {negatives} failures claimed",
            target="< 1 %",
            met=bound < 0.01,
            details={"by_category": found.categories, "precision": precision},
        ),
        Row(
            "classifier",
            f"{what}: recall on successes",
            100.0 * hits / positives,
            "%",
            low=100.0 * low,
            high=100.0 * high,
            spread=f"95 % interval; {hits} of {positives}",
            target="> 95 %",
            met=hits / positives > 0.95,
        ),
    ]
