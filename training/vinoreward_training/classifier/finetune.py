"""``vinoreward finetune``: from labelled images to a bundle with a stated error rate."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from vinoreward.backends.network import FINE
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, TooFewNegativesError, needed_for
from vinoreward.rewards.calibration import negatives_needed, rate_supported
from vinoreward_training.classifier.agreement import DIFFERENCES, JudgedLabels
from vinoreward_training.classifier.distil import label_by_judge
from vinoreward_training.classifier.evaluation import (
    NOT_LEARNT,
    RATES,
    Verdict,
    default_rate,
    rounded_up,
)
from vinoreward_training.configs import CalibrateConfig, FinetuneConfig
from vinoreward_training.data.dataset import (
    Dataset,
    find_conflicting_duplicates,
    find_label_leakage,
    least_episodes,
    load_dataset,
    parts_by_episode,
    split_by_episode,
)
from vinoreward_training.data.dataset_files import METADATA, Indices, read_metadata, say_parts
from vinoreward_training.quantize.int8 import classifier_int8
from vinoreward_training.runs.next_command import (
    after_bundle,
    bundle_name,
    classifier_folder,
    command,
    resume_command,
    to_more_images,
    to_train,
)
from vinoreward_training.runs.run_folder import RunFolder, ensure_dir
from vinoreward_training.runs.settings import Settings, refuse_ignored
from vinoreward_training.tasks.trust import trust_args

if TYPE_CHECKING:
    from vinoreward_training.classifier.training import ClassifierFit, TrainedOn

USELESS = 3
"""Exit status after the verdict that a classifier gives no usable reward."""
FEW_IMAGES = 200
"""With --freeze so many or fewer are all learned: a part that is held out would be too small."""
SLOWER = 2
"""The network of finer cells goes on getting better for this times as many epochs."""

SETTINGS = Settings(
    FinetuneConfig,
    fixed=("network", "freeze"),
    place=lambda config: classifier_folder(config.data),
)


def run(config: FinetuneConfig) -> int:
    """Train, calibrate, export and save the bundle; return 0, or ``USELESS`` after that verdict."""
    with needed_for("fine-tuning", "train"):
        from vinoreward_training.classifier.networks import check_network  # imports torch
    check_network(config)  # before the data are read
    if config.image_crop and (min(config.image_crop[:2]) < 0 or min(config.image_crop[2:]) < 1):
        raise ConfigError(
            field="image_crop", value=config.image_crop, expected="a part of the image"
        )
    config = replace(config, name=config.name or bundle_name(config.data, "classifier"))
    judge = config.labels_from
    if config.progress and (config.freeze or judge is not None):
        by = "`freeze`" if config.freeze else "`labels_from`"
        raise ConfigError(
            f"found `progress` and {by}. Expected all layers to be trained, on labels that tell "
            "the steps to success as a capture of episodes does; leave one of the two out.",
            field="progress",
        )
    if judge is None:
        refuse_ignored(config, ("max_calls",), "a training without --labels-from")
    line = resume_command("finetune", config.out, *trust_args(judge, "--labels-from"))
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        judged = None
        if judge is not None:
            judged = label_by_judge(config.data, judge, config.max_calls, config.success_label)
        dataset = _load(config, judged)
        if config.freeze and not dataset.views and config.network != FINE:
            return _fit_last_layer(config, dataset, folder, judged)
        parts = split_by_episode(dataset)
        check_sample_size(config, dataset, parts[1])
        say_parts(dataset.images, parts)
        return _train(config, dataset, parts, folder, judged)


def _load(config: FinetuneConfig, judged: JudgedLabels | None) -> Dataset:
    """Read the images; print what in them could mislead a training."""
    dataset = load_dataset(
        config.data,
        size=config.image_size,
        crop=config.image_crop,
        success_label=config.success_label,
        choose_size=True,
        skip_broken=True,
        entries=None if judged is None else judged.entries,
    )
    if (config.data / METADATA).is_file() and judged is None:
        for sentence in find_label_leakage(read_metadata(config.data), config.success_label):
            print(f"warning: {sentence}")
    elif not (config.data / METADATA).is_file():
        print(f"no {METADATA}: each image counts as an episode of its own (docs/datasets.md)")
    if (found := find_conflicting_duplicates(dataset)) is not None:
        print(f"warning: {found}")
    return dataset


def check_sample_size(
    config: FinetuneConfig | CalibrateConfig, dataset: Dataset, validation: Indices
) -> None:
    """Print which error rate is asked for by default; refuse one that is not supported."""
    labels, episodes = dataset.labels[validation], dataset.episodes[validation]
    chosen, why = default_rate(labels, episodes, dataset.episode_steps)
    rate = config.target_fpr or chosen or RATES[-1]
    needed = negatives_needed(rate)
    # By default the episodes choose the rate; one that is given is held by the frames.
    counted = "episodes with failures" if config.target_fpr is None else "failure frames"
    of = dataset.episodes if config.target_fpr is None else np.arange(len(dataset.labels))
    deciding = len(np.unique(of[validation][labels == 0]))
    if deciding >= needed and (config.target_fpr or chosen):
        if config.target_fpr is None:
            print(f"false-positive rate {rate:.2g}: {why}")
        return
    failures = len(np.unique(of[dataset.labels == 0]))
    share = len(validation) / len(dataset.labels)
    # A tenth more than on average: the split is by episode, and parts differ.
    missing = max(1, math.ceil(1.1 * needed / share) - failures)
    accepted = rounded_up(rate_supported(max(1, deciding)))
    raise TooFewNegativesError(
        f"{config.data} holds {failures} {counted}, {deciding} of them in the {share:.0%} that "
        f"choose the threshold. Expected at least {needed} there to support a false-positive rate "
        f"of {rate:g} even without a single error; capture about {missing} more, or accept a "
        f"higher rate with `target_fpr={accepted:.2g}`.",
        field="target_fpr",
    )


def _fit(
    config: FinetuneConfig, dataset: Dataset, parts: Sequence[Indices], folder: Path
) -> ClassifierFit:
    """Return the training of ``config.network``, continued from a checkpoint in ``folder``."""
    from vinoreward_training.classifier.networks import module_for
    from vinoreward_training.classifier.training import ClassifierFit

    module = module_for(config, dataset)
    return ClassifierFit(module, dataset, parts[0], parts[1], config, folder)


def _choose_network(
    config: FinetuneConfig, dataset: Dataset, parts: Sequence[Indices], folder: Path
) -> tuple[FinetuneConfig, ClassifierFit]:
    """Return the training to go on with, and its configuration.

    The default network learns small targets late or not at all. Where it has learnt little after a
    few epochs, one of finer cells is tried for as many, and what has learnt more goes on.
    """
    first = _fit(config, dataset, parts, folder)
    fresh = config.network == FinetuneConfig.network and config.weights is None
    if not fresh or config.pretrained or first.trial >= first.steps:
        return config, first
    first.run(config.network, first.trial)
    if first.saved >= NOT_LEARNT:
        return config, first
    print(
        f"{config.network} has learnt little in {len(first.history)} epochs: it saves "
        f"{first.saved:.0%} of the cross-entropy of guessing on validation frames. {FINE}, whose "
        "cells are 4 pixels wide and not 16, is tried for as many."
    )
    finer = replace(config, network=FINE, epochs=SLOWER * config.epochs)
    second = _fit(finer, dataset, parts, ensure_dir(folder / FINE))
    second.run(FINE, second.trial)
    other, best = (config, first) if first.saved > second.saved else (finer, second)
    if not best.at_chance:
        print(f"{other.network} goes on for {other.epochs} epochs: it saves {best.saved:.0%}.")
    return other, best


def _train(
    config: FinetuneConfig,
    dataset: Dataset,
    parts: Sequence[Indices],
    folder: Path,
    judged: JudgedLabels | None,
) -> int:
    from vinoreward_training.classifier import training
    from vinoreward_training.classifier.bundle import make_bundle
    from vinoreward_training.runs.fit import prepare_torch

    before, unseen = _check_weights(config, dataset, parts)
    prepare_torch(config.seed)
    config, fit = _choose_network(config, dataset, parts, folder)
    fit.run("finetune")
    if fit.at_chance:
        print(
            f"stopped: {config.network} has learnt nothing in {len(fit.history)} epochs. On "
            f"validation frames its average precision is {fit.history[-1]['val_ap']:.2f}, that of "
            f"guessing {dataset.labels[parts[1]].mean():.2f}. The verdict says what helps."
        )
    started = config.weights is not None or config.pretrained
    record = training.record_of(dataset, parts[0], started=started, before=before)
    module = cast("training.ChannelsLast", fit.module)
    about = folder, module, fit.history, record, unseen
    verdict = make_bundle(config, dataset, parts, *about, judged=judged, progress=fit.progress)
    return conclude(config, dataset, folder / "bundle", verdict, distilled=judged is not None)


def _check_weights(
    config: FinetuneConfig, dataset: Dataset, parts: Sequence[Indices]
) -> tuple[TrainedOn | None, str | None]:
    """Return what the initial weights were trained on, and whether held-out frames are new to them.

    Refuses weights that know these.
    """
    from vinoreward_training.classifier.training import check_unseen, read_record

    if config.weights is not None and config.weights.is_file():  # else build_for says so
        before = read_record(config.weights)
        unseen = check_unseen(before, config.weights, dataset, parts)
        print(f"held-out frames new to the weights: {unseen}")
        return before, unseen
    if config.pretrained:
        return None, "assumed: the weights were published for other images"
    return None, None


def _fit_last_layer(
    config: FinetuneConfig, dataset: Dataset, folder: Path, judged: JudgedLabels | None
) -> int:
    """Fit the last layer on features that are kept, and save the bundle; return the exit status.

    All frames but those of the test part choose the threshold; few images have no test part.
    """
    from vinoreward_training.classifier.bundle import make_bundle
    from vinoreward_training.classifier.embeddings import Embeddings
    from vinoreward_training.classifier.last_layer import OutOfFold, fit_last_layer
    from vinoreward_training.classifier.networks import module_for
    from vinoreward_training.classifier.training import record_of
    from vinoreward_training.runs.fit import prepare_torch

    refuse_ignored(config, ("epochs", "learning_rate"), "a last layer that is fitted at once")
    few = len(dataset.labels) <= FEW_IMAGES
    parts = parts_by_episode(dataset) if few else split_by_episode(dataset)
    every, none = np.arange(len(dataset.labels)), np.zeros(0, np.int64)
    learned = every if few else np.sort(np.concatenate(parts[:2]))
    tested = every if few else parts[2]
    check_sample_size(config, dataset, learned)
    before, unseen = _check_weights(config, dataset, (none, learned, tested))
    prepare_torch(config.seed)
    module = module_for(config, dataset)
    height, width = dataset.images.shape[1:3]
    labels, episodes = dataset.labels[learned], dataset.episodes[learned]
    embeddings = Embeddings(module, config.network, (height, width))
    with contextlib.closing(embeddings):
        layer = fit_last_layer(embeddings, dataset.images[learned], labels, episodes)
        embeddings.set_layer(layer.weight, layer.bias)
    print(
        f"the last layer is fitted on {len(learned)} images; {embeddings.computed} features were "
        f"computed, {embeddings.reused} known"
    )
    scores = OutOfFold(learned, tested, (layer.logits, layer.logits if few else None))
    record = record_of(dataset, learned, started=True, before=before)
    about = folder, module, (), record, unseen
    verdict = make_bundle(config, dataset, parts, *about, judged=judged, out_of_fold=scores)
    return conclude(config, dataset, folder / "bundle", verdict, distilled=judged is not None)


def conclude(
    config: FinetuneConfig | CalibrateConfig,
    dataset: Dataset,
    path: Path,
    verdict: Verdict,
    *,
    distilled: bool = False,
) -> int:
    """Add INT8 to a bundle and print the next command; return the exit status.

    ``distilled`` says that a judge labelled the data; images on which it differs are in a folder
    beside the bundle, if there are any.
    """
    if verdict.level == "useless":
        return USELESS
    bundle = Bundle.load(path, verify=False)
    if bundle.spec.progress is None or config.int8 == "on":  # progress is FP32's by default
        print(f"INT8: {classifier_int8(bundle, dataset, config.int8)}")
    if distilled:
        following = to_train(path, bundle.spec)
        if (differences := path.parent / DIFFERENCES).is_dir():
            following = command("label", "--data", differences, "--bundle", path)
    elif verdict.level == "weak" and verdict.frames:
        following = to_more_images(dataset.folder, verdict.frames)
    else:
        tested = least_episodes(dataset, parts_by_episode(dataset)[2])
        following = after_bundle(path, bundle.spec, dataset.folder, tested)
    print(f"next: {following}")
    return 0
