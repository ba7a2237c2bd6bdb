"""The fast camera: a z-buffer rasteriser that draws TinyRenderer's picture from baked meshes.

Only what moves is drawn at each step; table and floor once per picture size, or once per episode
that looks otherwise. Links outside the picture are skipped, which changes no pixel. PyBullet is not
needed. ``vinoreward_training.bake`` writes the files: the moving meshes at each level
(``scene-full.npz``, ``scene-20.npz``) and the background (``scene-background.npz``).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.runtime import ForkedLock
from vinoreward.errors import ConfigError, UnknownDeviceError
from vinoreward_envs import constants as c
from vinoreward_envs.arm import link_poses
from vinoreward_envs.camera.baked import (
    AMBIENT,
    DIFFUSE,
    MESH_LINKS,
    OBJECT_LINK,
    SPECULAR,
    SceneMesh,
    background_mesh,
    scene_mesh,
)
from vinoreward_envs.camera.looks import NOISE_STARTS, Looks, noise_table
from vinoreward_envs.camera.spec import (
    Camera,
    CameraSpec,
    Flags,
    Floats,
    Pixels,
    Rows,
    in_view,
    missing_warp,
)
from vinoreward_envs.randomization import DRAWS, as_numbers

ROOM: Final = 4 << 20
"""Bytes for compiled kernels, which take about one megabyte."""
CHUNK: Final = 64
"""Scenes drawn at once; larger batches are drawn in pieces, so memory stays bounded."""
Launch = tuple[Any, tuple[int, ...]]
"""A recorded launch of Warp's, and the threads of a scene in it."""
_LOADING = ForkedLock()
"""Held while Warp starts, or compiles and loads kernels: where two threads do so, the process may
die. Also while looks that threads share get room on a device."""


def warp_module() -> Any:
    """Return the module ``warp``, initialised silently."""
    warp: Any
    try:
        import warp
    except ImportError as error:
        raise missing_warp() from error
    # A greeting and a line per compiled module are printed at the level below.
    warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)
    with _LOADING, warnings.catch_warnings(), stderr_without(rb".*"):
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
    _check_room(Path(warp.config.kernel_cache_dir))
    return warp


def recorded(warp: Any, kernel: Any, size: Any, inputs: list[Any], device: str) -> Any:
    """Return a launch of a kernel on these inputs, which it keeps; compile and load it first."""
    with _LOADING:
        return warp.launch(kernel, size, inputs, device=device, record_cmd=True)


def _check_room(cache: Path) -> None:
    """Raise ConfigError if kernels are to be compiled and there is no room to keep them.

    The compiler would end the process.
    """
    if any(cache.glob("wp_vinoreward_envs.*")):  # compiled before
        return
    free = shutil.disk_usage(cache).free
    if free < ROOM:
        raise ConfigError(
            f"the camera cannot keep its compiled kernels at {cache}: {free >> 10} kB are free. "
            f"Expected {ROOM >> 20} MB; free some, or set WARP_CACHE_PATH to another folder."
        )


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
    known = [str(each) for each in warp_module().get_devices()]
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
        self._warp = warp_module()
        self._device = device
        self._always = Looks(spec, 1)
        self._frames = {1: self._frame(1)}

    def _draw(
        self, joints: Floats, poses: Floats, shown: Flags, looks: Looks | None, rows: Rows
    ) -> Pixels:
        looks = self._always if looks is None else looks
        self.open(looks)
        if len(joints) == 1:
            return self._frames[1].draw(joints, poses, shown, looks, rows)
        if CHUNK not in self._frames:
            self._frames[CHUNK] = self._frame(CHUNK)
        pictures = np.empty((len(joints), self.spec.height, self.spec.width, 3), dtype=np.uint8)
        for start in range(0, len(joints), CHUNK):
            part = slice(start, start + CHUNK)
            pictures[part] = self._frames[CHUNK].draw(
                joints[part], poses[part], shown[part], looks, rows[part]
            )
        return pictures

    def open(self, looks: Looks) -> None:
        """Make room for the backgrounds of ``looks`` on this camera's device, once."""
        if looks.pool is None:
            with _LOADING:
                looks.open(self._warp, self._device)

    def _frame(self, capacity: int) -> Frame:
        self.open(self._always)
        return Frame(
            self._warp, self.spec, self._device, capacity, self._in_turn, self._always.pool
        )

    def close(self) -> None:
        """Release the buffers."""
        super().close()
        self._frames.clear()


class Frame:
    """Buffers and recorded kernel launches for up to ``capacity`` scenes at a time.

    ``matrices``, ``rotations`` and ``eyes`` place the bodies ``(B, 14)`` before the camera,
    ``seen`` says which are drawn, and ``picture`` is what is drawn: Warp's arrays on the device.
    """

    def __init__(
        self,
        warp: Any,
        spec: CameraSpec,
        device: str,
        capacity: int,
        in_turn: bool,
        backgrounds: Any,
    ) -> None:
        from vinoreward_envs.camera import kernels, one_thread

        self._warp, self._device, self._backgrounds = warp, device, backgrounds
        self._spec, self._in_turn = spec, in_turn
        self._normals: Any = None
        self._noisy = False
        """Whether the last pictures had noise."""
        self._background_launches: tuple[list[Any], list[Launch]] | None = None
        self._views: dict[int, NDArray[Any]] = {}
        mesh = scene_mesh(spec.mesh)
        self._corners = boxes(mesh)
        # Bodies' poses: the arm's base is at the origin and stays there.
        self._poses = np.tile(np.eye(4), (capacity, MESH_LINKS, 1, 1))
        links = (capacity, MESH_LINKS)
        self.matrices = self._array(np.zeros((*links, 4, 4), np.float32), warp.mat44)
        self.rotations = self._array(np.zeros((*links, 3, 3), np.float32), warp.mat33)
        self.eyes = self._array(np.zeros((*links, 3), np.float32), warp.vec3)
        self.seen = self._array(np.zeros(links, np.uint8), warp.uint8)

        look: Any = kernels.Look
        self._looks = self._array(np.zeros(capacity, look.numpy_dtype()), look)

        size = (spec.height, spec.width)
        self.picture = self._array(np.zeros((capacity, *size, 3), np.uint8), warp.vec3ub)
        face_links = self._array(mesh.links[mesh.faces[:, 0]], warp.uint8)
        surface = [
            self._array(mesh.normal_faces, warp.vec3i), face_links,
            self._array(mesh.normals, warp.vec3), self._array(mesh.colours, warp.vec3ub),
        ]  # fmt: skip
        self._noise = self._array(np.zeros((capacity, 2), np.int32), warp.int32)
        light = [self._looks, warp.vec3(AMBIENT, DIFFUSE, SPECULAR)]
        near = c.CAMERA_NEAR
        steps: list[tuple[Any, tuple[int, ...], list[Any]]]
        if in_turn:
            # Coordinates lie side by side here, and scenes share the buffers of one.
            floats, whole = (
                functools.partial(self._columns, dtype=dtype)
                for dtype in (warp.float32, warp.int32)
            )
            padded = (spec.width + one_thread.BESIDE, spec.height)
            everything = [
                floats(mesh.positions), self._array(_ranges(mesh), warp.vec4i), whole(mesh.faces),
                floats(_planes(mesh)), *surface, self.matrices, self.rotations, self.eyes,
                self.seen, near, *light, *backgrounds,
                floats(np.zeros_like(mesh.positions)), whole(np.zeros((len(mesh.faces), 5))),
                floats(np.zeros(padded)), whole(np.zeros(padded)), self._noise,
                self._array(np.zeros(0, np.int16), warp.int16), self.picture,
            ]  # fmt: skip
            steps = [(one_thread.draw_scenes, (), everything)]
        else:
            corners = np.zeros((capacity, len(mesh.positions), 3), np.float32)
            screen = self._array(corners, warp.vec3)
            depths = self._array(np.zeros((capacity, *size), np.uint64), warp.uint64)
            positions = self._array(mesh.positions, warp.vec3)
            faces = self._array(mesh.faces, warp.vec3i)
            links_of = self._array(mesh.links, warp.uint8)
            vertices = [positions, links_of, self.matrices, self.seen, near, screen]
            triangles = [faces, face_links, self.seen, screen, *size, depths]
            pixels = [
                faces, *surface, self.rotations, screen, *light, *backgrounds, depths,
                self.picture,
            ]  # fmt: skip
            steps = [
                (kernels.transform_vertices, (len(mesh.positions),), vertices),
                (kernels.fill_triangles, (len(mesh.faces),), triangles),
                (kernels.shade_pixels, size, pixels),
            ]
        self._launches = [self._recorded(*step) for step in steps]

    def _recorded(self, kernel: Any, dim: tuple[int, ...], inputs: list[Any]) -> Launch:
        """Return a launch for each scene, and ``dim`` threads of it; it keeps its arrays."""
        size = (len(self._poses), *dim)
        return recorded(self._warp, kernel, size, inputs, self._device), dim

    def _array(self, values: NDArray[Any], dtype: Any) -> Any:
        return self._warp.array(values, dtype=dtype, device=self._device)

    def _columns(self, values: NDArray[Any], dtype: Any) -> Any:
        """Return the columns of an array (N, K) as one (K, N) on the device."""
        return self._array(np.ascontiguousarray(values.T), dtype)

    def draw(self, joints: Floats, poses: Floats, shown: Flags, looks: Looks, rows: Rows) -> Pixels:
        """Return ``(B, H, W, 3)`` owned pictures of at most ``capacity`` scenes."""
        count = len(joints)
        bodies = self._poses[:count]
        bodies[:, 1:OBJECT_LINK] = link_poses(joints)
        # What is absent must still be finite: it is transformed, and then not drawn.
        bodies[:, OBJECT_LINK] = np.where(shown[:, None, None], poses, np.eye(4))
        self._fill(self.rotations, bodies[..., :3, :3])
        # Where each body has the camera: a rotation's inverse is its transpose.
        away = looks.eyes[rows][:, None] - bodies[..., :3, 3]
        eyes = np.einsum("...ij,...i->...j", bodies[..., :3, :3], away)
        size = looks.drawn["object_size"][rows]
        eyes[:, OBJECT_LINK] /= size[:, None]
        self._fill(self.eyes, eyes)
        bodies[:, OBJECT_LINK, :3, :3] *= size[:, None, None]
        matrices = looks.screens[rows][:, None] @ bodies
        seen = in_view(matrices @ self._corners, self._spec)
        seen[:, OBJECT_LINK] &= shown
        self._fill(self.matrices, matrices)
        self._fill(self.seen, seen)
        self.fill_looks(looks, rows)
        if looks.pool is not None and looks.pool is not self._backgrounds:
            self.show(None, *looks.pool)
            self._backgrounds = looks.pool
        anew = looks.stale(rows)
        if len(anew):
            self._draw_backgrounds(looks, anew)
            looks.mark_fresh(anew)
        if self._in_turn:
            self._fill_noise(looks, rows)
        self.launch(count)
        pictures: Pixels = self._host(self.picture)[:count].copy()
        if not self._in_turn:
            looks.add_noise(pictures, rows)
        return pictures

    def _draw_backgrounds(self, looks: Looks, rows: Rows) -> None:
        """Draw the backgrounds of at most ``capacity`` rows."""
        if self._background_launches is None:
            self._background_launches = self._record_backgrounds(looks)
        inputs, launches = self._background_launches
        values = (rows + 1, as_numbers(looks.drawn[rows]), looks.screens[rows])
        for target, filled in zip(inputs, values, strict=True):
            self._fill(target, filled)
        for launch, dim in launches:
            launch.set_dim((len(rows), *dim))
            launch.launch()

    def _record_backgrounds(self, looks: Looks) -> tuple[list[Any], list[Launch]]:
        """Return the arrays of ``_draw_backgrounds`` and its recorded launches."""
        from vinoreward_envs.camera import kernels, varying

        warp, capacity, triangles = self._warp, len(self._poses), len(background_mesh().positions)

        def empty(*shape: int, dtype: Any) -> Any:
            return warp.zeros((capacity, *shape), dtype=dtype, device=self._device)

        targets = empty(dtype=warp.int32)
        drawn, screens = empty(DRAWS, dtype=warp.float64), empty(dtype=warp.mat44d)
        placed = [
            empty(triangles + 1, dtype=warp.int32), empty(triangles, dtype=warp.mat33),
            empty(triangles, dtype=warp.mat33), empty(triangles, dtype=warp.vec3),
        ]  # fmt: skip
        place = [targets, drawn, screens, *looks.to_place, *placed]
        return [targets, drawn, screens], [
            self._recorded(varying.place_backgrounds, (), place),
            self._recorded(
                kernels.draw_backgrounds, (self._spec.height,), [targets, *placed, *looks.to_draw]
            ),
        ]

    def _fill_noise(self, looks: Looks, rows: Rows) -> None:
        """Let the first scenes' pictures have the noise of these rows."""
        noisy = looks.noisy(rows)
        if noisy:
            if self._normals is None:
                table = noise_table(NOISE_STARTS + 3 * self._spec.height * self._spec.width)
                self._normals = self._array(table, self._warp.int16)
                self._launches[-1][0].set_param_by_name("normals_of_noise", self._normals)
            self._fill(self._noise, looks.noise(rows))
        elif self._noisy:
            self._fill(self._noise, np.zeros((len(self._poses), 2)))
        self._noisy = noisy

    def show(self, looks: Any, backgrounds: Any, nearness: Any) -> None:
        """Take the scenes' looks, unless that is None, and their backgrounds from these arrays."""
        drawing, _ = self._launches[-1]
        if looks is not None:
            drawing.set_param_by_name("looks", looks)
        launches = [drawing]
        if self._background_launches is not None:
            launches.append(self._background_launches[1][-1][0])
        for launch in launches:
            launch.set_param_by_name("backgrounds", backgrounds)
            launch.set_param_by_name("nearness", nearness)

    def launch(self, count: int, stream: Any = None) -> None:
        """Draw the first ``count`` scenes as the arrays say, on a stream of Warp's or its own."""
        for launch, dim in self._launches:
            launch.set_dim((count, *dim))
            launch.launch(stream)

    def fill_looks(self, looks: Looks, rows: Rows) -> None:
        """Let the first scenes look as these rows do."""
        host = self._host(self._looks)
        part = host[: len(rows)]
        part["direction"], part["gain"] = looks.directions[rows], looks.gains[rows]
        part["colour"], part["background"] = looks.colours[rows], looks.backgrounds[rows]
        if self._device != "cpu":
            self._looks.assign(host)

    def _host(self, array: Any) -> NDArray[Any]:
        """Return an array in the host's memory: on a processor its own, elsewhere a copy."""
        if self._device != "cpu":
            return cast("NDArray[Any]", array.numpy())
        if id(array) not in self._views:  # it takes 20 microseconds to make one
            self._views[id(array)] = array.numpy()
        return self._views[id(array)]

    def _fill(self, target: Any, values: NDArray[Any]) -> None:
        """Write the first scenes' values into a device array."""
        host = self._host(target)
        host[: len(values)] = values
        if self._device != "cpu":
            target.assign(host)


def boxes(mesh: SceneMesh) -> Floats:
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
