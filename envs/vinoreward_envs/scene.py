"""The hover scene: one arm, one object, one camera; what environments and captures share."""

from __future__ import annotations

import importlib.util
import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vinoreward.closing import Closing
from vinoreward.errors import InputError, needed_for
from vinoreward_envs import constants as c
from vinoreward_envs.arm import inverse_kinematics
from vinoreward_envs.bullet import BulletScenes, DynamicScenes, make_camera, missing_pybullet
from vinoreward_envs.camera.spec import CameraSpec, Pixels, check_choice
from vinoreward_envs.randomization import nominal
from vinoreward_envs.scenes import HoverScenes

__all__ = ["HoverScene", "Motion", "check_renderer", "make_camera"]

Motion = Literal["kinematic", "dynamics"]


def check_renderer(renderer: str) -> None:
    """Raise MissingExtraError unless a renderer's library is installed; do not import it."""
    if renderer == "tiny" and importlib.util.find_spec("pybullet") is None:
        raise missing_pybullet('camera="tiny"')
    with needed_for("drawing images", "panda"):
        if renderer == "fast" and importlib.util.find_spec("warp") is None:
            raise ImportError(name="warp")


class HoverScene(Closing):
    """One arm over the table, with at most one object, seen by one camera: a batch of one.

    With ``motion="kinematic"`` the gripper is where it is sent, and image and state depend on its
    place alone; PyBullet is not needed. With ``"dynamics"`` PyBullet's physics moves it, as in the
    article. Both arrive within a millimetre of each other, unless the inverse kinematics is not
    ``converged``, see :class:`.DynamicScenes`.

    The camera is made at the first image. Any number of scenes live in one process.
    """

    def __init__(
        self,
        *,
        camera: CameraSpec | None = None,
        motion: Motion = "kinematic",
        converged: bool = True,
    ) -> None:
        check_choice("motion", motion, get_args(Motion))
        spec = CameraSpec() if camera is None else camera
        self.batch: HoverScenes
        """The scene as the batch of one that it is."""
        if motion == "dynamics":
            self.batch = DynamicScenes(spec, converged=converged)
        elif spec.renderer == "tiny":
            self.batch = BulletScenes(spec)
        else:
            self.batch = HoverScenes(camera=spec)
        self.camera_spec = spec
        self._all = np.ones(1, np.bool_)
        self.home()

    @property
    def gripper(self) -> NDArray[np.float64]:
        """The gripper's ``(3,)`` position in metres. A copy."""
        return np.array([*self.batch.gripper[0].tolist(), self.batch.height])

    @property
    def object_xy(self) -> tuple[float, float] | None:
        """The x, y of the object's base in metres, None while it is absent."""
        x, y = self.batch.objects[0].tolist()
        return None if math.isnan(x) else (x, y)

    def pose(self) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        """Return ``(9,)`` joints and the object's ``(4, 4)`` pose, None while it is absent."""
        return self.batch.joints(), self.batch.object_pose()

    def home(self) -> None:
        """Bring the arm to its home pose, then to hover height; the object stays where it is."""
        self.batch.home(self._all)

    def place_object(self, xy: tuple[float, float] | None) -> None:
        """Put the object at rest on the table with its base at x, y in metres; None removes it."""
        place = (np.nan, np.nan) if xy is None else _pair(xy, "the object")
        self.batch.place(self._all, np.array([place]))

    def move_gripper(self, xy: tuple[float, float], height: float = c.HOVER_HEIGHT) -> None:
        """Move the gripper to x, y and z in metres; out of reach is an InputError."""
        x, y = _pair(xy, "the gripper")
        (left, near), (right, far) = c.WORKSPACE_LOW, c.WORKSPACE_HIGH
        if not (height == c.HOVER_HEIGHT and left <= x <= right and near <= y <= far):
            inverse_kinematics((x, y, height))
        self.batch.send(self._all, np.array([[x, y]]), height)

    def look(self, params: NDArray[np.float64] | None, image: int = 0) -> None:
        """Let the scene look as an episode drew, ``(1, DRAWS)``; None: as always.

        ``image`` is its number in the episode: each has noise of its own. ConfigError for a scene
        of PyBullet's, whose object has one size and lies as it fell.
        """
        self.batch.vary()
        self.batch.set_params(self._all, nominal(1) if params is None else params)
        self.batch.steps[:] = image

    def distance(self) -> float:
        """Return the horizontal distance gripper to object in metres, infinity if it is absent."""
        distance = float(self.batch.distance()[0])
        return math.inf if math.isnan(distance) else distance

    def render(self) -> Pixels:
        """Return the camera's ``(H, W, 3)`` uint8 RGB image, owned by the caller."""
        image: Pixels = self.batch.images()[0]
        return image

    def close(self) -> None:
        """Free the camera and the physics client."""
        self.batch.close()


def _pair(xy: tuple[float, float], what: str) -> tuple[float, float]:
    """Return two finite floats or raise."""
    values = np.asarray(xy, dtype=np.float64)
    if values.shape != (2,) or not np.isfinite(values).all():
        raise InputError(
            f"Found {xy!r} as the place of {what}; expected two finite numbers, x and y in "
            "metres. Pass (x, y)."
        )
    return float(values[0]), float(values[1])
