"""Options of ``vinoreward import-encoder``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ImportEncoderConfig:
    """Make a bundle from an encoder that was trained elsewhere.

    Accepts an ONNX file, an OpenVINO .xml, or a state dict with a function that builds its module.
    Pass one image with the original encoder's latent: this verifies colour order, value range and
    size.

    Examples:
        vinoreward import-encoder --model encoder.onnx --pictures frames --out bundles/mine \\
            --golden frame.png --expected latent.npy
        vinoreward import-encoder --model encoder.onnx --pictures frames --out bundles/mine \\
            --crop 0 16 96 96
        vinoreward import-encoder --model weights.pt --module mypackage.nets:make_encoder \\
            --size 64 64 --posterior --pictures frames --out bundles/mine
    """

    model: Path
    """An .onnx, an .xml (with its .bin), or a state dict (.pt, .pth, .safetensors)."""
    pictures: Path
    """A folder of typical images: they define the bounds of the latent and the golden frames."""
    out: Path
    """The new bundle's folder."""
    name: str | None = None
    """Name of the bundle; default: the model file's name."""
    module: str | None = None
    """For a state dict: PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION, which builds the module."""
    size: tuple[int, int] | None = None
    """HEIGHT WIDTH of the encoder's input, if the file does not define it."""
    posterior: bool | None = None
    """Whether it outputs means and log variances; default: from the file's outputs."""
    latent: int | None = None
    """Length of the latent vector, if the outputs do not define it."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs: the vector, or means then log variances; default: the file's."""
    color_order: Literal["RGB", "BGR"] = "RGB"
    """Colour order in the encoder's training."""
    layout: Literal["NCHW", "NHWC"] | None = None
    """Layout of the encoder's input, if the file does not define it."""
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Per channel, in units of pixel / scale."""
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Per channel, in units of pixel / scale."""
    scale: float = 255.0
    """Divisor of pixels: 255 for an encoder trained on 0 to 1, 1 for one trained on 0 to 255."""
    crop: tuple[int, int, int, int] | None = None
    """TOP LEFT HEIGHT WIDTH: crop each image first, as in training."""
    resize: bool = True
    """Resize images to the encoder's size; otherwise another size is an error."""
    stretch: bool = False
    """Allow images of another aspect ratio, if the encoder was trained on stretched ones. Otherwise
    they are an error, because positions in the image would shift."""
    golden: Path | None = None
    """One image whose latent is known."""
    expected: Path | None = None
    """Its latent, a .npy file of D numbers (the means)."""
    overwrite: bool = False
    """Replace an existing bundle."""
