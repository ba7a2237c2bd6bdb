"""How scenes look that differ, kept and drawn on one device.

Importing this imports torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vinoreward_envs import constants as c
from vinoreward_envs.camera.baked import background_mesh
from vinoreward_envs.camera.fast import recorded, warp_module
from vinoreward_envs.camera.looks import NOISE_STARTS, OBJECT_COLOUR, Looks, noise_table
from vinoreward_envs.camera.spec import (
    CameraSpec,
    camera_eye,
    projection_matrix,
    view_matrix,
    viewport_matrix,
)
from vinoreward_envs.randomization import DRAWS
from vinoreward_envs.scene import OBJECT_REST_HEIGHT, object_rest_pose


class DeviceLooks:
    """:class:`~vinoreward_envs.camera.looks.Looks` of ``count`` scenes as arrays on a device.

    Nothing varies: light, camera, object and table are the usual ones.

    Args:
        spec: what pictures look like.
        count: N.
        device: ``"cpu"`` or ``"cuda:N"``.
        backgrounds: for how many there is room, beside the usual one.
    """

    def __init__(self, spec: CameraSpec, count: int, device: str, *, backgrounds: int = 1) -> None:
        warp = self._warp = warp_module()
        from vinoreward_envs.camera import kernels

        self._spec, self._device = spec, device
        as_always = self._surface = Looks(spec, backgrounds)
        as_always.open(warp, device)
        self.pool: Any = as_always.pool
        """Warp's arrays of backgrounds, see ``Looks.pool``."""
        row = np.zeros(count, np.int64)
        look: Any = kernels.Look
        scenes = np.zeros(count, look.numpy_dtype())
        scenes["direction"], scenes["gain"] = as_always.directions[0], as_always.gains[0]
        scenes["colour"] = as_always.colours[0]
        resting = np.tile(object_rest_pose((0.0, 0.0)), (count, 1, 1))
        self._resting = self._array(resting, warp.mat44d)
        self._screens = self._array(as_always.screens[:1][row], warp.mat44d)
        self._standing = self._array(as_always.eyes[:1][row], warp.vec3d)
        self._sizes = self._array(np.ones(count), warp.float64)
        self._looks = self._array(scenes, look)

    def _array(self, values: NDArray[Any], dtype: Any) -> Any:
        return self._warp.array(values, dtype=dtype, device=self._device)

    def part(self, piece: slice) -> dict[str, Any]:
        """Return the arrays of some scenes that ``posing`` and the rasteriser read, by name."""
        return {
            name: array[piece]
            for name, array in (
                ("resting", self._resting), ("screens", self._screens),
                ("standing", self._standing), ("sizes", self._sizes), ("looks", self._looks),
            )
        }  # fmt: skip

    def add_noise(self, pictures: Any, piece: slice) -> None:
        """Add the sensor's noise to pictures of some scenes, Warp's array ``(B, H, W)``."""


class VaryingLooks(DeviceLooks):
    """:class:`DeviceLooks` of scenes that differ; each has a background of its own."""

    def __init__(self, spec: CameraSpec, count: int, device: str) -> None:
        super().__init__(spec, count, device, backgrounds=count)
        warp, array = self._warp, self._array
        from vinoreward_envs.camera import kernels, varying

        def empty(*shape: int, dtype: Any) -> Any:
            return warp.zeros(shape, dtype=dtype, device=device)

        self._values = torch.zeros(count, DRAWS, dtype=torch.float64, device=device)
        self._wanted = torch.zeros(count, dtype=torch.uint8, device=device)
        self._drawn = warp.from_torch(self._values)
        size = spec.width * spec.height * 3
        self._noise = array(noise_table(NOISE_STARTS + size), warp.int16)
        triangles = len(background_mesh().positions)
        light = self._surface.to_place[0]
        rows = empty(count, dtype=warp.int32)
        order = empty(count, triangles + 1, dtype=warp.int32)
        weights, texels = (empty(count, triangles, dtype=warp.mat33) for _ in range(2))
        gains = empty(count, triangles, dtype=warp.vec3)
        matrices = [
            warp.mat44d(*values.ravel())
            for values in (
                view_matrix(),
                viewport_matrix(spec.height, spec.width),
                projection_matrix(spec.height, spec.width),
            )
        ]
        looks = [
            warp.from_torch(self._wanted), self._drawn, *matrices, spec.height / spec.width,
            warp.vec3d(*camera_eye()), light, warp.vec3d(*map(float, OBJECT_COLOUR)),
            warp.mat44d(*object_rest_pose((0.0, 0.0)).ravel()), OBJECT_REST_HEIGHT - c.TABLE_TOP,
            self._screens, self._standing, self._resting, self._sizes, self._looks, rows,
        ]  # fmt: skip
        placed = [
            rows, self._drawn, self._screens, *self._surface.to_place,
            order, weights, texels, gains,
        ]  # fmt: skip
        drawn = [rows, order, weights, texels, gains, *self._surface.to_draw]
        self._launches = [
            recorded(warp, kernel, dim, inputs, device)
            for kernel, dim, inputs in (
                (varying.set_looks, count, looks),
                (varying.place_backgrounds, count, placed),
                (kernels.draw_backgrounds, (count, spec.height), drawn),
            )
        ]
        self._add_noise = varying.add_noise

    def follow(self, steps: Tensor) -> None:
        """Take the ``(N,)`` int64 numbers of the pictures in their episodes from here."""
        self._steps = self._warp.from_torch(steps)

    def set(self, mask: Tensor, numbers: Tensor) -> None:
        """See ``SceneLooks``."""
        self._values.copy_(numbers)
        self._wanted.copy_(mask)
        stream = stream_of(self._warp, self._values)
        for launch in self._launches:
            launch.launch(stream)

    def add_noise(self, pictures: Any, piece: slice) -> None:
        """See :class:`DeviceLooks`."""
        size = (piece.stop - piece.start, self._spec.height, self._spec.width)
        # Its module is loaded: that of set_looks.
        inputs = [self._noise, self._drawn[piece], self._steps[piece], pictures]
        stream = stream_of(self._warp, self._values)
        self._warp.launch(
            self._add_noise, size, inputs, device=None if stream else self._device, stream=stream
        )


def stream_of(warp: Any, tensor: Tensor) -> Any:
    """Return Torch's stream as Warp's, on which work on a tensor is in order; None on the CPU."""
    if not tensor.is_cuda:
        return None
    return warp.stream_from_torch(torch.cuda.current_stream(tensor.device))
