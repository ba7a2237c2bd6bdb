"""How scenes look that differ in light, camera, object, table and noise."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vinoreward_envs import constants as c
from vinoreward_envs.camera.baked import (
    AMBIENT,
    DIFFUSE,
    SPECULAR,
    background,
    background_mesh,
    textures,
)
from vinoreward_envs.camera.spec import (
    LIGHT,
    CameraSpec,
    camera_eye,
    projection_matrix,
    view_matrix,
    viewport_matrix,
)
from vinoreward_envs.objects import object_rest_poses
from vinoreward_envs.randomization import COLUMNS, DRAWS, as_numbers, nominal
from vinoreward_envs.warp_device import WarpDevice

OBJECT_COLOUR: Final = (10, 17, 232)
"""RGB of the object before lighting."""
_OF_BACKGROUND: Final = (
    "light", "light_direction", "colour_cast", "camera_position", "camera_rotation",
    "field_of_view", "table_tint", "table_shift",
)  # fmt: skip


class Appearance:
    """Appearances of ``count`` scenes, by row; at first all look as always.

    What is costly to draw, table and floor as the camera sees them, is kept from image to image.
    Cameras draw it when they need it, each row by one thread.

    Args:
        spec: what images look like.
        count: N.
        device: ``"cpu"`` or ``"cuda:N"``.
        varied: whether scenes can differ: each then has a background of its own.
        tensors: whether the memory is seen as torch tensors, also on a processor.
    """

    def __init__(
        self,
        spec: CameraSpec,
        count: int = 1,
        device: str = "cpu",
        *,
        varied: bool = True,
        tensors: bool = False,
    ) -> None:
        self.count, self.varied = count, varied
        self.device = WarpDevice(device, tensors)
        warp, zeros = self.device.warp, self.device.zeros
        from vinoreward_envs.camera import appearance_kernels
        from vinoreward_envs.camera.kernels import Shading

        self.params = zeros(count, DRAWS, dtype=warp.float64)
        """``(N, DRAWS)`` what each episode drew."""
        self.steps = zeros(count, dtype=warp.int64)
        """``(N,)`` number of the image in its episode: another one has other noise."""
        self.screens = zeros(count, dtype=warp.mat44d)
        """From the world to column, row, depth and 1, times the distance."""
        self.standing = zeros(count, dtype=warp.vec3d)
        """Where the camera stands, in metres."""
        self.resting = zeros(count, dtype=warp.mat44d)
        """Pose of an object at rest at the origin."""
        self.sizes = zeros(count, dtype=warp.float64)
        """Size of the object, a factor."""
        self.shadings = zeros(count, dtype=Shading)
        """Light, the object's colour, and which background: 0, or the row + 1."""
        self.stale = zeros(count, dtype=warp.uint8)
        """Whether that background has to be drawn."""
        self._wanted = zeros(count, dtype=warp.uint8)
        self._views = tuple(map(self.device.view, (self._wanted, self.params, self.steps)))
        drawn = background(spec.height, spec.width)
        shape = (count + 1 if varied else 1, spec.height, spec.width)
        self.backgrounds = zeros(*shape, dtype=warp.vec3ub)
        """``(N + 1, H, W)`` colours of table and floor; the first is :func:`.background`."""
        self.nearness = zeros(*shape, dtype=warp.float32)
        """The same for one over the distance along the camera's axis."""
        self.backgrounds[:1].assign(drawn.image[None])
        self.nearness[:1].assign(drawn.nearness[None])
        direction = np.array(LIGHT) / np.linalg.norm(LIGHT)
        self.light = warp.vec3d(*direction.tolist())
        size = (spec.height, spec.width)
        matrices = [view_matrix(), viewport_matrix(*size), projection_matrix(*size)]
        self._set = self.device.record_launch(appearance_kernels.set_appearance, (), [
            self._wanted, self.params, self.device.of(_usual(), warp.float64),
            *(warp.mat44d(*each.ravel()) for each in matrices),
            spec.height / spec.width, warp.vec3d(*camera_eye()), self.light,
            warp.vec3d(*map(float, OBJECT_COLOUR)),
            warp.mat44d(*object_rest_poses(np.zeros((1, 2))).ravel()),
            c.OBJECT_REST_HEIGHT - c.TABLE_TOP, self.screens, self.standing, self.resting,
            self.sizes, self.shadings, self.stale,
        ])  # fmt: skip
        self.set(np.ones(count, np.bool_), as_numbers(nominal(count)))

    def set(self, mask: Any, params: Any) -> None:
        """Let rows look as the ``(N, DRAWS)`` params say where ``mask``, ``(N,)`` bool, is True."""
        wanted, own, _ = self._views
        self.device.fill(wanted, mask)
        self.device.fill(own, params)
        self._set(self.count, self.device.stream())

    def show(self, steps: Any) -> None:
        """Let the ``(N,)`` images have these numbers in their episodes."""
        self.device.fill(self._views[2], steps)

    def table_and_floor(self, spec: CameraSpec) -> tuple[list[Any], list[Any]]:
        """Return inputs of ``place_backgrounds`` and ``draw_backgrounds``: table and floor."""
        warp, of = self.device.warp, self.device.of
        mesh = background_mesh()
        on_table = of(mesh.on_table.astype(np.uint8), warp.uint8)
        corners = np.concatenate([mesh.positions, np.ones((len(mesh.positions), 3, 1))], axis=2)
        place = [
            self.light, warp.vec3d(AMBIENT, DIFFUSE, SPECULAR), of(corners, warp.vec4d),
            of(mesh.normals, warp.vec3d), of(mesh.uv, warp.vec2d), on_table,
            warp.mat22d(*mesh.grain.ravel()), spec.width - 1.0, spec.height - 1.0,
        ]  # fmt: skip
        # Textures are (W, H): an image's row crosses the table's rows, and reads its columns in
        # order.
        images = [of(one.transpose(1, 0, 2).copy(), warp.vec3ub) for one in textures()]
        draw = [on_table, 1.0 / c.CAMERA_FAR, *images, self.backgrounds, self.nearness]
        return place, draw


def _usual() -> NDArray[np.float64]:
    """Return the ``(DRAWS,)`` params of a usual table and floor; NaN: of something else."""
    usual = np.full(DRAWS, np.nan)
    for name in _OF_BACKGROUND:
        usual[COLUMNS[name]] = nominal(1)[name][0]
    return usual
