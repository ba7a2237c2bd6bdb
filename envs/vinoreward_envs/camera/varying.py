"""Warp kernels that let scenes differ.

``set_looks`` and ``add_noise`` compute on a device what
:class:`~vinoreward_envs.camera.looks.Looks` computes with NumPy, so that no number leaves it;
``place_backgrounds`` serves the camera on a processor too. Looks are computed in double precision,
one scene on each thread.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors
# Numbers that change in a loop: Warp takes them as constants without int().
# ruff: noqa: UP018, RUF046

import warp as wp

from vinoreward_envs import constants as c
from vinoreward_envs.camera.kernels import Look
from vinoreward_envs.camera.looks import (
    NEXT_NOISE,
    NOISE_ROUNDED,
    NOISE_SHIFTED,
    NOISE_STARTS,
    NOISE_STEPS,
)
from vinoreward_envs.randomization import COLUMNS

# Loops stay loops: unrolled, those of the matrices would take minutes to compile.
wp.set_module_options({"enable_backward": False, "max_unroll": 1})


def _column(name):
    at = COLUMNS[name]
    return wp.constant(at.start if isinstance(at, slice) else at)


_LIGHT = _column("light")
_LIGHT_DIRECTION = _column("light_direction")
_CAST = _column("colour_cast")
_POSITION = _column("camera_position")
_ROTATION = _column("camera_rotation")
_FIELD = _column("field_of_view")
_SIZE = _column("object_size")
_COLOUR = _column("object_colour")
_YAW = _column("object_yaw")
_TINT = _column("table_tint")
_SHIFT = _column("table_shift")
_NOISE = _column("sensor_noise")
_ANOTHER = _column("another_colour")
_NOISE_AT = _column("picture_noise_at")

_ALWAYS_SEEN = wp.constant(wp.float64(c.CAMERA_FOV))
_NEAR = wp.constant(wp.float64(c.CAMERA_NEAR))
_RADIANS = wp.constant(wp.float64(3.141592653589793 / 180.0))
_ZERO = wp.constant(wp.float64(0.0))
_ONE = wp.constant(wp.float64(1.0))
_TWO = wp.constant(wp.float64(2.0))
_WHITE = wp.constant(wp.float64(255.0))

_STARTS = wp.constant(NOISE_STARTS)
_NEXT = wp.constant(wp.int64(NEXT_NOISE))
_STEPS = wp.constant(wp.float64(NOISE_STEPS))
_SHIFTED = wp.constant(NOISE_SHIFTED)
_ROUNDED = wp.constant(NOISE_ROUNDED)


@wp.func
def three(drawn: wp.array2d(dtype=wp.float64), scene: int, at: int) -> wp.vec3d:
    """Return three values that a scene drew."""
    return wp.vec3d(drawn[scene, at], drawn[scene, at + 1], drawn[scene, at + 2])


@wp.func
def turned(view: wp.mat33d, first: int, second: int, degrees: wp.float64) -> wp.mat33d:
    """Return the camera's axes, in rows, turned in the plane of two of them."""
    cos = wp.cos(degrees * _RADIANS)
    sin = wp.sin(degrees * _RADIANS)
    result = view
    for k in range(3):
        result[first, k] = cos * view[first, k] + sin * view[second, k]
        result[second, k] = cos * view[second, k] - sin * view[first, k]
    return result


@wp.func
def directed(light: wp.vec3d, drawn: wp.array2d(dtype=wp.float64), scene: int) -> wp.vec3d:
    """Return the light's direction as a scene has it."""
    turn = drawn[scene, _LIGHT_DIRECTION]
    lowered = drawn[scene, _LIGHT_DIRECTION + 1]
    if turn == _ZERO and lowered == _ZERO:
        return light
    azimuth = wp.atan2(light[1], light[0]) + turn * _RADIANS
    height = wp.asin(light[2]) - lowered * _RADIANS
    flat = wp.cos(height)
    return wp.vec3d(flat * wp.cos(azimuth), flat * wp.sin(azimuth), wp.sin(height))


@wp.func
def light_gain(drawn: wp.array2d(dtype=wp.float64), scene: int) -> wp.vec3d:
    """Return the factors of red, green and blue of a scene's light."""
    cast = drawn[scene, _CAST]
    return drawn[scene, _LIGHT] * wp.vec3d(_ONE + cast, _ONE, _ONE - cast)


@wp.func
def plain(drawn: wp.array2d(dtype=wp.float64), scene: int) -> bool:
    """Return whether table and floor look as always."""
    if drawn[scene, _LIGHT] != _ONE or drawn[scene, _FIELD] != _ALWAYS_SEEN:
        return False
    if drawn[scene, _CAST] != _ZERO:
        return False
    for k in range(2):
        if drawn[scene, _LIGHT_DIRECTION + k] != _ZERO or drawn[scene, _SHIFT + k] != _ZERO:
            return False
    for k in range(3):
        if drawn[scene, _POSITION + k] != _ZERO or drawn[scene, _ROTATION + k] != _ZERO:
            return False
        if drawn[scene, _TINT + k] != _ZERO:
            return False
    return True


@wp.kernel
def set_looks(
    wanted: wp.array(dtype=wp.uint8),
    drawn: wp.array2d(dtype=wp.float64),
    view: wp.mat44d,
    viewport: wp.mat44d,
    projection: wp.mat44d,
    aspect: wp.float64,
    eye: wp.vec3d,
    light: wp.vec3d,
    own_colour: wp.vec3d,
    lying: wp.mat44d,
    rise: wp.float64,
    screens: wp.array(dtype=wp.mat44d),
    standing: wp.array(dtype=wp.vec3d),
    resting: wp.array(dtype=wp.mat44d),
    sizes: wp.array(dtype=wp.float64),
    looks: wp.array(dtype=Look),
    rows: wp.array(dtype=wp.int32),
):
    """Let scenes ``(N,)`` look as they drew where ``wanted``; ``rows`` are backgrounds to draw.

    ``view``, ``viewport``, ``projection``, ``eye``, ``light``, ``own_colour`` and ``lying`` are of
    the scene as always. ``aspect`` is height over width, ``rise`` the height of the object's origin
    above the table.
    """
    scene = wp.tid()
    rows[scene] = 0
    if wanted[scene] == wp.uint8(0):
        return
    axes = wp.mat33d()
    for i in range(3):
        for j in range(3):
            axes[i, j] = view[i, j]
    axes = turned(axes, 2, 0, drawn[scene, _ROTATION])
    axes = turned(axes, 1, 2, drawn[scene, _ROTATION + 1])
    axes = turned(axes, 0, 1, drawn[scene, _ROTATION + 2])
    place = eye + three(drawn, scene, _POSITION)
    away = axes * place
    seen_from = view
    for i in range(3):
        for j in range(3):
            seen_from[i, j] = axes[i, j]
        seen_from[i, 3] = -away[i]
    through = projection
    scale = _ONE / wp.tan(drawn[scene, _FIELD] * _RADIANS / _TWO)
    through[0, 0] = scale * aspect
    through[1, 1] = scale
    screens[scene] = viewport * (through * seen_from)
    standing[scene] = place

    size = drawn[scene, _SIZE]
    cos = wp.cos(drawn[scene, _YAW] * _RADIANS)
    sin = wp.sin(drawn[scene, _YAW] * _RADIANS)
    pose = lying
    for k in range(3):
        pose[0, k] = cos * lying[0, k] - sin * lying[1, k]
        pose[1, k] = sin * lying[0, k] + cos * lying[1, k]
    pose[2, 3] = lying[2, 3] + (size - _ONE) * rise
    resting[scene] = pose
    sizes[scene] = size

    look = Look()
    direction = directed(light, drawn, scene)
    gain = light_gain(drawn, scene)
    share = drawn[scene, _COLOUR]
    another = three(drawn, scene, _ANOTHER)
    for k in range(3):
        look.direction[k] = wp.float32(direction[k])
        look.gain[k] = wp.float32(gain[k])
        mixed = (_ONE - share) * own_colour[k] + share * _WHITE * another[k]
        look.colour[k] = wp.uint8(wp.rint(mixed))
    look.background = 0
    if not plain(drawn, scene):
        look.background = scene + 1
        rows[scene] = scene + 1
    looks[scene] = look


@wp.kernel
def place_backgrounds(
    rows: wp.array(dtype=wp.int32),
    drawn: wp.array2d(dtype=wp.float64),
    screens: wp.array(dtype=wp.mat44d),
    light: wp.vec3d,
    strength: wp.vec3d,
    corners: wp.array2d(dtype=wp.vec4d),
    normals: wp.array(dtype=wp.vec3d),
    uv: wp.array2d(dtype=wp.vec2d),
    on_table: wp.array(dtype=wp.uint8),
    grain: wp.mat22d,
    right: wp.float64,
    bottom: wp.float64,
    order: wp.array2d(dtype=wp.int32),
    weights: wp.array2d(dtype=wp.mat33),
    texels: wp.array2d(dtype=wp.mat33),
    gains: wp.array2d(dtype=wp.vec3),
):
    """Say for ``kernels.draw_backgrounds`` how table and floor are seen, where ``rows`` is not 0.

    Their triangles ``(T,)`` have ``corners`` in the world and ``uv`` in their texture.
    """
    scene = wp.tid()
    if rows[scene] == 0:
        return
    screen = screens[scene]
    direction = directed(light, drawn, scene)
    gain = light_gain(drawn, scene)
    tint = three(drawn, scene, _TINT)
    shift = grain * wp.vec2d(drawn[scene, _SHIFT], drawn[scene, _SHIFT + 1])
    many = int(0)
    for t in range(corners.shape[0]):
        p = screen * corners[t, 0]
        q = screen * corners[t, 1]
        r = screen * corners[t, 2]
        a = wp.vec3d(p[0], p[1], p[3])
        b = wp.vec3d(q[0], q[1], q[3])
        d = wp.vec3d(r[0], r[1], r[3])
        of_a = wp.cross(b, d)
        of_b = wp.cross(d, a)
        of_d = wp.cross(a, b)
        area = wp.dot(of_a, a)
        # Rows count downwards: what is seen from its front has a negative area.
        seen = area < _ZERO
        seen = seen and (p[0] >= _ZERO or q[0] >= _ZERO or r[0] >= _ZERO)
        seen = seen and (p[0] <= right * p[3] or q[0] <= right * q[3] or r[0] <= right * r[3])
        seen = seen and (p[1] >= _ZERO or q[1] >= _ZERO or r[1] >= _ZERO)
        seen = seen and (p[1] <= bottom * p[3] or q[1] <= bottom * q[3] or r[1] <= bottom * r[3])
        seen = seen and (p[3] >= _NEAR or q[3] >= _NEAR or r[3] >= _NEAR)
        if seen:
            order[scene, many] = t
            many += 1
            normal = normals[t]
            facing = wp.dot(direction, normal)
            mirrored = wp.max(_TWO * facing * normal[2] - direction[2], _ZERO)
            bright = strength[0] + strength[1] * wp.max(facing, _ZERO)
            bright += strength[2] * mirrored * mirrored
            for k in range(3):
                weights[scene, t][0, k] = wp.float32(of_a[k] / area)
                weights[scene, t][1, k] = wp.float32(of_b[k] / area)
                weights[scene, t][2, k] = wp.float32(of_d[k] / area)
                gains[scene, t][k] = wp.float32(bright * (gain[k] * (_ONE + tint[k])))
                for i in range(2):
                    place = uv[t, k][i]
                    if on_table[t] != wp.uint8(0):
                        place -= shift[i]
                    texels[scene, t][i, k] = wp.float32(place)
    order[scene, many] = -1


@wp.kernel
def add_noise(
    table: wp.array(dtype=wp.int16),
    drawn: wp.array2d(dtype=wp.float64),
    steps: wp.array(dtype=wp.int64),
    picture: wp.array3d(dtype=wp.vec3ub),
):
    """Add the sensor's noise to pictures ``(B, H, W)``."""
    scene, row, column = wp.tid()
    times = int(wp.rint(_STEPS * drawn[scene, _NOISE]))
    if times == 0:
        return
    start = wp.int64(wp.float64(_STARTS) * drawn[scene, _NOISE_AT]) + _NEXT * steps[scene]
    at = int(start % wp.int64(_STARTS)) + 3 * (row * picture.shape[2] + column)
    colour = picture[scene, row, column]
    for k in range(3):
        noise = (int(table[at + k]) * times + _ROUNDED) >> _SHIFTED
        colour[k] = wp.uint8(wp.clamp(int(colour[k]) + noise, 0, 255))
    picture[scene, row, column] = colour
