"""Warp kernels of the fast camera: transform vertices, fill triangles, shade pixels.

``B`` scenes over one shared mesh; one thread does one vertex, triangle or pixel, as is best on
CUDA. A processor draws the same images by :mod:`vinoreward_envs.camera.one_thread`. The rules are
TinyRenderer's: sample at integer pixel corners, no back faces, no triangle below 0.005 square
pixels, smooth normals, perspective-correct weights.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors

import warp as wp

from vinoreward_envs import constants as c
from vinoreward_envs.camera.baked import AMBIENT, DIFFUSE, OBJECT_LINK, SPECULAR
from vinoreward_envs.randomization import NOISE_ROUNDED, NOISE_SHIFTED

wp.set_module_options({"enable_backward": False})

_ID_BITS = wp.constant(wp.uint64(32))
_ID_MASK = wp.constant(wp.uint64(0xFFFFFFFF))
_MIN_DOUBLE_AREA = wp.constant(0.01)
_NEAR = wp.constant(c.CAMERA_NEAR)
_OBJECT = wp.constant(OBJECT_LINK)
_AMBIENT, _DIFFUSE, _SPECULAR = (wp.constant(part) for part in (AMBIENT, DIFFUSE, SPECULAR))


@wp.struct
class Mesh:
    """Vertices ``(V,)``, normals ``(N,)`` and triangles ``(T,)``, see :class:`.SceneMesh`."""

    positions: wp.array(dtype=wp.vec3)
    links: wp.array(dtype=wp.uint8)
    normals: wp.array(dtype=wp.vec3)
    faces: wp.array(dtype=wp.vec3i)
    normal_faces: wp.array(dtype=wp.vec3i)
    face_links: wp.array(dtype=wp.uint8)
    colours: wp.array(dtype=wp.vec3ub)


@wp.struct
class Shading:
    """Light of one scene, and its object's colour."""

    direction: wp.vec3
    gain: wp.vec3
    colour: wp.vec3ub


@wp.struct
class Appearances:
    """How scenes look, a row for each; see :class:`.Appearance`."""

    params: wp.array2d(dtype=wp.float64)
    steps: wp.array(dtype=wp.int64)
    screens: wp.array(dtype=wp.mat44d)
    standing: wp.array(dtype=wp.vec3d)
    resting: wp.array(dtype=wp.mat44d)
    sizes: wp.array(dtype=wp.float64)
    shadings: wp.array(dtype=Shading)
    stale: wp.array(dtype=wp.uint8)
    backgrounds: wp.array3d(dtype=wp.vec3ub)
    nearness: wp.array3d(dtype=float)


@wp.struct
class Bodies:
    """The bodies ``(B, 14)`` of the scenes that are drawn, and where each is on the screen."""

    rows: wp.array(dtype=wp.int32)
    present: wp.array(dtype=wp.uint8)
    poses: wp.array2d(dtype=wp.mat44d)
    matrices: wp.array2d(dtype=wp.mat44)
    rotations: wp.array2d(dtype=wp.mat33)
    eyes: wp.array2d(dtype=wp.vec3)
    seen: wp.array2d(dtype=wp.uint8)
    noise: wp.array2d(dtype=wp.int32)
    """``(B, 2)`` where in the table the noise of an image begins, and its strength."""


@wp.func
def bits(nearness: float) -> wp.uint64:
    """Return the bits of a number of at least 0; these integers sort as the numbers do."""
    return wp.uint64(wp.cast(nearness, wp.uint32))


_ADD_NOISE = """
    wp::uint8* grey = (wp::uint8*)(images.data + pixel);
    const wp::int16 strength = (wp::int16)times;
#ifdef __clang__
    #pragma clang loop vectorize(assume_safety)
#endif
    for (int i = 0; i < 3 * pixels; ++i) {
        // Products of up to 128 and 200 fit in 16 bits.
        const wp::int16 noise = (wp::int16)(normals.data[start + i] * strength + ROUNDED);
        wp::int16 level = (wp::int16)(grey[i] + (noise >> SHIFTED));
        level = level < 255 ? level : (wp::int16)255;
        grey[i] = (wp::uint8)(level > 0 ? level : 0);
    }
""".replace("ROUNDED", str(NOISE_ROUNDED)).replace("SHIFTED", str(NOISE_SHIFTED))


@wp.func_native(_ADD_NOISE)
def add_noise(
    normals: wp.array(dtype=wp.int16),
    start: int,
    times: int,
    pixel: int,
    pixels: int,
    images: wp.array3d(dtype=wp.vec3ub),
):
    """Add the sensor's noise to so many pixels: the table's numbers, times a strength."""


@wp.func
def shaded(
    row: int,
    column: int,
    a: wp.vec3,
    b: wp.vec3,
    c: wp.vec3,
    t: int,
    mesh: Mesh,
    rotations: wp.array2d(dtype=wp.mat33),
    scene: int,
    shading: Shading,
) -> wp.vec3ub:
    """Return the colour of a pixel of a triangle with these corners on the screen."""
    x = float(column)
    y = float(row)
    u = ((c[0] - x) * (b[1] - y) - (b[0] - x) * (c[1] - y)) * a[2]
    v = ((a[0] - x) * (c[1] - y) - (c[0] - x) * (a[1] - y)) * b[2]
    w = ((b[0] - x) * (a[1] - y) - (a[0] - x) * (b[1] - y)) * c[2]
    corners = mesh.normal_faces[t]
    smooth = (
        u * mesh.normals[corners[0]] + v * mesh.normals[corners[1]] + w * mesh.normals[corners[2]]
    )
    link = int(mesh.face_links[t])
    normal = wp.normalize(rotations[scene, link] * smooth)
    facing = wp.dot(normal, shading.direction)
    mirrored = wp.max(2.0 * facing * normal[2] - shading.direction[2], 0.0)
    bright = _AMBIENT + _DIFFUSE * wp.max(facing, 0.0) + _SPECULAR * mirrored * mirrored
    colour = mesh.colours[t]
    if link == _OBJECT:
        colour = shading.colour
    for k in range(3):
        colour[k] = wp.uint8(wp.min(float(colour[k]) * (bright * shading.gain[k]), 255.0))
    return colour


@wp.kernel
def transform_vertices(mesh: Mesh, bodies: Bodies, screen: wp.array2d(dtype=wp.vec3)):
    """Bring vertices ``(V,)`` to column, row and nearness ``(B, V)``; 0 nearness: too close."""
    scene, i = wp.tid()
    link = int(mesh.links[i])
    if bodies.seen[scene, link] == wp.uint8(0):
        return
    p = mesh.positions[i]
    h = bodies.matrices[scene, link] * wp.vec4(p[0], p[1], p[2], 1.0)
    screen[scene, i] = wp.vec3(0.0, 0.0, 0.0)
    if h[3] >= _NEAR:
        nearness = 1.0 / h[3]
        screen[scene, i] = wp.vec3(h[0] * nearness, h[1] * nearness, nearness)


@wp.kernel
def fill_triangles(
    mesh: Mesh,
    bodies: Bodies,
    screen: wp.array2d(dtype=wp.vec3),
    depth: wp.array3d(dtype=wp.uint64),
):
    """Keep, for each pixel ``(B, H, W)``, the nearest triangle: nearness above, index + 1 below."""
    scene, t = wp.tid()
    if bodies.seen[scene, int(mesh.face_links[t])] == wp.uint8(0):
        return
    face = mesh.faces[t]
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
    right = wp.min(int(wp.floor(wp.max(a[0], wp.max(b[0], c[0])))), depth.shape[2] - 1)
    top = wp.max(int(wp.ceil(wp.min(a[1], wp.min(b[1], c[1])))), 0)
    bottom = wp.min(int(wp.floor(wp.max(a[1], wp.max(b[1], c[1])))), depth.shape[1] - 1)
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
    mesh: Mesh,
    bodies: Bodies,
    scenes: Appearances,
    screen: wp.array2d(dtype=wp.vec3),
    depth: wp.array3d(dtype=wp.uint64),
    noise: wp.array(dtype=wp.int16),
    image: wp.array3d(dtype=wp.vec3ub),
):
    """Colour each pixel ``(B, H, W)`` and make its depth ready for the next image."""
    scene, row, column = wp.tid()
    shown = wp.max(bodies.rows[scene], 0)
    won = depth[scene, row, column]
    depth[scene, row, column] = wp.uint64(0)
    colour = scenes.backgrounds[shown, row, column]
    near = scenes.nearness[shown, row, column]
    if won != wp.uint64(0) and (won >> _ID_BITS) >= bits(near):
        t = int(won & _ID_MASK) - 1
        face = mesh.faces[t]
        colour = shaded(
            row, column, screen[scene, face[0]], screen[scene, face[1]], screen[scene, face[2]],
            t, mesh, bodies.rotations, scene, scenes.shadings[shown],
        )  # fmt: skip
    image[scene, row, column] = colour
    times = bodies.noise[scene, 1]
    if times != 0:
        at = row * image.shape[2] + column
        pixel = scene * image.shape[1] * image.shape[2] + at
        add_noise(noise, bodies.noise[scene, 0] + 3 * at, times, pixel, 1, image)
