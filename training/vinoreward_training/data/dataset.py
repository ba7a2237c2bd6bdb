"""Images in memory: with labels, or with the places of things."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vinoreward.errors import BundleError, DatasetError
from vinoreward.images import ImageSpec, View, prepare
from vinoreward_training.data.dataset_files import (
    ABOUT,
    MAX_NAME,
    METADATA,
    SUFFIXES,
    Crop,
    Indices,
    check_labels,
    images_below,
    is_visible,
    number,
    read_about,
    read_metadata,
    stack_images,
)
from vinoreward_training.data.lerobot import is_lerobot
from vinoreward_training.data.provenance import identities_of, origin_of, split_of

FRAME_SHARES = (0.05, 0.1)
"""The same for frames without labels; at least one episode each."""
NOT_STATE = frozenset({
    "file", "label", "category", "episode", "step", "steps", "seed", "distance", "player", "video",
    "second", "to_success",
})  # fmt: skip
"""Columns of ``metadata.csv`` that are not numbers of the state."""
FIXED_LEAK, CHANGING_LEAK = 0.8, 0.97
"""Accuracy with which a number predicts the label that is warned of, by whether it is fixed in an
episode."""
MIN_EPISODES = 5
"""Of either label, in each half of the episodes, without which nothing is said of leakage."""
MAX_WARNINGS = 3
MIN_FRAMES = 64
"""Fewest frames to train an encoder on."""

Images = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Images of episodes."""

    images: Images
    """``(N, H, W, 3)`` uint8 RGB."""
    episodes: Indices
    """``(N,)`` int64; frames of one episode share a number."""
    scene: dict[str, Any]
    """What drew the images; empty if unknown."""
    sha256: str
    """Hash of the pixels and of what belongs to them."""
    resized: bool = False
    """Whether PIL's bilinear filter resized images, now or when they were captured."""
    seed: int | None = None
    """Of the capture or rollout, if recorded."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of frames and episodes."""
        return {"frames": len(self.images), "episodes": len(np.unique(self.episodes))}

    def image(self, **more: Any) -> ImageSpec:
        """Return what a bundle records of the images; ``more`` are fields of ``ImageSpec``."""
        height, width = self.images.shape[1:3]
        resize: Literal["pil_bilinear", "none"] = "pil_bilinear" if self.resized else "none"
        return ImageSpec(height=height, width=width, resize=resize, scene=self.scene, **more)


@dataclass(frozen=True, kw_only=True)
class Dataset(ImageSet):
    """Images with their labels."""

    labels: Indices
    """``(N,)`` int64, 1 = success."""
    categories: npt.NDArray[np.str_]
    """``(N,)``, e.g. ``near_miss``; the label if none is recorded."""
    distances: Floats
    """``(N,)`` float64 metres from the centre of success, NaN if not recorded."""
    files: tuple[str, ...]
    """Paths inside ``folder``."""
    folder: Path
    views: tuple[View, ...] = ()
    """From top to bottom of each image; empty for an image of one."""
    crop: Crop | None = None
    """What was cut out of the images as they were read."""
    origin: str | None = None
    """Scene or environment and the capture's seed: with its number they identify an episode. None
    if not recorded."""
    episode_steps: int | None = None
    """Length of a failing episode, None if not recorded."""
    success_lasts: bool = False
    """Whether episodes go on after a success."""

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of frames and episodes, and of frames per label and per category."""
        successes = int(self.labels.sum())
        labels = {"success": successes, "failure": len(self.labels) - successes}
        names, frames = np.unique(self.categories, return_counts=True)
        by_category = zip(names, frames.tolist(), strict=True)
        return super().counts | labels | {f"category:{name}": count for name, count in by_category}

    def image(self, **more: Any) -> ImageSpec:
        """Return what a bundle records of the images; ``more`` are fields of ``ImageSpec``."""
        return super().image(views=self.views, crop=self.crop, **more)


@dataclass(frozen=True, kw_only=True)
class Frames(ImageSet):
    """Images and, if recorded, the places of things."""

    places: dict[str, Floats]
    """Name to ``(N, 2)`` float64 metres, NaN where the thing is absent."""
    source: str
    """The folder or environment they came from."""

    @classmethod
    def hashed(
        cls, images: Images, episodes: Sequence[int], places: dict[str, Floats], **facts: Any
    ) -> Frames:
        """Return frames with their hash, at least ``MIN_FRAMES``; ``facts`` are other fields."""
        if len(images) < MIN_FRAMES:
            raise DatasetError(
                f"{facts['source']} gives {len(images)} images. Expected at least {MIN_FRAMES} "
                "to train an encoder on, better thousands; capture more, or raise --frames."
            )
        numbers = np.array(episodes, dtype=np.int64)
        digest = hashlib.sha256(str(images.shape).encode())
        digest.update(np.ascontiguousarray(images).data)
        digest.update(numbers.tobytes())
        for name in sorted(places):
            digest.update(name.encode() + places[name].tobytes())
        return cls(
            images=images, episodes=numbers, places=places, sha256=digest.hexdigest(), **facts
        )


def check_folder(folder: Path, kind: str) -> None:
    """Raise DatasetError unless there is a folder that is no LeRobot dataset."""
    name = shlex.quote(str(folder))
    if is_lerobot(folder):
        raise DatasetError(
            f"{folder} is a LeRobot dataset. Expected a capture or {kind}; take its images with: "
            f"vinoreward capture --recordings {name} "
            f"--out {shlex.quote(f'data/{folder.resolve().name}')}"
        )
    if not folder.is_dir():
        raise DatasetError(
            f"{folder} is not a folder. Expected a capture or {kind}; make one with: vinoreward "
            f"capture --out {name}"
        )


def _no_images(folder: Path, remedy: str) -> DatasetError:
    suffixes = ", ".join(sorted(SUFFIXES))
    return DatasetError(f"{folder} holds no images. Expected {suffixes} files{remedy}.")


Entry = tuple[str, int, str, int, float]
"""Of an image: file, label (1 for success), category, episode, metres from success or NaN."""


def _from_metadata(folder: Path, success_label: str) -> list[Entry]:
    rows = list(read_metadata(folder))
    check_labels(folder / METADATA, (row["label"] for row in rows), success_label)
    return [
        (
            row["file"],
            int(row["label"] == success_label),
            row.get("category") or row["label"],
            int(row["episode"]),
            number(row.get("distance", "")),
        )
        for row in rows
    ]


def _from_folders(folder: Path, success_label: str) -> list[Entry]:
    names = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and is_visible(path.name)
    )
    check_labels(folder, names, success_label)
    loose = sum(
        path.suffix.lower() in SUFFIXES and is_visible(path.name) for path in folder.iterdir()
    )
    if names and loose:
        print(f"passed over: {loose} images in {folder} that are in no class's folder")
    files = images_below(folder, *names) if names else []
    entries: list[Entry] = [
        (file, int(name == success_label), name[:MAX_NAME], episode, float("nan"))
        for episode, file in enumerate(files)
        for name in Path(file).parts[:1]
    ]
    if entries and success_label not in names:
        raise DatasetError(
            f"{folder} has the classes {', '.join(names)} and none is called {success_label!r}. "
            "Expected one folder per class; name the class that is a success with --success-label."
        )
    return entries


def load_dataset(
    folder: Path,
    *,
    size: tuple[int, int] | None = None,
    crop: Crop | None = None,
    success_label: str = "success",
    choose_size: bool = False,
    skip_broken: bool = False,
    entries: Sequence[Entry] | None = None,
) -> Dataset:
    """Read a capture or an image folder (one folder per class) into memory.

    A capture's ``metadata.csv`` gives episodes, categories and distances. Without it every
    image is its own episode, and every class but ``success_label`` is a failure. ``crop`` is
    the (top, left, height, width) to cut out of each image, ``size`` the (height, width) to
    resize to after that with PIL's bilinear filter; without it images of several sizes are a
    DatasetError, like anything else that is wrong with the folder. With ``choose_size`` a folder
    that no capture made gets one of :func:`~.dataset_files.chosen_size`. With ``skip_broken``
    images that cannot be read are printed and left out. ``entries`` stand for the folder's own
    labels.
    """
    folder = Path(folder)
    check_folder(folder, "an image folder with one folder per class")
    recorded = (folder / METADATA).is_file()
    if entries is None:
        entries = (_from_metadata if recorded else _from_folders)(folder, success_label)
    if not entries:
        per_class = f" in one folder per class, e.g. {folder}/success and {folder}/failure"
        raise _no_images(folder, per_class)
    if len({entry[1] for entry in entries}) < 2:
        only = "successes" if entries[0][1] else "failures"
        raise DatasetError(
            f"all {len(entries)} images in {folder} are {only}. Expected both classes: a "
            "classifier is trained on successes and failures; add images of the other class."
        )
    about = read_about(folder)
    if about.get("views") and size is not None:
        raise DatasetError(
            f"{folder} has images of several views below each other, to be resized to "
            f"{size[0]}x{size[1]}. Expected them at their own size, as each view is resized by "
            "itself; capture them at the size that you want."
        )
    if crop is not None:
        _check_crop(folder, crop, about)
    names = [entry[0] for entry in entries]
    # A capture has chosen already, and views are resized one by one.
    choose_size &= "format" not in about and not about.get("views")
    images, resized, kept = stack_images(
        folder, names, size, crop, choose_size=choose_size, skip_broken=skip_broken
    )
    files, marks, categories, episodes, distances = zip(*(entries[i] for i in kept), strict=True)
    digest = hashlib.sha256(str(images.shape).encode())
    for file, label, image in zip(files, marks, images, strict=True):
        digest.update(f"{file}\0{label}\0".encode())
        digest.update(image.tobytes())
    return Dataset(
        images=images,
        labels=np.array(marks, dtype=np.int64),
        episodes=np.array(episodes, dtype=np.int64),
        categories=np.array(categories),
        distances=np.array(distances, dtype=np.float64),
        files=files,
        scene=about.get("scene", {}),
        sha256=digest.hexdigest(),
        folder=folder,
        resized=resized or "image_size" in about,
        seed=about.get("seed"),
        views=_views(folder, about, images.shape[1:3]),
        crop=crop,
        origin=origin_of(about) if recorded else None,
        episode_steps=about.get("episode_steps"),
        success_lasts=about.get("success_lasts") is True,
    )


def _check_crop(folder: Path, crop: Crop, about: Mapping[str, Any]) -> None:
    """Raise DatasetError where a bundle could not cut the same out of what it is given later."""
    if about.get("views"):
        found = "images of several views below each other"
    elif "image_size" in about:
        found = "images that were resized as they were captured"
    elif "height" in about.get("scene", {}):  # others' say only where they are from
        found = "images of the hover scene, which is drawn at the size that the bundle names"
    else:
        return
    raise DatasetError(
        field="image_crop",
        value=crop,
        expected=f"a camera's own images, as a bundle cuts first and resizes then; {folder} has "
        f"{found}",
        remedy="capture from one camera, at its own size with --image-size HEIGHT WIDTH, or leave "
        "`image_crop` out",
    )


def size_for(image: ImageSpec) -> tuple[int, int] | None:
    """Return the (height, width) to read images for a network in; None for their own.

    Views are of their own size, and what is cropped first cannot be resized as it is read.
    """
    resized = image.resize != "none" and image.crop is None and not image.views
    return (image.height, image.width) if resized else None


def same_aspect(size: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Return whether resizing keeps the aspect ratio within a pixel: sides are whole numbers."""
    (height, width), (rows, columns) = size, wanted
    return abs(height * columns / width - rows) < 1 or abs(width * rows / height - columns) < 1


def load_labelled(folder: Path, image: ImageSpec, success_label: str) -> Dataset:
    """Return :func:`load_dataset` with its images as a bundle's network takes them.

    ImageMismatchError if they cannot be.
    """
    size = size_for(image)
    dataset = load_dataset(folder, size=size, success_label=success_label, skip_broken=True)
    return dataclasses.replace(dataset, images=prepare(dataset.images, image))


def find_label_leakage(
    rows: Iterable[Mapping[str, str]], success_label: str = "success"
) -> list[str]:
    """Return a warning for each recorded number that predicts the label by itself.

    A number that stays the same through an episode, such as a goal's place, says nothing about
    success within it: a classifier that learns it has learned nothing. One that changes may be what
    success is measured by. All columns of numbers are examined but those in ``NOT_STATE``.
    """
    table = list(rows)
    success = np.array([row["label"] == success_label for row in table], dtype=np.bool_)
    episodes = np.unique([int(row["episode"]) for row in table], return_inverse=True)[1]
    # Half of the episodes say which values mean success; the others test that.
    half = episodes % 2 == 0
    parts = [half & success, half & ~success, ~half & success, ~half & ~success]
    if min(len(np.unique(episodes[part])) for part in parts) < MIN_EPISODES:
        return []
    order = np.argsort(episodes, kind="stable")
    within = np.diff(episodes[order]) == 0
    warnings: list[tuple[float, str]] = []
    for name in table[0].keys() - NOT_STATE:
        values = _column(table, name)
        if values is None or len(np.unique(values)) < 2:
            continue
        accuracy = (_accuracy(values, success, half) + _accuracy(values, success, ~half)) / 2
        fixed = within.any() and not np.diff(values[order])[within].any()
        if accuracy < (FIXED_LEAK if fixed else CHANGING_LEAK):
            continue
        what = (
            "it is the same through an episode, as a goal's place is, so the images may show "
            "that instead of success: take failures from the episodes that succeed"
            if fixed
            else "if that is not what success is measured by, the classifier may learn it instead"
        )
        warnings.append(
            (accuracy, f"{name} alone tells the label of {accuracy:.0%} of the images; {what}.")
        )
    return [sentence for _, sentence in sorted(warnings, reverse=True)[:MAX_WARNINGS]]


def _column(table: Sequence[Mapping[str, str]], name: str) -> Floats | None:
    """Return a column of numbers; None if a cell has none."""
    try:
        values = np.array([float(row[name]) for row in table])
    except (ValueError, LookupError):
        return None
    return values if np.isfinite(values).all() else None


def _accuracy(
    values: Floats, success: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_]
) -> float:
    """Return the balanced accuracy, on the others, of the usual label of each bin of ``known``."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, 17)[1:-1]))
    bins = np.searchsorted(edges, values, side="right")
    weights = np.where(success, 1 / (success & known).sum(), -1 / (~success & known).sum())
    usual = np.bincount(bins[known], weights[known], minlength=len(edges) + 1) > 0
    right = usual[bins] == success
    return float((right[~known & success].mean() + right[~known & ~success].mean()) / 2)


def find_conflicting_duplicates(dataset: Dataset) -> str | None:
    """Return a warning if images are pixel by pixel the same as others of the other label.

    DatasetError if those are most images: no classifier can tell them apart.
    """
    digests = [hashlib.sha256(np.ascontiguousarray(one).data).digest() for one in dataset.images]
    failures, successes = (
        {one: i for i, one in enumerate(digests) if dataset.labels[i] == label} for label in (0, 1)
    )
    both = [one for one in digests if one in failures and one in successes]
    if not both:
        return None
    failure, success = (dataset.files[by[both[0]]] for by in (failures, successes))
    found = (
        f"{len(both)} of {len(digests)} images in {dataset.folder} are the same, pixel by pixel, "
        f"as one of the other label, such as {failure} and {success}"
    )
    if 2 * len(both) <= len(digests):
        return f"{found}; a classifier cannot tell these apart."
    raise DatasetError(
        f"{found}. Expected success to be visible in an image; look at some, correct their labels, "
        "or take others: nearer, from another --image-source, or with --stack if it is a movement."
    )


def _recorded(folder: Path, limit: int | None) -> tuple[list[str], list[int], dict[str, Floats]]:
    """Return a capture's first files, their episodes and places (columns NAME_x and NAME_y)."""
    rows = list(read_metadata(folder, places=True))[:limit]
    columns = rows[0] if rows else ()
    names = (name[:-2] for name in columns if name.endswith("_x") and f"{name[:-2]}_y" in columns)
    places = {}
    for name in sorted(names):
        values = np.array([[number(row[f"{name}_{axis}"]) for axis in "xy"] for row in rows])
        values[~np.isfinite(values)] = np.nan
        if np.isfinite(values).all(1).any():
            places[name] = values
    return [row["file"] for row in rows], [int(row["episode"]) for row in rows], places


def load_frames(folder: Path, *, size: tuple[int, int] | None = None, limit: int = 0) -> Frames:
    """Read every image below a folder into memory, without labels.

    A capture's ``metadata.csv`` gives episodes and places. Without it every image is its own
    episode and no places are known. ``size`` is as for :func:`load_dataset`. At most ``limit``
    images are read, 0 for all: the first of a capture, else evenly chosen.
    """
    folder = Path(folder)
    check_folder(folder, "a folder of images")
    places: dict[str, Floats] = {}
    if (folder / METADATA).is_file():
        files, episodes, places = _recorded(folder, limit or None)
    else:
        files = images_below(folder)
        if limit and limit < len(files):
            files = [files[index * len(files) // limit] for index in range(limit)]
        episodes = list(range(len(files)))
    if not files:
        raise _no_images(folder, "; capture some, or give another folder with --data")
    about = read_about(folder)
    if about.get("views"):
        raise DatasetError(
            f"{folder} has images of several views below each other. Expected images of one "
            "view, as an encoder looks at one; capture those of one camera."
        )
    images, resized, _ = stack_images(folder, files, size)
    return Frames.hashed(
        images,
        episodes,
        places,
        scene=about.get("scene", {}),
        source=str(folder),
        resized=resized or "image_size" in about,
        seed=about.get("seed"),
    )


def _views(folder: Path, about: Mapping[str, Any], size: tuple[int, ...]) -> tuple[View, ...]:
    """Return the views that ``dataset.json`` names, checked against the images' size."""
    try:
        return ImageSpec(height=size[0], width=size[1], views=about.get("views") or ()).views
    except BundleError as error:
        raise DatasetError(
            f"{folder / ABOUT}: {str(error).replace('image.views', 'views')} Each view has a "
            "name and a height, and may have a source and an age."
        ) from error


def episode_identities(dataset: Dataset) -> tuple[list[bytes], Indices]:
    """Return what identifies each episode in any dataset, and (N,) the episode of each frame."""
    numbers, first, inverse = np.unique(dataset.episodes, return_index=True, return_inverse=True)
    if dataset.origin is not None:
        return identities_of(dataset.origin, numbers), inverse
    if len(numbers) < len(dataset.labels):
        # The first by name: frames that are added to an episode usually come after it.
        order = np.lexsort((np.array(dataset.files), dataset.episodes))
        _, position = np.unique(dataset.episodes[order], return_index=True)
        first = order[position]
    return [hashlib.sha256(dataset.images[index].tobytes()).digest() for index in first], inverse


def split_by_episode(dataset: Dataset) -> tuple[Indices, Indices, Indices]:
    """Return the indices of (train, validation, test); no episode is in two of them.

    The hash of an episode's identity alone decides: no seed, no other episodes. So an episode
    stays in its part when a capture grows, and weights trained on a capture have never seen a
    held-out frame of it or of a larger one. An episode's identity is its scene or environment, the
    capture's seed and its number; if these are not recorded, its first image. Each part has both
    classes, or there is a DatasetError.
    """
    parts = parts_by_episode(dataset)
    more = "capture more episodes" if dataset.scene else "add more images of either class"
    count = dataset.counts["episodes"]
    for name, indices in zip(("training", "validation", "test"), parts, strict=True):
        if len(np.unique(dataset.labels[indices])) < 2:
            episodes = len(np.unique(dataset.episodes[indices]))
            raise DatasetError(
                f"the {name} part of {dataset.folder} would have {len(indices)} frames of fewer "
                f"than two classes (from {episodes} of {count} episodes). Expected successes and "
                "failures in every part. A hash of each episode decides where it goes, 70 % to "
                "training and 15 % each to validation and test: with some tens of episodes of "
                f"either, a part is seldom without, but may be by chance; {more}."
            )
    return parts


def parts_by_episode(dataset: Dataset) -> tuple[Indices, Indices, Indices]:
    """Return the parts of :func:`split_by_episode`, whatever is in them."""
    identities, inverse = episode_identities(dataset)
    part_of = split_of(identities)[inverse]
    validation, test, train = (
        np.flatnonzero(part_of == which).astype(np.int64) for which in range(3)
    )
    return train, validation, test


def least_episodes(dataset: Dataset, part: Indices) -> int:
    """Return the number of a part's episodes with a success, or with a failure if fewer."""
    labels, episodes = dataset.labels[part], dataset.episodes[part]
    return min(len(np.unique(episodes[labels == label])) for label in (0, 1))


def split_frames(frames: Frames, *, seed: int) -> tuple[Indices, Indices, Indices]:
    """Return the indices of (train, validation, test), drawn by episode from the seed alone."""
    numbers, inverse = np.unique(frames.episodes, return_inverse=True)
    if len(numbers) < 3:
        raise DatasetError(
            f"{frames.source} has {len(numbers)} episodes. Expected at least 3, for training, "
            "validation and test; capture more, or raise --frames."
        )
    order = np.random.default_rng([seed, 0xE2C0]).permutation(len(numbers))
    counts = [max(1, round(len(numbers) * share)) for share in FRAME_SHARES]
    validation, test, train = (
        np.flatnonzero(np.isin(inverse, some)) for some in np.split(order, np.cumsum(counts))
    )
    return train, validation, test
