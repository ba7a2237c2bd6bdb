"""How a classifier is trained: the loss of a step, the evaluation, and the initial weights.

A file of weights says what they were trained on (:class:`TrainedOn`), so that a later training
can tell whether its held-out frames are new to them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.errors import DatasetError, ModelCorruptError
from vinoreward.files import check_header
from vinoreward.rewards.calibration import temperature
from vinoreward_envs.constants import SUCCESS_DISTANCE
from vinoreward_training.classifier.camera_failure import SHARE, logits_by_family, step_frames
from vinoreward_training.classifier.corruptions import randomly_corrupted
from vinoreward_training.classifier.evaluation import average_precision, log_loss, saved_by
from vinoreward_training.classifier.progress import mean_error, progress_loss, read_targets
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.data.provenance import MOST_DATASETS, SPLIT
from vinoreward_training.runs.fit import (
    Fit,
    Images,
    Indices,
    Record,
    predict,
    steps_per_epoch,
)

BATCH_SIZE, LEAST_BATCH, LEAST_STEPS = 32, 8, 32
"""Frames of a step: fewer where an epoch would have fewer steps, but at least eight."""
WEIGHT_DECAY = 1e-4
CORRUPTED = 0.3
"""Share of the frames that are corrupted."""
JITTER = 0.3
"""Strength of colour jitter and noise."""
PATIENCE = 6
"""Epochs without better validation before training stops."""
MARGIN = 1.0
"""Weight of the distance loss, if the capture recorded distances."""
BOOST = 2.0
"""Oversampling factor of frames near the success distance."""
MARGIN_SCALE = 0.003
"""Metres per unit of log-odds, in the distance loss."""
MARGIN_LIMIT = 6.0
"""Target log-odds far from the boundary; more would only train confidence."""
RECORD = "trained_on"
"""Key in the metadata of a ``.safetensors`` file."""
SAMPLE = 4096
"""Largest number of images in a record: those of the lowest hashes, 32 KiB."""
CORRUPTED_FRAMES = 1000
"""About so many validation frames are corrupted too."""
TRIAL_EPOCHS, TRIAL_STEPS = 3, 90
"""After so many epochs and steps a network that can learn the task has begun to."""
CHANCE, CHANCE_FRAMES = 0.02, 5
"""A network guesses that saves less of the cross-entropy of guessing on validation frames, or less
than this over their number: so much a good guess saves, at most once in a hundred trials."""
LOSS_SHARE = 0.1
"""Weight of the cross-entropy besides the average precision, where weights are chosen."""
_SALT = 0x600B
TOLERATED = 0.01
"""Share of held-out images that weights may be trained on: environments repeat some images."""

Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.uint64]


class ChannelsLast(nn.Module):
    """The network with its preprocessing, in the memory order that trains fastest on a CPU.

    ``frozen``: only the last layer is trained; the others stay in evaluation mode, or batch
    normalization would change them all the same.
    """

    def __init__(self, inner: WithPreprocess, *, frozen: bool = False) -> None:
        super().__init__()
        self.inner = inner.to(memory_format=torch.channels_last)
        self._frozen = frozen

    def train(self, mode: bool = True) -> ChannelsLast:
        """Set training or evaluation mode."""
        super().train(mode and not self._frozen)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, K) of uint8 images (N, H, W, 3)."""
        planes = images.permute(0, 3, 1, 2).to(torch.float32)
        logits: Tensor = self.inner.net(planes * self.inner.scale + self.inner.bias)
        return logits


class ClassifierFit(Fit):
    """One training of a classifier: uint8 images (N, H, W, 3) to logits (N, 2), and with
    ``config.progress`` a third column.

    The frames with the indices ``validation`` decide when to stop and which weights are kept, as
    they are and corrupted: those of the highest average precision, and of the lowest cross-entropy
    before calibration, which ranks networks that separate the classes perfectly. A network that
    only guesses after :attr:`trial` stops. ``corrupted`` is the share of a batch's frames that are
    corrupted; images of a failing camera join it. ``shares`` say how often each frame of ``train``
    is drawn; None: by :func:`sampling_shares`. AdamW's learning rate warms up over 5 % of the
    steps, then falls to 0 along a cosine.
    """

    POSTFIX = ("epoch", "val_loss", "val_ap")
    SAVE_EVERY = 250
    CLIP = 5.0

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset,
        train: Indices,
        validation: Indices,
        config: FinetuneConfig,
        folder: Path,
        *,
        corrupted: float = CORRUPTED,
        shares: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.config, self._corrupted = config, corrupted
        self._data, self._validation = dataset, validation
        self._targets = margin_targets(dataset.distances, dataset.labels, SUCCESS_DISTANCE)
        self.progress = read_targets(dataset, train) if config.progress else None
        """What is known of the progress of the dataset's frames; None if it is not learned."""
        self._failures = train[dataset.labels[train] == 0]
        # If distances give targets, these frames are as far from success as can be.
        known = bool((~np.isnan(self._targets)).any())
        self._dead_target = torch.tensor(-MARGIN_LIMIT if known else math.nan)
        if shares is None:
            shares = sampling_shares(self._targets[train], BOOST)
        batch_size = min(BATCH_SIZE, max(LEAST_BATCH, len(train) // LEAST_STEPS))
        every = steps_per_epoch(train, batch_size)
        super().__init__(
            module,
            torch.optim.AdamW(
                [one for one in module.parameters() if one.requires_grad],
                lr=config.learning_rate,
                weight_decay=WEIGHT_DECAY,
            ),
            train,
            folder,
            about={"dataset": dataset.sha256, "split": SPLIT},
            steps=every * config.epochs,
            every=every,
            batch_size=batch_size,
            seed=config.seed,
            resume=config.resume,
            patience=PATIENCE,
            shares=shares if np.ptp(shares) > 0 else None,
        )
        self._dead = math.ceil(SHARE * self._batch_size)
        self._some = validation[:: max(1, len(validation) // CORRUPTED_FRAMES)]
        self._corrupted_images = self.corrupt(self._some, 1.0, 0, 0)

    @property
    def trial(self) -> int:
        """Steps after which it shows whether the network learns: the end of an epoch."""
        return self._every * max(TRIAL_EPOCHS, math.ceil(TRIAL_STEPS / self._every))

    @property
    def saved(self) -> float:
        """Share of the cross-entropy of guessing that was saved on validation frames at best."""
        return max((record["val_saved"] for record in self.history), default=0.0)

    @property
    def at_chance(self) -> bool:
        """Whether the trial is over and the network only guesses."""
        least = max(CHANCE, CHANCE_FRAMES / len(self._validation))
        return self.step >= self.trial and self.saved < least

    def _flat(self) -> bool:
        return self.at_chance or super()._flat()

    def _rate(self, step: int) -> float:
        warmup = max(1, self.steps // 20)
        if step < warmup:
            return self.config.learning_rate * (step + 1) / warmup
        done = (step - warmup) / max(1, self.steps - warmup)
        return self.config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def corrupt(self, frames: Indices, share: float, *number: int) -> Images:
        """Return frames' images, a share of them corrupted; drawn from the numbers."""
        random = np.random.default_rng([_SALT, self.config.seed, *number])
        return randomly_corrupted(self._data.images[frames], share, random, self._data.views)

    def _loss(self, batch: Indices, random: torch.Generator) -> tuple[Tensor, Record]:
        labels = torch.from_numpy(self._data.labels[batch])
        targets = torch.from_numpy(self._targets[batch])
        images, seed = self._data.images, self.config.seed
        shown = torch.from_numpy(self.corrupt(batch, self._corrupted, 1, self.step))
        shown = augment(shown, JITTER, random)
        # After augmentation: black stays black.
        # A single dead camera only once it knows the task, which it learns worse otherwise.
        views = self._data.views if 2 * self.step >= self.steps else ()
        dead = step_frames(self.step, self._dead, images, self._failures, seed=seed, views=views)
        shown = torch.cat([shown, torch.from_numpy(dead)])
        labels = torch.cat([labels, labels.new_zeros(len(dead))])
        targets = torch.cat([targets, self._dead_target.expand(len(dead))])
        with self._half():
            outputs = self.module(shown).float()
        loss = loss_of(outputs[:, :2], labels, targets, MARGIN)
        if self.progress is not None:
            # A dead camera shows none.
            known = nn.functional.pad(torch.from_numpy(self.progress.known[batch]), (0, len(dead)))
            most = nn.functional.pad(torch.from_numpy(self.progress.most[batch]), (0, len(dead)))
            loss = loss + progress_loss(outputs[:, 2], known, most)
        return loss, {}

    def _evaluate(self, losses: list[Record]) -> tuple[Record, float]:
        outputs = predict(self.module, self._data.images[self._validation])
        logits = outputs[:, :2].astype(np.float64)
        labels = self._data.labels[self._validation]
        log_odds = logits[:, 1] - logits[:, 0]
        score = partial(logits_of, self.module)
        dead_logits = logits_by_family(score, self._data, self._validation, 1, self.config.seed)
        dead = np.diff(np.concatenate([*dead_logits.values()]))[:, 0]
        corrupted = np.diff(score(self._corrupted_images))[:, 0].astype(np.float64)
        some, none = self._data.labels[self._some], np.zeros(len(dead), dtype=np.int64)
        record = {
            "epoch": float(self._epoch()),
            "train_loss": float(np.mean([parts["loss"] for parts in losses])),
            "val_loss": log_loss(log_odds / temperature(logits, labels), labels),
            "val_ap": average_precision(log_odds, labels),
            "val_saved": saved_by(logits, labels),
        }
        # Weighted as in a batch.
        share = self._corrupted
        missed = 1 - (1 - share) * record["val_ap"] - share * average_precision(corrupted, some)
        loss = (1 - share) * log_loss(log_odds, labels) + share * log_loss(corrupted, some)
        loss += SHARE * log_loss(dead, none)
        if self.progress is not None:
            error = mean_error(outputs[:, 2], self.progress.known[self._validation])
            record["val_progress_error"] = error
            loss += error
        return record, missed + LOSS_SHARE * loss


def logits_of(module: nn.Module, images: Images) -> Floats:
    """Return the logits (N, 2) of images (N, H, W, 3), without a column of progress."""
    return predict(module, images)[:, :2]


def augment(images: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Jitter uint8 images (N, H, W, 3): light, contrast, colour, noise, a translation by a pixel.

    No crops, flips, turns or scaling: positions in the image decide the label.
    """
    if strength <= 0:
        return images
    count = len(images)

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=random) * 2 - 1) * strength

    values = images.to(torch.float32)
    mean = values.mean(dim=(1, 2, 3), keepdim=True)
    contrast = 1 + 0.2 * uniform(count, 1, 1, 1)
    gain = 1 + 0.2 * uniform(count, 1, 1, 1) + 0.06 * uniform(count, 1, 1, 3)
    values = ((values - mean) * contrast + mean) * gain
    values += torch.randn(values.shape, generator=random) * (4.0 * strength)
    rows, columns = torch.randint(-1, 2, (2,), generator=random).tolist()
    if rows or columns:
        # One translation per batch, repeating the edge.
        values = values.permute(0, 3, 1, 2)
        values = nn.functional.pad(values, (1, 1, 1, 1), mode="replicate")
        height, width = images.shape[1:3]
        values = values[:, :, 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]
        values = values.permute(0, 2, 3, 1)
    return values.round().clamp(0, 255).to(torch.uint8)


def loss_of(logits: Tensor, labels: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Return cross-entropy plus ``margin`` times the error of the log-odds against ``targets``.

    ``logits`` are (N, 2), column 1 is success; ``labels`` (N,) int64. ``targets`` (N,) are
    log-odds, NaN if unknown. At ``MARGIN_LIMIT`` either way only less is an error.
    """
    loss = nn.functional.cross_entropy(logits, labels)
    known = ~torch.isnan(targets)
    if margin > 0 and bool(known.any()):
        log_odds, wanted = (logits[:, 1] - logits[:, 0])[known], targets[known]
        # To fit a plateau would cost capacity that the boundary needs.
        error = log_odds - wanted
        error = torch.where(wanted >= MARGIN_LIMIT, error.clamp(max=0), error)
        error = torch.where(wanted <= -MARGIN_LIMIT, error.clamp(min=0), error)
        loss = loss + margin * nn.functional.smooth_l1_loss(error, torch.zeros_like(error))
    return loss


def margin_targets(
    distances: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], success_distance: float
) -> Floats:
    """Return the target log-odds (N,) of frames from their distances, NaN if not recorded."""
    margin = (success_distance - distances) / MARGIN_SCALE
    targets = np.clip(margin, -MARGIN_LIMIT, MARGIN_LIMIT)
    # A distance that contradicts the label (an arm that is not at hover height) gives no target.
    agrees = np.isnan(distances) | ((distances <= success_distance) == (labels == 1))
    return np.where(agrees, targets, np.nan).astype(np.float32)


def sampling_shares(targets: Floats, boost: float) -> npt.NDArray[np.float64]:
    """Return how often (N,) each frame is drawn, as shares that sum to 1.

    Frames whose target of :func:`margin_targets` is short of ``MARGIN_LIMIT`` are the boundary.
    They weigh ``boost`` times their number, half of it inside the success distance and half
    outside: a capture has fewer near misses at the boundary than successes, and false positives
    come from those.
    """
    near = np.abs(np.nan_to_num(targets, nan=MARGIN_LIMIT)) < MARGIN_LIMIT
    weights = np.ones(len(targets))
    inside, outside = near & (targets >= 0), near & (targets < 0)
    if boost > 1 and inside.any() and outside.any():
        for side in (inside, outside):
            weights[side] = boost * near.sum() / (2 * side.sum())
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


@dataclass(frozen=True)
class TrainedOn:
    """What weights were trained on, in bounded size.

    Images are named by hashes of their content. Of many, the lowest hashes are kept: a
    sample that can be compared with any other set of images, and merged with another record.
    """

    datasets: tuple[str, ...]
    """SHA-256 of each, the oldest first; the last ``MOST_DATASETS``."""
    sample: Keys
    """(K,) uint64, sorted: the hashes up to ``limit``."""
    limit: int = 2**64 - 1
    complete: bool = True
    """False if the training began with weights without a record."""
    split: str = SPLIT
    captures: tuple[str, ...] = ()
    """What identifies their episodes, as :func:`origin_of`, where recorded; the last
    ``MOST_DATASETS``."""

    def to_text(self) -> str:
        """Return the record as a file of weights stores it."""
        sample = base64.b64encode(self.sample.astype(">u8").tobytes()).decode("ascii")
        return json.dumps(self.facts() | {"limit": self.limit, "sample": sample})

    def facts(self) -> dict[str, Any]:
        """Return what a bundle records."""
        return {
            "split": self.split,
            "datasets": list(self.datasets),
            "captures": list(self.captures),
            "complete": self.complete,
        }

    def share_of(self, keys: Keys) -> float:
        """Return the share of the images (K,) that were trained on, estimated by the sample."""
        sampled = np.unique(keys[keys <= np.uint64(self.limit)])
        return float(np.isin(sampled, self.sample).mean()) if len(sampled) else 0.0


def image_keys(images: npt.NDArray[np.uint8]) -> Keys:
    """Return a hash (N,) uint64 of the content of each image (N, H, W, 3)."""
    size = repr(images.shape[1:]).encode()
    digests = [
        hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8, key=size).digest()
        for image in images
    ]
    return np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)


def record_of(
    dataset: Dataset, train: Indices, *, started: bool, before: TrainedOn | None
) -> TrainedOn:
    """Return the record of a training on the frames ``train``; ``before`` is the initial weights'.

    ``started`` is False for random initial weights.
    """
    keys = np.unique(image_keys(dataset.images[train]))
    datasets = [dataset.sha256]
    captures = [] if dataset.origin is None else [dataset.origin]
    limit = 2**64 - 1
    if before is not None:
        keys, limit = np.union1d(keys, before.sample), before.limit
        datasets = [*(one for one in before.datasets if one != dataset.sha256), *datasets]
        captures = [*(one for one in before.captures if one != dataset.origin), *captures]
    keys = keys[keys <= np.uint64(limit)]
    if len(keys) > SAMPLE:
        keys = keys[:SAMPLE]
        limit = int(keys[-1])
    complete = not started or (before is not None and before.complete)
    return TrainedOn(
        tuple(datasets[-MOST_DATASETS:]),
        keys,
        limit,
        complete,
        captures=tuple(captures[-MOST_DATASETS:]),
    )


def read_record(path: Path) -> TrainedOn | None:
    """Return what the weights at ``path`` were trained on; None if they have no record."""
    if path.suffix != ".safetensors":
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as stream:
            check_header(stream.read(8))
        with safe_open(path, framework="np") as opened:
            text = (opened.metadata() or {}).get(RECORD)
        if text is None:
            return None
        value = json.loads(text)
        sample = np.frombuffer(base64.b64decode(value["sample"], validate=True), dtype=">u8")
        if len(sample) > SAMPLE:
            raise ValueError(f"a sample of {len(sample)}")
        return TrainedOn(
            tuple(str(name) for name in value["datasets"])[-MOST_DATASETS:],
            np.unique(sample.astype(np.uint64)),
            int(np.uint64(value["limit"])),
            value["complete"] is True,
            str(value["split"]),
            tuple(str(name) for name in value.get("captures", ()))[-MOST_DATASETS:],
        )
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise ModelCorruptError(
            f"{path} does not say what it was trained on in a way that can be read "
            f"({type(error).__name__}: {error}). Expected weights written by vinoreward finetune; "
            "copy or make them again."
        ) from error


def check_unseen(
    record: TrainedOn | None,
    path: Path,
    dataset: Dataset,
    parts: Sequence[Indices],
    remedy: str = "capture with another --seed, or leave --weights out",
) -> str:
    """Return a sentence on whether held-out frames are new to the weights at ``path``, or refuse.

    Held-out images that are in the training part too (an arm at rest looks the same in every
    episode) do not count. ``parts`` are the indices of (train, validation, test).
    """
    if record is None:
        return (
            f"not known: {path.name} carries no record of what it was trained on. If on these "
            "images, the rates here are too good"
        )
    held_out = image_keys(dataset.images[np.concatenate(parts[1:])])
    trained = image_keys(dataset.images[parts[0]])
    share = record.share_of(held_out[~np.isin(held_out, trained)])
    if share > TOLERATED:
        raise DatasetError(
            f"{path} was trained on {share:.0%} of the images that {dataset.folder} holds out for "
            "validation and test. Expected weights that were not, as their rates would be too "
            f"good; give the capture that they were trained on, {remedy}."
        )
    first = "" if record.complete else ", but began with weights of which nothing is known"
    return f"yes, {path.name} was trained on none of these images{first}"
