"""Kinematics of the Franka Panda in plain numpy: where its links are, and how to reach a point.

Joint vectors hold seven arm joints in radians and two fingers in metres. Links are numbered as
PyBullet numbers those of ``franka_panda/panda.urdf``: 0-6 arm, 7 flange, 8 hand, 9-10 fingers,
11 the point between the finger tips (the gripper). Every function takes one arm or a batch.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vinoreward.errors import InputError
from vinoreward_envs import constants as c

Array = NDArray[np.float64]

POSITION_TOLERANCE: Final = 1e-6
"""Metres: ``inverse_kinematics`` stops here (ten times finer than it promises)."""
ROTATION_TOLERANCE: Final = 1e-5
"""Radians."""
MAX_ITERATIONS: Final = 60
# Enough damping for a nearly stretched arm, too little to slow the last steps.
DAMPING: Final = 1e-4
"""Added to the diagonal of the damped least squares."""
_DAMPED: Final[Array] = DAMPING * np.eye(6)
# Within a step the linear model holds; a longer error is approached in pieces of this length.
MAX_STEP: Final = 0.25
"""Largest component of the error, in metres and radians, that one step looks at."""


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


# A joint's transform is origin @ rotation_z(q), which is linear in cos q and sin q: three
# constant matrices per joint replace building and multiplying rotations at every call.
_ORIGINS = np.stack([_pose(_rotation(0, roll), (x, y, z)) for roll, x, y, z in c.JOINT_ORIGINS])
COSINES: Final[Array] = np.zeros_like(_ORIGINS)
COSINES[:, :, 0], COSINES[:, :, 1] = _ORIGINS[:, :, 0], _ORIGINS[:, :, 1]
SINES: Final[Array] = np.zeros_like(_ORIGINS)
SINES[:, :, 0], SINES[:, :, 1] = _ORIGINS[:, :, 1], -_ORIGINS[:, :, 0]
CONSTANTS: Final[Array] = np.zeros_like(_ORIGINS)
CONSTANTS[:, :, 2:] = _ORIGINS[:, :, 2:]
for _matrices in (COSINES, SINES, CONSTANTS):
    _matrices.setflags(write=False)

# Links 7-11 hang rigidly from link 6, but for the fingers' slide.
_FLANGE = _pose(np.eye(3), (0.0, 0.0, c.FLANGE_OFFSET))
_HAND = _FLANGE @ _pose(_rotation(2, c.HAND_YAW), (0.0, 0.0, 0.0))
_FINGER = _HAND @ _pose(np.eye(3), (0.0, 0.0, c.FINGER_OFFSET))
_GRIPPER = _HAND @ _pose(np.eye(3), (0.0, 0.0, c.GRIPPER_OFFSET))
AFTER_ARM: Final[Array] = np.stack([_FLANGE, _HAND, _FINGER, _FINGER, _GRIPPER])
"""``(5, 4, 4)`` poses of links 7-11 in that of link 6, the fingers closed."""
AFTER_ARM.setflags(write=False)

_ROLL, _PITCH, _YAW = c.GRIPPER_EULER
GRIPPER_ROTATION: Final[Array] = _rotation(2, _YAW) @ _rotation(1, _PITCH) @ _rotation(0, _ROLL)
"""The gripper's ``(3, 3)`` orientation throughout the task: pointing down."""
GRIPPER_ROTATION.setflags(write=False)
_JOINT_LOW = np.array(c.JOINT_LOW)
_JOINT_HIGH = np.array(c.JOINT_HIGH)


def link_poses(joints: ArrayLike) -> Array:
    """Return the world poses of all links for ``(..., 9)`` joints.

    They are ``(..., 12, 4, 4)`` float64 and of the links' URDF frames (not of their centres of
    mass), the arm's base at the origin.
    """
    q = np.asarray(joints, dtype=np.float64)
    if q.ndim == 0 or q.shape[-1] != c.JOINTS:
        raise InputError(
            f"Found joints of shape {q.shape}; expected (..., {c.JOINTS}): seven arm joints and "
            "two fingers. Pass all nine."
        )
    poses = np.empty((*q.shape[:-1], c.ARM_LINKS, 4, 4))
    _arm_poses(q, poses)
    poses[..., 7:, :, :] = poses[..., 6:7, :, :] @ AFTER_ARM
    slide = poses[..., 8, :3, 1]
    poses[..., 9, :3, 3] += slide * q[..., 7:8]
    poses[..., 10, :3, 3] -= slide * q[..., 8:9]
    return poses


def gripper_position(joints: ArrayLike) -> Array:
    """Return the gripper's ``(..., 3)`` world position in metres for ``(..., 9)`` joints."""
    position: Array = link_poses(joints)[..., c.GRIPPER_LINK, :3, 3].copy()
    return position


@functools.cache
def hover_home_joints() -> Array:
    """Return the ``(9,)`` joints of the home pose brought to hover height (read-only).

    Every hover point is reached from here, so that pose and picture do not depend on the path.
    """
    home = np.array(c.HOME_JOINTS)
    x, y, _ = gripper_position(home)
    joints = inverse_kinematics((x, y, c.HOVER_HEIGHT), home)
    joints.setflags(write=False)
    return joints


def inverse_kinematics(position: ArrayLike, start: ArrayLike) -> Array:
    """Return joints ``(9,)`` or ``(B, 9)`` that put the gripper at ``position``, pointing down.

    Damped least squares on the analytic Jacobian, to within 1e-5 m and 1e-5 rad, within the joint
    limits. The arm has one joint more than it needs: the answer is roughly the one nearest to
    ``start``, or to the home pose where none is found from there. Fingers are passed through.
    Positions are ``(3,)`` or ``(B, 3)`` in metres; one out of reach is an InputError.
    """
    target, q = _checked(position, start)
    single = q.ndim == 1
    if single:
        target, q = target[None], q[None]
    unsolved = _solve(q, target, np.arange(len(q)))
    if len(unsolved):
        # One start in some thousands leads into a corner of the joint limits.
        q[unsolved, : c.ARM_JOINTS] = c.HOME_JOINTS[: c.ARM_JOINTS]
        unsolved = _solve(q, target, unsolved)
    if len(unsolved):
        raise InputError(
            f"Found no joints within their limits that bring the gripper to "
            f"{target[unsolved[0]].round(4).tolist()} pointing down ({len(unsolved)} of {len(q)} "
            f"positions); expected positions within the arm's reach, such as x, y from "
            f"{c.WORKSPACE_LOW} to {c.WORKSPACE_HIGH} at z = {c.HOVER_HEIGHT}. Choose a nearer "
            "position."
        )
    return q[0] if single else q


def _solve(q: Array, target: Array, active: NDArray[np.intp]) -> NDArray[np.intp]:
    """Move rows ``active`` of ``q`` (B, 9) to their targets, in place; return the unsolved."""
    poses = np.empty((len(active), c.ARM_JOINTS, 4, 4))
    for _ in range(MAX_ITERATIONS):
        error, jacobian = _linearised(q[active], target[active], poses[: len(active)])
        open_ = (np.abs(error[:, :3]).max(axis=1) > POSITION_TOLERANCE) | (
            np.abs(error[:, 3:]).max(axis=1) > ROTATION_TOLERANCE
        )
        if not open_.all():
            active, error, jacobian = active[open_], error[open_], jacobian[open_]
        if not len(active):
            break
        q[active, : c.ARM_JOINTS] = _moved(q[active, : c.ARM_JOINTS], error, jacobian)
    return active


def _arm_poses(q: Array, out: Array) -> None:
    """Write the poses of links 0-6 into ``out[..., :7, :, :]``."""
    cos = np.cos(q[..., : c.ARM_JOINTS])[..., None, None]
    sin = np.sin(q[..., : c.ARM_JOINTS])[..., None, None]
    local = COSINES * cos + SINES * sin + CONSTANTS
    out[..., 0, :, :] = local[..., 0, :, :]
    for i in range(1, c.ARM_JOINTS):
        np.matmul(out[..., i - 1, :, :], local[..., i, :, :], out=out[..., i, :, :])


def _linearised(q: Array, target: Array, poses: Array) -> tuple[Array, Array]:
    """Return the error ``(B, 6)`` to the target and the gripper's Jacobian ``(B, 6, 7)``."""
    _arm_poses(q, poses)
    gripper = poses[:, 6] @ _GRIPPER
    jacobian = np.empty((len(q), 6, c.ARM_JOINTS))
    # A joint turns the gripper about its axis: by the axis times the way from its centre. Written
    # out, as np.cross costs five times as much.
    jacobian[:, 3:] = poses[:, :, :3, 2].transpose(0, 2, 1)
    away = (gripper[:, None, :3, 3] - poses[:, :, :3, 3]).transpose(2, 0, 1)
    for k in range(3):
        i, j = (k + 1) % 3, (k + 2) % 3
        jacobian[:, k] = jacobian[:, 3 + i] * away[j] - jacobian[:, 3 + j] * away[i]
    error = np.empty((len(q), 6))
    error[:, :3] = target - gripper[:, :3, 3]
    # Half the sum of the cross products of matching axes: the sine of the remaining angle times
    # its axis, which is the angle itself near the answer.
    turn = gripper[:, :3, :3] @ GRIPPER_ROTATION.T
    error[:, 3:] = 0.5 * (turn[:, (1, 2, 0), (2, 0, 1)] - turn[:, (2, 0, 1), (1, 2, 0)])
    return error, jacobian


def _moved(q: Array, error: Array, jacobian: Array) -> Array:
    """Return the arm joints ``(B, 7)`` one step nearer to the target, within their limits."""
    step = _step(error, jacobian)
    stuck = ((q >= _JOINT_HIGH) & (step > 0)) | ((q <= _JOINT_LOW) & (step < 0))
    if stuck.any():
        # A joint that leans on its limit cannot help: the six others share its part, which
        # clipping alone would leave undone for ever.
        step = _step(error, jacobian * ~stuck[:, None, :])
    within: Array = np.minimum(np.maximum(q + step, _JOINT_LOW), _JOINT_HIGH)
    return within


def _step(error: Array, jacobian: Array) -> Array:
    """Return the damped least-squares step ``(B, 7)``."""
    length = np.abs(error).max(axis=1, keepdims=True)
    bounded = error * (MAX_STEP / np.maximum(length, MAX_STEP))
    transposed = jacobian.transpose(0, 2, 1)
    square = jacobian @ transposed
    square += _DAMPED
    step: Array = (transposed @ np.linalg.solve(square, bounded[..., None]))[..., 0]
    return step


def _checked(position: ArrayLike, start: ArrayLike) -> tuple[Array, Array]:
    """Return float64 copies whose shapes match, or raise."""
    target = np.array(position, dtype=np.float64)
    q = np.array(start, dtype=np.float64)
    if (
        target.ndim not in (1, 2)
        or target.shape[-1] != 3
        or q.shape != (*target.shape[:-1], c.JOINTS)
    ):
        raise InputError(
            f"Found a position of shape {target.shape} and a start of shape {q.shape}; expected "
            f"(3,) and ({c.JOINTS},), or (B, 3) and (B, {c.JOINTS}). Pass one start per position."
        )
    if not (np.isfinite(target).all() and np.isfinite(q).all()):
        raise InputError(
            "Found NaN or infinity in the position or the start; expected finite metres and "
            "radians. Check where they come from."
        )
    return target, q
