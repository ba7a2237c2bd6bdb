"""The fast camera on a processor: one thread draws scene after scene.

It draws what :mod:`vinoreward_envs.camera.kernels` draws, pixel for pixel, and skips bodies out of
view and triangles that face away. The loops over vertices, triangles and pixels are C++ on
structures of arrays, which compilers vectorise; they do not vectorise the loops that Warp
generates. Both modules share shading and noise.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors

import warp as wp

from vinoreward_envs import constants as c
from vinoreward_envs.camera.kernels import Appearances, Bodies, Mesh, add_noise, shaded

wp.set_module_options({"enable_backward": False})

_NEAR = wp.constant(c.CAMERA_NEAR)

BESIDE = 8
"""Pixels of a row that are tested at once; ``depth`` and ``winners`` have as many more columns."""

_COPY = """
    const size_t pixels = (size_t)images.shape[1] * images.shape[2];
    memcpy(images.data + scene * pixels, backgrounds.data + background * pixels, 3 * pixels);
"""

_TRANSFORM = """
    const float* x = mesh.positions.data;
    const float* y = x + mesh.positions.shape[1];
    const float* z = y + mesh.positions.shape[1];
    float* columns = mesh.screen.data;
    float* rows = columns + mesh.screen.shape[1];
    float* nearness = rows + mesh.screen.shape[1];
    #pragma clang loop vectorize(assume_safety)
    for (int i = first; i < last; ++i) {
        const float across = m.data[0][0] * x[i] + m.data[0][1] * y[i] + m.data[0][2] * z[i]
            + m.data[0][3];
        const float down = m.data[1][0] * x[i] + m.data[1][1] * y[i] + m.data[1][2] * z[i]
            + m.data[1][3];
        const float distance = m.data[3][0] * x[i] + m.data[3][1] * y[i] + m.data[3][2] * z[i]
            + m.data[3][3];
        const float n = distance < near ? 0.0f : 1.0f / distance;
        columns[i] = across * n;
        rows[i] = down * n;
        nearness[i] = n;
    }
"""

_FILL = """
    const int triangles = mesh.faces.shape[1], vertices = mesh.screen.shape[1];
    const int stride = mesh.depth.shape[1];
    const int *corner_a = mesh.faces.data, *corner_b = corner_a + triangles;
    const int* corner_c = corner_b + triangles;
    const float *columns = mesh.screen.data, *rows = columns + vertices;
    const float* nearness = rows + vertices;
    const float *nx = mesh.planes.data, *ny = nx + triangles, *nz = ny + triangles;
    const float* offset = nz + triangles;
    int *order = mesh.boxes.data, *left = order + triangles, *right = left + triangles;
    int *top = right + triangles, *bottom = top + triangles;

    // Which face the camera. 0.1 mm or more behind its plane a camera sees a triangle's back;
    // rounding errors are smaller.
    const float ex = eye[0], ey = eye[1], ez = eye[2];
    #pragma clang loop vectorize(assume_safety)
    for (int t = first; t < last; ++t)
        bottom[t] = nx[t] * ex + ny[t] * ey + nz[t] * ez - offset[t] > -1.0e-4f;
    int facing = 0;
    for (int t = first; t < last; ++t) {
        order[facing] = t;
        facing += bottom[t];
    }

    // The pixels around each of them; none where it is not drawn.
    #pragma clang loop vectorize(assume_safety)
    for (int k = 0; k < facing; ++k) {
        const int t = order[k];
        const int i = corner_a[t], j = corner_b[t], l = corner_c[t];
        const float ax = columns[i], bx = columns[j], cx = columns[l];
        const float ay = rows[i], by = rows[j], cy = rows[l];
        float low = ax < bx ? ax : bx, high = ax < bx ? bx : ax;
        low = cx < low ? cx : low;
        high = cx < high ? high : cx;
        int from = (int)low, to = (int)high;
        from += (float)from < low;
        to -= (float)to > high;
        left[k] = from > 0 ? from : 0;
        right[k] = to < width - 1 ? to : width - 1;
        low = ay < by ? ay : by, high = ay < by ? by : ay;
        low = cy < low ? cy : low;
        high = cy < high ? high : cy;
        from = (int)low, to = (int)high;
        from += (float)from < low;
        to -= (float)to > high;
        // Rows count downwards, so a triangle seen from outside has a negative area here.
        const float area = (cx - ax) * (by - ay) - (bx - ax) * (cy - ay);
        const bool drawn = (area > 0.01f) & (nearness[i] != 0.0f) & (nearness[j] != 0.0f)
            & (nearness[l] != 0.0f) & (left[k] <= right[k]);
        to = to < height - 1 ? to : height - 1;
        top[k] = from > 0 ? from : 0;
        bottom[k] = drawn ? to : -1;
    }
    int drawn = 0;
    for (int k = 0; k < facing; ++k) {
        order[drawn] = order[k];
        left[drawn] = left[k];
        right[drawn] = right[k];
        top[drawn] = top[k];
        bottom[drawn] = bottom[k];
        drawn += top[k] <= bottom[k];
    }

    for (int k = 0; k < drawn; ++k) {
        const int t = order[k];
        const int i = corner_a[t], j = corner_b[t], l = corner_c[t];
        const float ax = columns[i], bx = columns[j], cx = columns[l];
        const float ay = rows[i], by = rows[j], cy = rows[l];
        const float na = nearness[i], nb = nearness[j], nc = nearness[l];
        const float scale = 1.0f / ((cx - ax) * (by - ay) - (bx - ax) * (cy - ay));
        const int end = right[k];
        for (int row = top[k]; row <= bottom[k]; ++row) {
            const float ya = ay - (float)row, yb = by - (float)row, yc = cy - (float)row;
            for (int column = left[k]; column <= end; column += BESIDE) {
                float* nearest = mesh.depth.data + row * stride + column;
                int* winner = mesh.winners.data + row * stride + column;
                #pragma clang loop vectorize(assume_safety)
                for (int s = 0; s < BESIDE; ++s) {
                    const float x = (float)(column + s);
                    const float u = ((cx - x) * yb - (bx - x) * yc) * scale;
                    const float v = ((ax - x) * yc - (cx - x) * ya) * scale;
                    const float w = 1.0f - u - v;
                    float n = u * na + v * nb + w * nc;
                    n = n > 0.0f ? n : 0.0f;
                    const bool wins = (u >= 0.0f) & (v >= 0.0f) & (w >= 0.0f)
                        & (column + s <= end) & (n >= nearest[s]);
                    nearest[s] = wins ? n : nearest[s];
                    winner[s] = wins ? t + 1 : winner[s];
                }
            }
        }
    }
""".replace("BESIDE", str(BESIDE))


@wp.struct
class Columns:
    """The mesh with its coordinates in rows, as vectorised loops read them, and scratch memory."""

    positions: wp.array2d(dtype=float)
    ranges: wp.array(dtype=wp.vec4i)
    """``(14,)`` first vertex of each body and the one after its last, then its triangles."""
    faces: wp.array2d(dtype=wp.int32)
    planes: wp.array2d(dtype=float)
    """``(4, T)`` unit normal outwards, and its offset."""
    screen: wp.array2d(dtype=float)
    """``(3, V)`` columns, rows and nearness of the scene that is drawn; 0: too close."""
    boxes: wp.array2d(dtype=wp.int32)
    """``(5, T)`` triangles that are drawn, and the pixels around them."""
    depth: wp.array2d(dtype=float)
    """``(H, W + BESIDE)`` nearness of the nearest triangle."""
    winners: wp.array2d(dtype=wp.int32)
    """The same for its index + 1."""


@wp.func_native(_COPY)
def copy_background(
    backgrounds: wp.array3d(dtype=wp.vec3ub),
    background: int,
    scene: int,
    images: wp.array3d(dtype=wp.vec3ub),
):
    """Copy a background (table and floor) into a scene's image."""


@wp.func_native(_TRANSFORM)
def transform(mesh: Columns, m: wp.mat44, near: float, first: int, last: int):
    """Bring a body's vertices to the screen."""


@wp.func_native(_FILL)
def fill(mesh: Columns, eye: wp.vec3, first: int, last: int, height: int, width: int):
    """Keep for each pixel a body's nearest triangle; of equally near ones the last wins."""


@wp.func
def corner(screen: wp.array2d(dtype=float), i: int) -> wp.vec3:
    """Return column, row and nearness of a vertex."""
    return wp.vec3(screen[0, i], screen[1, i], screen[2, i])


@wp.kernel
def draw_scenes(
    columns: Columns,
    mesh: Mesh,
    bodies: Bodies,
    scenes: Appearances,
    noise: wp.array(dtype=wp.int16),
    image: wp.array3d(dtype=wp.vec3ub),
):
    """Draw scenes ``(B,)``."""
    scene = wp.tid()
    shown = wp.max(bodies.rows[scene], 0)
    shading = scenes.shadings[shown]
    height = image.shape[1]
    width = image.shape[2]
    copy_background(scenes.backgrounds, shown, scene, image)
    for link in range(columns.ranges.shape[0]):
        if bodies.seen[scene, link] != wp.uint8(0):
            span = columns.ranges[link]
            transform(columns, bodies.matrices[scene, link], _NEAR, span[0], span[1])
            fill(columns, bodies.eyes[scene, link], span[2], span[3], height, width)
    for row in range(height):
        for column in range(width):
            won = columns.winners[row, column]
            if won != 0:
                near_here = columns.depth[row, column]
                columns.winners[row, column] = 0
                columns.depth[row, column] = 0.0
                if near_here >= scenes.nearness[shown, row, column]:
                    t = won - 1
                    image[scene, row, column] = shaded(
                        row, column,
                        corner(columns.screen, columns.faces[0, t]),
                        corner(columns.screen, columns.faces[1, t]),
                        corner(columns.screen, columns.faces[2, t]),
                        t, mesh, bodies.rotations, scene, shading,
                    )  # fmt: skip
    times = bodies.noise[scene, 1]
    if times != 0:
        pixels = height * width
        add_noise(noise, bodies.noise[scene, 0], times, scene * pixels, pixels, image)
