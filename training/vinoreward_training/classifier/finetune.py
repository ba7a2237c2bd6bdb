"""``vinoreward finetune``: from labelled pictures to a bundle with a threshold one can state."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.backends.spec import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.errors import ConfigError, TooFewNegativesError
from vinoreward.rewards.calibration import negatives_needed
from vinoreward_envs.constants import SUCCESS_DISTANCE
from vinoreward_training.classifier.bundle import make_bundle
from vinoreward_training.configs.finetune import FinetuneConfig
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.runs.machine import cores
from vinoreward_training.runs.next_command import again, bundle_name
from vinoreward_training.runs.run_folder import RunFolder
from vinoreward_training.runs.settings import resumed

if TYPE_CHECKING:
    from vinoreward.backends.torch_networks import WithPreprocess
    from vinoreward_training.classifier.training import Fit
    from vinoreward_training.classifier.weights import TrainedOn

USELESS = 3
"""Exit status of a training whose classifier gives no usable reward."""


def _check(config: FinetuneConfig) -> None:
    wrong = {
        "epochs": config.epochs < 1,
        "batch_size": config.batch_size < 2,
        "learning_rate": not 0 < config.learning_rate < 1,
        "augment": not 0 <= config.augment <= 1,
        "boost": not 1 <= config.boost <= 100,
        "target_fpr": not 0 < config.target_fpr < 1,
        "threads": config.threads < 0,
        "seed": config.seed < 0,
        "patience": config.patience < 1,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ConfigError(
                f"--{name.replace('_', '-')} {getattr(config, name)} cannot work. Expected a "
                "positive number (a rate below 1); see vinoreward finetune --help."
            )


def _train(
    config: FinetuneConfig,
    dataset: Dataset,
    parts: tuple[npt.NDArray[np.int64], ...],
    folder: Path,
) -> tuple[WithPreprocess, Fit]:
    """Train with a progress bar and TensorBoard; return the network in its best state."""
    import torch
    from torch.utils.tensorboard import SummaryWriter
    from tqdm import tqdm

    from vinoreward.backends.torch_networks import WithPreprocess, build
    from vinoreward_training.classifier.training import (
        ChannelsLast,
        Fit,
        Recipe,
        has_bf16,
    )
    from vinoreward_training.classifier.weights import load_weights

    torch.set_num_threads(config.threads or cores())
    torch.manual_seed(config.seed)
    net = build(config.architecture, 2)
    if config.weights is not None:
        fresh = load_weights(net, config.weights)
        print(f"weights from {config.weights}; left fresh: {', '.join(fresh) or 'none'}")
    recipe = Recipe(
        epochs=config.epochs,
        batch_size=min(config.batch_size, len(parts[0])),
        learning_rate=config.learning_rate,
        augment=config.augment,
        margin=config.margin,
        boost=config.boost,
        patience=config.patience,
        seed=config.seed,
        success_distance=_success_distance(),
        bf16=has_bf16() if config.bf16 == "auto" else config.bf16 == "on",
    )
    inner = WithPreprocess(net, IMAGENET_MEAN, IMAGENET_STD)
    fit = Fit(
        ChannelsLast(inner), dataset, parts[0], parts[1], recipe, folder, resume=config.resume
    )
    writer = SummaryWriter(str(folder / "tensorboard"))
    try:
        with tqdm(
            total=fit.steps * recipe.batch_size,
            initial=fit.step * recipe.batch_size,
            desc="finetune",
            unit="frame",
            smoothing=0.05,
        ) as bar:

            def on_step(step: int, loss: float) -> None:
                bar.update(recipe.batch_size)
                if step % 10 == 0:
                    writer.add_scalar("train/loss", loss, step)

            def on_epoch(record: dict[str, float]) -> None:
                bar.set_postfix(
                    epoch=int(record["epoch"]),
                    val_loss=f"{record['val_loss']:.3f}",
                    AP=f"{record['val_ap']:.4f}",
                )
                for name, value in record.items():
                    if name != "epoch":
                        writer.add_scalar(name.replace("_", "/", 1), value, int(record["epoch"]))

            fit.run(on_step, on_epoch)
    finally:
        writer.close()
    net.to(memory_format=torch.contiguous_format)
    inner.eval()
    return inner, fit


def _success_distance() -> float:

    return SUCCESS_DISTANCE


def run(config: FinetuneConfig) -> int:
    """Train, calibrate, export and save the bundle.

    Returns:
        0, or 3 where the verdict on the classifier is that it is useless.

    Raises:
        ConfigError: settings that cannot work.
        DatasetError: data that cannot be used; also where the weights given were trained on frames
            that these data hold out.
        TooFewNegativesError: too few failures for the target.
    """
    from vinoreward_training.classifier.weights import record_of

    config = resumed(config)
    _check(config)
    config = replace(config, name=config.name or bundle_name(config.data, "classifier"))
    line = again("finetune", config.out)
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        dataset = load_dataset(
            config.data, size=config.image_size, success_label=config.success_label
        )
        parts = split_by_episode(dataset)
        _enough(config, dataset, parts[1])
        print(
            f"{len(dataset.labels)} frames of {dataset.images.shape[1]}x{dataset.images.shape[2]}: "
            + ", ".join(
                f"{len(part)} {name}"
                for name, part in zip(("train", "validation", "test"), parts, strict=True)
            )
        )
        before, unseen = _before(config, dataset, parts)
        inner, fit = _train(config, dataset, parts, folder)
        started = config.weights is not None
        record = record_of(dataset, parts[0], started=started, before=before)
        verdict = make_bundle(config, dataset, parts, folder, inner, fit.history, record, unseen)
    return USELESS if verdict.level == "useless" else 0


def _before(
    config: FinetuneConfig, dataset: Dataset, parts: tuple[npt.NDArray[np.int64], ...]
) -> tuple[TrainedOn | None, str | None]:
    """Return what the given weights were trained on, and what that means for these data."""
    from vinoreward_training.classifier.weights import check_unseen, read_record

    if config.weights is None or not config.weights.is_file():
        return None, None  # a missing file is named where it is loaded
    before = read_record(config.weights)
    unseen = check_unseen(before, config.weights, dataset, parts)
    print(f"held-out frames new to the weights: {unseen}")
    return before, unseen


def _enough(config: FinetuneConfig, dataset: Dataset, validation: npt.NDArray[np.int64]) -> None:
    """Refuse before training what cannot be claimed after it."""

    needed = negatives_needed(config.target_fpr)
    found = int((dataset.labels[validation] == 0).sum())
    if found >= needed:
        return
    failures = int((dataset.labels == 0).sum())
    share = len(validation) / len(dataset.labels)
    # A tenth more than on average: the split is by episode, and parts differ.
    missing = max(1, math.ceil(1.1 * needed / share) - failures)
    raise TooFewNegativesError(
        f"{config.data} holds {failures} failure frames, {found} of them in the {share:.0%} that "
        f"choose the threshold. Expected at least {needed} there to support a false-positive rate "
        f"of {config.target_fpr:g} even without a single error; capture about {missing} more "
        "failures, or accept a higher rate with --target-fpr."
    )
