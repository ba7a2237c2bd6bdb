"""Where the object lies that the gripper hovers above."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from vinoreward_envs import constants as c

Array = NDArray[np.float64]
_, _HALF, _, _REST = c.OBJECT_REST_ROTATION
_SIN, _COS = 2.0 * _HALF * _REST, _REST * _REST - _HALF * _HALF
_LEANING: Final[Array] = np.array([[_COS, 0.0, _SIN], [0.0, 1.0, 0.0], [-_SIN, 0.0, _COS]])


def object_rest_pose(xy: tuple[float, float], yaw: float = 0.0, size: float = 1.0) -> Array:
    """Return the ``(4, 4)`` pose of one object, see :func:`object_rest_poses`."""
    pose: Array = object_rest_poses(np.array([xy]), yaw, size)[0]
    return pose


def object_rest_poses(places: Array, yaw: Array | float = 0.0, size: Array | float = 1.0) -> Array:
    """Return the ``(N, 4, 4)`` world poses of objects' bases at rest at ``(N, 2)`` metres.

    ``yaw`` turns each about the vertical through its base, in degrees. One of another ``size`` lies
    on the table too; the pose has a rotation and no size. Both are ``(N,)``, or one for all.

    As PyBullet's ``getBasePositionAndOrientation`` reports it: of the object's centre of mass, in
    this URDF also the origin of its link frame. Measured by dropping the object at (0.65, -0.30,
    0.10) until it lay still; the place is where the base ends (the drop moves it 3 mm along x).
    """
    poses = np.zeros((len(places), 4, 4))
    turn = np.zeros((len(places), 3, 3))
    angle = np.radians(yaw)
    turn[:, 0, 0] = turn[:, 1, 1] = np.cos(angle)
    turn[:, 1, 0] = np.sin(angle)
    turn[:, 0, 1] = -turn[:, 1, 0]
    turn[:, 2, 2] = poses[:, 3, 3] = 1.0
    poses[:, :3, :3] = turn @ _LEANING
    poses[:, :2, 3] = places
    rise = c.OBJECT_REST_HEIGHT - c.TABLE_TOP
    poses[:, 2, 3] = c.OBJECT_REST_HEIGHT + (size - 1.0) * rise
    return poses
