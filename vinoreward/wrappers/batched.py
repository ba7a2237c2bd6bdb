"""A Gymnasium vector environment as Stable-Baselines3's: all environments in one object.

This module imports SB3. ``vinoreward`` has the class as ``BatchedVecEnv``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from vinoreward.errors import ConfigError, needed_for

with needed_for("vinoreward.wrappers.batched", "train"):
    from stable_baselines3.common.vec_env import VecEnv


class BatchedVecEnv(VecEnv):
    """Steps a vector environment that is one object, such as a batch of hover environments.

    ::

        import gymnasium as gym
        from stable_baselines3 import SAC
        from vinoreward import BatchedVecEnv

        batch = gym.make_vec("PandaHover-v0", 16, vectorization_mode="vector_entry_point")
        SAC("MlpPolicy", BatchedVecEnv(batch)).learn(200)

    ``infos[i]`` is what the batch tells of environment ``i``. Where an episode ended it is what
    that episode ended with, with ``terminal_observation``, ``TimeLimit.truncated`` and
    ``episode``: its return ``r``, its length ``l`` and its seconds ``t``, as SB3's ``Monitor``
    writes them.

    ``get_attr`` gives an attribute of the batch for each environment, and ``env_method`` gives a
    method the number of each environment as its first argument. A batch that has ``generators``,
    one per environment, shows them as ``np_random``.

    Args:
        batch: resets an environment in the step that ends its episode, and has NumPy arrays.

    Raises:
        ConfigError: another autoreset mode; at a reset, observations that are no NumPy arrays.
    """

    def __init__(self, batch: VectorEnv[Any, Any, Any]) -> None:
        mode = batch.metadata.get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"{type(batch.unwrapped).__name__} has the autoreset mode "
                f"{getattr(mode, 'value', mode)}. Expected same-step, as Stable-Baselines3's "
                "environments reset themselves; make it so, or use SB3's make_vec_env."
            )
        self.batch = batch
        """The environments."""
        self._actions: NDArray[Any] | None = None
        self._returns = np.zeros(batch.num_envs)
        self._lengths = np.zeros(batch.num_envs, np.int64)
        self._began = time.perf_counter()
        super().__init__(batch.num_envs, batch.single_observation_space, batch.single_action_space)

    def reset(self) -> Any:
        """Start new episodes everywhere, from the seeds of the last :meth:`seed`."""
        # A batch takes one seed per environment too; Gymnasium's own type names one alone.
        seeds: Any = self._seeds if any(seed is not None for seed in self._seeds) else None
        options = self._options[0] or None
        self._reset_seeds()
        self._reset_options()
        observations, infos = self.batch.reset(seed=seeds, options=options)
        if not isinstance(observations, np.ndarray | dict):
            raise ConfigError(
                f"{type(self.batch.unwrapped).__name__} gives observations as "
                f"{type(observations).__name__}. Expected NumPy arrays, which Stable-Baselines3 "
                'takes; make a batch of hover environments with array="numpy".'
            )
        self.reset_infos = rows_of(infos, self.num_envs)
        self._returns[:], self._lengths[:] = 0.0, 0
        return observations

    def reset_where(self, mask: NDArray[np.bool_], seeds: Sequence[int]) -> Any:
        """Start new episodes where ``mask`` is True, each from its seed; return all observations.

        For a batch that takes the reset option ``reset_mask``, as hover environments do.
        """
        some: Any = [seed if one else None for seed, one in zip(seeds, mask, strict=True)]
        observations, infos = self.batch.reset(seed=some, options={"reset_mask": mask})
        rows = rows_of(infos, self.num_envs)
        for i in np.flatnonzero(mask).tolist():
            self.reset_infos[i] = rows[i]
        self._returns[mask], self._lengths[mask] = 0.0, 0
        return observations

    def set_options(self, options: Any = None) -> None:
        """Set the options of the next reset, the same for all."""
        if isinstance(options, list):
            raise ConfigError(
                "found a list of reset options. Expected one table for all environments, which "
                "the batch resets together; a batch's options may name one value for each."
            )
        super().set_options(options)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take the actions ``(N, ...)`` of the next step."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Return SB3's ``(observations, rewards, dones, infos)`` of a step."""
        observations, rewards, terminated, truncated, told = self.batch.step(self._actions)
        dones = np.asarray(terminated | truncated, np.bool_)
        self._returns += rewards
        self._lengths += 1
        infos = rows_of(told, self.num_envs)
        for info in infos:
            info["TimeLimit.truncated"] = False
        for i in np.flatnonzero(dones).tolist():
            self.reset_infos[i] = {
                key: value for key, value in infos[i].items() if key not in _OF_THE_END
            }
            ended: dict[str, Any] = infos[i].get("final_info", {})
            infos[i] = {
                **ended,
                "terminal_observation": told["final_obs"][i],
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                "episode": {
                    "r": round(float(self._returns[i]), 6),
                    "l": int(self._lengths[i]),
                    "t": round(time.perf_counter() - self._began, 6),
                },
            }
        self._returns[dones], self._lengths[dones] = 0.0, 0
        return observations, np.asarray(rewards, np.float32), dones, infos

    def close(self) -> None:
        """Close the batch."""
        self.batch.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the batch for each of these environments."""
        numbers = list(self._get_indices(indices))
        batch = self.batch.unwrapped
        if attr_name == "np_random" and hasattr(type(batch), "generators"):
            own: Any = getattr(batch, "generators")  # noqa: B009  (unknown to Gymnasium's type)
            return [own[i] for i in numbers]
        return [getattr(batch, attr_name)] * len(numbers)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the batch; ``np_random`` of these environments alone."""
        batch: Any = self.batch.unwrapped
        if attr_name == "np_random" and hasattr(type(batch), "generators"):
            for i in self._get_indices(indices):
                batch.set_generator(i, value)
            return
        if list(self._get_indices(indices)) != list(range(self.num_envs)):
            raise ConfigError(
                f"found {attr_name} for some environments of a batch. Expected all of them, which "
                "have it together; leave indices out."
            )
        setattr(batch, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the batch with the number of each environment as first argument."""
        method = getattr(self.batch.unwrapped, method_name)
        return [method(i, *method_args, **method_kwargs) for i in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return False for each: nothing is around a single environment of a batch."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return a picture of each environment, None without a render mode."""
        pictures: Any = self.batch.render()
        return [None] * self.num_envs if pictures is None else list(pictures)


_OF_THE_END = ("final_info", "final_obs", "TimeLimit.truncated")
"""What of a step's infos is not of the episode that begins."""


def rows_of(infos: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return what a vector environment's ``infos`` tell of each of its environments.

    An entry ``key`` is of those where ``_key`` is True, of all if there is no such mask. Numbers
    become Python's, tables are read likewise.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = np.asarray(infos.get(f"_{key}", np.ones(count, np.bool_)))
        if isinstance(values, dict):
            column: Sequence[Any] = rows_of(values, count)
        else:
            column = values.tolist() if isinstance(values, np.ndarray) else values
        for i in np.flatnonzero(mask).tolist():
            rows[i][key] = column[i]
    return rows
