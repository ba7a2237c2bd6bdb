"""The classifier's training loop: resumable to the step, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.errors import DatasetError, ModelCorruptError
from vinoreward.rewards.calibration import temperature
from vinoreward.saved_state import save_state
from vinoreward_training.classifier.dead_camera import SHARE, held_out, of_step
from vinoreward_training.classifier.evaluation import average_precision, log_loss
from vinoreward_training.classifier.training_signal import (
    MARGIN_LIMIT,
    augment,
    loss_of,
    margin_targets,
    sampling_shares,
)
from vinoreward_training.classifier.weights import load_plain
from vinoreward_training.data.dataset import SPLIT, Dataset

CHECKPOINT = "checkpoint.pt"
SAVE_EVERY = 250
"""Steps between checkpoints within an epoch: what a kill can cost."""
BF16_SHARE = 0.75
"""Share of the steps that may run in bfloat16."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Recipe:
    """How a classifier is trained.

    Attributes:
        epochs: passes over the training part.
        batch_size: frames of a step.
        learning_rate: highest rate of AdamW; warm-up over 5 % of the steps, then a cosine to 0.
        weight_decay: of AdamW.
        augment: strength of the colour jitter and noise, 0 for none, 1 for strong.
        margin: weight of the distance loss where distances are known, 0 for labels only.
        boost: how many times as often frames near the success distance are drawn for training;
            validation and test frames are left as they were captured.
        patience: epochs without a better validation loss before training stops.
        seed: decides initial weights, order and augmentation.
        success_distance: metres at which the label changes, for the distance loss.
        dead_camera: frames of a failing camera in a batch, as a share of its other frames.
        bf16: compute in bfloat16 until ``BF16_SHARE`` of the steps are done. Twice as fast on a
            processor that has it; the rest is in float32, to settle what rounding blurred.
    """

    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    augment: float = 0.3
    margin: float = 1.0
    boost: float = 2.0
    patience: int = 6
    seed: int = 0
    success_distance: float = 0.035
    dead_camera: float = SHARE
    bf16: bool = False


def has_bf16() -> bool:
    """Tell whether this processor multiplies bfloat16; elsewhere it would be slower."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


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


def predict(module: nn.Module, images: npt.NDArray[np.uint8], *, batch_size: int = 128) -> Floats:
    """Return the logits (N, K) of uint8 pictures (N, H, W, 3), in evaluation mode."""
    training = module.training
    module.eval()
    parts = []
    with torch.inference_mode():
        for start in range(0, len(images), batch_size):
            parts.append(module(torch.from_numpy(images[start : start + batch_size])).numpy())
    module.train(training)
    return np.concatenate(parts).astype(np.float32)


@dataclass
class _State:
    step: int = 0
    best_loss: float = math.inf
    best_epoch: int = -1
    best: dict[str, Tensor] | None = None
    history: list[dict[str, float]] = field(default_factory=list)


class Fit:
    """One training run: the network, its optimiser and where it stands.

    Args:
        module: uint8 pictures (N, H, W, 3) to logits (N, 2); trained in place.
        dataset: all frames.
        train: indices to train on.
        validation: indices that decide when to stop and which weights are kept.
        recipe: how.
        folder: holds the checkpoint.
        resume: continue from the checkpoint if there is one.

    Raises:
        ModelCorruptError: the checkpoint cannot be read.
        DatasetError: the checkpoint belongs to another dataset, or to another way to split it.
    """

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset,
        train: npt.NDArray[np.int64],
        validation: npt.NDArray[np.int64],
        recipe: Recipe,
        folder: Path,
        *,
        resume: bool = False,
    ) -> None:
        self.module = module
        self.recipe = recipe
        self._data = dataset
        self._train, self._validation = train, validation
        self._targets = margin_targets(dataset.distances, dataset.labels, recipe.success_distance)
        self._shares = sampling_shares(self._targets[train], recipe.boost)
        self._failures = train[dataset.labels[train] == 0]
        self._dead = math.ceil(recipe.dead_camera * recipe.batch_size)
        # Where frames are asked for log-odds by their distance, these are as far as can be.
        known = bool((~np.isnan(self._targets)).any())
        self._dead_target = torch.tensor(-MARGIN_LIMIT if known else math.nan)
        self._optimiser = torch.optim.AdamW(
            module.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self._path = folder / CHECKPOINT
        self._state = _State()
        self.steps_per_epoch = max(1, len(train) // recipe.batch_size)
        if resume and self._path.is_file():
            self._load()

    @property
    def step(self) -> int:
        """Steps done."""
        return self._state.step

    @property
    def steps(self) -> int:
        """Steps in all, unless training stops early."""
        return self.steps_per_epoch * self.recipe.epochs

    @property
    def history(self) -> list[dict[str, float]]:
        """One record per finished epoch: epoch, train_loss, val_loss (calibrated), val_ap, …"""
        return list(self._state.history)

    def save(self) -> None:
        """Write the checkpoint: weights, optimiser, best weights and the step; atomically."""
        state = self._state
        value = {
            "dataset": self._data.sha256,
            "split": SPLIT,
            "model": self.module.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            **vars(state),
            "best": state.best or {},
        }
        save_state(self._path, value)

    def _load(self) -> None:
        value = load_plain(self._path)
        if value.get("dataset") != self._data.sha256:
            raise DatasetError(
                f"{self._path} was written for another dataset than {self._data.folder}. Expected "
                "the same pictures when resuming; train in a new folder with --out."
            )
        if value.get("split") != SPLIT:
            raise DatasetError(
                f"{self._path} was written by a version that split the data otherwise, so it has "
                "trained on frames that are held out now. Expected a checkpoint of this version; "
                "train in a new folder with --out."
            )
        try:
            self.module.load_state_dict(value["model"])
            self._optimiser.load_state_dict(value["optimiser"])
            self._state = _State(
                step=int(value["step"]),
                best_loss=float(value["best_loss"]),
                best_epoch=int(value["best_epoch"]),
                best=value["best"] or None,
                history=list(value["history"]),
            )
        except (KeyError, RuntimeError, ValueError) as error:
            raise ModelCorruptError(
                f"{self._path} does not fit this run ({str(error).splitlines()[0]}). Expected the "
                "checkpoint of the same architecture; train in a new folder with --out."
            ) from error

    def _rate(self, step: int) -> float:
        warmup = max(1, self.steps // 20)
        if step < warmup:
            return self.recipe.learning_rate * (step + 1) / warmup
        done = (step - warmup) / max(1, self.steps - warmup)
        return self.recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return an epoch's frames: all of them once, or drawn by their shares."""
        random = np.random.default_rng([self.recipe.seed, epoch])
        if np.ptp(self._shares) == 0:
            return random.permutation(self._train)
        return random.choice(self._train, len(self._train), p=self._shares)

    def _step(self, indices: npt.NDArray[np.int64]) -> float:
        random = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + self._state.step)
        rate = self._rate(self._state.step)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        labels = torch.from_numpy(self._data.labels[indices])
        targets = torch.from_numpy(self._targets[indices])
        pictures = augment(
            torch.from_numpy(self._data.images[indices]), self.recipe.augment, random
        )
        if self._dead:
            # After augmentation: black stays black.
            dead = of_step(
                self._state.step,
                self._dead,
                self._data.images,
                self._failures,
                seed=self.recipe.seed,
            )
            pictures = torch.cat([pictures, torch.from_numpy(dead)])
            labels = torch.cat([labels, labels.new_zeros(len(dead))])
            targets = torch.cat([targets, self._dead_target.expand(len(dead))])
        half = self.recipe.bf16 and self._state.step < BF16_SHARE * self.steps
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            logits = self.module(pictures).float()
        loss = loss_of(logits, labels, targets, self.recipe.margin)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.module.parameters(), 5.0)
        self._optimiser.step()
        self._state.step += 1
        return float(loss.detach())

    def _dead_log_odds(self) -> npt.NDArray[np.float64]:
        """Return the log-odds, before calibration, of the dead-camera frames of validation."""
        failures = self._validation[self._data.labels[self._validation] == 0]
        drawn = held_out(1, self._data.images, failures, seed=self.recipe.seed)
        logits = np.concatenate([predict(self.module, images) for _, images in drawn])
        values: npt.NDArray[np.float64] = (logits[:, 1] - logits[:, 0]).astype(np.float64)
        return values

    def _evaluate(self, train_loss: float) -> dict[str, float]:
        logits = predict(self.module, self._data.images[self._validation]).astype(np.float64)
        labels = self._data.labels[self._validation]
        # Calibrated, as the bundle will be: else training stops at the first overconfidence.
        heat = temperature(logits, labels)
        log_odds = (logits[:, 1] - logits[:, 0]) / heat
        dead = self._dead_log_odds() / heat
        state = self._state
        epoch = state.step // self.steps_per_epoch
        record = {
            "epoch": float(epoch),
            "train_loss": train_loss,
            "val_loss": log_loss(log_odds, labels),
            "val_ap": average_precision(log_odds, labels),
            "val_accuracy": float(np.mean((log_odds > 0) == (labels == 1))),
            "val_dead_loss": log_loss(dead, np.zeros(len(dead), dtype=np.int64)),
            "val_dead_claimed": float(np.mean(dead > 0)),
            "learning_rate": self._rate(state.step),
        }
        # Weighed as in a batch.
        loss = record["val_loss"] + self.recipe.dead_camera * record["val_dead_loss"]
        if loss < state.best_loss:
            state.best_loss, state.best_epoch = loss, epoch
            state.best = {k: v.detach().clone() for k, v in self.module.state_dict().items()}
        state.history.append(record)
        return record

    def run(
        self,
        on_step: Callable[[int, float], None],
        on_epoch: Callable[[dict[str, float]], None],
    ) -> None:
        """Train to the end, then load the best weights.

        Args:
            on_step: called with the step and its loss.
            on_epoch: called with the epoch's record.

        A KeyboardInterrupt saves the checkpoint and goes on its way.
        """
        state, recipe = self._state, self.recipe
        self.module.train()
        try:
            while state.step < self.steps:
                epoch, position = divmod(state.step, self.steps_per_epoch)
                if epoch - max(0, state.best_epoch) >= recipe.patience:
                    break
                order = self._order(epoch)
                losses = []
                for batch in range(position, self.steps_per_epoch):
                    start = batch * recipe.batch_size
                    losses.append(self._step(order[start : start + recipe.batch_size]))
                    on_step(state.step, losses[-1])
                    if state.step % SAVE_EVERY == 0:
                        self.save()
                on_epoch(self._evaluate(float(np.mean(losses))))
                self.save()
        except KeyboardInterrupt:
            self.save()
            raise
        if state.best is not None:
            self.module.load_state_dict(state.best)
        self.module.eval()
