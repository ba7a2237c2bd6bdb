"""Where the object lies that the gripper hovers above."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vinoreward_envs import constants as c


def object_rest_pose(
    xy: tuple[float, float], yaw: float = 0.0, size: float = 1.0
) -> NDArray[np.float64]:
    """Return the ``(4, 4)`` world pose of an object's base at rest at x, y in metres.

    ``yaw`` turns it about the vertical through its base, in degrees. One of another ``size`` lies
    on the table too; the pose has a rotation and no size.

    As PyBullet's ``getBasePositionAndOrientation`` reports it: of the object's centre of mass, in
    this URDF also the origin of its link frame. Measured by dropping the object at (0.65, -0.30,
    0.10) until it lay still; the place is where the base ends (the drop moves it 3 mm along x).
    """
    _, half, _, rest = c.OBJECT_REST_ROTATION
    sin, cos = 2.0 * half * rest, rest * rest - half * half
    turned, ahead = np.sin(np.radians(yaw)), np.cos(np.radians(yaw))
    turn = np.array([[ahead, -turned, 0.0], [turned, ahead, 0.0], [0.0, 0.0, 1.0]])
    pose = np.eye(4)
    pose[:3, :3] = turn @ [[cos, 0.0, sin], [0.0, 1.0, 0.0], [-sin, 0.0, cos]]
    rise = c.OBJECT_REST_HEIGHT - c.TABLE_TOP
    pose[:3, 3] = *xy, c.OBJECT_REST_HEIGHT + (size - 1.0) * rise
    return pose
