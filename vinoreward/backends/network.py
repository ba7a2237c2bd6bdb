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

from numpy.typing import NDArray

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
class TensorSpec:
    """Shape and dtype of an array. ``None`` in ``shape`` stands for any size of at least one."""

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        sizes = ", ".join("N" if size is None else str(size) for size in self.shape)
        return f"({sizes}) {self.dtype}"

    def fits(self, array: NDArray[Any]) -> bool:
        """Return whether the array has such a shape; its dtype is not checked."""
        return len(array.shape) == len(self.shape) and all(
            size >= 1 if expected is None else size == expected
            for size, expected in zip(array.shape, self.shape, strict=True)
        )


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

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.std) != 3:
            raise ConfigError(
                f"preprocessing has {len(self.mean)} means and {len(self.std)} standard "
                "deviations. Expected three of each, one per colour channel."
            )
        if min(self.std) <= 0 or self.scale <= 0:
            raise ConfigError(
                f"preprocessing has std={self.std} and scale={self.scale}. Expected positive "
                "numbers, because the image is divided by them."
            )
        if self.color_order not in ("RGB", "BGR") or self.layout not in ("NCHW", "NHWC"):
            raise ConfigError(
                f"preprocessing has color_order={self.color_order!r} and layout={self.layout!r}. "
                "Expected RGB or BGR, and NCHW or NHWC."
            )


@dataclass(frozen=True)
class NetworkSpec:
    """One network, described so that every backend can run it.

    Attributes:
        path: the ``.onnx`` file.
        input: what callers give, normally ``(None, H, W, 3)`` uint8 RGB images.
        output: what callers get, normally ``(None, K)`` float32 logits.
        sha256: expected hash of ``path``, checked on loading.
        preprocess: steps that the backend puts in front of the graph; ``None`` if the graph takes
            uint8 N, H, W, C itself, as networks trained here do.
        output_index: which output of the graph is used.
        joined_index: another output, whose columns are appended.
        architecture: a name of :mod:`vinoreward.backends.torch_networks`.
        weights: ``.safetensors`` file with the state dict of that network.
        weights_sha256: expected hash of ``weights``.
        mean: per-channel mean of the torch network's input, in units of 0 to 1.
        std: per-channel standard deviation of the same.
        views: camera and height of each view, from top to bottom of the image; only for a torch
            network of several views.
        trusted: run it as it is. Otherwise a child process with limits tries it first, see
            :mod:`vinoreward.backends.probe`.
        golden: ``golden.npz``, whose images the child process runs.
        content: of ``path``, where it was read before.
    """

    path: Path
    input: TensorSpec
    output: TensorSpec
    sha256: str | None = None
    preprocess: Preprocess | None = None
    output_index: int = 0
    joined_index: int | None = None
    architecture: str | None = None
    weights: Path | None = None
    weights_sha256: str | None = None
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    views: tuple[tuple[str, int], ...] = ()
    trusted: bool = False
    golden: Path | None = None
    content: bytes | None = field(default=None, repr=False)

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


def read_bytes(path: Path, expected_sha256: str | None, limit: int = MAX_BYTES) -> bytes:
    """Return a file's content after checking its SHA-256, if given.

    Raises:
        ConfigError: an OpenVINO IR.
        ModelNotFoundError: the file is missing.
        BundleEditedError: it has another hash.
        ModelCorruptError: it cannot be read, or has more than ``limit`` bytes.
    """
    if path.suffix == ".xml":
        raise ConfigError(
            f"{path} is an OpenVINO IR, which cannot be checked well enough to be read. Expected "
            "an .onnx file; export the network as ONNX from the framework that it was made with, "
            "such as torch.onnx.export or tf2onnx."
        )
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
