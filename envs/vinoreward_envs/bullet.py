"""PyBullet in the hover task: TinyRenderer, the reference camera, and the article's physics.

PyBullet is imported when one of them is made.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, MissingExtraError, install_command
from vinoreward_envs import constants as c
from vinoreward_envs.arm import inverse_kinematics
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.camera.spec import (
    Camera,
    CameraSpec,
    Flags,
    Integers,
    Pixels,
    projection_matrix,
    view_matrix,
)
from vinoreward_envs.scenes import HoverScenes
from vinoreward_envs.warp_device import quiet_stderr

Array = NDArray[np.float64]
Place = tuple[float, float, float]


def missing_pybullet(purpose: str) -> MissingExtraError:
    """Return the error where PyBullet is not installed.

    ``purpose`` is the argument that asked for it, such as ``'camera="tiny"'``.
    """
    return MissingExtraError(
        f"{purpose} needs PyBullet, which is not installed. Run: {install_command('panda')}. There "
        "are wheels for Python 3.10 and 3.11 only; elsewhere pip install pybullet needs a C++ "
        'compiler. Or note that motion="kinematic" with camera="fast" (the defaults) works '
        "without it."
    )


def import_pybullet(purpose: str) -> ModuleType:
    """Return the module ``pybullet``, imported without its banner on the terminal."""
    try:
        with quiet_stderr():
            return importlib.import_module("pybullet")
    except ImportError as error:
        raise missing_pybullet(purpose) from error


class _World(Closing):
    """Floor, arm, table and object in a physics server; an absent object waits at ``away``."""

    def __init__(self, purpose: str, away: Place) -> None:
        self.bullet: Any = import_pybullet(purpose)
        self._models = importlib.import_module("pybullet_data").getDataPath()
        client = self.bullet.connect(self.bullet.DIRECT)
        if client < 0:
            raise ConfigError(
                "PyBullet opened no further physics client; expected at most about 1,000 in one "
                "process. Close environments that are no longer used."
            )
        self.client: int | None = client
        self._away = away
        self._load(c.PLANE_URDF, c.PLANE_POSITION)
        self.arm = self._load(c.ARM_URDF, c.ARM_POSITION, fixed=True)
        self._load(c.TABLE_URDF, c.TABLE_POSITION)
        self.object = self._load(c.OBJECT_URDF, away)

    def _load(self, urdf: str, position: Place, fixed: bool = False) -> int:
        body: int = self.bullet.loadURDF(
            f"{self._models}/{urdf}", position, useFixedBase=fixed, physicsClientId=self.client
        )
        return body

    def set_joints(self, joints: ArrayLike) -> None:
        """Put the arm's ``(9,)`` joints there, at rest."""
        for index, value in zip(c.JOINT_INDICES, np.asarray(joints).tolist(), strict=True):
            self.bullet.resetJointState(self.arm, index, value, physicsClientId=self.client)

    def place_object(self, pose: Array | None) -> None:
        """Put the object's base at a ``(4, 4)`` pose; None takes it out of the scene."""
        position = self._away if pose is None else pose[:3, 3].tolist()
        turn = (0.0, 0.0, 0.0, 1.0) if pose is None else quaternion(pose[:3, :3])
        self.bullet.resetBasePositionAndOrientation(
            self.object, position, turn, physicsClientId=self.client
        )

    def close(self) -> None:
        """Disconnect."""
        client, self.client = self.client, None
        if client is not None:
            self.bullet.disconnect(physicsClientId=client)


class TinyCamera(Camera):
    """Draws with TinyRenderer: slow (tens of milliseconds), the definition of the image.

    It always draws the full meshes; ``spec.mesh`` only says which network the images are for.
    """

    def __init__(self, spec: CameraSpec) -> None:
        super().__init__(spec)
        # Under the floor, far from the camera: nothing of it can be seen.
        self.world = _World('camera="tiny"', (0.0, 0.0, -50.0))
        # TinyRenderer takes the matrices in OpenGL's column-major order.
        self._view = view_matrix().T.ravel().tolist()
        self._projection = projection_matrix(spec.height, spec.width).T.ravel().tolist()

    def render_batch(
        self, joints: Array, poses: Array, present: Flags, rows: Integers | None = None
    ) -> Pixels:
        """See :class:`.Camera`."""
        world, size = self.world, (self.spec.height, self.spec.width)
        images = np.empty((len(joints), *size, 3), dtype=np.uint8)
        for i in range(len(joints)):
            world.set_joints(joints[i])
            world.place_object(poses[i] if present[i] else None)
            _, _, rgba, _, _ = world.bullet.getCameraImage(
                self.spec.width,
                self.spec.height,
                self._view,
                self._projection,
                renderer=world.bullet.ER_TINY_RENDERER,
                physicsClientId=world.client,
            )
            images[i] = np.asarray(rgba, dtype=np.uint8).reshape(*size, 4)[..., :3]
        return images

    def close(self) -> None:
        """Stop the physics server."""
        self.world.close()


def make_camera(spec: CameraSpec | None = None) -> Camera:
    """Return a camera for ``spec``."""
    spec = spec or CameraSpec()
    return TinyCamera(spec) if spec.renderer == "tiny" else FastCamera(spec)


class BulletScenes(HoverScenes):
    """One scene that PyBullet's physics moves, or that TinyRenderer draws."""

    def __init__(self, spec: CameraSpec, dynamics: ArmDynamics | None) -> None:
        super().__init__(camera=spec)
        self.dynamics = dynamics
        self._camera_of_joints: Camera | None = None

    def home(self, mask: Any) -> None:
        """See :class:`.HoverScenes`."""
        if self.dynamics is not None:
            self.dynamics.home()
        super().home(mask)

    def place(self, mask: Any, objects: Any) -> None:
        """See :class:`.HoverScenes`."""
        super().place(mask, objects)
        if self.dynamics is not None:
            self.dynamics.place_object(super().object_pose())

    def send(self, mask: Any, targets: Any, height: float = c.HOVER_HEIGHT) -> None:
        """See :class:`.HoverScenes`."""
        super().send(mask, targets, height)
        if self.dynamics is not None and mask[0]:
            self.dynamics.move(np.array([*self.gripper[0], height]))
            x, y, self.height = self.dynamics.gripper()
            self.gripper = np.array([[x, y]])
            pose = self.object_pose()
            if pose is not None:
                self.objects = pose[None, :2, 3].copy()

    def vary(self) -> None:
        """Refuse it."""
        raise ConfigError(
            'Found a look for a scene with motion="dynamics" or camera="tiny", whose object has '
            'one size and lies as it fell. Expected motion="kinematic" and camera="fast"; pass '
            "these."
        )

    def images(self, mask: Any = None, into: Any = None) -> Any:
        """See :class:`.HoverScenes`."""
        self._check_open()
        if self._camera_of_joints is None:
            self._camera_of_joints = make_camera(self.spec)
        return self._camera_of_joints.render(self.joints(), self.object_pose())[None]

    def joints(self) -> Array:
        """See :class:`.HoverScenes`."""
        return super().joints() if self.dynamics is None else self.dynamics.joints()

    def object_pose(self) -> Array | None:
        """See :class:`.HoverScenes`."""
        return super().object_pose() if self.dynamics is None else self.dynamics.object_pose()

    def close(self) -> None:
        """Free the camera and the physics client."""
        super().close()
        for part in (self._camera_of_joints, self.dynamics):
            if part is not None:
                part.close()


class ArmDynamics(_World):
    """The arm moved by physics: the article's 500 sub-steps of position control.

    ``converged`` iterates the inverse kinematics to the end. PyBullet's default of 20 iterations,
    which the article has, stops 8 mm short on average and up to 28 mm, and leaves the hand 15 mm
    too high after a reset.
    """

    def __init__(self, *, converged: bool = True) -> None:
        self._converged = converged
        self._object_pose: Array | None = None
        # Where nothing sees or touches an absent object.
        super().__init__('motion="dynamics"', (50.0, 50.0, 0.0))
        self.bullet.setGravity(0.0, 0.0, c.GRAVITY, physicsClientId=self.client)
        self.bullet.setTimeStep(c.TIME_STEP, physicsClientId=self.client)
        self.set_joints(c.HOME_JOINTS)
        self._saved = self.bullet.saveState(physicsClientId=self.client)

    def home(self) -> None:
        """Put everything back as it was: arm in the home pose and at rest, object in place."""
        # Restoring the saved state also forgets contacts, so every episode starts the same.
        self.bullet.restoreState(self._saved, physicsClientId=self.client)
        self.place_object(self._object_pose)

    def place_object(self, pose: Array | None) -> None:
        """Put the object's base at a ``(4, 4)`` pose, at rest; None takes it out of the scene."""
        self._object_pose = pose
        super().place_object(pose)
        zero = (0.0, 0.0, 0.0)
        self.bullet.resetBaseVelocity(self.object, zero, zero, physicsClientId=self.client)

    def move(self, position: Array) -> None:
        """Drive the gripper towards a ``(3,)`` position in metres for all sub-steps."""
        self.bullet.setJointMotorControlArray(
            self.arm,
            c.JOINT_INDICES,
            self.bullet.POSITION_CONTROL,
            targetPositions=self._target(position).tolist(),
            physicsClientId=self.client,
        )
        for _ in range(c.SUBSTEPS):
            self.bullet.stepSimulation(physicsClientId=self.client)

    def joints(self) -> Array:
        """Return the ``(9,)`` joints as they are now."""
        states = self.bullet.getJointStates(self.arm, c.JOINT_INDICES, physicsClientId=self.client)
        return np.array([state[0] for state in states], dtype=np.float64)

    def gripper(self) -> Place:
        """Return the gripper's x, y and z as they are now."""
        state = self.bullet.getLinkState(
            self.arm,
            c.GRIPPER_LINK,
            computeForwardKinematics=True,
            physicsClientId=self.client,
        )
        place: Place = state[4]
        return place

    def object_pose(self) -> Array | None:
        """Return the object's base as a ``(4, 4)`` pose, or None if it is out of the scene."""
        if self._object_pose is None:
            return None
        position, turn = self.bullet.getBasePositionAndOrientation(
            self.object, physicsClientId=self.client
        )
        pose = np.eye(4)
        pose[:3, :3] = np.reshape(self.bullet.getMatrixFromQuaternion(turn), (3, 3))
        pose[:3, 3] = position
        return pose

    def _target(self, position: Array) -> Array:
        if self._converged:
            return inverse_kinematics(position)
        joints = np.full(c.JOINTS, c.FINGER_OPEN)
        joints[: c.ARM_JOINTS] = self.bullet.calculateInverseKinematics(
            self.arm,
            c.GRIPPER_LINK,
            position.tolist(),
            self.bullet.getQuaternionFromEuler(c.GRIPPER_EULER),
            physicsClientId=self.client,
        )[: c.ARM_JOINTS]
        return joints


def quaternion(rotation: Array) -> tuple[float, float, float, float]:
    """Return the ``(x, y, z, w)`` quaternion of a ``(3, 3)`` rotation matrix."""
    # The eigenvector method: no case distinction, and exact to rounding at any angle. eigh reads
    # the lower triangle alone.
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = rotation.tolist()
    symmetric = np.zeros((4, 4))
    symmetric[0, 0] = xx - yy - zz
    symmetric[1, :2] = yx + xy, yy - xx - zz
    symmetric[2, :3] = zx + xz, zy + yz, zz - xx - yy
    symmetric[3] = zy - yz, xz - zx, yx - xy, xx + yy + zz
    x, y, z, w = np.linalg.eigh(symmetric)[1][:, -1].tolist()
    return (x, y, z, w)
