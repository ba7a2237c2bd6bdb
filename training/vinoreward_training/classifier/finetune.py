"""``vinoreward finetune``: from labelled pictures to a bundle with a stated error rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.errors import TooFewNegativesError, needed_for
from vinoreward.rewards.calibration import negatives_needed
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.data.dataset_files import Indices, say_parts
from vinoreward_training.runs.next_command import again, bundle_name
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import Settings, refuse

USELESS = 3
"""Exit status of a training whose classifier gives no usable reward."""
SETTINGS = Settings(FinetuneConfig)


def _check(config: FinetuneConfig) -> None:
    refuse(
        "finetune",
        config,
        {
            "epochs": config.epochs < 1,
            "batch_size": config.batch_size < 2,
            "learning_rate": not 0 < config.learning_rate < 1,
            "augment": not 0 <= config.augment <= 1,
            "boost": not 1 <= config.boost <= 100,
            "target_fpr": not 0 < config.target_fpr < 1,
            "threads": config.threads < 0,
            "seed": config.seed < 0,
            "patience": config.patience < 1,
        },
    )


def _train(config: FinetuneConfig, dataset: Dataset, parts: Sequence[Indices], folder: Path) -> int:
    """Train, calibrate, export and save the bundle; return the exit status."""
    import torch

    from vinoreward.backends.torch_networks import WithPreprocess, build
    from vinoreward_training.classifier import training
    from vinoreward_training.classifier.bundle import make_bundle
    from vinoreward_training.runs.fit import prepare_torch

    before, unseen = None, None
    if config.weights is not None and config.weights.is_file():  # else load_weights says so
        before = training.read_record(config.weights)
        unseen = training.check_unseen(before, config.weights, dataset, parts)
        print(f"held-out frames new to the weights: {unseen}")
    train, validation, _ = parts
    prepare_torch(config)
    net = build(config.architecture, 2, [(view.name, view.height) for view in dataset.views])
    if config.weights is not None:
        fresh = training.load_weights(net, config.weights)
        print(f"weights from {config.weights}; left fresh: {', '.join(fresh) or 'none'}")
    inner = WithPreprocess(net, IMAGENET_MEAN, IMAGENET_STD)
    module = training.ChannelsLast(inner)
    fit = training.ClassifierFit(module, dataset, train, validation, config, folder)
    fit.show("finetune")
    net.to(memory_format=torch.contiguous_format)
    inner.eval()
    started = config.weights is not None
    record = training.record_of(dataset, train, started=started, before=before)
    verdict = make_bundle(config, dataset, parts, folder, inner, fit.history, record, unseen)
    return USELESS if verdict.level == "useless" else 0


def run(config: FinetuneConfig) -> int:
    """Train, calibrate, export and save the bundle; return 0, or ``USELESS`` after that verdict."""
    with needed_for("fine-tuning", "train"):
        import torch  # noqa: F401 - before the data are read
    _check(config)
    config = replace(config, name=config.name or bundle_name(config.data, "classifier"))
    line = again("finetune", config.out)
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        dataset = load_dataset(
            config.data, size=config.image_size, success_label=config.success_label
        )
        parts = split_by_episode(dataset)
        _enough(config, dataset, parts[1])
        say_parts(dataset.images, parts)
        return _train(config, dataset, parts, folder)


def _enough(config: FinetuneConfig, dataset: Dataset, validation: Indices) -> None:
    """Refuse before training an error rate that the validation frames could not support."""
    needed = negatives_needed(config.target_fpr)
    deciding = int((dataset.labels[validation] == 0).sum())
    if deciding >= needed:
        return
    failures = int((dataset.labels == 0).sum())
    share = len(validation) / len(dataset.labels)
    # A tenth more than on average: the split is by episode, and parts differ.
    missing = max(1, math.ceil(1.1 * needed / share) - failures)
    raise TooFewNegativesError(
        f"{config.data} holds {failures} failure frames, {deciding} of them in the {share:.0%} "
        f"that choose the threshold. Expected at least {needed} there to support a false-positive "
        f"rate of {config.target_fpr:g} even without a single error; capture about {missing} more "
        "failures, or accept a higher rate with --target-fpr."
    )
