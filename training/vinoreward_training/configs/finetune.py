"""Options of ``vinoreward finetune``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class FinetuneConfig:
    """Train a success classifier and save it as a bundle.

    Examples:
        vinoreward finetune --data data/hover --out runs/hover-classifier
        vinoreward finetune --resume --out runs/hover-classifier
        vinoreward finetune --data data/mine --success-label good --out runs/mine-classifier
        vinoreward finetune --data data/more --out runs/better \\
            --weights runs/hover-classifier/bundle/model.safetensors
    """

    data: Path = Path("data/hover")
    """A capture, or any folder with one sub-folder of images per class."""
    out: Path = Path("runs/hover-classifier")
    """Run folder; the bundle is written to OUT/bundle."""
    name: str = ""
    """Name of the bundle; default: from the data's folder, as hover-classifier from data/hover."""
    architecture: Literal["squeezenet1_1", "squeezenet1_0"] = "squeezenet1_1"
    """Network."""
    weights: Path | None = None
    """Initial weights (.safetensors, or .pt loaded as data only); default: from scratch."""
    epochs: int = 12
    """Passes over the training frames."""
    batch_size: int = 32
    """Frames per step."""
    learning_rate: float = 1e-3
    """Highest learning rate, after warm-up; decays to 0 along a cosine."""
    augment: float = 0.3
    """Strength of colour jitter and noise; 0 for none."""
    margin: float = 1.0
    """Weight of the distance loss, if the capture recorded distances; 0 for labels only."""
    boost: float = 2.0
    """Oversampling factor of frames near the success distance; 1 for none."""
    patience: int = 6
    """Stop after this many epochs without a better validation loss."""
    target_fpr: float = 0.01
    """False-positive rate of the threshold, with 95 % confidence."""
    image_size: tuple[int, int] | None = None
    """Resize images to HEIGHT WIDTH; default: the images' own size."""
    success_label: str = "success"
    """Sub-folder with the successes."""
    seed: int = 0
    """Seed of initial weights, order and dead-camera frames; not of the split."""
    threads: int = 0
    """Threads of torch; 0 for one per core."""
    bf16: Literal["auto", "on", "off"] = "auto"
    """Train in bfloat16 for the first three quarters; auto: if the processor supports it."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that override a resumed run's settings even if their value is the default."""
