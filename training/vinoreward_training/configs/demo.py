"""What ``vinoreward demo`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DemoConfig:
    """Capture, fine-tune, quantize, check, train, play and report: under 5 minutes on two cores.

    1. capture: labelled pictures of the arm over, next to and away from the object.
    2. finetune: a classifier learns from them what success looks like. It starts from the weights
       of the shipped bundle, so few pictures are enough; with --from-scratch from random ones.
    3. quantize: an INT8 network, kept only if it makes the same decisions.
    4. check: this classifier and the shipped one judge scenes that neither has seen.
    5. train: SAC learns to hover; its only reward is what the classifier says of each picture.
    6. play: a film, and how often the policy truly succeeds (the simulator knows).
    7. report: all of it in one HTML file.

    Stop it with Ctrl-C and run the same command again: finished stages are not repeated, the one
    that was stopped goes on where it was.

    Examples:
        vinoreward demo
        vinoreward demo --out runs/second --seed 1
        vinoreward demo --out runs/moving --env PandaHoverRandom-v0
        vinoreward demo --out runs/scratch --from-scratch
    """

    out: Path = Path("runs/demo")
    """Folder for everything."""
    seed: int = 0
    """Of every stage; the pictures are never those that the shipped bundle was trained on."""
    from_scratch: bool = False
    """Start the classifier from random weights. It then needs 24000 pictures and 8 passes
    (unless --frames, --epochs say otherwise): about 15 minutes on two cores."""
    weights: Path | None = None
    """Start the classifier from these weights (.safetensors) instead of the shipped bundle's."""
    frames: int | None = None
    """Pictures to capture; None is 5000, from scratch 24000."""
    epochs: int | None = None
    """Passes over them; None is 2, from scratch 8."""
    target_fpr: float = 0.02
    """False-positive rate that the threshold must keep; 1 % needs more pictures than these."""
    scenes: int = 1000
    """Fresh scenes on which the classifier is compared with the shipped one."""
    env: str = "PandaHover-v0"
    """Environment to train in; PandaHoverRandom-v0 takes some minutes more."""
    timesteps: int | None = None
    """Most training steps; None is the preset's. Training stops when the task is solved."""
    episodes: int = 100
    """Episodes that are counted at the end."""
