"""How an encoder is trained: pixel weights, the loss of a step, the evaluation.

A small thing on a large table is a few pixels: an autoencoder that leaves it out loses next to
nothing. Two pixel weights correct that without labels: one for pixels that differ from the mean of
all images (what moves), one for rare colours (what is small). If a capture recorded places, a
third part of the loss reads them linearly from the latent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.data.dataset import Frames
from vinoreward_training.encoder.networks import Vae
from vinoreward_training.runs.fit import Fit, Indices, Record, predict

RECORD_EVERY = 500
"""Steps between evaluations on validation frames, and between checkpoints."""
MEASURED_FRAMES = 4000
"""Training frames on which pixel weights are measured."""
VALIDATION_FRAMES = 1024
DIFFERENT = 0.06
"""Distance of a foreground pixel from the mean image in any channel, in units of 0 to 1."""
COMMON = 0.01
"""Share of all pixels from which a colour is not rare."""
LEVELS = 8
"""Per channel, when colours are counted."""
LEARNING_RATE = 1e-3
WARMUP = 0.2
"""Fraction of the steps over which beta rises from 0."""
SIGMA = 0.05
"""Standard deviation of a pixel, from 0 to 1, that counts as noise."""
BATCH_SIZE = 64
"""Frames of a step."""
FOREGROUND = 3.0
"""Added to the weight of a pixel that differs from the mean image."""
RARE = 300.0
"""Largest weight of a pixel of a rare colour."""
PLACES = 500.0
"""Weight of the squared error of places, in square millimetres."""

Floats = npt.NDArray[np.float32]


def planes(images: npt.NDArray[np.uint8]) -> Tensor:
    """Return images (N, H, W, 3) uint8 as (N, 3, H, W) floats from 0 to 1, channels last."""
    owned = np.require(images, requirements=["C", "W"])
    return torch.from_numpy(owned).permute(0, 3, 1, 2).to(torch.float32) / 255.0


def normalised(images: Tensor) -> Tensor:
    """Return images from -1 to 1 for images from 0 to 1."""
    return (images - 0.5) / 0.5


def encode(encoder: nn.Module, images: npt.NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Return means and log variances, (N, D) each, of uint8 images (N, H, W, 3)."""
    output = predict(encoder, images, lambda part: normalised(planes(part)), batch_size=256)
    mean, log_variance = np.split(output, 2, axis=1)
    return mean, log_variance


def decode(decoder: nn.Module, latents: Floats) -> npt.NDArray[np.uint8]:
    """Return images (N, H, W, 3) uint8 for latents (N, D)."""
    values = np.ascontiguousarray(latents, dtype=np.float32)
    decoded = predict(decoder, values, batch_size=len(values))
    images: npt.NDArray[np.uint8] = np.rint(decoded.clip(0, 1) * 255).astype(np.uint8)
    return images.transpose(0, 2, 3, 1)


def _colours(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the coarse colour (N, H, W) of images (N, H, W, 3), 0 to 511."""
    red, green, blue = np.moveaxis((images >> 5).astype(np.int64), -1, 0)
    return np.asarray((red * LEVELS + green) * LEVELS + blue)


@dataclass(frozen=True)
class PixelWeights:
    """How much each pixel counts; measured once on training frames."""

    average: Tensor
    """(3, H, W) float32 mean image, in units of 0 to 1."""
    rarity: Tensor
    """(512,) float32 weight of each coarse colour."""

    @classmethod
    def measure(cls, images: npt.NDArray[np.uint8]) -> PixelWeights:
        """Count colours and average a few thousand images (N, H, W, 3) uint8.

        The weight of a colour is inverse to its share of the pixels, from 1 to ``RARE``.
        """
        counts = np.zeros(LEVELS**3, dtype=np.int64)
        total = np.zeros(images.shape[1:], dtype=np.float64)
        for start in range(0, len(images), 256):
            part = images[start : start + 256]
            counts += np.bincount(_colours(part).reshape(-1), minlength=LEVELS**3)
            total += part.sum(0, dtype=np.int64)
        share = np.maximum(counts / counts.sum(), 1e-9)
        average = torch.from_numpy((total / (255.0 * len(images))).astype(np.float32))
        return cls(
            average=average.permute(2, 0, 1).contiguous(),
            rarity=torch.from_numpy(np.clip(COMMON / share, 1.0, RARE).astype(np.float32)),
        )

    def of(self, images: npt.NDArray[np.uint8], targets: Tensor) -> Tensor:
        """Return weights (N, 1, H, W) of uint8 images, and of the same as :func:`planes`."""
        differs = (targets - self.average).abs().amax(1, keepdim=True) > DIFFERENT
        weights = 1.0 + FOREGROUND * differs.float()
        return weights * self.rarity[torch.from_numpy(_colours(images))][:, None]


def reconstruction(decoded: Tensor, targets: Tensor, weights: Tensor | float) -> Tensor:
    """Return the weighted sum of squares over 2 ``SIGMA`` squared, mean over the batch.

    Images are (N, 3, H, W) from 0 to 1, weights (N, 1, H, W) or one number.
    """
    return (weights * (decoded - targets) ** 2).sum((1, 2, 3)).mean() / (2.0 * SIGMA**2)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the KL divergence (D,) of (N, D) from the standard normal, in nats, batch mean."""
    return (-0.5 * (1.0 + log_variance - mean**2 - log_variance.exp())).mean(0)


def squared_error(read: Tensor, places: npt.NDArray[np.float64]) -> Tensor:
    """Return the squared distance of places in square millimetres, summed, batch mean.

    ``read`` and ``places`` are (B, P) metres; NaN in the latter, an absent thing, does not count.
    """
    truth = torch.from_numpy(places).float()
    error = 1000.0 * (read - truth.nan_to_num())
    return torch.where(torch.isfinite(truth), error, torch.zeros(())).square().sum(1).mean()


class VaeFit(Fit):
    """One training of an encoder, evaluated on the frames with the indices ``validation``.

    Adam's learning rate warms up over 200 steps, then falls to 0 along a cosine.
    """

    POSTFIX = ("val_reconstruction", "val_kl", "val_active")
    SAVE_EVERY = RECORD_EVERY
    CLIP = 1e4

    def __init__(
        self,
        vae: Vae,
        frames: Frames,
        train: Indices,
        validation: Indices,
        config: TrainVaeConfig,
        folder: Path,
    ) -> None:
        self.vae = vae.to(memory_format=torch.channels_last)
        self.config = config
        self._frames, self._validation = frames, validation[:VALIDATION_FRAMES]
        measured = train[:: max(1, len(train) // MEASURED_FRAMES)]
        self._weights = PixelWeights.measure(frames.images[measured])
        vae.set_average(self._weights.average)
        if vae.reader is not None:
            self._places = np.concatenate([frames.places[one] for one in sorted(frames.places)], 1)
            mean = np.nanmean(self._places[train], axis=0)
            with torch.no_grad():
                vae.reader.bias.copy_(torch.from_numpy(mean))
        recipe = {name: getattr(config, name) for name in ("seed", "steps", "beta")}
        super().__init__(
            vae,
            torch.optim.Adam(vae.parameters(), lr=LEARNING_RATE),
            train,
            folder,
            about={"frames": frames.sha256, **recipe},
            steps=config.steps,
            every=RECORD_EVERY,
            batch_size=BATCH_SIZE,
            seed=config.seed,
            resume=config.resume,
        )

    def _rate(self, step: int) -> float:
        steps = self.config.steps
        warm = min(1.0, (step + 1) / min(200, max(1, steps // 5)))
        return LEARNING_RATE * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

    def _beta(self) -> float:
        rise = WARMUP * self.config.steps
        return self.config.beta * (min(1.0, self.step / rise) if rise > 0 else 1.0)

    def _loss(self, batch: Indices, random: torch.Generator) -> tuple[Tensor, Record]:
        images = self._frames.images[batch]
        targets = planes(images)
        latent_noise = torch.randn((len(images), self.vae.latent_size), generator=random)
        with self._half():
            decoded, mean, log_variance = self.vae(normalised(targets), latent_noise)
        image = reconstruction(decoded, targets, self._weights.of(images, targets))
        divergences = divergence(mean, log_variance)
        loss = image + self._beta() * divergences.sum()
        parts = {"reconstruction": float(image.detach()), "kl": float(divergences.detach().sum())}
        if self.vae.reader is not None:
            places = squared_error(self.vae.reader(mean), self._places[batch])
            loss = loss + PLACES * places
            parts["places_mm2"] = float(places.detach())
        return loss, parts

    def _evaluate(self, losses: list[Record]) -> tuple[Record, None]:
        """Return the last step's loss and that on validation frames, without sampling."""
        totals = dict.fromkeys(("reconstruction", "kl", "squared_error", "active"), 0.0)
        images = self._frames.images[self._validation]
        per_number = torch.zeros(self.vae.latent_size)
        with torch.inference_mode():
            for start in range(0, len(images), 256):
                part = images[start : start + 256]
                targets = planes(part)
                noise = torch.zeros((len(part), self.vae.latent_size))
                decoded, mean, log_variance = self.vae(normalised(targets), noise)
                weights = self._weights.of(part, targets)
                share = len(part) / len(images)
                totals["reconstruction"] += share * float(reconstruction(decoded, targets, weights))
                totals["squared_error"] += share * float(((decoded - targets) ** 2).mean())
                per_number += share * divergence(mean, log_variance)
        totals["kl"] = float(per_number.sum())
        totals["active"] = float((per_number > 0.05).sum())
        record = {"step": float(self.step), "rate": self._rate(self.step)}
        record |= {f"train_{name}": value for name, value in losses[-1].items()}
        return record | {f"val_{name}": value for name, value in totals.items()}, None
