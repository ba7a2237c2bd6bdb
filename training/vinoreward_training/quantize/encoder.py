"""INT8 for encoders: latent vectors that stay where they were, and say as well where things are."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from vinoreward.backends.base import load_backend
from vinoreward.backends.convert import quantize_onnx
from vinoreward.bundles.golden import means, moved, unit
from vinoreward.bundles.save import add_int8, card_of
from vinoreward.bundles.schema import Quantization
from vinoreward.errors import ConfigError, DatasetError, QuantizationRefusedError
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.data.frames import Frames, load_frames, split_frames
from vinoreward_training.encoder.card import with_int8
from vinoreward_training.encoder.probe import fit_places, judge_places
from vinoreward_training.runs.next_command import to_train

if TYPE_CHECKING:
    from vinoreward.backends.network import NetworkSpec
    from vinoreward.bundles.bundle import Bundle
    from vinoreward.bundles.schema import Encoding

BACKENDS = ("openvino", "onnxruntime")
"""Every backend that may run the INT8 network; the gate holds for the worst of them."""
METHOD = "nncf-ptq"
MAX_MOVED = 0.05
"""Largest share of held-out frames whose latent may move by more than one unit."""
MORE_MM, MORE_SHARE = 0.5, 0.1
"""What the probe's mean error may grow by: millimetres, or a share of it if that is more."""
LOWEST_HELD = 50
HELD_FRAMES = 2000
PROBE_FRAMES = 4000
BATCH = 32

Floats = npt.NDArray[np.float32]


class Settings(Protocol):
    """What is needed of ``vinoreward quantize``'s configuration."""

    @property
    def data(self) -> Path:
        """Pictures of where the encoder will be used."""

    @property
    def calibration(self) -> int:
        """Training frames on which NNCF sees the range of activations."""

    @property
    def seed(self) -> int:
        """Decides which frames are taken at random."""


@dataclass(frozen=True)
class Moved:
    """How far a backend's INT8 latents are from the FP32 ones, over frames.

    Attributes:
        frames: compared.
        beyond: those that moved by more than one unit in any dimension.
        mean_units: mean absolute difference over frames and dimensions, in units.
        max_units: the largest one.
        probe_mm: name to mean error of the probe on the INT8 latents; empty where unknown.
    """

    frames: int
    beyond: int
    mean_units: float
    max_units: float
    probe_mm: dict[str, float]

    @property
    def share(self) -> float:
        """Share of frames that moved."""
        return self.beyond / self.frames


def compare(
    before: Floats, after: Floats, encoding: Encoding, probe_mm: Mapping[str, float]
) -> Moved:
    """Compare outputs of the FP32 network with those of the INT8 one, (N, D) or (N, 2 D) each."""

    units = unit(encoding, means(before, encoding))
    difference = np.abs(means(after, encoding).astype(np.float64) - means(before, encoding)) / units
    return Moved(
        frames=len(before),
        beyond=int((moved(after, before, encoding, before) > 1.0).sum()),
        mean_units=float(difference.mean()),
        max_units=float(difference.max()),
        probe_mm=dict(probe_mm),
    )


def judge(found: Mapping[str, Moved], fp32_mm: Mapping[str, float], *, posterior: bool) -> Moved:
    """Return the worst backend's comparison.

    Args:
        found: by backend.
        fp32_mm: name to mean error of the probe on the FP32 latents; empty where unknown.
        posterior: whether the unit is the posterior's standard deviation; for the message.

    Raises:
        QuantizationRefusedError: too many frames moved, or the probe got worse.
    """
    unit = "posterior standard deviation" if posterior else "twentieth of its range"
    for backend, one in found.items():
        if one.share > MAX_MOVED:
            raise QuantizationRefusedError(
                f"INT8 moves the latent of {one.beyond} of {one.frames} held-out frames "
                f"({one.share:.1%}) by more than one {unit} on {backend}, {one.mean_units:.2f} "
                f"of it on average. Expected at most {MAX_MOVED:.0%} of the frames; the bundle is "
                "unchanged and stays FP32. Train with a higher --beta, which makes the posterior "
                "broader, or give more --calibration frames."
            )
        for name, error in one.probe_mm.items():
            limit = fp32_mm[name] + max(MORE_MM, MORE_SHARE * fp32_mm[name])
            if error > limit:
                raise QuantizationRefusedError(
                    f"a linear probe reads the place of the {name} {error:.2f} mm off from INT8 "
                    f"latents on {backend}, and {fp32_mm[name]:.2f} mm off from FP32 ones. Expected"
                    f" at most {limit:.2f} mm; the bundle is unchanged and stays FP32. Train "
                    "longer, or give more --calibration frames."
                )
    return max(found.values(), key=lambda one: (one.share, one.mean_units))


def outputs_of(spec: NetworkSpec, backend: str, images: npt.NDArray[np.uint8]) -> Floats:
    """Return what ``spec`` gives for pictures (N, H, W, 3) on ``backend``."""

    with load_backend(backend, spec) as network:
        parts = [
            network.infer(images[start : start + BATCH]) for start in range(0, len(images), BATCH)
        ]
    return np.concatenate(parts).astype(np.float32)


def _facts(worst: Moved, fp32_mm: Mapping[str, float], *, posterior: bool) -> dict[str, str]:
    """Return for the model card what the gate measured."""
    unit = "posterior standard deviation" if posterior else "twentieth of its range"
    facts = {
        f"latents that move by more than one {unit} in any number": f"{worst.beyond} of "
        f"{worst.frames} held-out frames (at most {MAX_MOVED:.0%} may)",
        "mean movement": f"{worst.mean_units:.3f} of it",
    }
    for name, error in worst.probe_mm.items():
        facts[f"linear probe, {name}"] = f"{fp32_mm[name]:.2f} mm in FP32, {error:.2f} mm in INT8"
    return facts


def _some(indices: Indices, count: int, seed: int, purpose: int) -> Indices:
    chosen = np.random.default_rng([seed, purpose]).permutation(indices)[:count]
    return np.sort(chosen)


def _split(config: Settings, bundle: Bundle) -> tuple[Frames, Indices, Indices, Indices]:
    """Return the frames, and the indices for calibration, the probe and the comparison."""
    picture = bundle.spec.picture
    size = None if picture.resize == "none" else (picture.height, picture.width)
    frames = load_frames(config.data, size=size if picture.crop is None else None)
    split_seed = bundle.spec.dataset.get("split_seed", config.seed)
    train, validation, test = split_frames(frames, seed=int(split_seed))
    held = _some(np.concatenate([validation, test]), HELD_FRAMES, config.seed, 0x4E1D)
    if len(held) < LOWEST_HELD:
        raise DatasetError(
            f"{config.data} leaves {len(held)} held-out frames. Expected at least {LOWEST_HELD} to "
            "compare latents on; capture more."
        )
    return (
        frames,
        _some(train, config.calibration, config.seed, 0xCA1),
        _some(train, PROBE_FRAMES, config.seed, 0x9120),
        held,
    )


def run_encoder(config: Settings, bundle: Bundle) -> int:
    """Quantize, gate and save; return 0. The bundle is unchanged if the gate refuses.

    Raises:
        ConfigError: no frames to calibrate on, or the bundle is not of an encoder.
        DatasetError: the data cannot be used.
        QuantizationRefusedError: the gate refuses.
    """

    encoding = bundle.spec.encoding
    if encoding is None or config.calibration < 1:
        raise ConfigError(
            f"calibration={config.calibration} and the bundle is of kind {bundle.spec.kind}. "
            "Expected a positive number of frames and the bundle of an encoder."
        )
    frames, calibration, fitted, held = _split(config, bundle)
    network = bundle.network("fp32")
    # Prepared in parts: all frames twice in memory would be too much.
    seen = {name: bundle.prepare(frames.images[which])
            for name, which in (("fitted", fitted), ("held", held))}  # fmt: skip
    print(f"FP32 on {len(held)} held-out frames ...", flush=True)
    before = outputs_of(network, BACKENDS[0], seen["held"])
    probes = {}
    if frames.places:
        latents = means(outputs_of(network, BACKENDS[0], seen["fitted"]), encoding)
        places = {name: value[fitted] for name, value in frames.places.items()}
        probes = fit_places(latents, places, np.arange(len(fitted)))

    def probe_mm(outputs: Floats) -> dict[str, float]:
        return {
            name: judge_places(
                probe,
                name,
                means(outputs, encoding),
                frames.places[name][held],
                np.arange(len(held)),
                count,
            ).mean_mm
            for name, (probe, count) in probes.items()
        }

    fp32_mm = probe_mm(before)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.int8.onnx"
        print(f"NNCF on {len(calibration)} frames ...", flush=True)
        seen_by_nncf = bundle.prepare(frames.images[calibration])
        quantize_onnx(network.path, path, seen_by_nncf, exact_bias=True)
        int8 = dataclasses.replace(network, path=path, sha256=None)
        print(f"INT8 on the held-out frames, {' and '.join(BACKENDS)} ...", flush=True)
        found = {}
        for name in BACKENDS:
            after = outputs_of(int8, name, seen["held"])
            found[name] = compare(before, after, encoding, probe_mm(after))
        worst = judge(found, fp32_mm, posterior=encoding.std is not None)
        add_int8(
            bundle,
            path,
            Quantization(
                passed=True,
                flips=worst.beyond,
                frames=worst.frames,
                method=METHOD,
                max_flip_rate=MAX_MOVED,
                detail={
                    "unit": "posterior std" if encoding.std is not None else "5 % of range",
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
            card=with_int8(
                card_of(bundle.path) or "",
                _facts(worst, fp32_mm, posterior=encoding.std is not None),
            ),
        )
    print(
        f"INT8 moves {worst.beyond} of {worst.frames} held-out frames by more than one unit; "
        f"{worst.mean_units:.3f} units on average."
    )
    for name, error in worst.probe_mm.items():
        print(f"linear probe, {name}: {fp32_mm[name]:.2f} mm in FP32, {error:.2f} mm in INT8")
    print(f"next: {to_train(bundle.path, bundle.spec)}")
    return 0
