"""What follows an encoder's training: probe, export, model card, bundle, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.schema import BundleSpec, Encoding, Picture
from vinoreward.files import atomic_path
from vinoreward_training.data.dataset_files import Indices, read_about
from vinoreward_training.data.frames import Frames
from vinoreward_training.encoder.probe import ProbeError, probe_places
from vinoreward_training.runs.curves import new_figure, save_figure
from vinoreward_training.runs.next_command import origin
from vinoreward_training.runs.publish import publish, versions
from vinoreward_training.runs.report import Section, bullets

if TYPE_CHECKING:
    from torch import nn

    from vinoreward.encoders.vae import Vae
    from vinoreward_training.configs import TrainVaeConfig

GOLDEN_FRAMES = 8
SHOWN_FRAMES = 12
TRAVERSED = 10
"""Latent numbers shown in the traversals, those that vary most."""
PROBE_FRAMES = 40_000
PROBE_LIMIT_MM = 5.0
"""Mean error of a place that serves a policy on our hover task."""

NO_PLACES = (
    "Where things are was not recorded with these pictures, so nothing is known about how well "
    "this encoder serves control; only how well pictures are made from it."
)


PROBED = (
    "A linear map from the latent to places on the table, fitted on training frames and judged on "
    "frames of other episodes. Frames without the thing are left out."
)
PICTURES = (
    "`reconstructions.png`: held-out frames, what the decoder makes of their latent, and the "
    "difference. `traversals.png`: one row per latent number, moved from its lowest to its highest "
    "usual value."
)
LIMITS = (
    "It knows the pictures it was trained on: another camera, size, light or object needs new "
    "frames and a new training. The decoder is for looking; nothing at run time needs it."
)
INT8_TITLE = "## In INT8"

Floats = npt.NDArray[np.float32]
Pictures = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Measured:
    """What held-out frames say about an encoder.

    Attributes:
        mean: (N, D) of every frame that was encoded.
        which: (N,) their indices.
        std: (D,) mean posterior standard deviation on held-out frames.
        low: (D,) stated bounds.
        high: (D,) likewise.
        errors: of the linear probe; empty where no places are known.
        held_out: figures for the card and the spec.
    """

    mean: Floats
    which: Indices
    std: Floats
    low: Floats
    high: Floats
    errors: list[ProbeError]
    held_out: dict[str, Any]


def bounds(means: Floats, std: Floats) -> tuple[Floats, Floats]:
    """Return bounds (D,) that hold every vector seen, with room for what was not.

    Args:
        means: (N, D) of training and held-out frames.
        std: (D,) of the posterior; a sampled vector stays inside too, but for one in thousands.
    """
    low, high = means.min(0), means.max(0)
    room = 0.25 * (high - low) + 4.0 * std
    return (low - room).astype(np.float32), (high + room).astype(np.float32)


def measure(vae: Vae, frames: Frames, parts: Sequence[Indices]) -> Measured:
    """Encode frames, fit the probe on training ones and judge it on the test part."""
    from vinoreward_training.encoder.export import decode, encode

    train, _, test = parts
    fitted = train[:: max(1, -(-len(train) // PROBE_FRAMES))]
    which = np.concatenate([fitted, test])
    mean, log_variance = encode(vae.encoder, frames.images[which])
    held_mean, held_log_variance = mean[len(fitted) :], log_variance[len(fitted) :]
    std = np.exp(0.5 * held_log_variance.astype(np.float64)).mean(0).astype(np.float32)
    low, high = bounds(mean, std)
    divergences = 0.5 * (
        held_mean.astype(np.float64) ** 2
        + np.exp(held_log_variance.astype(np.float64))
        - 1.0
        - held_log_variance
    )
    looked = np.arange(len(test))[:: max(1, len(test) // 1000)]
    off = decode(vae.decoder, held_mean[looked]).astype(np.float64)
    off -= frames.images[test[looked]]
    ends = np.arange(len(which))
    return Measured(
        mean=mean,
        which=which,
        std=std,
        low=low,
        high=high,
        errors=probe_places(
            mean,
            {name: places[which] for name, places in frames.places.items()},
            ends[: len(fitted)],
            ends[len(fitted) :],
        ),
        held_out={
            "frames": len(test),
            "episodes": len(np.unique(frames.episodes[test])),
            "root_mean_square_error": float(np.sqrt((off**2).mean())),
            "kl": float(divergences.sum(1).mean()),
            "active": int((divergences.mean(0) > 0.05).sum()),
        },
    )


def draw(folder: Path, vae: Vae, frames: Frames, test: Indices, found: Measured) -> list[Path]:
    """Write ``reconstructions.png`` and ``traversals.png``; return their paths."""
    from vinoreward_training.encoder.export import decode, encode

    folder.mkdir(exist_ok=True)
    shown = test[:: max(1, len(test) // SHOWN_FRAMES)][:SHOWN_FRAMES]
    originals = frames.images[shown]
    latents = encode(vae.encoder, originals)[0]
    # From the first frame shown, one number at a time, between its 2nd and 98th percentile.
    order = np.argsort(-found.mean.var(0))[:TRAVERSED]
    low, high = np.quantile(found.mean, [0.02, 0.98], axis=0)
    rows = []
    for number in order:
        moved = np.repeat(latents[:1], 9, axis=0)
        moved[:, number] = np.linspace(low[number], high[number], 9)
        rows.append(decode(vae.decoder, moved))
    return [
        draw_reconstructions(
            folder / "reconstructions.png", originals, decode(vae.decoder, latents)
        ),
        draw_traversals(folder / "traversals.png", rows),
    ]


def _tiled(rows: Sequence[Pictures], gap: int = 2) -> Pictures:
    """Return rows of pictures (N, H, W, 3) as one picture, with white between them."""
    padded = [
        np.concatenate(
            [np.pad(one, ((0, gap), (0, gap), (0, 0)), constant_values=255) for one in row], axis=1
        )
        for row in rows
    ]
    return np.concatenate(padded, axis=0)


def _save(path: Path, picture: Pictures, *, least: int = 900) -> Path:
    from PIL import Image

    image = Image.fromarray(picture)
    factor = max(1, round(least / image.width))
    image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    with atomic_path(path) as part:
        image.save(part)
    return path


def draw_reconstructions(path: Path, originals: Pictures, made: Pictures) -> Path:
    """Write originals (N, H, W, 3), what the decoder makes of them, and the differences below.

    Args:
        path: PNG to write.
        originals: uint8.
        made: uint8, of the same shape.
    """
    difference = np.abs(originals.astype(np.int16) - made).clip(0, 127) * 2
    rows = [originals, made, 255 - difference.astype(np.uint8)]
    half = -(-len(originals) // 2)
    return _save(
        path,
        _tiled([row[part] for part in (slice(0, half), slice(-half, None)) for row in rows]),
    )


def draw_traversals(path: Path, rows: Sequence[Pictures]) -> Path:
    """Write one row of pictures (K, H, W, 3) per latent number, from low to high."""
    return _save(path, _tiled(rows))


def draw_losses(path: Path, history: Sequence[Mapping[str, float]]) -> Path:
    """Write the parts of the loss, and the numbers in use, by step.

    Args:
        path: PNG to write.
        history: records of :class:`vinoreward_training.encoder.training.VaeFit`.
    """
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


def probe_rows(errors: Sequence[ProbeError]) -> list[dict[str, object]]:
    """Return the probe's table."""
    return [
        {
            "place of": error.name,
            "mean error, mm": f"{error.mean_mm:.2f}",
            "95 % below, mm": f"{error.p95_mm:.2f}",
            "R2": f"{error.r2:.4f}",
            "knowing nothing, mm": f"{error.chance_mm:.0f}",
            "held-out frames": error.frames,
        }
        for error in errors
    ]


def make_bundle(
    config: TrainVaeConfig,
    frames: Frames,
    parts: Sequence[Indices],
    folder: Path,
    vae: Vae,
    history: Sequence[dict[str, float]],
) -> None:
    """Measure, export and write bundle and report."""
    from safetensors.torch import save as safetensors_bytes

    from vinoreward_training.encoder.export import (
        MEAN,
        STD,
        encode,
        export_decoder,
        export_encoder,
    )

    def weights(module: nn.Module) -> bytes:
        state = {name: value.contiguous() for name, value in module.state_dict().items()}
        return bytes(safetensors_bytes(state))

    test = parts[2]
    found = measure(vae, frames, parts)
    golden = frames.images[test[:: max(1, len(test) // GOLDEN_FRAMES)][:GOLDEN_FRAMES]]
    compared = frames.images[test[:: max(1, len(test) // 64)][:64]]
    difference = export_encoder(vae.encoder, folder / "model.onnx", compared)
    export_decoder(vae.decoder, folder / "decoder.onnx", config.latent)
    drawn = draw(folder / "pictures", vae, frames, test, found)
    drawn.append(draw_losses(folder / "pictures" / "losses.png", history))
    height, width = frames.images.shape[1:3]
    spec = BundleSpec(
        name=config.name,
        kind="encoder",
        labels=(),
        latent_size=config.latent,
        picture=Picture(
            height=height,
            width=width,
            mean=MEAN,
            std=STD,
            resize="pil_bilinear" if frames.resized else "none",
            scene=frames.scene,
        ),
        encoding=Encoding(
            low=tuple(map(float, found.low)),
            high=tuple(map(float, found.high)),
            std=tuple(map(float, found.std)),
        ),
        architecture=config.architecture,
        metrics={
            "held_out": found.held_out,
            "probe": {error.name: asdict(error) for error in found.errors},
            "export_difference": difference,
            "history": list(history),
        },
        dataset={
            "sha256": frames.sha256,
            "counts": {
                "frames": len(frames.images),
                "episodes": len(np.unique(frames.episodes)),
            },
            "seed": frames.seed,
            **origin({"env": config.env} if config.data is None else read_about(config.data)),
            "split_seed": config.seed,
        },
        versions=versions(),
    )
    labels = (
        f" + {config.places:g} * squared error in mm of recorded places, read linearly: "
        "trained with these labels"
        if config.places > 0
        else "; no labels"
    )
    held = found.held_out
    publish(
        folder,
        "State encoder",
        "A state encoder: one camera picture in, a few numbers out that a policy can act on. Made "
        "by `vinoreward train-vae`; use it with `vinoreward.EncodedObservation(env, path)`.",
        [
            Section(
                "What it is",
                facts={
                    "network": f"{config.architecture}, {height}x{width} pixels to "
                    f"{config.latent} numbers (mean and log variance of each), FP32",
                    "trained on": f"{len(parts[0])} frames, dataset {frames.sha256[:12]}, seed "
                    f"{config.seed}",
                    "steps": f"{config.steps} of {config.batch_size} frames",
                    "loss": f"sum of squares / (2 * {config.sigma:g}^2) + {config.beta:g} * KL"
                    + labels,
                    "pixel weights": f"rare colours up to {config.rare:g}, foreground + "
                    f"{config.foreground:g}",
                    "exported network's largest difference from torch": f"{difference:.2g}",
                },
            ),
            Section(
                "What the numbers know",
                PROBED if found.errors else NO_PLACES,
                probe_rows(found.errors),
            ),
            Section(
                "On held-out frames",
                facts={
                    "frames": f"{held['frames']} of {held['episodes']} episodes",
                    "reconstruction error": f"{held['root_mean_square_error']:.2f} grey levels "
                    "(root mean square over all pixels)",
                    "KL divergence": f"{held['kl']:.1f} nats",
                    "numbers in use": f"{held['active']} of {config.latent}",
                },
            ),
            Section("Pictures", PICTURES, pictures=drawn),
            Section("Limits", LIMITS),
        ],
        spec,
        {
            "model.onnx": folder / "model.onnx",
            "model.safetensors": weights(vae.encoder),
            "decoder.onnx": folder / "decoder.onnx",
            "decoder.safetensors": weights(vae.decoder),
        },
        (golden, np.concatenate(encode(vae.encoder, golden), axis=1)),
    )
    for error in found.errors:
        verdict = "" if error.mean_mm <= PROBE_LIMIT_MM else f", above {PROBE_LIMIT_MM:g} mm"
        print(
            f"linear probe, {error.name}: mean error {error.mean_mm:.2f} mm, 95 % below "
            f"{error.p95_mm:.2f} mm, R2 {error.r2:.4f}, {error.frames} held-out frames{verdict}"
        )


def with_int8(card: str, facts: Mapping[str, str]) -> str:
    """Return a card with a section on INT8 at its end, in place of an earlier one.

    Args:
        card: Markdown.
        facts: what the gate measured, in words.
    """
    kept = card.partition(f"\n{INT8_TITLE}\n")[0].rstrip()
    return f"{kept}\n\n{INT8_TITLE}\n\n{bullets(facts)}\n"
