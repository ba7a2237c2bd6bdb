"""The guard that a classifier's bundle gets, and how often it fires on clean images."""

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
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.ood import LEAST_EPISODES, OodDetector
from vinoreward_training.classifier.shifts import TRAINED, Shift, in_rooms, shifted
from vinoreward_training.configs import GuardConfig
from vinoreward_training.data.dataset import Dataset, load_labelled, split_by_episode
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.runs.bundles import with_guard
from vinoreward_training.runs.report import own_bundle

FITTED_ON = 6000
"""About as many training images are enough."""
LIT = 0.5
"""Share of them that is seen in other light, where the network was trained for that."""
LIGHT = tuple(shift for shift in TRAINED if shift.name in ("less light", "more light"))
"""What a guard lets pass then, as light changes through a day. To let other changes pass too would
hide from it what stands in the way and stronger blur."""
JUDGED = 2000
"""At most so many validation frames of each label, one of an episode, are judged in other light: of
500, five false claims by chance would narrow the light for a classifier that makes three."""
KEPT_RECALL = 0.8
"""Share of the recall that the network must keep in a light that the guard lets pass."""
FALSE_RATE = 0.01
"""Rate of false claims in such a light, unless it is higher on clean images."""
BATCH = 64

Claims = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.bool_]]
"""Says which images (N, H, W, 3) a network claims, (N,)."""


@dataclass(frozen=True)
class Fitted:
    """A guard, or why there is none."""

    guard: OodDetector | None
    metrics: dict[str, Any]
    """For ``metrics.guard`` of a bundle."""

    @property
    def files(self) -> dict[str, bytes]:
        """The bundle's file, if there is a guard."""
        return {} if self.guard is None else {GUARD_FILE: self.guard.to_bytes()}

    def __str__(self) -> str:
        if self.guard is None:
            return f"none: {self.metrics['why']}"
        low, high = self.metrics["light"]
        light = "" if low == high else f"; it lets light from {low:g} to {high:g} times pass"
        return (
            f"{self.metrics['ood']} of {self.metrics['frames']} clean test frames "
            "are out of distribution (at "
            f"most {self.metrics['ood_high']:.2%}){light}"
        )


def fit_guard(dataset: Dataset, parts: Sequence[Indices], claims: Claims | None) -> Fitted:
    """Fit a guard on the training part, choose its limit on the second, count on the third.

    ``claims`` of a network that was trained for shifted images: the guard lets the light pass in
    which it stays right on the second part. None lets none pass.
    """
    train, validation, test = parts
    episodes = dataset.episodes
    found = len(np.unique(episodes[validation]))
    if found < LEAST_EPISODES:
        why = f"it takes {LEAST_EPISODES} episodes to choose its limit, and there are {found}"
        return Fitted(None, {"why": why})
    images = dataset.images[train[:: max(1, len(train) // FITTED_ON)]]
    light = () if claims is None else _light(dataset, validation, claims)
    if light:
        images = in_rooms(images, LIT, np.random.default_rng(0x600B), dataset.views, light)
    guard = OodDetector.fit(images, dataset.images[validation], episodes[validation])
    ood = guard.ood_score(dataset.images[test]) > 1.0
    high = clopper_pearson(int(ood.sum()), len(ood), 0.95, "upper")[1]
    ends = [1.0, *(end for shift in light for end in shift.trained or ())]
    counts = {
        "rooms": claims is not None,
        "light": [min(ends), max(ends)],
        "ood": int(ood.sum()),
        "frames": len(ood),
        "ood_high": high,
        "ood_episodes": len(np.unique(episodes[test][ood])),
        "episodes": len(np.unique(episodes[test])),
    }
    return Fitted(guard, counts)


def _light(dataset: Dataset, part: Indices, claims: Claims) -> tuple[Shift, ...]:
    """Return the shifts ``LIGHT``, only as strong as the network stays right under them."""
    chosen = []
    for label in (0, 1):
        some = part[dataset.labels[part] == label]
        first = some[np.unique(dataset.episodes[some], return_index=True)[1]]
        chosen.append(first[:: -(-len(first) // JUDGED)] if len(first) else first)
    frames = np.concatenate(chosen)
    images, success = dataset.images[frames], dataset.labels[frames] == 1
    if success.all() or not success.any():
        return ()

    def rates(seen: npt.NDArray[np.uint8]) -> tuple[float, float]:
        claimed = claims(seen)
        return float(claimed[success].mean()), float(claimed[~success].mean())

    recall, false = rates(images)
    kept = []
    for shift in LIGHT:
        low, high = shift.trained or (1.0, 1.0)
        right = 1.0
        for strength in shift.strengths:
            if not low <= strength <= high:
                break
            now = rates(shifted(shift, strength, images, seed=0, views=dataset.views))
            if now[0] < KEPT_RECALL * recall or now[1] > max(FALSE_RATE, false):
                break
            right = strength
        if right != 1.0:
            kept.append(dataclasses.replace(shift, trained=(min(right, 1.0), max(right, 1.0))))
    return tuple(kept)


def of_rooms(metrics: Mapping[str, Any]) -> bool:
    """Return whether a bundle's guard is one of a network that was trained for shifted images."""
    recorded = metrics.get("guard")
    return isinstance(recorded, Mapping) and recorded.get("rooms") is True


def fit_guard_of(bundle: Bundle, dataset: Dataset) -> Fitted:
    """Fit a guard for a classifier's bundle as it decides in FP32; see :func:`fit_guard`."""
    parts = split_by_episode(dataset)
    if not of_rooms(bundle.spec.metrics):
        return fit_guard(dataset, parts, None)
    cut = bundle.of_cut_images()
    with contextlib.closing(Classifier(cut, precision="fp32", guarded=False)) as classifier:

        def claims(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
            batches = (images[at : at + BATCH] for at in range(0, len(images), BATCH))
            return np.concatenate([classifier.compute_reward(each) > 0 for each in batches])

        return fit_guard(dataset, parts, claims)


def run(config: GuardConfig) -> int:
    """Fit a guard on a folder of images and write it into the bundle; return 0."""
    bundle = own_bundle(config.bundle)
    spec = bundle.spec
    if spec.kind != "classifier":
        raise ConfigError(
            f"the bundle {spec.name!r} is an encoder. Expected a classifier's: a guard keeps its "
            "claims from counting; give such a --bundle."
        )
    dataset = load_labelled(config.data, spec.image, config.success_label)
    fitted = fit_guard_of(bundle, dataset)
    if fitted.guard is None:
        raise DatasetError(
            f"{config.data} gives no guard: {fitted.metrics['why']}. Expected more episodes; "
            "add images of others."
        )
    with_guard(bundle, fitted.guard.to_bytes(), fitted.metrics, str(fitted))
    print(f"guard: {fitted}")
    print(f"bundle {bundle.path}")
    return 0
