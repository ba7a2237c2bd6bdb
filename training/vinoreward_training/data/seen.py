"""Which images of a dataset a bundle has seen, and which are new to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.schema import BundleSpec
from vinoreward_training.data.dataset_files import Indices

SPLIT = "episode hash 1"
"""Name of the way :func:`sides_of` splits; recorded wherever a split was used."""
HELD_OUT_SHARES = (0.15, 0.15)
"""Shares of a dataset's episodes for validation and test."""
LEAST_HELD_OUT = {"classifier": 200, "encoder": 50}
"""Fewest held-out frames that an INT8 network is compared on."""
LEAST_AUDITED = 30
"""Fewest episodes of each label in an audit: below, no rate under a shift says anything."""
MOST_DATASETS = 32
"""So many of the datasets and captures that weights were trained on are recorded, and read."""


def origin_of(about: Mapping[str, Any]) -> str | None:
    """Return what identifies a capture's episodes beside their numbers, None if not recorded.

    Our scenes depend on seed and number alone, not on the environment's id or the image size.
    """
    scene, seed = about.get("scene"), about.get("seed")
    name = scene.get("scene") if isinstance(scene, dict) else None
    name = name or about.get("env")
    if not isinstance(name, str) or not isinstance(seed, int):
        return None
    return f"{name} seed {seed}"


def identities_of(origin: str, episodes: Indices) -> list[bytes]:
    """Return what identifies episodes, by their numbers, in any dataset."""
    return [f"{origin} episode {number}".encode() for number in episodes]


def sides_of(identities: Sequence[bytes]) -> Indices:
    """Return the part of each episode: 0 for validation, 1 for test, 2 for training."""
    salt = SPLIT.encode() + b"\0"
    drawn = [int.from_bytes(hashlib.sha256(salt + name).digest()[:6], "big") for name in identities]
    places = np.cumsum((*HELD_OUT_SHARES, 1.0))
    side = np.searchsorted(places * 2.0**48, np.array(drawn, dtype=np.float64), side="right")
    return side.astype(np.int64)


class Seen(NamedTuple):
    """What a bundle has been trained and calibrated on, as far as it says."""

    trained: frozenset[str]
    """Captures (:func:`origin_of`) and SHA-256 of datasets."""
    calibrated: frozenset[str]
    known: bool
    """Whether all captures of its training are surely known."""


def seen_by(spec: BundleSpec) -> Seen:
    """Return what a bundle has seen."""
    training, calibration = spec.dataset.get("trained_on"), spec.dataset.get("calibrated_on")
    training = training if isinstance(training, Mapping) else {}
    calibration = calibration if isinstance(calibration, Mapping) else {}
    captures, datasets = _texts(training.get("captures")), _texts(training.get("datasets"))
    # A full record may have lost its oldest.
    known = training.get("complete") is not False
    known &= len(datasets) <= len(captures) < MOST_DATASETS
    if not captures:
        # An older bundle, of one training: it has the training's seed, and the scene and
        # environment of its last images.
        captures = _texts([origin_of({**spec.dataset, "scene": spec.image.scene})])
        known = bool(captures) and not calibration
    return Seen(
        frozenset([*captures, *datasets, *_texts([spec.dataset.get("sha256")])]),
        frozenset(_texts([calibration.get("capture"), calibration.get("sha256")])),
        known,
    )


def _texts(values: object) -> list[str]:
    """Return the texts of a stranger's list."""
    some = values[-MOST_DATASETS:] if isinstance(values, list) else []
    return [value for value in some if isinstance(value, str)]


def unseen(
    spec: BundleSpec, episodes: Indices, origin: str | None, sha256: str | None = None,
    identities: Sequence[bytes] | None = None,
) -> tuple[npt.NDArray[np.bool_], str]:  # fmt: skip
    """Return which frames (N,) of a dataset are new to a bundle, and a sentence on it.

    ``episodes`` are their (N,) numbers, ``origin`` is :func:`origin_of` the dataset and ``sha256``
    its hash, None where unknown. With a hash go the ``identities`` of the episodes, by number.
    """
    everything = np.ones(len(episodes), np.bool_)
    seen, names = seen_by(spec), {origin, sha256}
    how = "trained" if names & seen.trained else "calibrated" if names & seen.calibrated else None
    if how is None and origin is not None and seen.known:
        return everything, "The bundle was trained on other episodes."
    if how is None:
        return everything, (
            "Nothing says whether the bundle was trained on these; if so, the rates are too good."
        )
    numbers, inverse = np.unique(episodes, return_inverse=True)
    kept = sides_of(identities or identities_of(origin or "", numbers)) == 1
    return kept[inverse], (
        f"The bundle was {how} on episodes of these: only the {kept.sum()} that were kept for the "
        "test are used."
    )
