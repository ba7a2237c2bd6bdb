"""Warp kernels that place bodies before the camera, and let scenes differ in what it sees.

They run on a processor and on CUDA, in double precision, one scene on each thread.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors
# Numbers that change in a loop: Warp takes them as constants without int().
# ruff: noqa: UP018, RUF046

import warp as wp

from vinoreward_envs import constants as c
from vinoreward_envs.arm_kernels import column
from vinoreward_envs.camera.kernels import Shading
from vinoreward_envs.camera.noise import (
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
_ANOTHER = _column("another_colour")

_NEAR = wp.constant(wp.float64(c.CAMERA_NEAR))
_RADIANS = wp.constant(wp.float64(3.141592653589793 / 180.0))
_ZERO = wp.constant(wp.float64(0.0))
_ONE = wp.constant(wp.float64(1.0))
_TWO = wp.constant(wp.float64(2.0))
_WHITE = wp.constant(wp.float64(255.0))

_OBJECT = wp.constant(13)
_NOISE = _column("sensor_noise")
_NOISE_AT = _column("image_noise_at")
_STARTS = wp.constant(NOISE_STARTS)
_NEXT = wp.constant(wp.int64(NEXT_NOISE))
_STEPS = wp.constant(wp.float64(NOISE_STEPS))
_SHIFTED = wp.constant(NOISE_SHIFTED)
_ROUNDED = wp.constant(NOISE_ROUNDED)


@wp.func
def three(params: wp.array2d(dtype=wp.float64), scene: int, at: int) -> wp.vec3d:
    """Return three values of a scene."""
    return wp.vec3d(params[scene, at], params[scene, at + 1], params[scene, at + 2])


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
def directed(light: wp.vec3d, params: wp.array2d(dtype=wp.float64), scene: int) -> wp.vec3d:
    """Return the light's direction as a scene has it."""
    turn = params[scene, _LIGHT_DIRECTION]
    lowered = params[scene, _LIGHT_DIRECTION + 1]
    if turn == _ZERO and lowered == _ZERO:
        return light
    azimuth = wp.atan2(light[1], light[0]) + turn * _RADIANS
    height = wp.asin(light[2]) - lowered * _RADIANS
    flat = wp.cos(height)
    return wp.vec3d(flat * wp.cos(azimuth), flat * wp.sin(azimuth), wp.sin(height))


@wp.func
def light_gain(params: wp.array2d(dtype=wp.float64), scene: int) -> wp.vec3d:
    """Return the factors of red, green and blue of a scene's light."""
    cast = params[scene, _CAST]
    return params[scene, _LIGHT] * wp.vec3d(_ONE + cast, _ONE, _ONE - cast)


@wp.func
def plain(params: wp.array2d(dtype=wp.float64), usual: wp.array(dtype=wp.float64), scene: int):
    """Return whether table and floor look as always; what does not concern them is NaN there."""
    for i in range(usual.shape[0]):
        if params[scene, i] != usual[i] and not wp.isnan(usual[i]):
            return False
    return True


@wp.kernel
def set_appearance(
    wanted: wp.array(dtype=wp.uint8),
    params: wp.array2d(dtype=wp.float64),
    usual: wp.array(dtype=wp.float64),
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
    shadings: wp.array(dtype=Shading),
    stale: wp.array(dtype=wp.uint8),
):
    """Let scenes ``(N,)`` look as their parameters say where ``wanted``; ``stale`` are backgrounds.

    ``usual`` are the params of a table and floor that look as always, see :func:`plain`.
    ``view``, ``viewport``, ``projection``, ``eye``, ``light``, ``own_colour`` and ``lying`` are of
    the scene as always. ``aspect`` is height over width, ``rise`` the height of the object's origin
    above the table.
    """
    scene = wp.tid()
    if wanted[scene] == wp.uint8(0):
        return
    axes = wp.mat33d()
    for i in range(3):
        for j in range(3):
            axes[i, j] = view[i, j]
    axes = turned(axes, 2, 0, params[scene, _ROTATION])
    axes = turned(axes, 1, 2, params[scene, _ROTATION + 1])
    axes = turned(axes, 0, 1, params[scene, _ROTATION + 2])
    place = eye + three(params, scene, _POSITION)
    away = axes * place
    seen_from = view
    for i in range(3):
        for j in range(3):
            seen_from[i, j] = axes[i, j]
        seen_from[i, 3] = -away[i]
    through = projection
    scale = _ONE / wp.tan(params[scene, _FIELD] * _RADIANS / _TWO)
    through[0, 0] = scale * aspect
    through[1, 1] = scale
    screens[scene] = viewport * (through * seen_from)
    standing[scene] = place

    size = params[scene, _SIZE]
    cos = wp.cos(params[scene, _YAW] * _RADIANS)
    sin = wp.sin(params[scene, _YAW] * _RADIANS)
    pose = lying
    for k in range(3):
        pose[0, k] = cos * lying[0, k] - sin * lying[1, k]
        pose[1, k] = sin * lying[0, k] + cos * lying[1, k]
    pose[2, 3] = lying[2, 3] + (size - _ONE) * rise
    resting[scene] = pose
    sizes[scene] = size

    shading = Shading()
    direction = directed(light, params, scene)
    gain = light_gain(params, scene)
    share = params[scene, _COLOUR]
    another = three(params, scene, _ANOTHER)
    for k in range(3):
        shading.direction[k] = wp.float32(direction[k])
        shading.gain[k] = wp.float32(gain[k])
        mixed = (_ONE - share) * own_colour[k] + share * _WHITE * another[k]
        shading.colour[k] = wp.uint8(wp.rint(mixed))
    shading.background = 0
    stale[scene] = wp.uint8(0)
    if not plain(params, usual, scene):
        shading.background = scene + 1
        stale[scene] = wp.uint8(1)
    shadings[scene] = shading


@wp.kernel
def place_backgrounds(
    rows: wp.array(dtype=wp.int32),
    stale: wp.array(dtype=wp.uint8),
    params: wp.array2d(dtype=wp.float64),
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
    """Say for ``kernels.draw_backgrounds`` how scenes ``(B,)`` see a stale table and floor.

    Their triangles ``(T,)`` have ``corners`` in the world and ``uv`` in their texture.
    """
    scene = wp.tid()
    row = rows[scene]
    if row < 0:
        return
    if stale[row] == wp.uint8(0):
        return
    screen = screens[row]
    direction = directed(light, params, row)
    gain = light_gain(params, row)
    tint = three(params, row, _TINT)
    shift = grain * wp.vec2d(params[row, _SHIFT], params[row, _SHIFT + 1])
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
def place_objects(
    rows: wp.array(dtype=wp.int32),
    objects: wp.array(dtype=wp.vec2d),
    resting: wp.array(dtype=wp.mat44d),
    bodies: wp.array2d(dtype=wp.mat44d),
    present: wp.array(dtype=wp.uint8),
):
    """Pose objects ``(B,)`` at rest; NaN: there is none. ``resting`` are poses at the origin."""
    scene = wp.tid()
    if rows[scene] < 0:
        return
    place = objects[scene]
    present[scene] = wp.uint8(0)
    if wp.isnan(place[0]):
        return
    present[scene] = wp.uint8(1)
    pose = resting[rows[scene]]
    pose[0, 3] = place[0]
    pose[1, 3] = place[1]
    bodies[scene, _OBJECT] = pose


@wp.kernel
def look(
    rows: wp.array(dtype=wp.int32),
    bodies: wp.array2d(dtype=wp.mat44d),
    present: wp.array(dtype=wp.uint8),
    params: wp.array2d(dtype=wp.float64),
    steps: wp.array(dtype=wp.int64),
    screens: wp.array(dtype=wp.mat44d),
    standing: wp.array(dtype=wp.vec3d),
    sizes: wp.array(dtype=wp.float64),
    boxes: wp.array2d(dtype=wp.vec4d),
    right: wp.float64,
    bottom: wp.float64,
    matrices: wp.array2d(dtype=wp.mat44),
    rotations: wp.array2d(dtype=wp.mat33),
    eyes: wp.array2d(dtype=wp.vec3),
    seen: wp.array2d(dtype=wp.uint8),
    noise: wp.array2d(dtype=wp.int32),
):
    """Say for each body ``(B, 14)`` where it is on the screen, and whether it may be seen.

    ``boxes`` are the corners ``(14, 8)`` of the bodies' bounding boxes. ``noise`` ``(B, 2)`` is
    where in the table the image's noise begins, and its strength.
    """
    scene, body = wp.tid()
    row = rows[scene]
    seen[scene, body] = wp.uint8(0)
    if body == 0:
        noise[scene, 1] = 0
        if row >= 0:
            noise[scene, 1] = int(wp.rint(_STEPS * params[row, _NOISE]))
            start = wp.int64(wp.float64(_STARTS) * params[row, _NOISE_AT]) + _NEXT * steps[row]
            noise[scene, 0] = int(start % wp.int64(_STARTS))
    if row < 0 or (body == _OBJECT and present[scene] == wp.uint8(0)):
        return
    pose = bodies[scene, body]
    size = wp.float64(1.0)
    if body == _OBJECT:
        size = sizes[row]
    # Where the body has the camera: a rotation's inverse is its transpose.
    away = standing[row] - column(pose, 3)
    for i in range(3):
        eyes[scene, body][i] = wp.float32(wp.dot(column(pose, i), away) / size)
    for i in range(3):
        for j in range(3):
            rotations[scene, body][i, j] = wp.float32(pose[i, j])
            pose[i, j] = pose[i, j] * size
    matrix = screens[row] * pose
    for i in range(4):
        for j in range(4):
            matrices[scene, body][i, j] = wp.float32(matrix[i, j])
    # All corners beyond one edge of the image, or nearer than the camera sees: out of view.
    left_of = int(0)
    right_of = int(0)
    above = int(0)
    below = int(0)
    near = int(0)
    for i in range(8):
        p = matrix * boxes[body, i]
        if p[0] >= _ZERO:
            left_of = 1
        if p[0] <= right * p[3]:
            right_of = 1
        if p[1] >= _ZERO:
            above = 1
        if p[1] <= bottom * p[3]:
            below = 1
        if p[3] >= _NEAR:
            near = 1
    seen[scene, body] = wp.uint8(left_of * right_of * above * below * near)


@wp.kernel
def add_noise(
    table: wp.array(dtype=wp.int16),
    noise: wp.array2d(dtype=wp.int32),
    image: wp.array3d(dtype=wp.vec3ub),
):
    """Add the sensor's noise, see ``look``, to images ``(B, H, W)``."""
    scene, row, column = wp.tid()
    times = noise[scene, 1]
    if times == 0:
        return
    at = noise[scene, 0] + 3 * (row * image.shape[2] + column)
    colour = image[scene, row, column]
    for k in range(3):
        level = int(colour[k]) + ((int(table[at + k]) * times + _ROUNDED) >> _SHIFTED)
        colour[k] = wp.uint8(wp.clamp(level, 0, 255))
    image[scene, row, column] = colour
