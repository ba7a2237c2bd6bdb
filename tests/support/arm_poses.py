"""Poses of the arm's links, as the cameras' kernel finds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from vinoreward_envs import arm_kernels
from vinoreward_envs import constants as c
from vinoreward_envs.arm import arm_struct
from vinoreward_envs.warp_device import WarpDevice


def link_poses(joints: Any) -> np.ndarray:
    """Return the ``(..., 12, 4, 4)`` world poses of the links' frames for ``(..., 9)`` joints."""
    q = np.asarray(joints, np.float64)
    device, flat = WarpDevice("cpu"), np.ascontiguousarray(q.reshape(-1, c.JOINTS))
    rows = device.zeros(len(flat), dtype=device.warp.int32)
    bodies = device.zeros(len(flat), c.ARM_LINKS + 2, dtype=device.warp.mat44d)
    inputs = [rows, device.of(flat, arm_kernels.Joints), arm_struct("cpu"), bodies]
    device.record_launch(arm_kernels.pose_links, (), inputs)(len(flat))
    return bodies.numpy()[:, 1:-1].reshape(*q.shape[:-1], c.ARM_LINKS, 4, 4).copy()


def gripper_position(joints: Any) -> np.ndarray:
    """Return the gripper's ``(..., 3)`` world position in metres for ``(..., 9)`` joints."""
    return link_poses(joints)[..., c.GRIPPER_LINK, :3, 3]
