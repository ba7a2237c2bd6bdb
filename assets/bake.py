"""Bake the hover scene's meshes and textures from ``pybullet_data`` into files.

Needs pybullet, scipy and the package ``fast-simplification``. In the repository, run ``python
assets/bake.py [FOLDER]``. Everything that draws reads the baked files instead
(:mod:`vinoreward_envs.camera.baked` says what is in them).
"""

from __future__ import annotations

import io
import math
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vinoreward.files import write_bytes
from vinoreward_envs import constants as c
from vinoreward_envs.camera.baked import MESH_LINKS, scene_path

FloatArray = NDArray[np.float64]

_DIRECTIONS: Final = 200  # views of a mesh, to find its visible triangles
_SIDE: Final = 1024  # pixels of a view
_LIGHT: Final = 200  # every channel at least this: the shell; darker: the arm's dark parts
_SMALL: Final = 250  # separate pieces with fewer triangles are kept whole
_LEAST: Final = 0.15  # large pieces keep at least this share, however many small ones there are
_NEIGHBOURS: Final = 12  # original corners considered for the normal of a new one
_REACH: Final = 0.005  # metres of distance that weigh as much as a normal turned by a right angle
_FEW: Final = 1000  # meshes with fewer triangles are not decimated
_TURNED_FINGER: Final = 11  # PyBullet's link 10: the URDF turns its mesh by half a turn about z
_LINK_MESHES = (
    (0, "collision/link0.obj"),
    *((link, f"visual/link{link}.obj") for link in range(1, 7)),
    (7, "collision/link7.obj"),
    (9, "visual/hand.obj"),
    (10, "visual/finger.obj"),
    (11, "visual/finger.obj"),
)
"""Mesh link (0: the arm's base, 1-12: PyBullet's links 0-11) and its file."""


@dataclass(frozen=True)
class Corners:
    """A triangle mesh by corners: position and normal ``(T, 3, 3)``, uv ``(T, 3, 2)``."""

    position: FloatArray
    normal: FloatArray
    uv: FloatArray


def read_obj(path: Path) -> Corners:
    """Read a Wavefront OBJ as PyBullet does: polygons as fans, missing normals from the faces."""
    vectors: dict[str, list[list[float]]] = {"v": [], "vn": [], "vt": []}
    corners: list[list[int]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        kind, *words = line.split() or [""]
        if kind in vectors:
            vectors[kind].append([float(word) for word in words[: 2 if kind == "vt" else 3]])
        elif kind == "f":
            # Corners are v/vt/vn, the last two optional: (position, uv, normal) from zero, else -1.
            split = [[int(part) - 1 if part else -1 for part in word.split("/")] for word in words]
            face = [[*one, -1, -1][:3] for one in split]
            for i in range(1, len(face) - 1):
                corners += [face[0], face[i], face[i + 1]]
    index = np.array(corners).reshape(-1, 3, 3)
    points, normals, uvs = (np.array(values) for values in vectors.values())
    position = points[index[..., 0]]
    uv = uvs[index[..., 1]] if len(uvs) else np.zeros((len(index), 3, 2))
    if len(normals):
        normal = normals[index[..., 2]]
    else:
        normal = np.repeat(_face_normals(position)[:, None], 3, axis=1)
    return Corners(position, normal, uv)


def _face_normals(position: FloatArray) -> FloatArray:
    normal = np.cross(position[:, 1] - position[:, 0], position[:, 2] - position[:, 0])
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    return np.asarray(normal / np.where(length > 0, length, 1.0))


def visible_triangles(position: FloatArray) -> NDArray[np.bool_]:
    """Return which of ``(T, 3, 3)`` triangles win a pixel in some view of the mesh alone."""
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
    return np.asarray(seen[1:])


def _visible_part(mesh: Corners, colour: NDArray[np.uint8]) -> tuple[Corners, NDArray[np.uint8]]:
    outside = visible_triangles(mesh.position)
    return Corners(mesh.position[outside], mesh.normal[outside], mesh.uv[outside]), colour[outside]


def decimate(
    mesh: Corners, colour: NDArray[np.uint8], share: float
) -> tuple[Corners, NDArray[np.uint8]]:
    """Return about ``share`` of the triangles, with normals and colours from the nearest ones.

    Triangles inside the mesh go first: moved a little, they would shine through the outer ones.
    """
    from scipy.spatial import cKDTree

    wanted = share * len(mesh.position)
    mesh, colour = _visible_part(mesh, colour)
    keep = min(1.0, wanted / len(colour))
    white = (colour >= _LIGHT).all(axis=1)
    positions, normals, colours = [], [], []
    for part in (white, ~white):
        # Shell and dark parts separately, or the border between them would move.
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

    Small separate pieces (screws, caps, emblems) stay: the simplifier would make holes of them.
    """
    import fast_simplification  # type: ignore[import-untyped]
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

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
    corners, corner_faces = fast_simplification.simplify(
        points[used].astype(np.float32),
        inverse.reshape(-1, 3).astype(np.int32),
        target_reduction=1.0 - min(max(target, _LEAST), 1.0),
    )
    return np.concatenate([whole, np.asarray(corners, dtype=np.float64)[corner_faces]])


def _indexed(mesh: Corners, link: int) -> tuple[dict[str, NDArray[Any]], int]:
    """Return a mesh with shared positions and normals, and how many positions it has."""
    positions, faces = np.unique(
        mesh.position.reshape(-1, 3).astype(np.float32), axis=0, return_inverse=True
    )
    normal = mesh.normal.reshape(-1, 3)
    normal = normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    packed = np.round(normal * 32767.0).astype(np.int16)
    normals, normal_index = np.unique(packed, axis=0, return_inverse=True)
    arrays: dict[str, NDArray[Any]] = {
        "positions": positions,
        "faces": faces.reshape(-1, 3).astype(np.int32),
        "normals": normals,
        "normal_faces": normal_index.reshape(-1, 3).astype(np.int32),
        "links": np.full(len(positions), link, dtype=np.uint8),
    }
    return arrays, len(positions)


def _robot(folder: Path) -> list[tuple[int, Corners, NDArray[np.uint8]]]:
    """Return (mesh link, mesh, colour per triangle) of every visual of the arm."""
    from PIL import Image

    meshes = folder / "franka_panda" / "meshes"
    with Image.open(meshes / "visual" / "colors.png", formats=("PNG",)) as image:
        texture = np.asarray(image.convert("RGB"))
    visuals = []
    for link, name in _LINK_MESHES:
        mesh = read_obj(meshes / name)
        if name.startswith("collision"):
            # These files have no texture: the URDF's own colour, white.
            colour = np.full((len(mesh.position), 3), 255, dtype=np.uint8)
        else:
            colour = _texels(texture, mesh.uv.mean(axis=1))
        if link == _TURNED_FINGER:
            turn = np.array([-1.0, -1.0, 1.0])
            mesh = Corners(mesh.position * turn, mesh.normal * turn, mesh.uv)
        visuals.append((link, mesh, colour))
    return visuals


def _object(folder: Path) -> tuple[Corners, NDArray[np.uint8]]:
    urdf = folder / c.OBJECT_URDF
    visual = ElementTree.parse(urdf).getroot().find("link/visual")
    mesh_tag = None if visual is None else visual.find("geometry/mesh")
    colour_tag = None if visual is None else visual.find("material/color")
    if mesh_tag is None or colour_tag is None:
        raise LookupError(f"found no visual mesh or colour in {urdf}, expected PyBullet 3.2's")
    scale = np.array([float(word) for word in mesh_tag.attrib["scale"].split()])
    rgba = [float(word) for word in colour_tag.attrib["rgba"].split()]
    mesh = read_obj(urdf.parent / mesh_tag.attrib["filename"])
    colour = np.array([math.floor(255 * value) for value in rgba[:3]], dtype=np.uint8)
    scaled = Corners(mesh.position * scale, mesh.normal, mesh.uv)
    return scaled, np.repeat(colour[None], len(mesh.position), axis=0)


def _texels(texture: NDArray[np.uint8], uv: FloatArray) -> NDArray[np.uint8]:
    """Return the nearest colours ``(N, 3)`` at ``(N, 2)`` coordinates, v pointing up, wrapped."""
    height, width = texture.shape[:2]
    wrapped = uv - np.floor(uv)
    column = np.minimum((wrapped[:, 0] * width).astype(int), width - 1)
    row = np.minimum((wrapped[:, 1] * height).astype(int), height - 1)
    return np.asarray(texture[height - 1 - row, column])


def _background(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the floor's and the table's triangles in the world, and their two textures."""
    ones, floor = np.ones(3), np.array(c.PLANE_POSITION)
    parts = [(read_obj(folder / "plane100.obj"), ones, floor, 0)]
    table = ElementTree.parse(folder / c.TABLE_URDF).getroot()
    for visual in table.iterfind("link/visual"):
        origin, mesh_tag = visual.find("origin"), visual.find("geometry/mesh")
        if origin is None or mesh_tag is None:
            continue
        scale = np.array([float(word) for word in mesh_tag.attrib["scale"].split()])
        offset = np.array([float(word) for word in origin.attrib["xyz"].split()])
        place = offset + np.array(c.TABLE_POSITION)
        parts.append((read_obj(folder / "table" / "table.obj"), scale, place, 1))
    position = np.concatenate([mesh.position * scale + place for mesh, scale, place, _ in parts])
    return {
        "background_positions": position,
        "background_normals": np.concatenate([mesh.normal for mesh, _, _, _ in parts]),
        "background_uv": np.concatenate([mesh.uv for mesh, _, _, _ in parts]),
        "background_texture": np.concatenate(
            [np.full(len(mesh.position), texture, np.uint8) for mesh, _, _, texture in parts]
        ),
        "texture_0": np.frombuffer(_png(folder / "checker_blue.png"), dtype=np.uint8),
        "texture_1": np.frombuffer(_png(folder / "table" / "table.png"), dtype=np.uint8),
    }


def _png(path: Path) -> bytes:
    """Return an image as the bytes of an RGB PNG."""
    from PIL import Image

    stream = io.BytesIO()
    with Image.open(path, formats=("PNG", "JPEG")) as image:
        image.convert("RGB").save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def bake(folder: Path, share: float | None) -> dict[str, NDArray[Any]]:
    """Return the arrays of one mesh level; ``share`` None keeps every triangle of the arm
    that can be seen from outside its link."""
    parts = []
    for link, mesh, colour in _robot(folder):
        if share is None or len(mesh.position) < _FEW:
            mesh, colour = _visible_part(mesh, colour)
        else:
            mesh, colour = decimate(mesh, colour, share)
        parts.append((link, mesh, colour))
    thing, colour = _object(folder)
    parts.append((MESH_LINKS - 1, thing, colour))
    columns: dict[str, list[NDArray[Any]]] = {}
    vertices = normals = 0
    for link, mesh, colour in parts:
        arrays, count = _indexed(mesh, link)
        arrays["faces"] = arrays["faces"] + np.int32(vertices)
        arrays["normal_faces"] = arrays["normal_faces"] + np.int32(normals)
        arrays["colours"] = colour
        vertices += count
        normals += len(arrays["normals"])
        for name, array in arrays.items():
            columns.setdefault(name, []).append(array)
    return {name: np.concatenate(arrays) for name, arrays in columns.items()}


def main(folder: Path | None = None) -> None:
    """Write the baked files, by default into the package, and print how large they are."""
    import pybullet_data

    source = Path(pybullet_data.getDataPath())
    levels: dict[str, dict[str, NDArray[Any]]] = {
        "background": _background(source),
        "full": bake(source, None),
        "20": bake(source, 0.2),
    }
    for level, arrays in levels.items():
        path = scene_path(level) if folder is None else folder / scene_path(level).name
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
        write_bytes(path, stream.getvalue())
        triangles = len(arrays.get("faces", arrays.get("background_positions", ())))
        print(f"{path}: {triangles} triangles, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
