"""A trained encoder becomes a bundle with a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from vinoreward.backends.convert import write_onnx
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.bundles.schema import BundleSpec, Encoding
from vinoreward.files import atomic_path
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.data.dataset import Frames
from vinoreward_training.data.dataset_files import Indices, read_about
from vinoreward_training.encoder.networks import ARCHITECTURE, Vae
from vinoreward_training.encoder.probe import ProbeError, bounds, mean_std, probe_places
from vinoreward_training.encoder.training import SIGMA, decode, encode
from vinoreward_training.runs.fit import export_checked, subsample, weights_of
from vinoreward_training.runs.report import Section, new_figure, publish, save_figure
from vinoreward_training.tasks.recorded import recorded_task

MEAN = STD = (0.5, 0.5, 0.5)
"""Of images from 0 to 1: the encoder sees -1 to 1."""
GOLDEN_FRAMES = 8
SHOWN_FRAMES = 12
TRAVERSED = 10
"""Latent numbers in the image of traversals: those that vary most."""
PROBE_FRAMES = 40_000
PROBE_LIMIT_MM = 5.0
"""Largest mean error with which a policy solves our hover task."""

Floats = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Measured:
    """What held-out frames say about an encoder."""

    mean: Floats
    """(N, D) of all encoded frames."""
    encoding: Encoding
    errors: list[ProbeError]
    """Of the linear probe; empty if no places are known."""
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
    return _Measured(
        mean=mean,
        encoding=Encoding(
            low=tuple(map(float, low)), high=tuple(map(float, high)), std=tuple(map(float, std))
        ),
        errors=probe_places(
            mean,
            {name: places[which] for name, places in frames.places.items()},
            rows[: len(fitted)],
            rows[len(fitted) :],
        ),
        test={
            "frames": len(test),
            "episodes": len(np.unique(frames.episodes[test])),
            "root_mean_square_error": float(np.sqrt((off**2).mean())),
            "kl": float(divergences.sum(1).mean()),
            "active": int((divergences.mean(0) > 0.05).sum()),
        },
    )


def _draw(folder: Path, vae: Vae, originals: Images, means: Floats) -> list[Path]:
    """Write ``reconstructions.png`` and ``traversals.png``; return their paths."""
    folder.mkdir(exist_ok=True)
    latents = encode(vae.encoder, originals)[0]
    made = decode(vae.decoder, latents)
    difference = np.abs(originals.astype(np.int16) - made).clip(0, 127) * 2
    half = -(-len(originals) // 2)
    reconstructions = [
        row[part]
        for part in (slice(0, half), slice(-half, None))
        for row in (originals, made, 255 - difference.astype(np.uint8))
    ]
    # From the first frame, one number at a time between its 2nd and 98th percentile.
    low, high = np.quantile(means, [0.02, 0.98], axis=0)
    traversals = []
    for number in np.argsort(-means.var(0))[:TRAVERSED]:
        moved = np.repeat(latents[:1], 9, axis=0)
        moved[:, number] = np.linspace(low[number], high[number], 9)
        traversals.append(decode(vae.decoder, moved))
    return [
        _save_tiled(folder / "reconstructions.png", reconstructions),
        _save_tiled(folder / "traversals.png", traversals),
    ]


def _save_tiled(path: Path, rows: Sequence[Images], *, gap: int = 2, least: int = 900) -> Path:
    """Write rows of images (N, H, W, 3) as one PNG, at least so wide, white between them."""
    from PIL import Image

    edge = ((0, 0), (0, gap), (0, gap), (0, 0))
    padded = [np.concatenate([*np.pad(row, edge, constant_values=255)], axis=1) for row in rows]
    image = Image.fromarray(np.concatenate(padded, axis=0))
    factor = max(1, round(least / image.width))
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    with atomic_path(path) as part:
        image.save(part)
    return path


def _draw_losses(path: Path, history: Sequence[Mapping[str, float]]) -> Path:
    """Write the parts of the loss, and the numbers in use, by step."""
    figure = new_figure(10.0, 3.4)
    steps = [record["step"] for record in history]
    for axes, name, scale in zip(
        figure.subplots(1, 3), ("reconstruction", "kl", "active"), ("log", "linear", "linear"),
        strict=True,
    ):  # fmt: skip
        for part, color in (("train", "#9fb8cc"), ("val", "#0068b5")):
            key = f"{part}_{name}"
            if key in history[0]:
                axes.plot(steps, [record[key] for record in history], color=color, label=part)
        title = "latent numbers in use" if name == "active" else f"{name}, nats per frame"
        axes.set(xlabel="step", yscale=scale, title=title)
        axes.grid(alpha=0.3)
        axes.legend()
    return save_figure(figure, path)


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
    # Latents (N, D) float32 to images (N, 3, H, W) from 0 to 1.
    decoder, latent = vae.decoder.to(memory_format=torch.contiguous_format), config.latent
    write_onnx(decoder, torch.zeros(2, latent), folder / "decoder.onnx", "latent", "images")
    shown = subsample(frames.images, test, SHOWN_FRAMES)
    drawn = [
        *_draw(folder / "images", vae, shown, measured.mean),
        _draw_losses(folder / "images" / "losses.png", history),
    ]
    height, width = frames.images.shape[1:3]
    spec = BundleSpec(
        name=config.name,
        kind="encoder",
        labels=(),
        latent_size=config.latent,
        image=frames.image(mean=MEAN, std=STD),
        encoding=measured.encoding,
        architecture=ARCHITECTURE,
        metrics={
            "held_out": figures,
            "probe": {error.name: asdict(error) for error in measured.errors},
            "export_difference": difference,
            "history": list(history),
        },
        dataset={
            "sha256": frames.sha256,
            "counts": frames.counts,
            "seed": frames.seed,
            **recorded_task(
                {"env": config.env} if config.data is None else read_about(config.data)
            ),
            "split_seed": config.seed,
        },
    )
    labels = "; no labels"
    if config.places > 0:
        labels = (
            f" + {config.places:g} * squared error in mm of recorded places, read linearly: "
            "trained with these labels"
        )
    probed: list[dict[str, object]] = [
        {
            "place of": error.name,
            "mean error, mm": f"{error.mean_mm:.2f}",
            "95 % below, mm": f"{error.p95_mm:.2f}",
            "R2": f"{error.r2:.4f}",
            "knowing nothing, mm": f"{error.chance_mm:.0f}",
            "held-out frames": error.frames,
        }
        for error in measured.errors
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
                    "steps": f"{config.steps} of {config.batch_size} frames",
                    "loss": f"sum of squares / (2 * {SIGMA:g}^2) + {config.beta:g} * KL" + labels,
                    "pixel weights": f"rare colours up to {config.rare:g}, foreground + "
                    f"{config.foreground:g}",
                    "exported network's largest difference from torch": f"{difference:.2g}",
                },
            ),
            Section(
                "What the numbers know",
                "A linear map from the latent to places on the table, fitted on training frames "
                "and tested on frames of other episodes. Frames without the thing are left out."
                if measured.errors
                else "Where things are was not recorded with these images, so nothing is known "
                "about how well this encoder serves control; only how well images are made from "
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
                "`reconstructions.png`: held-out frames, what the decoder makes of their latent, "
                "and the difference. `traversals.png`: one row per latent number, moved from its "
                "lowest to its highest usual value.",
                images=drawn,
            ),
            Section(
                "Limits",
                "It knows the images it was trained on: another camera, size, light or object "
                "needs new frames and a new training. The decoder is for looking; nothing at run "
                "time needs it.",
            ),
        ],
        spec,
        {
            "model.onnx": folder / "model.onnx",
            "model.safetensors": weights_of(vae.encoder),
            "decoder.onnx": folder / "decoder.onnx",
            "decoder.safetensors": weights_of(vae.decoder),
        },
        (golden, np.concatenate(encode(vae.encoder, golden), axis=1)),
    )
    for error in measured.errors:
        verdict = "" if error.mean_mm <= PROBE_LIMIT_MM else f", above {PROBE_LIMIT_MM:g} mm"
        print(
            f"linear probe, {error.name}: mean error {error.mean_mm:.2f} mm, 95 % below "
            f"{error.p95_mm:.2f} mm, R2 {error.r2:.4f}, {error.frames} held-out frames{verdict}"
        )
