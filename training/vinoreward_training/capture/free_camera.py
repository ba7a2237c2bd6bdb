"""MuJoCo's free camera, which another process may find elsewhere."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

FREE = 0
"""MuJoCo's ``mjCAMERA_FREE``."""
MOVED = 0.003
"""Movement worth a word, as a share of the camera's distance: half a pixel of 100."""


def wandering_camera(env: Any) -> str | None:
    """Return what to say of an environment whose camera depends on its first episode, else None.

    Gymnasium aims MuJoCo's free camera, when it first draws, at the median of all places of bodies,
    and leaves it there. Call this after a reset that follows an image.
    """
    inner = env.unwrapped
    parts = [part for part in getattr(inner, "__dict__", {}).values() if isinstance(part, gym.Env)]
    for owner in (inner, *parts):
        renderer = getattr(owner, "mujoco_renderer", None)
        viewer = getattr(renderer, "viewer", None)
        places = getattr(getattr(viewer, "data", None), "geom_xpos", None)
        if viewer is None or places is None:
            continue
        given = getattr(renderer, "default_cam_config", None) or {}
        if int(viewer.cam.type) != FREE or "lookat" in given:
            return None
        moved = float(np.linalg.norm(np.median(places, axis=0) - viewer.cam.lookat))
        if moved <= MOVED * float(viewer.cam.distance):
            return None
        return (
            "note: the camera looks where the first episode of a process puts things; in a process "
            f"that began here it would look {moved:.2g} m to the side. Then train and play show "
            "the classifier another view than this capture, and it is wrong. Fix the view, "
            "where the environment takes one of these: --env-kwargs camera_name NAME, or "
            "default_camera_config \"{'lookat': [0, 0, 0]}\"."
        )
    return None
