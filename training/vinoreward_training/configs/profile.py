"""Options of ``vinoreward profile``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProfileConfig:
    """Measure the breakdown of a training step and the maximum gain of a faster backend.

    Examples:
        vinoreward profile
        vinoreward profile --backend torch --fidelity article --steps 20
        vinoreward profile --env my_package:MyEnv-v0 --bundle runs/hover-classifier/bundle
    """

    env: str = "PandaHover-v0"
    """Gymnasium id. For an environment other than ours, the bundle judges its renderings."""
    bundle: str | None = None
    """Classifier: an installed name or a folder; None: the environment's own."""
    backend: str = "openvino"
    """openvino, onnxruntime, torch or, for our environments, oracle."""
    precision: str = "auto"
    """auto, fp32, int8 or bf16."""
    fidelity: str | None = None
    """article for the article's setting."""
    steps: int = 200
    """Number of steps."""
    learner: bool = True
    """Include a gradient step, as in training: SAC's, or DQN's for discrete actions."""
    seed: int = 0
    """Seed of resets and actions."""
    out: Path = Path("runs/profile")
    """Folder for profile.json and profile.png."""
    resume: bool = False
    """Overwrite an earlier profile in the same folder."""
