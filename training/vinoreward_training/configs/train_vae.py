"""What ``vinoreward train-vae`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class TrainVaeConfig:
    """Train a state encoder (a variational autoencoder) and save it as a bundle.

    Pictures come from a capture, any folder of pictures, or a random policy in any environment that
    renders. Where the capture recorded places, the model card says how well they can be read from
    the latent.

    Examples:
        vinoreward train-vae --data data/hover --size 64 64 --out runs/encoder
        vinoreward train-vae --resume --out runs/encoder
        vinoreward train-vae --data data/hover --beta 300 --places 300 --out runs/encoder
        vinoreward train-vae --env CartPole-v1 --frames 5000 --size 64 64 --out runs/cartpole
    """

    data: Path | None = None
    """A capture, or any folder of pictures; no labels are needed."""
    env: str | None = None
    """Instead of --data: act at random in this environment."""
    frames: int = 0
    """Frames of the rollout (0: 4000); with --data read at most so many (0: all)."""
    out: Path = Path("runs/encoder")
    """Run folder; the bundle is written to OUT/bundle."""
    name: str = ""
    """Name of the bundle; default: of the data's folder, as hover-encoder of data/hover, or of the
    environment."""
    size: tuple[int, int] | None = None
    """Resize pictures to HEIGHT WIDTH; default: the pictures' own size."""
    latent: int = 32
    """Numbers of the latent vector."""
    architecture: Literal["spatial_vae", "conv_vae"] = "spatial_vae"
    """Network: spatial_vae finds keypoints, conv_vae is the usual stack of convolutions."""
    steps: int = 20_000
    """Training steps."""
    batch_size: int = 64
    """Frames of a step."""
    learning_rate: float = 1e-3
    """Highest learning rate; it warms up and falls to 0 along a cosine."""
    beta: float = 1.0
    """Weight of the KL divergence: higher for fewer, broader numbers."""
    warmup: float = 0.2
    """Share of the steps over which beta rises from 0."""
    sigma: float = 0.05
    """Standard deviation of a pixel, from 0 to 1, that counts as noise."""
    foreground: float = 0.0
    """Additional weight of pixels that differ from the mean picture."""
    rare: float = 10.0
    """Highest weight of pixels of a rare colour, 1 for none: small things are drawn too."""
    denoise: float = 0.0
    """Standard deviation of noise put on the input only, from 0 to 1; 0 for none."""
    places: float = 0.0
    """Weight of the squared error (mm) of recorded places, read from the latent; 0: no labels."""
    seed: int = 0
    """Decides the split, the initial weights, the order and the noise."""
    threads: int = 0
    """Threads of torch, 0 for one per core."""
    bf16: Literal["auto", "on", "off"] = "auto"
    """Train in bfloat16 for the first three quarters; auto: where the processor has it."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as package:Id-v0 does: that
    runs its code. Without it you are asked."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that win over a resumed run's even where their value is the default."""
