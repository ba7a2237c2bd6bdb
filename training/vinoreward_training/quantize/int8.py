"""Adds an INT8 network to a bundle, if it decides or encodes as the FP32 one does."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from vinoreward.backends.base import load_backend
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Quantization
from vinoreward.errors import DatasetError, MissingExtraError, QuantizationRefusedError
from vinoreward.rewards.classifier import log_odds, logit, scores_of
from vinoreward_training.configs import Int8
from vinoreward_training.data.dataset import Dataset, Frames, parts_by_episode
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.data.provenance import LEAST_HELD_OUT
from vinoreward_training.quantize.gate import (
    MAX_FLIPS,
    MAX_MOVED,
    MAX_SECOND_LOOKS,
    Floats,
    GateResult,
    Moved,
    Outputs,
    gate,
    gate_latents,
    halves,
)
from vinoreward_training.quantize.network import MAX_CALIBRATION_FRAMES, quantize_onnx
from vinoreward_training.runs.bundles import add_int8

if TYPE_CHECKING:
    from vinoreward.backends.network import NetworkSpec
    from vinoreward.bundles.schema import Encoding

BACKENDS = ("openvino", "onnxruntime")
"""All that may run the INT8 network; the gate takes the worst of them."""
METHOD = "nncf-ptq"
GAIN = 1.1
"""How many times as long FP32 must take as INT8 on this processor."""
TIMED_IMAGES = 40
MAX_LATENTS = 2000
"""Most held-out frames whose latents are compared."""

Images = npt.NDArray[np.uint8]


def classifier_int8(bundle: Bundle, dataset: Dataset, mode: Int8) -> str:
    """Add INT8 to a saved classifier, compared on held-out frames; return the result in words.

    Raises:
        QuantizationRefusedError, DatasetError: the gate refuses it, or there are too few frames,
            and the mode is ``"on"``.
    """
    return _unless_refused(bundle, dataset, parts_by_episode(dataset), mode)


def encoder_int8(bundle: Bundle, frames: Frames, parts: Sequence[Indices], mode: Int8) -> str:
    """Add INT8 to a saved encoder; see :func:`classifier_int8`.

    ``parts`` are the indices of (train, validation, test).
    """
    return _unless_refused(bundle, frames, parts, mode)


def _unless_refused(
    bundle: Bundle, data: Dataset | Frames, parts: Sequence[Indices], mode: Int8
) -> str:
    if mode == "off":
        return "off"
    try:
        return _add(bundle, data, parts, mode)
    except (QuantizationRefusedError, DatasetError, MissingExtraError) as error:
        if mode == "on":
            raise
        return f"none, FP32 works all the same. {error.as_options(('int8', 'beta'))}"


def _add(bundle: Bundle, data: Dataset | Frames, parts: Sequence[Indices], mode: Int8) -> str:
    classifier = bundle.spec.kind == "classifier"
    # A classifier's data are already as its network wants them.
    prepared = np.asarray if classifier else bundle.prepare
    calibration = np.random.default_rng([0, 0xCA1]).permutation(parts[0])[:MAX_CALIBRATION_FRAMES]
    held_out = np.sort(np.concatenate(parts[1:]))
    if len(held_out) < (least := LEAST_HELD_OUT[bundle.spec.kind]):
        raise DatasetError(
            f"{len(held_out)} frames are held out. Expected at least {least} to compare INT8 with "
            "FP32 on; add images, or go on in FP32."
        )
    with quantized(bundle, prepared(data.images[np.sort(calibration)]), mode) as (int8, looks):
        shown, episodes = prepared(data.images[held_out]), data.episodes[held_out]
        found: GateResult | Moved
        if classifier:
            found = compare(bundle, int8, shown, episodes, max_second_looks=looks)
        else:
            found = compare_latents(bundle, int8, shown)
        passed = Quantization(
            passed=True,
            flips=found.count,
            frames=found.frames,
            method=METHOD,
            max_flip_rate=MAX_FLIPS if classifier else MAX_MOVED,
            detail=found.detail
            | {"calibration_frames": len(calibration), "dataset_sha256": data.sha256},
        )
        golden = outputs_of(int8, BACKENDS[0], bundle.golden.images)
        add_int8(bundle, int8.path, passed, golden, found.band)
    return str(found)


@contextlib.contextmanager
def quantized(bundle: Bundle, images: Images, mode: Int8) -> Iterator[tuple[NetworkSpec, float]]:
    """Quantize on prepared images; yield a network whose file is there within the block.

    With it goes the largest share of images that FP32 may score again, for a gain in time.
    QuantizationRefusedError if the network is to be faster than FP32 and is not.
    """
    network = bundle.network("fp32")
    encoder = bundle.spec.kind == "encoder"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.int8.onnx"
        print(f"NNCF on {len(images)} frames ...", flush=True)
        quantize_onnx(network.path, path, images, exact_bias=encoder, preprocess=network.preprocess)
        int8 = dataclasses.replace(network, path=path, sha256=None)
        faster = math.inf if mode == "on" else speedup(network, int8, images)
        if faster < GAIN:
            raise QuantizationRefusedError(
                f"FP32 takes {faster:.2f} times as long as INT8 on this processor. Expected at "
                f"least {GAIN}; the bundle stays FP32. For another processor add INT8 with "
                "`int8=on`.",
                field="int8",
            )
        yield int8, 1.0 if mode == "on" else min(MAX_SECOND_LOOKS, 1 - 1 / faster)


def speedup(fp32: NetworkSpec, int8: NetworkSpec, images: Images) -> float:
    """Return how many times as long FP32 takes as INT8 for one image, the median of some pairs."""
    ratios = []
    with load_backend(BACKENDS[0], fp32) as first, load_backend(BACKENDS[0], int8) as second:
        for index in range(TIMED_IMAGES):
            image, clock = images[index % len(images)][None], [time.perf_counter()]
            for backend in (first, second):
                backend.infer(image)
                clock.append(time.perf_counter())
            ratios.append((clock[1] - clock[0]) / (clock[2] - clock[1]))
    return float(np.median(ratios))


def outputs_of(spec: NetworkSpec, backend: str, images: Images, *, batch_size: int = 32) -> Outputs:
    """Return what ``spec`` gives for images (N, H, W, 3) on ``backend``; shows its progress."""
    from tqdm import tqdm

    starts = tqdm(
        range(0, len(images), batch_size), desc=f"compare on {backend}", unit="batch", disable=None
    )
    with load_backend(backend, spec) as network:
        parts = [network.infer(images[start : start + batch_size]) for start in starts]
    return np.concatenate(parts).astype(np.float32)


def log_odds_of(spec: NetworkSpec, backend: str, images: Images, bundle: Bundle) -> Floats:
    """Return the calibrated log-odds (N,) of ``spec`` on ``backend``, one image at a time."""
    # The classifier's own function, as it will decide.
    scores = scores_of(outputs_of(spec, backend, images, batch_size=1), bundle.spec)
    whole = bundle.spec
    return np.asarray(log_odds(scores, whole.success_index, whole.decision.temperature))


def compare(
    bundle: Bundle,
    int8: NetworkSpec,
    images: Images,
    episodes: Indices,
    *,
    max_second_looks: float = MAX_SECOND_LOOKS,
) -> GateResult:
    """Compare the decisions of an INT8 network on held-out frames with the bundle's FP32 one.

    ``images`` ``(N, H, W, 3)`` are as :meth:`Bundle.prepare` returns them, ``episodes`` ``(N,)``.
    """
    return gate(
        log_odds_of(bundle.network("fp32"), BACKENDS[0], images, bundle),
        {name: log_odds_of(int8, name, images, bundle) for name in BACKENDS},
        halves(episodes),
        logit(bundle.spec.decision.threshold),
        max_second_looks=max_second_looks,
    )


def compare_latents(bundle: Bundle, int8: NetworkSpec, images: Images) -> Moved:
    """Compare an INT8 encoder on held-out frames (N, H, W, 3) with the bundle's FP32 one."""
    some = images[:: max(1, -(-len(images) // MAX_LATENTS))]
    before = outputs_of(bundle.network("fp32"), BACKENDS[0], some)
    after = {name: outputs_of(int8, name, some) for name in BACKENDS}
    return gate_latents(before, after, cast("Encoding", bundle.spec.encoding))
