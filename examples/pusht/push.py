"""A policy for gym-pusht that sees the state and pushes one face of the T after another.

For ``vinoreward capture --policy examples/pusht/push.py:act``. The block has neither inertia (its
speed is zero after each step) nor friction. So a push against a face, along its normal, by ``d``
pixels at a distance ``c`` from the centre of mass moves the centre by ``d / (1 + c*c/K)`` and turns
the block by ``c / K`` for each pixel of that. Each call compares all faces at a few distances: the
agent's way around the block, the push, and the error that is left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

K = 3000.0  # moment of inertia for a mass of one, in square pixels
CENTRE = 45.0  # of mass, from the outer edge of the bar, along the stem
RADIUS = 15.0  # of the agent
GAP = 7.0  # between agent and block on the way around it
GOAL, GOAL_ANGLE = np.array([256.0, 256.0]), np.pi / 4
STRIDE = 10.0  # pixels per step of a push

# In the block's frame, with the centre of mass at the origin and the stem along +y. Each face: a
# point of its line, the normal into the block, the range of levers at which the agent fits.
FACES = [
    ((0, -45), (0, 1), (-57, 57)),  # the bar's outer edge
    ((-45, -15), (0, -1), (32, 57)),  # its inner edge, on both sides of the stem
    ((45, -15), (0, -1), (-57, -32)),
    ((60, -30), (-1, 0), (-43, -17)),  # its ends
    ((-60, -30), (1, 0), (17, 43)),
    ((15, 30), (-1, 0), (1.5, 72)),  # the stem's sides, from the corner with the bar
    ((-15, 30), (1, 0), (-72, -1.5)),
    ((0, 75), (0, -1), (-12, 12)),  # its end
]
POINT = np.array([face[0] for face in FACES], float)
NORMAL = np.array([face[1] for face in FACES], float)
ALONG = np.stack([NORMAL[:, 1], -NORMAL[:, 0]], 1)  # the lever grows in this direction
LOW, HIGH = np.array([face[2] for face in FACES], float).T
BOXES = np.array([[-60, -45, 60, -15], [-15, -45, 15, 75]], float)  # the two parts of the T
TIPS = np.array([[-60, -45], [60, -45], [60, -15], [-60, -15], [15, 75], [-15, 75]], float)


def turned(angle: float | Array, points: Array) -> Array:
    """Rotate points [..., 2] by an angle, or by angles that broadcast with [...]."""
    c, s = np.cos(angle), np.sin(angle)
    x, y = points[..., 0], points[..., 1]
    return np.stack([c * x - s * y, s * x + c * y], -1)


def crosses(start: Array, end: Array, margin: float) -> npt.NDArray[np.bool_]:
    """Whether each segment, [..., 2] to [..., 2], passes the block at less than a margin."""
    step = np.where(np.abs(end - start) < 1e-9, 1e-9, end - start)[..., None, :]
    one = (BOXES[:, :2] - margin - start[..., None, :]) / step
    two = (BOXES[:, 2:] + margin - start[..., None, :]) / step
    enter = np.minimum(one, two).max(-1)
    leave = np.maximum(one, two).min(-1)
    return ((enter < leave) & (enter < 1) & (leave > 0)).any(-1)


def _corners(room: float) -> Array:
    x, y, stem = 60 + room, 45 + room, 15 + room
    right = [(x, -y), (x, room - 15), (stem, room - 15), (stem, 75 + room)]
    return np.array(right + [(-a, b) for a, b in right], float)


CORNERS = _corners(RADIUS + GAP)
WAY = np.linalg.norm(CORNERS[:, None] - CORNERS, axis=-1)
WAY[crosses(CORNERS[:, None], CORNERS[None], RADIUS + 2)] = np.inf
np.fill_diagonal(WAY, 0)
for _middle in range(len(CORNERS)):
    WAY = np.minimum(WAY, WAY[:, _middle, None] + WAY[_middle])


def left_over(error: Array, turn: Array) -> Array:
    """Steps that errors of place [..., 2] (in the goal's frame) and angle [...] may still take.

    An error of two pixels costs almost as much as a large one: it takes another way around the
    block. So small errors go first, and the last push is a long one, which ends well inside.
    """
    each = np.abs(np.concatenate([error, 60 * turn[..., None]], -1))
    return (each / STRIDE * (1, 1, 4) + 12 * np.clip((each - 0.7) / 1.5, 0, 1)).sum(-1)


def act(observation: Array) -> npt.NDArray[np.float32]:
    """Return where the agent shall go, for [agent x, y, block x, y, angle]."""
    agent, block, angle = observation[:2], observation[2:4], float(observation[4])
    turn = (GOAL_ANGLE - angle + np.pi) % (2 * np.pi) - np.pi
    arm = np.array([0.0, CENTRE])
    centre = block + turned(angle, arm)
    error = GOAL + turned(GOAL_ANGLE, arm) - centre
    me = turned(-angle, agent - centre)

    # Pushes: each face at five levers, each until the angle is right or until the place is. The
    # first lever makes both right at once, if the agent can reach it.
    straight = NORMAL @ turned(-angle - turn / 2, error)
    both = K * 2 * np.sin(turn / 2) / np.where(np.abs(straight) < 1e-6, 1e-6, straight)
    levers = [np.clip(both, LOW, HIGH), LOW, HIGH, (LOW + HIGH) / 2, np.clip(0, LOW, HIGH)]
    lever = np.stack(levers, 1).ravel()
    lever = np.where(np.abs(lever) < 0.01, 0.01, lever)
    face = np.repeat(np.arange(len(FACES)), len(levers))
    move = np.concatenate([turn * K / lever, straight[face]])  # of the centre, along an arc
    useful = (move > 0.3) & (move < 400)
    if not useful.any():
        return agent.astype(np.float32)
    face, lever, move = np.tile(face, 2)[useful], np.tile(lever, 2)[useful], move[useful]
    turns = lever * move / K
    chord = 2 * np.sin(turns / 2) / turns * move
    shift = chord[:, None] * turned(angle + turns / 2, NORMAL[face])
    push = move * (1 + lever**2 / K)

    # Where each begins: so far away that whole strides end it, and the last is nine pixels or so.
    along, normal = ALONG[face], NORMAL[face]
    at = POINT[face] + along * (lever - np.sum(POINT[face] * along, 1))[:, None]
    run_up = np.maximum(2.66 * STRIDE - push, 4 + (2.26 * STRIDE - push) % STRIDE)
    begin = at - normal * (RADIUS + run_up[:, None])
    ahead = np.sum((at - me) * normal, 1) - RADIUS
    aside = np.sum((at - me) * along, 1)
    begun = (ahead > -8) & (ahead < run_up + 2) & (np.abs(aside) < np.where(ahead > 6, 2, 5))

    # The way there: straight, or around the block by its corners.
    away = np.maximum(np.maximum(BOXES[:, :2] - me, me - BOXES[:, 2:]), 0)
    room = min(RADIUS, float(np.linalg.norm(away, axis=1).min()) - 1)
    direct = np.linalg.norm(begin - me, axis=1)
    direct = np.where(crosses(np.broadcast_to(me, begin.shape), begin, room), np.inf, direct)
    first = np.linalg.norm(CORNERS - me, axis=1)
    corners = centre + turned(angle, CORNERS)
    closed = crosses(me, CORNERS, room) | ((corners < 4) | (corners > 508)).any(1)
    first = first if closed.all() else np.where(closed, np.inf, first)
    last = np.linalg.norm(begin[:, None] - CORNERS, axis=2)
    last = np.where(crosses(begin[:, None], CORNERS[None], RADIUS + 1), np.inf, last)
    via = first[None, :, None] + WAY + last[:, None, :]
    around = via.min((1, 2))
    way = np.where(begun, 0, np.minimum(direct, around) + 30)

    # The cheapest: steps on the way, of the push, and after it. Not out of the arena.
    begins = centre + turned(angle, begin)
    outside = ((begins < 6) | (begins > 506)).any(1)
    tips = (centre + shift)[:, None] + turned((angle + turns)[:, None], TIPS)
    beyond = np.maximum(np.maximum(10 - tips, tips - 502), 0).max((1, 2))
    after = left_over(turned(-GOAL_ANGLE, error - shift), turn - turns)
    best = int(np.argmin(way / 30 + push / STRIDE + after + 5 * beyond + 1000 * outside))

    if begun[best]:
        # A step covers 0.264 of the distance to its target, and 0.34 of the stride before it.
        rest = push[best] + ahead[best]
        last_one = max(2.0, (rest - 0.34 * STRIDE) / 0.264)
        reach = last_one if rest <= 1.35 * STRIDE else STRIDE / 0.4
        target = me + normal[best] * reach + along[best] * aside[best]
    elif direct[best] <= around[best]:
        target = begin[best]
    else:
        target = CORNERS[int(via[best].min(1).argmin())]
        target = me + (target - me) * max(1, 45 / max(float(np.linalg.norm(target - me)), 1e-6))
    return np.clip(centre + turned(angle, target), 0, 512).astype(np.float32)
