"""What a picture of the hover task is, and where the camera stands."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, InputError, MissingExtraError, install_command
from vinoreward_envs import constants as c

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle
    from vinoreward_envs.camera.looks import Looks

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Pixels = NDArray[np.uint8]
Rows = NDArray[np.int64]
Renderer = Literal["fast", "tiny"]
Mesh = Literal["full", "20"]

MAX_SIDE: Final = 4096
"""Largest height or width of a picture, in pixels."""
LIGHT: Final[tuple[float, float, float]] = (-50.0, 30.0, 100.0)
"""Where the light comes from (a direction, not a unit vector): PyBullet's default."""


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ``ConfigError`` unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ConfigError(
            f"Found {name}={value!r}; expected one of {', '.join(map(repr, choices))}. "
            "Pass one of them."
        )


@dataclass(frozen=True)
class CameraSpec:
    """What a picture looks like.

    Pictures of equal ``height``, ``width`` and ``mesh`` suit the same network, whoever draws them.
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
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not 1 <= value <= MAX_SIDE:
                raise ConfigError(
                    f"Found picture {name} {value!r}; expected a whole number of pixels from 1 to "
                    f"{MAX_SIDE}. Choose a size in that range, such as 96 x 128 (height x width)."
                )
        check_choice("camera", self.renderer, get_args(Renderer))
        check_choice("mesh", self.mesh, get_args(Mesh))

    def as_dict(self) -> dict[str, str | int]:
        """Return what a network depends on as plain data: not the renderer, both draw the same."""
        size = {"height": self.height, "width": self.width}
        return {"scene": "panda-hover", **size, "mesh": self.mesh}


class Camera(Closing):
    """Draws the scene for given joints and object poses.

    Arms are ``(9,)`` joints (:mod:`vinoreward_envs.arm`); objects are ``(4, 4)`` poses of the
    object's base, see :func:`~vinoreward_envs.scene.object_rest_pose`. A camera belongs to one
    thread.
    """

    def __init__(self, spec: CameraSpec) -> None:
        self.spec = spec
        self._open = True

    def render_batch(
        self,
        joints: ArrayLike,
        object_poses: ArrayLike,
        present: ArrayLike,
        looks: Looks | None = None,
        rows: ArrayLike | None = None,
    ) -> Pixels:
        """Draw ``B`` scenes as ``(B, height, width, 3)`` uint8 RGB, owned by the caller.

        ``joints`` are ``(B, 9)`` in radians and metres; ``object_poses`` ``(B, 4, 4)``, ignored
        where the object is not ``present``, ``(B,)`` bool. ``rows``, ``(B,)`` whole numbers, say
        which of ``looks`` each scene has, by default in order; None: all look as always.
        """
        q = np.asarray(joints, dtype=np.float64)
        poses = np.asarray(object_poses, dtype=np.float64)
        shown = np.asarray(present, dtype=np.bool_)
        count = q.shape[0] if q.ndim == 2 else -1
        if q.shape != (count, c.JOINTS) or poses.shape != (count, 4, 4) or shown.shape != (count,):
            raise InputError(
                f"Found joints of shape {q.shape}, object poses {poses.shape} and presence "
                f"{shown.shape}; expected (B, {c.JOINTS}), (B, 4, 4) and (B,). Pass one of each "
                "per scene."
            )
        if not (np.isfinite(q).all() and np.isfinite(poses[shown]).all()):
            raise InputError(
                "Found NaN or infinity in the joints or in an object's pose; expected finite "
                "radians and metres. Check where they come from."
            )
        if not self._open:
            raise ConfigError(
                "Found a closed camera; expected an open one. Make a new one with make_camera()."
            )
        if looks is None:
            return self._draw(q, poses, shown, None, np.zeros(count, np.int64))
        which = np.arange(count) if rows is None else np.asarray(rows, np.int64)
        return self._draw(q, poses, shown, looks, which)

    @abc.abstractmethod
    def _draw(
        self, joints: Floats, poses: Floats, shown: Flags, looks: Looks | None, rows: Rows
    ) -> Pixels:
        """Draw ``B`` scenes of checked arguments."""

    def render(
        self, joints: ArrayLike, object_pose: ArrayLike | None, looks: Looks | None = None
    ) -> Pixels:
        """Draw one scene of ``(9,)`` joints and a ``(4, 4)`` pose; None: without the object."""
        pose = np.eye(4) if object_pose is None else np.asarray(object_pose, dtype=np.float64)
        picture: Pixels = self.render_batch(
            np.asarray(joints, dtype=np.float64)[None], pose[None], [object_pose is not None], looks
        )[0]
        return picture

    def close(self) -> None:
        """Release the camera; it cannot draw afterwards."""
        self._open = False


def missing_warp() -> MissingExtraError:
    """Return the error for a fast camera without its library."""
    return MissingExtraError(
        "Found no warp; expected it for the camera renderer 'fast'. Run "
        f"{install_command('panda')} (the package is called warp-lang), or use the renderer 'tiny'."
    )


@functools.cache
def camera_eye() -> Floats:
    """Return where the camera stands, ``(3,)`` in metres, read-only."""
    rotation, shift = np.split(view_matrix()[:3], [3], axis=1)
    eye: Floats = -(rotation.T @ shift)[:, 0]
    eye.setflags(write=False)
    return eye


@functools.cache
def view_matrix() -> Floats:
    """Return the ``(4, 4)`` matrix from the world to the camera (which looks along its -z);
    read-only."""
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
    view.setflags(write=False)
    return view


def moved_view(position: Floats, rotation: Floats) -> Floats:
    """Return the ``(4, 4)`` view matrix of a camera that was moved by ``(3,)`` metres in the world
    and then panned, tilted and rolled by ``(3,)`` degrees."""
    view = view_matrix().copy()
    turned = view[:3, :3]
    for axis, degrees in zip((1, 0, 2), rotation.tolist(), strict=True):
        cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        turn = np.eye(3)
        first, second = (axis + 1) % 3, (axis + 2) % 3
        turn[[first, second], [first, second]] = cos
        turn[first, second], turn[second, first] = sin, -sin
        turned = turn @ turned
    view[:3, :3] = turned
    view[:3, 3] = -turned @ (camera_eye() + position)
    return view


def projection_matrix(height: int, width: int, field_of_view: float = c.CAMERA_FOV) -> Floats:
    """Return the ``(4, 4)`` matrix from the camera to clip space for degrees from top to bottom."""
    scale = 1.0 / math.tan(math.radians(field_of_view) / 2.0)
    near, far = c.CAMERA_NEAR, c.CAMERA_FAR
    projection = np.zeros((4, 4))
    projection[0, 0] = scale * height / width
    projection[1, 1] = scale
    projection[2, 2] = (far + near) / (near - far)
    projection[2, 3] = 2.0 * far * near / (near - far)
    projection[3, 2] = -1.0
    return projection


def clip_matrix(height: int, width: int) -> Floats:
    """Return the ``(4, 4)`` matrix from the world to clip space, as OpenGL defines it."""
    return np.asarray(projection_matrix(height, width) @ view_matrix())


def screen_matrix(height: int, width: int, clip: Floats | None = None) -> Floats:
    """Return the ``(4, 4)`` matrix from the world to (column, row, depth, 1) times the distance.

    ``clip`` is that of a camera elsewhere.
    """
    seen = clip_matrix(height, width) if clip is None else clip
    return np.asarray(viewport_matrix(height, width) @ seen)


def viewport_matrix(height: int, width: int) -> Floats:
    """Return the ``(4, 4)`` matrix from clip space to columns and rows."""
    viewport = np.eye(4)
    viewport[0, 0] = viewport[0, 3] = width / 2.0
    # TinyRenderer counts rows upwards from 0; the picture's row 0 is its row height - 1.
    viewport[1, 1] = -height / 2.0
    viewport[1, 3] = height / 2.0 - 1.0
    return viewport


def in_view(on_screen: Floats, spec: CameraSpec) -> Flags:
    """Return ``(...)``: false for points ``(..., 4, P)``, as :func:`screen_matrix` gives them, that
    are all beyond one edge of the picture, or nearer than the camera sees."""
    x, y, w = on_screen[..., 0, :], on_screen[..., 1, :], on_screen[..., 3, :]
    right, bottom = spec.width - 1.0, spec.height - 1.0
    inside = np.stack([x >= 0.0, x <= right * w, y >= 0.0, y <= bottom * w, w >= c.CAMERA_NEAR])
    return np.asarray(inside.any(axis=-1).all(axis=0))


def camera_spec(
    camera: Renderer, mesh: Mesh | None, image_size: tuple[int, int] | None, bundle: Bundle | None
) -> CameraSpec:
    """Return the camera's specification; what is None comes from the bundle, else the default."""
    scene: Mapping[str, Any] = {} if bundle is None else bundle.spec.picture.scene
    if image_size is not None:
        try:
            height, width = (int(value) for value in image_size)
            if min(height, width) < 1:
                raise ValueError("not positive")
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"Found image_size={image_size!r}; expected two positive whole numbers, (height, "
                "width). Pass for example (96, 128)."
            ) from error
    elif bundle is not None:
        picture = bundle.spec.picture
        height, width = size_before_crop(bundle) or (picture.height, picture.width)
    else:
        height, width = c.PICTURE_HEIGHT, c.PICTURE_WIDTH
    if mesh is None:
        mesh = cast(Mesh, str(scene.get("mesh", CameraSpec().mesh)))
    return CameraSpec(height=height, width=width, renderer=camera, mesh=mesh)


def resized(frame: Pixels, height: int, width: int) -> Pixels:
    """Return the ``(H, W, 3)`` frame resized by PIL (bilinear), as the article does."""
    if frame.shape[:2] == (height, width):
        return frame
    from PIL import Image

    image = Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8)


def size_before_crop(bundle: Bundle) -> tuple[int, int] | None:
    """Return the height and width of the frames a bundle expects; None if it resizes them."""
    picture = bundle.spec.picture
    scene: Mapping[str, Any] = picture.scene
    if "height" in scene and "width" in scene:
        return int(scene["height"]), int(scene["width"])
    if picture.resize != "none" or picture.crop is not None:
        return None
    return picture.height, picture.width
