"""robosuite's tasks as Gymnasium environments: truth in ``info``, images the right way up.

robosuite knows whether a task is done (``_check_success()``) and does not say it in ``info``. Its
cameras' observations (``agentview_image``) and its simulator's images are upside down, as OpenGL
counts rows from below.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError, MissingExtraError

Floats = NDArray[np.float32]


class RobosuiteEnv(gym.Env[Floats, Floats]):
    """One task of robosuite.

    Observation: the robot's and the objects' states in one float32 row, in the order of their
    names. Reward: the task's own sparse one. ``info["success"]`` is robosuite's
    ``_check_success()``. An episode is truncated after ``horizon`` steps and never terminates.

    Args:
        task: a robosuite environment such as ``"Lift"``.
        robots: a robot such as ``"Panda"``.
        camera: what renders, such as ``"agentview"`` or ``"frontview"``.
        height: of a rendered image.
        width: of a rendered image.
        horizon: steps of an episode.
        render_mode: None or ``"rgb_array"``, which draws only when ``render()`` is called.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        robots: str = "Panda",
        camera: str = "agentview",
        height: int = 128,
        width: int = 128,
        horizon: int = 200,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"found render_mode={render_mode!r}. Expected None or 'rgb_array'.")
        suite = _import_robosuite()
        if task not in suite.ALL_ENVIRONMENTS:
            raise ConfigError(
                f"robosuite has no task {task}. Expected one of: "
                f"{', '.join(sorted(suite.ALL_ENVIRONMENTS))}."
            )
        self.render_mode = render_mode
        self._camera, self._size, self._horizon = camera, (height, width), horizon
        self._env = suite.make(
            task,
            robots=robots,
            has_renderer=False,
            has_offscreen_renderer=render_mode is not None,
            use_camera_obs=False,  # it would draw in every step
            use_object_obs=True,
            reward_shaping=False,
            horizon=horizon,
            ignore_done=True,
        )
        self._steps = 0
        observation = self._flat(self._env.reset())
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, observation.shape, np.float32)
        low, high = self._env.action_spec
        self.action_space = gym.spaces.Box(low.astype(np.float32), high.astype(np.float32))

    @property
    def simulation(self) -> Any:
        """robosuite's environment, for a function that tells another truth."""
        return self._env

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if seed is not None:
            # In place: what places the objects holds this very generator.
            state = np.random.default_rng(seed).bit_generator.state
            self._env.rng.bit_generator.state = state
        self._steps = 0
        return self._flat(self._env.reset()), {"success": bool(self._env._check_success())}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Apply an action for one control step."""
        values = np.asarray(action)
        if values.shape != self.action_space.shape or not np.isfinite(values).all():
            raise InputError(
                f"found the action {values}. Expected finite numbers of shape "
                f"{self.action_space.shape}."
            )
        observation, reward, *_ = self._env.step(values)
        self._steps += 1
        info = {"success": bool(self._env._check_success())}
        return self._flat(observation), float(reward), False, self._steps >= self._horizon, info

    def render(self) -> NDArray[np.uint8] | None:
        """Return the camera's image, (height, width, 3) uint8, the right way up."""
        if self.render_mode is None:
            return None
        height, width = self._size
        drawn = self._env.sim.render(height=height, width=width, camera_name=self._camera)
        return np.ascontiguousarray(np.asarray(drawn, np.uint8)[::-1])

    def close(self) -> None:
        """Free the simulation."""
        self._env.close()

    def _flat(self, observation: dict[str, Any]) -> Floats:
        # Concatenations of the others end in -state.
        names = [name for name in sorted(observation) if not name.endswith(("-state", "_image"))]
        parts = [np.ravel(observation[name]) for name in names]
        return np.concatenate(parts).astype(np.float32)


def _import_robosuite() -> Any:
    try:
        return importlib.import_module("robosuite")
    except ImportError as error:
        raise MissingExtraError(
            f"robosuite's tasks need {error.name}, which is not installed or does not load here. "
            "Install it with: pip install robosuite 'mujoco<3.4' (in an environment of its own: it "
            "brings NumPy 1.26)."
        ) from error
