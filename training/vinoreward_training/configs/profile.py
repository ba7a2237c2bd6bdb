"""What ``vinoreward profile`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProfileConfig:
    """Measure where a training step's time goes and what a faster backend could gain at most.

    Examples:
        vinoreward profile
        vinoreward profile --backend torch --fidelity article --steps 20
        vinoreward profile --env my_package:MyEnv-v0 --bundle runs/hover-classifier/bundle
    """

    env: str = "PandaHover-v0"
    """Gymnasium id. Another environment than ours is stepped, rendered and judged by the bundle."""
    bundle: str | None = None
    """Classifier: an installed name or a folder; None is the environment's own."""
    backend: str = "openvino"
    """openvino, onnxruntime, torch or, for our environments, oracle."""
    precision: str = "auto"
    """auto, fp32, int8 or bf16."""
    fidelity: str | None = None
    """article for the article's setting."""
    steps: int = 200
    """Steps measured."""
    learner: bool = True
    """Include a gradient step, as every training step takes one: SAC's, or DQN's where actions are
    discrete."""
    seed: int = 0
    """Of resets and actions."""
    out: Path = Path("runs/profile")
    """Folder for profile.json and profile.png."""
    resume: bool = False
    """Overwrite the figures of an earlier profile in the same folder."""
