"""PyBullet in the hover task: TinyRenderer, the reference camera, and the article's physics.

PyBullet is imported when one of them is made.
"""

from __future__ import annotations

import functools
import importlib
import math
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


class Client:
    """PyBullet's functions on a physics server of its own; its banner is not printed."""

    def __init__(self, purpose: str) -> None:
        try:
            with quiet_stderr():
                self._bullet = importlib.import_module("pybullet")
        except ImportError as error:
            raise missing_pybullet(purpose) from error
        self._client = self._bullet.connect(self._bullet.DIRECT)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._bullet, name)
        if callable(found):
            return functools.partial(found, physicsClientId=self._client)
        return found


class World(Closing):
    """Floor, arm, table and object in a physics server; an absent object waits at ``away``."""

    def __init__(self, purpose: str, away: Place) -> None:
        self.bullet = Client(purpose)
        self._models = importlib.import_module("pybullet_data").getDataPath()
        self._away = away
        self._load(c.PLANE_URDF, c.PLANE_POSITION)
        self.arm = self._load(c.ARM_URDF, c.ARM_POSITION, fixed=True)
        self._load(c.TABLE_URDF, c.TABLE_POSITION)
        self.object = self._load(c.OBJECT_URDF, away)

    def _load(self, urdf: str, position: Place, fixed: bool = False) -> int:
        body: int = self.bullet.loadURDF(f"{self._models}/{urdf}", position, useFixedBase=fixed)
        return body

    def set_joints(self, joints: ArrayLike) -> None:
        """Put the arm's ``(9,)`` joints there, at rest."""
        for index, value in zip(c.JOINT_INDICES, np.asarray(joints).tolist(), strict=True):
            self.bullet.resetJointState(self.arm, index, value)

    def place_object(self, pose: Array | None) -> None:
        """Put the object's base at a ``(4, 4)`` pose, at rest; None takes it out of the scene."""
        position, angles = self._away, (0.0, 0.0, 0.0)
        if pose is not None:
            (xx, _, _, x), (yx, _, _, y), (zx, zy, zz, z), _ = pose.tolist()
            position = (x, y, z)
            angles = (math.atan2(zy, zz), -math.asin(max(-1.0, min(zx, 1.0))), math.atan2(yx, xx))
        turn = self.bullet.getQuaternionFromEuler(angles)
        self.bullet.resetBasePositionAndOrientation(self.object, position, turn)
        self.bullet.resetBaseVelocity(self.object, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))

    def close(self) -> None:
        """Disconnect."""
        if self.bullet.isConnected():
            self.bullet.disconnect()


class TinyCamera(Camera):
    """Draws with TinyRenderer: slow (tens of milliseconds), the definition of the image.

    It always draws the full meshes; ``spec.mesh`` only says which network the images are for.
    """

    def __init__(self, spec: CameraSpec) -> None:
        super().__init__(spec)
        # Under the floor, far from the camera: nothing of it can be seen.
        self.world = World('camera="tiny"', (0.0, 0.0, -50.0))
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
            rgba = world.bullet.getCameraImage(
                self.spec.width,
                self.spec.height,
                self._view,
                self._projection,
                renderer=world.bullet.ER_TINY_RENDERER,
            )[2]
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
    """One scene that TinyRenderer draws, or whose joints are no answer of inverse kinematics."""

    def __init__(self, spec: CameraSpec) -> None:
        super().__init__(camera=spec)
        self._camera_of_joints: Camera | None = None

    def vary(self) -> None:
        """Raise ConfigError: scenes in PyBullet do not vary."""
        raise ConfigError(
            'Found a look for a scene with motion="dynamics" or camera="tiny", whose object has '
            'one size and lies as it fell. Expected motion="kinematic" and camera="fast"; pass '
            "these."
        )

    def images(self, mask: Any = None, before: Any = None) -> Any:
        """See :class:`.HoverScenes`."""
        self._check_open()
        if self._camera_of_joints is None:
            self._camera_of_joints = make_camera(self.spec)
        return self._camera_of_joints.render(self.joints(), self.object_pose())[None]

    def close(self) -> None:
        """Free the camera."""
        super().close()
        if self._camera_of_joints is not None:
            self._camera_of_joints.close()


class DynamicScenes(BulletScenes):
    """One scene that physics moves: the article's 500 sub-steps of position control.

    ``converged`` iterates the inverse kinematics to the end. PyBullet's default of 20 iterations,
    which the article has, stops 8 mm short on average and up to 28 mm, and leaves the hand 15 mm
    too high after a reset.
    """

    def __init__(self, spec: CameraSpec, *, converged: bool = True) -> None:
        super().__init__(spec)
        self._converged = converged
        # Where nothing sees or touches an absent object.
        self._world = World('motion="dynamics"', (50.0, 50.0, 0.0))
        self._bullet = self._world.bullet
        self._placed: Array | None = None
        self._bullet.setGravity(0.0, 0.0, c.GRAVITY)
        self._bullet.setTimeStep(c.TIME_STEP)
        self._world.set_joints(c.HOME_JOINTS)
        self._saved = self._bullet.saveState()

    def home(self, mask: Any) -> None:
        """See :class:`.HoverScenes`."""
        # Restoring the saved state also forgets contacts, so every episode starts the same.
        self._bullet.restoreState(self._saved)
        self._world.place_object(self._placed)
        super().home(mask)

    def place(self, mask: Any, objects: Any) -> None:
        """See :class:`.HoverScenes`."""
        super().place(mask, objects)
        self._placed = super().object_pose()
        self._world.place_object(self._placed)

    def send(self, mask: Any, targets: Any, height: float = c.HOVER_HEIGHT) -> None:
        """See :class:`.HoverScenes`."""
        super().send(mask, targets, height)
        if not mask[0]:
            return
        self._bullet.setJointMotorControlArray(
            self._world.arm,
            c.JOINT_INDICES,
            self._bullet.POSITION_CONTROL,
            targetPositions=self._target([*self.gripper[0].tolist(), height]).tolist(),
        )
        step = self._bullet.stepSimulation
        for _ in range(c.SUBSTEPS):
            step()
        link = self._bullet.getLinkState(
            self._world.arm, c.GRIPPER_LINK, computeForwardKinematics=True
        )
        x, y, self.height = link[4]
        self.gripper = np.array([[x, y]])
        pose = self.object_pose()
        if pose is not None:
            self.objects = pose[None, :2, 3].copy()

    def joints(self) -> Array:
        """See :class:`.HoverScenes`."""
        states = self._bullet.getJointStates(self._world.arm, c.JOINT_INDICES)
        return np.array([state[0] for state in states], dtype=np.float64)

    def object_pose(self) -> Array | None:
        """See :class:`.HoverScenes`."""
        if self._placed is None:
            return None
        position, turn = self._bullet.getBasePositionAndOrientation(self._world.object)
        pose = np.eye(4)
        pose[:3, :3] = np.reshape(self._bullet.getMatrixFromQuaternion(turn), (3, 3))
        pose[:3, 3] = position
        return pose

    def close(self) -> None:
        """Free the camera and the physics client."""
        super().close()
        self._world.close()

    def _target(self, position: list[float]) -> Array:
        """Return the ``(9,)`` joints that the motors aim at."""
        if self._converged:
            return inverse_kinematics(position)
        joints = np.full(c.JOINTS, c.FINGER_OPEN)
        joints[: c.ARM_JOINTS] = self._bullet.calculateInverseKinematics(
            self._world.arm,
            c.GRIPPER_LINK,
            position,
            self._bullet.getQuaternionFromEuler(c.GRIPPER_EULER),
        )[: c.ARM_JOINTS]
        return joints
