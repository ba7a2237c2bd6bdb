"""dm_control's suite as Gymnasium environments: flat float32 observations, seeded, headless.

A time limit truncates and never terminates: dm_control marks it by a last step whose discount is
not 0 (Tassa et al. 2018, section 3). Shimmy's adapter with FlattenObservation takes 1.3 times the
processor time a step (91 to 68 microseconds on cheetah-run), loads an OpenGL library even where no
image is drawn, and its errors do not say what to install.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from vinoreward.errors import (
    ConfigError,
    InputError,
    MissingDisplayError,
    MissingExtraError,
    install_command,
)

Floats = NDArray[np.float32]
_IMAGE_LIBRARIES = ("glfw", "egl", "osmesa")


class DmControlEnv(gym.Env[Floats, Floats]):
    """One task of the suite.

    Observation: every part that the task observes, in the task's order, in one float32 row.
    Action: float32 within the bounds of the task's specification (-1 to 1 in the suite's
    benchmarking set). Reward: the task's, 0 to 1 in each control step. ``info`` is empty.

    Without a ``render_mode`` no OpenGL library is loaded, unless ``MUJOCO_GL`` names one; the first
    environment of a process decides.

    Args:
        domain: of the suite, such as ``"reacher"``.
        task: of the domain, such as ``"easy"``.
        render_mode: None or ``"rgb_array"``.
        height: of a rendered image, in pixels.
        width: of a rendered image, in pixels.
        camera: the number or the name of the model's camera that renders.
        shadows: False leaves shadows and reflections out of the image: drawn by a processor
            (OSMesa), they take most of its time.
        action_repeat: control steps for which an action is applied in one step; their rewards are
            added.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012

    def __init__(
        self,
        domain: str,
        task: str,
        render_mode: str | None = None,
        height: int = 240,
        width: int = 320,
        camera: int | str = 0,
        shadows: bool = True,
        action_repeat: int = 1,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(
                f"found render_mode={render_mode!r}. Expected None or 'rgb_array'; record a film "
                "of rgb_array to watch a dm_control task."
            )
        if type(action_repeat) is not int or action_repeat < 1:
            raise ConfigError(f"found action_repeat={action_repeat!r}. Expected 1 or more.")
        suite = _import_suite(images=render_mode is not None)
        if (domain, task) not in suite.ALL_TASKS:
            known = ", ".join("-".join(pair) for pair in suite.ALL_TASKS)
            raise ConfigError(f"dm_control has no task {domain}-{task}. Expected one of: {known}.")
        self.render_mode = render_mode
        # The suite draws from this generator; a reset with a seed seeds it again.
        self._random = np.random.RandomState()
        self._env = _load(suite, domain, task, self._random)
        self._repeat = action_repeat
        seconds = self._env.control_timestep() * action_repeat
        self.metadata = {**self.metadata, "render_fps": max(1, round(1 / seconds))}
        self._drawn: dict[str, Any] = {"height": height, "width": width, "camera_id": camera}
        _check_image(self._env.physics.model, height, width, camera)
        if not shadows:
            self._drawn["render_flag_overrides"] = {"shadow": False, "reflection": False}
        size = sum(int(np.prod(part.shape)) for part in self._env.observation_spec().values())
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        bounds = self._env.action_spec()
        self.action_space = gym.spaces.Box(
            bounds.minimum.astype(np.float32), bounds.maximum.astype(np.float32), dtype=np.float32
        )
        self._seeded = False
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start an episode; with a seed, the same one as in a new environment with that seed."""
        super().reset(seed=seed)
        if seed is not None or not self._seeded:
            self._random.seed(int(self.np_random.integers(2**32)))
            self._seeded = True
        self._over = False
        return _flat(self._env.reset().observation), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Apply an action for ``action_repeat`` control steps, or until the episode ends."""
        if self._over:
            raise ResetNeeded("the episode is over, or has not begun; call reset() first.")
        values = np.asarray(action)
        if values.shape != self.action_space.shape or not np.isfinite(values).all():
            raise InputError(
                f"found the action {values}. Expected finite numbers of shape "
                f"{self.action_space.shape}."
            )
        reward = 0.0
        for _ in range(self._repeat):
            time_step = self._env.step(values)
            reward += time_step.reward
            self._over = bool(time_step.last())
            if self._over:
                break
        terminated = self._over and time_step.discount == 0.0
        return (
            _flat(time_step.observation),
            float(reward),
            terminated,
            self._over and not terminated,
            {},
        )

    def render(self) -> NDArray[np.uint8] | None:
        """Return the camera's image, (height, width, 3) uint8."""
        if self.render_mode is None:
            return None
        image: NDArray[np.uint8] = self._env.physics.render(**self._drawn)
        return image

    @property
    def physics(self) -> Any:
        """dm_control's simulation, for a function that tells the truth."""
        return self._env.physics

    def close(self) -> None:
        """Free the simulation."""
        self._env.close()


def _flat(observation: Mapping[str, Any]) -> Floats:
    parts = [np.ravel(part) for part in observation.values()]
    return np.concatenate(parts, dtype=np.float32, casting="same_kind")


def _check_image(model: Any, height: int, width: int, camera: int | str) -> None:
    """Raise ConfigError for a camera that the model lacks, or a size that MuJoCo does not draw."""
    names = [model.id2name(number, "camera") for number in range(model.ncam)]
    if camera not in names and camera not in range(model.ncam):
        known = ", ".join(f"{number} ({name})" for number, name in enumerate(names))
        raise ConfigError(f"found camera={camera!r}. Expected one of the task's: {known}.")
    most = (model.vis.global_.offheight, model.vis.global_.offwidth)
    for name, value, limit in zip(("height", "width"), (height, width), most, strict=True):
        if type(value) is not int or not 1 <= value <= limit:
            raise ConfigError(f"found {name}={value!r}. Expected 1 to {limit} pixels.")


def _import_suite(*, images: bool) -> Any:
    """Import ``dm_control.suite``; without an OpenGL library unless images are wanted."""
    without = not images and "MUJOCO_GL" not in os.environ
    if without:
        os.environ["MUJOCO_GL"] = "disable"  # read when dm_control is imported
    try:
        suite = importlib.import_module("dm_control.suite")
    except ImportError as error:
        raise MissingExtraError(
            f"dm_control's tasks need {error.name}, which is not installed or does not load "
            f"here. {_how_to_install()}"
        ) from error
    finally:
        if without:
            del os.environ["MUJOCO_GL"]
    if images:
        library = importlib.import_module("dm_control._render").BACKEND
        if library not in _IMAGE_LIBRARIES:
            raise MissingDisplayError(
                f"images were asked for, and dm_control was imported with MUJOCO_GL={library}. "
                f"Expected one of {', '.join(_IMAGE_LIBRARIES)}: make the environment that "
                "renders before any other dm_control environment of the process, with MUJOCO_GL "
                "unset or set to a library that is installed (egl where there is no display)."
            )
    return suite


def _load(suite: Any, domain: str, task: str, random: np.random.RandomState) -> Any:
    # MuJoCo's remarks on the suite's own models stay off every actor's terminal.
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return suite.load(domain, task, task_kwargs={"random": random})
    except AttributeError as error:
        # dm_control mirrors MuJoCo's structures by name and does not say which MuJoCo is too new.
        version = importlib.import_module("mujoco").__version__
        raise MissingExtraError(
            f"dm_control cannot use the installed MuJoCo {version} ({error}). Expected one that it "
            f"was made for. {_how_to_install()}"
        ) from error
    finally:
        logger.setLevel(before)


def _how_to_install() -> str:
    if sys.version_info >= (3, 13):
        return (
            "dm-control's dependency labmaze has no wheel for Python 3.13: use Python 3.10 to "
            f"3.12, where {install_command('dm-control')} works."
        )
    return f"Install it with: {install_command('dm-control')}"
