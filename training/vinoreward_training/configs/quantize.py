"""Options of ``vinoreward quantize``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class QuantizeConfig:
    """Add an INT8 network to a bundle, if it makes the same decisions.

    The INT8 network decides clear cases; the FP32 network looks again at images close to the
    threshold. The width of that band is chosen on one half of the held-out frames. The gate
    compares decisions on the other half: the frames closest to the threshold and as many random
    ones. With too many flips or second looks, the bundle does not change.

    Examples:
        vinoreward quantize --bundle runs/hover-classifier/bundle --data data/hover
        vinoreward quantize --bundle runs/mine-classifier/bundle --data data/mine --max-flips 0.001
    """

    bundle: Path = Path("runs/hover-classifier/bundle")
    """The bundle's folder. An installed bundle is read-only: copy it first."""
    data: Path = Path("data/hover")
    """Images from its later use, preferably its training data."""
    max_flips: float = 0.005
    """Maximum fraction of decisions that differ from FP32."""
    max_second_looks: float = 0.25
    """Maximum fraction of held-out frames that FP32 looks at again."""
    boundary: int = 1000
    """Frames closest to the threshold in the comparison; as many random ones are added."""
    calibration: int = 300
    """Training frames for NNCF's calibration of activation ranges."""
    seed: int = 0
    """Seed of the random choice of frames."""
    success_label: str = "success"
    """Sub-folder of the data with the successes."""
    force: bool = False
    """Quantize even a classifier that its training found useless."""
