"""What an image of the hover task is, and where the camera stands."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError
from vinoreward_envs import constants as c

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]
Pixels = NDArray[np.uint8]
Renderer = Literal["fast", "tiny"]
Mesh = Literal["full", "20"]

MAX_SIDE: Final = 4096
"""Largest height or width of an image, in pixels."""
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
    """What an image looks like; of equal size and mesh, it suits the same network."""

    height: int = c.IMAGE_HEIGHT
    """Pixels, 1 to 4096."""
    width: int = c.IMAGE_WIDTH
    """Pixels, 1 to 4096."""
    renderer: Renderer = "fast"
    """``"fast"``: this package's rasteriser. ``"tiny"``: PyBullet's TinyRenderer."""
    mesh: Mesh = "20"
    """Share of the arm's triangles that are drawn; ``"tiny"`` always draws the full meshes."""

    def __post_init__(self) -> None:
        """Refuse what no renderer can draw."""
        for name, value in (("height", self.height), ("width", self.width)):
            if type(value) is not int or not 1 <= value <= MAX_SIDE:
                raise ConfigError(
                    f"Found image {name} {value!r} (of image_size); expected a whole number of "
                    f"pixels from 1 to {MAX_SIDE}. Choose such a size, for example 96 x 128 "
                    "(height x width)."
                )
        check_choice("camera", self.renderer, get_args(Renderer))
        check_choice("mesh", self.mesh, get_args(Mesh))

    def as_dict(self) -> dict[str, str | int]:
        """Return what a network depends on as plain data: not the renderer, both draw the same."""
        size = {"height": self.height, "width": self.width}
        return {"scene": "panda-hover", **size, "mesh": self.mesh}


class Camera(Closing):
    """Draws the scene for given joints and poses of the object's base; belongs to one thread."""

    def __init__(self, spec: CameraSpec) -> None:
        self.spec = spec

    @abc.abstractmethod
    def render_batch(
        self, joints: Floats, poses: Floats, present: Flags, rows: Integers | None = None
    ) -> Pixels:
        """Draw ``B`` scenes as ``(B, height, width, 3)`` uint8 RGB, owned by the caller.

        ``joints`` are ``(B, 9)`` in radians and metres; ``poses`` of the object ``(B, 4, 4)``,
        ignored where it is not ``present``, ``(B,)`` bool. ``rows``, ``(B,)`` whole numbers, are
        the scenes' appearances, by default in order.
        """

    def render(self, joints: Floats, pose: Floats | None) -> Pixels:
        """Draw one scene of ``(9,)`` joints and a ``(4, 4)`` pose; None: without the object."""
        poses = (np.eye(4) if pose is None else pose)[None]
        image: Pixels = self.render_batch(joints[None], poses, np.array([pose is not None]))[0]
        return image

    def close(self) -> None:
        """Release the camera; it cannot draw afterwards."""


def camera_eye() -> Floats:
    """Return where the camera stands, ``(3,)`` in metres."""
    return np.asarray(np.linalg.inv(view_matrix())[:3, 3], np.float64)


def view_matrix() -> Floats:
    """Return the ``(4, 4)`` matrix from the world to the camera (which looks along its -z)."""
    yaw, pitch = math.radians(c.CAMERA_YAW), math.radians(c.CAMERA_PITCH)
    # Yaw 0 looks along +y, a negative pitch looks down; the camera is not rolled.
    forward = np.array(
        [-math.sin(yaw) * math.cos(pitch), math.cos(yaw) * math.cos(pitch), math.sin(pitch)]
    )
    right = np.array([math.cos(yaw), math.sin(yaw), 0.0])
    view = np.eye(4)
    view[:3, :3] = np.stack([right, np.cross(right, forward), -forward])
    view[:3, 3] = -view[:3, :3] @ (np.array(c.CAMERA_TARGET) - c.CAMERA_DISTANCE * forward)
    return view


def projection_matrix(height: int, width: int) -> Floats:
    """Return the ``(4, 4)`` matrix from the camera to clip space."""
    scale = 1.0 / math.tan(math.radians(c.CAMERA_FOV) / 2.0)
    near, far = c.CAMERA_NEAR, c.CAMERA_FAR
    projection = np.zeros((4, 4))
    projection[0, 0] = scale * height / width
    projection[1, 1] = scale
    projection[2, 2] = (far + near) / (near - far)
    projection[2, 3] = 2.0 * far * near / (near - far)
    projection[3, 2] = -1.0
    return projection


def viewport_matrix(height: int, width: int) -> Floats:
    """Return the ``(4, 4)`` matrix from clip space to columns and rows."""
    viewport = np.eye(4)
    viewport[0, 0] = viewport[0, 3] = width / 2.0
    # TinyRenderer counts rows upwards from 0; the image's row 0 is its row height - 1.
    viewport[1, 1] = -height / 2.0
    viewport[1, 3] = height / 2.0 - 1.0
    return viewport


def checked_size(image_size: tuple[int, int] | None) -> tuple[int, int]:
    """Return height and width; None is the default."""
    try:
        height, width = (c.IMAGE_HEIGHT, c.IMAGE_WIDTH) if image_size is None else image_size
        return int(height), int(width)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Found image_size={image_size!r}; expected two whole numbers, (height, width). Pass "
            "for example (96, 128)."
        ) from error


def resized(frame: Pixels, height: int, width: int) -> Pixels:
    """Return the ``(H, W, 3)`` frame resized by PIL (bilinear), as the article does."""
    if frame.shape[:2] == (height, width):
        return frame
    from PIL import Image

    image = Image.fromarray(frame).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8)
