"""Trains a classifier on, from its own weights, on labels and its old data."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import inside
from vinoreward.errors import needed_for
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.audit.checks import score_images
from vinoreward_training.classifier.finetune import check_sample_size
from vinoreward_training.classifier.ood import trained_on_corruptions
from vinoreward_training.configs import FinetuneConfig, MendConfig
from vinoreward_training.data.dataset import Dataset, split_by_episode
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.mending.labelled import Labelled, extended
from vinoreward_training.runs.bundles import of_cut_images
from vinoreward_training.tasks.recorded import success_label_of

if TYPE_CHECKING:
    pass

WEIGHTS = "model.safetensors"
MOST_SHARE = 0.4
"""Share of a training step for labels all of which the bundle gets wrong."""
LEAST_SHARE = 0.02
IMAGES = 24000
"""At most so many are trained on where the number of passes is not given, but one pass at least.
A network that was trained on few images loses in one pass what it regains in some."""


@dataclass(frozen=True)
class Recipe:
    """How a classifier is trained on."""

    replay: int = 12000
    """At most so many of the old training images are used."""
    share: float | None = None
    """Share of the labels in a training step; None: see :func:`share_of_labels`."""
    epochs: int = 0
    """Passes over as many images as are used; 0: as many as come to ``IMAGES``."""
    learning_rate: float = 2e-4
    """Highest learning rate, after warm-up."""


def refit(
    config: MendConfig,
    bundle: Bundle,
    dataset: Dataset,
    labelled: Labelled,
    folder: Path,
    recipe: Recipe | None = None,
) -> Bundle:
    """Train from the bundle's weights on its old data and the labels; return the new bundle."""
    with needed_for("mending", "train"):
        from vinoreward.backends.torch_networks import WithPreprocess
        from vinoreward_training.classifier import training
        from vinoreward_training.classifier.bundle import make_bundle
        from vinoreward_training.classifier.networks import build_for, normalization
        from vinoreward_training.runs.fit import prepare_torch

    recipe, weights = recipe or Recipe(), inside(bundle.path, WEIGHTS)
    before = training.read_record(weights)
    train, validation, test = split_by_episode(dataset)
    unseen = training.check_unseen(before, weights, dataset, (train, validation, test))
    both = extended(dataset, labelled.images, labelled.labels)
    new = len(dataset.labels) + np.flatnonzero(labelled.train)
    record = training.record_of(both, new, started=True, before=before)
    share = share_of_labels(bundle, labelled) if recipe.share is None else recipe.share
    fit_config = _fit_config(config, recipe, bundle, weights, folder)
    # What it was not trained for would cost it more than a few steps can teach.
    corruptions = trained_on_corruptions(bundle.spec.metrics)
    if config.target_fpr is not None:
        check_sample_size(fit_config, dataset, validation)
    prepare_torch(config.seed)
    height, width = dataset.images.shape[1:3]
    net = build_for(fit_config, height, width, [])
    module = training.ChannelsLast(WithPreprocess(net, *normalization(fit_config.network)))
    random = np.random.default_rng([config.seed, 0x3E4D])
    replayed = np.sort(random.permutation(train)[: recipe.replay])
    chosen = np.concatenate([replayed, new])
    epochs = recipe.epochs or passes_over(len(chosen))
    fit = training.ClassifierFit(
        module,
        both,
        chosen,
        validation[:: max(1, len(validation) // recipe.replay)],
        replace(fit_config, epochs=epochs),
        folder,
        corrupted=training.CORRUPTED if corruptions else 0.0,
        shares=shares_of(len(replayed), len(new), share),
    )
    fit.run("mend")
    record = training.record_of(both, chosen, started=True, before=record)
    parts = (np.concatenate([train, new]), validation, test)
    recall = _recall(bundle, dataset, validation) if config.target_fpr is None else None
    fit_config = replace(fit_config, epochs=epochs)
    about = folder, module, fit.history, record, unseen, recall
    make_bundle(fit_config, both, parts, *about, corruptions=corruptions, progress=fit.progress)
    return Bundle.load(folder / "bundle")


def _fit_config(
    config: MendConfig, recipe: Recipe, bundle: Bundle, weights: Path, folder: Path
) -> FinetuneConfig:
    spec = bundle.spec
    chosen_for = spec.decision.chosen_for if spec.decision is not None else {}
    return FinetuneConfig(
        data=config.data,
        out=folder,
        name=spec.name,
        network=spec.architecture or "",
        weights=weights,
        progress=spec.progress is not None,
        learning_rate=recipe.learning_rate,
        target_fpr=config.target_fpr or float(chosen_for.get("target_fpr") or 0.01),
        success_label=success_label_of(bundle.spec),
        seed=config.seed,
        resume=config.resume,
    )


def shares_of(old: int, labelled: int, share: float) -> npt.NDArray[np.float64]:
    """Return how often each image is sampled: old ones, then the labelled ones with a share."""
    parts = np.repeat([(1 - share) / max(1, old), share / max(1, labelled)], [old, labelled])
    return np.asarray(parts / parts.sum())


def passes_over(images: int) -> int:
    """Return how often to go over so many images."""
    return max(1, IMAGES // images)


def share_of_labels(bundle: Bundle, labelled: Labelled) -> float:
    """Return the share of a training step for labels: the more, the more of them it gets wrong.

    What it gets right teaches little, and a share of its own would teach only how often successes
    are among the labels.
    """
    some = labelled.train
    right = _claims(bundle, labelled.images[some]) == labelled.labels[some]
    wrong = 1 - float(right.mean()) if len(right) else 0.0
    return max(LEAST_SHARE, MOST_SHARE * wrong)


def _recall(bundle: Bundle, dataset: Dataset, part: Indices) -> float:
    """Return the share of the successes of a part of the data that a bundle claims."""
    return float(_claims(bundle, dataset.images[part[dataset.labels[part] == 1]]).mean())


def _claims(bundle: Bundle, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    with contextlib.closing(Classifier(of_cut_images(bundle), precision="fp32")) as classifier:
        return score_images(classifier, images).claimed
