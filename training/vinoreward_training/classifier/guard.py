"""The guard that a classifier's bundle gets, and how often it fires on clean pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vinoreward.bundles.save import with_guard
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.rewards.calibration import clopper_pearson
from vinoreward.rewards.guard import GUARD_FILE, LEAST_EPISODES, PictureGuard
from vinoreward_training.classifier.shifts import TRAINED, in_rooms
from vinoreward_training.configs import GuardConfig
from vinoreward_training.data.dataset import Dataset, load_labelled, split_by_episode
from vinoreward_training.data.dataset_files import Indices
from vinoreward_training.runs.report import own_bundle

FITTED_ON = 6000
"""About as many training pictures are enough."""
LIT = 0.5
"""Share of them that is seen in other light, where the network was trained for that."""
LIGHT = tuple(shift for shift in TRAINED if shift.name in ("less light", "more light"))
"""What a guard lets pass then, as light changes through a day. To let other changes pass too would
hide from it what stands in the way and stronger blur."""


@dataclass(frozen=True)
class Fitted:
    """A guard, or why there is none."""

    guard: PictureGuard | None
    metrics: dict[str, Any]
    """For ``metrics.guard`` of a bundle."""

    @property
    def files(self) -> dict[str, bytes]:
        """The bundle's file, if there is a guard."""
        return {} if self.guard is None else {GUARD_FILE: self.guard.to_bytes()}

    def __str__(self) -> str:
        if self.guard is None:
            return f"none: {self.metrics['why']}"
        return (
            f"{self.metrics['odd']} of {self.metrics['frames']} clean test frames are odd (at "
            f"most {self.metrics['odd_high']:.2%})"
        )


def fit_guard(dataset: Dataset, parts: Sequence[Indices], *, rooms: bool) -> Fitted:
    """Fit a guard on the training part, choose its limit on the second, count on the third.

    ``rooms``: whether the network was trained for shifted pictures too.
    """
    train, validation, test = parts
    episodes = dataset.episodes
    found = len(np.unique(episodes[validation]))
    if found < LEAST_EPISODES:
        why = f"it takes {LEAST_EPISODES} episodes to choose its limit, and there are {found}"
        return Fitted(None, {"why": why})
    images = dataset.images[train[:: max(1, len(train) // FITTED_ON)]]
    if rooms:
        random = np.random.default_rng(0x600B)
        images = in_rooms(images, LIT, random, dataset.views, LIGHT)
    guard = PictureGuard.fit(images, dataset.images[validation], episodes[validation])
    odd = guard.odd(dataset.images[test]) > 1.0
    high = clopper_pearson(int(odd.sum()), len(odd), 0.95, "upper")[1]
    counts = {"rooms": rooms, "odd": int(odd.sum()), "frames": len(odd), "odd_high": high}
    counts["odd_episodes"] = len(np.unique(episodes[test][odd]))
    counts["episodes"] = len(np.unique(episodes[test]))
    return Fitted(guard, counts)


def of_rooms(metrics: Mapping[str, Any]) -> bool:
    """Return whether a bundle's guard is one of a network that was trained for shifted pictures."""
    recorded = metrics.get("guard")
    return isinstance(recorded, Mapping) and recorded.get("rooms") is True


def run(config: GuardConfig) -> int:
    """Fit a guard on a folder of pictures and write it into the bundle; return 0."""
    bundle = own_bundle(config.bundle)
    spec = bundle.spec
    if spec.kind != "classifier":
        raise ConfigError(
            f"the bundle {spec.name!r} is an encoder. Expected a classifier's: a guard keeps its "
            "claims from counting; give such a --bundle."
        )
    dataset = load_labelled(config.data, spec.picture, config.success_label)
    fitted = fit_guard(dataset, split_by_episode(dataset), rooms=of_rooms(spec.metrics))
    if fitted.guard is None:
        raise DatasetError(
            f"{config.data} gives no guard: {fitted.metrics['why']}. Expected more episodes; "
            "capture more."
        )
    with_guard(bundle, fitted.guard.to_bytes(), fitted.metrics)
    print(f"guard: {fitted}")
    print(f"bundle {bundle.path}")
    return 0
