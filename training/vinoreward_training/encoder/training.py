"""How an encoder is trained: the loss of a step, and what validation frames say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vinoreward.encoders.vae import Vae
from vinoreward.errors import DatasetError, ModelCorruptError
from vinoreward_training.data.frames import Frames
from vinoreward_training.encoder.export import normalised, planes
from vinoreward_training.encoder.loss import PixelWeights, PlaceReader, divergence, reconstruction
from vinoreward_training.runs.fit import Fit, Indices, Recipe, Record

RECORD_EVERY = 500
"""Steps between evaluations on validation frames, and between checkpoints."""
MEASURED_FRAMES = 4000
"""Training frames on which pixel weights are measured."""
VALIDATION_FRAMES = 1024


@dataclass(frozen=True)
class VaeRecipe(Recipe):
    """How an encoder is trained; all settings are those that ``train-vae`` calls by these names.

    ``learning_rate`` is Adam's: warm-up over 200 steps, then a cosine to 0. ``beta`` rises from 0
    over the share ``warmup`` of the steps.
    """

    batch_size: int = 64
    steps: int = 20_000
    beta: float = 1.0
    warmup: float = 0.2
    sigma: float = 0.05
    foreground: float = 0.0
    rare: float = 10.0
    denoise: float = 0.0
    places: float = 0.0


class VaeFit(Fit):
    """One training of an encoder.

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

    POSTFIX = ("val_reconstruction", "val_kl", "val_active")

    def __init__(
        self,
        vae: Vae,
        frames: Frames,
        train: Indices,
        validation: Indices,
        recipe: VaeRecipe,
        folder: Path,
        *,
        resume: bool = False,
    ) -> None:
        self.vae = vae.to(memory_format=torch.channels_last)
        self.recipe = recipe
        self._frames, self._validation = frames, validation[:VALIDATION_FRAMES]
        measured = train[:: max(1, len(train) // MEASURED_FRAMES)]
        self._weights = PixelWeights.measure(
            frames.images[measured], foreground=recipe.foreground, rare=recipe.rare
        )
        vae.set_average(self._weights.average)
        parameters = list(vae.parameters())
        reader, self._places = None, np.zeros((len(frames.images), 0))
        if recipe.places > 0:
            self._places = np.concatenate(
                [frames.places[name] for name in sorted(frames.places)], 1
            )
            reader = PlaceReader(vae.latent_size, self._places[train])
            parameters += reader.parameters()
        self._places_reader = reader
        super().__init__(
            vae,
            torch.optim.Adam(parameters, lr=recipe.learning_rate),
            train,
            recipe,
            folder,
            steps=recipe.steps,
            every=RECORD_EVERY,
            save_every=RECORD_EVERY,
            clip=1e4,
            reader=reader,
        )
        if resume:
            self._load()

    def _about(self) -> dict[str, Any]:
        return {"frames": self._frames.sha256, "recipe": dict(vars(self.recipe))}

    def _check(self, about: Mapping[str, Any], path: Path) -> None:
        if about.get("frames") != self._frames.sha256:
            raise DatasetError(
                f"{path} was written for other frames than those of {self._frames.source}. "
                "Expected the same pictures when resuming; train in a new folder with --out."
            )
        if about.get("recipe") != vars(self.recipe):
            raise ModelCorruptError(
                f"{path} was written with other settings ({about.get('recipe')}). Expected "
                f"{vars(self.recipe)}: the same when resuming; train in a new folder with --out."
            )

    def _rate(self, step: int) -> float:
        highest, steps = self.recipe.learning_rate, self.recipe.steps
        warm = min(1.0, (step + 1) / min(200, max(1, steps // 5)))
        return highest * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

    def _beta(self) -> float:
        rise = self.recipe.warmup * self.recipe.steps
        return self.recipe.beta * (min(1.0, self.step / rise) if rise > 0 else 1.0)

    def _loss(self, batch: Indices, random: torch.Generator) -> tuple[Tensor, Record]:
        recipe, images = self.recipe, self._frames.images[batch]
        targets = planes(images)
        seen = targets
        if recipe.denoise > 0:
            noise = torch.randn(targets.shape, generator=random)
            seen = (targets + recipe.denoise * noise).clamp(0, 1)
        latent_noise = torch.randn((len(images), self.vae.latent_size), generator=random)
        with self._half():
            made, mean, log_variance = self.vae(normalised(seen), latent_noise)
        picture = reconstruction(made, targets, self._weights.of(images, targets), recipe.sigma)
        divergences = divergence(mean, log_variance)
        loss = picture + self._beta() * divergences.sum()
        parts = {"reconstruction": float(picture.detach()), "kl": float(divergences.detach().sum())}
        if self._places_reader is not None:
            places = self._places_reader.squared_error(mean, self._places[batch])
            loss = loss + recipe.places * places
            parts["places_mm2"] = float(places.detach())
        return loss, parts

    def _evaluate(self, losses: list[Record]) -> tuple[Record, None]:
        """Return the last step's loss and, from the means, that on validation frames."""
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
        record = {"step": float(self.step), "rate": self._rate(self.step)}
        record |= {f"train_{name}": value for name, value in losses[-1].items()}
        return record | {f"val_{name}": value for name, value in totals.items()}, None
