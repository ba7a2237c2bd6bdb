"""The description of a network for backends, and its files.

The description is plain data that can be pickled. Files are read once: the runtime gets the very
bytes that were hashed and checked.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vinoreward.errors import (
    BundleEditedError,
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
)
from vinoreward.files import read_plain

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FINE = "fine_resnet"
"""The classifier network whose cells are 4 pixels wide, for small targets."""

MAX_BYTES = 512 << 20
"""Of one file."""


@dataclass(frozen=True)
class Preprocess:
    """How a uint8 RGB image (N, H, W, 3) becomes the float input of a network.

    The input is ``(pixel / scale - mean) / std`` per channel. ``mean`` and ``std`` are in the
    network's channel order, ``color_order``.
    """

    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    scale: float = 255.0
    color_order: Literal["RGB", "BGR"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"


@dataclass(frozen=True)
class NetworkSpec:
    """One network, described so that every backend can run it."""

    path: Path
    """The ``.onnx`` file."""
    size: tuple[int, int]
    """Height and width in pixels of the images that callers give, ``(N, H, W, 3)`` uint8 RGB."""
    columns: int
    """K, of what callers get, ``(N, K)`` float32: logits or latent vectors."""
    sha256: str | None = None
    """Expected hash of ``path``, checked on loading."""
    preprocess: Preprocess | None = None
    """Steps that the backend puts in front of the graph; None if the graph takes uint8 N, H, W, C
    itself, as networks trained here do."""
    output_index: int = 0
    """Which output of the graph is used."""
    joined_index: int | None = None
    """Another output, whose columns are appended."""
    architecture: str | None = None
    """Of the torch network, see :mod:`vinoreward.backends.torch_networks`."""
    weights: Path | None = None
    """``.safetensors`` file with the state dict of the torch network."""
    weights_sha256: str | None = None
    """Expected hash of ``weights``."""
    mean: tuple[float, ...] = IMAGENET_MEAN
    """Of the torch network's input, per channel, in units of 0 to 1."""
    std: tuple[float, ...] = IMAGENET_STD
    """As ``mean``."""
    views: tuple[tuple[str, int], ...] = ()
    """Camera and height of each view, from top to bottom; only for a torch network of several."""
    trusted: bool = False
    """Run it as it is. Otherwise a child process tries it, see :mod:`vinoreward.backends.probe`."""
    golden: Path | None = None
    """``golden.npz``, whose images the child process runs."""
    content: bytes | None = field(default=None, repr=False)
    """Of ``path``, where it was read before."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(H, W, 3)``."""
        return (*self.size, 3)

    @property
    def images(self) -> str:
        """What callers give, for messages."""
        return f"(N, {self.size[0]}, {self.size[1]}, 3) uint8"

    @property
    def outputs(self) -> tuple[int, ...]:
        """The outputs of the graph in the result, in order."""
        first = (self.output_index,)
        return first if self.joined_index is None else (*first, self.joined_index)


def openvino_model(openvino: Any, path: Path, content: bytes) -> Any:
    """Return OpenVINO's model of ONNX content; ModelCorruptError if it cannot be read.

    The format is named: ``Core.read_model`` would guess it, and find an IR in a doc string.
    """
    try:
        onnx = openvino.frontend.FrontEndManager().load_by_framework("onnx")
        return onnx.convert(onnx.load(io.BytesIO(content)))
    except Exception as error:  # the front end's errors have no base class
        raise ModelCorruptError(
            f"{path} cannot be read as a network: OpenVINO says {first_line(error)!r}. Expected an "
            "ONNX file; the file is damaged or of another kind, export it again."
        ) from error


def first_line(error: BaseException) -> str:
    """Return the useful part of OpenVINO's C++ message."""
    wrapping = ("Exception from", "Check '", "FrontEnd API", "Model wasn't", "--", "While ")
    lines = [line.strip() for line in str(error).splitlines()]
    useful = [line for line in lines if line and not line.startswith(wrapping)]
    return useful[0] if useful else str(error)


def check_ends(path: Path, inputs: int, outputs: int, highest: int) -> None:
    """Raise ConfigError unless a network has one input, and outputs up to number ``highest``."""
    if inputs != 1 or highest >= outputs:
        raise ConfigError(
            f"{path} has {inputs} inputs and {outputs} outputs. Expected one input and output "
            f"number {highest}; give a network with one input, or another output_index."
        )


def other_input(spec: NetworkSpec, found: str) -> ConfigError:
    """Return the error for a network whose input is not what its description says."""
    after = "" if spec.preprocess is None else f" after {spec.preprocess}"
    return ConfigError(
        f"{spec.path} takes {found}, but its description says {spec.images}{after}. Expected the "
        "same; correct the description, or give a preprocess if the network takes normalised "
        "floats."
    )


def read_bytes(path: Path, expected_sha256: str | None, limit: int = MAX_BYTES) -> bytes:
    """Return a file's content after checking its SHA-256, if given.

    Raises:
        ModelNotFoundError: the file is missing.
        BundleEditedError: it has another hash.
        ModelCorruptError: it cannot be read, or has more than ``limit`` bytes.
    """
    try:
        data = read_plain(path, limit)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"there is no model file at {path}. Expected an existing .onnx or .safetensors file; "
            "check the path."
        ) from error
    except OSError as error:
        raise ModelCorruptError(
            f"{path} cannot be read: {error.strerror or error}. Expected a readable file of at "
            f"most {limit} bytes; check its permissions, and whether it is a network for images."
        ) from error
    if expected_sha256 is not None:
        digest = hashlib.sha256(data).hexdigest()
        if digest != expected_sha256:
            raise BundleEditedError(
                f"{path} has SHA-256 {digest[:12]}…, but {expected_sha256[:12]}… was recorded. "
                "Expected the file as it was saved; restore it or build the bundle again."
            )
    return data
