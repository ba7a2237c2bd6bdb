"""Bake the hover scene's meshes and textures from ``pybullet_data`` into one file.

Needs pybullet, scipy and the package ``fast-simplification``; run as
``python -m vinoreward_training.bake.scene``. Everything that draws reads the baked file instead
(:mod:`vinoreward_envs.camera.assets` says what is in it).
"""

from __future__ import annotations

import argparse
import io
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import MissingExtraError, install_command
from vinoreward.files import write_bytes
from vinoreward_envs import constants as c
from vinoreward_envs.camera.assets import MESH_LINKS, scene_path
from vinoreward_training.bake.meshes import (
    Corners,
    decimate,
    read_obj,
    seen_triangles,
    texels,
)

_LINK_MESHES: tuple[tuple[int, str], ...] = (
    (0, "collision/link0.obj"),
    (1, "visual/link1.obj"),
    (2, "visual/link2.obj"),
    (3, "visual/link3.obj"),
    (4, "visual/link4.obj"),
    (5, "visual/link5.obj"),
    (6, "visual/link6.obj"),
    (7, "collision/link7.obj"),
    (9, "visual/hand.obj"),
    (10, "visual/finger.obj"),
    (11, "visual/finger.obj"),
)
"""Mesh link (0: the arm's base, 1-12: PyBullet's links 0-11) and its file."""
_FEW = 1000
"""Meshes with fewer triangles are not decimated."""
_TURNED_FINGER = 11
"""PyBullet's link 10: the URDF turns this finger's mesh by half a turn about z."""


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
    with Image.open(meshes / "visual" / "colors.png", formats=("PNG",)) as picture:
        texture = np.asarray(picture.convert("RGB"))
    found = []
    for link, name in _LINK_MESHES:
        mesh = read_obj(meshes / name)
        if name.startswith("collision"):
            # These files have no texture: the URDF's own colour, white.
            colour = np.full((len(mesh.position), 3), 255, dtype=np.uint8)
        else:
            colour = texels(texture, mesh.uv.mean(axis=1))
        if link == _TURNED_FINGER:
            turn = np.array([-1.0, -1.0, 1.0])
            mesh = Corners(mesh.position * turn, mesh.normal * turn, mesh.uv)
        found.append((link, mesh, colour))
    return found


def _object(folder: Path) -> tuple[Corners, NDArray[np.uint8]]:
    urdf = folder / c.OBJECT_URDF
    visual = ElementTree.parse(urdf).getroot().find("link/visual")
    mesh_tag = None if visual is None else visual.find("geometry/mesh")
    colour_tag = None if visual is None else visual.find("material/color")
    if mesh_tag is None or colour_tag is None:
        raise MissingExtraError(
            f"Found no visual mesh or colour in {urdf}; expected those of PyBullet 3.2. Install "
            "pybullet>=3.2.6."
        )
    scale = np.array([float(word) for word in mesh_tag.attrib["scale"].split()])
    rgba = [float(word) for word in colour_tag.attrib["rgba"].split()]
    mesh = read_obj(urdf.parent / mesh_tag.attrib["filename"])
    colour = np.array([math.floor(255 * value) for value in rgba[:3]], dtype=np.uint8)
    scaled = Corners(mesh.position * scale, mesh.normal, mesh.uv)
    return scaled, np.repeat(colour[None], len(mesh.position), axis=0)


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
    """Return a picture as the bytes of an RGB PNG."""
    from PIL import Image

    stream = io.BytesIO()
    with Image.open(path, formats=("PNG", "JPEG")) as picture:
        picture.convert("RGB").save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def bake(folder: Path, share: float | None) -> dict[str, NDArray[Any]]:
    """Return the arrays of one mesh level; ``share`` None keeps every triangle of the arm
    that can be seen from outside its link."""
    parts = []
    for link, mesh, colour in _robot(folder):
        if share is None or len(mesh.position) < _FEW:
            outside = seen_triangles(mesh.position)
            mesh = Corners(mesh.position[outside], mesh.normal[outside], mesh.uv[outside])
            colour = colour[outside]
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the baked files and say how large they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (the package)")
    options = parser.parse_args(arguments)
    try:
        import pybullet_data
    except ImportError as error:
        raise MissingExtraError(
            "Found no pybullet; expected it as the source of the meshes. Run, on "
            f"Python 3.10 or 3.11: {install_command('panda')}"
        ) from error
    source = Path(pybullet_data.getDataPath())
    levels: dict[str, dict[str, NDArray[Any]]] = {
        "background": _background(source),
        "full": bake(source, None),
        "20": bake(source, 0.2),
    }
    for level, arrays in levels.items():
        default = scene_path(level)
        path = default if options.folder is None else options.folder / default.name
        stream = io.BytesIO()
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
        write_bytes(path, stream.getvalue())
        triangles = len(arrays.get("faces", arrays.get("background_positions", ())))
        print(f"{path}: {triangles} triangles, {path.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
