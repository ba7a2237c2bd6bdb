"""``vinoreward finetune``: from labelled images to a bundle with a stated error rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vinoreward.backends.network import FINE
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import TooFewNegativesError, needed_for
from vinoreward.rewards.calibration import negatives_needed, rate_supported
from vinoreward_training.classifier.evaluation import (
    NOT_LEARNT,
    RATES,
    default_rate,
    rounded_up,
)
from vinoreward_training.configs import CalibrateConfig, FinetuneConfig
from vinoreward_training.data.dataset import (
    Dataset,
    least_episodes,
    load_dataset,
    of_both_labels,
    split_by_episode,
    telling_numbers,
)
from vinoreward_training.data.dataset_files import METADATA, Indices, read_table, say_parts
from vinoreward_training.runs.next_command import (
    after_bundle,
    bundle_name,
    resume_command,
    to_more_images,
)
from vinoreward_training.runs.run_folder import RunFolder, made
from vinoreward_training.runs.settings import Settings, refuse

if TYPE_CHECKING:
    from vinoreward_training.classifier.training import ClassifierFit

USELESS = 3
"""Exit status of a training whose classifier gives no usable reward."""
SLOWER = 2
"""The network of finer cells goes on getting better for this times as many epochs."""


SETTINGS = Settings(FinetuneConfig, fixed=("network", "freeze"))


def _check(config: FinetuneConfig) -> None:
    crop = config.image_crop or (0, 0, 1, 1)
    refuse(
        "finetune",
        config,
        {
            "epochs": config.epochs < 1,
            "batch_size": config.batch_size < 2,
            "learning_rate": not 0 < config.learning_rate < 1,
            "augment": not 0 <= config.augment <= 1,
            "shifts": not 0 <= config.shifts <= 1,
            "boost": not 1 <= config.boost <= 100,
            "target_fpr": config.target_fpr is not None and not 0 < config.target_fpr < 1,
            "threads": config.threads < 0,
            "seed": config.seed < 0,
            "patience": config.patience < 1,
            "image_crop": min(crop[:2]) < 0 or min(crop[2:]) < 1,
        },
    )


def _fit(
    config: FinetuneConfig, dataset: Dataset, parts: Sequence[Indices], folder: Path
) -> ClassifierFit:
    """Return the training of ``config.network``, or what its checkpoint in ``folder`` has of it."""
    from vinoreward.backends.torch_networks import WithPreprocess
    from vinoreward_training.classifier.networks import build_for, normalization
    from vinoreward_training.classifier.training import ChannelsLast, ClassifierFit

    height, width = dataset.images.shape[1:3]
    views = [(view.name, view.height) for view in dataset.views]
    inner = WithPreprocess(build_for(config, height, width, views), *normalization(config))
    module = ChannelsLast(inner, frozen=config.freeze)
    return ClassifierFit(module, dataset, parts[0], parts[1], config, folder)


def _chosen(
    config: FinetuneConfig, dataset: Dataset, parts: Sequence[Indices], folder: Path
) -> tuple[FinetuneConfig, ClassifierFit]:
    """Return the training to go on with, and its configuration.

    The usual network learns small targets late or not at all. Where it has learnt little after a
    few epochs, one of finer cells is tried for as many, and what has learnt more goes on.
    """
    first = _fit(config, dataset, parts, folder)
    fresh = config.network == FinetuneConfig.network and config.weights is None
    if not fresh or config.pretrained or first.trial >= first.steps:
        return config, first
    first.show(config.network, first.trial)
    if first.saved >= NOT_LEARNT:
        return config, first
    print(
        f"{config.network} has learnt little in {len(first.history)} epochs: it saves "
        f"{first.saved:.0%} of the cross-entropy of guessing on validation frames. {FINE}, whose "
        "cells are 4 pixels wide and not 16, is tried for as many."
    )
    finer = replace(config, network=FINE, epochs=SLOWER * config.epochs)
    second = _fit(finer, dataset, parts, made(folder / FINE))
    second.show(FINE, second.trial)
    other, best = (config, first) if first.saved > second.saved else (finer, second)
    if not best.at_chance:
        print(f"{other.network} goes on for {other.epochs} epochs: it saves {best.saved:.0%}.")
    return other, best


def _train(config: FinetuneConfig, dataset: Dataset, parts: Sequence[Indices], folder: Path) -> int:
    """Train, calibrate, export and save the bundle; return the exit status."""
    from vinoreward_training.classifier import training
    from vinoreward_training.classifier.bundle import make_bundle
    from vinoreward_training.runs.fit import prepare_torch

    before, unseen = None, None
    if config.weights is not None and config.weights.is_file():  # else build_for says so
        before = training.read_record(config.weights)
        unseen = training.check_unseen(before, config.weights, dataset, parts)
        print(f"held-out frames new to the weights: {unseen}")
    elif config.pretrained:
        unseen = "taken for granted: the weights were published for other images"
    prepare_torch(config)
    config, fit = _chosen(config, dataset, parts, folder)
    fit.show("finetune")
    if fit.at_chance:
        print(
            f"stopped: {config.network} has learnt nothing in {len(fit.history)} epochs. On "
            f"validation frames its average precision is {fit.history[-1]['val_ap']:.2f}, that of "
            f"guessing {dataset.labels[parts[1]].mean():.2f}. The verdict says what helps."
        )
    started = config.weights is not None or config.pretrained
    record = training.record_of(dataset, parts[0], started=started, before=before)
    module = cast("training.ChannelsLast", fit.module)
    verdict = make_bundle(config, dataset, parts, folder, module, fit.history, record, unseen)
    if verdict.level == "useless":
        return USELESS
    print(f"next: {following(config, dataset, folder / 'bundle')}")
    return 0


def following(config: FinetuneConfig | CalibrateConfig, dataset: Dataset, bundle: Path) -> str:
    """Return what comes after a bundle: more images where its verdict asks for them."""
    spec, parts = Bundle.load(bundle, verify=False).spec, split_by_episode(dataset)
    verdict = spec.metrics["verdict"]
    if verdict["level"] == "weak" and verdict["frames"]:
        return to_more_images(config.data, verdict["frames"])
    held_out, tested = len(parts[1]) + len(parts[2]), least_episodes(dataset, parts[2])
    return after_bundle(bundle, spec, config.data, held_out, tested, config.success_label)


def run(config: FinetuneConfig) -> int:
    """Train, calibrate, export and save the bundle; return 0, or ``USELESS`` after that verdict."""
    with needed_for("fine-tuning", "train"):
        from vinoreward_training.classifier.networks import check_network  # imports torch
    _check(config)
    check_network(config)  # before the data are read
    config = replace(config, name=config.name or bundle_name(config.data, "classifier"))
    line = resume_command("finetune", config.out)
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        dataset = load_dataset(
            config.data,
            size=config.image_size,
            crop=config.image_crop,
            success_label=config.success_label,
            choose_size=True,
            skip_broken=config.skip_broken,
        )
        if (config.data / METADATA).is_file():
            rows = (row for _, row in read_table(config.data))
            for sentence in telling_numbers(rows, config.success_label):
                print(f"warning: {sentence}")
        else:
            print(f"no {METADATA}: each image counts as an episode of its own (docs/datasets.md)")
        if (found := of_both_labels(dataset)) is not None:
            print(f"warning: {found}")
        parts = split_by_episode(dataset)
        enough(config, dataset, parts[1])
        say_parts(dataset.images, parts)
        return _train(config, dataset, parts, folder)


def enough(config: FinetuneConfig | CalibrateConfig, dataset: Dataset, validation: Indices) -> None:
    """Say which error rate is asked for by default; refuse one that is not supported."""
    chosen, why = default_rate(dataset, validation)
    rate = config.target_fpr or chosen or RATES[-1]
    needed = negatives_needed(rate)
    deciding = int((dataset.labels[validation] == 0).sum())
    if deciding >= needed and (config.target_fpr or chosen):
        if config.target_fpr is None:
            print(f"false-positive rate {rate:.2g}: {why}")
        return
    failures = int((dataset.labels == 0).sum())
    share = len(validation) / len(dataset.labels)
    # A tenth more than on average: the split is by episode, and parts differ.
    missing = max(1, math.ceil(1.1 * needed / share) - failures)
    accepted = rounded_up(rate_supported(max(1, deciding)))
    raise TooFewNegativesError(
        f"{config.data} holds {failures} failure frames, {deciding} of them in the {share:.0%} "
        f"that choose the threshold. Expected at least {needed} there to support a false-positive "
        f"rate of {rate:g} even without a single error; capture about {missing} more "
        f"failures, or accept a higher rate with --target-fpr {accepted:.2g}."
    )
