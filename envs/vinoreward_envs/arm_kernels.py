"""Warp kernels of the arm's kinematics.

They run on a processor and on CUDA, in double precision, one arm on each thread. Cameras launch
them for many scenes; :mod:`vinoreward_envs.arm` calls them for joints alone.
"""

# No postponed annotations here: Warp reads them as types when a kernel is defined.
# mypy: ignore-errors
# Numbers that change in a loop: Warp takes them as constants without int().
# ruff: noqa: UP018, RUF046

import warp as wp

from vinoreward_envs import constants as c

# Loops stay loops: unrolled, those of the linear system would take minutes to compile.
wp.set_module_options({"enable_backward": False, "max_unroll": 1})

Joints = wp.types.vector(length=c.JOINTS, dtype=wp.float64)
_Step = wp.types.vector(length=c.ARM_JOINTS, dtype=wp.float64)
_Error = wp.types.vector(length=6, dtype=wp.float64)
_Square = wp.types.matrix(shape=(6, 6), dtype=wp.float64)
_Jacobian = wp.types.matrix(shape=(6, c.ARM_JOINTS), dtype=wp.float64)
_Points = wp.types.matrix(shape=(c.ARM_JOINTS, 3), dtype=wp.float64)

_JOINTS = wp.constant(c.ARM_JOINTS)
_ITERATIONS = wp.constant(60)
# Metres and radians at which the inverse kinematics stops: ten times finer than it promises.
_POSITION = wp.constant(wp.float64(1e-6))
_ROTATION = wp.constant(wp.float64(1e-5))
# Within a step the linear model holds; a longer error is approached in pieces of this length.
_LONGEST = wp.constant(wp.float64(0.25))
# Enough damping for a nearly stretched arm, too little to slow the last steps.
_DAMPED = wp.constant(wp.float64(1e-4))
_HALF = wp.constant(wp.float64(0.5))
_ZERO = wp.constant(wp.float64(0.0))


@wp.struct
class Arm:
    """The arm's geometry: matrices whose sum, times cosine, sine and 1, is a joint's transform."""

    cosines: wp.array(dtype=wp.mat44d)
    sines: wp.array(dtype=wp.mat44d)
    constants: wp.array(dtype=wp.mat44d)
    after_arm: wp.array(dtype=wp.mat44d)
    pointing: wp.mat33d
    low: Joints
    high: Joints
    home: Joints


@wp.func
def joint_pose(arm: Arm, i: int, angle: wp.float64) -> wp.mat44d:
    """Return a link's pose relative to the link before it."""
    return arm.cosines[i] * wp.cos(angle) + arm.sines[i] * wp.sin(angle) + arm.constants[i]


@wp.func
def column(pose: wp.mat44d, i: int) -> wp.vec3d:
    """Return an axis of a pose, or as column 3 its place."""
    return wp.vec3d(pose[0, i], pose[1, i], pose[2, i])


@wp.func
def damped_step(jacobian: _Jacobian, error: _Error) -> _Step:
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
    step = _Step()
    for j in range(_JOINTS):
        total = wp.float64(0.0)
        for i in range(6):
            total += jacobian[i, j] * solved[i]
        step[j] = total
    return step


@wp.kernel
def reach(
    rows: wp.array(dtype=wp.int32),
    targets: wp.array(dtype=wp.vec3d),
    starts: wp.array(dtype=Joints),
    arm: Arm,
    joints: wp.array(dtype=Joints),
    solved: wp.array(dtype=wp.uint8),
):
    """Find the joints ``(B,)`` that put grippers at ``targets``, pointing down, from ``starts``.

    Damped least squares on the analytic Jacobian, within the joint limits; fingers are passed
    through. Where that fails, about once in some thousands, it starts again from the home pose.
    ``solved`` marks the scenes that succeeded. A scene whose row is negative is left out.
    """
    scene = wp.tid()
    if rows[scene] < 0:
        return
    q = starts[scene]
    axes = _Points()
    centres = _Points()
    jacobian = _Jacobian()
    error = _Error()
    solved[scene] = wp.uint8(0)
    for iteration in range(2 * _ITERATIONS):
        if iteration == _ITERATIONS:
            for i in range(_JOINTS):
                q[i] = arm.home[i]
        pose = wp.identity(n=4, dtype=wp.float64)
        for i in range(_JOINTS):
            pose = pose * joint_pose(arm, i, q[i])
            for k in range(3):
                axes[i, k] = pose[k, 2]
                centres[i, k] = pose[k, 3]
        gripper = pose * arm.after_arm[4]
        missing = targets[scene] - column(gripper, 3)
        # Half the sum of the cross products of matching axes: the sine of the remaining angle
        # times its axis, which is the angle itself near the answer.
        turn = wp.vec3d()
        for i in range(3):
            wanted = wp.vec3d(arm.pointing[0, i], arm.pointing[1, i], arm.pointing[2, i])
            turn += wp.cross(column(gripper, i), wanted)
        away = wp.float64(0.0)
        turned = wp.float64(0.0)
        for k in range(3):
            error[k] = missing[k]
            error[3 + k] = _HALF * turn[k]
            away = wp.max(away, wp.abs(error[k]))
            turned = wp.max(turned, wp.abs(error[3 + k]))
        if away <= _POSITION and turned <= _ROTATION:
            solved[scene] = wp.uint8(1)
            break
        error = error * (_LONGEST / wp.max(wp.max(away, turned), _LONGEST))
        # A joint turns the gripper about its axis: by the axis times the way from its centre.
        for i in range(_JOINTS):
            axis = wp.vec3d(axes[i, 0], axes[i, 1], axes[i, 2])
            centre = wp.vec3d(centres[i, 0], centres[i, 1], centres[i, 2])
            moved = wp.cross(axis, column(gripper, 3) - centre)
            for k in range(3):
                jacobian[k, i] = moved[k]
                jacobian[3 + k, i] = axis[k]
        step = damped_step(jacobian, error)
        # A joint that leans on its limit cannot help: the six others share its part, which
        # clipping alone would leave undone for ever.
        stuck = int(0)
        for i in range(_JOINTS):
            if (q[i] >= arm.high[i] and step[i] > _ZERO) or (
                q[i] <= arm.low[i] and step[i] < _ZERO
            ):
                stuck += 1
                for k in range(6):
                    jacobian[k, i] = _ZERO
        if stuck > 0:
            step = damped_step(jacobian, error)
        for i in range(_JOINTS):
            q[i] = wp.clamp(q[i] + step[i], arm.low[i], arm.high[i])
    joints[scene] = q


@wp.kernel
def pose_links(
    rows: wp.array(dtype=wp.int32),
    joints: wp.array(dtype=Joints),
    arm: Arm,
    bodies: wp.array2d(dtype=wp.mat44d),
):
    """Pose the arm's base and its links, bodies 0 to 12 of ``(B, 14)``."""
    scene = wp.tid()
    if rows[scene] < 0:
        return
    q = joints[scene]
    pose = wp.identity(n=4, dtype=wp.float64)
    bodies[scene, 0] = pose
    for i in range(_JOINTS):
        pose = pose * joint_pose(arm, i, q[i])
        bodies[scene, 1 + i] = pose
    for i in range(5):
        link = pose * arm.after_arm[i]
        slide = wp.float64(0.0)
        if i == 2:
            slide = q[7]
        if i == 3:
            slide = -q[8]
        for k in range(3):
            link[k, 3] += slide * link[k, 1]
        bodies[scene, 8 + i] = link
