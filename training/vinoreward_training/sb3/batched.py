"""A Gymnasium vector environment as Stable-Baselines3's: all environments in one object."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from vinoreward.arrays import is_tensor, to_numpy
from vinoreward.errors import ConfigError, needed_for
from vinoreward.wrappers.env_adapter import copy_final_obs, layers

with needed_for("vinoreward_training.sb3", "train"):
    from stable_baselines3.common.vec_env import VecEnv

SWITCH_SECONDS = 1e-4
"""Python's switch interval while a batch steps in a thread and a learner trains."""


@dataclass(frozen=True)
class BatchStep:
    """A step of a batch; arrays are of the batch's own kind, NumPy's or torch's."""

    observations: Any
    """``(N, ...)``; where an episode ended, the next one's first."""
    rewards: Any
    """``(N,)``."""
    final: Any
    """``(N, ...)`` an episode's last observation where ``dones``; None if there are none."""
    terminated: Any
    """``(N,)`` bool: nothing follows there."""
    dones: NDArray[np.bool_]
    """``(N,)`` where an episode ended, or was cut short."""
    infos: list[dict[str, Any]]
    """As Stable-Baselines3 has them."""

    def last(self) -> Any:
        """Return what the step led to within the same episodes, ``(N, ...)``: no reset's state.

        A learner bootstraps from this. Not for tables of observations.
        """
        if not self.dones.any():
            return self.observations
        rows = np.flatnonzero(self.dones).tolist()
        if is_tensor(self.observations):
            last = self.observations.clone()
            last[rows] = self.final[rows]
            return last
        last = self.observations.copy()
        for i in rows:  # Gymnasium's own keep a list of them
            last[i] = self.final[i]
        return last


class BatchedVecEnv(VecEnv):
    """Steps a vector environment that is one object, such as a batch of hover environments.

    ::

        import gymnasium as gym
        from stable_baselines3 import SAC
        from vinoreward_training.sb3 import BatchedVecEnv

        batch = gym.make_vec("PandaHover-v0", 16, vectorization_mode="vector_entry_point")
        SAC("MlpPolicy", BatchedVecEnv(batch)).learn(200)

    ``infos[i]`` is the info of environment ``i``. Where an episode ended it is that of its last
    step, with ``terminal_observation``, ``TimeLimit.truncated`` and ``episode`` (return ``r``,
    length ``l``, seconds ``t``), as SB3's ``Monitor`` writes them.

    ``env_method`` gives a method the number of each environment as its first argument. A batch
    that has ``generators``, one per environment, shows them as ``np_random``.

    A batch of torch tensors gives SB3 NumPy arrays, copied only from another device; a learner
    that wants the tensors takes them from :meth:`step_batch`.

    Args:
        batch: resets an environment in the step that ends its episode.

    Raises:
        ConfigError: another autoreset mode.
    """

    def __init__(self, batch: VectorEnv[Any, Any, Any]) -> None:
        mode = batch.metadata.get("autoreset_mode")
        if mode != AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"{type(batch.unwrapped).__name__} has the autoreset mode "
                f"{getattr(mode, 'value', mode)}. Expected same-step, as Stable-Baselines3's "
                "environments reset themselves; make it so, or use SB3's make_vec_env."
            )
        if isinstance(batch.unwrapped, SyncVectorEnv):  # a reset may overwrite the last one
            copy_final_obs(batch.unwrapped.envs)
        self.batch = batch
        """The environments."""
        self.overlap_fn: Callable[[], None] | None = None
        """Callback run while another thread steps the batch; None: the batch steps in this one.
        :class:`~vinoreward_training.sb3.OverlappedTraining` trains there."""
        self._thread = ThreadPoolExecutor(1, "vinoreward-batch")
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
        self.reset_infos = rows_of(infos, self.num_envs)
        self._returns[:], self._lengths[:] = 0.0, 0
        return on_host(observations)

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
        return on_host(observations)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take the actions ``(N, ...)`` of the next step."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Return SB3's ``(observations, rewards, dones, infos)`` of a step."""
        step = self.step_batch(self._actions)
        rewards = np.asarray(on_host(step.rewards), np.float32)
        return on_host(step.observations), rewards, step.dones, step.infos

    def step_batch(self, actions: Any) -> BatchStep:
        """Take the actions ``(N, ...)``, an array or a tensor; return all of a step."""
        observations, rewards, terminated, truncated, info = self._stepped(actions)
        info = dict(info)
        final, _ = info.pop("final_obs", None), info.pop("_final_obs", None)
        cut = on_host(truncated) & ~on_host(terminated)
        dones = np.asarray(on_host(terminated) | cut, np.bool_)
        self._returns += on_host(rewards)
        self._lengths += 1
        infos = rows_of(info, self.num_envs)
        for one in infos:
            one["TimeLimit.truncated"] = False
        for i in np.flatnonzero(dones).tolist():
            ended: dict[str, Any] = infos[i].pop("final_info", {})
            del infos[i]["TimeLimit.truncated"]
            self.reset_infos[i] = infos[i]
            episode = {
                "r": round(float(self._returns[i]), 6),
                "l": int(self._lengths[i]),
                "t": round(time.perf_counter() - self._began, 6),
            }
            last, cut_short = on_host(final[i]), bool(cut[i])
            more = {"terminal_observation": last, "TimeLimit.truncated": cut_short}
            infos[i] = {**ended, **more, "episode": episode}
        self._returns[dones], self._lengths[dones] = 0.0, 0
        return BatchStep(observations, rewards, final, terminated, dones, infos)

    def _stepped(self, actions: Any) -> Any:
        """Step the batch, in a thread if there is something to do at the same time."""
        if (overlap_fn := self.overlap_fn) is None:
            return self.batch.step(actions)
        with _switching_often(), _sharing_cores(self.batch):
            step = self._thread.submit(self.batch.step, actions)
            try:
                overlap_fn()
            finally:
                wait([step])  # nothing else may touch the batch before
        return step.result()

    def close(self) -> None:
        """Close the batch."""
        self._thread.shutdown()
        self.batch.close()

    def _owner(self, name: str) -> Any:
        """Return the outermost layer of the batch that has an attribute, else the innermost."""
        found = (layer for layer in layers(self.batch) if hasattr(layer, name))
        return next(found, self.batch.unwrapped)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the batch for each of these environments."""
        numbers = list(self._get_indices(indices))
        batch: Any = self.batch.unwrapped
        if attr_name == "np_random" and hasattr(batch, "generators"):
            return [batch.generators[i] for i in numbers]
        return [getattr(self._owner(attr_name), attr_name)] * len(numbers)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of the batch; ``np_random`` of these environments alone."""
        numbers = list(self._get_indices(indices))
        batch: Any = self.batch.unwrapped
        if attr_name == "np_random" and hasattr(batch, "generators"):
            for i in numbers:
                batch.set_generator(i, value)
            return
        if numbers != list(range(self.num_envs)):
            raise ConfigError(
                field="indices",
                value=indices,
                expected=f"all environments of a batch, which have {attr_name} together",
            )
        setattr(self._owner(attr_name), attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the batch with the number of each environment as first argument."""
        method = getattr(self._owner(method_name), method_name)
        return [method(i, *method_args, **method_kwargs) for i in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return False for each: nothing is around a single environment of a batch."""
        return [False for _ in self._get_indices(indices)]


@contextlib.contextmanager
def _sharing_cores(batch: VectorEnv[Any, Any, Any]) -> Iterator[None]:
    """Leave a core to the learner: layers and their classifiers may have ``busy_cores``."""
    parts = [part for each in layers(batch) for part in (each, getattr(each, "classifier", None))]
    # Once each, and its own: a layer may pass on the attributes of what is inside.
    own: dict[int, Any] = {id(part): part for part in parts if "busy_cores" in dir(part)}
    sharing = list(own.values())
    for part in sharing:
        part.busy_cores += 1
    try:
        yield
    finally:
        for part in sharing:
            part.busy_cores -= 1


@contextlib.contextmanager
def _switching_often() -> Iterator[None]:
    """Let threads that both need Python's lock for moments have it in turns."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def on_host(values: Any) -> Any:
    """Return a tensor as a NumPy array, and anything else as it is."""
    return to_numpy(values) if is_tensor(values) else values


def rows_of(infos: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return a vector environment's ``infos`` by environment; numbers become Python's.

    An entry ``key`` is of those where ``_key`` is True, of all if there is no such mask.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = np.asarray(on_host(infos.get(f"_{key}", np.ones(count, np.bool_))))
        if isinstance(values, dict):
            column: Sequence[Any] = rows_of(values, count)
        else:
            column = values.tolist() if hasattr(values, "tolist") else values
        for i in np.flatnonzero(mask).tolist():
            rows[i][key] = column[i]
    return rows
