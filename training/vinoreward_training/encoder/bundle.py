"""A trained encoder becomes a bundle with a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.bundles.schema import BundleSpec, Encoding
from vinoreward.files import atomic_path
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.data.dataset import Frames
from vinoreward_training.data.dataset_files import Indices, read_about
from vinoreward_training.encoder.networks import ARCHITECTURE, Vae
from vinoreward_training.encoder.probe import ProbeError, bounds, mean_std, probe_places
from vinoreward_training.encoder.training import (
    BATCH_SIZE,
    FOREGROUND,
    PLACES,
    RARE,
    SIGMA,
    decode,
    encode,
)
from vinoreward_training.runs.fit import export_checked, subsample, weights_of
from vinoreward_training.runs.next_command import bundle_name
from vinoreward_training.runs.report import Section, publish
from vinoreward_training.tasks.recorded import recorded_task

MEAN = STD = (0.5, 0.5, 0.5)
"""Of images from 0 to 1: the encoder sees -1 to 1."""
GOLDEN_FRAMES = 8
SHOWN_FRAMES = 8
GAP = 2
"""White pixels between two images."""
PROBE_FRAMES = 40_000
PROBE_LIMIT_MM = 5.0
"""Largest mean error with which a policy solves our hover task."""

Floats = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Measured:
    """What held-out frames say about an encoder."""

    encoding: Encoding
    errors: dict[str, ProbeError]
    """Of the linear probe, by name of the thing; empty if no places are known."""
    test: dict[str, Any]
    """Figures for the card and the spec."""


def _measure(vae: Vae, frames: Frames, train: Indices, test: Indices) -> _Measured:
    """Encode frames, fit the probe on training ones and test it on the test part."""
    fitted = train[:: max(1, -(-len(train) // PROBE_FRAMES))]
    which = np.concatenate([fitted, test])
    mean, log_variance = encode(vae.encoder, frames.images[which])
    test_mean, test_log_variance = mean[len(fitted) :], log_variance[len(fitted) :]
    std = mean_std(test_log_variance)
    low, high = bounds(mean, std)
    divergences = 0.5 * (
        test_mean.astype(np.float64) ** 2
        + np.exp(test_log_variance.astype(np.float64))
        - 1.0
        - test_log_variance
    )
    every = max(1, len(test) // 1000)
    off = decode(vae.decoder, test_mean[::every]).astype(np.float64) - frames.images[test[::every]]
    rows = np.arange(len(which))
    places = {name: places[which] for name, places in frames.places.items()}
    return _Measured(
        encoding=Encoding(
            low=tuple(map(float, low)), high=tuple(map(float, high)), std=tuple(map(float, std))
        ),
        errors=probe_places(mean, places, rows[: len(fitted)], rows[len(fitted) :]),
        test={
            "frames": len(test),
            "episodes": len(np.unique(frames.episodes[test])),
            "root_mean_square_error": float(np.sqrt((off**2).mean())),
            "kl": float(divergences.sum(1).mean()),
            "active": int((divergences.mean(0) > 0.05).sum()),
        },
    )


def _draw(path: Path, vae: Vae, originals: Images) -> Path:
    """Write a PNG of images, what the decoder makes of their latent, and the difference."""
    from PIL import Image

    path.parent.mkdir(exist_ok=True)
    decoded = decode(vae.decoder, encode(vae.encoder, originals)[0])
    difference = 2 * np.abs(originals.astype(np.int16) - decoded).clip(0, 127)
    rows = (originals, decoded, 255 - difference.astype(np.uint8))
    edge = ((0, 0), (0, GAP), (0, GAP), (0, 0))
    padded = [np.concatenate([*np.pad(row, edge, constant_values=255)], axis=1) for row in rows]
    with atomic_path(path) as part:
        Image.fromarray(np.concatenate(padded, axis=0)).save(part, format="PNG")
    return path


def export_encoder(encoder: nn.Module, path: Path, images: Images) -> float:
    """Write an encoder, normalised images to (N, 2 D), as ONNX that takes uint8 images.

    Both runtimes are compared with torch on ``images`` (N, H, W, 3); return the largest difference.
    """
    expected = np.concatenate(encode(encoder, images), axis=1)
    whole = WithPreprocess(encoder.to(memory_format=torch.contiguous_format), MEAN, STD).eval()
    return export_checked(whole, path, images, expected)


def make_bundle(
    config: TrainVaeConfig,
    frames: Frames,
    parts: Sequence[Indices],
    folder: Path,
    vae: Vae,
    history: Sequence[dict[str, float]],
) -> None:
    """Measure, export and write bundle and report."""
    train, _, test = parts
    measured = _measure(vae, frames, train, test)
    figures = measured.test
    golden = subsample(frames.images, test, GOLDEN_FRAMES)
    compared = subsample(frames.images, test, 64)
    difference = export_encoder(vae.encoder, folder / "model.onnx", compared)
    shown = subsample(frames.images, test, SHOWN_FRAMES)
    drawn = _draw(folder / "images" / "reconstructions.png", vae, shown)
    height, width = frames.images.shape[1:3]
    spec = BundleSpec(
        name=bundle_name(config.data, "encoder"),
        kind="encoder",
        labels=(),
        latent_size=config.latent,
        image=frames.image(mean=MEAN, std=STD),
        encoding=measured.encoding,
        architecture=ARCHITECTURE,
        metrics={
            "held_out": figures,
            "probe": {name: asdict(error) for name, error in measured.errors.items()},
            "export_difference": difference,
            "history": list(history),
        },
        dataset={
            "sha256": frames.sha256,
            "counts": frames.counts,
            "seed": frames.seed,
            **recorded_task(read_about(config.data)),
            "split_seed": config.seed,
        },
    )
    labels = "; no labels"
    if frames.places:
        labels = (
            f" + {PLACES:g} * squared error in mm of recorded places, read linearly: trained with "
            "these labels"
        )
    probed: list[dict[str, object]] = [
        {
            "place of": name,
            "mean error, mm": f"{error.mean_mm:.2f}",
            "95 % below, mm": f"{error.p95_mm:.2f}",
            "R2": f"{error.r2:.4f}",
            "held-out frames": error.frames,
        }
        for name, error in measured.errors.items()
    ]
    publish(
        folder,
        "State encoder",
        "A state encoder: one camera image in, a few numbers out that a policy can act on. Made "
        "by `vinoreward train-vae`; use it with `vinoreward.EncodedObservation(env, path)`.",
        [
            Section(
                "What it is",
                facts={
                    "network": f"{ARCHITECTURE}, {height}x{width} pixels to "
                    f"{config.latent} numbers (mean and log variance of each), FP32",
                    "trained on": f"{len(train)} frames, dataset {frames.sha256[:12]}, seed "
                    f"{config.seed}",
                    "steps": f"{config.steps} of {BATCH_SIZE} frames",
                    "loss": f"sum of squares / (2 * {SIGMA:g}^2) + {config.beta:g} * KL" + labels,
                    "pixel weights": f"rare colours up to {RARE:g}, foreground + {FOREGROUND:g}",
                    "exported network's largest difference from torch": f"{difference:.2g}",
                },
            ),
            Section(
                "What the numbers know",
                "A linear map from the latent to places on the table, fitted on training frames "
                "and tested on frames of other episodes. Frames without the thing are left out."
                if measured.errors
                else "Where things are was not recorded with these images, so nothing is known "
                "about how well this encoder serves control; only how well images are decoded from "
                "it.",
                probed,
            ),
            Section(
                "On held-out frames",
                facts={
                    "frames": f"{figures['frames']} of {figures['episodes']} episodes",
                    "reconstruction error": f"{figures['root_mean_square_error']:.2f} grey levels "
                    "(root mean square over all pixels)",
                    "KL divergence": f"{figures['kl']:.1f} nats",
                    "numbers in use": f"{figures['active']} of {config.latent}",
                },
            ),
            Section(
                "Images",
                "Held-out frames, what the decoder makes of their latent, and the difference.",
                images=[drawn],
            ),
            Section(
                "Limits",
                "It knows the images it was trained on: another camera, size, light or object "
                "needs new frames and a new training.",
            ),
        ],
        spec,
        {
            "model.onnx": folder / "model.onnx",
            "model.safetensors": weights_of(vae.encoder),
        },
        (golden, np.concatenate(encode(vae.encoder, golden), axis=1)),
    )
    for name, error in measured.errors.items():
        verdict = "" if error.mean_mm <= PROBE_LIMIT_MM else f", above {PROBE_LIMIT_MM:g} mm"
        print(
            f"linear probe, {name}: mean error {error.mean_mm:.2f} mm, 95 % below "
            f"{error.p95_mm:.2f} mm, R2 {error.r2:.4f}, {error.frames} held-out frames{verdict}"
        )
