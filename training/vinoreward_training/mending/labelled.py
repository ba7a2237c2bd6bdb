"""What a mending trains on: labelled images, in addition to the old data."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import ConfigError, DatasetError
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.data.dataset_files import Indices, inside
from vinoreward_training.labelling.labels import LABELS, agreement, contradictions, read_labels
from vinoreward_training.labelling.sources import CLAIMS, TABLE, labelled_images, labels_by_truth
from vinoreward_training.runs.next_command import FEW
from vinoreward_training.tasks.recorded import success_label_of

CATEGORY = "labelled"
LEAST_TRAINED = 5
"""Fewest labelled images to train on."""
_HELD_OUT = 0.2
"""Share of the labelled images that are not trained on, by hash."""


@dataclass(frozen=True)
class Labelled:
    """Images that people labelled, as the network takes them."""

    images: npt.NDArray[np.uint8]
    """``(N, H, W, 3)``."""
    labels: Indices
    """``(N,)``, 1 for success."""
    train: npt.NDArray[np.bool_]
    """``(N,)`` those to train on; the others are held out."""
    sentence: str


def read_all(folders: Sequence[Path], bundle: Bundle) -> Labelled:
    """Read the labelled images of some folders, each with its ``labels.jsonl``.

    A run without one is labelled by the truth that its claims carry, as the simulator knows it.

    Raises:
        DatasetError: no labels, or too few.
        ConfigError: a bundle of several images.
    """
    expected = bundle.spec.image
    if expected.views:
        raise ConfigError(
            field="bundle",
            value=bundle.spec.name,
            expected="one that scores a single image",
            remedy="label a capture of several views, and finetune",
        )
    images, labels, said = [], [], []
    for folder in folders:
        by_truth = not (folder / LABELS).is_file() and (folder / CLAIMS / TABLE).is_file()
        answers = labels_by_truth(folder) if by_truth else read_labels(folder / LABELS)
        place = inside(folder, CLAIMS) if (folder / CLAIMS).is_dir() else folder
        size = expected.height, expected.width
        found = labelled_images(place, answers, size, crop=expected.crop)
        images.append(found.images)
        labels.append(found.labels)
        said.append(
            f"{folder}: {len(found.labels)} labels, {int(found.labels.sum())} of them successes; "
            f"{len(contradictions(answers))} contradict each other and are left out; "
            f"{agreement(answers)}"
        )
    every = np.concatenate(images)
    # The same image may have been labelled in two folders; its last label counts.
    digests = [hashlib.sha256(image.tobytes()).hexdigest() for image in every]
    last = {digest: index for index, digest in enumerate(digests)}
    kept = np.array(sorted(last.values()), np.int64)
    if len(kept) < FEW:
        raise DatasetError(
            f"{', '.join(map(str, folders))} hold {len(kept)} labelled images. Expected at least "
            f"{FEW}; label more: vinoreward label."
        )
    train = np.array([int(digests[index][:8], 16) / 2**32 >= _HELD_OUT for index in kept])
    return Labelled(every[kept], np.concatenate(labels)[kept], train, "\n".join(said))


def keep_held_out(labelled: Labelled, dataset: Dataset) -> Labelled:
    """Return the labels; those of the data's validation and test images are not trained on.

    DatasetError if too few are left to train on.
    """
    others = np.concatenate(split_by_episode(dataset)[1:])
    held_out = {dataset.images[index].tobytes() for index in others}
    new = np.array([image.tobytes() not in held_out for image in labelled.images], np.bool_)
    train = labelled.train & new
    if train.sum() < LEAST_TRAINED:
        raise DatasetError(
            f"{train.sum()} of {len(train)} labelled images can be trained on: {(~new).sum()} "
            f"are in the validation or test part of {dataset.folder}, and {(new & ~train).sum()} "
            f"are held out. Expected at least {LEAST_TRAINED}; label images of its training "
            "part, or new ones."
        )
    return dataclasses.replace(labelled, train=train)


def read_data(folder: Path, spec: BundleSpec) -> Dataset:
    """Return the labelled images of a folder, cut and resized as a bundle's network takes them.

    DatasetError: the folder is damaged, or its images are of another size.
    """
    image, success_label = spec.image, success_label_of(spec)
    expected = image.height, image.width
    size = expected if image.resize != "none" else None
    dataset = load_dataset(
        folder, size=size, crop=image.crop, success_label=success_label, skip_broken=True
    )
    if (found := dataset.images.shape[1:3]) != expected:
        raise DatasetError(
            f"{folder} has images of {found[0]}x{found[1]} pixels (height x width). Expected "
            f"{expected[0]}x{expected[1]}, as the bundle's network takes them; give the images "
            "that it was trained on, or others of that size."
        )
    return dataset


def extended(dataset: Dataset, images: npt.NDArray[np.uint8], labels: Indices) -> Dataset:
    """Return a dataset with labelled images behind the others, an episode each."""
    count = len(labels)
    digest = hashlib.sha256(dataset.sha256.encode() + images.tobytes())
    more: dict[str, Any] = {
        "images": images,
        "labels": labels,
        "episodes": int(dataset.episodes.max()) + 1 + np.arange(count),
        "categories": np.full(count, CATEGORY),
        "distances": np.full(count, np.nan),
    }
    every: dict[str, Any] = {
        name: np.concatenate([getattr(dataset, name), one]) for name, one in more.items()
    }
    return dataclasses.replace(
        dataset,
        files=(*dataset.files, *(f"{CATEGORY}/{index}" for index in range(count))),
        sha256=digest.hexdigest(),
        **every,
    )
