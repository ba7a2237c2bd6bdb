"""The constants of the hover task, in metres, radians and pixels.

They are those of the article this task comes from, except where a comment says otherwise.
Everything that captures, trains, renders or judges reads them here.
"""

from __future__ import annotations

import math

# --- the task -------------------------------------------------------------------------------
WORKSPACE_LOW: tuple[float, float] = (0.4, -0.4)
"""Smallest x, y the gripper may be asked to reach."""
WORKSPACE_HIGH: tuple[float, float] = (0.7, 0.4)
"""Largest x, y the gripper may be asked to reach."""
HOVER_HEIGHT: float = 0.10
"""Height of the gripper (link 11) above the table's top, z in the world."""
SUCCESS_DISTANCE: float = 0.035
"""True success: the gripper's horizontal distance from the object's base is at most this."""
MAX_EPISODE_STEPS: int = 10
"""An episode is truncated after this many steps."""
MAX_MOVE: float = 0.1
"""Largest move along x or y in one action."""
REWARD_SUCCESS: float = 100.0
"""Reward of a step that ends in success."""
REWARD_STEP: float = -1.0
"""Reward of any other step."""
REWARD_REFUSED: float = -5.0
"""Reward of a step whose move would have left the workspace (the arm then stays where it is)."""
EDGE_TOLERANCE: float = 1e-4
"""Rounding (0.1 in float32, a pose reached to 1e-6 m) must not refuse a move to the very edge."""
OBJECT_MARGIN: float = 0.02
"""Objects placed at random stay this far inside the workspace, so that a hover is reachable."""

# --- the scene ------------------------------------------------------------------------------
GRAVITY: float = -9.8
TIME_STEP: float = 1.0 / 240.0
SUBSTEPS: int = 500
"""Simulation sub-steps of one move with ``motion="dynamics"``, as in the article."""
PLANE_POSITION: tuple[float, float, float] = (0.0, 0.0, -0.65)
ARM_POSITION: tuple[float, float, float] = (0.0, 0.0, 0.0)
TABLE_POSITION: tuple[float, float, float] = (0.5, 0.0, -0.65)
TABLE_TOP: float = -0.025
"""Height of the table's top, z in the world."""
FIXED_OBJECT: tuple[float, float] = (0.65, -0.30)
"""Nominal x, y of the object where it does not move between episodes."""
OBJECT_REST_HEIGHT: float = -0.0084536
"""z of the object's base after it was dropped and came to rest."""
OBJECT_REST_ROTATION: tuple[float, float, float, float] = (0.0, 0.0970480, 0.0, 0.9952797)
"""Its orientation at rest as a quaternion x, y, z, w: it leans 11 degrees about y."""
OBJECT_COLOUR: tuple[int, int, int] = (10, 17, 232)
"""RGB before lighting."""
PLANE_URDF: str = "plane.urdf"
ARM_URDF: str = "franka_panda/panda.urdf"
TABLE_URDF: str = "table/table.urdf"
OBJECT_URDF: str = "random_urdfs/000/000.urdf"
"""Paths inside ``pybullet_data``."""

# --- the arm --------------------------------------------------------------------------------
ARM_LINKS: int = 12
"""Links as PyBullet numbers them: 0-6 arm, 7 flange, 8 hand, 9-10 fingers, 11 gripper point."""
GRIPPER_LINK: int = 11
ARM_JOINTS: int = 7
JOINTS: int = 9
"""Seven arm joints and two fingers: the order of every joint vector in this package."""
JOINT_INDICES: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 9, 10)
"""PyBullet's joint index of each entry of a joint vector."""
GRIPPER_EULER: tuple[float, float, float] = (0.0, -math.pi, math.pi / 2)
"""Roll, pitch, yaw of the gripper: pointing down."""
FINGER_OPEN: float = 0.04
"""An open finger. The article asks for 0.08, twice what the URDF allows."""
HOME_JOINTS: tuple[float, ...] = (
    0.0, -0.215, 0.0, -2.57, 0.0, 2.356, 2.356, FINGER_OPEN, FINGER_OPEN,
)  # fmt: skip
"""The pose an episode starts from, before the gripper is brought to ``HOVER_HEIGHT``."""
HOVER_JOINTS: tuple[float, ...] = (
    -2.0109921619602903e-05, 0.12628851538988167, 1.8955729665550265e-05, -2.6266224439093797,
    -6.300076051700845e-06, 2.752910960455001, 2.356199015190592, FINGER_OPEN, FINGER_OPEN,
)  # fmt: skip
"""The home pose brought to hover height. Every other point is reached from here, so that pose and
image do not depend on the path."""
HOVER_START: tuple[float, float] = (0.4315144525492813, -2.5938932969320457e-13)
"""Where the gripper is then, x and y."""
JOINT_LOW: tuple[float, ...] = (-2.9671, -1.8326, -2.9671, -3.1416, -2.9671, -0.0873, -2.9671)
JOINT_HIGH: tuple[float, ...] = (2.9671, 1.8326, 2.9671, 0.0, 2.9671, 3.8223, 2.9671)
"""Limits of the seven arm joints, from the URDF."""
# (roll of the joint's frame, its offset x, y, z) for the seven revolute joints; all turn about
# their own z axis, and no joint's frame is pitched or yawed.
JOINT_ORIGINS: tuple[tuple[float, float, float, float], ...] = (
    (0.0, 0.0, 0.0, 0.333),
    (-math.pi / 2, 0.0, 0.0, 0.0),
    (math.pi / 2, 0.0, -0.316, 0.0),
    (math.pi / 2, 0.0825, 0.0, 0.0),
    (-math.pi / 2, -0.0825, 0.384, 0.0),
    (math.pi / 2, 0.0, 0.0, 0.0),
    (math.pi / 2, 0.088, 0.0, 0.0),
)
FLANGE_OFFSET: float = 0.107
"""Link 6 to the flange (link 7), along z."""
HAND_YAW: float = -math.pi / 4
"""The flange to the hand (link 8): a turn about z."""
FINGER_OFFSET: float = 0.0584
"""The hand to the fingers (links 9 and 10), along z; they slide along +y and -y."""
GRIPPER_OFFSET: float = 0.105
"""The hand to the gripper point (link 11), along z."""

# --- the camera -----------------------------------------------------------------------------
CAMERA_TARGET: tuple[float, float, float] = (0.55, 0.0, 0.05)
CAMERA_DISTANCE: float = 0.7
CAMERA_YAW: float = 90.0
CAMERA_PITCH: float = -70.0
"""Degrees, up axis z; the camera is not rolled."""
CAMERA_FOV: float = 60.0
"""Vertical field of view in degrees."""
CAMERA_NEAR: float = 0.1
CAMERA_FAR: float = 100.0
IMAGE_HEIGHT: int = 96
IMAGE_WIDTH: int = 128
"""The default image: made at the size the shipped classifier sees."""
ARTICLE_HEIGHT: int = 720
ARTICLE_WIDTH: int = 960
"""The article's image, resized on the CPU before the network."""
