"""PandaHover: a Panda arm learns to hover over an object, and the scene knows whether it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, InputError
from vinoreward.rewards.interventions import Intervention, SearchSpace
from vinoreward_envs import constants as c
from vinoreward_envs.auditing import interventions, spaces
from vinoreward_envs.camera.spec import CameraSpec, Mesh, Renderer, check_choice, checked_size
from vinoreward_envs.inputs import (
    checked_count,
    checked_object_position,
    checked_objects,
    checked_options,
)
from vinoreward_envs.randomization import DomainRandomization, checked_randomization
from vinoreward_envs.scene import HoverScene, Motion, check_renderer
from vinoreward_envs.scenes import HoverTask, ObjectPosition

# With motion="dynamics" the arm may come to rest slightly outside of the workspace.
_SLACK = 0.05
_ALL = np.ones(1, np.bool_)
Ranges = DomainRandomization | Mapping[str, Any] | str | None


class PandaHoverEnv(gym.Env[NDArray[Any], NDArray[np.float32]]):
    """Move the gripper over the object, at hover height, within ten steps.

    ``gym.make("PandaHover-v0")`` puts a learned reward around it, see
    :func:`~vinoreward_envs.making.make_env`; this is the scene, with a reward of its own.

    Action: ``(2,)`` float32, a move (dx, dy) in metres within ±0.1; larger values are clipped.
    Observation (``observation="state"``): float32 gripper x, y in metres, then the object's x, y
    where the object moves between episodes. ``observation="pixels"``: the ``(H, W, 3)`` uint8
    camera image. Reward: +100 for success, -5 for a move refused at the edge of the workspace
    (the arm stays where it is), else -1. The episode terminates on success and is truncated after
    ten steps.

    ``info`` holds ``true_success`` (the gripper within 3.5 cm of the point above the object),
    ``distance`` (metres), ``refused`` and, with ``oracle``, ``is_success``.

    ``reset(options={"object_position": (x, y)})`` places the object for that episode.

    Args:
        oracle: the truth is paid and ends episodes; False leaves both to a wrapper.
        object_position: ``"fixed"``, ``"random"`` in each episode, or ``(x, y)`` in metres.
        motion: ``"kinematic"`` or ``"dynamics"`` (500 physics sub-steps; needs PyBullet).
        camera: ``"fast"`` or ``"tiny"`` (PyBullet's TinyRenderer, the reference).
        mesh: ``"full"`` or ``"20"`` (a fifth of the triangles, the default).
        image_size: ``(height, width)``; None is 96x128.
        fidelity: ``"article"`` is the article's setting, the baseline of speed claims: 960x720 by
            TinyRenderer, full meshes, 500 sub-steps, PyBullet's default inverse kinematics. It
            replaces ``motion``, ``camera``, ``mesh`` and ``image_size``.
        observation: ``"state"`` or ``"pixels"``.
        render_mode: None or ``"rgb_array"``.
        success_hold_steps: with ``oracle``, steps in a row that must be successes.
        randomization: ranges from which each episode draws its light, camera, object, table,
            noise and delays, a :class:`~vinoreward_envs.randomization.DomainRandomization`, a table
            of its fields, or ``"lab"``; None: nothing differs. Needs the kinematic motion and the
            fast camera.

    Raises:
        ConfigError: an argument that cannot work.
        MissingExtraError: PyBullet or the camera's library is needed and not installed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(
        self,
        *,
        oracle: bool = True,
        object_position: ObjectPosition = "fixed",
        motion: Motion = "kinematic",
        camera: Renderer = "fast",
        mesh: Mesh | None = None,
        image_size: tuple[int, int] | None = None,
        fidelity: Literal["article"] | None = None,
        observation: Literal["state", "pixels"] = "state",
        render_mode: Literal["rgb_array"] | None = None,
        success_hold_steps: int = 1,
        randomization: Ranges = None,
    ) -> None:
        check_choice("fidelity", fidelity, (None, "article"))
        check_choice("observation", observation, ("state", "pixels"))
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        self.render_mode = render_mode
        position = checked_object_position(object_position)
        self._can_vary = motion == "kinematic" and camera == "fast" and fidelity is None
        self.randomization = randomization
        if fidelity == "article":
            if image_size is not None:
                raise ConfigError(
                    f'Found image_size={image_size} with fidelity="article", whose image is '
                    f"always {c.ARTICLE_WIDTH}x{c.ARTICLE_HEIGHT}. Leave one of them out."
                )
            spec = CameraSpec(c.ARTICLE_HEIGHT, c.ARTICLE_WIDTH, renderer="tiny", mesh="full")
            self.scene = HoverScene(camera=spec, motion="dynamics", converged=False)
        else:
            spec = CameraSpec(*checked_size(image_size), renderer=camera, mesh=mesh or "20")
            self.scene = HoverScene(camera=spec, motion=motion)
        hold = checked_count("success_hold_steps", success_hold_steps)
        self._task = HoverTask(self.scene.batch, position, oracle=oracle, hold_steps=hold)
        self._pixels = observation == "pixels"
        if self._pixels or render_mode is not None:
            check_renderer(spec.renderer)
        self.observation_space = observation_space(spec, position, pixels=self._pixels)
        self.action_space = gym.spaces.Box(-c.MAX_MOVE, c.MAX_MOVE, (2,), np.float32)
        self._begun = False

    @property
    def image_scene(self) -> dict[str, str | int]:
        """What the image depends on; a wrapper compares it with its bundle's."""
        return self.scene.camera_spec.as_dict()

    @property
    def randomization(self) -> DomainRandomization:
        """Ranges from which the episodes draw that begin from now on.

        Setting them takes what the argument takes, and raises the same errors.
        """
        return self._randomization

    @randomization.setter
    def randomization(self, value: Ranges) -> None:
        ranges = checked_randomization(value)
        if ranges.varies and not self._can_vary:
            raise ConfigError(
                'Found randomization with motion="dynamics", camera="tiny" or fidelity="article"; '
                "expected the kinematic motion and the fast camera. Leave one of both out."
            )
        self._randomization = ranges

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Place the object, bring the arm home; return the observation and info."""
        super().reset(seed=seed)
        given, objects = checked_options(options, {"object_position"}), None
        if given:
            asked = given["object_position"]
            objects = checked_objects(() if asked is None else asked)  # None is no place
        infos = self._task.begin(_ALL, objects, self._randomization, self._uniforms)
        self._begun = True
        return self._observe(), {name: values[0].item() for name, values in infos.items()}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Move the gripper by ``action``, ``(2,)`` in metres."""
        if not self._begun:
            raise ResetNeeded("Found a step before the first reset; call reset() first.")
        *step, infos = self._task.step(_checked_action(action), _ALL)
        reward, success, truncated = (values[0].item() for values in step)
        info = {name: values[0].item() for name, values in infos.items()}
        return self._observe(), reward, success, truncated, info

    def audit_interventions(self) -> list[Intervention]:
        """Return changes that undo a success: the object or the arm is moved away."""
        return interventions(self.scene)

    def audit_spaces(self) -> list[SearchSpace]:
        """Return the states that an audit searches: gripper and object, see :mod:`.auditing`."""
        return spaces(self.scene, self._randomization)

    def render(self) -> NDArray[np.uint8] | None:
        """Return the ``(H, W, 3)`` uint8 image, or None without a render mode."""
        return None if self.render_mode is None else self.scene.render()

    def close(self) -> None:
        """Free the scene."""
        self.scene.close()

    def _uniforms(self, count: int, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        return self.np_random.random((1, count))

    def _observe(self) -> NDArray[Any]:
        observed: NDArray[Any] = self.scene.render() if self._pixels else self._task.observe()[0]
        return observed


def observation_space(
    spec: CameraSpec, object_position: ObjectPosition, *, pixels: bool
) -> gym.spaces.Box:
    """Return the space of one environment's observations."""
    if pixels:
        return gym.spaces.Box(0, 255, (spec.height, spec.width, 3), np.uint8)
    repeats = 2 if object_position == "random" else 1
    low = np.tile(np.array(c.WORKSPACE_LOW) - _SLACK, repeats).astype(np.float32)
    high = np.tile(np.array(c.WORKSPACE_HIGH) + _SLACK, repeats).astype(np.float32)
    return gym.spaces.Box(low, high, dtype=np.float32)


def _checked_action(action: Any) -> NDArray[np.float64]:
    """Return the action as ``(1, 2)`` float64 within its bounds, or raise ``InputError``."""
    try:
        move = np.asarray(action, np.float64)
    except (TypeError, ValueError):
        move = np.empty(0)
    if move.shape != (2,) or not np.isfinite(move).all():
        raise InputError(
            f"Found the action {action!r}; expected two finite numbers, (dx, dy) in metres within "
            f"{c.MAX_MOVE}. Check the policy that made it."
        )
    return np.clip(move, -c.MAX_MOVE, c.MAX_MOVE)[None]
