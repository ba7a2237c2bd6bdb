"""Read, prune and decimate triangle meshes, for baking the hover scene."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import MissingExtraError

FloatArray = NDArray[np.float64]

_DIRECTIONS: Final = 200
"""A mesh is looked at from this many sides to find what can be seen of it."""
_SIDE: Final = 1024
"""Pixels of such a look."""
_LIGHT: Final = 200
"""Every channel at least this: the shell. Darker: the arm's dark parts."""
_SMALL: Final = 250
"""Separate pieces with fewer triangles are kept whole."""
_LEAST: Final = 0.15
"""Large pieces keep at least this share, however many small ones there are."""
_NEIGHBOURS: Final = 12
"""Original corners considered for the normal of a new one."""
_REACH: Final = 0.005
"""Metres of distance that weigh as much as a normal turned by a right angle."""


@dataclass(frozen=True)
class Corners:
    """A triangle mesh with everything stored per corner.

    ``position`` and ``normal`` are ``(T, 3, 3)``, ``uv`` is ``(T, 3, 2)``.
    """

    position: FloatArray
    normal: FloatArray
    uv: FloatArray


def read_obj(path: Path) -> Corners:
    """Read a Wavefront OBJ as PyBullet does: polygons as fans, missing normals from the faces."""
    points: list[list[float]] = []
    normals: list[list[float]] = []
    uvs: list[list[float]] = []
    corners: list[tuple[int, int, int]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "v":
            points.append([float(word) for word in words[1:4]])
        elif words[0] == "vn":
            normals.append([float(word) for word in words[1:4]])
        elif words[0] == "vt":
            uvs.append([float(word) for word in words[1:3]])
        elif words[0] == "f":
            face = [_corner(word) for word in words[1:]]
            for i in range(1, len(face) - 1):
                corners += [face[0], face[i], face[i + 1]]
    index = np.array(corners).reshape(-1, 3, 3)
    position = np.array(points)[index[..., 0]]
    uv = np.array(uvs)[index[..., 1]] if uvs else np.zeros((len(index), 3, 2))
    if normals:
        normal = np.array(normals)[index[..., 2]]
    else:
        normal = np.repeat(_face_normals(position)[:, None], 3, axis=1)
    return Corners(position, normal, uv)


def _corner(word: str) -> tuple[int, int, int]:
    """Return the zero-based (position, uv, normal) indices of ``v/vt/vn``; -1 where absent."""
    parts = [int(part) - 1 if part else -1 for part in word.split("/")]
    parts += [-1] * (3 - len(parts))
    return parts[0], parts[1], parts[2]


def _face_normals(position: FloatArray) -> FloatArray:
    normal = np.cross(position[:, 1] - position[:, 0], position[:, 2] - position[:, 0])
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    unit: FloatArray = normal / np.where(length > 0, length, 1.0)
    return unit


def texels(texture: NDArray[np.uint8], uv: FloatArray) -> NDArray[np.uint8]:
    """Return the ``(T, 3)`` colours at ``(T, 2)`` coordinates, v pointing up, wrapped."""
    height, width = texture.shape[:2]
    wrapped = uv - np.floor(uv)
    column = np.minimum((wrapped[:, 0] * width).astype(int), width - 1)
    row = np.minimum((wrapped[:, 1] * height).astype(int), height - 1)
    found: NDArray[np.uint8] = texture[height - 1 - row, column]
    return found


def seen_triangles(position: FloatArray) -> NDArray[np.bool_]:
    """Return which of ``(T, 3, 3)`` triangles can be seen from outside, whatever the pose.

    The mesh is drawn by itself from all around; a triangle that never wins a pixel is inside.
    """
    import warp

    from vinoreward_envs.camera import kernels

    warp.config.log_level = warp.LOG_WARNING
    count = len(position)
    faces: Any = warp.array(np.arange(3 * count, dtype=np.int32).reshape(-1, 3), dtype=warp.vec3i)
    face_links = warp.zeros(count, dtype=warp.uint8)
    shown: Any = warp.array(np.ones((1, 1), np.uint8), dtype=warp.uint8)
    points = position.reshape(-1, 3) - position.reshape(-1, 3).mean(axis=0)
    radius = float(np.linalg.norm(points, axis=1).max())
    seen = np.zeros(count + 1, dtype=np.bool_)
    # A spiral from pole to pole spreads the directions evenly.
    golden = math.pi * (3.0 - math.sqrt(5.0))
    for i in range(_DIRECTIONS):
        z = 1.0 - (2.0 * i + 1.0) / _DIRECTIONS
        side = math.sqrt(1.0 - z * z)
        toward = np.array([side * math.cos(golden * i), side * math.sin(golden * i), z])
        right = np.cross([0.0, 0.0, 1.0], toward)
        right /= np.linalg.norm(right)
        axes = np.stack([right, -np.cross(toward, right), toward], axis=1)
        flat = points @ axes / radius
        screen = np.stack(
            [(flat[:, 0] + 1) * _SIDE / 2, (flat[:, 1] + 1) * _SIDE / 2, flat[:, 2] + 2.0], axis=1
        )
        depth: Any = warp.zeros((1, _SIDE, _SIDE), dtype=warp.uint64)
        warp.launch(
            kernels.fill_triangles,
            dim=(1, count),
            inputs=[
                faces,
                face_links,
                shown,
                warp.array(screen[None].astype(np.float32), dtype=warp.vec3),
                _SIDE,
                _SIDE,
                depth,
            ],
        )
        seen[np.unique(depth.numpy() & np.uint64(0xFFFFFFFF)).astype(np.int64)] = True
    found: NDArray[np.bool_] = seen[1:]
    return found


def decimate(
    mesh: Corners, colour: NDArray[np.uint8], share: float
) -> tuple[Corners, NDArray[np.uint8]]:
    """Return about ``share`` of the triangles, with normals and colours from the nearest ones.

    Triangles inside the mesh go first: moved a little, they would shine through the outer ones.
    """
    from scipy.spatial import cKDTree

    wanted = share * len(mesh.position)
    outside = seen_triangles(mesh.position)
    mesh = Corners(mesh.position[outside], mesh.normal[outside], mesh.uv[outside])
    colour = colour[outside]
    keep = min(1.0, wanted / len(colour))
    white = (colour >= _LIGHT).all(axis=1)
    positions, normals, colours = [], [], []
    for part in (white, ~white):
        # Shell and dark parts by themselves, or the border between them would wander.
        corner = mesh.position[part].reshape(-1, 3)
        if not len(corner):
            continue
        points, inverse = np.unique(corner, axis=0, return_inverse=True)
        faces = inverse.reshape(-1, 3)
        position = _simplified(points, faces, keep)
        flat = _face_normals(position)
        # The normal of the nearest original corner that faces the same way: keeps hard edges.
        source_normal = mesh.normal[part].reshape(-1, 3)
        source_flat = np.repeat(_face_normals(mesh.position[part]), 3, axis=0)
        neighbours = min(_NEIGHBOURS, len(corner))
        distance, near = cKDTree(corner).query(position.reshape(-1, 3), k=neighbours)
        agreement = np.einsum("ckx,cx->ck", source_flat[near], np.repeat(flat, 3, axis=0))
        score = agreement - distance / _REACH
        best = np.take_along_axis(near, score.argmax(axis=1)[:, None], axis=1)[:, 0]
        positions.append(position)
        normals.append(source_normal[best].reshape(-1, 3, 3))
        centre = mesh.position[part].mean(axis=1)
        _, closest = cKDTree(centre).query(position.mean(axis=1))
        colours.append(colour[part][closest])
    joined = np.concatenate(positions)
    mesh = Corners(joined, np.concatenate(normals), np.zeros((len(joined), 3, 2)))
    return mesh, np.concatenate(colours)


def _simplified(points: FloatArray, faces: NDArray[np.int64], keep: float) -> FloatArray:
    """Return the corners ``(T, 3, 3)`` of about ``keep`` of the faces.

    Small separate pieces (screws, caps, emblems) stay as they are: the simplifier would make
    holes of them.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    try:
        import fast_simplification  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtraError(
            "Found no fast_simplification; expected it to decimate meshes. Install it with "
            "pip install fast-simplification."
        ) from error
    edges = faces[:, [0, 1, 1, 2]].reshape(-1, 2)
    graph = coo_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(len(points),) * 2)
    _, label = connected_components(graph, directed=False)
    piece = label[faces[:, 0]]
    small = np.bincount(piece)[piece] < _SMALL
    large = faces[~small]
    whole: FloatArray = points[faces[small]]
    target = (keep * len(faces) - len(whole)) / max(len(large), 1)
    if not len(large):
        return whole
    used, inverse = np.unique(large, return_inverse=True)
    kept, kept_faces = fast_simplification.simplify(
        points[used].astype(np.float32),
        inverse.reshape(-1, 3).astype(np.int32),
        target_reduction=1.0 - min(max(target, _LEAST), 1.0),
    )
    return np.concatenate([whole, np.asarray(kept, dtype=np.float64)[kept_faces]])
