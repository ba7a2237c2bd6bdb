"""What ``vinoreward quantize`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class QuantizeConfig:
    """Add an INT8 network to a bundle, if it makes the same decisions.

    The INT8 network decides where it is sure; a picture close to the threshold is looked at again
    by the FP32 network. How close, is chosen on one half of the held-out frames. The gate compares
    decisions on the other half, the frames closest to the threshold and as many random ones: too
    many flips, or too many second looks, and the bundle stays as it is.

    Examples:
        vinoreward quantize --bundle runs/hover-classifier/bundle --data data/hover
        vinoreward quantize --bundle runs/mine-classifier/bundle --data data/mine --max-flips 0.001
    """

    bundle: Path = Path("runs/hover-classifier/bundle")
    """The bundle's folder. An installed bundle is only read: copy it first."""
    data: Path = Path("data/hover")
    """Pictures of where it will be used, best those it was trained on."""
    max_flips: float = 0.005
    """Largest share of decisions that may differ from FP32."""
    max_second_looks: float = 0.25
    """Largest share of held-out frames that FP32 may have to look at again."""
    boundary: int = 1000
    """Frames closest to the threshold in the comparison; as many random ones are added."""
    calibration: int = 300
    """Training frames on which NNCF sees the range of activations."""
    seed: int = 0
    """Decides which frames are taken at random."""
    success_label: str = "success"
    """Which sub-folder of the data holds the successes."""
    force: bool = False
    """Quantize a classifier although its training called it useless."""
