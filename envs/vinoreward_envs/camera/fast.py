"""The fast camera: a z-buffer rasteriser that draws TinyRenderer's image from baked meshes.

Only what moves is drawn at each step; table and floor once per image size, or once per episode
that looks otherwise. Links outside the image are skipped, which changes no pixel. PyBullet is not
needed. ``vinoreward_training.bake`` writes the files: the moving meshes at each level
(``scene-full.npz``, ``scene-20.npz``) and the background (``scene-background.npz``).

Posing and appearance are the same kernels everywhere. Pixels are filled by two sets: on CUDA one
thread draws a vertex, triangle or pixel; on a processor that takes five times as long as the
vectorised loops of :mod:`.one_thread`, which draw scene after scene.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vinoreward_envs import constants as c
from vinoreward_envs.arm import arm_struct
from vinoreward_envs.camera.appearance import Appearance
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
from vinoreward_envs.camera.noise import NOISE_STARTS, noise_table
from vinoreward_envs.camera.spec import Camera, CameraSpec, Flags, Floats, Pixels
from vinoreward_envs.warp_device import Launch, check_device

CHUNK: Final = 64
"""Scenes that one thread of a processor draws at once; more would not fit into its cache."""


class FastCamera(Camera):
    """Draws with this package's rasteriser, within a fraction of a grey level of TinyRenderer.

    The first camera in a fresh installation compiles its kernels (seconds); Warp keeps them in
    its cache folder for later processes.

    Args:
        spec: what images look like.
        device: ``"cpu"`` or a CUDA device as Warp names it, such as ``"cuda:0"``.
        appearance: of scenes, which it draws by their rows; None: all look as always.
        capacity: scenes that are drawn at once; memory grows with it.
        in_turn: one thread draws scene after scene, see the module; None chooses. The images are
            the same.
    """

    def __init__(
        self,
        spec: CameraSpec,
        device: str = "cpu",
        *,
        appearance: Appearance | None = None,
        capacity: int = 1,
        in_turn: bool | None = None,
    ) -> None:
        super().__init__(spec)
        check_device(device if appearance is None else appearance.device.name)
        self._shared = appearance is None
        self._appearance = appearance or Appearance(spec, 1, device, varied=False)
        self._device = self._appearance.device
        self._capacity = capacity
        self._in_turn = self._device.name == "cpu" if in_turn is None else in_turn
        self._make_buffers()
        self._record_launches()

    def draw(self, grippers: Any, height: float, objects: Any, rows: Any) -> Any:
        """Draw B scenes of arms that hover, B at most ``capacity``.

        Args:
            grippers: ``(B, 2)`` metres, with the height within the arm's reach.
            height: z of all grippers in metres.
            objects: ``(B, 2)`` metres, bases of objects at rest; NaN: there is none.
            rows: ``(B,)`` whole numbers, the scenes' appearances. Where one is negative nothing is
                drawn, and what the image shows has no meaning.

        Returns:
            ``(B, H, W, 3)`` uint8, a view of memory that the next call overwrites: a NumPy array,
            or a torch tensor where the appearance is of tensors.
        """
        count = len(grippers)
        self._views["targets"][:, 2] = height
        self._device.fill(self._views["targets"][:, :2], grippers)
        self._device.fill(self._views["objects"], objects)
        self._device.fill(self._views["rows"], rows)
        self._launch(self._hovering, count)
        return self._views["image"][:count]

    def _draw(self, joints: Floats, poses: Floats, shown: Flags, rows: NDArray[np.int64]) -> Pixels:
        images = np.empty((len(joints), self.spec.height, self.spec.width, 3), np.uint8)
        which = np.zeros_like(rows) if self._shared else rows
        for start in range(0, len(joints), self._capacity):
            part = slice(start, start + self._capacity)
            count = len(joints[part])
            self._device.fill(self._views["joints"], joints[part])
            self._device.fill(self._views["bodies"][:, OBJECT_LINK], poses[part])
            self._device.fill(self._views["present"], shown[part].astype(np.uint8))
            self._device.fill(self._views["rows"], which[part].astype(np.int32))
            self._launch(self._posed, count)
            images[part] = self._device.numpy(self._image)[:count]
        return images

    def render_batch(
        self,
        joints: ArrayLike,
        object_poses: ArrayLike,
        present: ArrayLike,
        rows: ArrayLike | None = None,
    ) -> Pixels:
        """See :class:`.Camera`; ``rows``, ``(B,)`` whole numbers, are the scenes' appearances, by
        default in order."""
        return super().render_batch(joints, object_poses, present, rows)

    def _launch(self, posing: list[Launch], count: int) -> None:
        stream = self._device.stream()
        for launch in (*posing, *self._drawing):
            launch(count, stream)

    def _make_buffers(self) -> None:
        warp, zeros, size = self._device.warp, self._device.zeros, self._capacity
        from vinoreward_envs.arm_kernels import Joints

        self._rows = zeros(size, dtype=warp.int32)
        self._joints = zeros(size, dtype=Joints)
        self._targets, self._objects = zeros(size, dtype=warp.vec3d), zeros(size, dtype=warp.vec2d)
        self._present = zeros(size, dtype=warp.uint8)
        self._bodies = zeros(size, MESH_LINKS, dtype=warp.mat44d)
        self._image = zeros(size, self.spec.height, self.spec.width, dtype=warp.vec3ub)
        self._views = {
            name: self._device.view(array)
            for name, array in (
                ("rows", self._rows), ("joints", self._joints), ("targets", self._targets),
                ("objects", self._objects), ("present", self._present), ("bodies", self._bodies),
                ("image", self._image),
            )
        }  # fmt: skip

    def _record_launches(self) -> None:
        """Record what :meth:`draw` and :meth:`render_batch` launch, in this order."""
        device, appearance, size = self._device, self._appearance, self._capacity
        warp, zeros = device.warp, device.zeros
        from vinoreward_envs import arm_kernels
        from vinoreward_envs.camera import appearance_kernels

        mesh, arm = scene_mesh(self.spec.mesh), arm_struct(device.name)
        starts = device.of(np.tile(c.HOVER_JOINTS, (size, 1)), arm_kernels.Joints)
        solved = zeros(size, dtype=warp.uint8)
        reach = [self._rows, self._targets, starts, arm, self._joints, solved]
        links = [self._rows, self._joints, arm, self._bodies]
        placed = [self._rows, self._objects, appearance.resting, self._bodies, self._present]
        self._posed = [device.record_launch(arm_kernels.pose_links, (), links)]
        self._hovering = [
            device.record_launch(arm_kernels.reach, (), reach),
            *self._posed,
            device.record_launch(appearance_kernels.place_objects, (), placed),
        ]
        bodies = (size, MESH_LINKS)
        self._matrices = zeros(*bodies, dtype=warp.mat44)
        self._rotations = zeros(*bodies, dtype=warp.mat33)
        self._eyes = zeros(*bodies, dtype=warp.vec3)
        self._seen = zeros(*bodies, dtype=warp.uint8)
        self._noise = zeros(size, 2, dtype=warp.int32)
        corners = np.ascontiguousarray(boxes(mesh).transpose(0, 2, 1))
        look = [
            self._rows, self._bodies, self._present, appearance.params, appearance.steps,
            appearance.screens, appearance.standing, appearance.sizes,
            device.of(corners, warp.vec4d),
            self.spec.width - 1.0, self.spec.height - 1.0,
            self._matrices, self._rotations, self._eyes, self._seen, self._noise,
        ]  # fmt: skip
        self._drawing = self._background_launches() if appearance.varied else []
        self._drawing.append(device.record_launch(appearance_kernels.look, (MESH_LINKS,), look))
        self._drawing += self._in_turn_launches(mesh) if self._in_turn else self._all_launches(mesh)

    def _background_launches(self) -> list[Launch]:
        """Return launches that draw stale backgrounds."""
        device, appearance, size = self._device, self._appearance, self._capacity
        from vinoreward_envs.camera import appearance_kernels, kernels

        warp, triangles = device.warp, len(background_mesh().positions)
        place, draw = appearance.table_and_floor(self.spec)
        placed = [
            device.zeros(size, triangles + 1, dtype=warp.int32),
            *(device.zeros(size, triangles, dtype=warp.mat33) for _ in range(2)),
            device.zeros(size, triangles, dtype=warp.vec3),
        ]
        rows = [self._rows, appearance.stale]
        placing = [*rows, appearance.params, appearance.screens, *place, *placed]
        height = (self.spec.height,)
        return [
            device.record_launch(appearance_kernels.place_backgrounds, (), placing),
            device.record_launch(kernels.draw_backgrounds, height, [*rows, *placed, *draw]),
            device.record_launch(kernels.mark_fresh, (), rows),
        ]

    def _in_turn_launches(self, mesh: SceneMesh) -> list[Launch]:
        """Coordinates lie side by side here, and scenes share the buffers of one."""
        device, appearance = self._device, self._appearance
        from vinoreward_envs.camera import one_thread

        warp, columns = device.warp, device.columns
        padded = (self.spec.width + one_thread.BESIDE, self.spec.height)
        inputs = [
            columns(mesh.positions, warp.float32), device.of(_ranges(mesh), warp.vec4i),
            columns(mesh.faces, warp.int32), columns(_planes(mesh), warp.float32),
            *self._surface(mesh), self._matrices, self._rotations, self._eyes, self._seen,
            c.CAMERA_NEAR, *self._light(), appearance.backgrounds, appearance.nearness,
            columns(np.zeros_like(mesh.positions), warp.float32),
            columns(np.zeros((len(mesh.faces), 5)), warp.int32),
            columns(np.zeros(padded), warp.float32), columns(np.zeros(padded), warp.int32),
            self._noise, self._noise_table(), self._image,
        ]  # fmt: skip
        return [device.record_launch(one_thread.draw_scenes, (), inputs)]

    def _all_launches(self, mesh: SceneMesh) -> list[Launch]:
        """One thread does a vertex, triangle or pixel."""
        device, appearance, size = (
            self._device,
            self._appearance,
            (self.spec.height, self.spec.width),
        )
        from vinoreward_envs.camera import appearance_kernels, kernels

        warp, count = device.warp, len(mesh.positions)
        screen = device.zeros(self._capacity, count, dtype=warp.vec3)
        depths = device.zeros(self._capacity, *size, dtype=warp.uint64)
        positions, links = device.of(mesh.positions, warp.vec3), device.of(mesh.links, warp.uint8)
        faces, surface = device.of(mesh.faces, warp.vec3i), self._surface(mesh)
        vertices = [positions, links, self._matrices, self._seen, c.CAMERA_NEAR, screen]
        triangles = [faces, surface[1], self._seen, screen, *size, depths]
        pixels = [
            faces, *surface, self._rotations, screen, *self._light(), appearance.backgrounds,
            appearance.nearness, depths, self._image,
        ]  # fmt: skip
        launches = [
            device.record_launch(kernels.transform_vertices, (count,), vertices),
            device.record_launch(kernels.fill_triangles, (len(mesh.faces),), triangles),
            device.record_launch(kernels.shade_pixels, size, pixels),
        ]
        if appearance.varied:
            noise = [self._noise_table(), self._noise, self._image]
            launches.append(device.record_launch(appearance_kernels.add_noise, size, noise))
        return launches

    def _surface(self, mesh: SceneMesh) -> list[Any]:
        device, warp = self._device, self._device.warp
        return [
            device.of(mesh.normal_faces, warp.vec3i),
            device.of(mesh.links[mesh.faces[:, 0]], warp.uint8),
            device.of(mesh.normals, warp.vec3), device.of(mesh.colours, warp.vec3ub),
        ]  # fmt: skip

    def _light(self) -> list[Any]:
        strength = self._device.warp.vec3(AMBIENT, DIFFUSE, SPECULAR)
        return [self._rows, self._appearance.shadings, strength]

    def _noise_table(self) -> Any:
        size = 3 * self.spec.height * self.spec.width if self._appearance.varied else -NOISE_STARTS
        return self._device.of(noise_table(NOISE_STARTS + size), self._device.warp.int16)


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
