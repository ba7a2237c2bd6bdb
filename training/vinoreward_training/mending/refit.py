"""Trains a classifier on, from its own weights, on labels and its old data."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
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
from vinoreward_training.mending.examples import PARTS, Examples, ExampleSource
from vinoreward_training.mending.labelled import Labelled, extended, subset
from vinoreward_training.runs.bundles import of_cut_images
from vinoreward_training.runs.run_folder import ensure_dir

if TYPE_CHECKING:
    from torch import nn

WEIGHTS = "model.safetensors"
MOST_SHARE = 0.4
"""Share of a training step for labels all of which the bundle gets wrong."""
LEAST_SHARE = 0.02
EXAMPLES = "example"
"""Category of what the environment labels itself."""
SHARE_OF_EXAMPLES = 0.3
"""Of what the labels leave of a training step."""
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
    source: ExampleSource | None = None,
    recipe: Recipe | None = None,
) -> Bundle:
    """Train from the bundle's weights on its old data and the labels; return the new bundle.

    With a ``source`` it trains in ``PARTS`` parts, each with examples that are hard for the network
    as the part before has left it.
    """
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
    share = recipe.share
    if share is None:
        # Half for the labels and half for the examples, which show the same faults.
        share = share_of_labels(bundle, labelled) * (1.0 if source is None else 0.5)
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
    some = validation[:: max(1, len(validation) // recipe.replay)]
    history: list[dict[str, float]] = []
    epochs, count = 0, 1 if source is None else PARTS
    for part in range(count):
        replayed = np.sort(random.permutation(train)[: recipe.replay // count])
        place, images, kinds, checked = folder, both, [replayed, new], some
        if source is not None:
            place = ensure_dir(folder / f"part{part + 1}")
            examples = source.draw(partial(log_odds_of, module), place, part)
            images, (replayed, ours, checked, drawn) = with_examples(
                both, (replayed, new, some), examples
            )
            kinds = [replayed, ours, drawn]
        chosen = np.concatenate(kinds)
        passes = recipe.epochs or passes_over(len(chosen), count)
        fit = training.ClassifierFit(
            module,
            images,
            chosen,
            checked,
            replace(fit_config, epochs=passes),
            place,
            corrupted=training.CORRUPTED if corruptions else 0.0,
            shares=shares_of(kinds, share),
        )
        fit.run("mend" if source is None else f"mend, part {part + 1} of {count}")
        history, epochs = history + fit.history, epochs + passes
        named = replace(images, sha256=both.sha256)
        record = training.record_of(named, chosen, started=True, before=record)
    parts = (np.concatenate([train, new]), validation, test)
    recall = _recall(bundle, dataset, validation) if config.target_fpr is None else None
    fit_config = replace(fit_config, epochs=epochs)
    about = folder, module, history, record, unseen, recall
    make_bundle(fit_config, both, parts, *about, corruptions=corruptions)
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
        learning_rate=recipe.learning_rate,
        target_fpr=config.target_fpr or float(chosen_for.get("target_fpr") or 0.01),
        success_label=config.success_label,
        seed=config.seed,
        resume=config.resume,
    )


def log_odds_of(module: nn.Module, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return a network's log-odds of success (N,) of images (N, H, W, 3), not calibrated.

    In bfloat16 where that is faster: they only say what is hard.
    """
    import torch

    from vinoreward_actors.actor_learner.learners.networks import has_bf16
    from vinoreward_training.runs.fit import predict

    if not len(images):
        return np.zeros(0)
    half = has_bf16(torch.device("cpu"))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        return np.diff(predict(module, images))[:, 0].astype(np.float64)


def with_examples(
    dataset: Dataset, parts: Sequence[Indices], examples: Examples
) -> tuple[Dataset, list[Indices]]:
    """Return parts of a dataset with the examples behind them, and the new indices of each.

    The other images stay out: a copy of all would take their memory twice.
    """
    some = subset(dataset, np.concatenate(parts))
    ends = np.cumsum([0, *map(len, parts), len(examples.labels)]).tolist()
    indices = [np.arange(first, last) for first, last in pairwise(ends)]
    return extended(some, examples.images, examples.labels, EXAMPLES), indices


def shares_of(kinds: Sequence[Indices], share: float) -> npt.NDArray[np.float64]:
    """Return how often each image is drawn: old ones, labelled ones with a share, and examples.

    Examples, if there are any, have ``SHARE_OF_EXAMPLES`` of what the labels leave.
    """
    drawn = SHARE_OF_EXAMPLES * (1 - share) if any(map(len, kinds[2:])) else 0.0
    pairs = zip(kinds, (1 - share - drawn, share, drawn)[: len(kinds)], strict=True)
    every = np.concatenate([np.full(len(one), part / max(1, len(one))) for one, part in pairs])
    return np.asarray(every / every.sum())


def passes_over(images: int, parts: int = 1) -> int:
    """Return how often to go over so many images in one of some parts."""
    return max(1, IMAGES // (parts * images))


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
