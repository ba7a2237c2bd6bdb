"""Golden frames: a few images with their recorded outputs, and the comparison.

Latent vectors are compared in units of their spread, see :func:`unit`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import Backend
from vinoreward.backends.network import read_bytes
from vinoreward.bundles.schema import ONE_COLUMN, BundleSpec, Encoding
from vinoreward.errors import BundleError, BundleParityError, ModelCorruptError
from vinoreward.files import read_npz, reason_of
from vinoreward.images import ImageSpec

MAX_GOLDEN = 256
MADE_UP = 4
MAX_GOLDEN_BYTES = 64 << 20

FLOAT_TOLERANCE = 1e-2
"""Share of the largest logit. Backends and processors add in different orders, within 1e-6 on an
untrained SqueezeNet; trained networks need more room."""
INT8_TOLERANCE = 0.1
"""Of a probability: INT8 kernels differ between processor generations (with and without VNNI)."""
BAND_SHARE = 0.25
"""Of the band within which FP32 decides: so far may log-odds differ."""
RANGE_SHARE = 0.05
"""The unit of a latent dimension without a known posterior, as a share of its range."""
FLOAT_SHARE = 0.1
"""Units by which FP32 may differ, or if that is more ``FLOAT_ROUNDING`` of the largest number."""
FLOAT_ROUNDING = 1e-3
LOG_VARIANCE_TOLERANCE = 0.1


def made_up_images(image: ImageSpec) -> NDArray[np.uint8]:
    """Return coloured images (N, H, W, 3) of the network's size, each with a tint of its own."""
    random = np.random.default_rng(0)
    tints = random.integers(40, 216, (MADE_UP, 1, 1, 3))
    noise = random.integers(-40, 40, (MADE_UP, image.height, image.width, 3))
    return (tints + noise).astype(np.uint8)


@dataclass(frozen=True)
class Golden:
    """Recorded frames."""

    images: NDArray[np.uint8]
    """``(G, H, W, 3)`` RGB of the network's size."""
    logits: NDArray[np.float32]
    """``(G, K)`` outputs of the FP32 network."""
    logits_int8: NDArray[np.float32] | None = None
    """The same of the INT8 network, if there is one."""

    def check(self, spec: BundleSpec) -> None:
        """Raise BundleError unless the arrays match each other and the spec."""
        shape = (spec.image.height, spec.image.width, 3)
        images = self.images
        count = len(images) if images.ndim == 4 else 0
        if images.dtype != np.uint8 or images.shape[1:] != shape or not 1 <= count <= MAX_GOLDEN:
            raise BundleError(
                f"the golden frames are {images.shape} {images.dtype}. Expected 1 to {MAX_GOLDEN} "
                f"images of {shape} uint8; give images as prepare() returns them."
            )
        for values in (self.logits, self.logits_int8):
            if values is None:
                continue
            fits = values.dtype == np.float32 and values.shape == (count, spec.width)
            if not fits or not np.isfinite(values).all():
                raise BundleError(
                    f"the golden logits are {values.shape} {values.dtype}. Expected finite float32 "
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
    """Read ``golden.npz`` without executing anything, in no more memory than it states.

    Raises:
        BundleError: it cannot be read, does not match the spec or has another hash.
    """
    try:
        data = read_bytes(path, spec.files.get(path.name), MAX_GOLDEN_BYTES)
        arrays = read_npz(data, MAX_GOLDEN_BYTES)
    except ModelCorruptError as error:
        raise BundleError(
            f"{path} cannot be read: {reason_of(error)}. Expected arrays without pickled objects, "
            "as save_bundle writes them; save the bundle again."
        ) from error
    if set(arrays) - {"logits_int8"} != {"images", "logits"}:
        names = ", ".join(repr(name[:40]) for name in sorted(arrays)[:5])
        raise BundleError(
            f"{path} holds {names or 'nothing'}. Expected images, logits and perhaps logits_int8; "
            "save the bundle again."
        )
    golden = Golden(**arrays)
    golden.check(spec)
    return golden


def check_parity(backend: Backend, golden: Golden, spec: BundleSpec) -> None:
    """Raise BundleParityError unless ``backend`` gives the recorded outputs for the golden frames.

    FP32 may differ by ``1e-2`` of the largest recorded logit (at least of 1). INT8 and bf16 are
    compared as probabilities of success, which may differ by 0.1: every decision with a larger
    margin is then the same. Where INT8's logits have a band, its log-odds may differ by a quarter
    of that: FP32 decides within it. An encoder's vectors are compared by :func:`_latent_errors`.
    """
    expected, int8 = golden.logits, backend.precision == "int8"
    if int8 and golden.logits_int8 is not None:
        expected = golden.logits_int8

    def errors_of(outputs: NDArray[np.float32]) -> tuple[NDArray[np.float64], str]:
        exact = backend.precision == "fp32"
        if spec.encoding is not None:
            return _latent_errors(outputs, expected, spec.encoding, exact)
        return _errors(outputs, expected, spec, exact, spec.decision.int8_band if int8 else None)

    # One by one: a backend that compiles for each size of a batch needs that of 1 anyway.
    outputs = np.concatenate([backend.infer(image[None]) for image in golden.images])
    errors, limit = errors_of(outputs)
    if (errors <= 1).all():
        return
    frame = int(np.argmax(errors))
    cause = "another colour order, mean or std than in training, or a file of another bundle"
    if int8:
        cause = "a broken quantization, or a processor whose INT8 differs; use precision='fp32'"
    # Swapped colours are the most frequent cause, and the only one that can be proved.
    swapped = backend.infer(np.ascontiguousarray(golden.images[..., ::-1]))
    if (errors_of(swapped)[0] <= 1).all():
        cause = "red and blue are swapped: with the other colour order the outputs are right"
    raise BundleParityError(
        f"golden frame {frame} of the bundle {spec.name!r} gives {row(outputs[frame])} on "
        f"{backend.name} ({backend.device}, {backend.precision}). Expected {row(expected[frame])} "
        f"as recorded, within {limit}; {int((errors > 1).sum())} of {len(outputs)} frames differ. "
        f"Likely cause: {cause}."
    )


def means(outputs: NDArray[Any], encoding: Encoding) -> NDArray[Any]:
    """Return the ``(N, D)`` means of an encoder's outputs."""
    return outputs[:, : len(encoding.low)]


def unit(encoding: Encoding, recorded: NDArray[Any]) -> NDArray[np.float64]:
    """Return the ``(D,)`` positive unit of differences in each dimension.

    It is the encoding's ``std`` where known, else 5 % of the range of the recorded vectors.
    """
    if encoding.std is not None:
        return np.asarray(encoding.std, np.float64)
    spread = np.ptp(recorded.astype(np.float64), axis=0)
    # A dimension that hardly varies gets the mean range of all.
    return np.asarray(RANGE_SHARE * np.maximum(spread, max(float(spread.mean()), 1e-3)))


def _latent_errors(
    found: NDArray[np.float32], expected: NDArray[np.float32], encoding: Encoding, exact: bool
) -> tuple[NDArray[np.float64], str]:
    """Return each frame's error, ``(G,)``, as a multiple of the limit, and the limit in words.

    FP32: every mean within 0.1 unit, every log variance within 0.1. INT8 and bf16, whose arithmetic
    differs between processor generations: the root mean square of the means within one unit.
    """
    mean = means(expected, encoding).astype(np.float64)
    difference, units = np.abs(means(found, encoding) - mean), unit(encoding, mean)
    words = f"{RANGE_SHARE:.0%} of the vectors' range"
    if encoding.std is not None:
        words = "the posterior's standard deviation"
    if not exact:
        return np.asarray(np.sqrt(np.square(difference / units).mean(axis=1))), words
    limit = np.maximum(FLOAT_SHARE * units, FLOAT_ROUNDING * max(1.0, float(np.abs(mean).max())))
    errors = np.asarray((difference / limit).max(axis=1))
    if encoding.posterior:
        size = mean.shape[1]
        spread = np.abs(found[:, size:].astype(np.float64) - expected[:, size:]).max(axis=1)
        errors = np.maximum(errors, spread / LOG_VARIANCE_TOLERANCE)
    return errors, f"{FLOAT_SHARE} of {words}"


def columns(outputs: NDArray[Any], spec: BundleSpec) -> NDArray[np.float64]:
    """Return a classifier's outputs as ``(N, K)`` float64, one column per label.

    They are logits if ``spec.output`` is ``logits`` or ``logit``, else probabilities.
    """
    labelled = outputs if spec.progress is None else outputs[:, :-1]
    values = labelled.astype(np.float64)
    if spec.output not in ONE_COLUMN:
        return values
    first = np.zeros_like(values) if spec.output == "logit" else 1.0 - values
    return np.concatenate([first, values], axis=1)


def softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return probabilities ``(N, K)`` float64 for logits ``(N, K)``."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _errors(
    found: NDArray[np.float32],
    expected: NDArray[np.float32],
    spec: BundleSpec,
    exact: bool,
    band: float | None,
) -> tuple[NDArray[np.float64], str]:
    """Return a classifier's errors as :func:`_latent_errors`; ``band`` is INT8's, in log-odds."""
    errors = np.abs(found.astype(np.float64) - expected).max(axis=1)
    if exact:
        limit = FLOAT_TOLERANCE * max(1.0, float(np.abs(expected).max()))
        return errors / limit, f"{limit:.3g} of each output"
    words = f"{INT8_TOLERANCE:g} in probability"
    if spec.output in ("logits", "logit"):
        before, after = (
            softmax(columns(each, spec) / spec.decision.temperature)[:, spec.success_index]
            for each in (expected, found)
        )
        errors = np.abs(after - before)
        if band:
            with np.errstate(divide="ignore", invalid="ignore"):  # where both are 0 or both 1
                odds = np.abs(np.log(after / (1 - after)) - np.log(before / (1 - before)))
            errors = np.fmin(errors, INT8_TOLERANCE * odds / (BAND_SHARE * band))
            words += f" or {BAND_SHARE * band:.3g} in log-odds"
    return errors / INT8_TOLERANCE, words


def row(values: NDArray[np.floating[Any]], most: int = 8) -> str:
    """Return a row of numbers as a message shows it."""
    shown = ", ".join(f"{value:.4g}" for value in values[:most])
    return f"[{shown}{', …' if len(values) > most else ''}]"
