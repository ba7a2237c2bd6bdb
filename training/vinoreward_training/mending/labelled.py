"""What a mending trains on: labelled images, beside those of the old data."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.images import ImageSpec
from vinoreward_training.data.dataset import Dataset, load_dataset, split_by_episode
from vinoreward_training.data.dataset_files import Indices, inside
from vinoreward_training.labelling.labels import LABELS, agreement, contradictions, read_labels
from vinoreward_training.labelling.sources import CLAIMS, TABLE, labelled_images, labels_by_truth
from vinoreward_training.runs.next_command import FEW

CATEGORY = "labelled"
LEAST_TRAINED = 5
"""Fewest of them to train on; the others check."""
_CHECKED = 0.2
"""Share of the labelled images that are not trained on, by hash."""


@dataclass(frozen=True)
class Labelled:
    """Images that people labelled, as the network takes them."""

    images: npt.NDArray[np.uint8]
    """``(N, H, W, 3)``."""
    labels: Indices
    """``(N,)``, 1 for success."""
    train: npt.NDArray[np.bool_]
    """``(N,)`` those to train on; the others check."""
    sentence: str


def read_all(folders: Sequence[Path], bundle: Bundle) -> Labelled:
    """Read the labelled images of some folders, each with its ``labels.jsonl``.

    A run without one is labelled by the truth that its claims carry, if the simulator told it.

    Raises:
        DatasetError: no labels, or too few.
        ConfigError: a bundle of several images.
    """
    expected = bundle.spec.image
    if expected.views:
        raise ConfigError(
            f"{bundle.spec.name} looks at several images. Expected a bundle of one; label a "
            "capture of this kind, and finetune."
        )
    images, labels, said = [], [], []
    for folder in folders:
        by_truth = not (folder / LABELS).is_file() and (folder / CLAIMS / TABLE).is_file()
        given = labels_by_truth(folder) if by_truth else read_labels(folder / LABELS)
        place = inside(folder, CLAIMS) if (folder / CLAIMS).is_dir() else folder
        size = expected.height, expected.width
        found = labelled_images(place, given, size, crop=expected.crop)
        images.append(found.images)
        labels.append(found.labels)
        against = len(contradictions(given))
        said.append(
            f"{folder}: {len(found.labels)} labels, {int(found.labels.sum())} of them successes; "
            f"{against} contradict each other and are left out; {agreement(given)}"
        )
    every = np.concatenate(images)
    # The same expected may have been labelled in two folders; its last label counts.
    digests = [hashlib.sha256(image.tobytes()).hexdigest() for image in every]
    last = {digest: index for index, digest in enumerate(digests)}
    kept = np.array(sorted(last.values()), np.int64)
    if len(kept) < FEW:
        raise DatasetError(
            f"{', '.join(map(str, folders))} hold {len(kept)} labelled images. Expected at least "
            f"{FEW}; label more: vinoreward label."
        )
    train = np.array([int(digests[index][:8], 16) / 2**32 >= _CHECKED for index in kept])
    return Labelled(every[kept], np.concatenate(labels)[kept], train, "\n".join(said))


def keep_held_out(labelled: Labelled, dataset: Dataset) -> Labelled:
    """Return the labels; those of the data's validation and test images are not trained on.

    DatasetError if too few are left to train on.
    """
    given = [image.tobytes() for image in labelled.images]
    wanted, others = set(given), np.concatenate(split_by_episode(dataset)[1:])
    held_out = wanted.intersection(dataset.images[index].tobytes() for index in others)
    new = np.array([image not in held_out for image in given], np.bool_)
    train = labelled.train & new
    if train.sum() < LEAST_TRAINED:
        raise DatasetError(
            f"{train.sum()} of {len(train)} labelled images can be trained on: {(~new).sum()} "
            f"are in the validation or test part of {dataset.folder}, and {(new & ~train).sum()} "
            f"are kept to check. Expected at least {LEAST_TRAINED}; label images of its training "
            "part, or new ones."
        )
    return dataclasses.replace(labelled, train=train)


def read_data(folder: Path, image: ImageSpec, success_label: str) -> Dataset:
    """Return the labelled images of a folder, cut and resized as a bundle's network takes them.

    Raises:
        DatasetError: the folder is damaged, or its images are of another size.
    """
    wanted = image.height, image.width
    dataset = load_dataset(
        folder,
        size=wanted if image.resize != "none" else None,
        crop=image.crop,
        success_label=success_label,
        skip_broken=True,
    )
    if (found := dataset.images.shape[1:3]) != wanted:
        raise DatasetError(
            f"{folder} has images of {found[0]}x{found[1]} pixels (height x width). Expected "
            f"{wanted[0]}x{wanted[1]}, as the bundle's network takes them; give the images that "
            "it was trained on, or others of that size."
        )
    return dataset


def chosen_of(dataset: Dataset, indices: Indices) -> Dataset:
    """Return some images of a dataset."""
    digest = hashlib.sha256(dataset.sha256.encode() + indices.tobytes())
    return dataclasses.replace(
        dataset,
        images=dataset.images[indices],
        labels=dataset.labels[indices],
        episodes=dataset.episodes[indices],
        categories=dataset.categories[indices],
        distances=dataset.distances[indices],
        files=tuple(dataset.files[index] for index in indices.tolist()),
        sha256=digest.hexdigest(),
    )


def joined(
    dataset: Dataset, images: npt.NDArray[np.uint8], labels: Indices, category: str = CATEGORY
) -> Dataset:
    """Return a dataset with more images behind the others, an episode each."""
    count = len(labels)
    digest = hashlib.sha256(dataset.sha256.encode() + images.tobytes())
    first = int(dataset.episodes.max()) + 1
    return dataclasses.replace(
        dataset,
        images=np.concatenate([dataset.images, images]),
        labels=np.concatenate([dataset.labels, labels]),
        episodes=np.concatenate([dataset.episodes, first + np.arange(count)]),
        categories=np.concatenate([dataset.categories, np.full(count, category)]),
        distances=np.concatenate([dataset.distances, np.full(count, np.nan)]),
        files=(*dataset.files, *(f"{category}/{index}" for index in range(count))),
        sha256=digest.hexdigest(),
    )
