"""The pictures and tables of an encoder's model card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.files import atomic_path
from vinoreward_training.encoder.probe import ProbeError
from vinoreward_training.runs.curves import new_figure, save_figure
from vinoreward_training.runs.report import bullets

Pictures = npt.NDArray[np.uint8]


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


def with_int8(card: str, facts: Mapping[str, str]) -> str:
    """Return a card with a section on INT8 at its end, in place of an earlier one.

    Args:
        card: Markdown.
        facts: what the gate measured, in words.
    """
    kept = card.partition(f"\n{INT8_TITLE}\n")[0].rstrip()
    return f"{kept}\n\n{INT8_TITLE}\n\n{bullets(facts)}\n"
