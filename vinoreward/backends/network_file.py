"""A network's files, read once: what was hashed and checked is what a runtime is given."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vinoreward.backends.ir_check import check_ir
from vinoreward.backends.onnx_check import check_graph
from vinoreward.backends.onnx_graph import Malformed, read_graph
from vinoreward.errors import (
    BundleEditedError,
    ModelCorruptError,
    ModelNotFoundError,
    ModelRefusedError,
)
from vinoreward.files import read_plain

if TYPE_CHECKING:
    from vinoreward.backends.spec import NetworkSpec

MAX_BYTES = 512 << 20
"""Of one file."""


@dataclass(frozen=True)
class NetworkFile:
    """The content of an ``.onnx``, or of an ``.xml`` and the ``.bin`` beside it."""

    model: bytes
    weights: bytes | None = None


def read_network(spec: NetworkSpec, batches: Sequence[int]) -> NetworkFile:
    """Read a network's files, compare their hashes and check what the network would cost.

    Args:
        spec: the network.
        batches: sizes of batches that will be run.

    Raises:
        ModelNotFoundError: a file is missing.
        BundleEditedError: a file is not the one whose hash is recorded.
        ModelCorruptError: not a network that can be read.
        ModelRefusedError: operators that are not allowed, or too much memory or work.
    """
    path = spec.path
    model = read_bytes(path, spec.sha256)
    weights = None
    if path.suffix == ".xml":
        if not path.with_suffix(".bin").is_file():
            raise ModelNotFoundError(
                f"{path} has no {path.stem}.bin beside it. Expected both files of the OpenVINO "
                "model; copy the .bin too."
            )
        weights = read_bytes(path.with_suffix(".bin"), spec.bin_sha256)
    if not spec.trusted:
        check_network(path, NetworkFile(model, weights), picture_shape(spec), batches)
    return NetworkFile(model, weights)


def check_network(
    path: Path, content: NetworkFile, shape: Sequence[int], batches: Sequence[int]
) -> None:
    """Check what was read from an ``.onnx`` or ``.xml`` file, see :func:`read_network`.

    Args:
        path: for messages.
        content: of the file.
        shape: of one input without the batch; used for sizes that the file leaves open.
        batches: sizes of batches that will be run.

    Raises:
        ModelCorruptError, ModelRefusedError: as :func:`read_network`.
    """
    with told_in_full(path):
        if content.weights is not None:
            check_ir(content.model, content.weights, shape, batches)
        else:
            check_graph(read_graph(content.model), shape, batches)


@contextlib.contextmanager
def told_in_full(path: Path) -> Iterator[None]:
    """Name the file, and what to do, in what a check inside raises."""
    try:
        yield
    except Malformed as error:
        raise ModelCorruptError(
            f"{path} cannot be read as a network: {error}. Expected an ONNX file or an OpenVINO "
            ".xml with its .bin; the file is damaged or of another kind, export it again."
        ) from error
    except ModelRefusedError as error:
        raise ModelRefusedError(
            f"{path} is refused: {error}. Expected a network whose memory and time are bounded, "
            "without loops, branches and calculated indices; if you know where it comes from, load "
            "it with trusted=True (Bundle.load, Bundle.from_model, Bundle.from_encoder)."
        ) from error


def picture_shape(spec: NetworkSpec) -> tuple[int, ...]:
    """Return the shape that the graph takes without the batch; open sizes are 1."""
    shape = tuple(size or 1 for size in spec.input.shape[1:])
    if spec.preprocess is not None and spec.preprocess.layout == "NCHW" and len(shape) == 3:
        return (shape[2], shape[0], shape[1])
    return shape


def read_bytes(path: Path, expected_sha256: str | None, limit: int = MAX_BYTES) -> bytes:
    """Return a file's content, with that SHA-256 where one is given.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelCorruptError: it is larger than ``limit``, or cannot be read.
        BundleEditedError: the hash is another one.
    """
    try:
        data = read_plain(path, limit)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"there is no model file at {path}. Expected an existing .onnx, .xml or .safetensors "
            "file; check the path."
        ) from error
    except OSError as error:
        raise ModelCorruptError(
            f"{path} cannot be read: {error.strerror or error}. Expected a readable file of at "
            f"most {limit} bytes; check its permissions, and whether it is a network for pictures."
        ) from error
    if expected_sha256 is not None:
        found = hashlib.sha256(data).hexdigest()
        if found != expected_sha256:
            raise BundleEditedError(
                f"{path} has SHA-256 {found[:12]}…, but {expected_sha256[:12]}… was recorded. "
                "Expected the file as it was saved; restore it or build the bundle again."
            )
    return data
