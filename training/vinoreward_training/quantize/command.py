"""``vinoreward quantize``: an INT8 network, if it decides or encodes as the FP32 one does."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.backends.base import load_backend
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import means
from vinoreward.bundles.schema import Quantization
from vinoreward.errors import ConfigError, DatasetError, QuantizationRefusedError
from vinoreward.rewards.classifier import Classifier, log_odds, logit, scores_of, threshold_distance
from vinoreward_training.classifier.evaluation import refuse_useless
from vinoreward_training.configs import QuantizeConfig
from vinoreward_training.data.dataset import (
    Dataset,
    least_episodes,
    load_frames,
    load_labelled,
    size_for,
    split_by_episode,
    split_frames,
)
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.data.seen import LEAST_HELD_OUT, SPLIT
from vinoreward_training.encoder.probe import fit_probe, judge_probe
from vinoreward_training.quantize.gate import (
    MAX_MOVED,
    UNITS,
    Bools,
    Floats,
    GateResult,
    Outputs,
    compare_latents,
    gate,
    gate_latents,
    halves,
)
from vinoreward_training.quantize.network import quantize_onnx
from vinoreward_training.runs.bundles import add_int8, card_of
from vinoreward_training.runs.next_command import after_bundle
from vinoreward_training.runs.report import bullets, own_bundle

if TYPE_CHECKING:
    from vinoreward.backends.network import NetworkSpec
    from vinoreward.bundles.schema import Encoding

BACKENDS = ("openvino", "onnxruntime")
"""All that may run the INT8 network; the gate judges the worst of them."""
METHOD = "nncf-ptq"
MOST_HELD_OUT = 2000
"""Most held-out frames to compare an encoder on."""
PROBE_FRAMES = 4000
CARD_TITLE = "## In INT8"

Images = npt.NDArray[np.uint8]


class _TooFewError(DatasetError):
    """Too few frames to judge INT8 by; the bundle works in FP32."""


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


def _some(indices: Indices, count: int, seed: int, purpose: int) -> Indices:
    return np.sort(np.random.default_rng([seed, purpose]).permutation(indices)[:count])


def _split(
    config: QuantizeConfig, kind: str, parts: tuple[Indices, Indices, Indices]
) -> tuple[Indices, Indices]:
    """Return the frames to calibrate on, and those held out."""
    held_out = np.concatenate(parts[1:])
    if len(held_out) < LEAST_HELD_OUT[kind]:
        raise _TooFewError(
            f"{config.data} leaves {len(held_out)} held-out frames. Expected at least "
            f"{LEAST_HELD_OUT[kind]} to compare decisions or latents on; add images, or go on "
            "in FP32."
        )
    return _some(parts[0], config.calibration, config.seed, 0xCA1), held_out


@contextlib.contextmanager
def _quantized(bundle: Bundle, images: Images, *, exact_bias: bool) -> Iterator[NetworkSpec]:
    """Quantize on prepared images; yield a network whose file is there within the block."""
    network = bundle.network("fp32")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.int8.onnx"
        print(f"NNCF on {len(images)} frames ...", flush=True)
        quantize_onnx(
            network.path, path, images, exact_bias=exact_bias, preprocess=network.preprocess
        )
        yield dataclasses.replace(network, path=path, sha256=None)


def compare(
    config: QuantizeConfig, bundle: Bundle, int8: NetworkSpec, images: Images, episodes: Indices
) -> GateResult:
    """Compare the decisions of an INT8 network on held-out frames with the bundle's FP32 one.

    ``images`` ``(N, H, W, 3)`` are as :meth:`Bundle.prepare` returns them, ``episodes`` ``(N,)``.
    """
    print(f"FP32 on {len(images)} held-out frames ...", flush=True)
    before = log_odds_of(bundle.network("fp32"), BACKENDS[0], images, bundle)
    decided = _decided(bundle, images, before)
    print(f"INT8 on the held-out frames, {' and '.join(BACKENDS)} ...", flush=True)
    return gate(
        before,
        {name: log_odds_of(int8, name, images, bundle) for name in BACKENDS},
        halves(episodes, seed=config.seed),
        logit(bundle.spec.decision.threshold),
        config,
        decided=decided,
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
    cut = bundle.of_cut_images()
    with Classifier(cut, backend=BACKENDS[0], precision="fp32", guarded=False) as classifier:
        for index in near:
            decided[index] = classifier.compute_reward(images[index : index + 1])[0] > 0
    return decided


def _classifier(config: QuantizeConfig, bundle: Bundle, dataset: Dataset) -> str:
    """Quantize a classifier, add the network to the bundle; return the gate's result in words."""
    if bundle.spec.dataset.get("split") != SPLIT and bundle.spec.dataset.get("sha256"):
        print(
            "note: this bundle was trained when data were split otherwise. If it was trained on "
            "these data, some of the frames compared were among those it was trained on."
        )
    calibration, held_out = _split(config, "classifier", split_by_episode(dataset))
    held_out = np.sort(held_out)
    images, episodes = dataset.images, dataset.episodes
    with _quantized(bundle, images[calibration], exact_bias=False) as int8:
        result = compare(config, bundle, int8, images[held_out], episodes[held_out])
        add_int8(
            bundle,
            int8.path,
            Quantization(
                passed=True,
                flips=result.flips.count,
                frames=result.flips.frames,
                method=METHOD,
                max_flip_rate=config.max_flips,
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
            ),
            outputs_of(int8, BACKENDS[0], bundle.golden.images),
            result.band,
        )
    if result.band is None:
        return f"INT8 alone flips {result.flips} of the decisions and needs no second look."
    return (
        f"INT8 alone flips {result.alone} of the decisions on the boundary-rich set.\n"
        f"With FP32 looking again within {result.band:.3g} log-odds of the threshold: "
        f"{result.flips}.\n"
        f"Second looks: {result.looks_boundary:.1%} of the boundary-rich set, "
        f"{result.looks_all:.1%} of all held-out frames."
    )


def _encoder(config: QuantizeConfig, bundle: Bundle, encoding: Encoding) -> str:
    """Quantize an encoder, add the network to the bundle; return the gate's result in words."""
    frames = load_frames(config.data, size=size_for(bundle.spec.image))
    parts = split_frames(frames, seed=int(bundle.spec.dataset.get("split_seed", config.seed)))
    calibration, held_out = _split(config, "encoder", parts)
    held_out = _some(held_out, MOST_HELD_OUT, config.seed, 0x4E1D)
    fitted = _some(parts[0], PROBE_FRAMES, config.seed, 0x9120)
    network = bundle.network("fp32")
    # Prepared in parts: all frames twice in memory would be too much.
    shown = bundle.prepare(frames.images[held_out])
    print(f"FP32 on {len(held_out)} held-out frames ...", flush=True)
    before = outputs_of(network, BACKENDS[0], shown)
    probes = {}
    if frames.places:
        seen = bundle.prepare(frames.images[fitted])
        latents = means(outputs_of(network, BACKENDS[0], seen), encoding)
        probes = {name: fit_probe(latents, value[fitted]) for name, value in frames.places.items()}

    def probe_mm(outputs: Outputs) -> dict[str, float]:
        latents = means(outputs, encoding)
        return {
            name: judge_probe(probe, name, latents, frames.places[name][held_out]).mean_mm
            for name, probe in probes.items()
        }

    fp32_mm, posterior = probe_mm(before), encoding.std is not None
    to_nncf = bundle.prepare(frames.images[calibration])
    with _quantized(bundle, to_nncf, exact_bias=True) as int8:
        print(f"INT8 on the held-out frames, {' and '.join(BACKENDS)} ...", flush=True)
        by_backend = {}
        for name in BACKENDS:
            after = outputs_of(int8, name, shown)
            by_backend[name] = compare_latents(before, after, encoding, probe_mm(after))
        worst = gate_latents(by_backend, fp32_mm, posterior=posterior)
        facts = {
            f"latents that move by more than one {UNITS[posterior]} in any number": (
                f"{worst.beyond} of {worst.frames} held-out frames (at most {MAX_MOVED:.0%} may)"
            ),
            "mean movement": f"{worst.mean_units:.3f} of it",
        }
        probed = {
            f"linear probe, {name}": f"{fp32_mm[name]:.2f} mm in FP32, {error:.2f} mm in INT8"
            for name, error in worst.probe_mm.items()
        }
        # In place of an earlier section on INT8.
        card = (card_of(bundle.path) or "").partition(f"\n{CARD_TITLE}\n")[0].rstrip()
        add_int8(
            bundle,
            int8.path,
            Quantization(
                passed=True,
                flips=worst.beyond,
                frames=worst.frames,
                method=METHOD,
                max_flip_rate=MAX_MOVED,
                detail={
                    "unit": "posterior std" if posterior else "5 % of range",
                    "mean_units": worst.mean_units,
                    "max_units": max(moved.max_units for moved in by_backend.values()),
                    "probe_fp32_mm": fp32_mm,
                    "probe_int8_mm": worst.probe_mm,
                    "by_backend": {name: moved.beyond for name, moved in by_backend.items()},
                    "calibration_frames": len(calibration),
                    "dataset_sha256": frames.sha256,
                },
            ),
            outputs_of(int8, BACKENDS[0], bundle.golden.images),
            card=f"{card}\n\n{CARD_TITLE}\n\n{bullets(facts | probed)}\n",
        )
    text = (
        f"INT8 moves {worst.beyond} of {worst.frames} held-out frames by more than one unit; "
        f"{worst.mean_units:.3f} units on average."
    )
    return "\n".join([text, *(f"{name}: {errors}" for name, errors in probed.items())])


def run(config: QuantizeConfig) -> int:
    """Quantize, gate and save; return 0. The bundle is unchanged if the gate refuses."""
    if (
        not 0 <= config.max_flips < 1
        or not 0 <= config.max_second_looks <= 1
        or config.boundary < 1
        or config.calibration < 1
    ):
        raise ConfigError(
            f"max_flips={config.max_flips}, max_second_looks={config.max_second_looks}, boundary="
            f"{config.boundary}, calibration={config.calibration}. Expected shares below 1 and "
            "positive numbers of frames."
        )
    bundle = own_bundle(config.bundle)
    tested, refused = 0, None
    try:
        if bundle.spec.encoding is not None:
            print(_encoder(config, bundle, bundle.spec.encoding))
        else:
            refuse_useless(str(config.bundle), bundle.spec.metrics, force=config.force)
            dataset = load_labelled(config.data, bundle.spec.image, config.success_label)
            tested = least_episodes(dataset, split_by_episode(dataset)[2])
            print(_classifier(config, bundle, dataset))
    except (QuantizationRefusedError, _TooFewError) as error:
        refused = error  # FP32 works all the same
    line = after_bundle(bundle.path, bundle.spec, config.data, 0, tested, config.success_label)
    print(f"next: {line}")
    if refused is not None:
        raise refused
    return 0
