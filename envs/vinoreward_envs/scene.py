"""One arm, one object, one camera: what the hover environments and the capture command share."""

from __future__ import annotations

import importlib.util
import math
import sys
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, InputError, MissingExtraError
from vinoreward_envs import constants as c
from vinoreward_envs.arm import gripper_position, hover_home_joints, inverse_kinematics
from vinoreward_envs.bullet import ArmDynamics, Ik, TinyCamera, missing_pybullet
from vinoreward_envs.camera.fast import FastCamera
from vinoreward_envs.camera.looks import Looks
from vinoreward_envs.camera.spec import Camera, CameraSpec, check_choice, missing_warp
from vinoreward_envs.randomization import Drawn, as_numbers, nominal

Array = NDArray[np.float64]
Motion = Literal["kinematic", "dynamics"]
_DEFAULT_CAMERA = CameraSpec()

OBJECT_REST_HEIGHT: Final = -0.0084536
"""z of the object's base, in metres, after it was dropped from 0.10 and came to rest."""
OBJECT_REST_ROTATION: Final[tuple[float, float, float, float]] = (0.0, 0.0970480, 0.0, 0.9952797)
"""Its orientation at rest as a quaternion x, y, z, w: it leans 11 degrees about y."""
_, _HALF, _, _REST = OBJECT_REST_ROTATION
_SIN, _COS = 2.0 * _HALF * _REST, _REST * _REST - _HALF * _HALF
_LEANING: Final[Array] = np.array([[_COS, 0.0, _SIN], [0.0, 1.0, 0.0], [-_SIN, 0.0, _COS]])


def check_renderer(renderer: str) -> None:
    """Raise MissingExtraError unless a renderer's library is installed; do not import it."""
    if renderer == "tiny" and importlib.util.find_spec("pybullet") is None:
        raise MissingExtraError(missing_pybullet('camera="tiny"', sys.version_info[:2]))
    if renderer == "fast" and importlib.util.find_spec("warp") is None:
        raise missing_warp()


def make_camera(spec: CameraSpec = _DEFAULT_CAMERA) -> Camera:
    """Return a camera for ``spec``."""
    return TinyCamera(spec) if spec.renderer == "tiny" else FastCamera(spec)


class HoverScene(Closing):
    """The arm over the table, with at most one object, seen by one camera.

    With ``motion="kinematic"`` inverse kinematics places the arm, from the home pose each time, so
    that pose and picture depend on the gripper's x, y alone; PyBullet is not needed. With
    ``"dynamics"`` PyBullet's physics moves it in ``substeps``, as in the article. Both arrive
    within a millimetre of each other, but for ``ik="article"``, see :class:`ArmDynamics`.

    The camera is made at the first picture. Any number of scenes live in one process.
    """

    def __init__(
        self,
        *,
        camera: CameraSpec = _DEFAULT_CAMERA,
        motion: Motion = "kinematic",
        substeps: int = c.SUBSTEPS,
        ik: Ik = "converged",
    ) -> None:
        check_choice("motion", motion, get_args(Motion))
        if motion == "kinematic" and ik != "converged":
            raise ConfigError(
                f'Found ik={ik!r} with motion="kinematic", whose inverse kinematics always '
                'converges. Pass motion="dynamics" as well, or leave ik out.'
            )
        self.camera_spec = camera
        self._camera: Camera | None = None
        self._dynamics = ArmDynamics(substeps=substeps, ik=ik) if motion == "dynamics" else None
        self._object_pose: Array | None = None
        self._looks: Looks | None = None
        self._drawn: Drawn | None = None
        self._joints = hover_home_joints()
        self._gripper: Array | None = None
        """Its place, once somebody has asked for it."""
        self._closed = False
        self.changes = 0
        """How often arm or object were placed: equal numbers mean equal pictures."""
        if self._dynamics is not None:
            self.home()

    @property
    def joints(self) -> Array:
        """The ``(9,)`` joints: seven in radians, two fingers in metres. A copy."""
        return self._joints.copy()

    @property
    def gripper(self) -> Array:
        """The gripper's ``(3,)`` position in metres. A copy."""
        if self._gripper is None:
            self._gripper = gripper_position(self._joints)
        return self._gripper.copy()

    @property
    def object_pose(self) -> Array | None:
        """The ``(4, 4)`` pose of the object's base, None while it is absent. A copy."""
        return None if self._object_pose is None else self._object_pose.copy()

    @property
    def object_xy(self) -> tuple[float, float] | None:
        """The x, y of the object's base in metres, None while it is absent."""
        if self._object_pose is None:
            return None
        return (float(self._object_pose[0, 3]), float(self._object_pose[1, 3]))

    def home(self) -> None:
        """Bring the arm to its home pose, then to hover height; the object stays where it is."""
        self.changes += 1
        if self._dynamics is None:
            self._arm_at(hover_home_joints())
            return
        self._dynamics.home()
        x, y, _ = gripper_position(c.HOME_JOINTS)
        self._move(self._dynamics, np.array([x, y, c.HOVER_HEIGHT]))

    def place_object(self, xy: tuple[float, float] | None) -> None:
        """Put the object at rest on the table with its base at x, y in metres; None removes it."""
        if xy is not None:
            xy = _pair(xy, "the object")
        self.changes += 1
        self._object_pose = None if xy is None else object_rest_pose(xy, *self._yaw_and_size())
        if self._dynamics is not None:
            self._dynamics.place_object(self._object_pose)

    def look(self, drawn: Drawn | None, picture: int = 0) -> None:
        """Let the scene look as an episode drew; None: as always.

        Args:
            drawn: ``(1,)`` values, see :mod:`vinoreward_envs.randomization`.
            picture: its number in the episode: each has noise of its own.

        Raises:
            ConfigError: with ``motion="dynamics"``, whose object has one size and lies as it fell.
        """
        if self._dynamics is not None:
            raise ConfigError(
                'Found a look for a scene with motion="dynamics", whose object has one size and '
                'lies as it fell. Expected motion="kinematic"; pass that.'
            )
        if self._looks is None:
            self._looks = Looks(self.camera_spec, 1)
        self.changes += 1
        if drawn is not self._drawn:
            self._drawn = drawn
            numbers = as_numbers(nominal(1) if drawn is None else drawn)
            self._looks.set(np.ones(1, np.bool_), numbers)
            if (xy := self.object_xy) is not None:
                self._object_pose = object_rest_pose(xy, *self._yaw_and_size())
        self._looks.steps[:] = picture

    def move_gripper(self, xy: tuple[float, float], height: float = c.HOVER_HEIGHT) -> None:
        """Move the gripper to x, y and z in metres; out of reach is an InputError."""
        target = np.array([*_pair(xy, "the gripper"), height])
        self.changes += 1
        if self._dynamics is None:
            self._arm_at(inverse_kinematics(target, hover_home_joints()))
        else:
            self._move(self._dynamics, target)

    def distance(self) -> float:
        """Return the horizontal distance gripper to object in metres, infinity if it is absent."""
        xy = self.object_xy
        if xy is None:
            return math.inf
        x, y, _ = self.gripper.tolist()
        return math.hypot(x - xy[0], y - xy[1])

    def render(self) -> NDArray[np.uint8]:
        """Return the camera's ``(H, W, 3)`` uint8 RGB picture, owned by the caller."""
        if self._closed:
            raise ConfigError("This scene is closed; expected an open one. Make a new scene.")
        if self._camera is None:
            self._camera = make_camera(self.camera_spec)
        return self._camera.render(self._joints, self._object_pose, self._looks)

    def close(self) -> None:
        """Free the camera and the physics client."""
        self._closed = True
        for part in (self._camera, self._dynamics):
            if part is not None:
                part.close()

    def _yaw_and_size(self) -> tuple[float, float]:
        if self._drawn is None:
            return 0.0, 1.0
        return float(self._drawn["object_yaw"][0]), float(self._drawn["object_size"][0])

    def _arm_at(self, joints: Array) -> None:
        self._joints, self._gripper = joints, None

    def _move(self, dynamics: ArmDynamics, target: Array) -> None:
        dynamics.move(target)
        self._arm_at(dynamics.joints())
        self._object_pose = dynamics.object_pose()


def object_rest_pose(
    xy: tuple[float, float], yaw: float = 0.0, size: float = 1.0
) -> NDArray[np.float64]:
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
    poses[:, 2, 3] = OBJECT_REST_HEIGHT + (size - 1.0) * (OBJECT_REST_HEIGHT - c.TABLE_TOP)
    return poses


def _pair(xy: tuple[float, float], what: str) -> tuple[float, float]:
    """Return two finite floats or raise."""
    values = np.asarray(xy, dtype=np.float64)
    if values.shape != (2,) or not np.isfinite(values).all():
        raise InputError(
            f"Found {xy!r} as the place of {what}; expected two finite numbers, x and y in "
            "metres. Pass (x, y)."
        )
    return (float(values[0]), float(values[1]))
