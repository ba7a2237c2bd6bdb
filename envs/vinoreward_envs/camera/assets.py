"""What the hover scene is made of, without PyBullet: the object's rest pose and baked meshes.

``vinoreward_training.bake.scene`` writes the files: the moving meshes at each mesh level
(``scene-full.npz``, ``scene-20.npz``) and the background (``scene-background.npz``).
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ModelNotFoundError
from vinoreward_envs import constants as c
from vinoreward_envs.camera.spec import LIGHT, clip_matrix

MESH_LINKS: Final = 14
"""Bodies that move: 0 is the arm's base, 1-12 PyBullet's links 0-11, 13 the object."""
OBJECT_LINK: Final = MESH_LINKS - 1

OBJECT_REST_HEIGHT: Final = -0.0084536
"""z of the object's base, in metres, after it was dropped from 0.10 and came to rest."""
OBJECT_REST_ROTATION: Final[tuple[float, float, float, float]] = (0.0, 0.0970480, 0.0, 0.9952797)
"""Its orientation at rest as a quaternion x, y, z, w: it leans 11 degrees about y."""

# TinyRenderer's light, as PyBullet sets it by default.
AMBIENT: Final = 0.6
DIFFUSE: Final = 0.35
SPECULAR: Final = 0.05


def object_rest_pose(xy: tuple[float, float]) -> NDArray[np.float64]:
    """Return the ``(4, 4)`` world pose of the object's base at rest at ``xy`` (metres).

    The pose is the one PyBullet's ``getBasePositionAndOrientation`` reports: the object's centre
    of mass, which in this URDF is also the origin of its link frame. It was measured by dropping
    the object at (0.65, -0.30, 0.10) and stepping until it lay still; ``xy`` is where the base
    lies in the end (the drop itself moves it 3 mm along x).
    """
    _, sin_half, _, cos_half = OBJECT_REST_ROTATION
    sin, cos = 2.0 * sin_half * cos_half, cos_half * cos_half - sin_half * sin_half
    pose = np.eye(4)
    pose[0, 0], pose[0, 2] = cos, sin
    pose[2, 0], pose[2, 2] = -sin, cos
    pose[:3, 3] = (xy[0], xy[1], OBJECT_REST_HEIGHT)
    return pose


@dataclass(frozen=True)
class SceneMesh:
    """All moving triangles, in the frames of their links; arrays are read-only."""

    positions: NDArray[np.float32]
    """``(V, 3)`` metres."""
    links: NDArray[np.uint8]
    """``(V,)`` the body each vertex belongs to, 0 to 13; vertices are sorted by it."""
    normals: NDArray[np.float32]
    """``(N, 3)`` unit vectors."""
    faces: NDArray[np.int32]
    """``(T, 3)`` vertices of each triangle, counter-clockwise from outside."""
    normal_faces: NDArray[np.int32]
    """``(T, 3)`` normals of each triangle's corners."""
    colours: NDArray[np.uint8]
    """``(T, 3)`` RGB before lighting."""


class Background(NamedTuple):
    """Table and floor as the camera sees them; arrays are read-only."""

    picture: NDArray[np.uint8]
    """``(H, W, 3)`` RGB."""
    nearness: NDArray[np.float32]
    """``(H, W)`` one over the distance along the camera's axis, 1/m; 0 where there is nothing."""


def scene_path(level: str) -> Path:
    """Return where a baked file lies: level ``"full"``, ``"20"`` or ``"background"``."""
    return Path(str(resources.files("vinoreward_assets"))) / f"scene-{level}.npz"


@functools.lru_cache(maxsize=4)
def _arrays(level: str) -> dict[str, NDArray[Any]]:
    path = scene_path(level)
    if not path.is_file():
        raise ModelNotFoundError(
            f"Found no {path}; expected a baked scene file, which ships with vinoreward. "
            "Reinstall vinoreward; in its repository, python -m vinoreward_training.bake.scene "
            "makes it."
        )
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


@functools.lru_cache(maxsize=4)
def scene_mesh(level: str) -> SceneMesh:
    """Return the moving meshes at a level, ``"full"`` or ``"20"`` (percent of the triangles).

    Raises:
        ModelNotFoundError: the baked file is missing.
    """
    stored = _arrays(level)
    normals = stored["normals"].astype(np.float32) / np.float32(32767.0)
    normals.setflags(write=False)
    return SceneMesh(**{**stored, "normals": normals})


def _texture(name: str) -> NDArray[np.uint8]:
    from PIL import Image

    data = _arrays("background")[name].tobytes()
    with Image.open(io.BytesIO(data), formats=("PNG",)) as picture:
        return np.asarray(picture.convert("RGB"))


@functools.lru_cache(maxsize=8)
def background(height: int, width: int) -> Background:
    """Draw table and floor at a size in pixels, sampled and lit as TinyRenderer does.

    Raises:
        ModelNotFoundError: the baked file is missing.
    """
    stored = _arrays("background")
    textures = [_texture("texture_0"), _texture("texture_1")]
    clip = clip_matrix(height, width)
    # TinyRenderer samples at the pixels' lower left corners, not at their centres.
    x = 2.0 * np.arange(width) / width - 1.0
    y = 2.0 * (height - 1 - np.arange(height)) / height - 1.0
    ray = np.stack([*np.meshgrid(x, y), np.ones((height, width))])
    picture = np.full((height, width, 3), 255, dtype=np.uint8)
    nearness = np.zeros((height, width))
    for i, position in enumerate(stored["background_positions"]):
        # Each corner's weight over its distance is linear on the screen: no clipping needed.
        corner = clip @ np.concatenate([position, np.ones((3, 1))], axis=1).T
        square = corner[[0, 1, 3]]
        # A triangle seen from behind or edge on is not drawn.
        if np.linalg.det(square) <= 0.0:
            continue
        weight = np.einsum("cx,xhw->chw", np.linalg.inv(square), ray)
        near = weight.sum(axis=0)
        won = (weight >= 0.0).all(axis=0) & (near >= nearness) & (near > 1.0 / c.CAMERA_FAR)
        share = (weight[:, won] / near[won]).T
        colour = texels(
            textures[stored["background_texture"][i]], share @ stored["background_uv"][i]
        )
        brightness = _light(stored["background_normals"][i, 0])
        picture[won] = (colour * brightness).astype(np.uint8)
        nearness[won] = near[won]
    found = Background(picture, nearness.astype(np.float32))
    for array in found:
        array.setflags(write=False)
    return found


def texels(texture: NDArray[np.uint8], uv: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return the nearest colours ``(N, 3)`` at ``(N, 2)`` coordinates, v pointing up, wrapped."""
    height, width = texture.shape[:2]
    wrapped = uv - np.floor(uv)
    column = np.minimum((wrapped[:, 0] * width).astype(int), width - 1)
    row = np.minimum((wrapped[:, 1] * height).astype(int), height - 1)
    found: NDArray[np.uint8] = texture[height - 1 - row, column]
    return found


def _light(normal: NDArray[np.float64]) -> float:
    """Return TinyRenderer's brightness of a surface with this unit normal ``(3,)``."""
    direction = np.array(LIGHT) / np.linalg.norm(LIGHT)
    facing = float(normal @ direction)
    mirrored = float(2.0 * facing * normal[2] - direction[2])
    return AMBIENT + DIFFUSE * max(facing, 0.0) + SPECULAR * max(mirrored, 0.0) ** 2
