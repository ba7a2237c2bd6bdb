"""The papers' tasks by name; makes them and any other Gymnasium environment for actors.

ActorQ: eight tasks of dm_control's suite and three of Gym. AcceRL: twelve Atari games. Ours: the
hover scene with its learned reward. A task's libraries are imported when it is made; never torch.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import (
    AtariPreprocessing,
    ClipReward,
    DtypeObservation,
    FlattenObservation,
    FrameStackObservation,
    RecordEpisodeStatistics,
    TimeLimit,
    TransformAction,
)

from vinoreward.errors import ConfigError, needed_for
from vinoreward_actors.actor_learner.acting.environments import (
    ACTION_CURE,
    as_config_error,
    in_space,
)
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.tasks.environments import make_env

Env = gym.Env[Any, Any]
Suite = Literal["dm_control", "gym", "atari", "hover"]


@dataclass(frozen=True)
class Task:
    """A task, as it is known before it is made."""

    name: str
    suite: Suite
    source: str
    """Gymnasium's id."""
    observation_shape: tuple[int, ...]
    """(D,) float32, or (4, 84, 84) uint8."""
    actions: int
    """Number of discrete actions, or dimensions of a continuous one."""
    discrete: bool
    max_steps: int
    network: str
    """The paper's, by its name in :mod:`.networks`."""
    threshold: float | None = None
    """Mean return from which it counts as solved: Gymnasium's, else the paper's, if any."""
    title: str = ""
    """The paper's name for it."""
    observation_dtype: Literal["float32", "uint8"] = "float32"


def _control(
    name: str,
    title: str,
    sizes: tuple[int, int],
    threshold: float | None = None,
    network: str = "3x2048",
) -> Task:
    """Return a task of dm_control's suite; its episodes last 1000 steps and pay 1000 at most."""
    shape, actions = (sizes[0],), sizes[1]
    source = f"dm_control/{name}-v0"
    return Task(name, "dm_control", source, shape, actions, False, 1000, network, threshold, title)


def _gym(name: str, title: str, sizes: tuple[int, int], steps: int, threshold: float) -> Task:
    """Return a task of Gymnasium's classic control."""
    # CartPole-v1 cut at 200 steps is CartPole-v0, which Gymnasium warns of.
    shape, actions, source = (sizes[0],), sizes[1], name.replace("Pole-v0", "Pole-v1")
    return Task(name, "gym", source, shape, actions, True, steps, "3x2048", threshold, title)


def _game(name: str, actions: int, score: float | None = None) -> Task:
    """Return a game; it is truncated after 108000 frames, four to a step."""
    source, shape, steps = f"ALE/{name.title().replace('_', '')}-v5", (4, 84, 84), 27_000
    return Task(
        name, "atari", source, shape, actions, True, steps, "original", score, name, "uint8"
    )


def _hover(name: str, size: int) -> Task:
    return Task(name, "hover", name, (size,), 2, False, 10, "2x256", title=name)


ACTORQ = (
    _control("cartpole-balance", "Cartpole Balance", (5, 1), 941.22),
    _control("walker-stand", "Walker Stand", (24, 6), 947.74),
    _control("hopper-stand", "Hopper Stand", (15, 4), 836.41),
    _control("reacher-hard", "Reacher Hard", (6, 2), 948.12),
    _control("cheetah-run", "Cheetah Run", (17, 6), 732.31),
    _control("finger-spin", "Finger Spin", (9, 2), 810.32),
    _control("humanoid-stand", "Humanoid Stand", (67, 21), 884.89),
    _control("humanoid-walk", "Humanoid Walk", (67, 21), 649.91),
    _gym("CartPole-v0", "Cartpole (Gym)", (4, 2), 200, 195.0),
    _gym("MountainCar-v0", "Mountain Car (Gym)", (2, 3), 200, -110.0),
    _gym("Acrobot-v1", "Acrobot (Gym)", (6, 3), 500, -100.0),
)
"""The eleven of ActorQ's table, in its order."""

ACCERL = (
    _game("alien", 18),
    _game("amidar", 10),
    _game("beam_rider", 9),
    _game("name_this_game", 6),
    _game("riverraid", 18),
    _game("hero", 18),
    _game("space_invaders", 6),
    _game("breakout", 4),
    _game("road_runner", 18),
    _game("bank_heist", 18),
    _game("pong", 6, 20.5),
    _game("seaquest", 18),
)
"""The twelve games of AcceRL's table 4, in its order; it states a score for Pong alone."""

HOVER = (_hover("PandaHover-v0", 2), _hover("PandaHoverRandom-v0", 4))

TASKS: Mapping[str, Task] = MappingProxyType(
    {task.name: task for task in (*ACTORQ, *ACCERL, *HOVER)}
)

IMAGE_CURE = (
    "make that with GrayscaleObservation, ResizeObservation to (84, 84) and FrameStackObservation "
    "of 4, or one row with FlattenObservation, all of gymnasium.wrappers"
)
"""What to do about images of another shape: the end of a sentence."""
_OURS = ("normalise_actions", "max_steps", "render_mode")
"""Options of :func:`make_task` that the environment itself does not get."""


def find_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """Return a task of the table, or describe another environment by making it once.

    ``name`` is a task's or an id of Gymnasium's (``dm_control/DOMAIN-TASK-v0`` are Shimmy's,
    ``ALE/Game-v5`` are ale-py's, ``package:Id-v0`` imports the package); ``options`` are those of
    :func:`make_task`.
    """
    if name in TASKS:
        return TASKS[name]
    if name.startswith("ALE/"):
        task = Task(name, "atari", name, (1,), 1, True, 27_000, "original")
    elif name in gym.registry or ":" in name or name.startswith("dm_control/"):
        task = Task(name, "gym", name, (1,), 1, True, 0, "2x256")
    else:
        raise ConfigError(
            f"no task {name!r}. Expected one of: {', '.join(TASKS)}; or dm_control/DOMAIN-TASK-v0, "
            "ALE/Game-v5, or the id of a registered Gymnasium environment (package:Id-v0 for one "
            "that a package registers)."
        )
    own = {key: value for key, value in (options or {}).items() if key not in _OURS}
    return _described(task, own)


def _described(task: Task, options: Mapping[str, Any]) -> Task:
    """Fill in what only the environment knows."""
    env = _flat(_made(task, None, None, options), task.name)
    try:
        observations, actions, spec = env.observation_space, env.action_space, env.spec
        if isinstance(actions, gym.spaces.Discrete) and actions.start == 0:
            count, discrete = int(actions.n), True
        elif isinstance(actions, gym.spaces.Box) and len(actions.shape) == 1:
            count, discrete = actions.shape[0], False
        else:
            raise ConfigError(
                f"{task.name} takes actions from {actions}. Expected Discrete actions from 0, or a "
                f"Box of one row; {ACTION_CURE}."
            )
        return dataclasses.replace(
            task,
            observation_shape=observations.shape or (),
            observation_dtype="uint8" if observations.dtype == np.uint8 else "float32",
            actions=count,
            discrete=discrete,
            max_steps=task.max_steps or (spec.max_episode_steps if spec else None) or 1000,
            threshold=spec.reward_threshold if spec else None,
            title=task.name,
        )
    finally:
        env.close()


def make_task(
    name: str,
    seed: int | None = None,
    *,
    normalise_actions: bool = True,
    max_steps: int | None = None,
    render_mode: str | None = None,
    **options: Any,
) -> Env:
    """Make a task's environment.

    Observations are one float32 row, or (4, 84, 84) uint8 images; actions are Discrete (from 0)
    or a Box of one row. A time limit truncates and never terminates.

    Args:
        name: of a task, or an environment's id; see :func:`find_task`.
        seed: of the first reset that names none itself, and of the action space. None: drawn.
        normalise_actions: scale Box actions to [-1, 1].
        max_steps: truncate episodes there; later than at the task's limit for Gymnasium's only.
        render_mode: None or ``"rgb_array"``.
        options: keyword arguments of the environment. A game takes ``noop_max``, ``frame_skip``
            and ``terminal_on_life_loss`` of Gymnasium's ``AtariPreprocessing`` too, and
            ``clip_reward``, the points clipped to [-1, 1]: for training.
    """
    if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
        raise ConfigError(f"found max_steps={max_steps!r}. Expected 1 or more, or None.")
    task = find_task(name, options)
    env = _flat(_made(task, max_steps, render_mode, options), name)
    if normalise_actions:
        env = _normalised(env, name)
    return _FirstSeed(env, seed) if seed is not None else env


class _FirstSeed(gym.Wrapper[Any, Any, Any, Any]):
    """Gives the first reset a seed, which makes an environment repeatable."""

    def __init__(self, env: Env, seed: int) -> None:
        super().__init__(env)
        self._seed: int | None = seed
        env.action_space.seed(seed)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        first, self._seed = self._seed, None
        return self.env.reset(seed=first if seed is None else seed, options=options)


def _made(
    task: Task, max_steps: int | None, render_mode: str | None, options: Mapping[str, Any]
) -> Env:
    """Make an environment of a suite, with errors that name the task."""
    with as_config_error(
        f"an environment of {task.name} cannot be made",
        "one that can; mend it, or change its options",
    ):
        env: Env
        try:
            if task.suite == "atari":
                env = _played_game(task.source, max_steps, render_mode, **options)
            else:
                steps = 0 if task.suite == "hover" else max_steps or task.max_steps
                limit = {"max_episode_steps": steps} if steps else {}
                # The checker checks the first step only, but slows all others.
                arguments = {**options, **limit, "disable_env_checker": True}
                played = RewardedTask(env=task.source, env_kwargs=arguments)
                env = make_env(played, render_mode=render_mode)
        except TypeError as error:
            raise ConfigError(
                f"{task.name} does not take these options: {error}. Expected those that its class "
                "documents."
            ) from error
        if task.suite == "hover" and max_steps and max_steps < task.max_steps:
            env = TimeLimit(env, max_steps)
        return env


def _played_game(
    source: str,
    max_steps: int | None,
    render_mode: str | None,
    *,
    noop_max: int = 30,
    frame_skip: int = 4,
    terminal_on_life_loss: bool = False,
    clip_reward: bool = False,
    repeat_action_probability: float = 0.0,
    **options: Any,
) -> Env:
    """Make a game as Mnih et al. 2015 play it, by Gymnasium's wrappers."""
    with needed_for("playing Atari games", "atari"):
        ale_py = importlib.import_module("ale_py")  # registers the games
        importlib.import_module("cv2")  # with which AtariPreprocessing resizes
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    arguments = {
        **options,
        "frameskip": 1,
        "repeat_action_probability": repeat_action_probability,
        "disable_env_checker": True,
    }
    env = make_env(RewardedTask(env=source, env_kwargs=arguments), render_mode=render_mode)
    env = AtariPreprocessing(
        env,
        noop_max=noop_max,
        frame_skip=frame_skip,
        terminal_on_life_loss=terminal_on_life_loss,
    )
    env = FrameStackObservation(env, 4)
    if max_steps is not None:
        env = TimeLimit(env, max_steps)
    # The points themselves are in info["episode"] then.
    return ClipReward(RecordEpisodeStatistics(env), -1.0, 1.0) if clip_reward else env


def _flat(env: Env, name: str) -> Env:
    """Make observations one float32 row, but for images of (C, H, W) uint8."""
    space = env.observation_space
    if not space.is_np_flattenable:
        env.close()
        raise ConfigError(
            f"{name} gives observations from {space}. Expected what fits one row of fixed length; "
            "wrap the environment."
        )
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
        if space.shape[0] > space.shape[2]:
            env.close()
            raise ConfigError(
                f"{name} gives images of {space.shape}. Expected (channels, height, width), of "
                f"which networks here take (4, 84, 84); {IMAGE_CURE}."
            )
        return env
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        env = FlattenObservation(env)
    if env.observation_space.dtype != np.float32:
        with warnings.catch_warnings():
            # That the bounds of float64, infinite mostly, are those of float32 now.
            warnings.filterwarnings("ignore", ".*precision lowered by casting", UserWarning)
            env = DtypeObservation(env, np.float32)
    return env


def _normalised(env: Env, name: str) -> Env:
    """Scale the actions of a Box to [-1, 1], float32."""
    space = env.action_space
    if not isinstance(space, gym.spaces.Box):
        return env
    if not (np.isfinite([space.low, space.high]).all() and len(space.shape) == 1):
        env.close()
        raise ConfigError(
            f"{name} takes actions from {space}. Expected one row of bounded numbers, to be "
            f"scaled to [-1, 1]; {ACTION_CURE}."
        )
    row = gym.spaces.Box(np.float32(-1.0), np.float32(1.0), space.shape, np.float32)
    return (
        env if space == row else TransformAction(env, lambda action: in_space(action, space), row)
    )
