"""Names that golden traces use and that a rename of the code changes: this module alone follows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vinoreward import ImageInInfo as ImageInInfo
from vinoreward.errors import OutOfDistributionError as OutOfDistributionError
from vinoreward_envs import panda_hover_vector

__all__ = ["ImageInInfo", "OutOfDistributionError"]

IMAGE_KEY = "image"
"""Where :data:`ImageInInfo` puts an image in ``info``."""
SUCCESS_FILTER = "success_filter"
"""Argument of a learned reward: ``f(observation, probability) -> bool``."""
ADDED_BY_A_WRAPPER = frozenset({"original_env_rew"})
"""What a learned reward around the hover scene would write into ``info``, and the scene does not
today. A replay may have it."""


def claimed_image(env: Any, index: int) -> Any:
    """Return the image of the last claim of one of a wrapper's or scene's environments, or None."""
    claimed = getattr(env, "claimed_image", None)
    return None if claimed is None else claimed(index)


def claimed_image_of_one(env: Any) -> Any:
    """Return that of ``gym.make`` of a hover environment."""
    learned = env.has_wrapper_attr("claimed_image")
    return env.get_wrapper_attr("claimed_image")() if learned else None


@contextlib.contextmanager
def tensors_stay() -> Iterator[None]:
    """Let a hover batch of tensors on a processor do what it does on a GPU."""
    before, panda_hover_vector.STAYS_ON_CPU = panda_hover_vector.STAYS_ON_CPU, True
    try:
        yield
    finally:
        panda_hover_vector.STAYS_ON_CPU = before
