"""``vinoreward quantize``: an INT8 network that decides, or encodes, as the FP32 one does, or none.

The gates themselves are in :mod:`vinoreward_training.quantize.gate`.
"""

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
from vinoreward.backends.convert import quantize_onnx
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import means
from vinoreward.bundles.locate import find, known_names
from vinoreward.bundles.save import add_int8, card_of
from vinoreward.bundles.schema import Quantization
from vinoreward.errors import ConfigError, DatasetError, QuantizationRefusedError
from vinoreward.rewards.classifier import logit, success_log_odds
from vinoreward_training.classifier.evaluation import refuse_useless
from vinoreward_training.configs import QuantizeConfig
from vinoreward_training.data.dataset import (
    SPLIT,
    load_dataset,
    load_frames,
    split_by_episode,
    split_frames,
)
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.encoder.probe import fit_probe, judge_probe
from vinoreward_training.quantize.gate import (
    MAX_MOVED,
    UNITS,
    Floats,
    GateResult,
    Outputs,
    compare_latents,
    gate,
    gate_latents,
    halves,
)
from vinoreward_training.runs.next_command import to_train
from vinoreward_training.runs.report import bullets

if TYPE_CHECKING:
    from vinoreward.backends.network import NetworkSpec
    from vinoreward.bundles.schema import Encoding

BACKENDS = ("openvino", "onnxruntime")
"""Every backend that may run the INT8 network; the gate holds for the worst of them."""
METHOD = "nncf-ptq"
LOWEST_HELD = {"classifier": 200, "encoder": 50}
"""Held-out frames to compare on, at least."""
HELD_FRAMES = 2000
"""Held-out frames that an encoder is compared on, at most."""
PROBE_FRAMES = 4000
CARD_TITLE = "## In INT8"

Images = npt.NDArray[np.uint8]


def outputs_of(spec: NetworkSpec, backend: str, images: Images, *, batch_size: int = 32) -> Outputs:
    """Return what ``spec`` gives for pictures (N, H, W, 3) on ``backend``; shows its progress."""
    from tqdm import tqdm

    starts = tqdm(range(0, len(images), batch_size), desc=f"compare on {backend}", unit="batch")
    with load_backend(backend, spec) as network:
        parts = [network.infer(images[start : start + batch_size]) for start in starts]
    return np.concatenate(parts).astype(np.float32)


def log_odds_of(spec: NetworkSpec, backend: str, images: Images, bundle: Bundle) -> Floats:
    """Return the calibrated log-odds (N,) of ``spec`` on ``backend``, one picture at a time."""
    # The classifier's own function: the gate must judge what will decide.
    return success_log_odds(outputs_of(spec, backend, images, batch_size=1), bundle.spec)


def _some(indices: Indices, count: int, seed: int, purpose: int) -> Indices:
    return np.sort(np.random.default_rng([seed, purpose]).permutation(indices)[:count])


def _split(
    config: QuantizeConfig, kind: str, parts: tuple[Indices, Indices, Indices]
) -> tuple[Indices, Indices]:
    """Return the frames to calibrate on, and those held out."""
    held = np.concatenate(parts[1:])
    if len(held) < LOWEST_HELD[kind]:
        raise DatasetError(
            f"{config.data} leaves {len(held)} held-out frames. Expected at least "
            f"{LOWEST_HELD[kind]} to compare decisions or latents on; capture more."
        )
    return _some(parts[0], config.calibration, config.seed, 0xCA1), held


@contextlib.contextmanager
def _quantized(bundle: Bundle, images: Images, *, exact_bias: bool) -> Iterator[NetworkSpec]:
    """Quantize on prepared pictures; yield a network whose file is there within the block."""
    network = bundle.network("fp32")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.int8.onnx"
        print(f"NNCF on {len(images)} frames ...", flush=True)
        quantize_onnx(network.path, path, images, exact_bias=exact_bias)
        yield dataclasses.replace(network, path=path, sha256=None)


def compare(
    config: QuantizeConfig, bundle: Bundle, int8: NetworkSpec, images: Images, episodes: Indices
) -> GateResult:
    """Judge an INT8 network by its decisions on held-out frames, against the bundle's FP32 one.

    ``images`` ``(N, H, W, 3)`` are as :meth:`Bundle.prepare` returns them, ``episodes`` ``(N,)``.

    Raises:
        QuantizationRefusedError: above a limit, or the frames cannot show it.
    """
    print(f"FP32 on {len(images)} held-out frames ...", flush=True)
    before = log_odds_of(bundle.network("fp32"), BACKENDS[0], images, bundle)
    print(f"INT8 on the held-out frames, {' and '.join(BACKENDS)} ...", flush=True)
    return gate(
        before,
        {name: log_odds_of(int8, name, images, bundle) for name in BACKENDS},
        halves(episodes, seed=config.seed),
        logit(bundle.spec.decision.threshold),
        config,
    )


def _classifier(config: QuantizeConfig, bundle: Bundle) -> str:
    """Quantize a classifier, put the network into the bundle; return what the gate found."""
    picture = bundle.spec.picture
    size = None if picture.resize == "none" else (picture.height, picture.width)
    dataset = load_dataset(config.data, size=size, success_label=config.success_label)
    if bundle.spec.dataset.get("split") != SPLIT and bundle.spec.dataset.get("sha256"):
        print(
            "note: this bundle was trained when data were split otherwise. If it was trained on "
            "these data, some of the frames compared were among those it was trained on."
        )
    calibration, held = _split(config, "classifier", split_by_episode(dataset))
    held = np.sort(held)
    images = bundle.prepare(dataset.images)
    with _quantized(bundle, images[calibration], exact_bias=False) as int8:
        found = compare(config, bundle, int8, images[held], dataset.episodes[held])
        add_int8(
            bundle,
            int8.path,
            Quantization(
                passed=True,
                flips=found.flips.count,
                frames=found.flips.frames,
                method=METHOD,
                max_flip_rate=config.max_flips,
                detail={
                    "flip_rate_upper": found.flips.high,
                    "flips_without_second_look": found.alone.count,
                    "flip_rate_without_second_look": found.alone.share,
                    "second_looks_boundary_rich": found.looks_boundary,
                    "second_looks_held_out": found.looks_all,
                    "by_backend": {name: one.count for name, one in found.by_backend.items()},
                    "calibration_frames": len(calibration),
                    "dataset_sha256": dataset.sha256,
                },
            ),
            outputs_of(int8, BACKENDS[0], bundle.golden.images),
            found.band,
        )
    if found.band is None:
        return f"INT8 alone flips {found.flips} of the decisions and needs no second look."
    return (
        f"INT8 alone flips {found.alone} of the decisions on the boundary-rich set.\n"
        f"With FP32 looking again within {found.band:.3g} log-odds of the threshold: "
        f"{found.flips}.\n"
        f"Second looks: {found.looks_boundary:.1%} of the boundary-rich set, "
        f"{found.looks_all:.1%} of all held-out frames."
    )


def _encoder(config: QuantizeConfig, bundle: Bundle, encoding: Encoding) -> str:
    """Quantize an encoder, put the network into the bundle; return what the gate found."""
    picture = bundle.spec.picture
    resized = picture.resize != "none" and picture.crop is None
    frames = load_frames(config.data, size=(picture.height, picture.width) if resized else None)
    parts = split_frames(frames, seed=int(bundle.spec.dataset.get("split_seed", config.seed)))
    calibration, held = _split(config, "encoder", parts)
    held = _some(held, HELD_FRAMES, config.seed, 0x4E1D)
    fitted = _some(parts[0], PROBE_FRAMES, config.seed, 0x9120)
    network = bundle.network("fp32")
    # Prepared in parts: all frames twice in memory would be too much.
    shown = bundle.prepare(frames.images[held])
    print(f"FP32 on {len(held)} held-out frames ...", flush=True)
    before = outputs_of(network, BACKENDS[0], shown)
    probes = {}
    if frames.places:
        seen = bundle.prepare(frames.images[fitted])
        latents = means(outputs_of(network, BACKENDS[0], seen), encoding)
        probes = {name: fit_probe(latents, value[fitted]) for name, value in frames.places.items()}

    def probe_mm(outputs: Outputs) -> dict[str, float]:
        latents = means(outputs, encoding)
        return {
            name: judge_probe(probe, name, latents, frames.places[name][held]).mean_mm
            for name, probe in probes.items()
        }

    fp32_mm, posterior = probe_mm(before), encoding.std is not None
    to_nncf = bundle.prepare(frames.images[calibration])
    with _quantized(bundle, to_nncf, exact_bias=True) as int8:
        print(f"INT8 on the held-out frames, {' and '.join(BACKENDS)} ...", flush=True)
        found = {}
        for name in BACKENDS:
            after = outputs_of(int8, name, shown)
            found[name] = compare_latents(before, after, encoding, probe_mm(after))
        worst = gate_latents(found, fp32_mm, posterior=posterior)
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
                    "max_units": max(moved.max_units for moved in found.values()),
                    "probe_fp32_mm": fp32_mm,
                    "probe_int8_mm": worst.probe_mm,
                    "by_backend": {name: moved.beyond for name, moved in found.items()},
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
    """Quantize, gate and save; return 0. The bundle is unchanged if the gate refuses.

    Raises:
        ConfigError: settings that cannot work, or the name of an installed bundle.
        ModelNotFoundError: no such bundle.
        DatasetError: the data cannot be used.
        QuantizationRefusedError: the gate refuses.
        UselessClassifierError: its training called the classifier useless; not with ``force``.
    """
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
    if not config.bundle.exists() and str(config.bundle) in known_names():
        installed = find(str(config.bundle))
        raise ConfigError(
            f"{config.bundle} is an installed bundle, which is only read. Expected a folder of "
            f"your own to put the INT8 network into; copy it, cp -r {installed} my-bundle, "
            "and give the copy with --bundle."
        )
    bundle = Bundle.load(config.bundle)
    try:
        if bundle.spec.encoding is not None:
            print(_encoder(config, bundle, bundle.spec.encoding))
        else:
            refuse_useless(str(config.bundle), bundle.spec.metrics, force=config.force)
            print(_classifier(config, bundle))
    except QuantizationRefusedError:
        print(f"next: {to_train(bundle.path, bundle.spec)}")  # in FP32, which works all the same
        raise
    print(f"next: {to_train(bundle.path, bundle.spec)}")
    return 0
