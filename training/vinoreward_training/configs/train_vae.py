"""Options of ``vinoreward train-vae``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class TrainVaeConfig:
    """Train a state encoder (a variational autoencoder) and save it as a bundle.

    Images come from a capture, any folder of images, or a random policy in an environment that
    renders. If the capture recorded positions, the model card shows how well a linear probe reads
    them from the latent.

    Examples:
        vinoreward train-vae --data data/hover --size 64 64 --out runs/encoder
        vinoreward train-vae --resume --out runs/encoder
        vinoreward train-vae --data data/hover --beta 300 --places 300 --out runs/encoder
        vinoreward train-vae --env CartPole-v1 --frames 5000 --size 64 64 --out runs/cartpole
    """

    data: Path | None = None
    """A capture, or any folder of images; needs no labels."""
    env: str | None = None
    """Instead of --data: act at random in this environment."""
    frames: int = 0
    """Frames of the rollout (0: 4000); with --data, the maximum number to read (0: all)."""
    out: Path = Path("runs/encoder")
    """Run folder; the bundle is written to OUT/bundle."""
    name: str = ""
    """Name of the bundle; default: from the data's folder, as hover-encoder from data/hover, or
    from the environment."""
    size: tuple[int, int] | None = None
    """Resize images to HEIGHT WIDTH; default: the images' own size."""
    latent: int = 32
    """Length of the latent vector."""
    architecture: Literal["spatial_vae", "conv_vae"] = "spatial_vae"
    """Network: spatial_vae finds keypoints, conv_vae is the usual stack of convolutions."""
    steps: int = 20_000
    """Training steps."""
    batch_size: int = 64
    """Frames per step."""
    learning_rate: float = 1e-3
    """Highest learning rate, after warm-up; decays to 0 along a cosine."""
    beta: float = 1.0
    """Weight of the KL divergence; a higher one gives fewer active, broader dimensions."""
    warmup: float = 0.2
    """Fraction of the steps over which beta rises from 0."""
    sigma: float = 0.05
    """Standard deviation of a pixel, from 0 to 1, that counts as noise."""
    foreground: float = 0.0
    """Additional weight of pixels that differ from the mean image."""
    rare: float = 10.0
    """Maximum weight of pixels of a rare colour, so that small objects are reconstructed; 1 for
    none."""
    denoise: float = 0.0
    """Standard deviation of noise on the input only, from 0 to 1; 0 for none."""
    places: float = 0.0
    """Weight of a linear position probe in the loss (squared error in mm), if the capture recorded
    positions; 0 uses no labels."""
    seed: int = 0
    """Seed of the split, the initial weights, the order and the noise."""
    threads: int = 0
    """Threads of torch; 0 for one per core."""
    bf16: Literal["auto", "on", "off"] = "auto"
    """Train in bfloat16 for the first three quarters; auto: if the processor supports it."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as in package:Id-v0. This runs
    its code. Without this option, you are asked."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that override a resumed run's settings even if their value is the default."""
