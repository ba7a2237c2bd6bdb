"""Kinematics of the Franka Panda: where its links are, and how to reach a point.

Joint vectors hold seven arm joints in radians and two fingers in metres. Links are numbered as
PyBullet numbers those of ``franka_panda/panda.urdf``: 0-6 arm, 7 flange, 8 hand, 9-10 fingers,
11 the point between the finger tips (the gripper). Every function takes one arm or a batch.

The arithmetic is that of :mod:`vinoreward_envs.arm_kernels`, which cameras call on any device.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vinoreward.errors import InputError
from vinoreward_envs import constants as c
from vinoreward_envs.warp_device import WarpDevice, struct

Array = NDArray[np.float64]


def _rotation(axis: int, angle: float) -> Array:
    """Return the ``(3, 3)`` rotation about x (0), y (1) or z (2), in radians."""
    cos, sin = math.cos(angle), math.sin(angle)
    i, j = (axis + 1) % 3, (axis + 2) % 3
    rotation = np.eye(3)
    rotation[i, i], rotation[i, j], rotation[j, i], rotation[j, j] = cos, -sin, sin, cos
    return rotation


def _pose(rotation: Array, position: tuple[float, float, float]) -> Array:
    pose = np.eye(4)
    pose[:3, :3] = rotation
    pose[:3, 3] = position
    return pose


_ROLL, _PITCH, _YAW = c.GRIPPER_EULER
GRIPPER_ROTATION: Final[Array] = _rotation(2, _YAW) @ _rotation(1, _PITCH) @ _rotation(0, _ROLL)
"""The gripper's ``(3, 3)`` orientation throughout the task: pointing down."""


@functools.cache
def arm_struct(device: str) -> Any:
    """Return the arm's geometry on a device, as the kernels take it."""
    from vinoreward_envs.arm_kernels import Arm, Joints

    memory = WarpDevice(device)
    # A joint's transform is origin @ rotation_z(q), which is linear in cos q and sin q.
    origins = np.stack([_pose(_rotation(0, roll), (x, y, z)) for roll, x, y, z in c.JOINT_ORIGINS])
    cosines, sines, constants = (np.zeros_like(origins) for _ in range(3))
    cosines[:, :, :2] = origins[:, :, :2]
    sines[:, :, 0], sines[:, :, 1] = origins[:, :, 1], -origins[:, :, 0]
    constants[:, :, 2:] = origins[:, :, 2:]
    # Links 7-11 hang rigidly from link 6, but for the fingers' slide.
    flange = _pose(np.eye(3), (0.0, 0.0, c.FLANGE_OFFSET))
    hand = flange @ _pose(_rotation(2, c.HAND_YAW), (0.0, 0.0, 0.0))
    finger = hand @ _pose(np.eye(3), (0.0, 0.0, c.FINGER_OFFSET))
    gripper = hand @ _pose(np.eye(3), (0.0, 0.0, c.GRIPPER_OFFSET))
    matrices = {
        "cosines": cosines, "sines": sines, "constants": constants,
        "after_arm": np.stack([flange, hand, finger, finger, gripper]),
    }  # fmt: skip
    return struct(
        Arm,
        **{name: memory.of(each, memory.warp.mat44d) for name, each in matrices.items()},
        pointing=memory.warp.mat33d(*GRIPPER_ROTATION.ravel()),
        low=Joints(*c.JOINT_LOW, 0.0, 0.0),
        high=Joints(*c.JOINT_HIGH, 0.0, 0.0),
        home=Joints(*c.HOME_JOINTS),
    )


def inverse_kinematics(position: ArrayLike, start: ArrayLike | None = None) -> Array:
    """Return joints ``(9,)`` or ``(B, 9)`` that put the gripper at ``position``, pointing down.

    To within 1e-5 m and 1e-5 rad, within the joint limits. The arm has one joint more than it
    needs: the answer is roughly the one nearest to ``start``, or to the home pose where none is
    found from there. Fingers are passed through. Positions are ``(3,)`` or ``(B, 3)`` in metres,
    starts the same with nine; None: ``HOVER_JOINTS``. A position out of reach is an InputError.
    """
    target = np.array(position, dtype=np.float64)
    if start is None:
        start = np.broadcast_to(c.HOVER_JOINTS, (*target.shape[:-1], c.JOINTS))
    q = np.array(start, dtype=np.float64)
    fits = target.ndim in (1, 2) and target.shape[-1] == 3
    if not fits or q.shape != (*target.shape[:-1], c.JOINTS):
        raise InputError(
            f"Found a position of shape {target.shape} and a start of shape {q.shape}; expected "
            f"(3,) and ({c.JOINTS},), or (B, 3) and (B, {c.JOINTS}). Pass one start per position."
        )
    if not (np.isfinite(target).all() and np.isfinite(q).all()):
        raise InputError(
            "Found NaN or infinity in the position or the start; expected finite metres and "
            "radians. Check where they come from."
        )
    targets, starts = target.reshape(-1, 3), q.reshape(-1, c.JOINTS)
    from vinoreward_envs import arm_kernels

    device, count = WarpDevice("cpu"), len(targets)
    rows, solved = (
        device.zeros(count, dtype=kind) for kind in (device.warp.int32, device.warp.uint8)
    )
    joints = device.zeros(count, dtype=arm_kernels.Joints)
    given = device.of(targets, device.warp.vec3d), device.of(starts, arm_kernels.Joints)
    inputs = [rows, *given, arm_struct("cpu"), joints, solved]
    device.record_launch(arm_kernels.reach, (), inputs)(count)
    reached = solved.numpy() == 1
    if not reached.all():
        raise InputError(
            f"Found no joints within their limits that bring the gripper to "
            f"{targets[~reached][0].round(4).tolist()} pointing down ({(~reached).sum()} of "
            f"{count} positions); expected positions within the arm's reach, such as x, y from "
            f"{c.WORKSPACE_LOW} to {c.WORKSPACE_HIGH} at z = {c.HOVER_HEIGHT}. Choose a nearer "
            "position."
        )
    answer: Array = joints.numpy().reshape(q.shape).copy()
    return answer
