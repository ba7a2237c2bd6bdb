"""Decoders, and what is trained: an encoder with its decoder. Importing this imports torch."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from vinoreward.backends.torch_networks import (
    KEYPOINTS,
    axes_of,
    build_encoder,
    map_sizes,
)

ARCHITECTURE = "spatial_vae"
COARSE_CHANNELS = 16
"""Of the decoder's maps without keypoints."""


def _missing(small: tuple[int, int], large: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns that twice ``small`` is short of ``large``."""
    return large[0] - 2 * small[0], large[1] - 2 * small[1]


class Decoder(nn.Module):
    """From a latent vector (N, D) to an image, through blobs: the mirror of SpatialEncoder.

    A linear layer gives each blob's position and strength; the blobs are drawn into maps, and
    convolutions make the image from them. An object then moves with its latent numbers, so
    training finds small objects, and early. A coarse layer adds everything that has no position.
    """

    average: Tensor
    across: Tensor
    down: Tensor

    def __init__(
        self, height: int, width: int, latent_size: int, keypoints: int = KEYPOINTS
    ) -> None:
        super().__init__()
        sizes = [*map_sizes(height, width, fewest=2)[::-1], (height, width)]
        self._map = sizes[0]
        self._coarse = (COARSE_CHANNELS, *(-(-side // 4) for side in self._map))
        self.head = nn.Linear(latent_size, 3 * keypoints)
        with torch.no_grad():
            self.head.weight *= 1.5
            self.head.bias[2 * keypoints :] = 1.0
        # Logarithms of 1 / width, in units of half the map, from large to small blobs.
        self.sharpness = nn.Parameter(torch.linspace(0.5, 2.5, keypoints))
        self.coarse = nn.Sequential(
            nn.Linear(latent_size, 64), nn.ReLU(), nn.Linear(64, math.prod(self._coarse))
        )
        layers: list[nn.Module] = [nn.Conv2d(keypoints + COARSE_CHANNELS, 64, 3, 1, 1)]
        channels = [64, *[32] * (len(sizes) - 2), 3]
        for index, (before, after) in enumerate(itertools.pairwise(channels)):
            missing = _missing(sizes[index], sizes[index + 1])
            layers += [
                nn.ReLU(),
                nn.ConvTranspose2d(before, after, 4, 2, 1, output_padding=missing),
            ]
        self.layers = nn.Sequential(*layers)
        down, across = axes_of(*self._map)
        self.register_buffer("across", across, persistent=False)
        self.register_buffer("down", down, persistent=False)
        self.register_buffer("average", torch.zeros(3, height, width))

    def forward(self, latent: Tensor) -> Tensor:
        """Return images (N, 3, H, W) for latent vectors (N, D)."""
        with torch.autocast(latent.device.type, enabled=False):
            latent = latent.float()
            x, y, strength = (part[:, :, None] for part in self.head(latent).chunk(3, dim=1))
            sharpness = self.sharpness.exp()[:, None]
            columns = (-0.5 * ((self.across - x) * sharpness) ** 2).exp()
            rows = strength * (-0.5 * ((self.down - y) * sharpness) ** 2).exp()
            blobs = rows[:, :, :, None] * columns[:, :, None, :]
            coarse = self.coarse(latent).view(-1, *self._coarse)
            coarse = nn.functional.interpolate(coarse, self._map, mode="nearest")
            maps = torch.cat([blobs, coarse], 1)
        image: Tensor = self.layers(maps) + self.average
        return image


class Vae(nn.Module):
    """Encoder, from images (N, 3, H, W) to (N, 2 D), and decoder, trained together.

    If places are known, so is ``reader``, which reads ``places`` numbers linearly from the means.
    """

    def __init__(
        self, encoder: nn.Module, decoder: Decoder, latent_size: int, places: int = 0
    ) -> None:
        super().__init__()
        self.latent_size = latent_size
        self.encoder = encoder
        self.decoder = decoder
        self.reader = nn.Linear(latent_size, places) if places else None

    def set_average(self, image: Tensor) -> None:
        """Set the decoder's mean image (3, H, W), in units of 0 to 1."""
        self.decoder.average.copy_(image)

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return reconstructions (N, 3, H, W), means (N, D) and log variances (N, D).

        Images are normalised; ``noise`` (N, D) is standard normal, or zeros to decode the means.
        """
        mean, log_variance = self.encoder(images).float().chunk(2, dim=1)
        latent = mean + noise * (0.5 * log_variance).exp()
        return self.decoder(latent).float(), mean, log_variance


def build_vae(height: int, width: int, latent_size: int, places: int = 0) -> Vae:
    """Build an untrained encoder and its decoder, see :func:`build_encoder`, for :class:`Vae`."""
    encoder = build_encoder(ARCHITECTURE, height, width, 2 * latent_size)
    return Vae(encoder, Decoder(height, width, latent_size), latent_size, places)
