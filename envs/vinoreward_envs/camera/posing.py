"""Warp kernels that pose the arm and say what the camera sees, so that no number leaves a device.

They compute what :mod:`vinoreward_envs.arm` and :class:`~vinoreward_envs.camera.fast.FastCamera`
compute with NumPy, in double precision, one scene on each thread.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors
# Numbers that change in a loop: Warp takes them as constants without int().
# ruff: noqa: UP018, RUF046

import warp as wp

from vinoreward_envs import constants as c
from vinoreward_envs.arm import (
    DAMPING,
    MAX_ITERATIONS,
    MAX_STEP,
    POSITION_TOLERANCE,
    ROTATION_TOLERANCE,
)

# Loops stay loops: unrolled, those of the linear system would take minutes to compile.
wp.set_module_options({"enable_backward": False, "max_unroll": 1})

Joints = wp.types.vector(length=c.ARM_JOINTS, dtype=wp.float64)
_Error = wp.types.vector(length=6, dtype=wp.float64)
_Square = wp.types.matrix(shape=(6, 6), dtype=wp.float64)
_Jacobian = wp.types.matrix(shape=(6, c.ARM_JOINTS), dtype=wp.float64)
_Points = wp.types.matrix(shape=(c.ARM_JOINTS, 3), dtype=wp.float64)

_JOINTS = wp.constant(c.ARM_JOINTS)
_ITERATIONS = wp.constant(MAX_ITERATIONS)
_POSITION = wp.constant(wp.float64(POSITION_TOLERANCE))
_ROTATION = wp.constant(wp.float64(ROTATION_TOLERANCE))
_LONGEST = wp.constant(wp.float64(MAX_STEP))
_DAMPED = wp.constant(wp.float64(DAMPING))
_HEIGHT = wp.constant(wp.float64(c.HOVER_HEIGHT))
_NEAR = wp.constant(wp.float64(c.CAMERA_NEAR))
_OPEN = wp.constant(wp.float64(c.FINGER_OPEN))
_OBJECT = wp.constant(13)
_HALF = wp.constant(wp.float64(0.5))
_ZERO = wp.constant(wp.float64(0.0))
_ONE = wp.constant(wp.float64(1.0))


@wp.func
def joint_pose(
    i: int,
    angle: wp.float64,
    cosines: wp.array(dtype=wp.mat44d),
    sines: wp.array(dtype=wp.mat44d),
    constants: wp.array(dtype=wp.mat44d),
) -> wp.mat44d:
    """Return a link's pose in that of the link before it."""
    return cosines[i] * wp.cos(angle) + sines[i] * wp.sin(angle) + constants[i]


@wp.func
def column(pose: wp.mat44d, i: int) -> wp.vec3d:
    """Return an axis of a pose, or as column 3 its place."""
    return wp.vec3d(pose[0, i], pose[1, i], pose[2, i])


@wp.func
def damped_step(jacobian: _Jacobian, error: _Error) -> Joints:
    """Return the damped least-squares step, by Cholesky's decomposition."""
    lower = _Square()
    for i in range(6):
        for j in range(i + 1):
            total = wp.float64(0.0)
            for k in range(_JOINTS):
                total += jacobian[i, k] * jacobian[j, k]
            if i == j:
                total += _DAMPED
            for k in range(j):
                total -= lower[i, k] * lower[j, k]
            if i == j:
                lower[i, i] = wp.sqrt(total)
            else:
                lower[i, j] = total / lower[j, j]
    solved = _Error()
    for i in range(6):
        total = error[i]
        for k in range(i):
            total -= lower[i, k] * solved[k]
        solved[i] = total / lower[i, i]
    for back in range(6):
        i = 5 - back
        total = solved[i]
        for k in range(i + 1, 6):
            total -= lower[k, i] * solved[k]
        solved[i] = total / lower[i, i]
    step = Joints()
    for j in range(_JOINTS):
        total = wp.float64(0.0)
        for i in range(6):
            total += jacobian[i, j] * solved[i]
        step[j] = total
    return step


@wp.kernel
def reach(
    grippers: wp.array2d(dtype=wp.float64),
    objects: wp.array2d(dtype=wp.float64),
    wanted: wp.array(dtype=wp.uint8),
    home: Joints,
    low: Joints,
    high: Joints,
    cosines: wp.array(dtype=wp.mat44d),
    sines: wp.array(dtype=wp.mat44d),
    constants: wp.array(dtype=wp.mat44d),
    after_arm: wp.array(dtype=wp.mat44d),
    pointing: wp.mat33d,
    resting: wp.array(dtype=wp.mat44d),
    bodies: wp.array2d(dtype=wp.mat44d),
):
    """Pose the bodies ``(B, 14)`` of arms that hover at ``(B, 2)`` above objects at ``(B, 2)``.

    The joints are those of ``inverse_kinematics`` from ``home``; ``resting`` are poses of objects
    at the origin.
    """
    scene = wp.tid()
    if wanted[scene] == wp.uint8(0):
        return
    target = wp.vec3d(grippers[scene, 0], grippers[scene, 1], _HEIGHT)
    q = home
    axes = _Points()
    centres = _Points()
    jacobian = _Jacobian()
    error = _Error()
    for _ in range(_ITERATIONS):
        pose = wp.identity(n=4, dtype=wp.float64)
        for i in range(_JOINTS):
            pose = pose * joint_pose(i, q[i], cosines, sines, constants)
            for k in range(3):
                axes[i, k] = pose[k, 2]
                centres[i, k] = pose[k, 3]
        gripper = pose * after_arm[4]
        missing = target - column(gripper, 3)
        turn = wp.vec3d()
        for i in range(3):
            wanted_axis = wp.vec3d(pointing[0, i], pointing[1, i], pointing[2, i])
            turn += wp.cross(column(gripper, i), wanted_axis)
        away = wp.float64(0.0)
        turned = wp.float64(0.0)
        for k in range(3):
            error[k] = missing[k]
            error[3 + k] = _HALF * turn[k]
            away = wp.max(away, wp.abs(error[k]))
            turned = wp.max(turned, wp.abs(error[3 + k]))
        if away <= _POSITION and turned <= _ROTATION:
            break
        shrink = _LONGEST / wp.max(wp.max(away, turned), _LONGEST)
        error = error * shrink
        for i in range(_JOINTS):
            axis = wp.vec3d(axes[i, 0], axes[i, 1], axes[i, 2])
            centre = wp.vec3d(centres[i, 0], centres[i, 1], centres[i, 2])
            moved = wp.cross(axis, column(gripper, 3) - centre)
            for k in range(3):
                jacobian[k, i] = moved[k]
                jacobian[3 + k, i] = axis[k]
        step = damped_step(jacobian, error)
        # A joint that leans on its limit cannot help: the others share its part.
        stuck = int(0)
        for i in range(_JOINTS):
            if (q[i] >= high[i] and step[i] > _ZERO) or (q[i] <= low[i] and step[i] < _ZERO):
                stuck += 1
                for k in range(6):
                    jacobian[k, i] = _ZERO
        if stuck > 0:
            step = damped_step(jacobian, error)
        for i in range(_JOINTS):
            q[i] = wp.clamp(q[i] + step[i], low[i], high[i])
    pose = wp.identity(n=4, dtype=wp.float64)
    bodies[scene, 0] = pose
    for i in range(_JOINTS):
        pose = pose * joint_pose(i, q[i], cosines, sines, constants)
        bodies[scene, 1 + i] = pose
    for i in range(5):
        link = pose * after_arm[i]
        slide = wp.float64(0.0)
        if i == 2:
            slide = _OPEN
        if i == 3:
            slide = -_OPEN
        for k in range(3):
            link[k, 3] += slide * link[k, 1]
        bodies[scene, 8 + i] = link
    resting_there = resting[scene]
    resting_there[0, 3] = objects[scene, 0]
    resting_there[1, 3] = objects[scene, 1]
    bodies[scene, _OBJECT] = resting_there


@wp.kernel
def look(
    bodies: wp.array2d(dtype=wp.mat44d),
    wanted: wp.array(dtype=wp.uint8),
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
):
    """Say for each body ``(B, 14)`` where it is on the screen, and whether it may be seen.

    ``screens`` and ``standing`` are of each scene's camera, ``sizes`` of the objects, and
    ``boxes`` the corners ``(14, 8)`` of the bodies' bounding boxes.
    """
    scene, body = wp.tid()
    if wanted[scene] == wp.uint8(0):
        seen[scene, body] = wp.uint8(0)
        return
    pose = bodies[scene, body]
    size = wp.float64(1.0)
    if body == _OBJECT:
        size = sizes[scene]
    away = standing[scene] - column(pose, 3)
    for i in range(3):
        eyes[scene, body][i] = wp.float32(wp.dot(column(pose, i), away) / size)
    for i in range(3):
        for j in range(3):
            rotations[scene, body][i, j] = wp.float32(pose[i, j])
            pose[i, j] = pose[i, j] * size
    matrix = screens[scene] * pose
    for i in range(4):
        for j in range(4):
            matrices[scene, body][i, j] = wp.float32(matrix[i, j])
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
