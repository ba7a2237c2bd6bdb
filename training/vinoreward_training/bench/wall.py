"""Bench row of the wall time to a solved task, ours against the article's setting."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.camera.pictures import resized, size_before_crop
from vinoreward_training.bench.statistics import Row
from vinoreward_training.bench.train import Training, seeds_note, told, train_to_solved
from vinoreward_training.classifier.fresh_scenes import evaluate_classifier, fresh_scenes
from vinoreward_training.configs.bench import BenchConfig
from vinoreward_training.data.capture import article_camera

ARTICLE_SCENES = 400
"""Scenes drawn as the article draws them: a few megabytes each, and enough to judge fairness."""


def wall_rows(config: BenchConfig) -> list[Row]:
    """Train once with our default and once in the article's setting; compare wall times."""
    seed, steps = config.first_seed, config.train_steps
    bundle = config.article_bundle or config.bundle
    judged = article_row(config, bundle)
    ours = train_to_solved(config, "wall-ours", "PandaHover-v0", seed=seed, steps=steps)
    print(f"  ours: {told(ours)}", flush=True)
    print(f"  now the article's setting, at most {steps} steps; Ctrl-C and --resume work")
    article = train_to_solved(
        config,
        "wall-article",
        "PandaHover-v0",
        seed=seed,
        steps=steps,
        bundle=bundle,
        backend="torch",
        fidelity="article",
    )
    print(f"  article: {told(article)}", flush=True)
    return [*compared(ours, article), judged]


def compared(ours: Training, article: Training) -> list[Row]:
    """Return the rows that compare one run of ours with one in the article's setting."""
    both = ours.solved_at is not None and article.solved_at is not None
    ratio = article.seconds / ours.seconds if ours.solved_at is not None else None
    per_step = (article.seconds / article.steps) / (ours.seconds / ours.steps)
    note = f"ours: {told(ours)}; the article's: {told(article)}; {seeds_note([ours.seed])}"
    if ours.solved_at is not None and article.solved_at is None:
        note += "; a lower bound, as the article's run would have gone on"
    return [
        Row(
            "wall",
            'training wall time to solved: fidelity="article" with PyTorch over our default',
            ratio,
            spread="one full run of each, same seed, evaluations not counted",
            target=">= 20 x",
            met=both and ratio is not None and ratio >= 20.0,
            note=note,
            details={"ours": asdict(ours), "article": asdict(article)},
        ),
        Row(
            "wall",
            "wall time of one training step, learner included: the same two runs",
            per_step,
            spread="mean of each run",
            details={
                "ours_ms": 1e3 * ours.seconds / ours.steps,
                "article_ms": 1e3 * article.seconds / article.steps,
            },
        ),
    ]


def article_row(config: BenchConfig, bundle: str) -> Row:
    """Judge the article's pictures with the classifier of its run: is the baseline a fair one?

    The fast camera draws them, at 960x720 and with full meshes: within 0.1 grey levels of
    TinyRenderer once they are resized, and fifteen times sooner.
    """

    loaded = Bundle.load(bundle)
    scenes = min(config.scenes, ARTICLE_SCENES)
    images, labels, categories = fresh_scenes(scenes, config.seed, camera=article_camera())
    size = size_before_crop(loaded)
    if size is not None:
        images = np.stack([resized(image, *size) for image in images])
    with Classifier(loaded, backend="torch", precision="fp32") as classifier:
        found = evaluate_classifier(classifier, images, labels, categories).rates
    hits, successes = found.true_positives, found.true_positives + found.false_negatives
    failures = found.false_positives + found.true_negatives
    return Row(
        "wall",
        f"the classifier of the article's run on 960x720 pictures, resized: recall on {scenes} "
        "fresh scenes",
        100.0 * found.recall,
        "%",
        low=100.0 * found.recall_low,
        high=100.0 * found.recall_high,
        spread=f"95 % interval; {hits} of {successes}",
        note=f"{found.false_positives} of {failures} failures claimed; "
        + ("trained on these pictures" if config.article_bundle else "the shipped classifier"),
        details={"bundle": bundle, "rates": found.as_dict()},
    )
