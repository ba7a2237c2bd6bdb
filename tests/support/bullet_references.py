"""The arm and the object as PyBullet has them."""

from __future__ import annotations

import numpy as np

from vinoreward_envs import constants as c


def link_poses(joints: np.ndarray) -> np.ndarray:
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


def fallen_object() -> np.ndarray:
    """Return the ``(4, 4)`` pose in which an object lies that was dropped onto the table."""
    import pybullet as bullet
    import pybullet_data

    data = pybullet_data.getDataPath()
    client = bullet.connect(bullet.DIRECT)
    bullet.setGravity(0, 0, c.GRAVITY, physicsClientId=client)
    bullet.loadURDF(f"{data}/{c.TABLE_URDF}", c.TABLE_POSITION, physicsClientId=client)
    start = (*c.FIXED_OBJECT, 0.10)
    body = bullet.loadURDF(f"{data}/{c.OBJECT_URDF}", start, physicsClientId=client)
    for _ in range(1500):
        bullet.stepSimulation(physicsClientId=client)
    place, turn = bullet.getBasePositionAndOrientation(body, physicsClientId=client)
    pose = np.eye(4)
    pose[:3, :3] = np.reshape(bullet.getMatrixFromQuaternion(turn), (3, 3))
    pose[:3, 3] = place
    bullet.disconnect(client)
    return pose
