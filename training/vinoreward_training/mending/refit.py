"""Trains a classifier on, from its own weights, on labels and its old data."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import inside
from vinoreward.errors import needed_for
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.audit.battery import look
from vinoreward_training.classifier.finetune import enough
from vinoreward_training.classifier.guard import of_rooms
from vinoreward_training.configs import FinetuneConfig, MendConfig
from vinoreward_training.data.dataset import Dataset, split_by_episode
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.mending.labelled import Labelled, joined

WEIGHTS = "model.safetensors"
MOST_SHARE = 0.4
"""Share of a training step for labels all of which the bundle gets wrong."""
LEAST_SHARE = 0.02
IMAGES = 24000
"""At most so many are trained on where the number of passes is not given, but one pass at least.
A network that was trained on few images loses in one pass what it regains in some."""


def refit(
    config: MendConfig, bundle: Bundle, dataset: Dataset, labelled: Labelled, folder: Path
) -> Bundle:
    """Train from the bundle's weights on its old data and the labels; return the new bundle."""
    with needed_for("mending", "train"):
        from vinoreward.backends.torch_networks import WithPreprocess
        from vinoreward_training.classifier import training
        from vinoreward_training.classifier.bundle import make_bundle
        from vinoreward_training.classifier.networks import build_for, normalization
        from vinoreward_training.runs.fit import prepare_torch

    spec = bundle.spec
    weights = inside(bundle.path, WEIGHTS)
    before = training.read_record(weights)
    train, validation, test = split_by_episode(dataset)
    unseen = training.check_unseen(before, weights, dataset, (train, validation, test))
    both = joined(dataset, labelled)
    random = np.random.default_rng([config.seed, 0x3E4D])
    replayed = np.sort(random.permutation(train)[: config.replay])
    new = len(dataset.labels) + np.flatnonzero(labelled.train)
    chosen = np.concatenate([replayed, new])
    share = share_of_labels(bundle, labelled) if config.share is None else config.share
    shares = np.full(len(chosen), (1 - share) / max(1, len(replayed)))
    shares[len(replayed) :] = share / max(1, len(new))
    chosen_for = spec.decision.chosen_for if spec.decision is not None else {}
    fit_config = FinetuneConfig(
        data=config.data,
        out=folder,
        name=spec.name,
        network=spec.architecture or "",
        weights=weights,
        epochs=config.epochs or passes(len(chosen)),
        learning_rate=config.learning_rate,
        target_fpr=config.target_fpr or float(chosen_for.get("target_fpr") or 0.01),
        # What it was not trained for would cost it more than a few steps can teach.
        shifts=FinetuneConfig.shifts if of_rooms(spec.metrics) else 0.0,
        success_label=config.success_label,
        seed=config.seed,
        threads=config.threads,
        resume=config.resume,
    )
    if config.target_fpr is not None:
        enough(fit_config, dataset, validation)
    prepare_torch(fit_config)
    height, width = dataset.images.shape[1:3]
    net = build_for(fit_config, height, width, [])
    module = training.ChannelsLast(WithPreprocess(net, *normalization(fit_config)))
    some = validation[:: max(1, len(validation) // config.replay)]
    fit = training.ClassifierFit(module, both, chosen, some, fit_config, folder, shares=shares)
    fit.show("mend")
    record = training.record_of(both, chosen, started=True, before=before)
    parts = (np.concatenate([train, new]), validation, test)
    recall = _recall(bundle, dataset, validation) if config.target_fpr is None else None
    make_bundle(fit_config, both, parts, folder, module, fit.history, record, unseen, recall)
    return Bundle.load(folder / "bundle")


def passes(images: int) -> int:
    """Return how often to go over so many images."""
    return max(1, IMAGES // images)


def share_of_labels(bundle: Bundle, labelled: Labelled) -> float:
    """Return the share of a training step for labels: the more, the more of them it gets wrong.

    What it gets right teaches little, and a share of its own would teach only how often successes
    are among the labels.
    """
    some = labelled.train
    with contextlib.closing(Classifier(bundle.of_cut_pictures(), precision="fp32")) as classifier:
        right = look(classifier, labelled.images[some]).claims == labelled.labels[some]
    wrong = 1 - float(right.mean()) if len(right) else 0.0
    return max(LEAST_SHARE, MOST_SHARE * wrong)


def _recall(bundle: Bundle, dataset: Dataset, part: Indices) -> float:
    """Return the share of the successes of a part of the data that a bundle claims."""
    cut = bundle.of_cut_pictures()
    with contextlib.closing(Classifier(cut, precision="fp32")) as classifier:
        claims = look(classifier, dataset.images[part[dataset.labels[part] == 1]]).claims
    return float(claims.mean())
