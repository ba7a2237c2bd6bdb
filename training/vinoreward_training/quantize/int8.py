"""Adds an INT8 network to a bundle, if it decides or encodes as the FP32 one does."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.backends.base import load_backend
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Quantization
from vinoreward.errors import DatasetError, MissingExtraError, QuantizationRefusedError
from vinoreward.rewards.classifier import Classifier, log_odds, logit, scores_of, threshold_distance
from vinoreward_training.configs import Int8
from vinoreward_training.data.dataset import Dataset, split_by_episode
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.data.provenance import LEAST_HELD_OUT
from vinoreward_training.quantize.gate import (
    MAX_SECOND_LOOKS,
    Bools,
    Floats,
    GateResult,
    Outputs,
    gate,
    halves,
)
from vinoreward_training.quantize.network import MAX_CALIBRATION_FRAMES, quantize_onnx
from vinoreward_training.runs.bundles import add_int8, of_cut_images

if TYPE_CHECKING:
    from vinoreward.backends.network import NetworkSpec

BACKENDS = ("openvino", "onnxruntime")
"""All that may run the INT8 network; the gate takes the worst of them."""
METHOD = "nncf-ptq"
MAX_FLIPS = 0.005
GAIN = 1.1
"""How many times as long FP32 must take as INT8 on this processor."""
TIMED_IMAGES = 40
OPTIONS = ("int8", "max_flips", "beta")
"""Of commands, that a refusal may name."""

Images = npt.NDArray[np.uint8]


def classifier_int8(
    bundle: Bundle, dataset: Dataset, mode: Int8, max_flips: float = MAX_FLIPS
) -> str:
    """Add INT8 to a saved classifier, compared on held-out frames; return the result in words.

    Raises:
        QuantizationRefusedError, DatasetError: the gate refuses it, or there are too few frames,
            and the mode is ``"on"``.
    """
    return unless_refused(mode, lambda: _classifier(bundle, dataset, mode, max_flips))


def unless_refused(mode: Int8, add: Callable[[], str]) -> str:
    """Return what ``add`` says, or why the gate refuses; with ``"on"`` a refusal is raised."""
    if mode == "off":
        return "not asked for"
    try:
        return add()
    except (QuantizationRefusedError, DatasetError, MissingExtraError) as error:
        if mode == "on":
            raise
        return f"none, FP32 works all the same. {error.as_options(OPTIONS)}"


def some_of(indices: Indices, count: int, purpose: int) -> Indices:
    """Draw some indices, sorted; ``purpose`` is the seed."""
    return np.sort(np.random.default_rng([0, purpose]).permutation(indices)[:count])


def split_for(kind: str, parts: Sequence[Indices]) -> tuple[Indices, Indices]:
    """Return the frames to calibrate on, and those held out."""
    held_out = np.concatenate(parts[1:])
    if len(held_out) < LEAST_HELD_OUT[kind]:
        raise DatasetError(
            f"{len(held_out)} frames are held out. Expected at least {LEAST_HELD_OUT[kind]} to "
            "compare INT8 with FP32 on; add images, or go on in FP32."
        )
    return some_of(parts[0], MAX_CALIBRATION_FRAMES, 0xCA1), np.sort(held_out)


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

    starts = tqdm(range(0, len(images), batch_size), desc=f"compare on {backend}", unit="batch")
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
    max_flips: float = MAX_FLIPS,
    max_second_looks: float = MAX_SECOND_LOOKS,
) -> GateResult:
    """Compare the decisions of an INT8 network on held-out frames with the bundle's FP32 one.

    ``images`` ``(N, H, W, 3)`` are as :meth:`Bundle.prepare` returns them, ``episodes`` ``(N,)``.
    """
    before = log_odds_of(bundle.network("fp32"), BACKENDS[0], images, bundle)
    return gate(
        before,
        {name: log_odds_of(int8, name, images, bundle) for name in BACKENDS},
        halves(episodes),
        logit(bundle.spec.decision.threshold),
        max_flips=max_flips,
        max_second_looks=max_second_looks,
        decided=_decided(bundle, images, before),
        translation_band=bundle.spec.decision.translation_band or 0.0,
    )


def _decided(bundle: Bundle, images: Images, log_odds: Floats) -> Bools:
    """Return how FP32 decides (N,), of its log-odds and translation averages."""
    decision = bundle.spec.decision
    threshold = logit(decision.threshold)
    decided = log_odds >= threshold
    near = np.flatnonzero(
        threshold_distance(log_odds, threshold) < (decision.translation_band or 0.0)
    )
    cut = of_cut_images(bundle)
    with Classifier(cut, backend=BACKENDS[0], precision="fp32", guarded=False) as classifier:
        for index in near:
            decided[index] = classifier.compute_reward(images[index : index + 1])[0] > 0
    return decided


def _classifier(bundle: Bundle, dataset: Dataset, mode: Int8, max_flips: float) -> str:
    calibration, held_out = split_for("classifier", split_by_episode(dataset))
    images, episodes = dataset.images, dataset.episodes
    with quantized(bundle, images[calibration], mode) as (int8, looks):
        result = compare(
            bundle,
            int8,
            images[held_out],
            episodes[held_out],
            max_flips=max_flips,
            max_second_looks=looks,
        )
        gated = Quantization(
            passed=True,
            flips=result.flips.count,
            frames=result.flips.frames,
            method=METHOD,
            max_flip_rate=max_flips,
            detail={
                "flip_rate_upper": result.flips.high,
                "flips_without_second_look": result.alone.count,
                "flip_rate_without_second_look": result.alone.share,
                "second_looks_boundary_rich": result.looks_boundary,
                "second_looks_held_out": result.looks_all,
                "by_backend": {name: one.count for name, one in result.by_backend.items()},
                "calibration_frames": len(calibration),
                "dataset_sha256": dataset.sha256,
            },
        )
        golden = outputs_of(int8, BACKENDS[0], bundle.golden.images)
        add_int8(bundle, int8.path, gated, golden, result.band)
    return str(result)
