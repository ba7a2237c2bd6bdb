"""The tasks of the papers on compressed actors, by name, as plain data.

ActorQ: eight tasks of dm_control's suite and three of Gym. AcceRL: twelve Atari games. Ours: the
hover scene with its learned reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Suite = Literal["dm_control", "gym", "atari", "hover"]


@dataclass(frozen=True)
class Task:
    """A task and what there is to know before it is made.

    Attributes:
        name: as in :data:`TASKS`.
        suite: what it is made with; ``"dm_control"`` and ``"atari"`` are extras.
        source: its id there: Gymnasium's, ``domain-task`` or the game.
        observation_shape: (D,) float32, or (4, 84, 84) uint8.
        actions: number of discrete actions, or dimensions of a continuous one.
        discrete: which of them.
        max_steps: an episode is truncated there.
        network: the one that the paper used, by its name in ``actor_networks``.
        threshold: mean return from which the task counts as solved: Gymnasium's where it states
            one, else the paper's; None where neither does.
        title: the paper's name for it.
        observation_dtype: ``"uint8"`` for pictures.
    """

    name: str
    suite: Suite
    source: str
    observation_shape: tuple[int, ...]
    actions: int
    discrete: bool
    max_steps: int
    network: str
    threshold: float | None = None
    title: str = ""
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
    return Task(name, "dm_control", name, shape, actions, False, 1000, network, threshold, title)


def _gym(name: str, title: str, sizes: tuple[int, int], steps: int, threshold: float) -> Task:
    """Return a task of Gymnasium's classic control."""
    # CartPole-v1 cut at 200 steps is CartPole-v0, which Gymnasium warns of.
    shape, actions, source = (sizes[0],), sizes[1], name.replace("Pole-v0", "Pole-v1")
    return Task(name, "gym", source, shape, actions, True, steps, "3x2048", threshold, title)


def _game(name: str, actions: int, score: float | None = None) -> Task:
    """Return a game; it is truncated after 108000 frames, four to a step."""
    shape, steps = (4, 84, 84), 27_000
    return Task(name, "atari", name, shape, actions, True, steps, "original", score, name, "uint8")


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

EASIER = (_control("reacher-easy", "Reacher Easy", (6, 2), network="2x256"),)
"""Not in the papers: learned in minutes on a few cores."""

TASKS: Mapping[str, Task] = MappingProxyType(
    {task.name: task for task in (*ACTORQ, *ACCERL, *HOVER, *EASIER)}
)
