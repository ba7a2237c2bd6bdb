"""The fast camera: a z-buffer rasteriser that draws TinyRenderer's picture from baked meshes.

Only what moves is drawn; table and floor are drawn once per picture size. Links outside the
picture are skipped, which changes no pixel. PyBullet is not needed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, UnknownDeviceError
from vinoreward_envs import constants as c
from vinoreward_envs.arm import link_poses
from vinoreward_envs.camera import assets
from vinoreward_envs.camera.assets import MESH_LINKS, OBJECT_LINK, SceneMesh
from vinoreward_envs.camera.spec import (
    LIGHT,
    Camera,
    CameraSpec,
    clip_matrix,
    missing_warp,
)

CHUNK: Final = 64
"""Scenes drawn at once; larger batches are drawn in pieces, so memory stays bounded."""
# The light's direction and the three strengths go to the kernels as they are.
_STRENGTH: Final = (assets.AMBIENT, assets.DIFFUSE, assets.SPECULAR)


def _warp() -> Any:
    """Return the module ``warp``, initialised without a word, or raise."""
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
        # Without a graphics driver Warp's C code warns on stderr, at any log level; that is the
        # ordinary case here. Whatever fails raises.
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
    """Leave out what C code writes to the process's stderr and a pattern matches."""
    with contextlib.ExitStack() as stack:
        try:
            written = stack.enter_context(tempfile.TemporaryFile())
            kept = os.dup(2)
        except OSError:  # No temporary folder, or no stderr (a windowed or detached process).
            yield
            return
        sys.stderr.flush()
        try:
            os.dup2(written.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        written.seek(0)
        rest = re.sub(noise, b"", written.read(), flags=re.DOTALL)
    if rest:
        os.write(2, rest)


class FastCamera(Camera):
    """Draws with this package's rasteriser, within a fraction of a grey level of TinyRenderer.

    The first camera in a fresh installation compiles its kernels (seconds); Warp keeps them in
    its cache folder for later processes.

    Args:
        spec: what a picture looks like.
        device: ``"cpu"`` or a CUDA device as Warp names it, such as ``"cuda:0"``.

    Raises:
        MissingExtraError: warp-lang is not installed.
        UnknownDeviceError: Warp finds no such device here.
    """

    def __init__(self, spec: CameraSpec, device: str = "cpu") -> None:
        super().__init__(spec)
        self._warp = _warp()
        known = [str(found) for found in self._warp.get_devices()]
        if device not in known:
            raise UnknownDeviceError(
                f"Found camera device {device!r}; expected one of {', '.join(known)}. Choose one "
                "of these."
            )
        self._device = device
        self._frames = {1: _Frame(self._warp, spec, device, 1)}

    def _draw(
        self, joints: NDArray[np.float64], poses: NDArray[np.float64], shown: NDArray[np.bool_]
    ) -> NDArray[np.uint8]:
        if len(joints) == 1:
            return self._frames[1].draw(joints, poses, shown)
        if CHUNK not in self._frames:
            self._frames[CHUNK] = _Frame(self._warp, self.spec, self._device, CHUNK)
        pictures = np.empty((len(joints), self.spec.height, self.spec.width, 3), dtype=np.uint8)
        for start in range(0, len(joints), CHUNK):
            part = slice(start, start + CHUNK)
            pictures[part] = self._frames[CHUNK].draw(joints[part], poses[part], shown[part])
        return pictures

    def close(self) -> None:
        """Release the buffers."""
        super().close()
        self._frames.clear()


class _Frame:
    """Buffers and recorded kernel launches for up to ``capacity`` scenes at a time."""

    def __init__(self, warp: Any, spec: CameraSpec, device: str, capacity: int) -> None:
        from vinoreward_envs.camera import kernels

        self._warp, self._device = warp, device
        mesh = assets.scene_mesh(spec.mesh)
        drawn = assets.background(spec.height, spec.width)
        self._corners = _boxes(mesh)
        self._screen_from_world = _screen_matrix(spec.height, spec.width)
        self._limits = (spec.width - 1.0, spec.height - 1.0)
        # Bodies' poses: the arm's base is at the origin and stays there.
        self._poses = np.tile(np.eye(4), (capacity, MESH_LINKS, 1, 1))
        links = (capacity, MESH_LINKS)
        self._matrices = self._array(np.zeros((*links, 4, 4), np.float32), warp.mat44)
        self._rotations = self._array(np.zeros((*links, 3, 3), np.float32), warp.mat33)
        self._seen = self._array(np.zeros(links, np.uint8), warp.uint8)

        size = (spec.height, spec.width)
        level = (drawn.nearness.astype(np.float64) * kernels.NEARNESS_SCALE).astype(np.uint64)
        depth = level << np.uint64(32)
        screen = self._array(np.zeros((capacity, len(mesh.positions), 3), np.float32), warp.vec3)
        depths = self._array(np.tile(depth, (capacity, 1, 1)), warp.uint64)
        self._picture = self._array(np.zeros((capacity, *size, 3), np.uint8), warp.vec3ub)
        faces = self._array(mesh.faces, warp.vec3i)
        face_links = self._array(mesh.links[mesh.faces[:, 0]], warp.uint8)
        direction = np.array(LIGHT) / np.linalg.norm(LIGHT)
        self._launches = [
            (
                warp.launch(
                    kernel, dim=(capacity, *dim), inputs=inputs, device=device, record_cmd=True
                ),
                dim,
            )
            for kernel, dim, inputs in (
                (
                    kernels.transform_vertices,
                    (len(mesh.positions),),
                    [
                        self._array(mesh.positions, warp.vec3),
                        self._array(mesh.links, warp.uint8),
                        self._matrices,
                        self._seen,
                        c.CAMERA_NEAR,
                        screen,
                    ],
                ),
                (
                    kernels.fill_triangles,
                    (len(mesh.faces),),
                    [faces, face_links, self._seen, screen, *size, depths],
                ),
                (
                    kernels.shade_pixels,
                    size,
                    [
                        faces,
                        self._array(mesh.normal_faces, warp.vec3i),
                        face_links,
                        self._array(mesh.normals, warp.vec3),
                        self._array(mesh.colours, warp.vec3ub),
                        self._rotations,
                        screen,
                        warp.vec3(*direction),
                        warp.vec3(*_STRENGTH),
                        self._array(drawn.picture, warp.vec3ub),
                        self._array(depth, warp.uint64),
                        depths,
                        self._picture,
                    ],
                ),
            )
        ]

    def _array(self, values: NDArray[Any], dtype: Any) -> Any:
        return self._warp.array(values, dtype=dtype, device=self._device)

    def draw(
        self, joints: NDArray[np.float64], poses: NDArray[np.float64], shown: NDArray[np.bool_]
    ) -> NDArray[np.uint8]:
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
        self._fill(self._seen, seen)
        for launch, dim in self._launches:
            launch.set_dim((count, *dim))
            launch.launch()
        picture: NDArray[np.uint8] = self._picture.numpy()[:count]
        return picture.copy()

    def _fill(self, target: Any, values: NDArray[Any]) -> None:
        """Write the first scenes' values into a device array."""
        # On a processor this is the array's own memory, elsewhere a copy to send back.
        host = target.numpy()
        host[: len(values)] = values
        if self._device != "cpu":
            target.assign(host)


def _boxes(mesh: SceneMesh) -> NDArray[np.float64]:
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


def _screen_matrix(height: int, width: int) -> NDArray[np.float64]:
    """Return the ``(4, 4)`` matrix from the world to (column, row, depth, 1) times the distance."""
    viewport = np.eye(4)
    viewport[0, 0] = viewport[0, 3] = width / 2.0
    # TinyRenderer counts rows upwards from 0; the picture's row 0 is its row height - 1.
    viewport[1, 1] = -height / 2.0
    viewport[1, 3] = height / 2.0 - 1.0
    matrix: NDArray[np.float64] = viewport @ clip_matrix(height, width)
    return matrix


def _in_picture(corners: NDArray[np.float64], right: float, bottom: float) -> NDArray[np.bool_]:
    """Return ``(B, 14)``: false for boxes wholly beyond one edge or nearer than the camera sees."""
    x, y, w = corners[..., 0, :], corners[..., 1, :], corners[..., 3, :]
    inside = np.stack([x >= 0.0, x <= right * w, y >= 0.0, y <= bottom * w, w >= c.CAMERA_NEAR])
    return np.asarray(inside.any(axis=-1).all(axis=0))
