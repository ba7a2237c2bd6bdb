"""What the baked files hold: the meshes that move, and table and floor behind them."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ModelNotFoundError
from vinoreward_envs.camera.spec import Floats, Pixels

MESH_LINKS: Final = 14
"""Bodies that move: 0 is the arm's base, 1-12 PyBullet's links 0-11, 13 the object."""
OBJECT_LINK: Final = MESH_LINKS - 1
# TinyRenderer's light, as PyBullet sets it by default.
AMBIENT: Final = 0.6
DIFFUSE: Final = 0.35
SPECULAR: Final = 0.05


@dataclass(frozen=True)
class SceneMesh:
    """All moving triangles, in the frames of their links; arrays are read-only."""

    positions: NDArray[np.float32]
    """``(V, 3)`` metres."""
    links: Pixels
    """``(V,)`` the body each vertex belongs to, 0 to 13; vertices are sorted by it."""
    normals: NDArray[np.float32]
    """``(N, 3)`` unit vectors."""
    faces: NDArray[np.int32]
    """``(T, 3)`` vertices of each triangle, counter-clockwise from outside."""
    normal_faces: NDArray[np.int32]
    """``(T, 3)`` normals of each triangle's corners."""
    colours: Pixels
    """``(T, 3)`` RGB before lighting."""


def scene_path(level: str) -> Path:
    """Return the path of a baked file: level ``"full"``, ``"20"`` or ``"background"``."""
    return Path(str(resources.files("vinoreward_assets"))) / f"scene-{level}.npz"


@functools.lru_cache(maxsize=4)
def _arrays(level: str) -> dict[str, NDArray[Any]]:
    path = scene_path(level)
    if not path.is_file():
        raise ModelNotFoundError(
            f"Found no {path}; expected a baked scene file, which ships with vinoreward. "
            "Reinstall vinoreward; in its repository, python assets/bake.py "
            "makes it."
        )
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


@functools.lru_cache(maxsize=4)
def scene_mesh(level: str) -> SceneMesh:
    """Return the moving meshes at a level, ``"full"`` or ``"20"`` (percent of the triangles)."""
    stored = _arrays(level)
    normals = stored["normals"].astype(np.float32) / np.float32(32767.0)
    normals.setflags(write=False)
    return SceneMesh(**{**stored, "normals": normals})


@dataclass(frozen=True)
class BackgroundMesh:
    """Triangles of table and floor, in the world, nearest to a camera above the table first."""

    positions: Floats
    """``(T, 3, 3)`` metres."""
    normals: Floats
    """``(T, 3)`` unit vectors."""
    uv: Floats
    """``(T, 3, 2)`` places in the texture."""
    on_table: NDArray[np.bool_]
    """``(T,)`` whether a triangle has the table's texture, else the floor's."""
    grain: Floats
    """``(2, 2)`` from metres along x and y on the table's top to places in its texture."""


@functools.lru_cache(maxsize=1)
def background_mesh() -> BackgroundMesh:
    """Return the triangles of table and floor."""
    stored = _arrays("background")
    position = stored["background_positions"]
    # The nearest first, as what is hidden is left out: the table from its top, then the floor.
    on_table = stored["background_texture"] == 1
    order = np.lexsort([-position[..., 2].min(axis=1), ~on_table])
    uv = stored["background_uv"][order]
    position = position[order]
    # The first triangle is of the table's top; its sides in the world and in the texture.
    sides, grain = np.diff(position[0, :, :2], axis=0), np.diff(uv[0], axis=0)
    return BackgroundMesh(
        position,
        stored["background_normals"][order, 0],
        uv,
        on_table[order],
        np.linalg.solve(sides, grain).T,
    )


@functools.lru_cache(maxsize=1)
def textures() -> tuple[Pixels, Pixels]:
    """Return the floor's and the table's texture, ``(H, W, 3)`` RGB."""
    return _texture("texture_0"), _texture("texture_1")


def _texture(name: str) -> Pixels:
    from PIL import Image

    data = _arrays("background")[name].tobytes()
    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        return np.asarray(image.convert("RGB"))
