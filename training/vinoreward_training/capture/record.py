"""Whole episodes of any environment, as rows of a LeRobot dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.wrappers.sources import part_at, parts_below
from vinoreward_training.capture.play import EARLY, Episodes
from vinoreward_training.data.dataset_files import image_reader
from vinoreward_training.data.lerobot import REWARD, SUCCESS
from vinoreward_training.data.lerobot_writer import LeRobotWriter, camera_feature, column_feature

DONE, ACTION, STATE = "next.done", "action", "observation.state"
IMAGES = "observation.images."
STATES = ("", "agent_pos", "state", "observation")
"""What environments call the numbers that LeRobot calls its state; ``""`` is a plain vector."""
FPS = 30
"""Of environments that do not say their own ``render_fps``."""

Features = dict[str, dict[str, Any]]
Take = Callable[[Any], npt.NDArray[np.uint8]]


class Recording(Episodes):
    """Plays episodes and writes each step of them; for the arguments see :class:`Episodes`.

    As LeRobot's own evaluation does it, a row has what is seen before an action, the action, and
    what it led to (``next.success``, ``next.reward``, ``next.done``). The last row of an episode
    has what is seen at its end, and repeats the rest of the row before it.
    """

    def __init__(self, env: Any, *others: Any) -> None:
        super().__init__(env, *others)
        size, sources = self._config.image_size, self._config.image_source
        self.sources = {camera_key(source): source for source in sources}
        """Where each camera's images are, by its key."""
        self._takes: dict[str, Take] = {
            key: image_reader(env, self._name, source, size) for key, source in self.sources.items()
        }
        self._states = state_keys(env.observation_space)
        self._acts = action_feature(env.action_space)
        rate = env.metadata.get("render_fps")
        self.fps = max(1, round(rate)) if isinstance(rate, int | float) else FPS

    def features(self) -> Features:
        """Look at the first moment; return the descriptions of the columns."""
        first = self._first()
        features: Features = {
            key: camera_feature(take(first).shape) for key, take in self._takes.items()
        }
        for key, name in self._states.items():
            features[key] = column_feature("float32", np.size(part_of(first, name)))
        if self._acts is not None:
            features[ACTION] = self._acts
        features[REWARD] = column_feature("float32")
        return features | {name: column_feature("bool") for name in (SUCCESS, DONE)}

    def fill(self, writer: LeRobotWriter) -> Iterator[int]:
        """Record whole episodes until there are ``frames`` rows; yield how many each has."""
        while writer.frames < self._config.frames:
            truths, before = [], writer.frames
            observation, steps = self._begin(self._seed(writer.episodes))
            cells, images = self._seen(observation)
            outcome: dict[str, Any] = {}
            for step in steps:
                outcome = {REWARD: step.reward, SUCCESS: step.success, DONE: step.ended}
                if self._acts is not None:
                    outcome[ACTION] = np.array(step.action)
                writer.add({**cells, **outcome}, images)
                truths.append(step.success)
                cells, images = self._seen(step.observation)
            writer.add({**cells, **outcome}, images)
            writer.end_episode()
            self._count(truths)
            yield writer.frames - before
            if self.tried.total() == EARLY and not self.won.total():
                self._say(
                    f"none of {EARLY} episodes of {self._name} succeeds. What helps: "
                    f"{self._advice('success')}. Ctrl-C stops it."
                )

    def _seen(self, observation: Any) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.uint8]]]:
        cells = {key: np.array(part_of(observation, name)) for key, name in self._states.items()}
        return cells, {key: take(observation) for key, take in self._takes.items()}


def camera_key(source: str) -> str:
    """Return LeRobot's key for images from ``render``, ``obs`` or ``obs:KEY``."""
    return IMAGES + source.removeprefix("obs:").removeprefix(IMAGES).replace("/", "_")


def state_keys(space: gym.Space[Any]) -> dict[str, str]:
    """Return the vectors of an observation: their names in it, by LeRobot's keys."""
    keys: dict[str, str] = {}
    for name, part in parts_below(space).items():
        if isinstance(part, gym.spaces.Box) and len(part.shape) == 1 and part.dtype != np.uint8:
            key = f"observation.{name.removeprefix('observation.').replace('/', '_')}"
            keys[STATE if name in STATES and STATE not in keys else key] = name
    return keys


def part_of(observation: Any, name: str) -> Any:
    """Return the part of an observation that :func:`state_keys` named."""
    return observation if name == "" else part_at(observation, name)


def action_feature(space: gym.Space[Any]) -> dict[str, Any] | None:
    """Return the description of the column of actions; None if they are no plain numbers."""
    if isinstance(space, gym.spaces.Discrete):
        return column_feature("int64")
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return column_feature("int64", int(np.prod(space.shape))) if len(space.shape) == 1 else None
    if isinstance(space, gym.spaces.Box) and len(space.shape) == 1:
        return column_feature("float32", space.shape[0])
    return None


def described(features: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the columns in words: images with their size, vectors with their length."""
    sizes = {
        key: "x".join(map(str, each["shape"][:2] if each["dtype"] == "video" else each["shape"]))
        for key, each in features.items()
    }
    return ", ".join(f"{key} ({size})" for key, size in sizes.items() if not key.startswith("next"))
