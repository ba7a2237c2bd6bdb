"""The fast camera: a z-buffer rasteriser that draws TinyRenderer's image from baked meshes.

Only what moves is drawn at each step; table and floor once, or once per episode that looks
otherwise. Links outside the image are skipped, which changes no pixel.

Posing and appearance are the same kernels everywhere. Pixels are filled by two sets: for tensors
one thread draws a vertex, triangle or pixel, as suits CUDA; on a processor that takes five times as
long as the vectorised loops of :mod:`.one_thread`, which draw scene after scene.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward_envs import constants as c
from vinoreward_envs.arm import arm_struct
from vinoreward_envs.camera.baked import (
    MESH_LINKS,
    OBJECT_LINK,
    SceneMesh,
    background_mesh,
    scene_mesh,
    textures,
)
from vinoreward_envs.camera.spec import (
    Camera,
    CameraSpec,
    Flags,
    Floats,
    Integers,
    Pixels,
    projection_matrix,
    viewport_matrix,
)
from vinoreward_envs.randomization import DRAWS, NOISE_STARTS, noise_table, nominal
from vinoreward_envs.warp_device import Launch, WarpDevice, struct


class Appearance:
    """Appearances of scenes, by row.

    What is costly to draw, table and floor as the camera sees them, is kept from image to image.
    Cameras draw it when they need it, each row by one thread.

    Args:
        spec: what images look like.
        count: N, of scenes that can differ; 0: none does, and there is one row for all.
        device: ``"cpu"`` or ``"cuda:N"``.
        tensors: whether the memory is seen as torch tensors, also on a processor.
    """

    def __init__(
        self, spec: CameraSpec, count: int = 0, device: str = "cpu", *, tensors: bool = False
    ) -> None:
        self.count, self.spec = count, spec
        self.device = WarpDevice(device, tensors)
        warp, zeros = self.device.warp, self.device.zeros
        from vinoreward_envs.camera import appearance_kernels
        from vinoreward_envs.camera.kernels import Appearances, Shading

        rows, size = max(count, 1), (spec.height, spec.width)
        self.scenes = struct(
            Appearances,
            params=zeros(rows, DRAWS, dtype=warp.float64),
            steps=zeros(rows, dtype=warp.int64),  # the image's number: another one has other noise
            screens=zeros(rows, dtype=warp.mat44d),  # world to column, row, depth, 1; * distance
            standing=zeros(rows, dtype=warp.vec3d),  # where the camera stands, in metres
            resting=zeros(rows, dtype=warp.mat44d),  # pose of an object at rest at the origin
            sizes=zeros(rows, dtype=warp.float64),  # of the object, a factor
            shadings=zeros(rows, dtype=Shading),
            stale=zeros(rows, dtype=warp.uint8),  # whether the background has to be drawn
            backgrounds=zeros(rows, *size, dtype=warp.vec3ub),  # colours of table and floor
            nearness=zeros(rows, *size, dtype=warp.float32),  # 1 / distance along the camera's axis
        )
        """Memory of the kernels, ``(N, ...)``."""
        wanted = self.device.of(np.ones(rows, np.uint8), warp.uint8)
        self._wanted, self._params, self._steps = (
            self.device.view(array) for array in (wanted, self.scenes.params, self.scenes.steps)
        )
        matrices = [viewport_matrix(*size), projection_matrix(*size)]
        self._set = self.device.record_launch(appearance_kernels.set_appearance, (), [
            wanted, *(warp.mat44d(*each.ravel()) for each in matrices), self.scenes,
        ])  # fmt: skip
        self.device.fill(self._params, nominal(rows))
        self._set(rows, self.device.stream())

    def set(self, mask: Any, params: Any) -> None:
        """Let rows look as the ``(N, DRAWS)`` params say where ``mask``, ``(N,)`` bool, is True."""
        self.device.fill(self._wanted, mask)
        self.device.fill(self._params, params)
        self._set(self.count, self.device.stream())

    def show(self, steps: Any) -> None:
        """Let the ``(N,)`` images have these numbers in their episodes."""
        if self.count:
            self.device.fill(self._steps, steps)

    def background_launches(self, rows: Any) -> list[Launch]:
        """Return the kernel launches that redraw outdated backgrounds of ``(B,)`` rows.

        The kernel ``project_bodies``, which comes next, notes that they were drawn.
        """
        from vinoreward_envs.camera import appearance_kernels as kernels

        warp, of, zeros = self.device.warp, self.device.of, self.device.zeros
        mesh = background_mesh()
        corners = np.concatenate([mesh.positions, np.ones((len(mesh.positions), 3, 1))], axis=2)
        # Textures are (W, H): an image's row crosses the table's rows, and reads its columns in
        # order.
        floor, top = (of(one.transpose(1, 0, 2).copy(), warp.vec3ub) for one in textures())
        table = struct(
            kernels.Table,
            corners=of(corners, warp.vec4d),
            normals=of(mesh.normals, warp.vec3d),
            uv=of(mesh.uv, warp.vec2d),
            on_table=of(mesh.on_table.astype(np.uint8), warp.uint8),
            grain=warp.mat22d(*mesh.grain.ravel()),
            floor_texture=floor,
            table_texture=top,
        )
        shape = (rows.shape[0], len(corners))
        backdrop = struct(
            kernels.Backdrop,
            order=zeros(shape[0], shape[1] + 1, dtype=warp.int32),
            weights=zeros(*shape, dtype=warp.mat33),
            texels=zeros(*shape, dtype=warp.mat33),
            gains=zeros(*shape, dtype=warp.vec3),
        )
        record, inputs = self.device.record_launch, [rows, self.scenes, table, backdrop]
        return [
            record(kernels.place_backgrounds, (), inputs),
            record(kernels.draw_backgrounds, (self.spec.height,), inputs),
        ]


class FastCamera(Camera):
    """Draws with this package's rasteriser, within a fraction of a grey level of TinyRenderer.

    The first camera in a fresh installation compiles its kernels (seconds); Warp keeps them.

    Args:
        spec: what images look like.
        appearance: of scenes, which it draws by their rows; None: nothing differs.
        capacity: scenes that are drawn at once; memory grows with it.
    """

    def __init__(
        self, spec: CameraSpec, *, appearance: Appearance | None = None, capacity: int = 1
    ) -> None:
        super().__init__(spec)
        self._appearance = appearance or Appearance(spec)
        self._device = self._appearance.device
        self._capacity = capacity
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

        Returns ``(B, H, W, 3)`` uint8, an array or tensor that the next call overwrites.
        """
        self._views["targets"][:, 2] = height
        self._device.fill(self._views["targets"][:, :2], grippers)
        return self._launch(self._hovering, rows, objects=objects)

    def render_batch(
        self, joints: Floats, poses: Floats, present: Flags, rows: Integers | None = None
    ) -> Pixels:
        """See :class:`.Camera`."""
        images = np.empty((len(joints), self.spec.height, self.spec.width, 3), np.uint8)
        rows = np.arange(len(joints)) if rows is None else rows
        for start in range(0, len(joints), self._capacity):
            part = slice(start, start + self._capacity)
            self._device.fill(self._views["poses"][:, OBJECT_LINK], poses[part])
            shown = present[part].astype(np.uint8)
            self._launch(self._posed, rows[part], joints=joints[part], present=shown)
            images[part] = self._image.numpy()[: len(shown)]
        return images

    def _launch(self, posing: list[Launch], rows: Any, **values: Any) -> Any:
        """Fill memory, run launches, and return a view of the images."""
        count, stream = len(rows), self._device.stream()
        # Where nothing differs there is one row.
        rows = rows if self._appearance.count else rows.clip(-1, 0)
        for name, each in {"rows": rows, **values}.items():
            self._device.fill(self._views[name], each)
        for launch in (*posing, *self._drawing):
            launch(count, stream)
        return self._views["image"][:count]

    def _make_buffers(self) -> None:
        warp, zeros, size = self._device.warp, self._device.zeros, self._capacity
        from vinoreward_envs.arm_kernels import Joints
        from vinoreward_envs.camera.kernels import Bodies

        self._joints = zeros(size, dtype=Joints)
        self._targets, self._objects = zeros(size, dtype=warp.vec3d), zeros(size, dtype=warp.vec2d)
        self._image = zeros(size, self.spec.height, self.spec.width, dtype=warp.vec3ub)
        self._bodies = struct(
            Bodies,
            rows=zeros(size, dtype=warp.int32),
            present=zeros(size, dtype=warp.uint8),
            poses=zeros(size, MESH_LINKS, dtype=warp.mat44d),
            matrices=zeros(size, MESH_LINKS, dtype=warp.mat44),
            rotations=zeros(size, MESH_LINKS, dtype=warp.mat33),
            eyes=zeros(size, MESH_LINKS, dtype=warp.vec3),
            seen=zeros(size, MESH_LINKS, dtype=warp.uint8),
            noise=zeros(size, 2, dtype=warp.int32),
        )
        filled = {name: getattr(self._bodies, name) for name in ("rows", "present", "poses")}
        filled |= {"joints": self._joints, "targets": self._targets, "objects": self._objects}
        filled["image"] = self._image
        self._views = {name: self._device.view(array) for name, array in filled.items()}

    def _record_launches(self) -> None:
        """Record what :meth:`draw` and :meth:`render_batch` launch, in this order."""
        from vinoreward_envs import arm_kernels
        from vinoreward_envs.camera import appearance_kernels
        from vinoreward_envs.camera.kernels import Mesh

        device, scenes, size = self._device, self._appearance.scenes, self._capacity
        warp, of, record, rows = device.warp, device.of, device.record_launch, self._bodies.rows
        baked, arm = scene_mesh(self.spec.mesh), arm_struct(device.name)
        starts = of(np.tile(c.HOVER_JOINTS, (size, 1)), arm_kernels.Joints)
        solved = device.zeros(size, dtype=warp.uint8)
        reach = [rows, self._targets, starts, arm, self._joints, solved]
        links = [rows, self._joints, arm, self._bodies.poses]
        self._posed = [record(arm_kernels.pose_links, (), links)]
        placed = [self._objects, self._bodies, scenes]
        self._hovering = [
            record(arm_kernels.reach, (), reach),
            *self._posed,
            record(appearance_kernels.place_objects, (), placed),
        ]
        inputs = [self._bodies, scenes, of(_boxes(baked), warp.vec4d)]
        varied = self._appearance.count > 0
        self._drawing = self._appearance.background_launches(rows)
        if not varied:  # drawn once
            for launch in self._drawing:
                launch(1, device.stream())
            self._drawing = []
        self._drawing.append(record(appearance_kernels.project_bodies, (MESH_LINKS,), inputs))
        mesh = struct(
            Mesh,
            positions=of(baked.positions, warp.vec3),
            links=of(baked.links, warp.uint8),
            normals=of(baked.normals, warp.vec3),
            faces=of(baked.faces, warp.vec3i),
            normal_faces=of(baked.normal_faces, warp.vec3i),
            face_links=of(baked.links[baked.faces[:, 0]], warp.uint8),
            colours=of(baked.colours, warp.vec3ub),
        )
        pixels = 3 * self.spec.height * self.spec.width
        noise = of(noise_table(NOISE_STARTS + pixels if varied else 0), warp.int16)
        record_all = self._record_pixels if device.tensors else self._record_in_turn
        self._drawing += record_all(baked, mesh, noise)

    def _record_in_turn(self, baked: SceneMesh, mesh: Any, noise: Any) -> list[Launch]:
        """Coordinates lie side by side here, and scenes share the buffers of one."""
        device, warp = self._device, self._device.warp
        from vinoreward_envs.camera import one_thread

        def rows(values: NDArray[Any], dtype: Any) -> Any:
            return device.of(np.ascontiguousarray(values.T), dtype)

        padded = (self.spec.height, self.spec.width + one_thread.BESIDE)
        columns = struct(
            one_thread.Columns,
            positions=rows(baked.positions, warp.float32),
            ranges=device.of(_ranges(baked), warp.vec4i),
            faces=rows(baked.faces, warp.int32),
            planes=rows(_planes(baked), warp.float32),
            screen=device.zeros(3, len(baked.positions), dtype=warp.float32),
            boxes=device.zeros(5, len(baked.faces), dtype=warp.int32),
            depth=device.zeros(*padded, dtype=warp.float32),
            winners=device.zeros(*padded, dtype=warp.int32),
        )
        inputs = [columns, mesh, self._bodies, self._appearance.scenes, noise, self._image]
        return [device.record_launch(one_thread.draw_scenes, (), inputs)]

    def _record_pixels(self, baked: SceneMesh, mesh: Any, noise: Any) -> list[Launch]:
        """Record launches with a thread for each vertex, triangle or pixel."""
        device, warp, size = self._device, self._device.warp, (self.spec.height, self.spec.width)
        from vinoreward_envs.camera import kernels

        count, bodies = len(baked.positions), self._bodies
        screen = device.zeros(self._capacity, count, dtype=warp.vec3)
        depths = device.zeros(self._capacity, *size, dtype=warp.uint64)
        pixels = [mesh, bodies, self._appearance.scenes, screen, depths, noise, self._image]
        return [
            device.record_launch(kernels.transform_vertices, (count,), [mesh, bodies, screen]),
            device.record_launch(
                kernels.fill_triangles, (len(baked.faces),), [mesh, bodies, screen, depths]
            ),
            device.record_launch(kernels.shade_pixels, size, pixels),
        ]


def _boxes(mesh: SceneMesh) -> Floats:
    """Return the homogeneous corners ``(14, 8, 4)`` of each body's bounding box."""
    corners = np.ones((MESH_LINKS, 8, 4))
    for link in range(MESH_LINKS):
        # Bodies without a mesh keep a box of one point, which costs nothing.
        points = mesh.positions[mesh.links == link]
        if len(points):
            ends = np.stack([points.min(axis=0), points.max(axis=0)]).T
            corners[link, :, :3] = np.stack(np.meshgrid(*ends), axis=-1).reshape(8, 3)
    return corners


def _ranges(mesh: SceneMesh) -> NDArray[np.int32]:
    """Return ``(14, 4)``: first vertex and the one after the last of each body, then triangles."""
    found = [
        np.searchsorted(links, np.arange(MESH_LINKS), side)
        for links in (mesh.links, mesh.links[mesh.faces[:, 0]])
        for side in ("left", "right")
    ]
    return np.stack(found, axis=1).astype(np.int32)


def _planes(mesh: SceneMesh) -> NDArray[np.float32]:
    """Return the planes ``(T, 4)`` of the triangles: unit normal outwards, and its offset."""
    a, b, c_ = mesh.positions[mesh.faces].astype(np.float64).transpose(1, 0, 2)
    normals = np.cross(b - a, c_ - a)
    # A triangle without an area keeps a plane that the camera is not behind: nothing is drawn.
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    return np.column_stack([normals, (normals * a).sum(axis=1)]).astype(np.float32)
