"""What a bundle was trained and calibrated on, and which frames of a dataset are new to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.schema import BundleSpec
from vinoreward_training.data.dataset_files import Indices

SPLIT = "episode hash 1"
"""Name of the way :func:`split_of` splits; recorded wherever a split was used."""
HELD_OUT_SHARES = (0.15, 0.15)
"""Shares of a dataset's episodes for validation and test."""
LEAST_HELD_OUT = {"classifier": 200, "encoder": 50}
"""Fewest held-out frames that an INT8 network is compared on."""
LEAST_AUDITED = 30
"""Fewest episodes of each label in an audit: with fewer, no rate has a useful interval."""
MOST_DATASETS = 32
"""Most datasets and captures that a bundle records of its training."""


def origin_of(about: Mapping[str, Any]) -> str | None:
    """Return what identifies a capture's episodes besides their numbers, None if not recorded.

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


def split_of(identities: Sequence[bytes]) -> Indices:
    """Return the part of each episode: 0 for validation, 1 for test, 2 for training."""
    salt = SPLIT.encode() + b"\0"
    drawn = [int.from_bytes(hashlib.sha256(salt + name).digest()[:6], "big") for name in identities]
    limits = np.cumsum((*HELD_OUT_SHARES, 1.0)) * 2.0**48
    part = np.searchsorted(limits, np.array(drawn, dtype=np.float64), side="right")
    return part.astype(np.int64)


class TrainingProvenance(NamedTuple):
    """What a bundle was trained and calibrated on, as recorded in it."""

    trained: frozenset[str]
    """Captures (:func:`origin_of`) and SHA-256 of datasets."""
    calibrated: frozenset[str]
    complete: bool
    """Whether all captures of its training are recorded."""

    @classmethod
    def of(cls, spec: BundleSpec) -> TrainingProvenance:
        """Return the provenance that a bundle records."""
        training, calibration = (
            value if isinstance(value := spec.dataset.get(name), Mapping) else {}
            for name in ("trained_on", "calibrated_on")
        )
        captures, datasets = _texts(training.get("captures")), _texts(training.get("datasets"))
        # A full record may have lost its oldest.
        complete = training.get("complete") is not False and bool(captures)
        complete &= len(datasets) <= len(captures) < MOST_DATASETS
        return cls(
            frozenset([*captures, *datasets, *_texts([spec.dataset.get("sha256")])]),
            frozenset(_texts([calibration.get("capture"), calibration.get("sha256")])),
            complete,
        )


def _texts(values: object) -> list[str]:
    """Return the texts of a list from an untrusted file."""
    some = values[-MOST_DATASETS:] if isinstance(values, list) else []
    return [value for value in some if isinstance(value, str)]


def find_new_frames(
    spec: BundleSpec, episodes: Indices, origin: str | None, sha256: str | None = None,
    identities: Sequence[bytes] | None = None,
) -> tuple[npt.NDArray[np.bool_], str]:  # fmt: skip
    """Return which frames (N,) of a dataset are new to a bundle, and a sentence on it.

    ``episodes`` are their (N,) numbers, ``origin`` is :func:`origin_of` the dataset and ``sha256``
    its hash, None where unknown. With a hash go the ``identities`` of the episodes, by number.
    """
    every = np.ones(len(episodes), np.bool_)
    known, names = TrainingProvenance.of(spec), {origin, sha256}
    how = next((how for how in ("trained", "calibrated") if names & getattr(known, how)), None)
    if how is None and origin is not None and known.complete:
        return every, "The bundle was trained on other episodes."
    if how is None:
        return every, (
            "Nothing says whether the bundle was trained on these; if so, the rates are too good."
        )
    numbers, inverse = np.unique(episodes, return_inverse=True)
    held_out = split_of(identities or identities_of(origin or "", numbers)) == 1
    return held_out[inverse], (
        f"The bundle was {how} on episodes of these: only the {held_out.sum()} that were kept for "
        "the test are used."
    )
