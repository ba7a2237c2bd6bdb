"""What a picture of the hover task is, and where the camera stands."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, InputError, MissingExtraError, install_command
from vinoreward_envs import constants as c

Renderer = Literal["fast", "tiny"]
Mesh = Literal["full", "20"]

MAX_SIDE: Final = 4096
"""Largest height or width of a picture, in pixels."""
LIGHT: Final[tuple[float, float, float]] = (-50.0, 30.0, 100.0)
"""Where the light comes from (a direction, not a unit vector): PyBullet's default."""


@dataclass(frozen=True)
class CameraSpec:
    """What a picture looks like.

    Two pictures of one scene with equal ``height``, ``width`` and ``mesh`` may be shown to the
    same network; ``renderer`` only says who draws it.
    """

    height: int = c.PICTURE_HEIGHT
    """Pixels, 1 to 4096."""
    width: int = c.PICTURE_WIDTH
    """Pixels, 1 to 4096."""
    renderer: Renderer = "fast"
    """``"fast"``: this package's rasteriser. ``"tiny"``: PyBullet's TinyRenderer."""
    mesh: Mesh = "20"
    """Share of the arm's triangles that are drawn; ``"tiny"`` always draws the full meshes."""

    def __post_init__(self) -> None:
        """Refuse what no renderer can draw."""
        for name, value in (("height", self.height), ("width", self.width)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigError(
                    f"Found picture {name} {value!r}; expected a whole number of pixels from 1 to "
                    f"{MAX_SIDE}. Pass an int."
                )
            if not 1 <= value <= MAX_SIDE:
                raise ConfigError(
                    f"Found picture {name} {value}; expected 1 to {MAX_SIDE} pixels. Choose a "
                    "size in that range, such as 96 x 128 (height x width)."
                )
        if self.renderer not in get_args(Renderer):
            raise ConfigError(
                f"Found camera renderer {self.renderer!r}; expected one of "
                f"{', '.join(get_args(Renderer))}. Choose one of these."
            )
        if self.mesh not in get_args(Mesh):
            raise ConfigError(
                f"Found mesh level {self.mesh!r}; expected one of {', '.join(get_args(Mesh))} "
                "(percent of the triangles, or full). Choose one of these."
            )

    def as_dict(self) -> dict[str, str | int]:
        """Return what a network trained on these pictures depends on, as plain data.

        The renderer is left out: both draw the same picture.
        """
        return {
            "scene": "panda-hover",
            "height": self.height,
            "width": self.width,
            "mesh": self.mesh,
        }


class Camera(Closing):
    """Draws the scene for given joints and object poses.

    Arms are ``(9,)`` joints (:mod:`vinoreward_envs.arm`); objects are ``(4, 4)`` poses of the
    object's base as PyBullet's ``getBasePositionAndOrientation`` gives it. For this object the
    centre of mass and the origin of the link frame are the same point, so no offset applies.
    A camera belongs to one thread.
    """

    def __init__(self, spec: CameraSpec) -> None:
        self.spec = spec

    @abc.abstractmethod
    def render_batch(
        self, joints: ArrayLike, object_poses: ArrayLike, present: ArrayLike
    ) -> NDArray[np.uint8]:
        """Draw ``B`` scenes.

        Args:
            joints: ``(B, 9)`` float64, radians and metres.
            object_poses: ``(B, 4, 4)`` float64; ignored where ``present`` is false.
            present: ``(B,)`` bool, whether the object is in the picture.

        Returns:
            ``(B, height, width, 3)`` uint8 RGB, owned by the caller.

        Raises:
            InputError: shapes do not fit, or a value that matters is not finite.
        """

    def render(self, joints: ArrayLike, object_pose: ArrayLike | None) -> NDArray[np.uint8]:
        """Draw one scene; ``object_pose`` None draws it without the object.

        Args:
            joints: ``(9,)`` float64.
            object_pose: ``(4, 4)`` float64, or None.

        Returns:
            ``(height, width, 3)`` uint8 RGB, owned by the caller.

        Raises:
            InputError: shapes do not fit, or a value is not finite.
        """
        pose = np.eye(4) if object_pose is None else np.asarray(object_pose, dtype=np.float64)
        picture: NDArray[np.uint8] = self.render_batch(
            np.asarray(joints, dtype=np.float64)[None], pose[None], [object_pose is not None]
        )[0]
        return picture

    def close(self) -> None:
        """Release what the camera holds; it cannot draw afterwards. Closing twice is harmless."""
        return


def missing_warp() -> MissingExtraError:
    """Return the error for a fast camera without its library."""
    return MissingExtraError(
        "Found no warp; expected it for the camera renderer 'fast'. Run "
        f"{install_command('panda')} (the package is called warp-lang), or use the renderer 'tiny'."
    )


def checked_scene(
    joints: ArrayLike, object_poses: ArrayLike, present: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return the arguments of ``render_batch`` as arrays of matching shapes, or raise.

    Raises:
        InputError: shapes do not fit, or a value that matters is not finite.
    """
    q = np.asarray(joints, dtype=np.float64)
    poses = np.asarray(object_poses, dtype=np.float64)
    shown = np.asarray(present, dtype=np.bool_)
    count = q.shape[0] if q.ndim == 2 else -1
    if q.shape != (count, c.JOINTS) or poses.shape != (count, 4, 4) or shown.shape != (count,):
        raise InputError(
            f"Found joints of shape {q.shape}, object poses {poses.shape} and presence "
            f"{shown.shape}; expected (B, {c.JOINTS}), (B, 4, 4) and (B,). Pass one of each per "
            "scene."
        )
    if not (np.isfinite(q).all() and np.isfinite(poses[shown]).all()):
        raise InputError(
            "Found NaN or infinity in the joints or in an object's pose; expected finite radians "
            "and metres. Check where they come from."
        )
    return q, poses, shown


def view_matrix() -> NDArray[np.float64]:
    """Return the ``(4, 4)`` matrix from the world to the camera (which looks along its -z)."""
    yaw, pitch = math.radians(c.CAMERA_YAW), math.radians(c.CAMERA_PITCH)
    target = np.array(c.CAMERA_TARGET)
    # Yaw 0 looks along +y, a negative pitch looks down; the camera is not rolled.
    forward = np.array(
        [-math.sin(yaw) * math.cos(pitch), math.cos(yaw) * math.cos(pitch), math.sin(pitch)]
    )
    right = np.array([math.cos(yaw), math.sin(yaw), 0.0])
    up = np.cross(right, forward)
    view = np.eye(4)
    view[:3, :3] = np.stack([right, up, -forward])
    view[:3, 3] = -view[:3, :3] @ (target - c.CAMERA_DISTANCE * forward)
    return view


def clip_matrix(height: int, width: int) -> NDArray[np.float64]:
    """Return the ``(4, 4)`` matrix from the world to clip space, as OpenGL defines it."""
    scale = 1.0 / math.tan(math.radians(c.CAMERA_FOV) / 2.0)
    near, far = c.CAMERA_NEAR, c.CAMERA_FAR
    projection = np.zeros((4, 4))
    projection[0, 0] = scale * height / width
    projection[1, 1] = scale
    projection[2, 2] = (far + near) / (near - far)
    projection[2, 3] = 2.0 * far * near / (near - far)
    projection[3, 2] = -1.0
    clip: NDArray[np.float64] = projection @ view_matrix()
    return clip
