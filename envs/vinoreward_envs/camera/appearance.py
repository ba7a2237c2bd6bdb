"""How scenes look that differ in light, camera, object, table and noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vinoreward_envs.camera.baked import background_mesh, textures
from vinoreward_envs.camera.spec import CameraSpec, projection_matrix, viewport_matrix
from vinoreward_envs.randomization import DRAWS, nominal
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
        from vinoreward_envs.camera.kernels import Looks, Shading

        rows, size = max(count, 1), (spec.height, spec.width)
        self.looks = struct(
            Looks,
            params=zeros(rows, DRAWS, dtype=warp.float64),  # what each episode drew
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
            self.device.view(array) for array in (wanted, self.looks.params, self.looks.steps)
        )
        matrices = [viewport_matrix(*size), projection_matrix(*size)]
        self._set = self.device.record_launch(appearance_kernels.set_appearance, (), [
            wanted, *(warp.mat44d(*each.ravel()) for each in matrices), self.looks,
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
        """Return launches that draw backgrounds that are stale, of ``(B,)`` rows."""
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
        drop = struct(
            kernels.Backdrop,
            order=zeros(shape[0], shape[1] + 1, dtype=warp.int32),
            weights=zeros(*shape, dtype=warp.mat33),
            texels=zeros(*shape, dtype=warp.mat33),
            gains=zeros(*shape, dtype=warp.vec3),
        )
        record: Callable[..., Launch] = self.device.record_launch
        return [
            record(kernels.place_backgrounds, (), [rows, self.looks, table, drop]),
            record(kernels.draw_backgrounds, (self.spec.height,), [rows, self.looks, table, drop]),
            record(kernels.mark_fresh, (), [rows, self.looks]),
        ]
