"""A KUKA arm that reaches for a sphere 5 to 8 pixels wide, and a policy that does it.

For ``vinoreward capture --env reach:Reach-v0 --policy reach.py:act`` in this folder, with
``PYTHONPATH=.``; README.md beside it has the commands. It needs PyBullet.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pybullet
import pybullet_data
from pybullet_utils.bullet_client import BulletClient

Array = npt.NDArray[np.float32]

HEIGHT, WIDTH = 120, 160
LOW, HIGH = np.array([0.40, -0.25, 0.05]), np.array([0.70, 0.25, 0.30])
"""Corners of the box, in metres, that the tip moves in and the sphere is in."""
RADIUS = 0.02
REACHED = 0.04
"""Metres between tip and centre of the sphere."""
STRIDE = 0.04
"""Metres of a step at most."""
FINGER = 0.08
"""Metres of the pointer on the flange; its end is the tip."""
FLANGE = 6
HOME = [0.0, 0.4, 0.0, -1.6, 0.0, 1.1, 0.0]


class Reach(gym.Env[Array, Array]):
    """The arm points down; an action moves its tip. The observation is tip and sphere, in metres.

    The sphere has no body: the tip may be in it.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (6,), np.float32)
        self._world = world = BulletClient(pybullet.DIRECT)
        world.setAdditionalSearchPath(pybullet_data.getDataPath())
        world.loadURDF("plane.urdf")
        self._arm = world.loadURDF("kuka_iiwa/model.urdf", useFixedBase=True)
        red = world.createVisualShape(
            pybullet.GEOM_SPHERE, radius=RADIUS, rgbaColor=[0.9, 0.1, 0.1, 1]
        )
        self._sphere = world.createMultiBody(0, baseVisualShapeIndex=red)
        grey = world.createVisualShape(
            pybullet.GEOM_CYLINDER, radius=0.008, length=FINGER, rgbaColor=[0.2, 0.2, 0.2, 1]
        )
        self._finger = world.createMultiBody(0, baseVisualShapeIndex=grey)
        self._down = world.getQuaternionFromEuler([np.pi, 0, 0])
        self._view = world.computeViewMatrix([1.35, 0.55, 0.75], [0.5, 0, 0.2], [0, 0, 1])
        self._lens = world.computeProjectionMatrixFOV(38, WIDTH / HEIGHT, 0.05, 4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Put tip and sphere anywhere in the box."""
        super().reset(seed=seed)
        for joint, angle in enumerate(HOME):
            self._world.resetJointState(self._arm, joint, angle)
        self._move(self.np_random.uniform(LOW, HIGH))
        self._goal = self.np_random.uniform(LOW, HIGH)
        self._world.resetBasePositionAndOrientation(self._sphere, self._goal, [0, 0, 0, 1])
        return self._observe(), self._info()

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Move the tip by up to ``STRIDE`` along each axis."""
        self._move(np.clip(self._tip + STRIDE * np.clip(action, -1, 1), LOW, HIGH))
        return self._observe(), 0.0, False, False, self._info()

    def render(self) -> npt.NDArray[np.uint8]:  # type: ignore[override]
        """Draw the scene (120, 160, 3)."""
        shot = self._world.getCameraImage(
            WIDTH, HEIGHT, self._view, self._lens, renderer=pybullet.ER_TINY_RENDERER
        )
        return np.reshape(np.asarray(shot[2], np.uint8), (HEIGHT, WIDTH, 4))[..., :3].copy()

    def close(self) -> None:
        """Leave the simulation."""
        if self._world.isConnected():
            self._world.disconnect()

    def _move(self, tip: npt.NDArray[np.float64]) -> None:
        """Move the tip there, without dynamics: inverse kinematics until it is."""
        wanted = tip + np.array([0, 0, FINGER])
        for _ in range(20):
            angles = self._world.calculateInverseKinematics(
                self._arm, FLANGE, wanted, self._down, maxNumIterations=50
            )
            for joint, angle in enumerate(angles):
                self._world.resetJointState(self._arm, joint, angle)
            state = self._world.getLinkState(self._arm, FLANGE, computeForwardKinematics=True)
            flange, turn = np.array(state[4]), state[5]
            if np.linalg.norm(flange - wanted) < 1e-3:
                break
        axis = np.reshape(self._world.getMatrixFromQuaternion(turn), (3, 3))[:, 2]
        self._tip = flange + FINGER * axis
        middle = flange + FINGER / 2 * axis
        self._world.resetBasePositionAndOrientation(self._finger, middle, turn)

    def _observe(self) -> Array:
        return np.concatenate([self._tip, self._goal]).astype(np.float32)

    def _info(self) -> dict[str, Any]:
        return {"is_success": bool(np.linalg.norm(self._tip - self._goal) < REACHED)}


def act(observation: Array) -> Array:
    """Go straight to the sphere."""
    return np.clip((observation[3:] - observation[:3]) / STRIDE, -1, 1)


if "Reach-v0" not in gym.registry:  # as a module and as a policy, this file is read twice
    gym.register("Reach-v0", entry_point=Reach, max_episode_steps=30)
