"""What ``vinoreward import-encoder`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class ImportEncoderConfig:
    """Make a bundle of an encoder that was trained elsewhere.

    Takes an ONNX file, an OpenVINO .xml, or a state dict together with the function that builds
    its module. Give one picture with the latent that the original made of it: colour order, value
    range and size are then checked and not believed.

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
    """A folder of typical pictures: they give the bounds of the latent and the golden frames."""
    out: Path
    """The new bundle's folder."""
    name: str | None = None
    """Name of the bundle; default: the model file's name."""
    module: str | None = None
    """For a state dict: PACKAGE.MODULE:FUNCTION or FILE.py:FUNCTION, which builds the module."""
    size: tuple[int, int] | None = None
    """HEIGHT WIDTH of the encoder's input, where the file does not say."""
    posterior: bool | None = None
    """Whether it gives means and log variances; default: as the file's outputs say."""
    latent: int | None = None
    """Length of the latent vector, where the outputs do not say."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs: the vector, or means then log variances; default: the file's."""
    color_order: Literal["RGB", "BGR"] = "RGB"
    """What the encoder was trained on."""
    layout: Literal["NCHW", "NHWC"] | None = None
    """Of the encoder's input, where the file does not say."""
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Per channel, in units of pixel / scale."""
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Per channel, in units of pixel / scale."""
    scale: float = 255.0
    """What pixels are divided by: 255 for an encoder trained on 0 to 1, 1 for one on 0 to 255."""
    crop: tuple[int, int, int, int] | None = None
    """TOP LEFT HEIGHT WIDTH: cut this out of each picture first, as was done in training."""
    resize: bool = True
    """Bring pictures of another size to the encoder's; otherwise they are an error."""
    stretch: bool = False
    """The encoder was trained on pictures squeezed from another aspect ratio; otherwise one is an
    error, as it moves everything that the encoder knows the place of."""
    golden: Path | None = None
    """One picture whose latent is known."""
    expected: Path | None = None
    """Its latent, a .npy file of D numbers (the means)."""
    overwrite: bool = False
    """Replace a bundle that is there already."""
