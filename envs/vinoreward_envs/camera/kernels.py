"""Warp kernels of the fast camera: transform vertices, fill triangles, shade pixels.

Batched from the outset (``B`` scenes over one shared mesh), so that the same kernels run on a
processor and on CUDA. The rules are TinyRenderer's: sample at integer pixel corners, no back
faces, no triangle below 0.005 square pixels, smooth normals, perspective-correct weights.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors

import warp as wp

wp.set_module_options({"enable_backward": False})

NEARNESS_SCALE = 2.0**28
"""One over a distance (up to 10 per metre) as a whole number of 32 bits."""
_SCALE = wp.constant(wp.float64(NEARNESS_SCALE))
_ID_BITS = wp.constant(wp.uint64(32))
_ID_MASK = wp.constant(wp.uint64(0xFFFFFFFF))
_MIN_DOUBLE_AREA = wp.constant(0.01)


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
    if h[3] < near:
        screen[scene, i] = wp.vec3(0.0, 0.0, 0.0)
        return
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
    left = wp.max(int(wp.ceil(wp.min(a[0], wp.min(b[0], c[0])))), 0)
    right = wp.min(int(wp.floor(wp.max(a[0], wp.max(b[0], c[0])))), width - 1)
    top = wp.max(int(wp.ceil(wp.min(a[1], wp.min(b[1], c[1])))), 0)
    bottom = wp.min(int(wp.floor(wp.max(a[1], wp.max(b[1], c[1])))), height - 1)
    scale = 1.0 / area
    for row in range(top, bottom + 1):
        y = float(row)
        for column in range(left, right + 1):
            x = float(column)
            u = ((c[0] - x) * (b[1] - y) - (b[0] - x) * (c[1] - y)) * scale
            v = ((a[0] - x) * (c[1] - y) - (c[0] - x) * (a[1] - y)) * scale
            w = 1.0 - u - v
            if u >= 0.0 and v >= 0.0 and w >= 0.0:
                nearness = u * a[2] + v * b[2] + w * c[2]
                level = wp.uint64(wp.float64(nearness) * _SCALE)
                wp.atomic_max(depth, scene, row, column, (level << _ID_BITS) | wp.uint64(t + 1))


@wp.kernel
def shade_pixels(
    faces: wp.array(dtype=wp.vec3i),
    normal_faces: wp.array(dtype=wp.vec3i),
    face_links: wp.array(dtype=wp.uint8),
    normals: wp.array(dtype=wp.vec3),
    colours: wp.array(dtype=wp.vec3ub),
    rotations: wp.array2d(dtype=wp.mat33),
    screen: wp.array2d(dtype=wp.vec3),
    direction: wp.vec3,
    strength: wp.vec3,
    background: wp.array2d(dtype=wp.vec3ub),
    background_depth: wp.array2d(dtype=wp.uint64),
    depth: wp.array3d(dtype=wp.uint64),
    picture: wp.array3d(dtype=wp.vec3ub),
):
    """Colour each pixel ``(B, H, W)`` and make its depth ready for the next picture."""
    scene, row, column = wp.tid()
    won = depth[scene, row, column] & _ID_MASK
    if won == wp.uint64(0):
        picture[scene, row, column] = background[row, column]
        return
    depth[scene, row, column] = background_depth[row, column]
    t = int(won) - 1
    face = faces[t]
    a = screen[scene, face[0]]
    b = screen[scene, face[1]]
    c = screen[scene, face[2]]
    x = float(column)
    y = float(row)
    u = ((c[0] - x) * (b[1] - y) - (b[0] - x) * (c[1] - y)) * a[2]
    v = ((a[0] - x) * (c[1] - y) - (c[0] - x) * (a[1] - y)) * b[2]
    w = ((b[0] - x) * (a[1] - y) - (a[0] - x) * (b[1] - y)) * c[2]
    corners = normal_faces[t]
    local = u * normals[corners[0]] + v * normals[corners[1]] + w * normals[corners[2]]
    normal = wp.normalize(rotations[scene, int(face_links[t])] * local)
    facing = wp.dot(normal, direction)
    mirrored = wp.max(2.0 * facing * normal[2] - direction[2], 0.0)
    brightness = strength[0] + strength[1] * wp.max(facing, 0.0) + strength[2] * mirrored * mirrored
    colour = colours[t]
    picture[scene, row, column] = wp.vec3ub(
        wp.uint8(wp.min(float(colour[0]) * brightness, 255.0)),
        wp.uint8(wp.min(float(colour[1]) * brightness, 255.0)),
        wp.uint8(wp.min(float(colour[2]) * brightness, 255.0)),
    )
