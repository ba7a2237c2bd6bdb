"""The encoder's training loop: resumable to the step, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from vinoreward.encoders.vae import Vae
from vinoreward.errors import DatasetError, ModelCorruptError, OutputError
from vinoreward.interrupts import interrupt_between
from vinoreward.saved_state import save_state
from vinoreward_training.classifier.training import BF16_SHARE, CHECKPOINT
from vinoreward_training.classifier.weights import load_plain
from vinoreward_training.data.frames import Frames
from vinoreward_training.encoder.apply import normalised, planes
from vinoreward_training.encoder.loss import PixelWeights, PlaceReader, divergence, reconstruction

SAVE_EVERY = 500
"""Steps between checkpoints: what a kill can cost."""
RECORD_EVERY = 500
"""Steps between evaluations on validation frames."""
MEASURED_FRAMES = 4000
"""Training frames on which pixel weights are measured."""
VALIDATION_FRAMES = 1024

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """How an encoder is trained.

    Attributes:
        steps: in all.
        batch_size: frames of a step.
        learning_rate: highest rate of Adam; warm-up over 200 steps, then a cosine to 0.
        beta: weight of the KL divergence once warmed up.
        warmup: share of the steps over which it rises from 0.
        sigma: standard deviation of a pixel that counts as noise, in units of 0 to 1.
        foreground: additional weight of pixels that differ from the mean picture.
        rare: highest weight of pixels of a rare colour, 1 for none.
        denoise: standard deviation of noise put on the input only, in units of 0 to 1.
        places: weight of the squared error, in square millimetres, with which recorded places are
            read linearly from the latent; 0 to train without them.
        seed: decides initial weights, order and noise.
        bf16: compute in bfloat16 for the first three quarters of the steps.
    """

    steps: int = 20_000
    batch_size: int = 64
    learning_rate: float = 1e-3
    beta: float = 1.0
    warmup: float = 0.2
    sigma: float = 0.05
    foreground: float = 0.0
    rare: float = 10.0
    denoise: float = 0.0
    places: float = 0.0
    seed: int = 0
    bf16: bool = False


@dataclass
class _State:
    step: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


class VaeFit:
    """One training run: the network, its optimiser and where it stands.

    Args:
        vae: trained in place.
        frames: all frames.
        train: indices to train on.
        validation: indices for the curves.
        recipe: how.
        folder: holds the checkpoint.
        resume: continue from the checkpoint if there is one.

    Raises:
        ModelCorruptError: the checkpoint cannot be read or is of another network.
        DatasetError: the checkpoint belongs to other frames.
    """

    def __init__(
        self,
        vae: Vae,
        frames: Frames,
        train: Indices,
        validation: Indices,
        recipe: Recipe,
        folder: Path,
        *,
        resume: bool = False,
    ) -> None:
        self.vae = vae.to(memory_format=torch.channels_last)
        self.recipe = recipe
        self._frames = frames
        self._train, self._validation = train, validation[:VALIDATION_FRAMES]
        measured = train[:: max(1, len(train) // MEASURED_FRAMES)]
        self._weights = PixelWeights.measure(
            frames.images[measured], foreground=recipe.foreground, rare=recipe.rare
        )
        vae.set_average(self._weights.average)
        parameters = list(vae.parameters())
        self._reader, self._places = None, np.zeros((len(frames.images), 0))
        if recipe.places > 0:
            self._places = np.concatenate(
                [frames.places[name] for name in sorted(frames.places)], 1
            )
            self._reader = PlaceReader(vae.latent_size, self._places[train])
            parameters += self._reader.parameters()
        self._optimiser = torch.optim.Adam(parameters, lr=recipe.learning_rate)
        self._path = folder / CHECKPOINT
        self._state = _State()
        self._steps_per_epoch = max(1, len(train) // recipe.batch_size)
        if resume and self._path.is_file():
            self._load()

    @property
    def step(self) -> int:
        """Steps done."""
        return self._state.step

    @property
    def history(self) -> list[dict[str, float]]:
        """One record per evaluation: step, parts of the training and validation loss, rate."""
        return [dict(record) for record in self._state.history]

    def save(self) -> None:
        """Write the checkpoint: weights, optimiser and the step; atomically."""
        value = {
            "frames": self._frames.sha256,
            "recipe": self._about(),
            "model": self.vae.state_dict(),
            "reader": None if self._reader is None else self._reader.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            **vars(self._state),
        }
        save_state(self._path, value)

    def _about(self) -> dict[str, Any]:
        return dict(vars(self.recipe))

    def _load(self) -> None:
        value = load_plain(self._path)
        if value.get("frames") != self._frames.sha256:
            raise DatasetError(
                f"{self._path} was written for other frames than those of {self._frames.source}. "
                "Expected the same pictures when resuming; train in a new folder with --out."
            )
        if value.get("recipe") != self._about():
            raise ModelCorruptError(
                f"{self._path} was written with other settings ({value.get('recipe')}). Expected "
                f"{self._about()}: the same when resuming; train in a new folder with --out."
            )
        try:
            self.vae.load_state_dict(value["model"])
            if self._reader is not None:
                self._reader.load_state_dict(value["reader"])
            self._optimiser.load_state_dict(value["optimiser"])
            self._state = _State(step=int(value["step"]), history=list(value["history"]))
        except (KeyError, RuntimeError, ValueError) as error:
            raise ModelCorruptError(
                f"{self._path} does not fit this run ({str(error).splitlines()[0]}). Expected the "
                "checkpoint of the same architecture; train in a new folder with --out."
            ) from error

    def _rate(self, step: int) -> float:
        highest, steps = self.recipe.learning_rate, self.recipe.steps
        warm = min(1.0, (step + 1) / min(200, max(1, steps // 5)))
        return highest * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

    def _beta(self, step: int) -> float:
        rise = self.recipe.warmup * self.recipe.steps
        return self.recipe.beta * (min(1.0, step / rise) if rise > 0 else 1.0)

    def _batch(self, step: int) -> Indices:
        epoch, position = divmod(step, self._steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            random = np.random.default_rng([self.recipe.seed, epoch])
            self._order = (epoch, random.permutation(self._train))
        start = position * self.recipe.batch_size
        return self._order[1][start : start + self.recipe.batch_size]

    _order: tuple[int, Indices] | None = None

    def _step(self) -> dict[str, float]:
        recipe, step = self.recipe, self._state.step
        random = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        rate = self._rate(step)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        batch = self._batch(step)
        images = self._frames.images[batch]
        targets = planes(images)
        seen = targets
        if recipe.denoise > 0:
            noise = torch.randn(targets.shape, generator=random)
            seen = (targets + recipe.denoise * noise).clamp(0, 1)
        half = recipe.bf16 and step < BF16_SHARE * recipe.steps
        latent_noise = torch.randn((len(images), self.vae.latent_size), generator=random)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            made, mean, log_variance = self.vae(normalised(seen), latent_noise)
        picture = reconstruction(made, targets, self._weights.of(images, targets), recipe.sigma)
        divergences = divergence(mean, log_variance)
        loss = picture + self._beta(step) * divergences.sum()
        extra = {}
        if self._reader is not None:
            places = self._reader.squared_error(mean, self._places[batch])
            loss = loss + recipe.places * places
            extra["places_mm2"] = float(places.detach())
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.vae.parameters(), 1e4)
        self._optimiser.step()
        self._state.step += 1
        found = {
            "loss": float(loss.detach()),
            "reconstruction": float(picture.detach()),
            "kl": float(divergences.detach().sum()),
            **extra,
        }
        if not math.isfinite(found["loss"]):
            raise OutputError(
                f"the loss is {found['loss']} after step {self._state.step}. Expected a finite "
                "number; lower --learning-rate, or start again from the last checkpoint."
            )
        return found

    def _evaluate(self) -> dict[str, float]:
        """Return the parts of the loss on validation frames, from the means."""
        self.vae.eval()
        totals = dict.fromkeys(("reconstruction", "kl", "squared_error", "active"), 0.0)
        images = self._frames.images[self._validation]
        per_number = torch.zeros(self.vae.latent_size)
        with torch.inference_mode():
            for start in range(0, len(images), 256):
                part = images[start : start + 256]
                targets = planes(part)
                noise = torch.zeros((len(part), self.vae.latent_size))
                made, mean, log_variance = self.vae(normalised(targets), noise)
                weights = self._weights.of(part, targets)
                share = len(part) / len(images)
                totals["reconstruction"] += share * float(
                    reconstruction(made, targets, weights, self.recipe.sigma)
                )
                totals["squared_error"] += share * float(((made - targets) ** 2).mean())
                per_number += share * divergence(mean, log_variance)
        totals["kl"] = float(per_number.sum())
        totals["active"] = float((per_number > 0.05).sum())
        self.vae.train()
        return totals

    def run(
        self,
        on_step: Callable[[int, dict[str, float]], None],
        on_record: Callable[[dict[str, float]], None],
    ) -> None:
        """Train to the end.

        Args:
            on_step: called with the step and the parts of its loss.
            on_record: called with each evaluation.

        Ctrl-C lets the step finish, saves the checkpoint and raises KeyboardInterrupt.
        """
        state, recipe = self._state, self.recipe
        self.vae.train()
        # Between steps only: half a step saved would not lead to the very same weights again.
        with interrupt_between() as check:
            while state.step < recipe.steps:
                found = self._step()
                on_step(state.step, found)
                if state.step % RECORD_EVERY == 0 or state.step == recipe.steps:
                    record = {"step": float(state.step), "rate": self._rate(state.step)}
                    record |= {f"train_{name}": value for name, value in found.items()}
                    record |= {f"val_{name}": value for name, value in self._evaluate().items()}
                    state.history.append(record)
                    on_record(record)
                if state.step % SAVE_EVERY == 0 or state.step == recipe.steps:
                    self.save()
                check(self.save)
        self.vae.eval()
