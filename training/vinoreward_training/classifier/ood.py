"""The OOD detector that a classifier's bundle gets, and how often it fires on clean images."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.ood import OodDetector
from vinoreward_training.classifier.corruptions import (
    TRAINED,
    Corruption,
    corrupted,
    randomly_corrupted,
)
from vinoreward_training.classifier.fit_detector import LEAST_EPISODES, fit_detector
from vinoreward_training.data.dataset import Dataset, split_by_episode
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.runs.bundles import of_cut_images

MAX_FITTED = 6000
"""About so many training images are used."""
LIT = 0.5
"""Share of them in other light, where the network was trained for that."""
LIGHT = tuple(one for one in TRAINED if one.name in ("less light", "more light"))
"""What the detector then accepts, as light changes through a day. To accept other corruptions too
would hide from it occlusion and stronger blur."""
MAX_SCORED = 2000
"""At most so many validation frames of each label, one of an episode, are scored in other light: of
500, five false claims by chance would narrow the light for a classifier that makes three."""
KEPT_RECALL = 0.8
"""Share of the recall that the network must keep in a light that is accepted."""
FALSE_RATE = 0.01
"""Rate of false claims in such a light, unless it is higher on clean images."""
BATCH = 64

Claims = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.bool_]]
"""Says which images (N, H, W, 3) a network claims, (N,)."""


@dataclass(frozen=True)
class OodFit:
    """An OOD detector, or why there is none."""

    detector: OodDetector | None
    metrics: dict[str, Any]
    """For ``metrics.guard`` of a bundle."""

    @property
    def files(self) -> dict[str, bytes]:
        """The bundle's file, if there is a detector."""
        return {} if self.detector is None else {GUARD_FILE: self.detector.to_bytes()}

    def __str__(self) -> str:
        if self.detector is None:
            return f"none: {self.metrics['why']}"
        low, high = self.metrics["light"]
        light = "" if low == high else f"; it accepts light from {low:g} to {high:g} times"
        return (
            f"{self.metrics['ood']} of {self.metrics['frames']} clean test frames "
            f"are out of distribution (at most {self.metrics['ood_high']:.2%}){light}"
        )


def fit_ood(dataset: Dataset, parts: Sequence[Indices], claims: Claims | None) -> OodFit:
    """Fit a detector on the training part, choose its limit on the second, count on the third.

    ``claims`` are of a network that was trained on corrupted images: the detector accepts the light
    in which it stays right on the second part. None accepts no other light.
    """
    train, validation, test = parts
    episodes = dataset.episodes
    found = len(np.unique(episodes[validation]))
    if found < LEAST_EPISODES:
        why = f"it takes {LEAST_EPISODES} episodes to choose its limit, and there are {found}"
        return OodFit(None, {"why": why})
    images = dataset.images[train[:: max(1, len(train) // MAX_FITTED)]]
    light = () if claims is None else _accepted_light(dataset, validation, claims)
    if light:
        random = np.random.default_rng(0x600B)
        images = randomly_corrupted(images, LIT, random, dataset.views, light)
    detector = fit_detector(images, dataset.images[validation], episodes[validation])
    ood = detector.ood_score(dataset.images[test]) > 1.0
    ends = [1.0, *(end for one in light for end in one.trained or ())]
    counts = {
        "rooms": claims is not None,
        "light": [min(ends), max(ends)],
        "ood": int(ood.sum()),
        "frames": len(ood),
        "ood_high": clopper_pearson(int(ood.sum()), len(ood), 0.95, "upper")[1],
        "ood_episodes": len(np.unique(episodes[test][ood])),
        "episodes": len(np.unique(episodes[test])),
    }
    return OodFit(detector, counts)


def _accepted_light(dataset: Dataset, part: Indices, claims: Claims) -> tuple[Corruption, ...]:
    """Return ``LIGHT``, only as strong as the network stays right under it."""
    chosen = []
    for label in (0, 1):
        some = part[dataset.labels[part] == label]
        first = some[np.unique(dataset.episodes[some], return_index=True)[1]]
        chosen.append(first[:: -(-len(first) // MAX_SCORED)] if len(first) else first)
    frames = np.concatenate(chosen)
    images, success = dataset.images[frames], dataset.labels[frames] == 1
    if success.all() or not success.any():
        return ()

    def rates(changed: npt.NDArray[np.uint8]) -> tuple[float, float]:
        claimed = claims(changed)
        return float(claimed[success].mean()), float(claimed[~success].mean())

    recall, false = rates(images)
    accepted = []
    for one in LIGHT:
        low, high = one.trained or (1.0, 1.0)
        right = 1.0
        for strength in (each for each in one.strengths if low <= each <= high):
            now = rates(corrupted(one, strength, images, seed=0, views=dataset.views))
            if now[0] < KEPT_RECALL * recall or now[1] > max(FALSE_RATE, false):
                break
            right = strength
        if right != 1.0:
            accepted.append(dataclasses.replace(one, trained=(min(right, 1.0), max(right, 1.0))))
    return tuple(accepted)


def trained_on_corruptions(metrics: Mapping[str, Any]) -> bool:
    """Return whether a bundle's network was trained on corrupted images."""
    recorded = metrics.get("guard")
    return isinstance(recorded, Mapping) and recorded.get("rooms") is True


def fit_bundle_ood(bundle: Bundle, dataset: Dataset) -> OodFit:
    """Fit a detector for a classifier's bundle as it decides in FP32; see :func:`fit_ood`."""
    parts = split_by_episode(dataset)
    if not trained_on_corruptions(bundle.spec.metrics):
        return fit_ood(dataset, parts, None)
    cut = of_cut_images(bundle)
    with contextlib.closing(Classifier(cut, precision="fp32", guarded=False)) as classifier:

        def claims(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
            batches = (images[at : at + BATCH] for at in range(0, len(images), BATCH))
            return np.concatenate([classifier.compute_reward(each) > 0 for each in batches])

        return fit_ood(dataset, parts, claims)
