"""What a variational autoencoder is trained on: which pixels count, and the parts of its loss.

A small thing on a large table is a few pixels: an autoencoder that leaves it out loses next to
nothing. Two weights mend that without labels. A pixel counts more where it differs from the mean of
all pictures (what moves), and more where its colour is rare (what is small).

Where a capture recorded places, a third part can ask that they be read linearly from the latent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

DIFFERENT = 0.06
"""A channel that is so far from the mean picture, in units of 0 to 1, makes a pixel foreground."""
COMMON = 0.01
"""A colour that fills this share of all pixels, or more, is not rare."""
LEVELS = 8
"""Per channel, when colours are counted."""


def _colours(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the coarse colour (N, H, W) of pictures (N, H, W, 3), 0 to 511."""
    coarse = (images >> 5).astype(np.int64)
    found: npt.NDArray[np.int64] = (coarse[..., 0] * LEVELS + coarse[..., 1]) * LEVELS
    return found + coarse[..., 2]


@dataclass(frozen=True)
class PixelWeights:
    """How much each pixel counts; measured once on training frames.

    Attributes:
        average: (3, H, W) float32 mean picture, in units of 0 to 1.
        rarity: (512,) float32 weight of each coarse colour.
        foreground: added to the weight of a pixel that differs from the mean picture.
    """

    average: Tensor
    rarity: Tensor
    foreground: float

    @classmethod
    def measure(
        cls, images: npt.NDArray[np.uint8], *, foreground: float, rare: float
    ) -> PixelWeights:
        """Count colours and average pictures (N, H, W, 3) uint8.

        Args:
            images: training frames; a few thousand are enough.
            foreground: see the attribute; 0 for none.
            rare: highest weight of a rare colour, 1 for none. The weight is in inverse proportion
                to the share of pixels that have the colour.
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
            rarity=torch.from_numpy(np.clip(COMMON / share, 1.0, rare).astype(np.float32)),
            foreground=foreground,
        )

    def of(self, images: npt.NDArray[np.uint8], targets: Tensor) -> Tensor:
        """Return weights (N, 1, H, W).

        Args:
            images: (N, H, W, 3) uint8.
            targets: the same as (N, 3, H, W) floats from 0 to 1.
        """
        differs = (targets - self.average).abs().amax(1, keepdim=True) > DIFFERENT
        weights = 1.0 + self.foreground * differs.float()
        return weights * self.rarity[torch.from_numpy(_colours(images))][:, None]


def reconstruction(made: Tensor, targets: Tensor, weights: Tensor | float, sigma: float) -> Tensor:
    """Return the weighted sum of squares over 2 sigma squared, mean over the batch.

    Args:
        made: (N, 3, H, W), what the decoder made.
        targets: (N, 3, H, W) in units of 0 to 1.
        weights: (N, 1, H, W), or one number.
        sigma: standard deviation of a pixel that counts as noise, in units of 0 to 1.
    """
    return (weights * (made - targets) ** 2).sum((1, 2, 3)).mean() / (2.0 * sigma**2)


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return the KL divergence (D,) in nats from the standard normal, mean over the batch.

    Args:
        mean: (N, D).
        log_variance: (N, D).
    """
    return (-0.5 * (1.0 + log_variance - mean**2 - log_variance.exp())).mean(0)


class PlaceReader(nn.Module):
    """A linear map from latent means to places, trained with the autoencoder and then thrown away.

    What it asks of the encoder is what :mod:`vinoreward_training.encoder.probe` measures, there
    with a map fitted anew and on held-out frames.

    Args:
        latent_size: D.
        places: (N, P) float64 metres of training frames, NaN where a thing is absent.
    """

    def __init__(self, latent_size: int, places: npt.NDArray[np.float64]) -> None:
        super().__init__()
        self.linear = nn.Linear(latent_size, places.shape[1])
        with torch.no_grad():
            self.linear.bias.copy_(torch.from_numpy(np.nanmean(places, axis=0)))

    def squared_error(self, mean: Tensor, places: npt.NDArray[np.float64]) -> Tensor:
        """Return the squared distance in square millimetres, summed over things, batch mean.

        Args:
            mean: (B, D).
            places: (B, P) metres; absent things do not count.
        """
        truth = torch.from_numpy(places).float()
        shown = torch.isfinite(truth)
        apart = 1000.0 * (self.linear(mean) - truth.nan_to_num())
        return torch.where(shown, apart, torch.zeros(())).square().sum(1).mean()
