"""How scenes look that differ in light, camera, object, table and noise.

What is costly to draw, table and floor as the camera sees them, is kept from picture to picture.
"""

from __future__ import annotations

import functools
import math
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
    Floats,
    Pixels,
    Rows,
    camera_eye,
    moved_view,
    projection_matrix,
    screen_matrix,
)
from vinoreward_envs.randomization import as_drawn, nominal, normals

OBJECT_COLOUR: Final = (10, 17, 232)
"""RGB of the object before lighting."""
_OF_BACKGROUND: Final = (
    "light", "light_direction", "colour_cast", "camera_position", "camera_rotation",
    "field_of_view", "table_tint", "table_shift",
)  # fmt: skip
NOISE_STARTS: Final = 1 << 16
"""Places in the table of noise where a picture may begin."""
NEXT_NOISE: Final = 7919
"""Numbers further on begins the noise of the next picture."""
NOISE_UNIT, NOISE_STEPS = 32, 8
"""Noise is fixed-point: in 1/32 of a standard deviation, and deviations in 1/8 of a grey level."""
NOISE_ROUNDED: Final = NOISE_UNIT * NOISE_STEPS // 2
"""Added to a product of both before it is shifted: it is rounded, and a picture's mean stays."""
NOISE_SHIFTED: Final = (NOISE_UNIT * NOISE_STEPS).bit_length() - 1
"""Bits by which it is shifted to whole grey levels."""


class Looks:
    """Looks of ``count`` scenes, by row; at first they look as always.

    Rows may be drawn, and their backgrounds with them, by several threads, each row by one.
    """

    def __init__(self, spec: CameraSpec, count: int) -> None:
        self._spec = spec
        self.drawn = nominal(count)
        """``(count,)`` what each episode drew."""
        self.steps: Rows = np.zeros(count, np.int64)
        """``(count,)`` number of the picture in its episode: another one has other noise."""
        self.eyes = np.tile(camera_eye(), (count, 1))
        """``(count, 3)`` where the camera stands, in metres."""
        self.screens = np.tile(screen_matrix(spec.height, spec.width), (count, 1, 1))
        """``(count, 4, 4)`` from the world to column, row, depth and 1, times the distance."""
        self.directions = np.tile(np.array(LIGHT) / np.linalg.norm(LIGHT), (count, 1))
        """``(count, 3)`` unit vectors towards the light."""
        self.gains = np.ones((count, 3))
        """``(count, 3)`` of red, green and blue."""
        self.colours = np.tile(np.array(OBJECT_COLOUR, np.uint8), (count, 1))
        """``(count, 3)`` of the object, before lighting."""
        self.backgrounds = np.zeros(count, np.int32)
        """``(count,)`` which of the pictures of table and floor: 0, or the row + 1."""
        self._stale = np.zeros(count, np.bool_)
        self.pool: tuple[Any, Any] | None = None
        """Warp's arrays ``(count + 1, H, W)`` of table and floor: colours, and one over the
        distance along the camera's axis; the first is :func:`.background`."""
        self.to_place: list[Any] = []
        """What ``varying.place_backgrounds`` is told of light, table and floor."""
        self.to_draw: list[Any] = []
        """What ``kernels.draw_backgrounds`` is told of table and floor. Textures are ``(W, H)``: a
        picture's row crosses the table's rows, and reads its columns in order."""

    def follow(self, steps: Rows) -> None:
        """Let :attr:`steps` be this array, which somebody else counts on."""
        self.steps = steps

    def set(self, mask: NDArray[np.bool_], numbers: Floats) -> None:
        """Let rows look as the ``(N, DRAWS)`` numbers say where ``mask``, ``(N,)``, is True."""
        rows = np.flatnonzero(mask)
        self.drawn[rows] = drawn = as_drawn(numbers[rows])
        always = nominal(1)[0]
        plain = np.ones(len(rows), np.bool_)
        for name in _OF_BACKGROUND:
            same = drawn[name] == always[name]
            plain &= same if same.ndim == 1 else same.all(axis=1)
        height, width = self._spec.height, self._spec.width
        for row, one in zip(rows.tolist(), drawn, strict=True):
            view = moved_view(one["camera_position"], one["camera_rotation"])
            projection = projection_matrix(height, width, float(one["field_of_view"]))
            self.screens[row] = screen_matrix(height, width, projection @ view)
            self.eyes[row] = camera_eye() + one["camera_position"]
            self.directions[row] = _direction(*one["light_direction"].tolist())
        cast = drawn["colour_cast"]
        self.gains[rows] = drawn["light"][:, None] * np.stack([1 + cast, 1 + 0 * cast, 1 - cast], 1)
        share = drawn["object_colour"][:, None]
        mixed = (1 - share) * np.array(OBJECT_COLOUR) + share * 255.0 * drawn["another_colour"]
        self.colours[rows] = np.rint(mixed)
        self.backgrounds[rows] = np.where(plain, 0, rows + 1)
        self._stale[rows] = ~plain

    def noisy(self, rows: Rows) -> bool:
        """Return whether a picture of these rows has noise."""
        return bool(self.drawn["sensor_noise"][rows].any())

    def noise(self, rows: Rows) -> NDArray[np.int32]:
        """Return ``(K, 2)``: where in :func:`noise_table` rows' noise begins; its strength."""
        strength = np.rint(NOISE_STEPS * self.drawn["sensor_noise"][rows])
        at = (NOISE_STARTS * self.drawn["picture_noise_at"][rows]).astype(np.int64)
        at = (at + NEXT_NOISE * self.steps[rows]) % NOISE_STARTS
        return np.stack([at, strength], axis=1).astype(np.int32)

    def add_noise(self, pictures: Pixels, rows: Rows) -> None:
        """Add the sensor's noise to ``(K, H, W, 3)`` pictures of these rows."""
        if not self.noisy(rows):
            return
        table = noise_table(NOISE_STARTS + pictures[:1].size)
        for picture, (start, times) in zip(pictures, self.noise(rows).tolist(), strict=True):
            if times:
                noise = table[start : start + picture.size].reshape(picture.shape) * np.int16(times)
                noise += NOISE_ROUNDED
                noise >>= NOISE_SHIFTED
                noise += picture
                picture[:] = noise.clip(0, 255)

    def open(self, warp: Any, device: str) -> None:
        """Make room for the backgrounds on the device, unless there is some."""
        if self.pool is not None:
            return
        drawn, size = background(self._spec.height, self._spec.width), len(self._stale) + 1
        shape = (size, self._spec.height, self._spec.width)
        colours = warp.zeros(shape, dtype=warp.vec3ub, device=device)
        nearness = warp.zeros(shape, dtype=warp.float32, device=device)
        colours[:1].assign(drawn.picture[None])
        nearness[:1].assign(drawn.nearness[None])

        def array(values: NDArray[Any], dtype: Any) -> Any:
            return warp.array(values, dtype=dtype, device=device)

        mesh = background_mesh()
        on_table = array(mesh.on_table.astype(np.uint8), warp.uint8)
        corners = np.concatenate([mesh.positions, np.ones((len(mesh.positions), 3, 1))], axis=2)
        self.to_place = [
            warp.vec3d(*(np.array(LIGHT) / np.linalg.norm(LIGHT)).tolist()),
            warp.vec3d(AMBIENT, DIFFUSE, SPECULAR), array(corners, warp.vec4d),
            array(mesh.normals, warp.vec3d), array(mesh.uv, warp.vec2d), on_table,
            warp.mat22d(*mesh.grain.ravel()), self._spec.width - 1.0, self._spec.height - 1.0,
        ]  # fmt: skip
        self.to_draw = [
            on_table, 1.0 / c.CAMERA_FAR,
            *(array(one.transpose(1, 0, 2).copy(), warp.vec3ub) for one in textures()),
            colours, nearness,
        ]  # fmt: skip
        self.pool = colours, nearness  # last: it says that all is there

    def stale(self, rows: Rows) -> Rows:
        """Return those of ``rows`` that look otherwise than their backgrounds were drawn."""
        return rows[self._stale[rows]]

    def mark_fresh(self, rows: Rows) -> None:
        """Note that the backgrounds of these rows were drawn."""
        self._stale[rows] = False


def _direction(turned: float, lowered: float) -> Floats:
    """Return the light's direction turned about the vertical and lowered, in degrees."""
    x, y, z = (np.array(LIGHT) / np.linalg.norm(LIGHT)).tolist()
    if turned == lowered == 0.0:
        return np.array([x, y, z])
    azimuth = math.atan2(y, x) + math.radians(turned)
    height = math.asin(z) - math.radians(lowered)
    flat = math.cos(height)
    return np.array([flat * math.cos(azimuth), flat * math.sin(azimuth), math.sin(height)])


@functools.lru_cache(maxsize=4)
def noise_table(count: int) -> NDArray[np.int16]:
    """Return ``count`` normal numbers in parts of their deviation, at most four of it."""
    return np.rint(NOISE_UNIT * np.clip(normals(count), -4.0, 4.0)).astype(np.int16)
