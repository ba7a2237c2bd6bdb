"""Many hover scenes at once, without pictures: where grippers and objects are.

In kinematic motion the arm does what it is told, so the gripper is at the point it was sent to and
a step of the state is a sum and a comparison. Joints are needed for pictures alone. The scalar
scene takes the gripper's place from its joints, which inverse kinematics brings to within
``POSITION_TOLERANCE`` (1e-6 m) of that point, so after the ten steps of an episode the two differ
by at most 1e-5 m. With ``joints=True`` the batch does the same as the scalar scene, to the last
digits, and pictures are equal.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from vinoreward_envs import constants as c
from vinoreward_envs.arm import gripper_position, hover_home_joints, inverse_kinematics
from vinoreward_envs.arrays import Array, Arrays

_ARMS: Final = 1024
"""Arms whose joints are solved at once: about 5 kB each."""

Floats = NDArray[np.float64]


class BatchedHover:
    """N grippers and objects, as ``(N, ...)`` float64 arrays; nothing is checked here.

    Args:
        arrays: of which kind, and where.
        count: N.
        joints: solve the joints in every step and take the grippers' places from them.
    """

    def __init__(self, arrays: Arrays, count: int, *, joints: bool) -> None:
        self._arrays = arrays
        self._home = arrays.of(gripper_position(hover_home_joints())[:2])
        low, high = np.array(c.WORKSPACE_LOW), np.array(c.WORKSPACE_HIGH)
        self._limits = arrays.of(low), arrays.of(high)
        self._edges = arrays.of(low - c.EDGE_TOLERANCE), arrays.of(high + c.EDGE_TOLERANCE)
        self._solved = np.tile(hover_home_joints(), (count, 1)) if joints else None
        self.gripper: Array = arrays.of(np.zeros((count, 2)))
        """``(N, 2)`` x, y in metres; it hovers at ``HOVER_HEIGHT``."""
        self.objects: Array = arrays.of(np.zeros((count, 2)))
        """``(N, 2)`` x, y of the objects' bases in metres."""

    @property
    def joints(self) -> Floats:
        """The ``(N, 9)`` joints, in the host's memory."""
        if self._solved is not None:
            return self._solved
        return hovering_joints(self._arrays.host(self.gripper))

    def restart(self, mask: Array, objects: Array) -> None:
        """Bring the arms home where ``mask`` is True, and put ``(N, 2)`` objects there."""
        where, rows = self._arrays.xp.where, mask[:, None]
        self.gripper = where(rows, self._home, self.gripper)
        self.objects = where(rows, objects, self.objects)
        if self._solved is not None:
            self._solved[self._arrays.host(mask)] = hover_home_joints()

    def move(self, moves: Array, asked: Array, error: Array | None = None) -> Array:
        """Move the grippers by ``(N, 2)`` metres where ``asked``; return where that is refused.

        A move is refused that would leave the workspace; that gripper stays where it is. ``error``
        is by how much each misses its end, which stays in the workspace; None: by nothing.
        """
        xp = self._arrays.xp
        target = self.gripper + moves
        outside = ((target < self._edges[0]) | (target > self._edges[1])).any(1)
        if error is not None:
            target = target + error
        target = xp.clip(target, *self._limits)
        moved = asked & ~outside
        if self._solved is not None:
            rows = np.flatnonzero(self._arrays.host(moved))
            reached = self._arrays.host(target).copy()
            self._solved[rows] = hovering_joints(reached[rows])
            reached[rows] = gripper_position(self._solved[rows])[:, :2]
            target = self._arrays.take_over(reached)
        self.gripper = xp.where(moved[:, None], target, self.gripper)
        return asked & outside

    def distance(self) -> Array:
        """Return the ``(N,)`` horizontal distances gripper to object in metres."""
        away = self.gripper - self.objects
        return self._arrays.xp.hypot(away[:, 0], away[:, 1])


def hovering_joints(points: Floats) -> Floats:
    """Return the ``(N, 9)`` joints of grippers at ``(N, 2)``, at hover height."""
    joints = np.empty((len(points), c.JOINTS))
    for start in range(0, len(points), _ARMS):
        part = points[start : start + _ARMS]
        targets = np.column_stack([part, np.full(len(part), c.HOVER_HEIGHT)])
        home = np.broadcast_to(hover_home_joints(), (len(part), c.JOINTS))
        joints[start : start + _ARMS] = inverse_kinematics(targets, home)
    return joints
