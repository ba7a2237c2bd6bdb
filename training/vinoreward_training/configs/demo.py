"""Options of ``vinoreward demo``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DemoConfig:
    """Capture, fine-tune, quantize, check, train, play and report: under 5 minutes on two cores.

    1. capture: labelled images of the arm over, next to and away from the object.
    2. finetune: train a classifier on them. It starts from the shipped bundle's weights, so few
       images are enough; with --from-scratch from random ones.
    3. quantize: an INT8 network, kept only if it makes the same decisions.
    4. check: compare this classifier with the shipped one on new scenes.
    5. train: SAC learns to hover; its only reward is the classifier's.
    6. play: a film, and the true success rate according to the simulator.
    7. report: all results in one HTML file.

    After Ctrl-C, run the same command again: finished stages are skipped, and the interrupted one
    resumes.

    Examples:
        vinoreward demo
        vinoreward demo --out runs/second --seed 1
        vinoreward demo --out runs/moving --env PandaHoverRandom-v0
        vinoreward demo --out runs/scratch --from-scratch
    """

    out: Path = Path("runs/demo")
    """Folder for all files."""
    seed: int = 0
    """Seed of every stage; the images always differ from those of the shipped bundle."""
    from_scratch: bool = False
    """Start the classifier from random weights. It then needs 24000 images and 8 epochs (unless
    --frames and --epochs are given): about 15 minutes on two cores."""
    weights: Path | None = None
    """Start the classifier from these weights (.safetensors) instead of the shipped bundle's."""
    frames: int | None = None
    """Images to capture; None is 5000, from scratch 24000."""
    epochs: int | None = None
    """Epochs; None is 2, from scratch 8."""
    target_fpr: float = 0.02
    """False-positive rate of the threshold; 1 % needs more images."""
    scenes: int = 1000
    """New scenes for the comparison with the shipped classifier."""
    env: str = "PandaHover-v0"
    """Training environment; PandaHoverRandom-v0 takes some minutes more."""
    timesteps: int | None = None
    """Maximum training steps; None is the preset's. Training stops when the task is solved."""
    episodes: int = 100
    """Episodes of the final evaluation."""
