"""The fast camera on a processor: one thread draws scene after scene.

It draws what :mod:`vinoreward_envs.camera.kernels` draws, pixel for pixel, and skips bodies out of
view and triangles that face away. The loops over vertices, triangles and pixels are C++ on
structures of arrays, which compilers vectorise; they do not vectorise the loops that Warp
generates. Both modules share the shading function.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors

import warp as wp

from vinoreward_envs.camera.kernels import Shading, shaded
from vinoreward_envs.camera.noise import NOISE_ROUNDED, NOISE_SHIFTED

wp.set_module_options({"enable_backward": False})

BESIDE = 8
"""Pixels of a row that are tested at once; ``depth`` and ``winners`` have as many more columns."""

_COPY = """
    const size_t pixels = (size_t)images.shape[1] * images.shape[2];
    memcpy(images.data + scene * pixels, backgrounds.data + background * pixels, 3 * pixels);
"""

_ADD_NOISE = """
    const size_t pixels = (size_t)images.shape[1] * images.shape[2];
    wp::uint8* grey = (wp::uint8*)(images.data + scene * pixels);
    const wp::int16* normal = normals.data + start;
    const wp::int16 strength = (wp::int16)times;
    #pragma clang loop vectorize(assume_safety)
    for (size_t i = 0; i < 3 * pixels; ++i) {
        // Products of up to 128 and 200 fit in 16 bits.
        const wp::int16 noise = (wp::int16)(normal[i] * strength + ROUNDED);
        wp::int16 level = (wp::int16)(grey[i] + (noise >> SHIFTED));
        level = level < 255 ? level : (wp::int16)255;
        grey[i] = (wp::uint8)(level > 0 ? level : 0);
    }
""".replace("ROUNDED", str(NOISE_ROUNDED)).replace("SHIFTED", str(NOISE_SHIFTED))

_TRANSFORM = """
    const float* x = positions.data;
    const float* y = x + positions.shape[1];
    const float* z = y + positions.shape[1];
    float* columns = screen.data;
    float* rows = columns + screen.shape[1];
    float* nearness = rows + screen.shape[1];
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
    const int triangles = faces.shape[1], vertices = screen.shape[1], stride = depth.shape[1];
    const int *corner_a = faces.data, *corner_b = corner_a + triangles;
    const int* corner_c = corner_b + triangles;
    const float *columns = screen.data, *rows = columns + vertices, *nearness = rows + vertices;
    const float *nx = planes.data, *ny = nx + triangles, *nz = ny + triangles;
    const float* offset = nz + triangles;
    int *order = boxes.data, *left = order + triangles, *right = left + triangles;
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
                float* nearest = depth.data + row * stride + column;
                int* winner = winners.data + row * stride + column;
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


@wp.func_native(_COPY)
def copy_background(
    backgrounds: wp.array3d(dtype=wp.vec3ub),
    background: int,
    scene: int,
    images: wp.array3d(dtype=wp.vec3ub),
):
    """Let a scene's image be its table and floor."""


@wp.func_native(_ADD_NOISE)
def add_noise(
    normals: wp.array(dtype=wp.int16),
    start: int,
    times: int,
    scene: int,
    images: wp.array3d(dtype=wp.vec3ub),
):
    """Add the sensor's noise to a scene's image, see ``look``."""


@wp.func_native(_TRANSFORM)
def transform(
    positions: wp.array2d(dtype=float),
    m: wp.mat44,
    near: float,
    first: int,
    last: int,
    screen: wp.array2d(dtype=float),
):
    """Bring a body's vertices to columns, rows and nearness ``(3, V)``; 0: too close."""


@wp.func_native(_FILL)
def fill(
    faces: wp.array2d(dtype=wp.int32),
    planes: wp.array2d(dtype=float),
    eye: wp.vec3,
    first: int,
    last: int,
    height: int,
    width: int,
    screen: wp.array2d(dtype=float),
    boxes: wp.array2d(dtype=wp.int32),
    depth: wp.array2d(dtype=float),
    winners: wp.array2d(dtype=wp.int32),
):
    """Keep for each pixel a body's nearest triangle, as its index + 1, and its nearness.

    Of equally near triangles the last wins. ``boxes`` ``(5, T)`` is scratch memory.
    """


@wp.func
def corner(screen: wp.array2d(dtype=float), i: int) -> wp.vec3:
    """Return column, row and nearness of a vertex."""
    return wp.vec3(screen[0, i], screen[1, i], screen[2, i])


@wp.kernel
def draw_scenes(
    positions: wp.array2d(dtype=float),
    ranges: wp.array(dtype=wp.vec4i),
    faces: wp.array2d(dtype=wp.int32),
    planes: wp.array2d(dtype=float),
    normal_faces: wp.array(dtype=wp.vec3i),
    face_links: wp.array(dtype=wp.uint8),
    normals: wp.array(dtype=wp.vec3),
    colours: wp.array(dtype=wp.vec3ub),
    screen_from_link: wp.array2d(dtype=wp.mat44),
    rotations: wp.array2d(dtype=wp.mat33),
    eyes: wp.array2d(dtype=wp.vec3),
    seen: wp.array2d(dtype=wp.uint8),
    near: float,
    rows: wp.array(dtype=wp.int32),
    shadings: wp.array(dtype=Shading),
    strength: wp.vec3,
    backgrounds: wp.array3d(dtype=wp.vec3ub),
    nearness: wp.array3d(dtype=float),
    screen: wp.array2d(dtype=float),
    boxes: wp.array2d(dtype=wp.int32),
    depth: wp.array2d(dtype=float),
    winners: wp.array2d(dtype=wp.int32),
    noise: wp.array2d(dtype=wp.int32),
    normals_of_noise: wp.array(dtype=wp.int16),
    image: wp.array3d(dtype=wp.vec3ub),
):
    """Draw scenes ``(B,)``; ``screen``, ``boxes``, ``depth`` and ``winners`` are of one scene.

    ``noise`` ``(B, 2)`` says where an image's noise begins, and its strength.
    """
    scene = wp.tid()
    shading = shadings[wp.max(rows[scene], 0)]
    height = backgrounds.shape[1]
    width = backgrounds.shape[2]
    copy_background(backgrounds, shading.background, scene, image)
    for link in range(ranges.shape[0]):
        if seen[scene, link] != wp.uint8(0):
            span = ranges[link]
            transform(positions, screen_from_link[scene, link], near, span[0], span[1], screen)
            fill(
                faces, planes, eyes[scene, link], span[2], span[3], height, width,
                screen, boxes, depth, winners,
            )  # fmt: skip
    for row in range(height):
        for column in range(width):
            won = winners[row, column]
            if won != 0:
                near_here = depth[row, column]
                winners[row, column] = 0
                depth[row, column] = 0.0
                if near_here >= nearness[shading.background, row, column]:
                    t = won - 1
                    corners = normal_faces[t]
                    link = int(face_links[t])
                    image[scene, row, column] = shaded(
                        row, column,
                        corner(screen, faces[0, t]), corner(screen, faces[1, t]),
                        corner(screen, faces[2, t]),
                        normals[corners[0]], normals[corners[1]], normals[corners[2]],
                        rotations[scene, link], shading, strength, link, colours[t],
                    )  # fmt: skip
    if noise[scene, 1] != 0:
        add_noise(normals_of_noise, noise[scene, 0], noise[scene, 1], scene, image)
