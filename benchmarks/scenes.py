"""Parts of several benchmarks: the shipped bundle, posed arms."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.bundles.bundle import Bundle
from vinoreward_envs.constants import HOVER_HEIGHT, WORKSPACE_HIGH, WORKSPACE_LOW

BUNDLE = "panda-hover-classifier"
ENCODER = "panda-hover-encoder"
Images = npt.NDArray[np.uint8]


def shipped() -> Bundle:
    """Return the shipped classifier's bundle."""
    return Bundle.load(BUNDLE)


def placed(count: int, seed: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return random places in the workspace: grippers (N, 3) at hover height, objects (N, 2)."""
    draw = np.random.default_rng(seed)
    grippers, objects = draw.uniform(WORKSPACE_LOW, WORKSPACE_HIGH, (2, count, 2))
    return np.column_stack([grippers, np.full(count, HOVER_HEIGHT)]), objects
