"""The arm's kinematics: against PyBullet, and by their own laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vinoreward.errors import InputError
from vinoreward_envs import arm, arm_kernels
from vinoreward_envs import constants as c
from vinoreward_envs.arm import arm_struct
from vinoreward_envs.warp_device import WarpDevice

workspace_xy = st.tuples(
    st.floats(c.WORKSPACE_LOW[0], c.WORKSPACE_HIGH[0]),
    st.floats(c.WORKSPACE_LOW[1], c.WORKSPACE_HIGH[1]),
)


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


def bullet_link_poses(joints: np.ndarray) -> np.ndarray:
    """Return the ``(N, 12, 4, 4)`` world poses of the links' frames for ``(N, 9)`` joints."""
    import pybullet as bullet
    import pybullet_data

    client = bullet.connect(bullet.DIRECT)
    arm = bullet.loadURDF(
        f"{pybullet_data.getDataPath()}/{c.ARM_URDF}", useFixedBase=True, physicsClientId=client
    )
    poses = np.tile(np.eye(4), (len(joints), c.ARM_LINKS, 1, 1))
    for row, of_links in zip(joints, poses, strict=True):
        for joint, value in zip(c.JOINT_INDICES, row, strict=True):
            bullet.resetJointState(arm, joint, value, physicsClientId=client)
        for link in range(c.ARM_LINKS):
            state = bullet.getLinkState(
                arm, link, computeForwardKinematics=True, physicsClientId=client
            )
            of_links[link, :3, :3] = np.reshape(bullet.getMatrixFromQuaternion(state[5]), (3, 3))
            of_links[link, :3, 3] = state[4]
    bullet.disconnect(client)
    return poses


@pytest.mark.pybullet
def test_links_are_where_pybullet_has_them() -> None:
    rng = np.random.default_rng(0)
    joints = np.concatenate(
        [rng.uniform(c.JOINT_LOW, c.JOINT_HIGH, (50, 7)), rng.uniform(0, 0.04, (50, 2))], axis=1
    )
    np.testing.assert_allclose(link_poses(joints), bullet_link_poses(joints), rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(start=workspace_xy, end=workspace_xy)
@example(start=(0.69921875, -0.390625), end=(0.4375, 0.25))
def test_inverse_kinematics_reaches_every_point_of_the_workspace_from_any_other(
    start: tuple[float, float], end: tuple[float, float]
) -> None:
    """To a micrometre from the start of episodes, so that states need no joints."""
    joints = arm.inverse_kinematics((*end, c.HOVER_HEIGHT))
    pose = link_poses(joints)[c.GRIPPER_LINK]
    np.testing.assert_allclose(pose[:3, 3], (*end, c.HOVER_HEIGHT), rtol=0, atol=1e-6)
    np.testing.assert_allclose(pose[:3, :3], arm.GRIPPER_ROTATION, atol=1e-4)
    assert (joints[:7] >= c.JOINT_LOW).all() and (joints[:7] <= c.JOINT_HIGH).all()
    np.testing.assert_array_equal(joints[7:], np.array(c.HOVER_JOINTS)[7:])
    elsewhere = arm.inverse_kinematics((*start, c.HOVER_HEIGHT))
    again = arm.inverse_kinematics((*end, c.HOVER_HEIGHT), elsewhere)
    np.testing.assert_allclose(gripper_position(again), (*end, c.HOVER_HEIGHT), atol=1e-5)


def test_a_batch_gives_what_single_calls_give() -> None:
    targets = np.random.default_rng(1).uniform((0.4, -0.4, 0.1), (0.7, 0.4, 0.1), (40, 3))
    starts = np.tile(np.array(c.HOVER_JOINTS), (40, 1))
    batch = arm.inverse_kinematics(targets, starts)
    assert batch.shape == (40, 9)
    for target, start, joints in zip(targets, starts, batch, strict=True):
        np.testing.assert_allclose(joints, arm.inverse_kinematics(target, start), atol=1e-9)
    np.testing.assert_array_equal(starts, np.tile(np.array(c.HOVER_JOINTS), (40, 1)))


def test_the_home_pose_is_brought_to_hover_height() -> None:
    x, y, z = gripper_position(c.HOVER_JOINTS)
    assert z == pytest.approx(c.HOVER_HEIGHT, abs=1e-5)
    assert (x, y) == pytest.approx(tuple(gripper_position(c.HOME_JOINTS)[:2]), abs=1e-5)
    assert (x, y) == pytest.approx(c.HOVER_START, abs=1e-9)
    reached = arm.inverse_kinematics((*c.HOVER_START, c.HOVER_HEIGHT), c.HOME_JOINTS)
    np.testing.assert_allclose(reached, c.HOVER_JOINTS, atol=1e-6)


@pytest.mark.parametrize(
    ("position", "start", "found"),
    [
        ((0.5, 0.0), np.zeros(9), r"\(2,\)"),
        ((0.5, 0.0, 0.1), np.zeros(7), r"\(7,\)"),
        (np.zeros((2, 3)), np.zeros(9), r"\(2, 3\)"),
        ((0.5, np.nan, 0.1), np.zeros(9), "NaN"),
        ((3.0, 0.0, 0.1), np.array(c.HOME_JOINTS), "3.0, 0.0, 0.1"),
    ],
)
def test_inverse_kinematics_says_what_is_wrong(
    position: object, start: np.ndarray, found: str
) -> None:
    with pytest.raises(InputError, match=found):
        arm.inverse_kinematics(position, start)  # type: ignore[arg-type]
