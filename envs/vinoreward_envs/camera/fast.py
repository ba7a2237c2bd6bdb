"""The fast camera: a z-buffer rasteriser that draws TinyRenderer's picture from baked meshes.

Only what moves is drawn; table and floor are drawn once per picture size. Links outside the
picture are skipped, which changes no pixel. PyBullet is not needed. ``vinoreward_training.bake``
writes the files: the moving meshes at each level (``scene-full.npz``, ``scene-20.npz``) and the
background (``scene-background.npz``).
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, ModelNotFoundError, UnknownDeviceError
from vinoreward_envs import constants as c
from vinoreward_envs.arm import link_poses
from vinoreward_envs.camera.spec import (
    LIGHT,
    Camera,
    CameraSpec,
    Flags,
    Floats,
    Pixels,
    camera_eye,
    clip_matrix,
    missing_warp,
)

MESH_LINKS: Final = 14
"""Bodies that move: 0 is the arm's base, 1-12 PyBullet's links 0-11, 13 the object."""
OBJECT_LINK: Final = MESH_LINKS - 1
CHUNK: Final = 64
"""Scenes drawn at once; larger batches are drawn in pieces, so memory stays bounded."""
# TinyRenderer's light, as PyBullet sets it by default.
AMBIENT: Final = 0.6
DIFFUSE: Final = 0.35
SPECULAR: Final = 0.05


def _warp() -> Any:
    """Return the module ``warp``, initialised silently."""
    warp: Any
    try:
        import warp
    except ImportError as error:
        raise missing_warp() from error
    # A greeting and a line per compiled module are printed at the level below.
    warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)
    with warnings.catch_warnings(), stderr_without(rb".*"):
        # Of Python 3.10, which the next Warp leaves behind; the extra pins one that still has it.
        warnings.filterwarnings("ignore", "Support for Python", FutureWarning)
        # Without a graphics driver Warp's C code warns on stderr at any log level. Failures raise.
        try:
            warp.init()
        except OSError as error:
            raise ConfigError(
                f"the camera cannot keep its compiled kernels at {error.filename}: "
                f"{error.strerror}. Expected a home folder that can be written; set "
                "WARP_CACHE_PATH to another folder."
            ) from error
    return warp


@contextlib.contextmanager
def stderr_without(noise: bytes) -> Iterator[None]:
    """Filter what C code writes to the process's stderr: drop what matches ``noise``."""
    with contextlib.ExitStack() as stack:
        try:
            written = stack.enter_context(tempfile.TemporaryFile())
            stderr = os.dup(2)
        except OSError:  # No temporary folder, or no stderr (a windowed or detached process).
            yield
            return
        sys.stderr.flush()
        try:
            os.dup2(written.fileno(), 2)
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        written.seek(0)
        rest = re.sub(noise, b"", written.read(), flags=re.DOTALL)
    if rest:
        os.write(2, rest)


def check_device(device: str) -> None:
    """Raise UnknownDeviceError unless Warp can draw on ``device``."""
    known = [str(each) for each in _warp().get_devices()]
    if device not in known:
        raise UnknownDeviceError(
            f"Found camera device {device!r}; expected one of {', '.join(known)}. Choose one "
            "of these."
        )


class FastCamera(Camera):
    """Draws with this package's rasteriser, within a fraction of a grey level of TinyRenderer.

    The first camera in a fresh installation compiles its kernels (seconds); Warp keeps them in
    its cache folder for later processes. ``device`` is ``"cpu"`` or a CUDA device as Warp names it,
    such as ``"cuda:0"``. ``in_turn`` says whether one thread draws scene after scene, as is best on
    a processor, or one each vertex, triangle and pixel; None chooses. The pictures are the same.
    """

    def __init__(
        self, spec: CameraSpec, device: str = "cpu", *, in_turn: bool | None = None
    ) -> None:
        super().__init__(spec)
        self._in_turn = device == "cpu" if in_turn is None else in_turn
        check_device(device)
        self._warp = _warp()
        self._device = device
        self._frames = {1: self._frame(1)}

    def _draw(self, joints: Floats, poses: Floats, shown: Flags) -> Pixels:
        if len(joints) == 1:
            return self._frames[1].draw(joints, poses, shown)
        if CHUNK not in self._frames:
            self._frames[CHUNK] = self._frame(CHUNK)
        pictures = np.empty((len(joints), self.spec.height, self.spec.width, 3), dtype=np.uint8)
        for start in range(0, len(joints), CHUNK):
            part = slice(start, start + CHUNK)
            pictures[part] = self._frames[CHUNK].draw(joints[part], poses[part], shown[part])
        return pictures

    def _frame(self, capacity: int) -> _Frame:
        return _Frame(self._warp, self.spec, self._device, capacity, self._in_turn)

    def close(self) -> None:
        """Release the buffers."""
        super().close()
        self._frames.clear()


class _Frame:
    """Buffers and recorded kernel launches for up to ``capacity`` scenes at a time."""

    def __init__(
        self, warp: Any, spec: CameraSpec, device: str, capacity: int, in_turn: bool
    ) -> None:
        from vinoreward_envs.camera import kernels

        self._warp, self._device = warp, device
        mesh = scene_mesh(spec.mesh)
        drawn = background(spec.height, spec.width)
        self._corners = _boxes(mesh)
        self._eye = camera_eye()
        self._screen_from_world = _screen_matrix(spec.height, spec.width)
        self._limits = (spec.width - 1.0, spec.height - 1.0)
        # Bodies' poses: the arm's base is at the origin and stays there.
        self._poses = np.tile(np.eye(4), (capacity, MESH_LINKS, 1, 1))
        links = (capacity, MESH_LINKS)
        self._matrices = self._array(np.zeros((*links, 4, 4), np.float32), warp.mat44)
        self._rotations = self._array(np.zeros((*links, 3, 3), np.float32), warp.mat33)
        self._eyes = self._array(np.zeros((*links, 3), np.float32), warp.vec3)
        self._seen = self._array(np.zeros(links, np.uint8), warp.uint8)

        size = (spec.height, spec.width)
        level = (drawn.nearness.astype(np.float64) * kernels.NEARNESS_SCALE).astype(np.uint64)
        depth = level << np.uint64(32)
        # Scenes that are drawn in turn share the buffers of one.
        at_once = 1 if in_turn else capacity
        screen = self._array(np.zeros((at_once, len(mesh.positions), 3), np.float32), warp.vec3)
        depths = self._array(np.tile(depth, (at_once, 1, 1)), warp.uint64)
        self._picture = self._array(np.zeros((capacity, *size, 3), np.uint8), warp.vec3ub)
        positions = self._array(mesh.positions, warp.vec3)
        faces = self._array(mesh.faces, warp.vec3i)
        face_links = self._array(mesh.links[mesh.faces[:, 0]], warp.uint8)
        direction = np.array(LIGHT) / np.linalg.norm(LIGHT)
        surface = [
            self._array(mesh.normal_faces, warp.vec3i), face_links,
            self._array(mesh.normals, warp.vec3), self._array(mesh.colours, warp.vec3ub),
        ]  # fmt: skip
        light = [warp.vec3(*direction), warp.vec3(AMBIENT, DIFFUSE, SPECULAR)]
        behind = [self._array(drawn.picture, warp.vec3ub), self._array(depth, warp.uint64)]
        near = c.CAMERA_NEAR
        steps: list[tuple[Any, tuple[int, ...], list[Any]]]
        if in_turn:
            ranges, planes = _ranges(mesh), _planes(mesh)
            everything = [
                positions, self._array(ranges, warp.vec4i), faces, self._array(planes, warp.vec4),
                *surface, self._matrices, self._rotations, self._eyes, self._seen, near,
                *light, *behind, screen[0], depths, self._picture,
            ]  # fmt: skip
            steps = [(kernels.draw_scenes, (), everything)]
        else:
            links_of = self._array(mesh.links, warp.uint8)
            vertices = [positions, links_of, self._matrices, self._seen, near, screen]
            triangles = [faces, face_links, self._seen, screen, *size, depths]
            pixels = [
                faces, *surface, self._rotations, screen, *light, *behind, depths, self._picture,
            ]  # fmt: skip
            steps = [
                (kernels.transform_vertices, (len(mesh.positions),), vertices),
                (kernels.fill_triangles, (len(mesh.faces),), triangles),
                (kernels.shade_pixels, size, pixels),
            ]
        self._launches = [
            (warp.launch(kernel, (capacity, *dim), inputs, device=device, record_cmd=True), dim)
            for kernel, dim, inputs in steps
        ]

    def _array(self, values: NDArray[Any], dtype: Any) -> Any:
        return self._warp.array(values, dtype=dtype, device=self._device)

    def draw(self, joints: Floats, poses: Floats, shown: Flags) -> Pixels:
        """Return ``(B, H, W, 3)`` owned pictures of at most ``capacity`` scenes."""
        count = len(joints)
        bodies = self._poses[:count]
        bodies[:, 1:OBJECT_LINK] = link_poses(joints)
        # What is absent must still be finite: it is transformed, and then not drawn.
        bodies[:, OBJECT_LINK] = np.where(shown[:, None, None], poses, np.eye(4))
        matrices = self._screen_from_world @ bodies
        seen = _in_picture(matrices @ self._corners, *self._limits)
        seen[:, OBJECT_LINK] &= shown
        self._fill(self._matrices, matrices)
        self._fill(self._rotations, bodies[..., :3, :3])
        # Where each body has the camera: a rotation's inverse is its transpose.
        away = self._eye - bodies[..., :3, 3]
        self._fill(self._eyes, np.einsum("...ij,...i->...j", bodies[..., :3, :3], away))
        self._fill(self._seen, seen)
        for launch, dim in self._launches:
            launch.set_dim((count, *dim))
            launch.launch()
        picture: Pixels = self._picture.numpy()[:count]
        return picture.copy()

    def _fill(self, target: Any, values: NDArray[Any]) -> None:
        """Write the first scenes' values into a device array."""
        # On a processor this is the array's own memory, elsewhere a copy to send back.
        host = target.numpy()
        host[: len(values)] = values
        if self._device != "cpu":
            target.assign(host)


def _boxes(mesh: SceneMesh) -> Floats:
    """Return the homogeneous corners ``(14, 4, 8)`` of each body's bounding box."""
    corners = np.ones((MESH_LINKS, 4, 8))
    for link in range(MESH_LINKS):
        # Bodies without a mesh keep a box of one point, which costs nothing.
        points = mesh.positions[mesh.links == link]
        if len(points):
            low, high = points.min(axis=0), points.max(axis=0)
            for i in range(8):
                corners[link, :3, i] = [high[k] if i >> k & 1 else low[k] for k in range(3)]
    return corners


def _ranges(mesh: SceneMesh) -> NDArray[np.int32]:
    """Return ``(14, 4)``: first vertex and the one after the last of each body, then triangles."""
    bodies = np.arange(MESH_LINKS)
    found = [
        np.searchsorted(links, bodies, side)
        for links in (mesh.links, mesh.links[mesh.faces[:, 0]])
        for side in ("left", "right")
    ]
    return np.stack(found, axis=1).astype(np.int32)


def _planes(mesh: SceneMesh) -> NDArray[np.float32]:
    """Return the planes ``(T, 4)`` of the triangles: unit normal outwards, and its offset."""
    a, b, c_ = (mesh.positions[mesh.faces[:, corner]].astype(np.float64) for corner in range(3))
    normals = np.cross(b - a, c_ - a)
    # A triangle without an area keeps a plane that the camera is not behind: nothing is drawn.
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    return np.column_stack([normals, (normals * a).sum(axis=1)]).astype(np.float32)


def _screen_matrix(height: int, width: int) -> Floats:
    """Return the ``(4, 4)`` matrix from the world to (column, row, depth, 1) times the distance."""
    viewport = np.eye(4)
    viewport[0, 0] = viewport[0, 3] = width / 2.0
    # TinyRenderer counts rows upwards from 0; the picture's row 0 is its row height - 1.
    viewport[1, 1] = -height / 2.0
    viewport[1, 3] = height / 2.0 - 1.0
    return np.asarray(viewport @ clip_matrix(height, width))


def _in_picture(corners: Floats, right: float, bottom: float) -> Flags:
    """Return ``(B, 14)``: false for boxes wholly beyond one edge or nearer than the camera sees."""
    x, y, w = corners[..., 0, :], corners[..., 1, :], corners[..., 3, :]
    inside = np.stack([x >= 0.0, x <= right * w, y >= 0.0, y <= bottom * w, w >= c.CAMERA_NEAR])
    return np.asarray(inside.any(axis=-1).all(axis=0))


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


class Background(NamedTuple):
    """Table and floor as the camera sees them; arrays are read-only."""

    picture: Pixels
    """``(H, W, 3)`` RGB."""
    nearness: NDArray[np.float32]
    """``(H, W)`` one over the distance along the camera's axis, 1/m; 0 where there is nothing."""


def scene_path(level: str) -> Path:
    """Return the path of a baked file: level ``"full"``, ``"20"`` or ``"background"``."""
    return Path(str(resources.files("vinoreward_assets"))) / f"scene-{level}.npz"


@functools.lru_cache(maxsize=4)
def _arrays(level: str) -> dict[str, NDArray[Any]]:
    path = scene_path(level)
    if not path.is_file():
        raise ModelNotFoundError(
            f"Found no {path}; expected a baked scene file, which ships with vinoreward. "
            "Reinstall vinoreward; in its repository, python -m vinoreward_training.bake "
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


def _texture(name: str) -> Pixels:
    from PIL import Image

    data = _arrays("background")[name].tobytes()
    with Image.open(io.BytesIO(data), formats=("PNG",)) as picture:
        return np.asarray(picture.convert("RGB"))


@functools.lru_cache(maxsize=8)
def background(height: int, width: int) -> Background:
    """Draw table and floor at a size in pixels, sampled and lit as TinyRenderer does."""
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
        nearest = (weight >= 0.0).all(axis=0) & (near >= nearness) & (near > 1.0 / c.CAMERA_FAR)
        share = (weight[:, nearest] / near[nearest]).T
        colour = texels(
            textures[stored["background_texture"][i]], share @ stored["background_uv"][i]
        )
        brightness = _light(stored["background_normals"][i, 0])
        picture[nearest] = (colour * brightness).astype(np.uint8)
        nearness[nearest] = near[nearest]
    drawn = Background(picture, nearness.astype(np.float32))
    for array in drawn:
        array.setflags(write=False)
    return drawn


def texels(texture: Pixels, uv: Floats) -> Pixels:
    """Return the nearest colours ``(N, 3)`` at ``(N, 2)`` coordinates, v pointing up, wrapped."""
    height, width = texture.shape[:2]
    wrapped = uv - np.floor(uv)
    column = np.minimum((wrapped[:, 0] * width).astype(int), width - 1)
    row = np.minimum((wrapped[:, 1] * height).astype(int), height - 1)
    return np.asarray(texture[height - 1 - row, column])


def _light(normal: Floats) -> float:
    """Return TinyRenderer's brightness of a surface with this unit normal ``(3,)``."""
    direction = np.array(LIGHT) / np.linalg.norm(LIGHT)
    facing = float(normal @ direction)
    mirrored = float(2.0 * facing * normal[2] - direction[2])
    return AMBIENT + DIFFUSE * max(facing, 0.0) + SPECULAR * max(mirrored, 0.0) ** 2
