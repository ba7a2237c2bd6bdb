"""Warp kernels that place bodies before the camera, and let scenes differ in what it sees.

They run on a processor and on CUDA, in double precision, one scene on each thread.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors
# Numbers that change in a loop: Warp takes them as constants without int().
# ruff: noqa: UP018, RUF046

import numpy as np
import warp as wp

from vinoreward_envs import constants as c
from vinoreward_envs.arm_kernels import column
from vinoreward_envs.camera.baked import AMBIENT, DIFFUSE, OBJECT_LINK, SPECULAR
from vinoreward_envs.camera.kernels import Appearances, Bodies, Shading
from vinoreward_envs.camera.spec import LIGHT, camera_eye, view_matrix
from vinoreward_envs.objects import object_rest_pose
from vinoreward_envs.randomization import COLUMNS, NEXT_NOISE, NOISE_STARTS, NOISE_STEPS

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
_NOISE = _column("sensor_noise")
_NOISE_AT = _column("image_noise_at")

# The scene as it is where nothing differs.
_VIEW = wp.constant(wp.mat44d(*view_matrix().ravel()))
_EYE = wp.constant(wp.vec3d(*camera_eye()))
_FROM = wp.constant(wp.vec3d(*(np.array(LIGHT) / np.linalg.norm(LIGHT))))
_LYING = wp.constant(wp.mat44d(*object_rest_pose((0.0, 0.0)).ravel()))
_RISE = wp.constant(wp.float64(c.OBJECT_REST_HEIGHT - c.TABLE_TOP))
_BLUE = wp.constant(wp.vec3d(*map(float, c.OBJECT_COLOUR)))
_AMBIENT, _DIFFUSE, _SPECULAR, _NEAR = (
    wp.constant(wp.float64(value)) for value in (AMBIENT, DIFFUSE, SPECULAR, c.CAMERA_NEAR)
)

_RADIANS = wp.constant(wp.float64(3.141592653589793 / 180.0))
_ZERO = wp.constant(wp.float64(0.0))
_ONE = wp.constant(wp.float64(1.0))
_TWO = wp.constant(wp.float64(2.0))
_WHITE = wp.constant(wp.float64(255.0))

_OBJECT = wp.constant(OBJECT_LINK)
_STARTS = wp.constant(NOISE_STARTS)
_NEXT = wp.constant(wp.int64(NEXT_NOISE))
_STEPS = wp.constant(wp.float64(NOISE_STEPS))


@wp.struct
class Table:
    """Triangles ``(T,)`` of table and floor in the world, and their textures."""

    corners: wp.array2d(dtype=wp.vec4d)
    normals: wp.array(dtype=wp.vec3d)
    uv: wp.array2d(dtype=wp.vec2d)
    on_table: wp.array(dtype=wp.uint8)
    grain: wp.mat22d
    floor_texture: wp.array2d(dtype=wp.vec3ub)
    table_texture: wp.array2d(dtype=wp.vec3ub)


@wp.struct
class Backdrop:
    """How each scene ``(B,)`` sees the triangles of :class:`Table`."""

    order: wp.array2d(dtype=wp.int32)
    """``(B, T + 1)`` triangles that may be seen, the nearest first, then -1."""
    weights: wp.array2d(dtype=wp.mat33)
    """Times (column, row, 1): a triangle's three corner weights over the distance."""
    texels: wp.array2d(dtype=wp.mat33)
    """Times these: the place in the texture over the distance."""
    gains: wp.array2d(dtype=wp.vec3)
    """Factors of red, green and blue."""


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
def directed(params: wp.array2d(dtype=wp.float64), scene: int) -> wp.vec3d:
    """Return the light's direction as a scene has it."""
    turn = params[scene, _LIGHT_DIRECTION]
    lowered = params[scene, _LIGHT_DIRECTION + 1]
    if turn == _ZERO and lowered == _ZERO:
        return _FROM
    azimuth = wp.atan2(_FROM[1], _FROM[0]) + turn * _RADIANS
    height = wp.asin(_FROM[2]) - lowered * _RADIANS
    flat = wp.cos(height)
    return wp.vec3d(flat * wp.cos(azimuth), flat * wp.sin(azimuth), wp.sin(height))


@wp.func
def light_gain(params: wp.array2d(dtype=wp.float64), scene: int) -> wp.vec3d:
    """Return the factors of red, green and blue of a scene's light."""
    cast = params[scene, _CAST]
    return params[scene, _LIGHT] * wp.vec3d(_ONE + cast, _ONE, _ONE - cast)


@wp.func
def sides(p: wp.vec4d, scenes: Appearances) -> int:
    """Return a bit for each side of what the camera sees that a point is within: 31 for all."""
    right = wp.float64(scenes.backgrounds.shape[2] - 1)
    bottom = wp.float64(scenes.backgrounds.shape[1] - 1)
    within = int(0)
    if p[0] >= _ZERO:
        within += 1
    if p[0] <= right * p[3]:
        within += 2
    if p[1] >= _ZERO:
        within += 4
    if p[1] <= bottom * p[3]:
        within += 8
    if p[3] >= _NEAR:
        within += 16
    return within


@wp.kernel
def set_appearance(
    wanted: wp.array(dtype=wp.uint8),
    viewport: wp.mat44d,
    projection: wp.mat44d,
    scenes: Appearances,
):
    """Let scenes ``(N,)`` look as their parameters say where ``wanted``.

    ``viewport`` and ``projection`` are those of the image.
    """
    scene = wp.tid()
    params = scenes.params
    if wanted[scene] == wp.uint8(0):
        return
    axes = wp.mat33d()
    for i in range(3):
        for j in range(3):
            axes[i, j] = _VIEW[i, j]
    axes = turned(axes, 2, 0, params[scene, _ROTATION])
    axes = turned(axes, 1, 2, params[scene, _ROTATION + 1])
    axes = turned(axes, 0, 1, params[scene, _ROTATION + 2])
    place = _EYE + three(params, scene, _POSITION)
    away = axes * place
    seen_from = wp.identity(n=4, dtype=wp.float64)
    for i in range(3):
        for j in range(3):
            seen_from[i, j] = axes[i, j]
        seen_from[i, 3] = -away[i]
    through = projection
    scale = _ONE / wp.tan(params[scene, _FIELD] * _RADIANS / _TWO)
    through[0, 0] = scale * projection[0, 0] / projection[1, 1]
    through[1, 1] = scale
    scenes.screens[scene] = viewport * (through * seen_from)
    scenes.standing[scene] = place

    size = params[scene, _SIZE]
    cos = wp.cos(params[scene, _YAW] * _RADIANS)
    sin = wp.sin(params[scene, _YAW] * _RADIANS)
    pose = wp.identity(n=4, dtype=wp.float64)
    for k in range(3):
        pose[0, k] = cos * _LYING[0, k] - sin * _LYING[1, k]
        pose[1, k] = sin * _LYING[0, k] + cos * _LYING[1, k]
        pose[2, k] = _LYING[2, k]
    pose[2, 3] = _LYING[2, 3] + (size - _ONE) * _RISE
    scenes.resting[scene] = pose
    scenes.sizes[scene] = size

    shading = Shading()
    direction = directed(params, scene)
    gain = light_gain(params, scene)
    share = params[scene, _COLOUR]
    another = three(params, scene, _ANOTHER)
    for k in range(3):
        shading.direction[k] = wp.float32(direction[k])
        shading.gain[k] = wp.float32(gain[k])
        mixed = (_ONE - share) * _BLUE[k] + share * _WHITE * another[k]
        shading.colour[k] = wp.uint8(wp.rint(mixed))
    scenes.shadings[scene] = shading
    scenes.stale[scene] = wp.uint8(1)


@wp.kernel
def place_backgrounds(
    rows: wp.array(dtype=wp.int32), scenes: Appearances, table: Table, backdrop: Backdrop
):
    """Find how scenes ``(B,)`` see a stale table and floor."""
    scene = wp.tid()
    row = rows[scene]
    if row < 0:
        return
    if scenes.stale[row] == wp.uint8(0):
        return
    params = scenes.params
    screen = scenes.screens[row]
    direction = directed(params, row)
    gain = light_gain(params, row)
    tint = three(params, row, _TINT)
    shift = table.grain * wp.vec2d(params[row, _SHIFT], params[row, _SHIFT + 1])
    many = int(0)
    for t in range(table.corners.shape[0]):
        p = screen * table.corners[t, 0]
        q = screen * table.corners[t, 1]
        r = screen * table.corners[t, 2]
        a = wp.vec3d(p[0], p[1], p[3])
        b = wp.vec3d(q[0], q[1], q[3])
        d = wp.vec3d(r[0], r[1], r[3])
        of_a = wp.cross(b, d)
        of_b = wp.cross(d, a)
        of_d = wp.cross(a, b)
        area = wp.dot(of_a, a)
        # Rows count downwards: what is seen from its front has a negative area.
        if area < _ZERO and (sides(p, scenes) | sides(q, scenes) | sides(r, scenes)) == 31:
            backdrop.order[scene, many] = t
            many += 1
            normal = table.normals[t]
            facing = wp.dot(direction, normal)
            mirrored = wp.max(_TWO * facing * normal[2] - direction[2], _ZERO)
            bright = _AMBIENT + _DIFFUSE * wp.max(facing, _ZERO)
            bright += _SPECULAR * mirrored * mirrored
            for k in range(3):
                backdrop.weights[scene, t][0, k] = wp.float32(of_a[k] / area)
                backdrop.weights[scene, t][1, k] = wp.float32(of_b[k] / area)
                backdrop.weights[scene, t][2, k] = wp.float32(of_d[k] / area)
                backdrop.gains[scene, t][k] = wp.float32(bright * (gain[k] * (_ONE + tint[k])))
                for i in range(2):
                    place = table.uv[t, k][i]
                    if table.on_table[t] != wp.uint8(0):
                        place -= shift[i]
                    backdrop.texels[scene, t][i, k] = wp.float32(place)
    backdrop.order[scene, many] = -1


_DRAW_ROW = """
    // A processor looks up many pixels' texels at once, also for hidden ones, as that loop can be
    // vectorised; CUDA for one, whose neighbours have threads of their own.
#ifdef __clang__
    const int together = 64;
#else
    const int together = 1;
#endif
    const int width = scenes.backgrounds.shape[2], most = backdrop.order.shape[1];
    const size_t first_of_row = ((size_t)target * scenes.backgrounds.shape[1] + row) * width;
    wp::vec3ub* colours = scenes.backgrounds.data + first_of_row;
    float* nearest = scenes.nearness.data + first_of_row;
    for (int column = 0; column < width; ++column) {
        colours[column] = wp::vec3ub(255, 255, 255);
        nearest[column] = 0.0f;
    }
    const float y = (float)row, right = (float)(width - 1);
    for (int k = 0; k < most; ++k) {
        const int t = wp::index(backdrop.order, scene, k);
        if (t < 0) break;
        const wp::mat33& weight = wp::index(backdrop.weights, scene, t);

        // Columns of this row that the triangle covers.
        float low = 0.0f, high = right, start[3], along[3];
        for (int edge = 0; edge < 3; ++edge) {
            const float slope = weight.data[edge][0];
            const float offset = weight.data[edge][1] * y + weight.data[edge][2];
            const float crossing = -offset / slope;
            if (slope > 0.0f) low = crossing > low ? crossing : low;
            else if (slope < 0.0f) high = crossing < high ? crossing : high;
            else if (offset < 0.0f) high = -1.0f;
            start[edge] = offset;
            along[edge] = slope;
        }
        if (!(low <= high)) continue;
        int from = (int)low, to = (int)high;
        from += (float)from < low;
        to -= (float)to > high;

        // At column x start + along * x is (u, v, 1) divided by the distance; (u, v) is the place
        // in the texture.
        const wp::mat33& corners = wp::index(backdrop.texels, scene, t);
        float place_0[2], place_1[2];
        for (int i = 0; i < 2; ++i) {
            const float* c = corners.data[i];
            place_0[i] = c[0] * start[0] + c[1] * start[1] + c[2] * start[2];
            place_1[i] = c[0] * along[0] + c[1] * along[1] + c[2] * along[2];
        }
        const float near_0 = start[0] + start[1] + start[2];
        const float near_1 = along[0] + along[1] + along[2];
        const float u_0 = place_0[0], u_1 = place_1[0], v_0 = place_0[1], v_1 = place_1[1];
        const wp::vec3 gain = wp::index(backdrop.gains, scene, t);
        const float red = gain[0], green = gain[1], blue = gain[2];
        // The texture repeats after 1; the table's, mirrored every other time, has no seams.
        const int mirrored = table.on_table.data[t] != 0;
        const auto& image = mirrored ? table.table_texture : table.floor_texture;
        const wp::vec3ub* texture = image.data;
        const int wide = image.shape[0], tall = image.shape[1];
#ifdef __clang__
        while (from <= to && !(near_0 + near_1 * (float)from > nearest[from])) ++from;
        while (from <= to && !(near_0 + near_1 * (float)to > nearest[to])) --to;
#endif
        for (int base = from; base <= to; base += together) {
            int texels_at[together];  // of hidden pixels -1
            const int count = to - base + 1 < together ? to - base + 1 : together;
#ifdef __clang__
            #pragma clang loop vectorize(assume_safety)
#endif
            for (int s = 0; s < count; ++s) {
                const float x = (float)(base + s);
                const float near = near_0 + near_1 * x;
                const bool seen = (near > nearest[base + s]) & (near > FARTHEST);
#ifndef __clang__
                texels_at[s] = -1;
                if (!seen) continue;
#endif
                const float over = seen ? near : 1.0f;
                float u = (u_0 + u_1 * x) / over, v = (v_0 + v_1 * x) / over;
                int u_times = (int)u, v_times = (int)v;
                u_times -= (float)u_times > u;
                v_times -= (float)v_times > v;
                u -= (float)u_times;
                v -= (float)v_times;
                u = mirrored & u_times & 1 ? 1.0f - u : u;
                v = mirrored & v_times & 1 ? 1.0f - v : v;
                int i = (int)(v * (float)tall), j = (int)(u * (float)wide);
                i = i < tall - 1 ? i : tall - 1;
                j = j < wide - 1 ? j : wide - 1;
                i = i > 0 ? i : 0;
                j = j > 0 ? j : 0;
                // v points up.
                texels_at[s] = seen ? j * tall + tall - 1 - i : -1;
                nearest[base + s] = seen ? near : nearest[base + s];
            }
            for (int s = 0; s < count; ++s) {
                if (texels_at[s] < 0) continue;
                const wp::vec3ub texel = texture[texels_at[s]];
                const float r = (float)texel.c[0] * red, g = (float)texel.c[1] * green;
                const float b = (float)texel.c[2] * blue;
                colours[base + s] = wp::vec3ub(
                    (wp::uint8)(r < 255.0f ? r : 255.0f), (wp::uint8)(g < 255.0f ? g : 255.0f),
                    (wp::uint8)(b < 255.0f ? b : 255.0f));
            }
        }
    }
""".replace("FARTHEST", f"{1.0 / c.CAMERA_FAR}f")


@wp.func_native(_DRAW_ROW)
def draw_row(
    scene: int, target: int, row: int, table: Table, backdrop: Backdrop, scenes: Appearances
):
    """Draw a row of a background, white without triangles. In C++, which compilers vectorise."""


@wp.kernel
def draw_backgrounds(
    rows: wp.array(dtype=wp.int32), scenes: Appearances, table: Table, backdrop: Backdrop
):
    """Draw rows of pixels ``(B, H)`` of the table and floor of scenes where they are stale."""
    scene, row = wp.tid()
    target = rows[scene]
    if target < 0:
        return
    if scenes.stale[target] == wp.uint8(0):
        return
    draw_row(scene, target, row, table, backdrop, scenes)


@wp.kernel
def place_objects(objects: wp.array(dtype=wp.vec2d), bodies: Bodies, scenes: Appearances):
    """Pose objects ``(B,)`` at rest; NaN: there is none."""
    scene = wp.tid()
    if bodies.rows[scene] < 0:
        return
    place = objects[scene]
    bodies.present[scene] = wp.uint8(0)
    if wp.isnan(place[0]):
        return
    bodies.present[scene] = wp.uint8(1)
    pose = scenes.resting[bodies.rows[scene]]
    pose[0, 3] = place[0]
    pose[1, 3] = place[1]
    bodies.poses[scene, _OBJECT] = pose


@wp.kernel
def project_bodies(bodies: Bodies, scenes: Appearances, boxes: wp.array2d(dtype=wp.vec4d)):
    """Find where each body ``(B, 14)`` is on the screen, and whether it may be seen.

    ``boxes`` are the corners ``(14, 8)`` of the bodies' bounding boxes.
    """
    scene, body = wp.tid()
    row = bodies.rows[scene]
    bodies.seen[scene, body] = wp.uint8(0)
    if body == 0:
        bodies.noise[scene, 1] = 0
        if row >= 0:
            scenes.stale[row] = wp.uint8(0)  # the background was drawn before
            bodies.noise[scene, 1] = int(wp.rint(_STEPS * scenes.params[row, _NOISE]))
            start = wp.int64(wp.float64(_STARTS) * scenes.params[row, _NOISE_AT])
            start += _NEXT * scenes.steps[row]
            bodies.noise[scene, 0] = int(start % wp.int64(_STARTS))
    if row < 0 or (body == _OBJECT and bodies.present[scene] == wp.uint8(0)):
        return
    pose = bodies.poses[scene, body]
    size = wp.float64(1.0)
    if body == _OBJECT:
        size = scenes.sizes[row]
    # Where the body has the camera: a rotation's inverse is its transpose.
    away = scenes.standing[row] - column(pose, 3)
    for i in range(3):
        bodies.eyes[scene, body][i] = wp.float32(wp.dot(column(pose, i), away) / size)
    for i in range(3):
        for j in range(3):
            bodies.rotations[scene, body][i, j] = wp.float32(pose[i, j])
            pose[i, j] = pose[i, j] * size
    matrix = scenes.screens[row] * pose
    for i in range(4):
        for j in range(4):
            bodies.matrices[scene, body][i, j] = wp.float32(matrix[i, j])
    # All corners beyond one edge of the image, or nearer than the camera sees: out of view.
    within = int(0)
    for i in range(8):
        within = within | sides(matrix * boxes[body, i], scenes)
    if within == 31:
        bodies.seen[scene, body] = wp.uint8(1)
