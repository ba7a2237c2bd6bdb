"""Golden frames: a few pictures with the outputs they must give, and the comparison."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import Backend
from vinoreward.backends.network_file import read_bytes
from vinoreward.bundles import latents
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import BundleError, BundleParityError, ModelCorruptError
from vinoreward.saved_arrays import read_npz

MAX_GOLDEN = 256
MAX_GOLDEN_BYTES = 64 << 20

# Backends and processors order sums differently. On an untrained SqueezeNet at 96 x 128, OpenVINO
# and ONNX Runtime were within 1e-6 of PyTorch; the limit leaves room for trained networks.
FLOAT_TOLERANCE = 1e-2
# INT8 kernels differ between processor generations (with and without VNNI), so only a gross
# difference of a probability says that something is broken.
INT8_TOLERANCE = 0.1


@dataclass(frozen=True)
class Golden:
    """Recorded frames.

    Attributes:
        images: ``(G, H, W, 3)`` uint8 RGB of the network's size.
        logits: ``(G, K)`` float32, what the FP32 network gives.
        logits_int8: the same of the INT8 network, if there is one.
    """

    images: NDArray[np.uint8]
    logits: NDArray[np.float32]
    logits_int8: NDArray[np.float32] | None = None

    def check(self, spec: BundleSpec) -> None:
        """Raise BundleError unless the arrays fit each other and the spec."""
        shape = (spec.picture.height, spec.picture.width, 3)
        images = self.images
        count = len(images) if images.ndim == 4 else 0
        if images.dtype != np.uint8 or images.shape[1:] != shape or not 1 <= count <= MAX_GOLDEN:
            raise BundleError(
                f"the golden frames are {images.shape} {images.dtype}. Expected 1 to {MAX_GOLDEN} "
                f"pictures of {shape} uint8; give pictures as prepare() returns them."
            )
        for name, values in (("logits", self.logits), ("logits_int8", self.logits_int8)):
            if values is None:
                continue
            if (
                values.dtype != np.float32
                or values.shape != (count, spec.width)
                or not np.isfinite(values).all()
            ):
                raise BundleError(
                    f"the golden {name} are {values.shape} {values.dtype}. Expected finite float32 "
                    f"of shape {(count, spec.width)}, one row per frame; record them again."
                )

    def to_bytes(self) -> bytes:
        """Return the content of ``golden.npz``."""
        arrays: dict[str, NDArray[Any]] = {"images": self.images, "logits": self.logits}
        if self.logits_int8 is not None:
            arrays["logits_int8"] = self.logits_int8
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
        return stream.getvalue()


def read_golden(path: Path, spec: BundleSpec) -> Golden:
    """Read ``golden.npz``; nothing in it is executed, and no more memory taken than it states.

    Raises:
        BundleError: it cannot be read or does not fit the spec.
        BundleEditedError: it is not the file whose hash is recorded.
    """
    try:
        data = read_bytes(path, spec.files.get(path.name), MAX_GOLDEN_BYTES)
    except ModelCorruptError as error:
        raise _unreadable(path, error) from error
    try:
        arrays = read_npz(data, MAX_GOLDEN_BYTES)
    except ModelCorruptError as error:
        raise _unreadable(path, error) from error
    unknown = set(arrays) - {"images", "logits", "logits_int8"}
    if unknown or not {"images", "logits"} <= set(arrays):
        shown = ", ".join(repr(name[:40]) for name in sorted(arrays)[:5])
        raise BundleError(
            f"{path} holds {shown or 'nothing'}. Expected images, logits and perhaps logits_int8; "
            "save the bundle again."
        )
    golden = Golden(arrays["images"], arrays["logits"], arrays.get("logits_int8"))
    golden.check(spec)
    return golden


def check_parity(backend: Backend, golden: Golden, spec: BundleSpec) -> None:
    """Run the golden frames on ``backend`` and compare with what was recorded.

    FP32 may differ by ``1e-2`` of the largest recorded logit (at least of 1). INT8 and bf16 are
    compared as probabilities of success, which may differ by 0.1: every decision with a larger
    margin is then the same. An encoder's vectors are compared by :func:`latents.parity`.

    Raises:
        BundleParityError: a frame differs more.
    """
    expected = golden.logits
    if backend.precision == "int8" and golden.logits_int8 is not None:
        expected = golden.logits_int8
    exact = backend.precision == "fp32"
    found = backend.infer(golden.images)
    if _close(found, expected, spec, exact).all():
        return
    error = _distance(found, expected, spec, exact)
    frame = int(np.argmax(error))
    # A swap is the commonest cause and the only one that can be proved by trying.
    swapped = backend.infer(np.ascontiguousarray(golden.images[..., ::-1]))
    if _close(swapped, expected, spec, exact).all():
        cause = "red and blue are swapped: with the other colour order the outputs are right"
    elif backend.precision == "int8":
        cause = (
            "a broken quantization, a processor whose INT8 arithmetic differs, or a model file of "
            "another bundle; use precision='fp32', or run vinoreward quantize on this machine"
        )
    else:
        cause = (
            "another colour order, mean or std than in training, or a model file of another "
            "bundle; export the network again"
        )
    raise BundleParityError(
        f"golden frame {frame} of the bundle {spec.name!r} gives {_row(found[frame])} on "
        f"{backend.name} ({backend.device}, {backend.precision}). Expected {_row(expected[frame])} "
        f"as recorded, within {_limit(expected, spec, exact)}; "
        f"{int((~_close(found, expected, spec, exact)).sum())} of {len(found)} frames differ. "
        f"Likely cause: {cause}."
    )


def softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return probabilities ``(N, K)`` float64 for logits ``(N, K)``."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probabilities: NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


def _distance(
    found: NDArray[np.float32], expected: NDArray[np.float32], spec: BundleSpec, exact: bool
) -> NDArray[np.float64]:
    """Return how far each frame is off, ``(G,)``."""
    if spec.encoding is not None:
        return latents.parity(found, expected, spec.encoding, exact)
    if not exact and spec.kind == "classifier" and spec.output == "logits":
        temperature = np.float32(spec.decision.temperature)
        difference = softmax(found / temperature) - softmax(expected / temperature)
        off: NDArray[np.float64] = np.abs(difference[:, spec.success_index])
        return off
    largest: NDArray[np.float64] = np.abs(found.astype(np.float64) - expected).max(axis=1)
    return largest


def _close(
    found: NDArray[np.float32], expected: NDArray[np.float32], spec: BundleSpec, exact: bool
) -> NDArray[np.bool_]:
    return _distance(found, expected, spec, exact) <= _tolerance(expected, spec, exact)


def _tolerance(expected: NDArray[np.float32], spec: BundleSpec, exact: bool) -> float:
    if spec.encoding is not None:
        return 1.0
    if exact:
        return FLOAT_TOLERANCE * max(1.0, float(np.abs(expected).max()))
    return INT8_TOLERANCE


def _limit(expected: NDArray[np.float32], spec: BundleSpec, exact: bool) -> str:
    if spec.encoding is not None:
        share = f"{latents.FLOAT_SHARE} of " if exact else ""
        return (
            f"{share}the posterior's standard deviation"
            if spec.encoding.std is not None
            else f"{share}{latents.RANGE_SHARE:.0%} of the vectors' range"
        )
    limit = f"{_tolerance(expected, spec, exact):.3g}"
    return f"{limit} {'of each output' if exact else 'in probability'}"


def _row(values: NDArray[np.float32]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in values[:8])
    return f"[{shown}{', …' if len(values) > 8 else ''}]"


def _unreadable(path: Path, error: Exception) -> BundleError:
    reason = " ".join(str(error).split())[:200].rstrip(".")
    return BundleError(
        f"{path} cannot be read: {reason}. Expected arrays without pickled objects, as "
        "save_bundle writes them; save the bundle again."
    )
