"""How a classifier is trained: what a step is shown, what it is asked for, and what is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.errors import DatasetError
from vinoreward.rewards.calibration import temperature
from vinoreward_envs.constants import SUCCESS_DISTANCE
from vinoreward_training.classifier.dead_camera import SHARE, held_out, of_step
from vinoreward_training.classifier.evaluation import average_precision, log_loss
from vinoreward_training.data.dataset import SPLIT, Dataset
from vinoreward_training.runs.fit import (
    Fit,
    Indices,
    Recipe,
    Record,
    predict,
    steps_per_epoch,
)

MARGIN_SCALE = 0.003
"""Metres beyond the success distance that one unit of log-odds stands for."""
MARGIN_LIMIT = 6.0
"""Log-odds asked for far from the boundary; more would only train confidence."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ClassifierRecipe(Recipe):
    """How a classifier is trained, beside what ``finetune`` calls by the same names.

    Attributes:
        learning_rate: of AdamW; warm-up over 5 % of the steps, then a cosine to 0.
        weight_decay: of AdamW.
        success_distance: metres at which the label changes, for the distance loss.
        dead_camera: frames of a failing camera in a batch, as a share of its other frames.
    """

    epochs: int = 8
    weight_decay: float = 1e-4
    augment: float = 0.3
    margin: float = 1.0
    boost: float = 2.0
    patience: int = 6
    success_distance: float = SUCCESS_DISTANCE
    dead_camera: float = SHARE


class ChannelsLast(nn.Module):
    """The network with its preprocessing, in the memory order that trains fastest on a CPU.

    Takes uint8 pictures (N, H, W, 3), gives logits, like the module it is made of.
    """

    def __init__(self, inner: WithPreprocess) -> None:
        super().__init__()
        self.inner = inner.to(memory_format=torch.channels_last)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits (N, K)."""
        planes = pictures.permute(0, 3, 1, 2).to(torch.float32)
        logits: Tensor = self.inner.net(planes * self.inner.scale + self.inner.bias)
        return logits


class ClassifierFit(Fit):
    """One training of a classifier: uint8 pictures (N, H, W, 3) to logits (N, 2).

    The frames with the indices ``validation`` decide when to stop and which weights are kept.

    Raises:
        ModelCorruptError: the checkpoint cannot be read.
        DatasetError: the checkpoint belongs to another dataset, or to another way to split it.
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
        recipe: ClassifierRecipe,
        folder: Path,
        *,
        resume: bool = False,
    ) -> None:
        self.recipe = recipe
        self._data, self._validation = dataset, validation
        self._targets = margin_targets(dataset.distances, dataset.labels, recipe.success_distance)
        self._failures = train[dataset.labels[train] == 0]
        self._dead = math.ceil(recipe.dead_camera * recipe.batch_size)
        # Where frames are asked for log-odds by their distance, these are as far as can be.
        known = bool((~np.isnan(self._targets)).any())
        self._dead_target = torch.tensor(-MARGIN_LIMIT if known else math.nan)
        shares = sampling_shares(self._targets[train], recipe.boost)
        every = steps_per_epoch(train, recipe)
        super().__init__(
            module,
            torch.optim.AdamW(
                module.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
            ),
            train,
            recipe,
            folder,
            steps=every * recipe.epochs,
            every=every,
            patience=recipe.patience,
            shares=shares if np.ptp(shares) > 0 else None,
            resume=resume,
        )

    def _about(self) -> dict[str, Any]:
        return {"dataset": self._data.sha256, "split": SPLIT}

    def _check(self, about: Mapping[str, Any], path: Path) -> None:
        if about.get("dataset") != self._data.sha256:
            raise DatasetError(
                f"{path} was written for another dataset than {self._data.folder}. Expected "
                "the same pictures when resuming; train in a new folder with --out."
            )
        if about.get("split") != SPLIT:
            raise DatasetError(
                f"{path} was written by a version that split the data otherwise, so it has "
                "trained on frames that are held out now. Expected a checkpoint of this version; "
                "train in a new folder with --out."
            )

    def _rate(self, step: int) -> float:
        warmup = max(1, self.steps // 20)
        if step < warmup:
            return self.recipe.learning_rate * (step + 1) / warmup
        done = (step - warmup) / max(1, self.steps - warmup)
        return self.recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def _loss(self, batch: Indices, random: torch.Generator) -> tuple[Tensor, Record]:
        labels = torch.from_numpy(self._data.labels[batch])
        targets = torch.from_numpy(self._targets[batch])
        images, seed = self._data.images, self.recipe.seed
        pictures = augment(torch.from_numpy(images[batch]), self.recipe.augment, random)
        if self._dead:
            # After augmentation: black stays black.
            dead = of_step(self.step, self._dead, images, self._failures, seed=seed)
            pictures = torch.cat([pictures, torch.from_numpy(dead)])
            labels = torch.cat([labels, labels.new_zeros(len(dead))])
            targets = torch.cat([targets, self._dead_target.expand(len(dead))])
        with self._half():
            logits = self.module(pictures).float()
        return loss_of(logits, labels, targets, self.recipe.margin), {}

    def _evaluate(self, losses: list[Record]) -> tuple[Record, float]:
        logits = predict(self.module, self._data.images[self._validation]).astype(np.float64)
        labels = self._data.labels[self._validation]
        # Calibrated, as the bundle will be: else training stops at the first overconfidence.
        heat = temperature(logits, labels)
        log_odds = (logits[:, 1] - logits[:, 0]) / heat
        claims = judged_dead(self.module, self._data, self._validation, 1, self.recipe.seed)
        dead = np.concatenate([*claims.values()]) / heat
        record = {
            "epoch": float(self._epoch()),
            "train_loss": float(np.mean([found["loss"] for found in losses])),
            "val_loss": log_loss(log_odds, labels),
            "val_ap": average_precision(log_odds, labels),
            "val_accuracy": float(np.mean((log_odds > 0) == (labels == 1))),
            "val_dead_loss": log_loss(dead, np.zeros(len(dead), dtype=np.int64)),
            "val_dead_claimed": float(np.mean(dead > 0)),
            "learning_rate": self._rate(self.step),
        }
        # Weighed as in a batch.
        return record, record["val_loss"] + self.recipe.dead_camera * record["val_dead_loss"]


def judged_dead(
    module: nn.Module, dataset: Dataset, part: Indices, number: int, seed: int
) -> dict[str, npt.NDArray[np.float64]]:
    """Return log-odds, not calibrated, of the dead-camera frames of a held-out part, by family.

    Args:
        module: uint8 pictures (N, H, W, 3) to logits (N, 2).
        dataset: all frames.
        part: numbers of the held-out ones.
        number: of that part, see :func:`~vinoreward_training.classifier.dead_camera.held_out`.
        seed: of the training.
    """
    failures = part[dataset.labels[part] == 0]
    return {
        family: np.diff(predict(module, images).astype(np.float64))[:, 0]
        for family, images in held_out(number, dataset.images, failures, seed=seed)
    }


def augment(pictures: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Jitter uint8 pictures (N, H, W, 3): light, contrast, colour, noise, a shift of one pixel.

    No crops, flips, turns or scaling: where things stand in the picture is the label.
    """
    if strength <= 0:
        return pictures
    count = len(pictures)

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(shape, generator=random) * 2 - 1) * strength

    values = pictures.to(torch.float32)
    mean = values.mean(dim=(1, 2, 3), keepdim=True)
    contrast = 1 + 0.2 * uniform(count, 1, 1, 1)
    gain = 1 + 0.2 * uniform(count, 1, 1, 1) + 0.06 * uniform(count, 1, 1, 3)
    values = ((values - mean) * contrast + mean) * gain
    values += torch.randn(values.shape, generator=random) * (4.0 * strength)
    rows, columns = torch.randint(-1, 2, (2,), generator=random).tolist()
    if rows or columns:
        # One shift per batch, repeating the edge; the picture moves as a whole.
        values = values.permute(0, 3, 1, 2)
        values = nn.functional.pad(values, (1, 1, 1, 1), mode="replicate")
        height, width = pictures.shape[1:3]
        values = values[:, :, 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]
        values = values.permute(0, 2, 3, 1)
    return values.round().clamp(0, 255).to(torch.uint8)


def loss_of(logits: Tensor, labels: Tensor, targets: Tensor, margin: float) -> Tensor:
    """Cross-entropy, plus the error of the log-odds against ``targets`` where they are known.

    Args:
        logits: (N, 2), column 1 is success.
        labels: (N,) int64.
        targets: (N,) float log-odds, NaN where unknown. At ``MARGIN_LIMIT`` either way they are
            one-sided: more is not wrong there, only less.
        margin: weight of the second part.
    """
    loss = nn.functional.cross_entropy(logits, labels)
    known = ~torch.isnan(targets)
    if margin > 0 and bool(known.any()):
        log_odds, wanted = (logits[:, 1] - logits[:, 0])[known], targets[known]
        # A plateau would cost the network capacity that the boundary needs.
        error = log_odds - wanted
        error = torch.where(wanted >= MARGIN_LIMIT, error.clamp(max=0), error)
        error = torch.where(wanted <= -MARGIN_LIMIT, error.clamp(min=0), error)
        loss = loss + margin * nn.functional.smooth_l1_loss(error, torch.zeros_like(error))
    return loss


def margin_targets(
    distances: npt.NDArray[np.float64], labels: npt.NDArray[np.int64], success_distance: float
) -> Floats:
    """Return the log-odds that a frame's distance asks for; NaN where it has none.

    A frame's distance says more than its label: every near miss shows how near.
    """
    margin = (success_distance - distances) / MARGIN_SCALE
    targets = np.clip(margin, -MARGIN_LIMIT, MARGIN_LIMIT)
    # A distance that contradicts the label (an arm that is not at hover height) says nothing.
    agrees = np.isnan(distances) | ((distances <= success_distance) == (labels == 1))
    return np.where(agrees, targets, np.nan).astype(np.float32)


def sampling_shares(targets: Floats, boost: float) -> npt.NDArray[np.float64]:
    """Return how often (N,) each frame is drawn, as shares that sum to 1.

    Frames short of ``MARGIN_LIMIT`` are the boundary. Together they weigh ``boost`` times their
    number, half of it inside the success distance and half outside: an area holds far fewer near
    misses at the boundary than its disc holds successes, and false positives come from those.

    Args:
        targets: (N,) of :func:`margin_targets`.
        boost: at least 1; 1 draws all frames alike.
    """
    near = np.abs(np.nan_to_num(targets, nan=MARGIN_LIMIT)) < MARGIN_LIMIT
    weights = np.ones(len(targets))
    inside, outside = near & (targets >= 0), near & (targets < 0)
    if boost > 1 and inside.any() and outside.any():
        for side in (inside, outside):
            weights[side] = boost * near.sum() / (2 * side.sum())
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares
