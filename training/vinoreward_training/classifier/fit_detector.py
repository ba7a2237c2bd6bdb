"""Fits the OOD detector of a classifier's bundle to clean images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.rewards.ood import COLOURS, PARTS, Images, Measures, OodDetector

FALSE_ALARMS = 0.002
"""Share of clean episodes that may have an out-of-distribution frame, if enough are there."""
MARGIN = 1.25
"""The limit is this times what the clean episodes ask for: a policy sees what no capture saw."""
LEAST_EPISODES = 20
"""Fewest episodes to choose a limit on."""

_TOLERATED = 6
"""Grey levels by which a colour may differ from one that was seen."""
_RARE = 5e-4
"""A colour was seen in a place if this share of the images had a pixel of it there."""
_FLOORS = (0.002, 0.02, 1.0)
"""Least scale of each measure: share of all pixels, of a place's pixels, roughness."""
_ROUGH_FLOOR = 0.05
_BATCH = 256


def fit_detector(images: Images, held_out: Images, episodes: NDArray[Any]) -> OodDetector:
    """Return a detector that has learned what clean images are like.

    The limit is split conformal by episode (Vovk, Gammerman & Shafer 2005): a new one of the
    same kind has an out-of-distribution frame with a probability of at most ``FALSE_ALARMS``,
    or ``1 / (n + 1)`` of n episodes if that is more.

    Args:
        images: ``(N, H, W, 3)`` uint8, images that the network was trained on.
        held_out: ``(M, H, W, 3)`` uint8, others of the same kind.
        episodes: ``(M,)`` which episode each is of; at least ``LEAST_EPISODES``.
    """
    names, of_frame = np.unique(np.asarray(episodes), return_inverse=True)
    height, width = images.shape[1:3]
    measures = Measures(height, width)
    rough = np.concatenate([measures.rough(part) for part in _batches(images)])
    mean = rough.mean(axis=0)
    kept = min(PARTS, len(rough) // 20, rough.shape[1] - 1)
    parts = np.linalg.svd(rough - mean, full_matrices=False)[2][: max(0, kept)]
    left = (rough - mean) - (rough - mean) @ parts.T @ parts
    detector = OodDetector(
        size=np.array([height, width]),
        seen=np.packbits(_seen(measures, images)),
        rough_mean=mean,
        rough_parts=parts,
        rough_scale=np.sqrt((left**2).mean(axis=0) + np.float32(_ROUGH_FLOOR**2)),
        scales=np.ones(3, np.float32),
        limit=np.ones(1, np.float32),
    )
    # With scales and a limit of 1 the multiples are the measures themselves.
    measures.fitted(detector)
    multiples = np.concatenate([measures.multiples(part) for part in _batches(held_out)])
    # Some episodes choose the scales and others the limit, or that would be too low.
    choosing = of_frame % 2 == 0
    scales = np.maximum(np.quantile(multiples[choosing], 0.999, axis=0), _FLOORS)
    largest = np.zeros(len(names))
    np.maximum.at(largest, of_frame, (multiples / scales).max(axis=1))
    ordered = np.sort(largest[1::2])
    rank = min(len(ordered), int(np.ceil((len(ordered) + 1) * (1 - FALSE_ALARMS))))
    limit = MARGIN * max(1.0, float(ordered[rank - 1]))
    return replace(detector, scales=scales.astype(np.float32), limit=np.array([limit], np.float32))


def _seen(measures: Measures, images: Images) -> NDArray[np.bool_]:
    """Return which colours were seen in which places, flat."""
    counts = np.zeros(measures.count * COLOURS, np.int64)
    for part in _batches(images):
        for off in (-_TOLERATED, 0, _TOLERATED):
            moved = np.clip(part.astype(np.int16) + off, 0, 255).astype(np.uint8)
            counts += np.bincount(measures.colours(moved).ravel(), minlength=len(counts))
    return np.asarray(counts >= max(2.0, _RARE * len(images)))


def _batches(images: Images) -> list[Images]:
    return [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]
