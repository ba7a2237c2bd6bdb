"""Adds an INT8 network to an encoder's bundle, if its latents agree with those of FP32."""

from __future__ import annotations

from collections.abc import Sequence

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import means
from vinoreward.bundles.schema import Quantization
from vinoreward_training.configs import Int8
from vinoreward_training.data.dataset import Frames
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.encoder.probe import fit_probe, probe_error
from vinoreward_training.quantize.gate import (
    MAX_MOVED,
    UNITS,
    Outputs,
    compare_latents,
    gate_latents,
)
from vinoreward_training.quantize.int8 import (
    BACKENDS,
    METHOD,
    outputs_of,
    quantized,
    some_of,
    split_for,
    unless_refused,
)
from vinoreward_training.runs.bundles import add_int8, card_of
from vinoreward_training.runs.report import bullets

MAX_HELD_OUT = 2000
"""Most held-out frames to compare on."""
PROBE_FRAMES = 4000
CARD_TITLE = "## In INT8"


def encoder_int8(bundle: Bundle, frames: Frames, parts: Sequence[Indices], mode: Int8) -> str:
    """Add INT8 to a saved encoder, compared on held-out frames; return the result in words.

    ``parts`` are the indices of (train, validation, test). Errors are those of
    :func:`~vinoreward_training.quantize.int8.classifier_int8`.
    """
    return unless_refused(mode, lambda: _encoder(bundle, frames, parts, mode))


def _encoder(bundle: Bundle, frames: Frames, parts: Sequence[Indices], mode: Int8) -> str:
    encoding = bundle.spec.encoding
    assert encoding is not None  # noqa: S101 - for the type checker
    calibration, held_out = split_for("encoder", parts)
    held_out = some_of(held_out, MAX_HELD_OUT, 0x4E1D)
    fitted = some_of(parts[0], PROBE_FRAMES, 0x9120)
    network = bundle.network("fp32")
    # Prepared in parts: all frames twice in memory would be too much.
    shown = bundle.prepare(frames.images[held_out])
    before = outputs_of(network, BACKENDS[0], shown)
    probes = {}
    if frames.places:
        latents = means(
            outputs_of(network, BACKENDS[0], bundle.prepare(frames.images[fitted])), encoding
        )
        probes = {name: fit_probe(latents, value[fitted]) for name, value in frames.places.items()}

    def probe_mm(outputs: Outputs) -> dict[str, float]:
        latents = means(outputs, encoding)
        return {
            name: probe_error(probe, name, latents, frames.places[name][held_out]).mean_mm
            for name, probe in probes.items()
        }

    fp32_mm, posterior = probe_mm(before), encoding.std is not None
    with quantized(bundle, bundle.prepare(frames.images[calibration]), mode) as (int8, _):
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
        } | {
            f"linear probe, {name}": f"{fp32_mm[name]:.2f} mm in FP32, {error:.2f} mm in INT8"
            for name, error in worst.probe_mm.items()
        }
        gated = Quantization(
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
        )
        # In place of an earlier section on INT8.
        card = (card_of(bundle.path) or "").partition(f"\n{CARD_TITLE}\n")[0].rstrip()
        card = f"{card}\n\n{CARD_TITLE}\n\n{bullets(facts)}\n"
        golden = outputs_of(int8, BACKENDS[0], bundle.golden.images)
        add_int8(bundle, int8.path, gated, golden, card=card)
    return "; ".join(f"{name}: {value}" for name, value in facts.items())
