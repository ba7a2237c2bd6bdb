"""The truth of the dm_control walk: is the fingertip at the target?"""

from __future__ import annotations

from typing import Any


def reached(env: Any) -> bool:
    """Return whether the fingertip touches the target, as the task's own reward asks."""
    physics = env.physics
    radii = physics.named.model.geom_size[["target", "finger"], 0].sum()
    return bool(physics.finger_to_target_dist() <= radii)
