"""Widens what differs between episodes while a policy of Stable-Baselines3 learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from vinoreward.errors import ConfigError
from vinoreward_training.sb3.batched import BatchedVecEnv


class RandomizationCurriculum(BaseCallback):
    """Sets ``env.randomization`` as a function of the steps done.

    Episodes that begin afterwards draw from it; those under way go on as they drew::

        from vinoreward_training.sb3 import RandomizationCurriculum
        from vinoreward_envs.randomization import LAB

        callback = RandomizationCurriculum(lambda steps: LAB.scaled(min(1.0, steps / 20_000)))

    Args:
        ranges: takes the steps of the training, and returns the ``randomization``.
        every: steps between two settings, at least 1; the first is before the first step.
    """

    def __init__(self, ranges: Callable[[int], Any], *, every: int = 1000) -> None:
        super().__init__()
        if every < 1:
            raise ConfigError(field="every", value=every, expected="at least 1 step")
        self.ranges, self.every = ranges, every
        self._next = 0

    def _on_training_start(self) -> None:
        if not self.training_env.has_attr("randomization"):
            raise ConfigError(
                "found environments without a randomization to set. Expected those of PandaHover; "
                "leave RandomizationCurriculum out."
            )
        self._next = 0
        self._on_step()

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next:
            self._next = self.num_timesteps + self.every
            _set_everywhere(self.training_env, self.ranges(self.num_timesteps))
        return True


def _set_everywhere(env: VecEnv, ranges: Any) -> None:
    layer = env
    while isinstance(layer, VecEnvWrapper):
        layer = layer.venv
    if isinstance(layer, BatchedVecEnv):
        layer.set_attr("randomization", ranges)
    else:  # below the wrappers of each environment
        layer.env_method("set_wrapper_attr", "randomization", ranges, force=False)
