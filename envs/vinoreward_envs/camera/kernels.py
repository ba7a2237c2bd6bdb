"""Warp kernels of the fast camera: transform vertices, fill triangles, shade pixels.

``B`` scenes over one shared mesh; one thread does one vertex, triangle or pixel, as is best on
CUDA. A processor draws the same images by :mod:`vinoreward_envs.camera.one_thread`. Table and
floor, where they vary, are drawn here on both: one thread does one row. The rules are
TinyRenderer's: sample at integer pixel corners, no back faces, no triangle below 0.005 square
pixels, smooth normals, perspective-correct weights.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors

import warp as wp

wp.set_module_options({"enable_backward": False})

_ID_BITS = wp.constant(wp.uint64(32))
_ID_MASK = wp.constant(wp.uint64(0xFFFFFFFF))
_OBJECT = wp.constant(13)
"""The body whose colour differs between scenes."""
_MIN_DOUBLE_AREA = wp.constant(0.01)


@wp.struct
class Shading:
    """Light and colours of one scene, and which background it has."""

    direction: wp.vec3
    gain: wp.vec3
    colour: wp.vec3ub
    background: wp.int32


@wp.func
def above(x: float) -> int:
    """Return the least whole number that is not below ``x``; cheaper than a call of ceil."""
    i = int(x)
    if float(i) < x:
        i += 1
    return i


@wp.func
def below(x: float) -> int:
    """Return the greatest whole number that is not above ``x``."""
    i = int(x)
    if float(i) > x:
        i -= 1
    return i


@wp.func
def bits(nearness: float) -> wp.uint64:
    """Return the bits of a number of at least 0 as an integer; integers have the same order."""
    return wp.uint64(wp.cast(nearness, wp.uint32))


@wp.func
def lit(colour: wp.vec3ub, gain: wp.vec3) -> wp.vec3ub:
    """Return a colour times a gain for each of red, green and blue."""
    return wp.vec3ub(
        wp.uint8(wp.min(float(colour[0]) * gain[0], 255.0)),
        wp.uint8(wp.min(float(colour[1]) * gain[1], 255.0)),
        wp.uint8(wp.min(float(colour[2]) * gain[2], 255.0)),
    )


@wp.func
def behind(won: wp.uint64, nearness: float) -> bool:
    """Return whether a pixel's nearest triangle, if any, is behind the background there."""
    return won == wp.uint64(0) or (won >> _ID_BITS) < bits(nearness)


@wp.func
def shaded(
    row: int,
    column: int,
    a: wp.vec3,
    b: wp.vec3,
    c: wp.vec3,
    normal_a: wp.vec3,
    normal_b: wp.vec3,
    normal_c: wp.vec3,
    rotation: wp.mat33,
    shading: Shading,
    strength: wp.vec3,
    link: int,
    own_colour: wp.vec3ub,
) -> wp.vec3ub:
    """Return the colour of a pixel of a triangle with these corners and normals."""
    x = float(column)
    y = float(row)
    u = ((c[0] - x) * (b[1] - y) - (b[0] - x) * (c[1] - y)) * a[2]
    v = ((a[0] - x) * (c[1] - y) - (c[0] - x) * (a[1] - y)) * b[2]
    w = ((b[0] - x) * (a[1] - y) - (a[0] - x) * (b[1] - y)) * c[2]
    normal = wp.normalize(rotation * (u * normal_a + v * normal_b + w * normal_c))
    facing = wp.dot(normal, shading.direction)
    mirrored = wp.max(2.0 * facing * normal[2] - shading.direction[2], 0.0)
    brightness = strength[0] + strength[1] * wp.max(facing, 0.0) + strength[2] * mirrored * mirrored
    colour = own_colour
    if link == _OBJECT:
        colour = shading.colour
    return lit(colour, brightness * shading.gain)


@wp.kernel
def transform_vertices(
    positions: wp.array(dtype=wp.vec3),
    links: wp.array(dtype=wp.uint8),
    screen_from_link: wp.array2d(dtype=wp.mat44),
    seen: wp.array2d(dtype=wp.uint8),
    near: float,
    screen: wp.array2d(dtype=wp.vec3),
):
    """Bring vertices ``(V,)`` to column, row and nearness ``(B, V)``; 0 nearness: too close."""
    scene, i = wp.tid()
    link = int(links[i])
    if seen[scene, link] == wp.uint8(0):
        return
    p = positions[i]
    h = screen_from_link[scene, link] * wp.vec4(p[0], p[1], p[2], 1.0)
    screen[scene, i] = wp.vec3(0.0, 0.0, 0.0)
    if h[3] >= near:
        nearness = 1.0 / h[3]
        screen[scene, i] = wp.vec3(h[0] * nearness, h[1] * nearness, nearness)


@wp.kernel
def fill_triangles(
    faces: wp.array(dtype=wp.vec3i),
    face_links: wp.array(dtype=wp.uint8),
    seen: wp.array2d(dtype=wp.uint8),
    screen: wp.array2d(dtype=wp.vec3),
    height: int,
    width: int,
    depth: wp.array3d(dtype=wp.uint64),
):
    """Keep, for each pixel ``(B, H, W)``, the nearest triangle: nearness above, index + 1 below."""
    scene, t = wp.tid()
    if seen[scene, int(face_links[t])] == wp.uint8(0):
        return
    face = faces[t]
    a = screen[scene, face[0]]
    b = screen[scene, face[1]]
    c = screen[scene, face[2]]
    # Rows count downwards, so a triangle seen from outside has a negative area here.
    area = (c[0] - a[0]) * (b[1] - a[1]) - (b[0] - a[0]) * (c[1] - a[1])
    if area <= _MIN_DOUBLE_AREA:
        return
    if a[2] == 0.0 or b[2] == 0.0 or c[2] == 0.0:
        return
    left = wp.max(above(wp.min(a[0], wp.min(b[0], c[0]))), 0)
    right = wp.min(below(wp.max(a[0], wp.max(b[0], c[0]))), width - 1)
    top = wp.max(above(wp.min(a[1], wp.min(b[1], c[1]))), 0)
    bottom = wp.min(below(wp.max(a[1], wp.max(b[1], c[1]))), height - 1)
    if left > right or top > bottom:
        return
    scale = 1.0 / area
    for row in range(top, bottom + 1):
        y = float(row)
        for column in range(left, right + 1):
            x = float(column)
            u = ((c[0] - x) * (b[1] - y) - (b[0] - x) * (c[1] - y)) * scale
            v = ((a[0] - x) * (c[1] - y) - (c[0] - x) * (a[1] - y)) * scale
            w = 1.0 - u - v
            nearness = wp.max(u * a[2] + v * b[2] + w * c[2], 0.0)
            if wp.min(u, wp.min(v, w)) >= 0.0:
                found = (bits(nearness) << _ID_BITS) | wp.uint64(t + 1)
                wp.atomic_max(depth, scene, row, column, found)


@wp.kernel
def shade_pixels(
    faces: wp.array(dtype=wp.vec3i),
    normal_faces: wp.array(dtype=wp.vec3i),
    face_links: wp.array(dtype=wp.uint8),
    normals: wp.array(dtype=wp.vec3),
    colours: wp.array(dtype=wp.vec3ub),
    rotations: wp.array2d(dtype=wp.mat33),
    screen: wp.array2d(dtype=wp.vec3),
    rows: wp.array(dtype=wp.int32),
    shadings: wp.array(dtype=Shading),
    strength: wp.vec3,
    backgrounds: wp.array3d(dtype=wp.vec3ub),
    nearness: wp.array3d(dtype=float),
    depth: wp.array3d(dtype=wp.uint64),
    image: wp.array3d(dtype=wp.vec3ub),
):
    """Colour each pixel ``(B, H, W)`` and make its depth ready for the next image."""
    scene, row, column = wp.tid()
    shading = shadings[wp.max(rows[scene], 0)]
    background = shading.background
    won = depth[scene, row, column]
    depth[scene, row, column] = wp.uint64(0)
    if behind(won, nearness[background, row, column]):
        image[scene, row, column] = backgrounds[background, row, column]
        return
    t = int(won & _ID_MASK) - 1
    face = faces[t]
    corners = normal_faces[t]
    link = int(face_links[t])
    image[scene, row, column] = shaded(
        row, column,
        screen[scene, face[0]], screen[scene, face[1]], screen[scene, face[2]],
        normals[corners[0]], normals[corners[1]], normals[corners[2]],
        rotations[scene, link], shading, strength, link, colours[t],
    )  # fmt: skip


_DRAW_ROW = """
    // A processor looks for many pixels' texels at once, also for hidden ones, as that loop can be
    // vectorised; CUDA for one, whose neighbours have threads of their own.
#ifdef __clang__
    const int together = 64;
#else
    const int together = 1;
#endif
    const int width = backgrounds.shape[2], most = order.shape[1];
    const size_t first_of_row = ((size_t)target * backgrounds.shape[1] + row) * width;
    wp::vec3ub* colours = backgrounds.data + first_of_row;
    float* nearest = nearness.data + first_of_row;
    for (int column = 0; column < width; ++column) {
        colours[column] = wp::vec3ub(255, 255, 255);
        nearest[column] = 0.0f;
    }
    const float y = (float)row, right = (float)(width - 1);
    for (int k = 0; k < most; ++k) {
        const int t = wp::index(order, scene, k);
        if (t < 0) break;
        const wp::mat33& weight = wp::index(weights, scene, t);

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
        const wp::mat33& corners = wp::index(texels, scene, t);
        float place_0[2], place_1[2];
        for (int i = 0; i < 2; ++i) {
            const float* c = corners.data[i];
            place_0[i] = c[0] * start[0] + c[1] * start[1] + c[2] * start[2];
            place_1[i] = c[0] * along[0] + c[1] * along[1] + c[2] * along[2];
        }
        const float near_0 = start[0] + start[1] + start[2];
        const float near_1 = along[0] + along[1] + along[2];
        const float u_0 = place_0[0], u_1 = place_1[0], v_0 = place_0[1], v_1 = place_1[1];
        const wp::vec3 gain = wp::index(gains, scene, t);
        const float red = gain[0], green = gain[1], blue = gain[2];
        // The texture repeats after 1; the table's, mirrored every other time, has no seams.
        const int mirrored = on_table.data[t] != 0;
        const wp::vec3ub* texture = mirrored ? table_texture.data : floor_texture.data;
        const int wide = mirrored ? table_texture.shape[0] : floor_texture.shape[0];
        const int tall = mirrored ? table_texture.shape[1] : floor_texture.shape[1];
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
                const bool seen = (near > nearest[base + s]) & (near > farthest);
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
"""


@wp.func_native(_DRAW_ROW)
def draw_row(
    scene: int,
    target: int,
    row: int,
    order: wp.array2d(dtype=wp.int32),
    weights: wp.array2d(dtype=wp.mat33),
    texels: wp.array2d(dtype=wp.mat33),
    gains: wp.array2d(dtype=wp.vec3),
    on_table: wp.array(dtype=wp.uint8),
    farthest: float,
    floor_texture: wp.array2d(dtype=wp.vec3ub),
    table_texture: wp.array2d(dtype=wp.vec3ub),
    backgrounds: wp.array3d(dtype=wp.vec3ub),
    nearness: wp.array3d(dtype=float),
):
    """Draw a row of a background, white where nothing is: C++, which compilers vectorise."""


@wp.kernel
def draw_backgrounds(
    rows: wp.array(dtype=wp.int32),
    stale: wp.array(dtype=wp.uint8),
    order: wp.array2d(dtype=wp.int32),
    weights: wp.array2d(dtype=wp.mat33),
    texels: wp.array2d(dtype=wp.mat33),
    gains: wp.array2d(dtype=wp.vec3),
    on_table: wp.array(dtype=wp.uint8),
    farthest: float,
    floor_texture: wp.array2d(dtype=wp.vec3ub),
    table_texture: wp.array2d(dtype=wp.vec3ub),
    backgrounds: wp.array3d(dtype=wp.vec3ub),
    nearness: wp.array3d(dtype=float),
):
    """Draw rows of pixels ``(B, H)`` of the table and floor of scenes where they are stale.

    ``weights`` times (column, row, 1) are a triangle's three corner weights over the distance, and
    ``texels`` times these the place in the texture over the distance. A scene's ``order`` of
    triangles ends with -1. The nearest is kept. Background 0 is that of scenes that do not vary.
    """
    scene, row = wp.tid()
    target = rows[scene]
    if target < 0:
        return
    if stale[target] == wp.uint8(0):
        return
    draw_row(
        scene, target + 1, row, order, weights, texels, gains, on_table, farthest,
        floor_texture, table_texture, backgrounds, nearness,
    )  # fmt: skip


@wp.kernel
def mark_fresh(rows: wp.array(dtype=wp.int32), stale: wp.array(dtype=wp.uint8)):
    """Note that the backgrounds of scenes were drawn."""
    row = rows[wp.tid()]
    if row >= 0:
        stale[row] = wp.uint8(0)
