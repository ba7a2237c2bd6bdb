"""Where the images to label come from: a folder, a capture, or a run's claims.

An image has a name in its source's folder. Nothing outside that folder is read, images are read
one at a time, and what cannot be read is left out and counted.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, DatasetError, InputError
from vinoreward.files import shown
from vinoreward.images import read_image, shown_name
from vinoreward_envs.camera.spec import resized
from vinoreward_training.data.dataset import check_folder
from vinoreward_training.data.dataset_files import (
    METADATA,
    Crop,
    check_labels,
    check_memory,
    cut,
    images_below,
    inside,
    read_metadata,
)
from vinoreward_training.data.tables import Row, read_table
from vinoreward_training.labelling.labels import Answer, Label, agreed_labels, is_name, now

CLAIMS = "claims"
"""Folder of a run with the images that its network claimed to be successes."""
TABLE = "claims.csv"
"""Its table: a column ``image``, and numbers, any of which may be missing."""
Image = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


def digest_of(image: Image) -> str:
    """Return the SHA-256 of an image's shape and decoded uint8 pixels.

    So a label belongs to what was shown, however the file is compressed.
    """
    digest = hashlib.sha256(f"{image.shape[0]}x{image.shape[1]}x3 ".encode())
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Source:
    """Named images, and what is known of them."""

    folder: Path
    """That names are relative to."""
    names: list[str]
    episodes: list[int] | None = None
    """Of each image; None if unknown."""
    numbers: dict[str, Floats] = field(default_factory=dict)
    """``probability``, ``ood_score`` and ``true`` (1 for success), and ``block`` and ``drawn``, by
    which a run drew its sample, as far as known: ``(N,)``, or NaN."""
    claimed: bool = False
    """Whether a network claimed each to be a success."""
    left_out: int = 0
    """Images whose names cannot be shown or written."""

    def read(self, index: int) -> Image:
        """Return an image ``(H, W, 3)`` uint8 RGB; DatasetError if it cannot be read."""
        return read_named(self.folder, self.names[index])

    def images(self) -> Iterator[tuple[int, Image]]:
        """Yield each index and image in turn, one in memory at a time, but what is damaged."""
        for number in range(len(self.names)):
            try:
                image = self.read(number)
            except DatasetError:
                continue
            yield number, image


def read_named(folder: Path, name: str) -> Image:
    """Return the image of that name in a folder; DatasetError if it cannot be read."""
    if not is_name(name):
        raise DatasetError(f"{shown(name)!r} is no image's name. Expected one within {folder}.")
    try:
        return read_image(inside(folder, name))
    except InputError as error:
        raise DatasetError(str(error)) from error


def of_folder(folder: Path) -> Source:
    """Return the images of a capture, or of any folder."""
    check_folder(folder, "a folder of images")
    if not (folder / METADATA).is_file():
        names = images_below(folder)
        kept = [name for name in names if is_name(name)]
        _check_any(kept, folder, len(names) - len(kept))
        return Source(folder=folder, names=kept, left_out=len(names) - len(kept))
    rows = list(read_metadata(folder))
    names = [row["file"] for row in rows]
    for name in names:
        inside(folder, name)
    _check_any(names, folder, 0)
    check_labels(folder / METADATA, {row["label"] for row in rows if row["label"]}, "success")
    marks = {"success": 1.0, "": np.nan}  # an image without a label waits for one
    known = np.array([marks.get(row["label"], 0.0) for row in rows])
    if len(set(known[~np.isnan(known)])) < 2:  # the labels have other names, or say nothing
        known = np.full(len(rows), np.nan)
    episodes = [int(row["episode"]) for row in rows]
    return Source(folder=folder, names=names, episodes=episodes, numbers={"true": known})


def of_run(run: Path) -> Source:
    """Return the images that a run's network claimed to be successes."""
    folder = run / CLAIMS
    if not (folder / TABLE).is_file():
        raise ConfigError(
            field="run",
            value=str(run),
            expected=f"a run of vinoreward train, with images of claimed successes in "
            f"{CLAIMS}/{TABLE}",
            remedy="name another, or a folder of images with `data`",
        )
    rows = list(
        read_table(folder / TABLE, ("image",), _claim, "the column image, and numbers in others")
    )
    names = [name for name, _ in rows]
    _check_any(names, folder, 0)
    numbers = {
        column: np.array([row.get(column, math.nan) for _, row in rows])
        for column in ("probability", "ood_score", "true", "block", "drawn")
    }
    episodes = [row.get("episode", math.nan) for _, row in rows]
    return Source(
        folder=folder,
        names=names,
        # An image of an unknown episode is an episode of its own.
        episodes=[int(e) if math.isfinite(e) else -1 - n for n, e in enumerate(episodes)],
        numbers=numbers,
        claimed=True,
    )


def _claim(row: Row) -> tuple[str, dict[str, float]]:
    """Return a claim's image and numbers, NaN for an empty cell."""
    name = row.pop("image")
    if not is_name(name):
        raise ValueError(f"{name!r} is no image's name")
    return name, {column: float(cell or "nan") for column, cell in row.items()}


def truths_of(run: Path) -> int:
    """Return of how many sampled claims of a run the truth is recorded."""
    return int(np.isin(of_run(run).numbers["true"], (0, 1)).sum())


def labels_by_truth(run: Path) -> list[Label]:
    """Return a label of each claim of a run whose truth is recorded."""
    source = of_run(run)
    answers: dict[float, Answer] = {0: "failure", 1: "success"}
    return [
        Label(source.names[index], digest_of(image), answers[true], "truth", now(), 0.0)
        for index, image in source.images()
        if (true := source.numbers["true"][index]) in answers
    ]


def _check_any(names: Sequence[str], folder: Path, left_out: int) -> None:
    if not names:
        unprintable = f" but {left_out} with unprintable names" if left_out else ""
        raise DatasetError(
            f"{shown_name(folder)} holds no images{unprintable}. Expected some to label; name "
            "another folder."
        )


class Labelled(NamedTuple):
    """Images with the label that everybody gave."""

    images: Image
    """``(N, H, W, 3)`` uint8 RGB."""
    labels: npt.NDArray[np.int64]
    """``(N,)``, 1 for success."""
    names: list[str]


def labelled_images(
    folder: Path,
    labels: Sequence[Label],
    size: tuple[int, int],
    *,
    crop: Crop | None = None,
) -> Labelled:
    """Return the images on whose label everybody agrees, resized by PIL to (height, width).

    Names are relative to ``folder``, or ``claims`` of a run. Images that
    are skipped, contradicted, or (with a warning) no longer what was labelled are left out.
    ``crop``, (top, left, height, width) in pixels, is cut out of each image first.

    Raises:
        DatasetError: more images than fit into memory, or an image too small for ``crop``.
    """
    chosen = agreed_labels(labels)
    check_memory(folder, len(chosen), size)
    images = np.empty((len(chosen), *size, 3), dtype=np.uint8)
    kept: list[Label] = []
    lost: list[str] = []
    for label in chosen:
        try:
            image = read_named(folder, label.image)
        except DatasetError:
            image = None
        if image is None or digest_of(image) != label.sha256:
            lost.append(label.image)
            continue
        if crop is not None:
            image = cut(image, crop, folder / label.image)
        images[len(kept)] = resized(image, *size)
        kept.append(label)
    if lost:
        warnings.warn(
            f"{len(lost)} of {len(chosen)} labelled images in {folder} are not there or not what "
            f"was labelled, the first is {lost[0]}. They are left out.",
            UserWarning,
            stacklevel=2,
        )
    values = np.array([label.label == "success" for label in kept], dtype=np.int64)
    return Labelled(images[: len(kept)], values, [label.image for label in kept])
