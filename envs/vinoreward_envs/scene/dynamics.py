"""The arm moved by PyBullet's physics: the article's 500 sub-steps of position control."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError
from vinoreward_envs import constants as c
from vinoreward_envs.arm import hover_home_joints, inverse_kinematics
from vinoreward_envs.pybullet_import import import_pybullet, pybullet_data_folder

Array = NDArray[np.float64]
Ik = Literal["converged", "article"]

# An object that is out of the scene waits here, where nothing sees or touches it.
_AWAY = (50.0, 50.0, 0.0)


class ArmDynamics:
    """An arm, a table and an object in a physics client of their own.

    Args:
        substeps: simulation sub-steps of one move (the article: 500; 120 settle as well).
        ik: ``"converged"`` iterates the inverse kinematics until it has arrived; ``"article"``
            is PyBullet's default of 20 iterations, which stops some 8 mm short on average and
            up to 28 mm, and leaves the hand 15 mm too high after a reset.

    Raises:
        MissingExtraError: PyBullet is not installed.
        ConfigError: ``substeps`` or ``ik`` cannot work.
    """

    def __init__(self, *, substeps: int = c.SUBSTEPS, ik: Ik = "converged") -> None:
        if substeps < 1:
            raise ConfigError(f"Found substeps={substeps}; expected 1 or more. Leave it at 500.")
        if ik not in ("converged", "article"):
            raise ConfigError(f'Found ik={ik!r}; expected "converged" or "article". Pass one.')
        self._substeps = substeps
        self._ik = ik
        self._p: Any = import_pybullet('motion="dynamics"')
        client = self._p.connect(self._p.DIRECT)
        if client < 0:
            raise ConfigError(
                "PyBullet opened no further physics client; expected at most about 1,000 in one "
                "process. Close environments that are no longer used."
            )
        self._client: int | None = client
        self._object_pose: Array | None = None
        self._load()

    def home(self) -> None:
        """Put everything back as it was: arm in the home pose and at rest, object in place."""
        # Restoring the saved state also forgets contacts, so every episode starts the same.
        self._p.restoreState(self._saved, physicsClientId=self._client)
        self.place_object(self._object_pose)

    def place_object(self, pose: Array | None) -> None:
        """Put the object's base at a ``(4, 4)`` pose, at rest; None takes it out of the scene."""
        self._object_pose = None if pose is None else np.array(pose, dtype=np.float64)
        position: Any = _AWAY if pose is None else pose[:3, 3].tolist()
        turn = (0.0, 0.0, 0.0, 1.0) if pose is None else quaternion(pose[:3, :3])
        self._p.resetBasePositionAndOrientation(
            self._object, position, turn, physicsClientId=self._client
        )
        zero = (0.0, 0.0, 0.0)
        self._p.resetBaseVelocity(self._object, zero, zero, physicsClientId=self._client)

    def move(self, position: Array) -> None:
        """Drive the gripper towards a ``(3,)`` position in metres for all sub-steps."""
        joints = self._target(position)
        self._p.setJointMotorControlArray(
            self._arm,
            c.JOINT_INDICES,
            self._p.POSITION_CONTROL,
            targetPositions=joints.tolist(),
            physicsClientId=self._client,
        )
        for _ in range(self._substeps):
            self._p.stepSimulation(physicsClientId=self._client)

    def joints(self) -> Array:
        """Return the ``(9,)`` joints as they are now."""
        states = self._p.getJointStates(self._arm, c.JOINT_INDICES, physicsClientId=self._client)
        return np.array([state[0] for state in states], dtype=np.float64)

    def object_pose(self) -> Array | None:
        """Return the object's base as a ``(4, 4)`` pose, or None if it is out of the scene."""
        if self._object_pose is None:
            return None
        position, turn = self._p.getBasePositionAndOrientation(
            self._object, physicsClientId=self._client
        )
        pose = np.eye(4)
        pose[:3, :3] = np.reshape(self._p.getMatrixFromQuaternion(turn), (3, 3))
        pose[:3, 3] = position
        return pose

    def close(self) -> None:
        """Disconnect from the physics client. Calling it again does nothing."""
        client, self._client = self._client, None
        if client is not None:
            self._p.disconnect(physicsClientId=client)

    def _load(self) -> None:
        p, client = self._p, self._client
        data = pybullet_data_folder()

        def load(urdf: str, position: tuple[float, float, float], fixed: bool = False) -> int:
            return int(
                p.loadURDF(str(data / urdf), position, useFixedBase=fixed, physicsClientId=client)
            )

        p.setGravity(0.0, 0.0, c.GRAVITY, physicsClientId=client)
        p.setTimeStep(c.TIME_STEP, physicsClientId=client)
        load(c.PLANE_URDF, c.PLANE_POSITION)
        self._arm = load(c.ARM_URDF, c.ARM_POSITION, fixed=True)
        load(c.TABLE_URDF, c.TABLE_POSITION)
        self._object = load(c.OBJECT_URDF, _AWAY)
        for joint, value in zip(c.JOINT_INDICES, c.HOME_JOINTS, strict=True):
            p.resetJointState(self._arm, joint, value, physicsClientId=client)
        self._saved = p.saveState(physicsClientId=client)

    def _target(self, position: Array) -> Array:
        if self._ik == "converged":
            return inverse_kinematics(position, hover_home_joints())
        joints = self.joints()
        found = self._p.calculateInverseKinematics(
            self._arm,
            c.GRIPPER_LINK,
            position.tolist(),
            self._p.getQuaternionFromEuler(c.GRIPPER_EULER),
            physicsClientId=self._client,
        )
        joints[: c.ARM_JOINTS] = found[: c.ARM_JOINTS]
        joints[c.ARM_JOINTS :] = c.FINGER_OPEN
        return joints


def quaternion(rotation: Array) -> tuple[float, float, float, float]:
    """Return the ``(x, y, z, w)`` quaternion of a ``(3, 3)`` rotation matrix."""
    # The eigenvector method: no case distinction, and exact to rounding at any angle.
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation.tolist()
    symmetric = np.array(
        [
            [xx - yy - zz, yx + xy, zx + xz, zy - yz],
            [yx + xy, yy - xx - zz, zy + yz, xz - zx],
            [zx + xz, zy + yz, zz - xx - yy, yx - xy],
            [zy - yz, xz - zx, yx - xy, xx + yy + zz],
        ]
    )
    x, y, z, w = np.linalg.eigh(symmetric)[1][:, -1].tolist()
    return (x, y, z, w)
