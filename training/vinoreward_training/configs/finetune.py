"""What ``vinoreward finetune`` can be told."""

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
    """A capture, or any folder with one sub-folder of pictures per class."""
    out: Path = Path("runs/hover-classifier")
    """Run folder; the bundle is written to OUT/bundle."""
    name: str = ""
    """Name of the bundle; default: of the data's folder, as hover-classifier of data/hover."""
    architecture: Literal["squeezenet1_1", "squeezenet1_0"] = "squeezenet1_1"
    """Network."""
    weights: Path | None = None
    """Start from these weights (.safetensors, or .pt read as data only); default: from scratch."""
    epochs: int = 12
    """Passes over the training frames."""
    batch_size: int = 32
    """Frames of a step."""
    learning_rate: float = 1e-3
    """Highest learning rate; it warms up and falls to 0 along a cosine."""
    augment: float = 0.3
    """Strength of colour jitter and noise, 0 for none."""
    margin: float = 1.0
    """Weight of the distance loss where the capture recorded distances, 0 for labels only."""
    boost: float = 2.0
    """How many times as often frames near the success distance are drawn, 1 for all alike."""
    patience: int = 6
    """Stop after so many epochs without a better validation loss."""
    target_fpr: float = 0.01
    """False-positive rate that the threshold must keep, with 95 % confidence."""
    image_size: tuple[int, int] | None = None
    """Resize pictures to HEIGHT WIDTH; default: the pictures' own size."""
    success_label: str = "success"
    """Which sub-folder holds the successes."""
    seed: int = 0
    """Decides the initial weights, the order and the dead-camera frames; not the split."""
    threads: int = 0
    """Threads of torch, 0 for one per core."""
    bf16: Literal["auto", "on", "off"] = "auto"
    """Train in bfloat16 for the first three quarters; auto: where the processor has it."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that win over a resumed run's even where their value is the default."""
